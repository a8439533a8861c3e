"""Refuses, before anything is computed, what the mathematics does not allow."""

from __future__ import annotations

from math import isinf

from proxfed.errors import InputError, require
from proxfed.participation import Full
from proxfed.regularisers import Zero
from proxfed.topologies import check
from proxfed.types import Algorithm, Graph, Participation, Problem, Regulariser, Topology

EXACT_SPECTRUM = 1500
"""Up to this many clients, the spectrum of W is cheap enough to look at before every run."""


def check_combination(
    problem: Problem, algorithm: Algorithm, topology: Topology | None, participation: Participation
) -> None:
    """One sentence if `algorithm` cannot solve `problem` over this topology with this participation."""
    name, h, needs = type(algorithm).__name__, problem.h, algorithm.needs
    if not isinstance(h, Zero):
        _check_regulariser(name, algorithm, h)
    if isinstance(algorithm, Graph):
        if topology is None:
            raise InputError(f"{name} works on a graph: name a topology, for instance 'ring'")
        require(topology.n == problem.n, f"the topology has {topology.n} nodes, but the problem {problem.n} clients")
        require(not needs.fixed_graph or topology.period == 1, f"{name} needs the same graph in every round")
        small = topology.n <= EXACT_SPECTRUM
        check(topology, symmetric=needs.symmetric, columns=topology.doubly_stochastic, contracts=small)
    if needs.everyone or isinstance(algorithm, Graph):
        all_take_part = isinstance(participation, Full)
        require(all_take_part, f"{name} needs every client in every round, not {type(participation).__name__}")
    if needs.contractive:
        compressor = algorithm.compressor  # type: ignore[union-attr]
        q2 = compressor.contraction(problem.d)
        require(
            q2 < 1,
            f"{name} needs a contractive compressor, but for {type(compressor).__name__} only "
            f"E|C(v) - v|^2 <= {q2:g} |v|^2 is known; use its contractive form",
        )
    if needs.unbiased:
        compressor = algorithm.compressor  # type: ignore[union-attr]
        require(
            compressor.unbiased,
            f"{name} needs an unbiased compressor, E C(v) = v, which {compressor} is not: for instance "
            "RandK with unbiased = true, or QSGD",
        )


def _check_regulariser(name: str, algorithm: Algorithm, h: Regulariser) -> None:
    kind = type(h).__name__
    if not algorithm.needs.composite:
        require(not h.indicator, f"{name} takes no prox step and so cannot keep to the constraint {kind}")
        return
    step, rho = algorithm.largest_prox_step(), h.weak_convexity
    if rho == 0:
        return
    require(not algorithm.needs.convex, f"{name} needs a convex regulariser, which {kind} is not")
    require(
        not isinf(step), f"{name} takes prox steps that grow without bound, but {kind} allows only steps < {1 / rho:g}"
    )
    require(step * rho < 1, f"{name} takes prox steps up to {step:g}, but {kind} allows only steps < {1 / rho:g}")
