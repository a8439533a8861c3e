"""One model over the samples of all clients: what a round could cost if clients had no models of their own."""

from __future__ import annotations

import torch
from nets import loss_of, net
from torch import nn
from turns import Clock, options
from workload import ETA, WORKLOADS

BATCH = {"a": 3200, "b": 64}
"""Whichever is fastest: everybody's batches together for the dense network, a client's batch for convolutions."""


def main() -> None:
    args = options(__doc__, "".join(BATCH))
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    work = WORKLOADS[args.workload]
    x, y = map(torch.from_numpy, work.data())
    clock = Clock()
    model, loss = net(work), nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(model.parameters(), lr=ETA)
    before = loss_of(model, work)

    def one_round() -> None:
        for rows in torch.randperm(len(x)).split(BATCH[args.workload]):
            optimiser.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimiser.step()

    clock.time(one_round, args.rounds)
    clock.report(before - loss_of(model, work))


if __name__ == "__main__":
    main()
