"""A graph used only in every k-th round, so that the local iterations in between have rows of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from proxfed.errors import at_least_one, require
from proxfed.topologies.checks import check
from proxfed.types import Mixing, Topology


@dataclass(frozen=True)
class Every:
    """Another graph in rounds k, 2k, 3k, ...; no messages are sent in other rounds.

    DEPOSITUM with one iteration per round on this graph has the same iterates as with T0 = k on the graph itself (with
    full gradients bit for bit), and a row for every iteration.
    """

    of: Topology
    """The graph of the communication rounds; it must be fixed."""
    k: int
    """Clients communicate in every k-th round."""
    n: int = 0
    """The number of clients; 0: as many as the graph has."""

    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", self.n or self.of.n)
        require(self.of.n == self.n, f"Every: of has {self.of.n} clients, but n = {self.n!r}")
        require(self.of.period == 1, f"Every: of = {self.of} is not the same graph in every round")
        at_least_one(self, "k")
        check(self.of)

    @property
    def period(self) -> int:
        return self.k

    def W(self, t: int) -> Mixing:
        own = np.arange(self.n)
        return self.of.W(0) if t % self.k == 0 else Mixing(self.n, own, own, np.ones(self.n))

    def spectral_gap(self) -> float:
        """1 - psi^(1/k) for the graph's psi: the mean over k rounds."""
        return float(1 - (1 - self.of.spectral_gap()) ** (1 / self.k))
