"""What a client does on its own, where several methods do the same."""

from __future__ import annotations

from torch import Tensor

from proxfed.types import Local


def gradient(f: Local, y: Tensor, draw: int, rho: float = 0.0) -> Tensor:
    """grad f_i(y), or with rho > 0 the sharpness-aware one: at y + rho grad/|grad|, on the same minibatch."""
    g = f.grad(y, draw)
    if rho == 0:
        return g
    norm = g.norm(dim=-1, keepdim=True)
    return f.grad(y + rho * g / (norm + (norm == 0)), draw)


def sgd(f: Local, y: Tensor, eta: float, K: int, rho: float = 0.0) -> Tensor:
    """K local steps y <- y - eta grad f_i(y); with rho > 0 sharpness-aware."""
    for k in range(K):
        y = y - eta * gradient(f, y, k, rho)
    return y
