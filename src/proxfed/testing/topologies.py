"""The laws of topologies: properties of W, and its mixing rate."""

from __future__ import annotations

from math import sqrt

import numpy as np

from proxfed.testing import configurable as common
from proxfed.testing.law import DoesNotApply, Law, Report, check_laws, collect, must
from proxfed.topologies import TOPOLOGIES, check, psi
from proxfed.topologies import dense as as_matrix
from proxfed.types import Mixing, Topology

NODES = 8
"""The size of a topology without its own."""

LAWS: list[Law] = []
law = collect(LAWS)


def check_topology(topology: Topology) -> Report:
    """Test all laws for a topology."""
    return check_laws(topology, "topology", LAWS)


def rounds(topology: Topology) -> list[Mixing]:
    """The rounds of a period, or some random ones."""
    return [topology.W(t) for t in range(topology.period or 20)]


@law()
def rows_of_W_average(topology: Topology) -> None:
    """W(t) is over n nodes, has no negative entry, and its rows sum to one."""
    for W in rounds(topology):
        must(W.n == topology.n, f"W has {W.n} nodes, but n is {topology.n}")
        order = np.asarray(W.row) * W.n + np.asarray(W.col)
        must(bool((np.diff(order) > 0).all()), "the entries of W must be sorted by row and column, each once")
        inside = len(order) == 0 or (min(W.row.min(), W.col.min()) >= 0 and max(W.row.max(), W.col.max()) < W.n)
        must(bool(inside), f"an entry of W is outside of 0..{W.n - 1}")
        check(W, columns=False, connected=False)


@law()
def columns_sum_to_one_if_it_says_so(topology: Topology) -> None:
    """If doubly_stochastic, the columns of W sum to one as well, so that mixing keeps the mean."""
    if not topology.doubly_stochastic:
        raise DoesNotApply("it does not say that W is doubly stochastic")
    for W in rounds(topology):
        check(W, columns=True, connected=False)


@law()
def everybody_is_reached(topology: Topology) -> None:
    """Over a period everybody hears from everybody, directly or not; where rounds are drawn, disagreement shrinks."""
    check(topology, columns=False)


@law()
def spectral_gap_is_as_stated(topology: Topology) -> None:
    """1 - |W - J|_2; of a period 1 - |W_k ... W_1 - J|_2^(1/k); of drawn rounds one minus their mean shrinking, of the
    worst direction, which may be all alike."""
    stated = topology.spectral_gap()
    if topology.period is not None:
        found = 1 - psi(*rounds(topology)) ** (1 / topology.period)
        must(abs(found - stated) <= 1e-6, f"spectral_gap() is {stated:.6g}, but W has {found:.6g}")
        return
    worst, mean = _shrinking([topology.W(t) for t in range(400)])
    fits = 1 - sqrt(worst) - 0.05 <= stated <= 1 - sqrt(mean) + 0.05
    shrinks = f"{1 - sqrt(worst):.6g} in the worst direction and {1 - sqrt(mean):.6g} in the mean over all"
    must(fits, f"spectral_gap() is {stated:.6g}, but W has {shrinks}")


def _shrinking(Ws: list[Mixing]) -> tuple[float, float]:
    """The mean of |WX - JWX|^2 / |X - JX|^2 over rounds: of the worst X, and over all X."""
    centre = np.eye(Ws[0].n) - 1 / Ws[0].n
    apart = [centre @ as_matrix(W) @ centre for W in Ws]
    values = np.linalg.eigvalsh(np.mean([A.T @ A for A in apart], axis=0))
    return float(max(values[-1], 0.0)), float(max(values.sum(), 0.0) / max(len(centre) - 1, 1))


@law()
def rounds_repeat(topology: Topology) -> None:
    """W(t) is a function of t alone, and the same again after a period."""
    for t in range(topology.period or 5):
        for later in [t] if topology.period is None else [t, t + topology.period]:
            same = np.array_equal(as_matrix(topology.W(t)), as_matrix(topology.W(later)))
            must(same, f"W({t}) and W({later}) differ, with period = {topology.period}")


@law()
def survives_the_configuration_file(topology: Topology) -> None:
    """The table that describes it in a configuration file builds the same object again."""
    common.survives_the_configuration_file(topology, TOPOLOGIES)


@law()
def is_documented(topology: Topology) -> None:
    """The class has a docstring, and each of its settings a line of its own below it or there."""
    common.is_documented(topology)
