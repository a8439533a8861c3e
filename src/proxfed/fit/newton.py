"""One fit as a generator of questions: it yields one, is sent the sums of all organisations, and returns a model.

Proximal Newton on summed Hessians: the model of phi = f + h at x has the Hessian of f there, or that of a point nearby,
which is corrected by every gradient (BFGS) and asked for again only where the residual falls too slowly. A step is
taken where the objective falls by enough, and shortened where not. Of many features with an l1 penalty, the Hessian is
that of those which are not zero, or are about to be.

Where organisations give no Hessians of this size, the curvature is learned from the gradients alone, as in the rounds
of ProxNewton.

A fit ends when its residual, the prox-gradient map L |x - prox_{h/L}(x - grad f(x)/L)|, is at most `tolerance` times
the gradient at the start. At a solution, and nowhere else, it is zero.

Reference: J. D. Lee, Y. Sun, M. A. Saunders, "Proximal Newton-Type Methods for Minimizing Composite Functions", SIAM
Journal on Optimization, 2014, arXiv:1206.1623.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from proxfed.algorithms.prox_newton import LBFGS, ProxNewton
from proxfed.fit.inner import Separable, model_minimiser, separable
from proxfed.fit.oracle import ALL, Part, Question, Sums, Traffic
from proxfed.regularisers import Zero
from proxfed.types import Regulariser

SIGMA = 1e-4
"""The part of the decrease that the model of phi promises, at which a step is good enough."""

SLOW = 0.02
"""The part of the residual that a step may leave before the Hessian is asked for again."""

WHOLE = 600
"""Coordinates up to which a Hessian is that of all of them, though some are zero."""

SOME = 100
"""Of more of them, so many that are zero are in a Hessian, those first that are nearest to being not zero."""

PATIENCE = 60
"""Answers without a smaller residual after which a fit gives up: rounding allows no more."""

MEMORY = 30
"""Pairs that are remembered where there are no Hessians."""

ROUNDING = 1e-15
"""Relative error of a gradient, below which no residual can be told from zero."""

Asking = Generator[Question, Sums, "Fit"]


class Curvature(NamedTuple):
    """A Hessian of f, or what is known of it."""

    H: Tensor
    """(k, k)"""
    columns: Tensor | None = None
    """(k,) which coordinates it is of; None: all."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A model that was fitted."""

    x: Tensor
    """(d,)"""
    gradient: Tensor
    """(d,) of f at x."""
    residual: float
    """The prox-gradient map at x, relative to `scale`."""
    scale: float
    """The gradient at the start."""
    curvature: Curvature | None = None
    """For a fit nearby."""
    value: float = inf
    """f(x)"""
    finished: bool = True
    """The residual is small enough."""
    asked: int = 0
    """Questions."""
    h: Regulariser = Zero()
    traffic: Traffic = Traffic()
    """Of this fit; of a path, that of all of it is with the first."""
    weight: float | None = None
    """Of the penalty, on a path."""
    running: Tensor | None = None
    """(d,) the last step, where steps did not become shorter: along it f falls for ever, and never ends."""
    notes: tuple[str, ...] = ()
    """What is to be said of it."""


@dataclass(frozen=True)
class Mean:
    """From sums over the rows of a part to f, which is a mean, and to what all f_i have in common."""

    weight: float
    """Of all rows of the part."""
    l2: float = 0.0
    """Of (l2/2) |x|^2 in f."""
    noise: float = 0.0
    """Absolute error of f and of each number of its gradient: sums under masks are rounded to fixed point."""

    def __call__(self, sums: Sums, x: Tensor, columns: Tensor | None = None) -> tuple[float, Tensor, Tensor | None]:
        """(f, its gradient, its Hessian)."""
        assert sums.gradient is not None
        f = sums.value / self.weight + self.l2 / 2 * float(x @ x)
        g = sums.gradient / self.weight + self.l2 * x
        if sums.hessian is None:
            return f, g, None
        H = sums.hessian / self.weight
        return f, g, H + self.l2 * torch.eye(len(H), dtype=H.dtype) if self.l2 else H


@dataclass(frozen=True)
class Wish:
    """A fit that is wanted."""

    h: Regulariser
    x: Tensor
    """Where it begins, (d,)."""
    mean: Mean
    part: Part = ALL
    tolerance: float = 1e-10
    scale: float | None = None
    """The gradient at the start of the first fit, if this is not the first."""
    curvature: Curvature | None = None
    """Of a fit nearby."""
    hessians: int = 2000
    """Coordinates that a Hessian may have; 0: there are none."""
    rounds: int = 1000
    """Questions at most."""
    slow: float = SLOW
    """The part of the residual that a step may leave before the Hessian is asked for again."""
    exact: bool = False
    """f is a quadratic function, so that its Hessian is that of every point."""
    bound: Tensor | None = None
    """(d, d) no Hessian of f is above it, for losses that have places without curvature, as Huber's; a part of it is
    added to Hessians, less and less of it as steps succeed."""
    remember: bool = True
    """Correct Hessians by gradients, which needs a copy of them."""
    watch: Callable[[int, float], object] = field(default=lambda asked, residual: None, compare=False, repr=False)

    def asking(self) -> Asking:
        """The generator that makes it."""
        each = separable(self.h, len(self.x))
        some = each is not None and len(self.x) > WHOLE and bool((each.l1 > 0).any() or (each.low == each.high).any())
        if len(self.x) <= self.hessians or (some and self.hessians > 0):
            return _newton(self, each, some)
        return _limited(self)


