"""The federated fit of one penalty weight, and of a path of them: exact, without a step size, every byte counted.

Gradients travel as they are, in the rounds of ProxNewton, or compressed, in those of FedCEF, which is exact as well;
that one also serves penalties that are not convex. Both begin with L = sum_i p_i L_i, for which every organisation
tells one number. ProxNewton learns the curvature from there and searches along its steps for a smaller objective, so it
also works where no L exists (Poisson). FedCEF's step 1/L is halved whenever an exact look at the residual finds that it
has doubled, and the rounds go on from the look before.

A fit ends when its residual, the prox-gradient map L |x - prox_{h/L}(x - grad f(x)/L)|, is at most `tolerance` times
the gradient at the start. At a solution, and nowhere else, it is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from proxfed.algorithms import FedCEF, ProxNewton
from proxfed.compressors import Identity
from proxfed.engine.compatibility import check_combination
from proxfed.engine.loop import rounds
from proxfed.engine.network import Stacked
from proxfed.engine.run import Run
from proxfed.engine.start import run_of
from proxfed.errors import InputError, RunError, at_least_one, positive, require
from proxfed.harness.path import chosen_weights
from proxfed.participation import Full
from proxfed.problems.linear.linear import Linear
from proxfed.regularisers import OnBlocks
from proxfed.types import Algorithm, Compressor, Problem

LOOK = 25
"""Rounds of FedCEF between two exact looks at the residual, each of which is one more round with full gradients."""

PATIENCE = 500
"""Rounds without a smaller residual after which a fit gives up: rounding allows no more."""


@dataclass(frozen=True)
class Traffic:
    """What it took, over all organisations."""

    rounds: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        up, down = self.bytes_up + other.bytes_up, self.bytes_down + other.bytes_down
        return Traffic(self.rounds + other.rounds, up, down)


@dataclass(frozen=True, eq=False)
class Fit:
    """A model that was fitted."""

    problem: Problem
    x: Tensor
    """(d,)"""
    gradient: Tensor
    """(d,) of f at x."""
    residual: float
    """The prox-gradient map at x, relative to `scale`."""
    scale: float
    """The gradient at the start."""
    traffic: Traffic
    pairs: Pairs | None = None
    """What ProxNewton remembers of f, for the next fit of a path."""
    weight: float | None = None
    """Of the penalty, on a path."""


class Unfinished(RunError):
    """The rounds were over before the residual was small enough."""

    def __init__(self, reached: str, fit: Fit) -> None:
        super().__init__(f"{reached}: allow more rounds or a larger tolerance")
        self.reached = reached
        self.fit = fit
        """What there is instead."""


class Pairs(NamedTuple):
    """Steps and changes of the gradient, as ProxNewton keeps them: of f alone, whatever h is."""

    S: Tensor
    Y: Tensor
    pairs: Tensor


class Look(NamedTuple):
    """What the server knows exactly after some rounds."""

    x: Tensor
    gradient: Tensor
    traffic: Traffic
    pairs: Pairs | None = None


@dataclass(frozen=True)
class Solver:
    """How fits are made."""

    tolerance: float = 1e-10
    """What may be left of the residual, relative to the gradient at the start."""
    compressor: Compressor | None = None
    """Of what organisations send; None: gradients travel as they are."""
    rounds: int = 20_000
    """For one fit, at most."""
    seed: int = 0
    """Of a random compressor."""
    watch: Callable[[int, float], object] = field(default=lambda t, residual: None, compare=False, repr=False)
    """Called with the rounds of this fit so far and the relative residual."""

    def __post_init__(self) -> None:
        positive(self, "tolerance")
        at_least_one(self, "rounds")

    def fit(self, problem: Problem, scale: float | None = None, pairs: Pairs | None = None) -> Fit:
        """The minimiser of phi, from the problem's start; `scale` and `pairs` are those of another fit of this f."""
        require(problem.f.batch is None, f"batch = {problem.f.batch}: a fit needs full gradients, batch = None")
        double = problem.f.weights.dtype == torch.float64
        require(
            double, f"dtype = {problem.f.weights.dtype}: a fit needs float64, as its tolerance is far below float32's"
        )
        begin, L = self._begin(problem)
        plain = self.compressor is None and problem.h.weak_convexity == 0
        least, when = inf, 0
        for look in _newton(problem, L, self, pairs) if plain else _compressed(problem, L, self):
            traffic = begin + look.traffic
            scale = scale or float(look.gradient.norm()) or 1.0
            residual = residual_of(problem, look, L) / scale
            fit = Fit(problem, look.x, look.gradient, residual, scale, traffic, look.pairs)
            self.watch(traffic.rounds, residual)
            if residual <= self.tolerance:
                return fit
            if residual < least:
                least, when = residual, traffic.rounds
            if traffic.rounds >= min(self.rounds, when + PATIENCE):
                break
        raise Unfinished(f"after {traffic.rounds} rounds the residual is {least:.2g}, not {self.tolerance:g}", fit)

    def path(self, problem: Problem, weights: int | Sequence[float] = 50, smallest: float = 1e-3) -> list[Fit]:
        """A fit for every weight of h, from the largest to the smallest, each begun at the last.

        weights: decreasing; or how many, from where the solution is zero down to `smallest` of it. The rounds that
        find this place are counted with the first fit.
        """
        before, x, scale, pairs = Traffic(), None, None, None

        def largest() -> float:
            nonlocal before, x
            zero = self.at_zero(problem)
            before, x = zero.traffic, zero.x
            return problem.h.weight_max(zero.gradient)

        fits: list[Fit] = []
        for weight in chosen_weights(problem.h, weights, smallest, largest):
            this = problem.with_h(problem.h.with_weight(weight))
            fit = self.fit(this if x is None else this.starting_at(x), scale, pairs)
            fits.append(replace(fit, weight=weight, traffic=fit.traffic + before))
            before, x, scale, pairs = Traffic(), fit.x, fits[0].scale, fit.pairs
        return fits

    def at_zero(self, problem: Problem) -> Fit:
        """The fit with all that the weight of h acts on at zero: h.weight_max(gradient) is where a path begins."""
        h = problem.h
        name = type(h.parts[0][1] if isinstance(h, OnBlocks) else h).__name__
        require(h.thresholds, f"{name} has no weight from which on zero is the solution")
        held = problem.with_h(h.held_at_zero(problem.f.d)).starting_at(0 * problem.start(0))
        return replace(self, compressor=None).fit(held)

    def _begin(self, problem: Problem) -> tuple[Traffic, float]:
        """L, and what it costs to know it."""
        n, size = problem.f.n, problem.f.weights.itemsize
        try:
            if isinstance(problem.f, Linear):
                return Traffic(0, n * size, 0), float(problem.f.weights.cpu().double() @ problem.f.client_smoothness)
            return Traffic(0, n * size, 0), problem.f.smoothness().L_f
        except InputError:  # there is none
            plain = self.compressor is None and problem.h.weak_convexity == 0
            why = "a compressed uplink" if self.compressor is not None else f"{type(problem.h).__name__}, not convex,"
            require(plain, f"{problem.f}: its curvature has no bound, and {why} needs one for its step size")
        look = exact_look(problem, problem.start(0))
        return look.traffic, float(look.gradient.norm()) or 1.0  # as if the solution were at distance 1


