"""Runs of an algorithm on the toy problem, and comparisons of two runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from proxfed.engine import tuning
from proxfed.engine.loop import FAR
from proxfed.engine.network import Stacked
from proxfed.engine.run import Run
from proxfed.engine.start import run_of
from proxfed.participation import Full, UniformSampling
from proxfed.problems.linear.linear import Linear
from proxfed.regularisers import L1, SquaredL2
from proxfed.testing import toy
from proxfed.testing.law import Broken, must
from proxfed.topologies import Ring
from proxfed.types import Algorithm, Graph, Participation, Problem, Star, Topology


def regulariser(a: Algorithm) -> L1 | SquaredL2:
    """L1 for methods with a prox step, and a differentiable regulariser for the others."""
    return toy.SPARSE if a.needs.composite else toy.RIDGE


def problem(a: Algorithm, **options: Any) -> Problem[Linear]:
    return toy.problem(regulariser(a), **options)


def ring(a: Algorithm) -> Topology | None:
    """Five in a ring, whose W has an eigenvalue -0.21; lazy for those that need a larger one."""
    if isinstance(a, Star):
        return None
    return Ring(toy.N, weights="lazy" if a.requires().eigenvalues_above > -0.2 else "metropolis")


def begun(
    a: Algorithm, p: Problem, participation: Participation = Full(), seed: int = 0, topology: Topology | None = None
) -> Run:
    return run_of(p, a, Stacked(p.f.n, p.f.d, topology or ring(a)), participation, seed)


def after(run: Run, rounds: int, since: int = 0) -> Run:
    """The run after some rounds; refused if it has diverged."""
    for t in range(since + 1, rounds + 1):
        run.round(t)
        size = run.model().norm()
        if "x" in (fields := run.fields(())):  # clients' errors may cancel in the mean
            size = size + fields["x"].norm()
        must(bool(size < FAR), f"diverged: the model exceeds {FAR:g} in round {t}; try smaller steps")
    return run


def some(a: Algorithm) -> Participation:
    """Two clients per round if partial participation is allowed."""
    return Full() if a.requires().everyone or isinstance(a, Graph) else UniformSampling(2)


def apart(x: Tensor, y: Tensor) -> float:
    """The largest difference, relative to the size of y if that exceeds 1."""
    if x.shape != y.shape:
        raise Broken(f"shapes {tuple(x.shape)} and {tuple(y.shape)} differ")
    if torch.equal(x, y):  # also where both are infinite
        return 0.0
    return float((x - y).abs().max() / y.abs().max().clamp_min(1))


def must_equal(one: Run, other: Run, said: str) -> None:
    """Bit for bit: states, models, work and bytes."""
    a, b = one.dump(), other.dump()
    for key in a:
        same, off = torch.equal(a[key], b[key]), apart(a[key], b[key])
        must(same, f"{said}: {key} differs by {off:.1e}, and must be equal bit by bit")
    must(torch.equal(one.model(), other.model()), f"{said}: the models differ, and must be equal bit by bit")
    must_count_alike(one, other, said)


def must_count_alike(one: Run, other: Run, said: str) -> None:
    a, b = one.counters(), other.counters()
    off = next((key for key in a if a[key] != b[key]), None)
    must(off is None, f"{said}: {off} is {a.get(off or '')} and {b.get(off or '')}")


@contextmanager
def small_blocks(clients: int, threads: int) -> Iterator[None]:
    """Within this context the engine uses blocks of `clients` clients, on `threads` threads."""
    before = tuning.BLOCK, tuning.PARALLEL_FROM, torch.get_num_threads()
    tuning.BLOCK, tuning.PARALLEL_FROM = clients * toy.D, 0
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        tuning.BLOCK, tuning.PARALLEL_FROM = before[:2]
        torch.set_num_threads(before[2])
