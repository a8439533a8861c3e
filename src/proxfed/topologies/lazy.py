"""Lazy weights for another topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxfed.errors import require
from proxfed.topologies.mixing import lazy
from proxfed.topologies.spectrum import psi
from proxfed.types import Mixing, Topology


@dataclass(frozen=True)
class Lazy:
    """(I + W)/2 for any periodic topology, which has no negative eigenvalues if W is symmetric. Random groups and
    matchings have none anyway.
    """

    of: Topology
    """The topology."""

    doubly_stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.of.period is not None, f"Lazy: of = {self.of!r} draws its rounds anew, but they must repeat")

    @property
    def n(self) -> int:
        return self.of.n

    @property
    def period(self) -> int:
        return self.of.period or 1

    def W(self, t: int) -> Mixing:
        return lazy(self.of.W(t))

    def spectral_gap(self) -> float:
        """1 - |product of W over a period - J|_2^(1/period)."""
        return 1 - psi(*(self.W(t) for t in range(self.period))) ** (1 / self.period)
