"""pfl: its federated averaging on in-memory datasets; the same script in one process and under torchrun.

pfl does not shuffle a user's samples.
"""

from __future__ import annotations

import os

import torch
from nets import loss_of, net
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from turns import Clock, options, peak_rss_mb
from workload import ETA, WORKLOADS


class Net(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        return {}


class Ticks(TrainingProcessCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.clock.tick()
        return False, Metrics()


def main() -> None:
    args = options(__doc__, "ab")
    torch.set_num_threads(args.threads)
    work, together = WORKLOADS[args.workload], "TORCHELASTIC_RUN_ID" in os.environ
    work.data()
    clock = Clock()
    module = Net(net(work))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    held = [PyTorchTensorDataset(tuple(map(torch.from_numpy, work.client(i)))) for i in range(work.clients)]
    users = FederatedDataset(held.__getitem__, get_user_sampler("minimize_reuse", list(range(work.clients))))
    before = loss_of(module, work)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=args.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=work.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=ETA),
        callbacks=[Ticks(clock)],
        send_metrics_to_platform=False,
    )
    if not together or torch.distributed.get_rank() == 0:
        memory = peak_rss_mb(os.getppid() if together else None)
        clock.report(before - loss_of(module, work), memory)
    if together:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
