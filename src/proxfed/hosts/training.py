"""f_i of one client as usual in PyTorch: a module, a loss and a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from proxfed.errors import non_negative, require
from proxfed.explained import explain
from proxfed.keyed_random import Ids, fold, keys
from proxfed.types import Local, Smooth

__all__ = ["Training"]

Forward = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
"""(module, batch) -> (outputs, targets)."""


def _pair(module: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, targets = batch
    device = next(module.parameters()).device
    return module(inputs.to(device)), targets.to(device)


@dataclass(frozen=True, eq=False)
class Training:
    """A client's objective: f_i(x) is the mean loss over the rows of its loader, plus (l2/2) |x|^2.

    x are the concatenated parameters of the module that need gradients. The randomness of a round, including shuffling
    and dropout, follows from the seed, the client, the round and the local step: torch's own generator is set to it
    while a batch is read and a gradient is computed, and restored afterwards.
    """

    module: nn.Module
    """Its parameters are overwritten by those of the server."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) -> their mean loss, such as nn.CrossEntropyLoss()."""
    loader: Iterable[Any]
    """Batches, such as a DataLoader; each stochastic gradient takes the next one."""
    forward: Forward = _pair
    """(module, batch) -> (outputs, targets); by default a batch is a pair of inputs and targets."""
    l2: float = 0.0
    """Weight of |x|^2 / 2."""

    def __post_init__(self) -> None:
        require(isinstance(self.module, nn.Module), f"Training: module = {self.module!r:.60} is no nn.Module")
        non_negative(self, "l2")
        require(bool(self.named), "Training: the module has no parameter that needs a gradient")
        kinds = {p.dtype for p in self.named.values()}
        require(len(kinds) == 1, f"Training: the module's parameters have several dtypes: {sorted(map(str, kinds))}")
        running = next((n for n, m in self.module.named_modules() if _has_running_means(m)), None)
        require(
            running is None,
            f"Training: {running!r} is a batch normalisation: no algorithm averages its running means; take GroupNorm",
        )

    @cached_property
    def named(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    @property
    def x(self) -> Tensor:
        """The current parameters of the module, (d,)."""
        return torch.cat([p.detach().reshape(-1) for p in self.named.values()])

    @property
    def rows(self) -> int:
        """The length of the loader's dataset; 1 if it has none."""
        data = getattr(self.loader, "dataset", None)
        return len(data) if isinstance(data, Sized) else 1

    def write(self, x: Tensor) -> None:
        """Put x, (d,), into the module."""
        with torch.no_grad():
            parts = torch.split(x, [p.numel() for p in self.named.values()])
            for p, part in zip(self.named.values(), parts, strict=True):
                p.copy_(part.view_as(p))


class OneClient(Smooth):
    """f of one client."""

    def __init__(self, training: Training) -> None:
        self.training, x = training, training.x
        self.n, self.d, self.l2 = 1, len(x), training.l2
        self.weights = torch.ones(1, dtype=x.dtype, device=x.device)

    def local(self, t: int, ids: Ids, seed: int = 0) -> Local:
        return _Batches(self.training, t, ids, seed)


class _Batches(Local):
    """Reads batches in the loader's order, as many as requested; the same draw gives the same batch."""

    def __init__(self, training: Training, t: int, ids: Ids, seed: int) -> None:
        self.training, self.t, self.ids, self.seed = training, t, ids, seed
        self.drawn: dict[int, Any] = {}
        self.passes = self._endless()

    def grad(self, x: Tensor, draw: int) -> Tensor:
        if draw not in self.drawn:
            with self._random("minibatch", draw):
                self.drawn[draw] = next(self.passes)
        return self._sums(x, [(draw, self.drawn[draw])])[1]

    def full_grad(self, x: Tensor) -> Tensor:
        return self._sums(x, enumerate(self.training.loader))[1]

    def value(self, x: Tensor) -> Tensor:
        return self._sums(x, enumerate(self.training.loader), gradient=False)[0]

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._sums(x, enumerate(self.training.loader))

    def _endless(self) -> Iterator[Any]:
        for epoch in count():
            some = False
            for batch in self.training.loader:
                some = True
                yield batch
            require(some, f"Training: the loader of client {int(self.ids[0])} has no batch (epoch {epoch + 1})")

    def _sums(self, x: Tensor, batches: Iterable[tuple[int, Any]], gradient: bool = True) -> tuple[Tensor, Tensor]:
        """The mean loss (1,) and its gradient (1, d) at x, (1, d) or (d,), over the rows of these batches."""
        training, x, rows = self.training, x.reshape(-1), 0
        parameters = list(training.named.values())
        training.write(x)
        training.module.train()
        value, g = x.new_zeros(()), torch.zeros_like(x)
        for draw, batch in batches:
            with self._random("dropout", draw), torch.set_grad_enabled(gradient):
                outputs, targets = training.forward(training.module, batch)
                loss = training.loss(outputs, targets)
                require(loss.ndim == 0, f"Training: the loss must be one number, a mean, not {tuple(loss.shape)}")
                if gradient:
                    parts = torch.autograd.grad(loss, parameters, allow_unused=True)
            m = len(targets)
            value, rows = value + m * loss.detach(), rows + m
            if gradient:
                flat = [torch.zeros_like(p) if d is None else d for p, d in zip(parameters, parts, strict=True)]
                g += m * torch.cat([part.reshape(-1) for part in flat])
        require(rows > 0, f"Training: the loader of client {int(self.ids[0])} has no row")
        l2 = training.l2
        return (value / rows + l2 / 2 * x.dot(x))[None], (g / rows + l2 * x)[None]

    @contextmanager
    def _random(self, purpose: str, draw: int) -> Iterator[None]:
        """torch's generator is a function of the seed, the client, the round and the draw."""
        device = next(iter(self.training.named.values())).device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(int(fold(keys(self.seed, purpose, self.ids, self.t), draw)[0]))
            yield


def _has_running_means(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.track_running_stats


explain(__name__)
