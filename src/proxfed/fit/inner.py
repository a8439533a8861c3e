"""The step of a proximal Newton method, at the one who asks: argmin over z of <g, z - x> + <z - x, H (z - x)>/2 + h(z).

Without a penalty it is one linear system. A penalty that acts on each coordinate alone takes coordinate descent, and
between its sweeps the exact solution on the coordinates that are not zero, so that it ends also where features are
nearly collinear. Any other takes FISTA with its prox, and where that is slow, semismooth Newton steps on the prox map.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from proxfed.machine import compiled, numba_is_used
from proxfed.regularisers import L1, Box, ElasticNet, OnBlocks, SquaredL2, Zero
from proxfed.regularisers.penalties import Origin
from proxfed.types import Regulariser

SWEEPS = 100
"""Of coordinate descent, before the system of the coordinates that are not zero is solved."""

EXACT = 60
"""Such systems at most; each of them ends or takes a coordinate out."""

STEPS = 100
"""Of FISTA before semismooth Newton steps are tried."""

TRIED = 10
"""So often at most."""

SINGULAR = 1e-11
"""Eigenvalues of a matrix with a diagonal of ones that count as zero."""

SPLITS, LOOK = 1000, 50
"""Steps of ADMM at most, and how often its balance is looked at and Newton steps are tried."""

MANY = 600
"""Coordinates up to which semismooth Newton steps are taken: they solve a system of all of them."""


class Separable(NamedTuple):
    """h as a sum over coordinates: l1 |z| + l2 z^2 / 2, between bounds."""

    l1: Array
    l2: Array
    low: Array
    high: Array

    @property
    def free(self) -> Array:
        """(d,) coordinates that h leaves alone."""
        return (self.l1 == 0) & (self.l2 == 0) & np.isinf(self.low) & np.isinf(self.high)

    def of(self, some: Any) -> Separable:
        """On these coordinates."""
        return Separable(*(part[some] for part in self))


def separable(h: Regulariser, d: int) -> Separable | None:
    """None: it is not one."""
    zero = np.zeros(d)
    if isinstance(h, OnBlocks):
        out = Separable(zero, zero.copy(), np.full(d, -inf), np.full(d, inf))
        for block, part in h.parts:
            found = separable(part, block.stop - block.start)
            if found is None:
                return None
            for whole, own in zip(out, found, strict=True):
                whole[block.start : block.stop] = own
        return out
    if isinstance(h, Origin):
        held = np.ones(d, bool) if h.free is None else ~h.free.numpy()
        return Separable(zero, zero, np.where(held, 0.0, -inf), np.where(held, 0.0, inf))
    low, high = np.full(d, -inf), np.full(d, inf)
    if type(h) is Zero:
        return Separable(zero, zero, low, high)
    if type(h) is L1:
        return Separable(zero + h.weight, zero, low, high)
    if type(h) is SquaredL2:
        return Separable(zero, zero + h.weight, low, high)
    if type(h) is ElasticNet:
        return Separable(zero + h.l1, zero + h.l2, low, high)
    if type(h) is Box:
        return Separable(zero, zero, zero + h.low, zero + h.high)
    return None


# ---- linear systems --------------------------------------------------------------------------------------------------


def solved(H: Tensor, r: Tensor) -> Tensor:
    """H^-1 r for H (k, k), positive semidefinite; where it is singular, the shortest solution, by its own scale."""
    scale = H.diagonal().clamp_min(0).sqrt()
    scale = torch.where(scale > 0, scale, 1)
    unit = H / scale[:, None] / scale
    L, info = torch.linalg.cholesky_ex(unit)
    if int(info) == 0 and float(L.diagonal().min()) ** 2 > SINGULAR:
        return torch.cholesky_solve((r / scale)[:, None], L)[:, 0] / scale
    values, vectors = torch.linalg.eigh(unit)
    kept = values > SINGULAR * max(1.0, float(values[-1]))
    V = vectors[:, kept]
    return (V @ ((V.mT @ (r / scale)) / values[kept])) / scale


def null_space(H: Tensor) -> Tensor:
    """(k, m): an orthonormal basis of what H makes zero, by its own scale."""
    scale = H.diagonal().clamp_min(0).sqrt()
    dead = scale <= 1e-13 * float(scale.max())
    scale = torch.where(dead, 1, scale)
    unit = H / scale[:, None] / scale
    unit[dead], unit[:, dead] = 0, 0
    values, vectors = torch.linalg.eigh(unit)
    N = vectors[:, values <= SINGULAR * max(1.0, float(values[-1]))] / scale[:, None]
    return torch.linalg.qr(N).Q if N.shape[1] else N


# ---- the step --------------------------------------------------------------------------------------------------------


def model_minimiser(
    H: Tensor, g: Tensor, x: Tensor, h: Regulariser, each: Separable | None, tolerance: float
) -> Tensor:
    """z, up to a violation of its conditions of optimality of about `tolerance`; `each` is h if it is separable."""
    if each is None:
        return _by_prox(H, g, x, h, tolerance)
    if bool(each.free.all()):
        return x - solved(H, g)
    z = _by_coordinates(H.numpy(), g.numpy(), x.numpy(), each, tolerance)
    return torch.from_numpy(z)


def violation(r: Array, z: Array, each: Separable) -> Array:
    """(d,) how far -r is from the subdifferential of h at z."""
    slope = r + each.l2 * z
    right, left = slope + np.where(z >= 0, each.l1, -each.l1), slope + np.where(z > 0, each.l1, -each.l1)
    up, down = np.where(z < each.high, -right, 0), np.where(z > each.low, left, 0)  # what a move would gain
    return np.maximum(np.maximum(up, down), 0)


def _by_coordinates(H: Array, g: Array, x: Array, each: Separable, tolerance: float) -> Array:
    z = np.clip(x, each.low, each.high)
    r = g + H @ (z - x) if (z != x).any() else g.copy()
    descend = _descend()
    for _ in range(EXACT):
        descend(H, r, z, each.l1, each.l2, each.low, each.high, tolerance, SWEEPS)
        if violation(r, z, each).max(initial=0.0) <= tolerance:
            break
        inside = ((z != 0) | (each.l1 == 0)) & (z > each.low) & (z < each.high)
        some = np.flatnonzero(inside)
        if len(some) == 0:
            continue
        e = each.of(some)
        block = torch.from_numpy(H[np.ix_(some, some)] + np.diag(e.l2))
        step = solved(block, torch.from_numpy(-(r[some] + e.l1 * np.sign(z[some]) + e.l2 * z[some]))).numpy()
        old, new = z[some], z[some] + step
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = np.where((e.l1 > 0) & (old * new < 0), old / (old - new), inf)
            low = np.where(new < e.low, (e.low - old) / step, inf)
            high = np.where(new > e.high, (e.high - old) / step, inf)
        least = np.minimum(np.minimum(crossing, low), high)
        t = min(1.0, float(least.min()))
        moved = old + t * step
        if t < 1:
            first = int(least.argmin())
            moved[first] = 0.0 if crossing[first] <= t else np.clip(moved[first], e.low[first], e.high[first])
        z[some] = moved
        r = g + H @ (z - x)
        if t == 1 and violation(r, z, each).max(initial=0.0) <= tolerance:
            break
    return z


def _sweeps(
    H: Array, r: Array, z: Array, l1: Array, l2: Array, low: Array, high: Array, tolerance: float, most: int
) -> None:
    """Cyclic coordinate descent on z, with r = g + H (z - x) kept; between two full sweeps, those that are not zero."""
    d = len(z)
    full = True
    for _ in range(most):
        largest = 0.0
        for j in range(d):
            a = H[j, j] + l2[j]
            if low[j] == high[j] or (not full and z[j] == 0.0):
                continue
            v = H[j, j] * z[j] - r[j]
            s = v - l1[j] if v > l1[j] else (v + l1[j] if v < -l1[j] else 0.0)
            if a <= 0.0 and (s != 0.0 or l1[j] == 0.0):  # a feature that no row has: l1 alone moves it
                continue
            new = min(max(s / a if a > 0.0 else 0.0, low[j]), high[j])
            change = new - z[j]
            if change != 0.0:
                z[j] = new
                r += change * H[j]
                moved = abs(change) * a if a > 0.0 else l1[j]
                if moved > largest:
                    largest = moved
        if largest <= tolerance:
            if full:
                return
            full = True
        else:
            full = False


@cache
def _descend() -> Callable[..., None]:
    return compiled()(_sweeps) if numba_is_used() else _sweeps


def _by_prox(H: Tensor, g: Tensor, x: Tensor, h: Regulariser, tolerance: float) -> Tensor:
    """FISTA with restart, from x; its residual is that of the prox map, by the largest eigenvalue of H."""
    L = float(torch.linalg.eigvalsh(H)[-1]) if len(H) else 1.0
    s = 1 / (max(L, 2 * h.weak_convexity) or 1.0)
    scales = H.diagonal().clamp_min(1e-6 * (L or 1.0))
    spread = s if h.weak_convexity > 0 else float((-scales.log().mean()).exp())
    z = y = h.prox(x, 0.0)
    t = 1.0

    if len(x) <= MANY:
        z, off = _split(H, g, z, x, h, s, tolerance)
        if off <= tolerance:
            return z
        y = z

    def mapped(y: Tensor) -> Tensor:
        return h.prox(y - s * (g + H @ (y - x)), s)

    for k in range(TRIED * STEPS):
        after = mapped(y)
        off = float((after - y).norm()) / s
        if off <= tolerance:
            return after
        if k % STEPS == STEPS - 1 and len(x) <= MANY:
            for width in (s, spread):  # whichever is the better scale of x
                after = _semismooth(after, width, H, h, x, g)
            y, t, z = after, 1.0, after
            continue
        if torch.dot(y - after, after - z) > 0 or h.weak_convexity > 0:
            t = 1.0
        t_next = (1 + (1 + 4 * t * t) ** 0.5) / 2
        y = after + (t - 1) / t_next * (after - z)
        z, t = after, t_next
    return z


def _split(
    H: Tensor, g: Tensor, z: Tensor, x: Tensor, h: Regulariser, s: float, tolerance: float
) -> tuple[Tensor, float]:
    """(z, its residual) by ADMM, which finds the pieces of h that z is on also where scales differ by decades, and
    semismooth Newton steps from there."""
    values, V = torch.linalg.eigh(H)
    values, c = values.clamp_min(0), V.mT @ (H @ x - g)
    scales = H.diagonal().clamp_min(1e-6 * (float(values[-1]) or 1.0))
    floor = 2 * h.weak_convexity
    rho, u = max(float(scales.log().mean().exp()), floor), torch.zeros_like(z)
    best, least = z, inf
    for k in range(1, SPLITS + 1):
        w = V @ ((c + rho * (V.mT @ (z - u))) / (values + rho))
        before, z = z, h.prox(1.6 * w - 0.6 * z + u, 1 / rho)
        u = u + 1.6 * w - 0.6 * before - z
        if k % LOOK:
            continue
        for width in (1 / rho, s):
            found = _semismooth(z, width, H, h, x, g)
            off = float((found - h.prox(found - s * (g + H @ (found - x)), s)).norm()) / s
            if off < least:
                best, least = found, off
            if least <= tolerance:
                return best, least
        primal, dual = float((w - z).norm()), float((z - before).norm())
        factor = 5.0 if primal > 5 * dual else 0.2 if dual > 5 * primal else 1.0
        factor = max(factor, floor / rho)
        rho, u = rho * factor, u / factor
    return best, least


def _semismooth(z: Tensor, s: float, H: Tensor, h: Regulariser, x: Tensor, g: Tensor) -> Tensor:
    """Newton steps on z - prox(z - s (g + H (z - x))) = 0 as long as they make it smaller; the prox's slopes are
    differences."""

    def off(z: Tensor) -> Tensor:
        return z - h.prox(z - s * (g + H @ (z - x)), s)

    left = off(z)
    eye = torch.eye(len(z), dtype=z.dtype)
    for _ in range(20):
        v = z - s * (g + H @ (z - x))
        width = 1e-7 * max(1e-8, float(v.abs().max()))
        J = ((h.prox(v + width * eye, s) - h.prox(v - width * eye, s)) / (2 * width)).mT
        try:
            step = torch.linalg.lstsq(eye - J @ (eye - s * H), -left[:, None]).solution[:, 0]
        except RuntimeError:  # it is singular
            return z
        new = z + step
        new = new - off(new)  # a point that h allows
        after = off(new)
        if not float(after.norm()) < 0.5 * float(left.norm()):
            return z
        z, left = new, after
    return z
