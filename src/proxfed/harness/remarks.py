"""What a user should be told: steps that were found or computed, too short ones, runs that got nowhere, and so on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from proxfed.data.on_demand import OnDemand
from proxfed.engine.noise import drowned, epsilon
from proxfed.engine.running import Running
from proxfed.epochs import epochs_of
from proxfed.errors import InputError
from proxfed.harness.protection import Privacy
from proxfed.harness.study import Study
from proxfed.report.columns import Row, number, show
from proxfed.schedules import first
from proxfed.simulate import origin
from proxfed.types import LOCAL_STEPS, Algorithm, Problem

SHORT = 0.03
"""The local steps of a round together are orders below 1/L if they are shorter than this part of it."""

UNEQUAL = 5.0
"""Clients whose largest holds so many times the samples of the smallest are of very different sizes."""

NOTHING = 1e-3
"""Progress that is less than this part of where a run began is none."""

FEW, SLOW, CREPT, NEAR = 10, 0.9, 0.1, 1e-8
"""A run of 2 FEW rows or more stalls if its second half leaves SLOW of the least stationarity of the first, and more
than NEAR of that at the start. It is slow if its second half leaves CREPT of it."""

GREW, APART = 5.0, 2.0
"""Control variates grow if the largest is so many times what it was, and so many times their mean."""


def beforehand(study: Study) -> list[str]:
    """Lines about a study, before it begins: on its data, weights and steps, and that nothing is protected here."""
    written, data = study.written or {}, study.problem.f.data
    lines = [clients_and_weights(study.problem)]
    lines += [] if data is None or not data.remark else [data.remark]
    if study.problem_of is not None:
        lines.append(f"every seed draws a partition of its own; the clients shown are those of seed {study.seeds[0]}")
    lines += _steps_of_theory(study, written.get("algorithms", ()))
    lines += _epochs(study, written.get("algorithms", ()))
    near = {label: _almost_too_long(e.problem, e.algorithm.example) for label, e in study.complete.items()}
    lines += [f"{label}: {said}" for label, said in near.items() if said]
    timed = "" if study.timing is None else origin(study.timing.table())
    lines += [timed] if timed else []
    if study.privacy is not None:
        lines += _noise(study, study.privacy)
    elif written.get("protection"):
        lines.append("[protection] acts between organisations; here nothing is masked, clipped or made noisy")
    return lines


def clients_and_weights(problem: Problem) -> str:
    """How many clients there are, what they hold and how they are weighted: the first line of every run."""
    f, held, least, most = problem.f, "", 0, 0
    if f.data is not None:
        least, most = f.data.sizes.min(), f.data.sizes.max()
        held = f" with {least:,} samples each" if least == most else f" with {least:,} to {most:,} samples"
    p = f.weights
    if f.n == 1:
        return f"1 client{held.removesuffix(' each')}"
    if p.max() > p.min() * (1 + 1e-6):
        sized = getattr(f, "weighting", "") == "size"
        return f"{f.n:,} clients{held}, weighted by " + ("their samples (weighting = 'size')" if sized else "their p_i")
    asked = " (weighting = 'uniform')" if least != most else ""
    return f"{f.n:,} clients{held}; all count the same{asked}"


def equal_weights(problem: Problem) -> str:
    """The same, where clients with very different numbers of samples are asked to count the same."""
    if problem.f.data is None or getattr(problem.f, "weighting", "") != "uniform":
        return ""
    uneven = problem.f.data.sizes.max() >= UNEQUAL * problem.f.data.sizes.min()
    return clients_and_weights(problem) if uneven else ""


def _noise(study: Study, privacy: Privacy) -> list[str]:
    """What noise costs, and that it hides nothing here."""
    spent = {label: epsilon({privacy.noise: e.rounds}, privacy.delta) for label, e in study.complete.items()}
    said = ", ".join(f"{label}: epsilon = {value:.3g}" for label, value in spent.items())
    lines = [f"messages are clipped and made noisy, as between organisations; the noise follows from the seed; {said}"]
    p, d = study.problem.f.weights.tolist(), study.problem.f.d
    why = {label: drowned(privacy, p, d, e.rounds) for label, e in study.complete.items()}
    return lines + [f"{label}: {reason}" for label, reason in why.items() if reason]


def _epochs(study: Study, tables: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each algorithm whose local steps are given as epochs, where clients are of different sizes."""
    f, lines = study.problem.f, []
    if f.data is None or f.batch is None or f.data.sizes.min() == f.data.sizes.max():
        return []
    for table in tables:
        label = table.get("label", table["name"])
        for name in LOCAL_STEPS:
            if not isinstance(asked := table.get(name), Mapping) or label not in study.complete:
                continue
            ((kind, passes),), algorithm = asked.items(), study.complete[label].algorithm
            if (epochs := epochs_of(algorithm)) is not None:
                own = epochs.steps(f)
                said = f"{own.min()} to {own.max()} steps of a client, by its own samples"
            else:
                steps = getattr(algorithm, name)
                most, least = (steps * f.batch / size for size in (f.data.sizes.min(), f.data.sizes.max()))
                said = f"{steps} steps for each client: {least:.2g} to {most:.2g} passes over its own samples"
            lines.append(f"{label}: {name} = {{{kind} = {passes}}} is {said}")
    return lines


