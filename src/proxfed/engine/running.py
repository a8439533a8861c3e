"""What every run is: clients with a server, along a tree or on a graph, a race of several steps, or a coordinator whose
clients live at sites. The loop over rounds (loop.py), checkpoints and remarks know nothing else of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple
from typing import Any, Protocol

from torch import Tensor

from proxfed.engine.halves import Work
from proxfed.engine.messages import Traffic
from proxfed.engine.network import Network
from proxfed.types import Algorithm

COUNTERS = ("gradients", "proxes", "bytes_up", "bytes_down", "bytes_edge", "bytes_best")


class Running(Protocol):
    """One algorithm on one problem: `begin`, then `round` for t = 1, 2, ..."""

    x0: Tensor
    seconds: float
    """Spent in rounds; the clock stops while we measure."""

    @property
    def algorithm(self) -> Algorithm:
        """With the steps that it has now."""

    @property
    def network(self) -> Network: ...

    @property
    def state(self) -> Any:
        """To look at: what clients and server keep, as far as it is here."""

    def begin(self) -> None:
        """Round 0, unless it is over. Clients that live here are ready when the run is made; sites are asked now."""

    def round(self, t: int) -> None:
        """Round t, which communicates once."""

    def model(self) -> Tensor:
        """The point that is evaluated and kept, (d,)."""

    def fields(self, asked: Collection[str] | None = None) -> Mapping[str, Any]:
        """Rows of the clients' states by name, as the network averages them: all, or those asked for."""

    def counters(self) -> dict[str, float]:
        """Work and bytes of the whole network so far."""

    def dump(self, clients: bool = True) -> dict[str, Tensor]:
        """All that a resumed run needs, at the leader, as named tensors; or without the clients' states."""

    def changes(self) -> Iterator[dict[str, Tensor]] | None:
        """What has changed of the clients' states since this was last asked, at the leader, a piece at a time: under
        `MET` the clients, ascending, and their rows by name. None: they are in the dump.
        """

    def load(self, tensors: dict[str, Tensor] | None, counters: Mapping[str, float]) -> None:
        """Resume from a dump, or from one without clients and the rows of those who were met. Only the leader needs to
        have it, with the counters of the whole network.
        """

    def found(self) -> dict[str, float]:
        """The steps that it has found, by name; none where all were given."""

    def sent(self) -> tuple[int, int]:
        """Bytes so far, and those of a run that had no steps to find; of all processes."""

    def variates(self) -> Tensor | None:
        """The control variates of the clients that live here, rows; None where there are none to look at."""


def counted_so_far(work: Work, network: Network) -> dict[str, float]:
    """Work and bytes of the whole network."""
    here = [work.gradients, work.proxes, *astuple(network.traffic)]
    return dict(zip(COUNTERS, network.total(here), strict=True))


def count_from(counters: Mapping[str, float], work: Work, network: Network) -> None:
    """Resume counting from these, which only the leader needs to have."""
    counts = [int(counters[name]) if network.leader else 0 for name in COUNTERS]
    work.gradients, work.proxes = counts[:2]
    network.traffic = Traffic(*counts[2:])
