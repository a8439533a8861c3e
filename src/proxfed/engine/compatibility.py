"""Refuses, before anything is computed, what the mathematics does not allow."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from math import isinf
from typing import Any

import numpy as np

from proxfed.algorithms import CompressedDownlink
from proxfed.compressors.contractive import contraction
from proxfed.engine import tuning
from proxfed.errors import InputError, require
from proxfed.participation import Full
from proxfed.regularisers import Zero
from proxfed.topologies import SpanningTree, check
from proxfed.topologies.mixing import dense
from proxfed.types import Algorithm, Compressor, Graph, Needs, Participation, Problem, Regulariser, Star, Topology


def check_combination(
    problem: Problem, algorithm: Algorithm, topology: Topology | None, participation: Participation
) -> None:
    """One sentence if the algorithm cannot solve `problem` over this topology with this participation."""
    _check_kinds(problem, algorithm, topology, participation)
    if isinstance(algorithm, CompressedDownlink):
        check_combination(problem, algorithm.star, topology, participation)
    name, h, needs = type(algorithm).__name__, problem.h, algorithm.requires()
    h.value(problem.weights.new_zeros(problem.d))  # refuses shapes and groups that do not fit d
    if not isinstance(h, Zero):
        _check_regulariser(name, algorithm, h)
    if isinstance(algorithm, Graph):
        if topology is None:
            raise InputError(f"{name} works on a graph: name a topology, for instance 'ring'")
        require(topology.n == problem.n, f"the topology has {topology.n} nodes, but the problem {problem.n} clients")
        _check_graph(name, needs, topology)
    elif topology is not None:
        require(
            isinstance(topology, SpanningTree),
            f"{name} has a server and takes no graph: leave the topology out, or give a SpanningTree of it",
        )
        require(topology.n == problem.n, f"the topology has {topology.n} nodes, but the problem {problem.n} clients")
    participation(1, problem.n, 0)  # refuses what does not fit n
    if needs.everyone or topology is not None:
        all_take_part = isinstance(participation, Full)
        alone = "" if topology is None or isinstance(algorithm, Graph) else " along a tree"
        who = type(participation).__name__
        can = needs.everyone and topology is None and hasattr(algorithm, "partial")
        instead = "; with partial = True some may stay away" if can else ""
        require(all_take_part, f"{name} needs every client in every round{alone}, not {who}{instead}")
    for compressor in [algorithm.compressor] if isinstance(algorithm, CompressedDownlink) else compressors(algorithm):
        _check_compressor(name, needs, compressor, problem.d)


def _check_kinds(problem: object, algorithm: object, topology: object, participation: object) -> None:
    """What is no problem, algorithm, topology or participation at all, such as a name or a class, is told what is."""
    kinds: tuple[tuple[str, object, Any, str], ...] = (
        ("problem", problem, Problem, "an object such as Linear(data, Logistic())"),
        ("algorithm", algorithm, (Star, Graph), "an object such as FedAvg(eta=0.1, K=5), a Star or a Graph"),
        ("topology", topology, (Topology, type(None)), "an object such as Ring(10), or None"),
        ("participation", participation, Participation, "an object such as Full() or UniformSampling(10)"),
    )
    for what, given, kind, allowed in kinds:
        if not isinstance(given, kind) or isinstance(given, type):  # to write down a problem takes long
            raise InputError(f"{what} = {given!r:.80} will not do: give {allowed}")


def compressors(algorithm: Algorithm) -> list[Compressor]:
    """Those among its hyper-parameters, whatever they are called, and among those of an algorithm within it."""
    names: list[str] = [f.name for f in fields(algorithm)] if is_dataclass(algorithm) else []
    own = [value for name in names if isinstance(value := getattr(algorithm, name), Compressor)]
    return [*compressors(algorithm.star), *own] if isinstance(algorithm, CompressedDownlink) else own


def _check_graph(name: str, needs: Needs, topology: Topology) -> None:
    require(not needs.fixed_graph or topology.period == 1, f"{name} needs the same graph in every round")
    require(
        not needs.doubly_stochastic or topology.doubly_stochastic,
        f"{name} needs a W whose columns sum to one, or it loses the mean that it tracks: those of {topology} do not",
    )
    small = topology.n <= tuning.EXACT_SPECTRUM
    check(topology, symmetric=needs.symmetric, columns=topology.doubly_stochastic, contracts=small)
    if needs.eigenvalues_above > -1 and small:
        least = float(np.linalg.eigvalsh(dense(topology.W(0)))[0])
        require(
            least > needs.eigenvalues_above,
            f"{name} with these settings needs eigenvalues of W above {needs.eigenvalues_above:.3g}, but one is "
            f"{least:.3g}; lazy weights (I + W)/2 have no negative ones",
        )


def _check_compressor(name: str, needs: Needs, compressor: Compressor, d: int) -> None:
    compressor.contraction(d)  # refuses a number of entries or a shape that does not fit d
    if needs.contractive:
        q2 = contraction(compressor, d, name)
        require(
            q2 <= needs.largest_q2,
            f"{name} with these settings needs a compressor with q^2 <= {needs.largest_q2:g}, but that of {compressor} "
            f"is {q2:.3g} for vectors of {d} numbers",
        )
    require(
        compressor.unbiased or not needs.unbiased,
        f"{name} needs an unbiased compressor, E C(v) = v, which {compressor} is not: for instance "
        "RandK with unbiased = true, or QSGD",
    )


def _check_regulariser(name: str, algorithm: Algorithm, h: Regulariser) -> None:
    kind = type(h).__name__
    if not algorithm.needs.composite:
        require(not h.indicator, f"{name} takes no prox step and so cannot keep to the constraint {kind}")
        return
    step, rho = algorithm.largest_prox_step(), h.weak_convexity  # who forgot to say it is told so, whatever h is
    if rho == 0:
        return
    require(not algorithm.needs.convex, f"{name} needs a convex regulariser, which {kind} is not")
    require(
        not isinf(step), f"{name} takes prox steps that grow without bound, but {kind} allows only steps < {1 / rho:g}"
    )
    require(step * rho < 1, f"{name} takes prox steps up to {step:g}, but {kind} allows only steps < {1 / rho:g}")
