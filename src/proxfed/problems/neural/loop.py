"""Gradients of any module, client by client: parameters and gradients are views of the clients' rows.

On a CPU, convolutions with different weights per client gain nothing from stacking; few copies and allocations, and
the memory layout of the images, matter more.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from proxfed.keyed_random import Key
from proxfed.problems.losses import Loss
from proxfed.problems.neural.batch_norm import batch_norms, forget
from proxfed.problems.neural.keyed_draws import KeyedDraws
from proxfed.problems.neural.rewrite import arrange
from proxfed.types import Block


def parameters(x: Tensor, blocks: Sequence[Block]) -> dict[str, Tensor]:
    """The named parameters in a row x (d,), as views."""
    parts = x.split([block.stop - block.start for block in blocks])
    return {block.name: part.view(block.shape) for block, part in zip(blocks, parts, strict=True)}


class Worker:
    """A copy of a module for one thread, which holds the parameters of one client during a call.

    Like torch.func.functional_call, but the parameters are located only once.

    Parameters
    ----------
    module : nn.Module
        The network; its own parameters are not used.
    blocks : sequence of Block
        The blocks of a client's row.
    draws : bool
        Whether dropout and the like are on, as in training; batch norm always uses the batch's own statistics.
    """

    def __init__(self, module: nn.Module, blocks: Sequence[Block], draws: bool = True) -> None:
        shared = {id(p): p for p in module.parameters()}  # shared, not copied: they are replaced in every call
        self.module = copy.deepcopy(module, shared)
        forget(self.module)
        arrange(self.module)
        self.module.train(draws)
        for norm in batch_norms(self.module):
            norm.train()
        named = dict(module.named_parameters())
        self.own = {block.name: named[block.name] for block in blocks}
        self.places = {name: list(_places(self.module, p)) for name, p in self.own.items()}

    def __call__(self, values: Mapping[str, Tensor], A: Tensor) -> Tensor:
        self._hold(values)
        try:
            return self.module(A)
        finally:
            self._hold(self.own)

    def _hold(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            for holder, key in self.places[name]:
                holder[key] = value


def _places(module: nn.Module, parameter: nn.Parameter) -> Iterator[tuple[dict[str, Any], str]]:
    """The places of a parameter in the module: several if layers share it."""
    for part in module.modules():
        for key, p in part.named_parameters(recurse=False, remove_duplicate=False):
            if p is parameter:
                yield part._parameters, key


class Loop:
    """An engine that processes one client at a time.

    Parameters
    ----------
    module : nn.Module
        The network; its own parameters are not used.
    blocks : sequence of Block
        The blocks of a client's row.
    loss : Loss
        The loss of the scores.
    bfloat16 : bool
        Whether forward and backward use torch's autocast to bfloat16.
    draws : bool
        Whether the module draws random numbers in training.
    """

    together = 1

    def __init__(self, module: nn.Module, blocks: Sequence[Block], loss: Loss, bfloat16: bool, draws: bool) -> None:
        self.module, self.blocks, self.loss, self.bfloat16, self.draws = module, blocks, loss, bfloat16, draws
        self._threads = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the threads' workers; another process makes its own."""
        return Loop, (self.module, self.blocks, self.loss, self.bfloat16, self.draws)

    def gradient(
        self, x: Tensor, A: Tensor, b: Tensor, out: Tensor, alpha: float, add: bool, key: Key | None = None
    ) -> None:
        g = torch.zeros_like(out) if add else out.zero_()
        self._add_gradient(x, A, b, g, key)
        if add:
            out.add_(g, alpha=alpha)
        elif alpha != 1:
            out.mul_(alpha)

    def descend(self, y: Tensor, batches: Iterable[tuple[Tensor, Tensor, Key | None]], eta: float, keep: float) -> None:
        for A, b, key in batches:
            g = torch.zeros_like(y)
            self._add_gradient(y, A, b, g, key)
            (y if keep == 1 else y.mul_(keep)).sub_(g, alpha=eta)

    def _add_gradient(self, x: Tensor, A: Tensor, b: Tensor, g: Tensor, key: Key | None) -> None:
        """g <- g + the gradient of the mean loss over samples A (m, ...), b (1, m) at x (1, d)."""
        # `data`, not `detach()`: autograd must not see the changes that other threads make to other clients' rows.
        leaves = {name: view.data.requires_grad_() for name, view in parameters(x[0], self.blocks).items()}
        for leaf, place in zip(leaves.values(), parameters(g[0], self.blocks).values(), strict=True):
            leaf.grad = place  # backward adds to it
        with torch.enable_grad():
            self.loss.value(self._call(leaves, A, key), b).mean().backward()

    def scores(self, x: Tensor, A: Tensor) -> Tensor:
        """(1, outputs, m)"""
        with torch.no_grad():
            return self._call(parameters(x[0], self.blocks), A, None)

    def _call(self, values: Mapping[str, Tensor], A: Tensor, key: Key | None) -> Tensor:
        dtype = next(iter(values.values())).dtype
        with (
            torch.autocast(A.device.type, torch.bfloat16, enabled=self.bfloat16),
            nullcontext() if key is None else KeyedDraws(key),
        ):
            scores = self.worker(self.draws == (key is not None))(values, A)
        return scores.to(dtype).mT[None]

    def worker(self, in_training: bool) -> Worker:
        """The worker of this thread."""
        name = "training" if in_training else "evaluating"
        if not hasattr(self._threads, name):
            setattr(self._threads, name, Worker(self.module, self.blocks, in_training))
        worker: Worker = getattr(self._threads, name)
        return worker
