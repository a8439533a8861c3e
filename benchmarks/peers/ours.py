"""proxfed: the same script in one process and under torchrun."""

from __future__ import annotations

import os

import numpy as np
import torch
from nets import loss_of, net
from torch.nn.utils import vector_to_parameters
from turns import Clock, options, peak_rss_mb
from workload import ETA, SAMPLES, WORKLOADS

from proxfed import FedAvg, Federated
from proxfed.algorithms.dfedavg import DFedAvg
from proxfed.engine import ranks
from proxfed.engine.allocator import tune_process
from proxfed.engine.network import Stacked, world
from proxfed.engine.start import run_of
from proxfed.problems.neural.neural import Neural
from proxfed.regularisers import Zero
from proxfed.topologies import Ring


def main() -> None:
    args = options(__doc__, "abc")
    torch.set_num_threads(args.threads)
    tune_process()
    work, together = WORKLOADS[args.workload], world() is not None
    data = Federated(*work.data(), np.full(work.clients, SAMPLES), classes=10)
    clock = Clock()
    problem = Neural(data, lambda *_: net(work), batch=work.batch)
    algorithm = DFedAvg(ETA, work.steps) if args.workload == "c" else FedAvg(ETA, work.steps)
    if together:
        ranks.connect(timeout=3600)  # others' turns are between two of ours
    topology = Ring(problem.n) if args.workload == "c" else None
    network = (ranks.Ranks if together else Stacked)(problem.n, problem.d, topology)
    run = run_of(problem + Zero(), algorithm, network)
    model = net(work)
    before = loss_of(model, work)
    clock.time(lambda: run.round(len(clock.seconds) + 1), args.rounds)
    if network.leader:
        x = run.model() if topology is None else run.fields()["x"][0].contiguous()
        vector_to_parameters(x, model.parameters())
        memory = peak_rss_mb(os.getppid() if together else None)
        clock.report(before - loss_of(model, work), memory)
    if together:
        torch.distributed.barrier()
        ranks.disconnect()


if __name__ == "__main__":
    main()
