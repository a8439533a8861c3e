"""The measures of a run, computed by the harness from the model alone while the clock is stopped.

objective      phi(x) = sum_i p_i f_i(x) + h(x)
stationarity   |G_s(x)|^2,  G_s(x) = (x - prox_{s h}(x - s grad f(x)))/s: zero just at stationary points
gap, error     phi(x) - phi(x*),  |x - x*| / |x*|, if a reference solution was requested
consensus      (1/n) sum_i |x_i - mean x|^2, on graphs
nonzeros       non-zero coordinates of the model
and the problem's own measures on held-out data, such as accuracy

The first three pass over all training data; a problem can leave them out if that is slow (`train_measures`).

An experiment can request more by name (`measures`): measures of the clients' states, such as 'consensus_y'
(state_measures.py), and 'train_loss' and 'train_accuracy', on at most `TRAINING` training samples
(problems/empirical_risk.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from proxfed.engine.network import Network
from proxfed.engine.state_measures import FAMILIES, States, needed, split
from proxfed.errors import InputError
from proxfed.keyed_random import Ids
from proxfed.machine import over_threads
from proxfed.types import Local, Problem, directions


@dataclass(frozen=True)
class Measures:
    """The measures of one problem on one network."""

    problem: Problem
    network: Network
    reference: Tensor | None = None
    """x*, (d,)."""
    step: float | None = None
    """s of the stationarity; None: 1/L_f, or half of the largest s that a weakly convex h allows if that is less."""
    more: tuple[str, ...] = ()
    """More measures by name, such as 'consensus_y'; left out if the state has no such rows."""

    @cached_property
    def s(self) -> float | None:
        if self.step is not None:
            return self.step
        try:
            L_f, rho = self.problem.f.smoothness().L_f, self.problem.h.weak_convexity
        except InputError:  # L_f is unknown
            return None
        s = 1 / L_f if L_f > 0 else 1.0
        return min(s, 1 / (2 * rho)) if rho > 0 else s

    @cached_property
    def optimum(self) -> float | None:
        return None if self.reference is None else self.objective(self.reference)

    def __call__(self, x: Tensor, fields: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """The measures of the model x (d,); `fields` are the clients' states: rows by name."""
        out: dict[str, Any] = {}
        if self.problem.f.train_measures:
            if self.s is None:
                out["objective"] = self.objective(x)
            else:
                value, gradient = self.averages(lambda f: _as_rows(*f.value_and_grad(x)))
                out["objective"] = float(value) + float(self.problem.h.value(x))
                out["stationarity"] = self._proximal_gradient(x, gradient, self.s)
            if self.reference is not None and self.optimum is not None:
                out["gap"] = out["objective"] - self.optimum
        if self.reference is not None:
            out["error"] = float((x - self.reference).norm() / self.reference.norm().clamp_min(1e-300))
        out["nonzeros"] = int(torch.count_nonzero(x))
        if fields:
            out |= self._of_states(fields)
        if any(name in directions(self.problem.f.training_measures) for name in self.more):
            out |= {name: value for name, value in self.problem.f.training_score(x).items() if name in self.more}
        return out | self.problem.f.evaluate(x)

    @cached_property
    def fields(self) -> set[str]:
        """The names of the rows of the clients' states that the measures need."""
        return needed(self.more) if self.more else set()

    def _of_states(self, fields: Mapping[str, Tensor]) -> dict[str, float]:
        states = States(self, fields)
        out = {"consensus": states.consensus("x")} if "x" in fields else {}
        for name in self.more:
            kind, field = split(name)
            if kind in FAMILIES and needed([name]) <= {*fields}:
                out[name] = FAMILIES[kind](states, field)
        return out

    def objective(self, x: Tensor) -> float:
        """phi(x)."""
        return float(self.average(lambda f: f.value(x)[:, None])) + float(self.problem.h.value(x))

    def stationarity(self, x: Tensor, s: float) -> float:
        """|G_s(x)|^2."""
        return self._proximal_gradient(x, self.average(lambda f: f.full_grad(x)), s)

    def _proximal_gradient(self, x: Tensor, gradient: Tensor, s: float) -> float:
        return float(((x - self.problem.h.prox(x - s * gradient, s)) / s).square().sum())

    def average(self, of: Callable[[Local], Tensor]) -> Tensor:
        """sum_i p_i of(f_i), for rows of(f_i)."""
        return self.averages(lambda f: (of(f),))[0]

    def averages(self, of: Callable[[Local], tuple[Tensor, ...]]) -> list[Tensor]:
        """The same for several functions, block by block: the rows of all clients at once may not fit in memory."""
        p, net = self.problem, self.network

        def weighted_sums(blocks: Sequence[Ids]) -> list[Tensor]:
            total: list[Tensor] = []
            for ids in blocks:
                assert isinstance(ids, range)
                w = p.f.weights[ids.start : ids.stop]
                here = [w @ rows for rows in of(p.f.local(0, ids))]
                total = [a + b for a, b in zip(total, here, strict=True)] if total else here
            return total

        parts = over_threads(weighted_sums, net.blocks(range(net.n), p.f.gradient_size))
        return net.all_sums([torch.stack(each).sum(0) for each in zip(*parts, strict=True)])


def _as_rows(value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return value[:, None], gradient
