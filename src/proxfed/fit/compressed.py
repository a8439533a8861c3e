"""The fit with a compressed uplink: rounds of FedCEF, which is exact as well, in a simulation of the organisations.

It begins with L = sum_i p_i L_i, for which every organisation tells one number. The step 1/L is halved whenever an
exact look at the residual finds that it has doubled, and the rounds go on from the look before.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

from torch import Tensor

from proxfed.algorithms import FedCEF
from proxfed.engine.compatibility import check_combination
from proxfed.engine.loop import rounds
from proxfed.engine.network import Stacked
from proxfed.engine.run import Run
from proxfed.engine.start import run_of
from proxfed.errors import InputError
from proxfed.fit.newton import Fit
from proxfed.fit.oracle import Traffic
from proxfed.participation import Full
from proxfed.problems.linear.linear import Linear
from proxfed.types import Compressor, Problem

LOOK = 25
"""Rounds of FedCEF between two exact looks at the residual, each of which is one more round with full gradients."""

PATIENCE = 500
"""Rounds without a smaller residual after which a fit gives up: rounding allows no more."""


class Look(NamedTuple):
    """What the server knows exactly after some rounds."""

    x: Tensor
    gradient: Tensor
    traffic: Traffic


def fit_compressed(
    problem: Problem[Linear],
    compressor: Compressor,
    tolerance: float,
    most: int,
    seed: int,
    watch: Any,
    scale: float | None = None,
) -> Fit:
    """The minimiser of phi, from the problem's start."""
    n, size = problem.f.n, problem.f.weights.itemsize
    try:
        begin, L = Traffic(0, n * size, 0), float(problem.f.weights.double() @ problem.f.client_smoothness)
    except InputError as e:  # there is none
        why = "its curvature has no bound, and a compressed uplink needs one for its step size"
        raise InputError(f"{problem.f}: {why}") from e
    least, when = inf, 0
    for look in _looks(problem, L, compressor, seed):
        traffic = begin + look.traffic
        scale = scale or float(look.gradient.norm()) or 1.0
        residual = residual_of(problem, look, L) / scale
        watch(traffic.rounds, residual)
        done = residual <= tolerance
        if residual < least:
            least, when = residual, traffic.rounds
        if done or traffic.rounds >= min(most, when + PATIENCE):
            asked = traffic.rounds
            return Fit(look.x, look.gradient, residual, scale, None, inf, done, asked, problem.h, traffic)
    raise AssertionError("rounds have no end of their own")


def residual_of(problem: Problem, look: Look, L: float) -> float:
    """The norm of the prox-gradient map; of a penalty that is not convex, with a step that it allows."""
    s = 1 / max(L, 2 * problem.h.weak_convexity)
    return float((look.x - problem.h.prox(look.x - s * look.gradient, s)).norm()) / s


def exact_look(problem: Problem, x: Tensor) -> Look:
    """One round in which the server sends x and gets the gradients there."""
    f = problem.f.local(0, range(problem.f.n))
    vectors = problem.f.n * problem.f.d * x.itemsize
    return Look(x, problem.f.weights @ f.full_grad(x), Traffic(1, vectors, vectors))


def _looks(problem: Problem, L: float, compressor: Compressor, seed: int) -> Iterator[Look]:
    step = 1 / max(L, 2 * problem.h.weak_convexity)
    best = exact_look(problem, problem.h.prox(problem.start(seed), 0.0))
    total = best.traffic
    yield best
    while True:
        run = _run(problem.starting_at(best.x), FedCEF(step, 1, compressor=compressor), seed)
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
            yield Look(look.x, look.gradient, total + _traffic(run))
        total, step = total + _traffic(run), step / 2


def _run(problem: Problem, algorithm: FedCEF, seed: int) -> Run:
    check_combination(problem, algorithm, None, Full())
    return run_of(problem, algorithm, Stacked(problem.f.n, problem.f.d), seed=seed)


def _traffic(run: Run) -> Traffic:
    counted = run.counters()
    return Traffic(0, int(counted["bytes_up"]), int(counted["bytes_down"]))
