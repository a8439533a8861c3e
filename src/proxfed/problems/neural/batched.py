"""Dense networks of several clients at once, in closed form.

    a_0 = samples,   a_k = relu(W_k a_{k-1} + b_k),   s = W_K a_{K-1} + b_K
    r = d loss/d s,   grad W_k = r a_{k-1}' / m,   grad b_k = r 1 / m,   r <- W_k' r where a_{k-1} > 0,   k = K, ..., 1

Activations are (clients, features, samples), so that every product is one batched product without transposing anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor, nn

from proxfed.keyed_random import Key
from proxfed.problems.losses import Loss
from proxfed.types import Block

threshold_backward = torch.ops.aten.threshold_backward.default

CACHE = 1 << 20
"""Parameters processed at a time, so that the clients' parameters and gradients stay in the cache."""


class Layer(NamedTuple):
    """The indices of a layer's parameters among all blocks."""

    weight: int
    bias: int | None


def dense_layers(module: nn.Module, blocks: Sequence[Block]) -> list[Layer] | None:
    """The layers of a network [Flatten,] Linear, ReLU, Linear, ..., Linear; None if the module is not one."""
    if not isinstance(module, nn.Sequential):
        return None
    layers = list(module.named_children())
    once = len(layers) == len(module)  # no layer is used twice
    if layers and type(layers[0][1]) is nn.Flatten and (layers[0][1].start_dim, layers[0][1].end_dim) == (1, -1):
        layers = layers[1:]
    linear, between = layers[::2], layers[1::2]
    fits = (
        once
        and len(linear) == len(between) + 1
        and all(type(m) is nn.Linear for _, m in linear)
        and all(type(m) is nn.ReLU for _, m in between)
    )
    named = {block.name: k for k, block in enumerate(blocks)}
    # Every layer has its own parameters, and all of them are trained.
    own = {name for name, _ in module.named_parameters(remove_duplicate=False)} == set(named)
    if not fits or not own:
        return None
    return [Layer(named[f"{name}.weight"], named.get(f"{name}.bias")) for name, _ in linear]


class Dense(NamedTuple):
    """The parameters of a layer of g clients, as views of their rows."""

    W: Tensor
    """(g, outputs, inputs)"""
    WT: Tensor
    b: Tensor | None
    """(g, outputs)"""
    column: Tensor | None
    """b as (g, outputs, 1)"""

    @classmethod
    def of(cls, W: Tensor, b: Tensor | None) -> Dense:
        return cls(W, W.mT, b, None if b is None else b[..., None])


class Batched:
    """An engine that processes as many clients at a time as fit in the cache."""

    def __init__(self, layers: list[Layer], loss: Loss, blocks: Sequence[Block]) -> None:
        self.layers, self.loss = layers, loss
        self.shapes = [block.shape for block in blocks]
        self.sizes = [block.stop - block.start for block in blocks]
        self.together = ceil(CACHE / sum(self.sizes))

    def gradient(
        self, x: Tensor, A: Tensor, b: Tensor, out: Tensor, alpha: float, add: bool, key: Key | None = None
    ) -> None:
        """out <- [out +] alpha grad of each client's mean loss over its m samples, from A (g * m, ...), b (g, m)."""
        self._gradient(self._layers(x), A, b, self._layers(out), alpha, float(add))

    def descend(self, y: Tensor, batches: Iterable[tuple[Tensor, Tensor, Key | None]], eta: float, keep: float) -> None:
        layers = self._layers(y)
        for A, b, _ in batches:
            self._gradient(layers, A, b, layers, -eta, keep)

    def scores(self, x: Tensor, A: Tensor) -> Tensor:
        """(g, outputs, m)"""
        return _activations(self._layers(x), A)[-1]

    def _layers(self, x: Tensor) -> list[Dense]:
        """The layers in rows x (g, d), as views."""
        parts, g = x.split(self.sizes, 1), len(x)
        return [Dense.of(parts[W].view(g, *self.shapes[W]), None if b is None else parts[b]) for W, b in self.layers]

    def _gradient(self, layers: list[Dense], A: Tensor, b: Tensor, out: list[Dense], alpha: float, keep: float) -> None:
        """`out` may be the layers themselves: each weight is written only after its last use."""
        a = _activations(layers, A)
        r, alpha = self.loss.slope(a.pop(), b), alpha / b.shape[1]
        for layer, d in zip(reversed(layers), reversed(out), strict=True):
            inside, outer = a.pop(), r
            if a:
                r = threshold_backward(torch.bmm(layer.WT, r), inside, 0)  # zero where inside is not above 0
            torch.baddbmm(d.W, outer, inside.mT, beta=keep, alpha=alpha, out=d.W)
            if d.b is not None and keep:
                (d.b if keep == 1 else d.b.mul_(keep)).add_(outer.sum(-1), alpha=alpha)
            elif d.b is not None:
                torch.sum(outer, -1, out=d.b).mul_(alpha)


def _activations(layers: list[Dense], A: Tensor) -> list[Tensor]:
    """a_0, ..., a_{K-1} and the scores."""
    g = len(layers[0].W)
    a = [A.reshape(g, len(A) // g, -1).mT]
    for layer in layers:
        h = torch.bmm(layer.W, a[-1]) if layer.column is None else torch.baddbmm(layer.column, layer.W, a[-1])
        a.append(h if layer is layers[-1] else h.relu_())
    return a