def residual_of(x: Tensor, g: Tensor, h: Regulariser, L: float) -> float:
    """The norm of the prox-gradient map."""
    s = 1 / (L or 1.0)
    return float((x - h.prox(x - s * g, s)).norm()) / s


def _newton(wish: Wish, each: Separable | None, some: bool) -> Asking:
    h, part, mean = wish.h, wish.part, wish.mean
    x = h.prox(wish.x, 0.0)
    known = wish.curvature
    if each is not None and some and known is None:
        known = Curvature(torch.zeros(0, 0, dtype=x.dtype), torch.zeros(0, dtype=torch.int64))
    sums = yield Question(x, part, 1 if known is not None else 2)
    asked = 1
    f, g, H = mean(sums, x)
    curvature = known if known is not None else Curvature(H)  # type: ignore[arg-type]
    fresh = known is None or wish.exact
    scale = wish.scale or float(g.norm()) or 1.0
    least, when, before, ridge = inf, 0, inf, 0.0 if wish.bound is None else 0.1
    last, same = torch.zeros_like(x), 0
    while True:
        if some and each is not None and not _covers(curvature, x, g, each, wish.hessians):
            columns = _columns(x, g, each, wish.hessians)
            sums = yield Question(x, part, 2, columns)
            asked += 1
            f, g, H = mean(sums, x)
            curvature, fresh = Curvature(H, columns), True  # type: ignore[arg-type]
        L = max(float(curvature.H.norm()) or float(g.norm()) or 1.0, 2 * h.weak_convexity)
        residual = residual_of(x, g, h, L) / scale
        wish.watch(asked, residual)
        goal = wish.tolerance if wish.tolerance < 1e-14 else max(wish.tolerance, ROUNDING * L * float(x.norm()) / scale)
        if residual <= goal:
            running = last if same >= 3 else None
            return Fit(x, g, residual, scale, curvature, f, True, asked, h, running=running)
        if residual < 0.999 * least:
            least, when = residual, asked
        if asked >= min(wish.rounds, when + PATIENCE):
            return Fit(x, g, residual, scale, curvature, f, False, asked, h)
        slow = residual > wish.slow * before
        before = residual
        inner = 0.3 * goal * scale if wish.exact else max(0.3 * goal, 1e-2 * residual) * scale
        z = _step(_raised(curvature, ridge, wish.bound), g, x, h, each, inner / len(x) ** 0.5)
        D = float(g @ (z - x)) + float(h.value(z)) - float(h.value(x))
        noise = 10 * torch.finfo(x.dtype).eps * (abs(f) + 1) + 2 * mean.noise
        if torch.equal(z, x) or not noise >= D:
            if not fresh:
                sums = yield Question(x, part, 2, curvature.columns)
                asked += 1
                f, g, H = mean(sums, x)
                curvature, fresh, before = Curvature(H, curvature.columns), True, inf  # type: ignore[arg-type]
                continue
            # flat along the way that the gradient points
            ridge, asked = _more(ridge, L, wish.bound, 2 * h.weak_convexity), asked + 1
            continue
        order = 2 if (slow or not isfinite(f)) and not wish.exact else 1
        t, phi = 1.0, f + float(h.value(x))
        shortest = 1e-3 if h.weak_convexity > 0 else 1e-12  # of phi that is not convex, no step may be a way down
        while True:
            y = z if t == 1 else x + t * (z - x)
            near = None if not some or each is None else _columns(y, g, each, wish.hessians)
            sums = yield Question(y, part, order, near if order == 2 else None)
            asked += 1
            f_y, g_y, H_y = mean(sums, y)
            phi_y = f_y + float(h.value(y))
            if phi_y <= phi + SIGMA * t * D + noise:
                break
            if t < shortest or asked >= wish.rounds or (wish.bound is not None and ridge < 1):
                break
            t, order = t * _shorter(phi, phi_y, t * D), 1
        if not phi_y <= phi + (noise if t < shortest else 1e-9 * (abs(phi) + 1)):
            if fresh or wish.bound is not None:
                ridge = _more(ridge, L, wish.bound, 2 * h.weak_convexity)
                before = 0.0
            else:
                sums = yield Question(x, part, 2, curvature.columns)
                asked += 1
                f, g, H = mean(sums, x)
                curvature, fresh = Curvature(H, curvature.columns), True  # type: ignore[arg-type]
            continue
        steep = t == 1 and float(g_y @ (z - x)) < 0.5 * float(g @ (z - x))  # it could have gone on
        ridge = 0.0 if ridge <= (1e-10 * L if wish.bound is None else 1e-4) else ridge * (0.01 if steep else 0.1)
        if H_y is not None:
            curvature, fresh = Curvature(H_y, near), True
        else:
            fresh = wish.exact
            if t < 1:
                before = 0.0  # a step that had to be shortened: the Hessian is to be asked for
            if wish.remember and not wish.exact:
                curvature = _corrected(curvature, y - x, g_y - g)
        same = same + 1 if 0.8 < float((y - x).norm()) / (float(last.norm()) or inf) < 1.25 else 0
        last, x, f, g = y - x, y, f_y, g_y


