"""One of each kind that is no part of the package: what somebody may bring along to a study of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from proxfed.data import load
from proxfed.data.partitions import IID
from proxfed.errors import require
from proxfed.harness.processes import _Others
from proxfed.keyed_random import Key, keys, uniforms
from proxfed.problems.neural.neural import Neural
from proxfed.topologies.base import FixedTopology
from proxfed.topologies.mixing import weigh
from proxfed.types import Facts, Local, Mixing, Needs, Packed, Problem, Regulariser, Sends, Star


def wait_for_other_jobs() -> Callable[..., None]:
    """How jobs are started where a test needs all of them from the first round on: a new process takes seconds."""
    start = _Others.start

    def and_wait(self: _Others, count: int) -> None:
        start(self, count)
        for worker in self.workers:
            worker.wait_until_read()

    return and_wait


class Point(NamedTuple):
    x: Tensor


@dataclass(frozen=True)
class Slow(Star[tuple[()], Point]):
    """Gradient descent that takes its time, and fails in a round if it is told to, but not in a process it spares."""

    eta: float
    seconds: float = 0.0
    fails_in: int | None = None
    spares: int = 0

    needs: ClassVar[Needs] = Needs(composite=False)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True)

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[tuple[()], Point]:
        return (), Point(x0)

    def client(self, own: tuple[()], x: Tensor, f: Local, h: Regulariser) -> tuple[tuple[()], Tensor]:
        time.sleep(self.seconds)
        if f.t == self.fails_in and os.getpid() != self.spares:
            raise ZeroDivisionError("the client has no more patience")
        return own, f.grad(x, 0)

    def server(self, s: Point, g: Tensor, h: Regulariser, share: float) -> Point:
        return Point(s.x - self.eta * g)


class Shrink(Regulariser):
    """h(x) = weight * sum_j |x_j|, written as an ordinary class."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def value(self, x: Tensor) -> Tensor:
        return self.weight * x.abs().sum(-1)

    def prox(self, v: Tensor, step: float) -> Tensor:
        return v.sign() * (v.abs() - step * self.weight).clamp(min=0)


class FirstHalf:
    """Keeps the first half of the entries; an ordinary class without a repr of its own."""

    unbiased = False

    def __init__(self, half: float = 0.5) -> None:
        self.half = half

    def __call__(self, v: Tensor, key: Key) -> Packed:
        kept = v.clone()
        kept[:, int(self.half * v.shape[1]) :] = 0
        size = kept.shape[0] * int(self.half * v.shape[1]) * v.itemsize
        return Packed({"value": kept}, kept, size, size, self)

    def contraction(self, d: int) -> float:
        return 0.99

    def encode(self, packed: Packed) -> list[bytes]:
        return [row.numpy().tobytes() for row in packed.parts["value"]]

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        return torch.stack([torch.frombuffer(bytearray(m), dtype=dtype) for m in messages])


@dataclass(frozen=True)
class Path(FixedTopology):
    """A ring that is cut open."""

    n: int

    @cached_property
    def _mixing(self) -> Mixing:
        i = np.arange(self.n - 1)
        return weigh(self.n, (i, i + 1), "metropolis")


@dataclass(frozen=True)
class Weekdays:
    """Client i takes part in two rounds of three, and now and then in the third."""

    chance: float = 0.5

    def __call__(self, t: int, n: int, seed: int) -> np.ndarray:
        u = uniforms(keys(seed, "weekdays", np.arange(n), t), 1)[:, 0]
        return np.flatnonzero(((np.arange(n) + t) % 3 > 0) | (u < self.chance))


def everybody_but_the_first(t: int, n: int, seed: int) -> np.ndarray:
    return np.arange(1, n)


class Net(nn.Module):
    """Two layers that nobody has registered."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(inputs, 6), nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(x.flatten(1))))


def make_net(channels: int, side: int, classes: int) -> nn.Module:
    return Net(channels * side**2, classes)


def digits(h: Any, **options: Any) -> Problem[Neural]:
    """A network of one's own on a few digits."""
    data = load("digits", IID(num_partitions=4), limit=80)
    return Neural(data, make_net, batch=5, train_measures=True, dtype=torch.float64, **options) + h


class Refuses(Slow):
    """Has a sentence to say in the third round."""

    def client(self, own: tuple[()], x: Tensor, f: Local, h: Regulariser) -> tuple[tuple[()], Tensor]:
        require(f.t != 3 or os.getpid() == self.spares, "there is no third round")
        return super().client(own, x, f, h)


class Stuck(Slow):
    """Cannot be given to another process."""

    def __reduce__(self) -> Any:
        raise TypeError("I stay here")
