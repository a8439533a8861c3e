"""From an algorithm to its run."""

from __future__ import annotations

from proxfed.engine.graph import GraphRun
from proxfed.engine.halves import Work
from proxfed.engine.network import Network
from proxfed.engine.noise import Noise
from proxfed.engine.run import Run
from proxfed.engine.star import StarRun
from proxfed.engine.tree import TreeRun
from proxfed.participation import Full
from proxfed.types import Algorithm, Graph, Participation, Problem


def run_of(
    problem: Problem, algorithm: Algorithm, network: Network, participation: Participation = Full(), seed: int = 0,
    work: Work | None = None, privacy: Noise | None = None,
) -> Run:  # fmt: skip
    """A run on a graph, along the network's tree, or with a server that talks to each client."""
    kind = GraphRun if isinstance(algorithm, Graph) else StarRun if network.topology is None else TreeRun
    return kind(problem, algorithm, network, participation, seed, Work() if work is None else work, privacy=privacy)
