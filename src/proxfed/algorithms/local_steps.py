"""Local steps of clients that several methods share."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, log1p

import torch
from torch import Tensor

from proxfed import keyed_random
from proxfed.regularisers import Zero
from proxfed.types import Local, Regulariser

Gradient = Callable[[Tensor, int], Tensor]
"""(y, draw) -> (c, d), such as `f.grad`."""


def gradient(f: Local, y: Tensor, draw: int, rho: float = 0.0, part: float = 1.0) -> Tensor:
    """grad f_i(y), or with rho > 0 the sharpness-aware one: at y + rho grad/|grad|, on the same minibatch.

    part: the weight of the perturbed gradient in the result; the plain one has weight 1 - part.
    """
    g = f.grad(y, draw)
    if rho == 0 or part == 0:
        return g
    norm = g.norm(dim=-1, keepdim=True)
    sharp = f.grad(y + rho * g / (norm + (norm == 0)), draw)
    return g.lerp(sharp, part)


def sgd(f: Local, y: Tensor, eta: float, K: int, rho: float = 0.0) -> Tensor:
    """K local steps y <- y - eta grad f_i(y); with rho > 0 sharpness-aware."""
    y = y.clone()
    if rho == 0:
        f.descend(y, range(K), eta)
        return y
    for k in range(K):
        y.sub_(gradient(f, y, k, rho), alpha=eta)
    return y


def proximal_sgd(f: Local, h: Regulariser, y: Tensor, eta: float, K: int) -> Tensor:
    """K local steps y <- prox_{eta h}(y - eta grad f_i(y))."""
    if isinstance(h, Zero):
        return sgd(f, y, eta, K)
    y = y.clone()
    for k in range(K):
        f.descend(y, range(k, k + 1), eta)
        y = h.prox(y, eta)
    return y


def corrected_sgd(f: Local, y: Tensor, eta: float, K: int, shift: Tensor) -> tuple[Tensor, Tensor]:
    """K local steps y <- y - eta (grad f_i(y) + shift), and the mean of the K gradients."""
    mean = 0 * shift
    for k in range(K):
        g = f.grad(y, k)
        mean = mean.add(g, alpha=1 / K)
        y = y.sub(g + shift, alpha=eta)
    return y, mean


def anchored_sgd(
    grad: Gradient,
    y: Tensor,
    eta: float,
    K: int,
    *,
    anchor: Tensor,
    pull: float,
    shift: Tensor | float = 0.0,
    draw: int = 0,
) -> Tensor:
    """K local steps on f_i(y) + <shift, y> + pull/2 |y - anchor|^2, with minibatches from number `draw` on."""
    for k in range(draw, draw + K):
        g = grad(y, k) + shift
        y = y.sub(g.add_(y - anchor, alpha=pull), alpha=eta)
    return y


def trials(p: float, seed: int, t: int) -> int:
    """The number of throws of a coin until heads, which has probability p; the same for all clients in round t."""
    if p == 1:
        return 1
    u = float(keyed_random.uniforms(keyed_random.keys(seed, "coin", [0], t), 1)[0, 0])
    return 1 + floor(log1p(-u) / log1p(-p))


def walk(
    f: Local,
    h: Regulariser,
    x: Tensor,
    shift: Tensor,
    eta: float,
    tau: int,
    beta: float = 0.0,
    rho: float = 0.0,
    guard: bool = False,
    xi: Tensor | float = 0.0,
) -> Tensor:
    """tau corrected proximal steps with Nesterov momentum beta from the rows x: the weighted mean of their gradients.

        y = prox_{b h}(x - (G + beta V) - b shift),   b = s + beta t                         the first y is x itself
        V <- beta V + eta grad f_i(y),   t <- beta t + eta
        G <- G + V,                      s <- s + t                                          the result is G/s

    G is the displacement by the gradients, s the displacement by a constant gradient of 1. If -(grad f_i(x) + shift) is
    a subgradient of h at x, every y is x: clients do not drift away from a solution.

    guard: let u = g + shift + xi be the initial direction of the walk, with its first gradient g and a subgradient xi
    of h at x, and r = (x - prox_{s h}(x - G - s shift))/s its mean speed. For a client with |r - u| > |u| only the
    first step counts: G/s + shift + xi is t/s, the weight of g, times u. For h = 0 it is r - u = G/s - g. This never
    happens for convex f_i and h with eta <= 1/L_i and beta = 0.
    """
    G, V, s, t = 0 * x, 0 * x, 0.0, 0.0
    first = G
    for k in range(tau):
        b = s + beta * t
        y = x if k == 0 else h.prox(x - (G + beta * V) - b * shift, b)
        g = gradient(f, y, k, rho)
        V, t = (beta * V).add_(g, alpha=eta), beta * t + eta
        G, s = G.add_(V), s + t
        first = g if k == 0 else first
    G.div_(s)
    if not guard:
        return G
    u = first + shift + xi
    change = G - first if isinstance(h, Zero) else (x - h.prox(x - s * (G + shift), s)) / s - u
    ran_away = change.norm(dim=-1, keepdim=True) > u.norm(dim=-1, keepdim=True)
    return torch.where(ran_away, t / s * u - shift - xi, G)


def walk_length(eta: float, tau: int, beta: float = 0.0) -> float:
    """The s of a `walk`: eta tau without momentum."""
    s = t = 0.0
    for _ in range(tau):
        t = beta * t + eta
        s += t
    return s
