"""The obvious loop: a module and an optimiser, client after client."""

from __future__ import annotations

import torch
from nets import loss_of, net
from torch import nn
from turns import Clock, options
from workload import ETA, SAMPLES, WORKLOADS, Workload


def fedavg(work: Workload):
    x, y = (torch.from_numpy(part).split(SAMPLES) for part in work.data())
    model, loss = net(work), nn.CrossEntropyLoss()

    def one_round() -> None:
        server = {name: value.clone() for name, value in model.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in server.items()}
        for i in range(work.clients):
            model.load_state_dict(server)
            train(model, loss, x[i], y[i], work.batch)
            for name, value in model.state_dict().items():
                total[name] += value
        model.load_state_dict({name: value / work.clients for name, value in total.items()})

    return model, one_round


def train(model: nn.Module, loss: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=ETA)
    for rows in torch.randperm(len(x)).split(batch):
        optimiser.zero_grad()
        loss(model(x[rows]), y[rows]).backward()
        optimiser.step()


def dpsgd(work: Workload):
    """A ring: a third of one's own model and of each neighbour's, after a local epoch."""
    x, y = (torch.from_numpy(part).split(SAMPLES) for part in work.data())
    model, loss, n = net(work), nn.CrossEntropyLoss(), work.clients
    own = [{name: value.clone() for name, value in model.state_dict().items()} for _ in range(n)]

    def one_round() -> None:
        nonlocal own
        for i in range(n):
            model.load_state_dict(own[i])
            train(model, loss, x[i], y[i], work.batch)
            own[i] = {name: value.clone() for name, value in model.state_dict().items()}
        own = [
            {name: (own[i - 1][name] + own[i][name] + own[(i + 1) % n][name]) / 3 for name in own[i]} for i in range(n)
        ]
        model.load_state_dict(own[0])

    return model, one_round


def main() -> None:
    args = options(__doc__, "abc")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    work = WORKLOADS[args.workload]
    work.data()
    clock = Clock()
    model, one_round = (dpsgd if args.workload == "c" else fedavg)(work)
    before = loss_of(model, work)
    clock.time(one_round, args.rounds)
    clock.report(before - loss_of(model, work))


if __name__ == "__main__":
    main()
