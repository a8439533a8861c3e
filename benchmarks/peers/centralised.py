"""One model over the samples of all clients: what a round could cost if clients had no models of their own."""

from __future__ import annotations

import argparse

import torch
from nets import loss_of, net
from torch import nn
from workload import ETA, WORKLOADS, Clock, report

BATCH = {"a": 3200, "b": 64}
"""Whichever is fastest: everybody's batches together for the dense network, a client's batch for convolutions."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=tuple(BATCH))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    work = WORKLOADS[options.workload]
    x, y = map(torch.from_numpy, work.data())
    clock = Clock()
    model, loss = net(work), nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(model.parameters(), lr=ETA)
    before = loss_of(model, work)

    def one_round() -> None:
        for rows in torch.randperm(len(x)).split(BATCH[options.workload]):
            optimiser.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimiser.step()

    clock.time(one_round, options.rounds)
    report("centralised", options.workload, clock, before - loss_of(model, work))


if __name__ == "__main__":
    main()
