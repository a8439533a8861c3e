"""Refuses combinations that the mathematics does not allow, before anything is computed."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from math import isinf
from typing import Any

import numpy as np
import torch

from proxfed.algorithms import CompressedDownlink
from proxfed.compressors import Identity
from proxfed.compressors.contractive import contraction
from proxfed.engine import tuning
from proxfed.engine.noise import NoRows
from proxfed.engine.states import flatten
from proxfed.epochs import epochs_of
from proxfed.errors import InputError, in_terms, of_kind, require
from proxfed.machine import with_double
from proxfed.participation import Full
from proxfed.regularisers import Zero
from proxfed.topologies import SpanningTree, check
from proxfed.topologies.mixing import dense
from proxfed.types import Algorithm, Compressor, Graph, Needs, Participation, Problem, Regulariser, Star, Topology


def check_combination(
    problem: Problem, algorithm: Algorithm, topology: Topology | None, participation: Participation
) -> None:
    """Raise an InputError if the algorithm cannot solve `problem` over this topology with this participation."""
    _check_kinds(problem, algorithm, topology, participation)
    if isinstance(algorithm, CompressedDownlink):
        check_combination(problem, algorithm.star, topology, participation)
    name, n, h, needs = type(algorithm).__name__, problem.f.n, problem.h, algorithm.requires()
    h.value(problem.f.weights.new_zeros(problem.f.d))  # refuses shapes and groups that do not fit d
    if not isinstance(h, Zero):
        _check_regulariser(name, algorithm, h)
    if isinstance(algorithm, Graph):
        if topology is None:
            such = in_terms('[topology] name = "ring"', f"Ring({n})")
            raise InputError(f"{name} works on a graph: give a topology, such as {such}")
        require(topology.n == n, f"the topology has {topology.n} nodes, but the problem {n} clients")
        _check_graph(name, needs, topology)
    elif topology is not None:
        require(
            isinstance(topology, SpanningTree),
            f"{name} has a server and takes no graph: leave the topology out, or give a SpanningTree of it",
        )
        require(topology.n == n, f"the topology has {topology.n} nodes, but the problem {n} clients")
        sums = not algorithm.sends().rows_apart
        require(sums, f"{name} has a server that reads messages one by one, and a tree brings it only sums of them")
    participation(1, n, 0)  # refuses what does not fit n
    if (epochs := epochs_of(algorithm)) is not None:
        epochs.steps(problem.f, name)  # refuses an f that cannot tell them
    offered = not needs.hessian or problem.f.has_hessian
    require(
        offered,
        f"{name} needs Hessian products of f, which {problem.f} does not offer: a Linear of a loss with two "
        "derivatives does",
    )
    device = str(problem.f.weights.device)
    double = not needs.hessian or with_double(device) == device
    require(double, f"{name} computes its server's step in float64, and device = {device!r} has none")
    if needs.everyone or topology is not None:
        all_take_part = isinstance(participation, Full)
        alone = "" if topology is None or isinstance(algorithm, Graph) else " along a tree"
        who = type(participation).__name__
        can = needs.everyone and topology is None and hasattr(algorithm, "partial")
        instead = "; with partial = True clients may be absent" if can else ""
        require(all_take_part, f"{name} needs every client in every round{alone}, not {who}{instead}")
    for compressor in [algorithm.compressor] if isinstance(algorithm, CompressedDownlink) else compressors(algorithm):
        _check_compressor(name, needs, compressor, problem.f.d)


def _check_kinds(problem: object, algorithm: object, topology: object, participation: object) -> None:
    """Refuse arguments of the wrong type, such as a name or a class, and say which objects are allowed."""
    kinds: tuple[tuple[str, object, Any, str], ...] = (
        ("problem", problem, Problem, "an object such as Linear(data, Logistic()) + L1(0.1)"),
        ("algorithm", algorithm, (Star, Graph), "an object such as FedAvg(eta=0.1, K=5), a Star or a Graph"),
        ("topology", topology, (Topology, type(None)), "an object such as Ring(10), or None"),
        ("participation", participation, Participation, "an object such as Full() or UniformSampling(10)"),
    )
    for what, given, kind, allowed in kinds:
        of_kind(what, given, kind, allowed)


def compressors(algorithm: Algorithm) -> list[Compressor]:
    """All compressors among its hyper-parameters, including those of a nested algorithm."""
    names: list[str] = [f.name for f in fields(algorithm)] if is_dataclass(algorithm) else []
    own = [value for name in names if isinstance(value := getattr(algorithm, name), Compressor)]
    return [*compressors(algorithm.star), *own] if isinstance(algorithm, CompressedDownlink) else own


def _check_graph(name: str, needs: Needs, topology: Topology) -> None:
    require(not needs.fixed_graph or topology.period == 1, f"{name} needs the same graph in every round")
    require(
        not needs.doubly_stochastic or topology.doubly_stochastic,
        f"{name} needs a W whose columns sum to one, or it loses the mean that it tracks; {topology} has no such W",
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
    step, rho = (
        algorithm.example.largest_prox_step(),
        h.weak_convexity,
    )  # called for every h, so that a missing largest_prox_step is reported
    if rho == 0:
        return
    require(not algorithm.needs.convex, f"{name} needs a convex regulariser, which {kind} is not")
    require(
        not isinf(step), f"{name} takes prox steps that grow without bound, but {kind} allows only steps < {1 / rho:g}"
    )
    require(step * rho < 1, f"{name} takes prox steps up to {step:g}, but {kind} allows only steps < {1 / rho:g}")


# ---- clipped messages with noise -------------------------------------------------------------------------------------


def why_not_private(algorithm: Algorithm, d: int) -> str:
    """Why its messages cannot be clipped and made noisy, as a sentence that continues its name; '' if they can."""
    if isinstance(algorithm, Graph):
        return "has no server, and noise in the messages that clients average would stay in their states"
    if why := why_not_dense(algorithm, "noise fills every number"):
        return why
    if epochs_of(algorithm) is not None:
        return "takes epochs: how often a client takes a prox step would tell how many rows it has; give a number"
    if algorithm.sends().numbers_up:
        return "sends a single number beside its vectors, which noise of their size would drown"
    if keeps_a_state(algorithm, d) and type(algorithm).after is Star.after:
        return (
            "has clients whose state must agree with the messages that the server received: clipping and noise would "
            "make the two differ for good; clients of fedavg, fedprox, feddualavg and others keep no state, and the "
            "states of scaffold, fedcomposite, fedcanon and feddyn follow from their messages"
        )
    return ""


def why_not_dense(algorithm: Star[Any, Any], because: str) -> str:
    """Why its messages cannot travel uncompressed and summed, in the same way; '' if they can."""
    if algorithm.sends().rows_apart:
        return "has a server that reads messages one by one, so that protected sums are not enough"
    squeezed = "up" in algorithm.sends().compressed
    if squeezed and not all(isinstance(c, Identity) for c in compressors(algorithm)):
        return f"compresses what clients send, and {because}: nothing would be saved; take the compressor 'identity'"
    return ""


def keeps_a_state(algorithm: Star[Any, Any], d: int) -> bool:
    """Whether its clients keep a state from round to round."""
    own, _ = algorithm.example.init(torch.zeros(d, dtype=torch.float64), NoRows(0, range(1), 0), Zero())
    return bool(flatten(own, "own"))
