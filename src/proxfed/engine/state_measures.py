"""Measures of the clients' states, requested by name: the measure, then the rows, such as 'consensus_y'.

Rows are the fields of a client's state, on graphs and with a server, and the rows that the algorithm adds by `shown`.
s = `stationarity_step` (1/L_f if not given) is the same for all algorithms of an experiment, so that they compare:

consensus_y      (1/n) sum_i |y_i - mean y|^2
size_y           (1/n) sum_i |y_i|^2
largest_y        max_i |y_i|
mean_y           |mean y|
stationarity_y   (1/n) sum_i |G_s(y_i)|^2, with the gradient of all clients' f at every y_i: n passes over all data
objective_y      phi(mean y)
accuracy_y       the accuracy of each client's own y_i on the test data, averaged over the clients
worst_y          the lowest of these accuracies
average_y        the accuracy of mean y on the test data

and where the state has an x, too:

estimation_y     |sum_i p_i grad f_i(x_i) - mean y|^2: how well the rows estimate the gradient, at clients' own points
approximate_y    (1/n) sum_i |(x_i - prox_{s h}(x_i - s y_i))/s|^2: the proximal gradient with y_i as the gradient
epsilon_y        stationarity_x + L^2 consensus_x + estimation_y: (x, y) is an epsilon-stationary point

DEPOSITUM's G^alpha(x), G^alpha(x, nu) and s(x, nu)/n are stationarity_x, approximate_nu and epsilon_nu; objective_x
and average_x measure the model that its paper evaluates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from proxfed.engine.messages import dense
from proxfed.errors import InputError, nearest, require
from proxfed.types import Algorithm, Graph, Problem, directions

if TYPE_CHECKING:
    from proxfed.engine.measures import Measures


def rows_by_name(algorithm: Algorithm, state: Any, server: Any = None) -> dict[str, Tensor]:
    """The fields of the clients' states that are rows, and the rows that the algorithm adds by `shown`."""
    fields = state._asdict() if hasattr(state, "_asdict") else {}
    shown = algorithm.shown(state) if isinstance(algorithm, Graph) else algorithm.shown(state, server)
    return {name: x for name, x in fields.items() if isinstance(x, Tensor)} | shown


class States:
    """The measures of the clients' states in one round."""

    def __init__(self, measures: Measures, fields: Mapping[str, Tensor]) -> None:
        self.measures, self.fields, self.net = measures, fields, measures.network
        self.stationarity, self.estimation = cache(self._stationarity), cache(self._estimation)
        self._accuracies = cache(self._evaluate)

    def consensus(self, name: str) -> float:
        return self.net.consensus(self.fields[name])

    def size(self, name: str) -> float:
        return self._mean_square(self.fields[name])

    def largest(self, name: str) -> float:
        return float(self.net.of_all(self.fields[name].norm(dim=-1)).max())

    def mean(self, name: str) -> float:
        return float(self.net.average(self.fields[name]).norm())

    def _stationarity(self, name: str) -> float:
        rows, ids = self.fields[name], self.net.ids
        total = 0.0
        for i in range(self.net.n):  # all processes look at the same row
            row = rows[i - ids.start] if i in ids else torch.zeros_like(rows[0])
            total += self.measures.stationarity(self.net.all_sum(row), self._s)
        return total / self.net.n

    def _estimation(self, name: str) -> float:
        x = self.fields["x"]
        gradient = self.measures.average(lambda f: f.full_grad(x[self.net.rows(f.ids)]))
        return float((gradient - self.net.average(self.fields[name])).square().sum())

    def approximate(self, name: str) -> float:
        x, s = self.fields["x"], self._s
        return self._mean_square((x - self.measures.problem.h.prox(x - s * self.fields[name], s)) / s)

    def epsilon(self, name: str) -> float:
        L = self.measures.problem.f.smoothness().L
        return self.stationarity("x") + L**2 * self.consensus("x") + self.estimation(name)

    def accuracy(self, name: str) -> float:
        return float(self._accuracies(name).mean())

    def worst(self, name: str) -> float:
        return float(self._accuracies(name).min())

    def average(self, name: str) -> float:
        return self.measures.problem.f.evaluate(self.net.average(self.fields[name]))["accuracy"]

    def objective(self, name: str) -> float:
        return self.measures.objective(self.net.average(self.fields[name]))

    def _evaluate(self, name: str) -> Tensor:
        """The accuracy of each client's row, (n,)."""
        evaluate = self.measures.problem.f.evaluate
        return self.net.of_all(
            torch.tensor([evaluate(row)["accuracy"] for row in self.fields[name]], dtype=torch.float64)
        )

    @property
    def _s(self) -> float:
        assert self.measures.s is not None  # or it would have been refused
        return self.measures.s

    def _mean_square(self, rows: Tensor) -> float:
        return float(self.net.average(rows.square().sum(-1, keepdim=True)))