def _raised(curvature: Curvature, ridge: float, bound: Tensor | None) -> Curvature:
    """With so much of the bound, or of the identity, added."""
    H, columns = curvature
    if not ridge:
        return curvature
    if bound is None:
        return Curvature(H + ridge * torch.eye(len(H), dtype=H.dtype), columns)
    return Curvature(H + ridge * (bound if columns is None else bound[columns[:, None], columns]), columns)


def _more(ridge: float, L: float, bound: Tensor | None, least: float) -> float:
    """`least` makes the model of phi convex where h is not, so that a step to its minimiser descends."""
    return max(10 * ridge, 1e-8 * L, least) if bound is None else max(10 * ridge, 1e-3)


def _step(
    curvature: Curvature, g: Tensor, x: Tensor, h: Regulariser, each: Separable | None, tolerance: float
) -> Tensor:
    H, columns = curvature
    if columns is None or each is None:
        return model_minimiser(H, g, x, h, each, tolerance)
    z = x.clone()
    z[columns] = model_minimiser(H, g[columns], x[columns], h, each.of(columns.numpy()), tolerance)
    return z


def _shorter(phi: float, phi_y: float, slope: float) -> float:
    """Where the parabola through what is known is least, but neither too near nor too far."""
    if not isfinite(phi_y):
        return 0.1
    return min(0.5, max(0.1, -slope / (2 * (phi_y - phi - slope))))


def _corrected(curvature: Curvature, step: Tensor, change: Tensor) -> Curvature:
    """By BFGS: the matrix then has the slope of the gradient along the step."""
    H, columns = curvature
    s, y = (step, change) if columns is None else (step[columns], change[columns])
    Hs = H @ s
    along, seen = float(s @ Hs), float(s @ y)
    if not (along > 0 and seen > 1e-10 * float(s.norm()) * float(y.norm())):
        return curvature
    return Curvature(H - torch.outer(Hs, Hs) / along + torch.outer(y, y) / seen, columns)


# ---- of many features, some ------------------------------------------------------------------------------------------


def _covers(curvature: Curvature, x: Tensor, g: Tensor, each: Separable, most: int) -> bool:
    """Whether all that the next step is to move is among its columns."""
    if curvature.columns is None:
        return True
    wanted = torch.zeros(len(x), dtype=torch.bool)
    wanted[_columns(x, g, each, most)] = True
    wanted &= _needed(x, g, each)
    wanted[curvature.columns] = False
    return not bool(wanted.any())


def _needed(x: Tensor, g: Tensor, each: Separable) -> Tensor:
    l1, movable = torch.from_numpy(each.l1), torch.from_numpy(each.low < each.high)
    return ((x != 0) | (g.abs() > l1)) & movable


def _columns(x: Tensor, g: Tensor, each: Separable, most: int) -> Tensor:
    """Those that are not zero, and then those whose gradient is largest, in relation to what holds it at zero: few more
    than are not zero, as far from the solution nearly all gradients are large."""
    l1, movable = torch.from_numpy(each.l1), torch.from_numpy(each.low < each.high)
    rank = torch.where(l1 > 0, g.abs() / l1.clamp_min(1e-300), inf)
    rank = torch.where(x != 0, inf, rank).masked_fill(~movable, -1)
    count = min(most, SOME + 2 * int((x != 0).sum()), int(movable.sum()))
    return rank.argsort(descending=True, stable=True)[:count].sort().values


# ---- without Hessians ------------------------------------------------------------------------------------------------


def _limited(wish: Wish) -> Asking:
    h, mean = wish.h, wish.mean
    scale, least, when, asked, method, state = wish.scale, inf, 0, 0, None, None
    x = h.prox(wish.x, 0.0)
    while True:
        sums = yield Question(x if state is None else state.y, wish.part)
        asked += 1
        f, g, _ = mean(sums, x if state is None else state.y)
        if method is None or state is None:
            method = ProxNewton(float(g.norm()) or 1.0, MEMORY)  # as if the solution were at distance 1
            state = method.begin(x, h)
        state = method.server(state, (g, g.new_tensor([f])), h, 1.0)
        pairs = int(state.pairs)
        L = float(LBFGS.of(method.curvature, state.S[:pairs], state.Y[:pairs]).largest)
        scale = scale or float(state.g.norm()) or 1.0
        residual = residual_of(state.x, state.g, h, L) / scale
        wish.watch(asked, residual)
        done = residual <= wish.tolerance
        if residual < least:
            least, when = residual, asked
        if done or asked >= min(wish.rounds, when + 500):
            value = float(state.phi) - float(h.value(state.x))
            return Fit(state.x, state.g, residual, scale, None, value, done, asked, h)