def _steps_of_theory(study: Study, tables: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each algorithm whose steps were computed from its theorem."""
    lines = []
    for table in tables:
        label = table.get("label", table["name"])
        if table.get("theory") is True and label in study.entries:
            algorithm, problem = study.complete[label].algorithm, study.complete[label].problem
            given = algorithm.steps_for(1.0)
            steps = ", ".join(f"{name} = {first(getattr(algorithm, name)):.4g}" for name in given)
            lines.append("; ".join(filter(None, [f"{label}: the theory gives {steps}", _short(problem, algorithm)])))
    return lines


def remarks(
    problem: Problem,
    run: Running,
    variates: ControlVariates | None,
    rows: Sequence[Row],
    outcome: str,
) -> str:
    """Of a run that is over; empty if there is nothing to say. `outcome` is what became of it, if it did not finish."""
    grown = "" if variates is None else variates.remark()
    sent = run.sent()  # all ranks are asked
    return "; ".join(filter(None, [outcome or _of_end(problem, run, sent, rows), grown]))


def _of_end(problem: Problem, run: Running, sent: tuple[int, int], rows: Sequence[Row]) -> str:
    if not rows or not rows[-1]["round"]:
        return ""
    begun, ended = rows[0], rows[-1]
    of_steps = _found(run.found(), *sent, ended["round"]) or _short(problem, run.algorithm)
    unread = "objective and stationarity are not measured, since samples are read on demand"
    left_out = unread if isinstance(problem.f.data, OnDemand) and not problem.f.train_measures else ""
    stuck = _stuck(begun, ended) or _stalled(problem, run.algorithm, rows)
    return "; ".join(filter(None, [stuck, of_steps, left_out]))


def _found(found: Mapping[str, float], together: int, alone: int, rounds: int) -> str:
    """The steps, what the search for them has cost, and how to do without it; empty where none were to be found."""
    if not found:
        return ""
    steps = ", ".join(f"{name} = {value:.4g}" for name, value in found.items())
    if together == alone:
        return f"took {steps}, from 1/L, without a search"
    more, plain = show(together - alone, "bytes"), show(alone, "bytes")
    further = f"as much as {(together - alone) * rounds / max(alone, 1):,.0f} further rounds"
    cost = f"the search sent {more} more than the {plain} of a run with known steps, {further}"
    return f"found {steps}; {cost}: write {steps} to do without it next time"


def _stuck(begun: Row, ended: Row) -> str:
    """By the first of these measures that both rows have."""
    for name, words in (("gap", "gap"), ("objective", "objective"), ("test_loss", "loss on the test data")):
        then, now = number(begun, name), number(ended, name)
        if then is not None and now is not None:
            gained, little = then - now, NOTHING * abs(then)
            if gained > little or _at_rest(begun):
                return ""
            how = "got worse" if gained < -little else "made no progress"
            return f"{how}: its {words} went from {then:.6g} to {now:.6g}"
    return ""


def _stalled(problem: Problem, algorithm: Algorithm, rows: Sequence[Row]) -> str:
    """Of an exact method with full gradients: in the second half of a run it hardly came nearer to a solution."""
    if problem.f.batch is not None or not algorithm.is_exact() or len(rows) < 2 * FEW:
        return ""
    found = [number(row, "stationarity") for row in rows]
    left = [value for value in found if value is not None]
    if len(left) < len(rows):
        return ""
    half = len(left) // 2
    then, since = min(left[:half]), min(left[half:])
    if since < CREPT * then or since < NEAR * left[0]:
        return ""
    advice, too_long = _advice(problem, algorithm), _almost_too_long(problem, algorithm)
    if since < SLOW * then:
        return advice and f"slow: the second half of the rounds left {since / then:.0%} of its stationarity; {advice}"
    far = f"in the second half of the rounds its stationarity fell no lower than {since:.3g}, before to {then:.3g}"
    return "; ".join(filter(None, [f"stalled: {far}", advice or "try a shorter step", too_long]))


def _advice(problem: Problem, algorithm: Algorithm) -> str:
    """What the algorithm knows of better hyper-parameters, where the smoothness and strong convexity of f are known."""
    try:
        return algorithm.advice(problem.f.smoothness())
    except InputError:
        return ""


def _almost_too_long(problem: Problem, algorithm: Algorithm) -> str:
    """Of prox steps beyond half of what a weakly convex h allows: PLEDGE and FedCEF were seen not to settle there."""
    part = algorithm.largest_prox_step() * problem.h.weak_convexity
    allowed = "of the step from which on h has no prox"
    return f"its prox steps reach {part:.2g} {allowed}: up to one half is safer" if part > 0.5 else ""


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
        L = problem.f.smoothness().L
    except InputError:
        return ""
    if L == 0:
        return ""
    epochs = epochs_of(algorithm)
    given = next((getattr(algorithm, K) for K in LOCAL_STEPS if hasattr(algorithm, K)), 1)
    local = given if epochs is None else int(epochs.steps(problem.f).max())
    step = first(getattr(algorithm, name))
    if local * step * L >= SHORT:
        return ""
    return f"{name} = {step:.4g} is very short, where 1/L = {1 / L:.4g}: {name} = 'auto' finds a longer one"


def control_variates(run: Running) -> ControlVariates | None:
    """Those of the clients, if there are any to look at."""
    return None if run.variates() is None else ControlVariates(run)


class ControlVariates:
    """A look at the c_i of a server's clients after the first row of a run, and at its end.

    At a solution they are the clients' gradients, however different: that some are large says nothing. That they grow
    more than their mean does says that clients follow gradients of points that they have driven away themselves.
    """

    def __init__(self, run: Running) -> None:
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
        c, net = self.run.variates(), self.run.network
        assert c is not None
        return float(net.of_all(c.norm(dim=-1)).max()), float(net.average(c).norm())
