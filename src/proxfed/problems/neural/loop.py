"""Gradients of any module, client by client: parameters are views of the client's row, and so are their gradients.

On a CPU convolutions with weights of their own for every client gain nothing from being stacked; what counts is to
copy and to allocate little, and the memory layout of the images.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from proxfed.problems.losses import Loss
from proxfed.problems.neural.batch_norm import forget
from proxfed.problems.neural.rewrite import arrange
from proxfed.types import Block


def parameters(x: Tensor, blocks: Sequence[Block]) -> dict[str, Tensor]:
    """The named parameters in a row x (d,), as views."""
    parts = x.split([block.stop - block.start for block in blocks])
    return {block.name: part.view(block.shape) for block, part in zip(blocks, parts, strict=True)}


class Worker:
    """A copy of a module for one thread: while it is called, it holds the parameters of a client.

    What torch.func.functional_call does, without looking for the places of the parameters in every call.
    """

    def __init__(self, module: nn.Module, blocks: Sequence[Block]) -> None:
        shared = {id(p): p for p in module.parameters()}  # not copied: they are replaced in every call
        self.module = copy.deepcopy(module, shared)
        forget(self.module)
        arrange(self.module)
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
    """Where a parameter stands: in several places, if layers share it."""
    for part in module.modules():
        for key, p in part.named_parameters(recurse=False, remove_duplicate=False):
            if p is parameter:
                yield part._parameters, key


class Loop:
    """One client at a time."""

    together = 1

    def __init__(self, module: nn.Module, blocks: Sequence[Block], loss: Loss, bfloat16: bool) -> None:
        self.module, self.blocks, self.loss, self.bfloat16 = module, blocks, loss, bfloat16
        self._threads = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process its threads have copies of their own."""
        return Loop, (self.module, self.blocks, self.loss, self.bfloat16)

    def gradient(self, x: Tensor, A: Tensor, b: Tensor, out: Tensor, alpha: float, add: bool) -> None:
        g = torch.zeros_like(out) if add else out.zero_()
        self._add_gradient(x, A, b, g)
        if add:
            out.add_(g, alpha=alpha)
        elif alpha != 1:
            out.mul_(alpha)

    def descend(self, y: Tensor, batches: Iterable[tuple[Tensor, Tensor]], eta: float, keep: float) -> None:
        for A, b in batches:
            g = torch.zeros_like(y)
            self._add_gradient(y, A, b, g)
            (y if keep == 1 else y.mul_(keep)).sub_(g, alpha=eta)

    def _add_gradient(self, x: Tensor, A: Tensor, b: Tensor, g: Tensor) -> None:
        """g <- g + grad, of the mean loss over samples A (m, ...), b (1, m) at x (1, d)."""
        leaves = {name: view.detach().requires_grad_() for name, view in parameters(x[0], self.blocks).items()}
        for leaf, place in zip(leaves.values(), parameters(g[0], self.blocks).values(), strict=True):
            leaf.grad = place  # where backward adds to
        with torch.enable_grad():
            self.loss.value(self._call(leaves, A), b).mean().backward()

    def scores(self, x: Tensor, A: Tensor) -> Tensor:
        """(1, outputs, m)"""
        with torch.no_grad():
            return self._call(parameters(x[0], self.blocks), A)

    def _call(self, values: Mapping[str, Tensor], A: Tensor) -> Tensor:
        with torch.autocast(A.device.type, torch.bfloat16, enabled=self.bfloat16):
            scores = self.worker(values, A)
        return scores.to(A.dtype).mT[None]

    @property
    def worker(self) -> Worker:
        """Of this thread."""
        if not hasattr(self._threads, "worker"):
            self._threads.worker = Worker(self.module, self.blocks)
        return self._threads.worker
