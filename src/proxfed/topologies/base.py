"""Base classes of fixed topologies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from proxfed.errors import at_least_one, one_of
from proxfed.topologies.mixing import WEIGHTS, Pairs, weigh
from proxfed.topologies.spectrum import psi
from proxfed.types import Mixing


class FixedTopology(ABC):
    """One W for all rounds."""

    period: ClassVar[int] = 1
    doubly_stochastic: ClassVar[bool] = True

    @property
    @abstractmethod
    def _mixing(self) -> Mixing:
        """This W."""

    def W(self, t: int) -> Mixing:
        return self._mixing

    def spectral_gap(self) -> float:
        """1 - |W - J|_2."""
        return 1 - psi(self._mixing)


@dataclass(frozen=True)
class Undirected(FixedTopology):
    """n clients and a weight rule; subclasses add the edges, and refuse invalid fields there."""

    n: int
    """Clients."""
    weights: str = field(default="metropolis", kw_only=True)
    """The rule: 'metropolis', 'lazy' or 'max_degree'."""

    def __post_init__(self) -> None:
        at_least_one(self, "n")
        one_of(self, "weights", WEIGHTS)
        self.W(0)  # refuses bad fields now instead of in the first round

    @abstractmethod
    def pairs(self) -> Pairs:
        """The edges."""

    @cached_property
    def _mixing(self) -> Mixing:
        return weigh(self.n, self.pairs(), self.weights)