FAMILIES: dict[str, Callable[[States, str], float]] = {
    "consensus": States.consensus,
    "size": States.size,
    "largest": States.largest,
    "mean": States.mean,
    "stationarity": lambda states, name: states.stationarity(name),
    "accuracy": States.accuracy,
    "worst": States.worst,
    "average": States.average,
    "objective": States.objective,
    "estimation": lambda states, name: states.estimation(name),
    "approximate": States.approximate,
    "epsilon": States.epsilon,
}
"""Measures of rows, by the prefix of their name; the table of columns says which values are better."""

AT_X = ("estimation", "approximate", "epsilon")
"""The measures that also need an x."""


def split(name: str) -> tuple[str, str]:
    """'consensus_y' -> ('consensus', 'y'): the measure and the rows."""
    kind, _, field = name.partition("_")
    return kind, field


def needed(measures: Iterable[str]) -> set[str]:
    """The names of the rows that these measures need."""
    pairs = [split(name) for name in measures if split(name)[0] in FAMILIES]
    return {field for _, field in pairs} | ({"x"} if any(kind in AT_X for kind, _ in pairs) else set())


def check_names(
    measures: Sequence[str], algorithms: Iterable[Algorithm], problem: Problem, step: float | None = None
) -> None:
    """Refuse measures that no algorithm of the experiment has, or that its problem does not allow."""
    trained = directions(problem.f.training_measures)
    known = list(trained)
    for alg in algorithms:
        fields = sorted(_fields(alg, problem))
        known += [f"{kind}_{y}" for kind in FAMILIES for y in fields if "x" in fields or kind not in AT_X]
    for name in measures:
        hint = nearest(name, known) if known else "its clients keep nothing from round to round"
        require(name in known, f"measures: no algorithm here has {name!r}; {hint}")
    for name in (name for name in measures if name not in trained):
        kind = split(name)[0]
        has = kind not in ("accuracy", "worst", "average") or "accuracy" in directions(problem.f.measures)
        require(has, f"measures: {name!r} needs test data with classes, and there are none")
        if kind == "epsilon" or (kind in ("stationarity", "approximate") and step is None):
            _require_smoothness(name, problem, "" if kind == "epsilon" else "; give a stationarity_step")


def _require_smoothness(name: str, problem: Problem, instead: str) -> None:
    try:
        problem.f.smoothness()
    except InputError as e:
        raise InputError(f"measures: {name!r} needs a smoothness constant, which is not known here{instead}") from e


def _fields(algorithm: Algorithm, problem: Problem) -> list[str]:
    """The names of the rows in a client's state, taken from the first client."""
    start = problem.start(0), problem.f.local(0, range(1)), problem.h
    algorithm = algorithm.example
    if isinstance(algorithm, Graph):
        return list(rows_by_name(algorithm, algorithm.init(*start, dense)))
    return list(rows_by_name(algorithm, *algorithm.init(*start)))