def residual_of(problem: Problem, look: Look, L: float) -> float:
    """The norm of the prox-gradient map; of a penalty that is not convex, with a step that it allows."""
    s = 1 / max(L, 2 * problem.h.weak_convexity)
    return float((look.x - problem.h.prox(look.x - s * look.gradient, s)).norm()) / s


def exact_look(problem: Problem, x: Tensor) -> Look:
    """One round in which the server sends x and gets the gradients there."""
    f = problem.f.local(0, range(problem.f.n))
    vectors = problem.f.n * problem.f.d * x.itemsize
    return Look(x, problem.f.weights @ f.full_grad(x), Traffic(1, vectors, vectors))


def _newton(problem: Problem, L: float, solver: Solver, pairs: Pairs | None) -> Iterator[Look]:
    run = _run(problem, ProxNewton(L), solver)
    if pairs is not None:
        run.state = run.state._replace(server=run.state.server._replace(**pairs._asdict()))
    for step in rounds(run, solver.rounds, done=0):
        s = run.state.server
        yield Look(s.x, s.g, _traffic(run, step.t), Pairs(s.S, s.Y, s.pairs))


def _compressed(problem: Problem, L: float, solver: Solver) -> Iterator[Look]:
    step, seed = 1 / max(L, 2 * problem.h.weak_convexity), solver.seed
    compressor = solver.compressor or Identity()
    best = exact_look(problem, problem.h.prox(problem.start(seed), 0.0))
    total = best.traffic
    yield best
    while True:
        run = _run(problem.starting_at(best.x), FedCEF(step, 1, compressor=compressor), solver)
        done = 0
        while True:
            for _ in rounds(run, done + LOOK, done=done):
                pass
            done += LOOK
            look = exact_look(problem, run.model())
            total = total + look.traffic + Traffic(LOOK)
            if not residual_of(problem, look, L) <= 2 * residual_of(problem, best, L):
                break
            best = look
            yield Look(look.x, look.gradient, total + _traffic(run, 0))
        total, step = total + _traffic(run, 0), step / 2


def _run(problem: Problem, algorithm: Algorithm, solver: Solver) -> Run:
    check_combination(problem, algorithm, None, Full())
    return run_of(problem, algorithm, Stacked(problem.f.n, problem.f.d), seed=solver.seed)


def _traffic(run: Run, rounds: int) -> Traffic:
    counted = run.counters()
    return Traffic(rounds, int(counted["bytes_up"]), int(counted["bytes_down"]))
