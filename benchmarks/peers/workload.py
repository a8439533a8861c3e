"""What every contender computes: the same samples, the same start, the same rounds; and the line that it prints.

a   FedAvg, 100 clients x 600 samples, MLP 784-200-200-10, batch 32, one local epoch a round
b   FedAvg, 10 clients x 600 samples, CNN with 5x5 convolutions of 32 and 64 channels, batch 64, one local epoch a round
c   D-PSGD on a ring of 100 nodes, the samples and the network of a, one local epoch between two gossip steps

A sample is the mean of noise and of its class's own picture, all uniform on [0, 1]. Everybody starts at the same
parameters, so after the same rounds all must have learned about the same: who has not did not compute the same. Needs
numpy alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np

ETA = 0.1
"""Step size of the local SGD."""

SAMPLES = 600
"""Of each client."""

CLASSES = 10


def options(description: str | None, workloads: str) -> argparse.Namespace:
    """What every contender is told on its command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("workload", choices=tuple(workloads))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    return parser.parse_args()


@dataclass(frozen=True)
class Workload:
    clients: int
    batch: int
    sample: tuple[int, ...]
    """Shape of a sample."""
    shapes: tuple[tuple[int, ...], ...]
    """Of the parameters: weight and bias, layer after layer, outputs first as in PyTorch."""

    @property
    def steps(self) -> int:
        """Of a local epoch; the last batch is smaller."""
        return -(-SAMPLES // self.batch)

    @cache  # noqa: B019
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Samples (clients * SAMPLES, ...) in float32 and classes in int64, sorted by client."""
        rng = np.random.default_rng(0)
        y = rng.integers(0, CLASSES, self.clients * SAMPLES)
        pictures = rng.random((CLASSES, *self.sample), np.float32)
        x = rng.random((len(y), *self.sample), np.float32)
        x += pictures[y]
        x /= 2
        return x, y

    def client(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = self.data()
        return x[i * SAMPLES : (i + 1) * SAMPLES], y[i * SAMPLES : (i + 1) * SAMPLES]

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """The samples that the loss is reported on: client 0's."""
        return self.client(0)

    def start(self) -> list[np.ndarray]:
        """Uniform on +- 1/sqrt(inputs of the layer)."""
        rng, start = np.random.default_rng(1), []
        for weight, bias in zip(self.shapes[::2], self.shapes[1::2], strict=True):
            bound = np.prod(weight[1:]) ** -0.5
            start += [rng.uniform(-bound, bound, shape).astype(np.float32) for shape in (weight, bias)]
        return start


_MLP = ((200, 784), (200,), (200, 200), (200,), (10, 200), (10,))
_CNN = ((32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (500, 1024), (500,), (10, 500), (10,))

WORKLOADS = {
    "a": Workload(100, 32, (784,), _MLP),
    "b": Workload(10, 64, (1, 28, 28), _CNN),
    "c": Workload(100, 32, (784,), _MLP),
}


class Clock:
    """Seconds of the rounds. Starts when made; the first round has all that must be set up before it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.restart()

    def restart(self) -> None:
        self._since = time.perf_counter()

    def tick(self) -> None:
        """A round is over, the next begins."""
        self.seconds.append(time.perf_counter() - self._since)
        self.restart()

    def time(self, one_round: Callable[[], object], rounds: int) -> None:
        for _ in range(rounds):
            one_round()
            self.tick()


def report(peer: str, workload: str, clock: Clock, learned: float, memory: float | None = None) -> None:
    """The line that the driver reads."""
    line = {
        "peer": peer,
        "workload": workload,
        "seconds_per_round": median(clock.seconds[1:]),
        "first_round": clock.seconds[0],
        "rounds": len(clock.seconds),
        "peak_rss_mb": peak_rss_mb() if memory is None else memory,
        "seconds": clock.seconds,
        "learned": learned,
    }
    print(json.dumps(line), flush=True)


def peak_rss_mb(root: int | None = None) -> float:
    """Peak memory of the process `root` (this one) and of all that descend from it, added up; what they share counts
    in each. Without /proc only this process is seen."""
    if not Path("/proc/self/status").exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes, on a Mac
    parents, peaks = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # it has just ended
            continue
        pid = int(fields["Pid"])
        parents[pid] = int(fields["PPid"])
        peaks[pid] = int(fields.get("VmHWM", "0 kB").split()[0]) / 1024
    family, found = {root or os.getpid()}, 0
    while len(family) > found:
        found = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    return sum(peaks.get(pid, 0.0) for pid in family)
