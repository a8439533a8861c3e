"""What every contestant computes: the same samples, the same start, the same rounds.

a   FedAvg, 100 clients x 600 samples, MLP 784-200-200-10, batch 32, one local epoch a round
b   FedAvg, 10 clients x 600 samples, CNN with 5x5 convolutions of 32 and 64 channels, batch 64, one local epoch a round
c   D-PSGD on a ring of 100 nodes, the samples and the network of a, one local epoch between two gossip steps

A sample is the mean of noise and of its class's own picture, all uniform on [0, 1]. All start at the same
parameters, so after the same rounds all must have learned about the same: one that has not did not compute the same.
Needs numpy alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

ETA = 0.1
"""Step size of the local SGD."""

SAMPLES = 600
"""Of each client."""

CLASSES = 10


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
