"""What no one can beat: a round's products at the speed of a large one, or a single pass over what must be read and
fresh memory for what must be written."""

from __future__ import annotations

import linear_round
import networks
import numpy as np
import torch
from nets import net
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode
from turns import Clock, options
from vectors import MEGABYTES
from workload import SAMPLES, WORKLOADS

SIDE, PRODUCTS, PAGE = 1536, 10, 1024


def work(workload: str) -> tuple[nn.Module, tuple[int, ...], int]:
    """(network, shape of a sample, samples of a round)."""
    if workload in WORKLOADS:
        w = WORKLOADS[workload]
        return net(w), w.sample, w.clients * SAMPLES
    if workload == "linear":
        samples = linear_round.C * linear_round.K * linear_round.B
        return nn.Linear(linear_round.P, linear_round.Q, bias=False), (linear_round.P,), samples
    s = networks.SETTINGS[workload][0]
    return networks.MODELS[s.model](1, 28, 10), (1, 28, 28), s.n * min(s.steps * s.batch, networks.M)


def gigaflops(workload: str) -> float:
    """Of a round: forward and backward of every sample."""
    model, shape, samples = work(workload)
    with FlopCounterMode(display=False) as counter:
        cross_entropy(model(torch.zeros(8, *shape)), torch.zeros(8, dtype=torch.int64)).backward()
    return counter.get_total_flops() / 8 * samples / 1e9


def main() -> None:
    args = options(__doc__, (*WORKLOADS, *networks.SETTINGS, "linear", *MEGABYTES))
    torch.set_num_threads(args.threads)
    if args.workload in MEGABYTES:
        read, written = (int(megabytes * 1e6) // 4 for megabytes in MEGABYTES[args.workload])
        x, times = torch.rand(read), 10.0

        def some_rounds() -> None:
            for _ in range(10):
                x.sum()
                np.zeros(written, np.float32)[::PAGE] = 1
    else:
        A, B, out = torch.rand(3, SIDE, SIDE)
        times = PRODUCTS * 2 * SIDE**3 / 1e9 / gigaflops(args.workload)

        def some_rounds() -> None:
            for _ in range(PRODUCTS):
                torch.mm(A, B, out=out)

    some_rounds()
    clock = Clock()
    for _ in range(args.rounds):
        some_rounds()
        clock.tick(times)
    clock.report()


if __name__ == "__main__":
    main()
