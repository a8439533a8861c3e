"""What a run is judged by, computed by the harness from the model alone, off the clock.

objective      phi(x) = sum_i p_i f_i(x) + h(x)
stationarity   |G_s(x)|^2,  G_s(x) = (x - prox_{s h}(x - s grad f(x)))/s: zero just at stationary points
gap, error     phi(x) - phi(x*),  |x - x*| / |x*|, where a reference solution was asked for
consensus      (1/n) sum_i |x_i - mean x|^2, on graphs
nonzeros       non-zero coordinates of the model
and the problem's own measures on held-out data, such as accuracy
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from proxfed.networks.base import Network
from proxfed.types import Problem


@dataclass(frozen=True)
class Measures:
    """The measures of one problem on one network."""

    problem: Problem
    network: Network
    reference: Tensor | None = None
    """x*, (d,)."""
    step: float | None = None
    """s of the stationarity; None: 1/L_f, or half of what a weakly convex h allows if that is less."""

    @cached_property
    def s(self) -> float:
        if self.step is not None:
            return self.step
        s, rho = 1 / self.problem.smoothness().L_f, self.problem.h.weak_convexity
        return min(s, 1 / (2 * rho)) if rho > 0 else s

    @cached_property
    def optimum(self) -> float | None:
        return None if self.reference is None else self._objective(self.reference)

    def __call__(self, x: Tensor, rows: Tensor | None = None) -> dict[str, Any]:
        """The measures of the model x (d,); `rows` are the clients' own iterates, on graphs."""
        p, net = self.problem, self.network
        f, w = p.local(0, net.ids), p.weights[net.ids.start : net.ids.stop]
        gradient = net.average(f.full_grad(x), w)
        map_ = (x - p.h.prox(x - self.s * gradient, self.s)) / self.s
        out: dict[str, Any] = {
            "objective": self._objective(x),
            "stationarity": float(map_.square().sum()),
            "nonzeros": int(torch.count_nonzero(x)),
        }
        if self.reference is not None and self.optimum is not None:
            out["gap"] = out["objective"] - self.optimum
            out["error"] = float((x - self.reference).norm() / self.reference.norm().clamp_min(1e-300))
        if rows is not None:
            out["consensus"] = self._consensus(rows)
        return out | p.evaluate(x)

    def _objective(self, x: Tensor) -> float:
        p, net = self.problem, self.network
        values = p.local(0, net.ids).value(x)
        return float(net.average(values[:, None], p.weights[net.ids.start : net.ids.stop])) + float(p.h.value(x))

    def _consensus(self, rows: Tensor) -> float:
        net = self.network
        equal = rows.new_full((len(rows),), 1 / net.n)
        far = (rows - net.average(rows, equal)).square().sum(-1, keepdim=True)
        return float(net.average(far, equal))
