"""A rank that counts what its own sockets send; test_real_bytes.py starts it with RANK and the like in its environment.

Prints one line of JSON: for each setting the bytes that its sockets sent in some rounds, and what the run has recorded
for them.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from dataclasses import astuple
from pathlib import Path

import numpy as np
import torch.distributed as dist

from proxfed import Depositum, FedAvg, FedCEF, Federated, Linear, Squared
from proxfed.algorithms.choco import ChocoSGD
from proxfed.algorithms.pledge import Pledge
from proxfed.compressors import QSGD, ErrorBoundedQuantiser, TopK
from proxfed.engine import ranks
from proxfed.engine.start import run_of
from proxfed.participation import Full, UniformSampling
from proxfed.regularisers import Zero
from proxfed.topologies import Complete, Ring, SpanningTree

ROUNDS, D, SAMPLES = 4, 20_000, 3
SENT, REPEATED, WAITING = ("Q", 200), ("Q", 208), ("I", 144)
"""Where the kernel's `struct tcp_info` has `tcpi_bytes_sent`, bytes of the stream without headers of packets,
`tcpi_bytes_retrans`, those of them that were sent again, and `tcpi_notsent_bytes`, those that still wait."""


def sent() -> int:
    """Bytes that the TCP sockets of this process have sent so far."""
    total = 0
    for link in Path("/proc/self/fd").iterdir():
        if not os.path.realpath(link).rpartition("/")[2].startswith("socket:"):
            continue
        with socket.socket(fileno=os.dup(int(link.name))) as s:
            if s.family in (socket.AF_INET, socket.AF_INET6):
                info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                once, again, waiting = (struct.unpack_from(kind, info, at)[0] for kind, at in (SENT, REPEATED, WAITING))
                total += once - again + waiting
    return total


def settings(size: int) -> dict:
    """(clients, algorithm, topology, participation); between peers one client in every process."""
    many, some = 2 * size + 1, UniformSampling(1)
    return {
        "star": (many, FedCEF(1e-3, 1, compressor=TopK(0.05)), None, Full()),
        "one takes part": (many, FedCEF(1e-3, 1, compressor=QSGD(4, contractive=True)), None, some),
        "dense star": (many, FedAvg(1e-3, 1), None, Full()),
        "ring": (size, ChocoSGD(1e-3, 0.5, ErrorBoundedQuantiser(0.1)), Ring(size), Full()),
        "complete": (size, ChocoSGD(1e-3, 0.5, TopK(0.05)), Complete(size), Full()),
        "tree": (size, Pledge(1e-3), SpanningTree(Ring(size), root=0), Full()),
        "dense ring": (size, Depositum(1e-3, T0=1), Ring(size), Full()),
    }


def count(n: int, algorithm, topology, participation) -> dict[str, int]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n * SAMPLES, D)) / D**0.5
    data = Federated(features, rng.standard_normal(n * SAMPLES), np.full(n, SAMPLES))
    network = ranks.Ranks(n, D, topology)
    run = run_of(Linear(data, Squared()) + Zero(), algorithm, network, participation)
    dist.barrier()
    before, recorded = sent(), astuple(network.traffic)
    for t in range(1, ROUNDS + 1):
        run.round(t)
    after = sent()
    dist.barrier()
    now = zip(("up", "down", "edge", "best"), astuple(network.traffic), recorded, strict=True)
    return {name: a - b for name, a, b in now} | {"sent": after - before}


def main() -> None:
    ranks.connect(timeout=60)
    print(json.dumps({name: count(*s) for name, s in settings(dist.get_world_size()).items()}), flush=True)
    ranks.disconnect()


if __name__ == "__main__":
    main()
