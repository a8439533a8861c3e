"""A reference minimiser of composite problems: FISTA with restart, in float64.

    x+ = prox_{h/L}(y - grad f(y)/L),   t+ = (1 + sqrt(1 + 4 t^2))/2,   y = x+ + (t - 1)/t+ (x+ - x)

The momentum is restarted whenever it points uphill, <y - x+, x+ - x> > 0 (O'Donoghue and Candes 2015), so that the
method converges linearly on strongly convex problems without knowing mu. It stops by a certificate: the norm of the
prox-gradient map L (y - x+), which is zero only at a solution.

If f has no L, the steps are those of ProxNewton with a line search.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from proxfed.algorithms.prox_newton import ProxNewton
from proxfed.errors import RunError, require
from proxfed.types import Regulariser


def fista(
    gradient: Callable[[Tensor], Tensor],
    h: Regulariser,
    L: float,
    x0: Tensor,
    tolerance: float = 1e-12,
    iterations: int = 100_000,
) -> Tensor:
    """argmin f + h for convex f with an L-Lipschitz gradient and convex h; `tolerance` bounds the prox-gradient map."""
    require(h.weak_convexity == 0, f"{type(h).__name__} is not convex: it has no unique minimiser to compare with")
    L = L if L > 0 else 1.0  # if f is flat, any step works
    x = y = x0
    t = 1.0
    scale = max(1.0, float(gradient(x0).norm()))
    for _ in range(iterations):
        x_next = h.prox(y - gradient(y) / L, 1 / L)
        if L * float((y - x_next).norm()) <= tolerance * scale:
            return x_next
        if torch.dot(y - x_next, x_next - x) > 0:
            t = 1.0
        t_next = (1 + (1 + 4 * t * t) ** 0.5) / 2
        y = x_next + (t - 1) / t_next * (x_next - x)
        x, t = x_next, t_next
    raise RunError(f"the reference solution did not reach a tolerance of {tolerance:g} in {iterations} iterations")


def by_line_search(
    gradient: Callable[[Tensor], Tensor],
    value: Callable[[Tensor], Tensor],
    h: Regulariser,
    x0: Tensor,
    tolerance: float = 1e-12,
    iterations: int = 10_000,
) -> Tensor:
    """argmin f + h for convex f and h; `tolerance` bounds the prox-gradient map with step 1."""
    require(h.weak_convexity == 0, f"{type(h).__name__} is not convex: it has no unique minimiser to compare with")
    scale = max(1.0, float(gradient(x0).norm()))
    method = ProxNewton(scale)
    s = method.begin(x0, h)
    for _ in range(iterations):
        s = method.server(s, (gradient(s.y), value(s.y)[None]), h, 1.0)
        if float((s.x - h.prox(s.x - s.g, 1.0)).norm()) <= tolerance * scale:
            return s.x
    raise RunError(f"the reference solution did not reach a tolerance of {tolerance:g} in {iterations} iterations")
