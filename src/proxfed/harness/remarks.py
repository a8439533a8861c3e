"""What a user should be told: steps that were found or computed, too short ones, runs that got nowhere, and so on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from proxfed.auto import LOCAL_STEPS
from proxfed.data.on_demand import OnDemand
from proxfed.engine.race import Race
from proxfed.engine.run import Run
from proxfed.errors import InputError
from proxfed.harness.study import Study
from proxfed.report.columns import Row, number
from proxfed.schedules import first
from proxfed.types import Algorithm, Problem, Star

SHORT = 0.03
"""The local steps of a round together are orders below 1/L if they are shorter than this part of it."""

NOTHING = 1e-3
"""Progress that is less than this part of where a run began is none."""

GREW, APART = 5.0, 2.0
"""Control variates grow if the largest is so many times what it was, and so many times their mean."""


def beforehand(study: Study) -> list[str]:
    """Lines about a study, before it begins: the data are a sample, steps were computed, nobody is protected here."""
    written, data = study.written or {}, study.problem.data
    lines = [] if data is None or not data.remark else [data.remark]
    lines += _steps_of_theory(study, written.get("algorithms", ()))
    if written.get("protection"):
        lines.append("[protection] acts between organisations; here nothing is masked, clipped or made noisy")
    return lines


def _steps_of_theory(study: Study, tables: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each algorithm whose steps were computed from its theorem."""
    lines = []
    for table in tables:
        label = table.get("label", table["name"])
        if table.get("theory") is True:
            algorithm, problem = study.complete[label].example, study.complete[label].problem
            given = [*filter(None, [algorithm.facts.step]), *algorithm.tied(1.0, 1)]
            steps = ", ".join(f"{name} = {first(getattr(algorithm, name)):.4g}" for name in given)
            lines.append("; ".join(filter(None, [f"{label}: the theory gives {steps}", _short(problem, algorithm)])))
    return lines


def remarks(
    problem: Problem,
    run: Run | Race,
    variates: ControlVariates | None,
    begun: Row | None,
    ended: Row | None,
    outcome: str,
) -> str:
    """Of a run that is over; empty if there is nothing to say. `outcome` is what became of it, if it did not finish."""
    grown = "" if variates is None else variates.remark()
    return "; ".join(filter(None, [outcome or _of_end(problem, run, begun, ended), grown]))


def _of_end(problem: Problem, run: Run | Race, begun: Row | None, ended: Row | None) -> str:
    if begun is None or ended is None or not ended["round"]:
        return ""
    found = run.found() if isinstance(run, Race) else {}
    steps = ", ".join(f"{name} = {value:.4g}" for name, value in found.items())
    of_steps = f"found {steps}" if steps else _short(problem, run.algorithm)
    unread = "objective and stationarity are not measured, since samples are read on demand"
    left_out = unread if isinstance(problem.data, OnDemand) and not problem.train_measures else ""
    return "; ".join(filter(None, [_stuck(begun, ended), of_steps, left_out]))


def _stuck(begun: Row, ended: Row) -> str:
    """By the first of these measures that both rows have."""
    for name, words in (("gap", "gap"), ("objective", "objective"), ("test_loss", "loss on the test data")):
        then, now = number(begun, name), number(ended, name)
        if then is not None and now is not None:
            nowhere = then - now <= NOTHING * abs(then) and not _at_rest(begun)
            return f"made no progress: its {words} went from {then:.6g} to {now:.6g}" if nowhere else ""
    return ""


def _at_rest(begun: Row) -> bool:
    """It began at a solution."""
    left = number(begun, "stationarity")
    return left is not None and left < 1e-12


def _short(problem: Problem, algorithm: Algorithm) -> str:
    """Where L is known, and the steps of a round together are orders below 1/L."""
    name = algorithm.facts.step
    if not hasattr(algorithm, name):
        return ""
    try:
        L = problem.smoothness().L
    except InputError:
        return ""
    local = next((getattr(algorithm, K) for K in LOCAL_STEPS if hasattr(algorithm, K)), 1)
    step = first(getattr(algorithm, name))
    if local * step * L >= SHORT:
        return ""
    return f"{name} = {step:.4g} is very short, where 1/L = {1 / L:.4g}: {name} = 'auto' finds a longer one"


def control_variates(run: Run | Race) -> ControlVariates | None:
    """Those of a server's clients; None without any, or where clients are met one by one or elsewhere."""
    if not isinstance(run, Run) or not isinstance(run.algorithm, Star) or not run.held.rows.everyone:
        return None
    variate = getattr(run.held.rows.form, run.algorithm.facts.variate, None)
    return ControlVariates(run) if isinstance(variate, Tensor) else None


class ControlVariates:
    """A look at the c_i of a server's clients after the first row of a run, and at its end.

    At a solution they are the clients' gradients, however different: that some are large says nothing. That they grow
    more than their mean does says that clients follow gradients of points that they have driven away themselves.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.first = run, 0.0
        self.averaging = run.algorithm.facts.averaging
        self.weight = float(getattr(run.algorithm, self.averaging)) if self.averaging else 1.0

    def begin(self, t: int) -> None:
        """After the row of round t; only the first counts. Averages are still on their way from zero then."""
        self.first = self.first or self._sizes()[0] / (1 - (1 - self.weight) ** t)

    def remark(self) -> str:
        """Empty if there is nothing to say."""
        if not self.first:
            return ""
        largest, mean = self._sizes()
        if not (largest > GREW * self.first and largest > APART * mean):
            return ""
        sizes = f"the largest has norm {largest:.3g} after {self.first:.3g}, their mean {mean:.3g}"
        further = f" ({self.averaging} < {self.weight:g})" if self.averaging else ""
        last = "a guard (guard = true)" if getattr(self.run.algorithm, "guard", None) is False else "clipped gradients"
        return f"its control variates grew: {sizes}; try smaller steps, averaging{further} or {last}"

    def _sizes(self) -> tuple[float, float]:
        """The largest norm, and that of the mean."""
        c, net = getattr(self.run.held.rows.all(), self.run.algorithm.facts.variate), self.run.network
        norms = net.all_sum(c.new_zeros(net.n).index_copy_(0, torch.tensor(net.ids), c.norm(dim=-1)))
        return float(norms.max()), float(net.average(c).norm())
