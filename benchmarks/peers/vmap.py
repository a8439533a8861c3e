"""torch.func.vmap: all clients' steps at once, in the dozen lines that one writes with it."""

from __future__ import annotations

import torch
from nets import loss_of, net
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from turns import Clock, options
from workload import ETA, SAMPLES, WORKLOADS


def main() -> None:
    args = options(__doc__, "a")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    work = WORKLOADS[args.workload]
    n = work.clients
    x, y = (torch.from_numpy(part).unflatten(0, (n, SAMPLES)) for part in work.data())
    clock = Clock()
    model = net(work)
    before, everyone = loss_of(model, work), torch.arange(n)[:, None]
    gradients = vmap(grad(lambda p, x, y: cross_entropy(functional_call(model, p, (x,)), y)))

    def one_round() -> None:
        p = {name: value.detach().repeat(n, *[1] * value.ndim) for name, value in model.named_parameters()}
        for rows in torch.rand(n, SAMPLES).argsort(1).split(work.batch, 1):
            g = gradients(p, x[everyone, rows], y[everyone, rows])
            p = {name: value - ETA * g[name] for name, value in p.items()}
        model.load_state_dict({name: value.mean(0) for name, value in p.items()})

    clock.time(one_round, args.rounds)
    clock.report(before - loss_of(model, work))


if __name__ == "__main__":
    main()
