"""Work that should take little more than reading what it needs once, and writing what it makes.

gradient   the full gradient of logistic regression, 30 clients x 2000 samples x 60 features, float64: 28.8 MB
top_k      top-k of 1 % of (10, 11,000,000) float32 numbers, with its dense value and the bytes that it takes: 440 MB
encode     those messages written
decode     those messages read, each to its dense value
receive    those messages read and added up with weights, as between processes: from the wire to the sum
"""

from __future__ import annotations

import numpy as np
import torch
from turns import Clock, options

from proxfed import Federated, Linear, Logistic
from proxfed.compressors import TopK
from proxfed.engine.allocator import tune_process
from proxfed.engine.messages import decoded_sum
from proxfed.keyed_random import keys

MEGABYTES = {
    "gradient": (28.8, 0.0),
    "top_k": (440.0, 440.0),
    "encode": (440.0, 0.0),
    "decode": (5.5, 440.0),
    "receive": (440.0, 0.0),
}
"""What is read, and what is written to memory that the system hands out. To encode and to receive need neither: they
are held against one read of the rows that the messages stand for."""


def gradient():
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(60_000, 60)), np.sign(rng.normal(size=60_000))
    f = Linear(Federated(A, b, np.full(30, 2000)), Logistic()).local(1, range(30))
    x = torch.zeros(60, dtype=torch.float64)
    return lambda: f.full_grad(x), 20


def top_k(what: str, library: bool):
    v = torch.from_numpy(np.random.default_rng(0).standard_normal((10, 11_000_000), dtype=np.float32))
    C, key = TopK(0.01), keys(0, "bench", range(10), 0)
    if library:
        return lambda: torch.topk(v.abs(), 110_000), 1
    if what == "top_k":
        return lambda: C(v, key), 1
    packed = C(v, key)
    messages = C.encode(packed)
    print(f"{sum(map(len, messages)) / 1e6:.2f} MB of wire")
    w = torch.full((10,), 0.1)
    works = {
        "encode": lambda: C.encode(packed),
        "decode": lambda: C.decode(messages, v.shape[1], v.dtype),
        "receive": lambda: decoded_sum(messages, w, packed),
    }
    return works[what], 3


def main() -> None:
    args = options(__doc__, tuple(MEGABYTES), contestant="proxfed")
    tune_process()
    torch.set_num_threads(args.threads)
    work, times = gradient() if args.workload == "gradient" else top_k(args.workload, args.contestant == "torch.topk")
    clock = Clock()
    clock.time(work, args.rounds, times)
    clock.report()


if __name__ == "__main__":
    main()
