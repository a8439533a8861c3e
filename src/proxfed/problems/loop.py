"""Gradients of any module, client by client: parameters are views of the client's row, and so are their gradients.

On a CPU convolutions with weights of their own for every client gain nothing from being stacked; what counts is to
copy and to allocate little, and the memory layout of the images.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from proxfed.problems.arrange import arrange
from proxfed.problems.batch_norm import forget
from proxfed.problems.linear import Loss
from proxfed.types import Block


def parameters(x: Tensor, blocks: Sequence[Block]) -> dict[str, Tensor]:
    """The named parameters in a row x (d,), as views."""
    return {block.name: x[block.start : block.stop].view(block.shape) for block in blocks}


class _Own(threading.local):
    """A thread's own copy of the module: while it is called, it holds the parameters of a client."""

    module: nn.Module | None = None


class Loop:
    """One client at a time."""

    together = 1

    def __init__(self, module: nn.Module, blocks: Sequence[Block], loss: Loss, bfloat16: bool) -> None:
        self.module, self.blocks, self.loss, self.bfloat16 = module, blocks, loss, bfloat16
        self._own = _Own()

    def gradient(self, x: Tensor, A: Tensor, b: Tensor, out: Tensor, alpha: float, add: bool) -> None:
        """out <- [out +] alpha grad, of the mean loss over samples A (m, ...), b (1, m) at x (1, d)."""
        g = torch.zeros_like(out) if add else out.zero_()
        leaves = {name: view.detach().requires_grad_() for name, view in parameters(x[0], self.blocks).items()}
        for leaf, place in zip(leaves.values(), parameters(g[0], self.blocks).values(), strict=True):
            leaf.grad = place  # where backward adds to
        with torch.enable_grad():
            self.loss.value(self._call(leaves, A), b).mean().backward()
        if add:
            out.add_(g, alpha=alpha)
        elif alpha != 1:
            out.mul_(alpha)

    def descend(self, y: Tensor, batches: Iterable[tuple[Tensor, Tensor]], eta: float) -> None:
        for A, b in batches:
            self.gradient(y, A, b, y, -eta, add=True)

    def scores(self, x: Tensor, A: Tensor) -> Tensor:
        """(1, outputs, m)"""
        with torch.no_grad():
            return self._call(parameters(x[0], self.blocks), A)

    def _call(self, values: dict[str, Tensor], A: Tensor) -> Tensor:
        with torch.autocast(A.device.type, torch.bfloat16, enabled=self.bfloat16):
            scores = functional_call(self._module(), values, (A,))
        return scores.to(A.dtype).mT[None]

    def _module(self) -> nn.Module:
        if self._own.module is None:
            parameters = {id(p): p for p in self.module.parameters()}  # shared: they are replaced in every call
            self._own.module = copy.deepcopy(self.module, parameters)
            forget(self._own.module)
            arrange(self._own.module)
        return self._own.module
