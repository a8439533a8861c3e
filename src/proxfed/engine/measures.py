"""What a run is judged by, computed by the harness from the model alone, off the clock.

objective      phi(x) = sum_i p_i f_i(x) + h(x)
stationarity   |G_s(x)|^2,  G_s(x) = (x - prox_{s h}(x - s grad f(x)))/s: zero just at stationary points
gap, error     phi(x) - phi(x*),  |x - x*| / |x*|, where a reference solution was asked for
consensus      (1/n) sum_i |x_i - mean x|^2, on graphs
nonzeros       non-zero coordinates of the model
and the problem's own measures on held-out data, such as accuracy

The first three pass over all training data; a problem on which that takes long leaves them out (`train_measures`).

On graphs an experiment can ask for more of any field of the clients' states, by name (`measures`):
consensus_y    (1/n) sum_i |y_i - mean y|^2
estimation_y   |mean y - grad f(mean x)|^2: how well the field estimates the gradient
accuracy_x     each client's own x_i on the test data, its mean over the clients
worst_x        the lowest of these accuracies
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from proxfed.auto import Auto, example
from proxfed.engine.messages import dense
from proxfed.engine.network import Network
from proxfed.errors import InputError, nearest, require
from proxfed.keyed_random import Ids
from proxfed.threads import over_threads
from proxfed.types import Algorithm, Graph, Local, Problem


@dataclass(frozen=True)
class Measures:
    """The measures of one problem on one network."""

    problem: Problem
    network: Network
    reference: Tensor | None = None
    """x*, (d,)."""
    step: float | None = None
    """s of the stationarity; None: 1/L_f, or half of what a weakly convex h allows if that is less."""
    more: tuple[str, ...] = ()
    """Measures of fields of the clients' states, such as 'consensus_y'; a state without the field has none."""

    @cached_property
    def s(self) -> float | None:
        if self.step is not None:
            return self.step
        try:
            s, rho = 1 / self.problem.smoothness().L_f, self.problem.h.weak_convexity
        except InputError:  # nobody knows L_f
            return None
        return min(s, 1 / (2 * rho)) if rho > 0 else s

    @cached_property
    def optimum(self) -> float | None:
        return None if self.reference is None else self.objective(self.reference)

    def __call__(self, x: Tensor, fields: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """The measures of the model x (d,); `fields` are the clients' states, on graphs: rows by name, 'x' first."""
        out: dict[str, Any] = {}
        if self.problem.train_measures:
            if self.s is None:
                out["objective"] = self.objective(x)
            else:
                value, gradient = self.averages(lambda f: _as_rows(*f.value_and_grad(x)))
                out["objective"] = float(value) + float(self.problem.h.value(x))
                out["stationarity"] = self._stationarity(x, gradient, self.s)
            if self.reference is not None and self.optimum is not None:
                out["gap"] = out["objective"] - self.optimum
        if self.reference is not None:
            out["error"] = float((x - self.reference).norm() / self.reference.norm().clamp_min(1e-300))
        out["nonzeros"] = int(torch.count_nonzero(x))
        if fields is not None:
            out["consensus"] = self.network.consensus(fields["x"])
            out |= self._more(fields)
        return out | self.problem.evaluate(x)

    def _more(self, fields: Mapping[str, Tensor]) -> dict[str, float]:
        asked = [(name, *name.split("_", 1)) for name in self.more]
        states = _States(self, fields)
        return {name: FAMILIES[kind](states, field) for name, kind, field in asked if field in fields}

    def objective(self, x: Tensor) -> float:
        """phi(x)."""
        return float(self.average(lambda f: f.value(x)[:, None])) + float(self.problem.h.value(x))

    def _stationarity(self, x: Tensor, gradient: Tensor, s: float) -> float:
        return float(((x - self.problem.h.prox(x - s * gradient, s)) / s).square().sum())

    def average(self, of: Callable[[Local], Tensor]) -> Tensor:
        """sum_i p_i of(f_i), for rows of(f_i)."""
        return self.averages(lambda f: (of(f),))[0]

    def averages(self, of: Callable[[Local], tuple[Tensor, ...]]) -> list[Tensor]:
        """The same of several, a block of clients at a time: the rows of all at once may be more than fits."""
        p, net = self.problem, self.network

        def weighted_sums(blocks: Sequence[Ids]) -> list[Tensor]:
            total: list[Tensor] = []
            for ids in blocks:
                assert isinstance(ids, range)
                w = p.weights[ids.start : ids.stop]
                here = [w @ rows for rows in of(p.local(0, ids))]
                total = [a + b for a, b in zip(total, here, strict=True)] if total else here
            return total

        parts = over_threads(weighted_sums, net.blocks(range(net.n), p.gradient_size))
        return net.all_sums([torch.stack(each).sum(0) for each in zip(*parts, strict=True)])


def _as_rows(value: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return value[:, None], gradient


class _States:
    """The measures of the clients' states in one round."""

    def __init__(self, measures: Measures, fields: Mapping[str, Tensor]) -> None:
        self.measures, self.fields = measures, fields
        self._accuracies = cache(self._evaluate)

    def consensus(self, name: str) -> float:
        return self.measures.network.consensus(self.fields[name])

    def estimation(self, name: str) -> float:
        m, average = self.measures, self.measures.network.average
        centre = average(self.fields["x"])
        return float((average(self.fields[name]) - m.average(lambda f: f.full_grad(centre))).square().sum())

    def accuracy(self, name: str) -> float:
        return float(self._accuracies(name).mean())

    def worst(self, name: str) -> float:
        return float(self._accuracies(name).min())

    def _evaluate(self, name: str) -> Tensor:
        """The accuracy of each client's row, (n,), also of those that live in other processes."""
        net, problem = self.measures.network, self.measures.problem
        own = torch.tensor([problem.evaluate(row)["accuracy"] for row in self.fields[name]], dtype=torch.float64)
        return net.all_sum(torch.zeros(net.n, dtype=torch.float64).index_copy_(0, torch.tensor(net.ids), own))


FAMILIES: dict[str, Callable[[_States, str], float]] = {
    "consensus": _States.consensus,
    "estimation": _States.estimation,
    "accuracy": _States.accuracy,
    "worst": _States.worst,
}
"""Measures of a field, by what stands in front of its name."""


def check_names(asked: Sequence[str], algorithms: Iterable[Algorithm | Auto], problem: Problem) -> None:
    """Refuse measures that none of an experiment's algorithms has, or that its data do not allow."""
    if not asked:
        return
    fields = {name for alg in map(example, algorithms) if isinstance(alg, Graph) for name in _fields(alg, problem)}
    known = [f"{kind}_{field}" for kind in FAMILIES for field in sorted(fields)]
    for name in asked:
        hint = nearest(name, known) if known else "they are of the states of algorithms on graphs"
        require(name in known, f"measures: no algorithm here has {name!r}; {hint}")
    judged = [name for name in asked if name.startswith(("accuracy_", "worst_"))]
    if judged:
        has = "accuracy" in problem.measures
        require(has, f"measures: {judged[0]!r} needs test data with classes, and there are none")


def _fields(algorithm: Graph[Any], problem: Problem) -> list[str]:
    """The names of the vectors in a client's state, read off that of the first client."""
    state = algorithm.init(problem.start(0), problem.local(0, range(1)), problem.h, dense)
    return [name for name, x in state._asdict().items() if isinstance(x, Tensor)]
