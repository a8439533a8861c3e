"""Topologies: communication graphs as mixing matrices W, fixed or changing with the round t.

Row i of W has the weights of client i, x_i <- sum_j w_ij x_j, so the column is the sender. All matrices except those of
RandomGroups(reading="independent") are doubly stochastic: the average over the clients is preserved, and a round
shrinks the disagreement |X - JX| at least by the factor psi = |W - J|_2, J = 11'/n.

`W(t)` lists the non-zero entries, sorted by row and then by column, so that 100,000 clients on a sparse graph take a
few megabytes; Complete has n^2 entries and is meant for a few thousand clients. Random rounds are a function of the
seed and t alone.

weights, on undirected graphs, is one of
    metropolis   w_ij = 1 / (1 + max(deg_i, deg_j)) on edges, the rest on the diagonal
    lazy         (I + W)/2 of these: no negative eigenvalue
    max_degree   w_ij = 1 / (1 + the largest degree)
"""

from __future__ import annotations

from proxfed.explained import explain
from proxfed.registry import Registry
from proxfed.topologies.checks import check
from proxfed.topologies.custom import FromGraph, FromMatrices, FromMatrix
from proxfed.topologies.every import Every
from proxfed.topologies.lazy import Lazy
from proxfed.topologies.link_failures import LinkFailures
from proxfed.topologies.mixing import dense, lazy
from proxfed.topologies.named import Complete, ExponentialGraph, Grid, Ring, StarGraph, SymmetricExponentialGraph, Torus
from proxfed.topologies.random import ErdosRenyi, RandomRegular
from proxfed.topologies.spanning_tree import SpanningTree
from proxfed.topologies.spectrum import psi
from proxfed.topologies.time_varying import OnePeerExponentialGraph, RandomGroups, RandomMatching
from proxfed.types import Topology

__all__ = [
    "TOPOLOGIES",
    "Complete",
    "ErdosRenyi",
    "Every",
    "ExponentialGraph",
    "FromGraph",
    "FromMatrices",
    "FromMatrix",
    "Grid",
    "Lazy",
    "LinkFailures",
    "OnePeerExponentialGraph",
    "RandomGroups",
    "RandomMatching",
    "RandomRegular",
    "Ring",
    "SpanningTree",
    "StarGraph",
    "SymmetricExponentialGraph",
    "Torus",
    "check",
    "dense",
    "lazy",
    "psi",
]

TOPOLOGIES: Registry[type] = Registry(
    "topologies",
    {
        "complete": Complete,
        "ring": Ring,
        "star": StarGraph,
        "grid": Grid,
        "torus": Torus,
        "exponential": ExponentialGraph,
        "symmetric_exponential": SymmetricExponentialGraph,
        "one_peer_exponential": OnePeerExponentialGraph,
        "random_regular": RandomRegular,
        "erdos_renyi": ErdosRenyi,
        "random_matching": RandomMatching,
        "random_groups": RandomGroups,
        "graph": FromGraph,
        "matrix": FromMatrix,
        "matrices": FromMatrices,
        "link_failures": LinkFailures,
        "every": Every,
        "spanning_tree": SpanningTree,
    },
    of=Topology,
)
"""Topologies by their names in configuration files; all take n, which is optional with a given graph or matrices."""


explain(__name__)
