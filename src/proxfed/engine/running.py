"""The interface of every run: clients with a server, along a tree or on a graph, a race of several steps, or a
coordinator with remote clients. The loop over rounds (loop.py), checkpoints and remarks use nothing else.
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
    """Wall time in rounds; the clock stops during evaluation."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm with its present steps."""

    @property
    def network(self) -> Network: ...

    @property
    def state(self) -> Any:
        """For inspection: the states of clients and server, as far as they are in this process."""

    def begin(self) -> None:
        """Round 0, unless it is done. Local clients are ready when the run is made; sites are contacted now."""

    def round(self, t: int) -> None:
        """Round t, which communicates once."""

    def model(self) -> Tensor:
        """The point that is evaluated and saved, (d,)."""

    def fields(self, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """Rows of the clients' states by name, as the network averages them: these names, or all."""

    def counters(self) -> dict[str, float]:
        """Work and bytes of the whole network so far."""

    def dump(self, clients: bool = True) -> dict[str, Tensor]:
        """All that a resumed run needs, as named tensors at the leader; with the clients' states if `clients`."""

    def changes(self) -> Iterator[dict[str, Tensor]] | None:
        """The clients' states that changed since the last call, at the leader, a piece at a time: under `MET` the
        clients, ascending, and their rows by name. None: they are in the dump.
        """

    def load(self, tensors: dict[str, Tensor] | None, counters: Mapping[str, float]) -> None:
        """Resume from a dump, or from one without clients plus the rows of the clients met so far. Only the leader
        needs it, with the counters of the whole network.
        """

    def found(self) -> dict[str, float]:
        """The steps that it has found, by name; empty if all were given."""

    def sent(self) -> tuple[int, int]:
        """(bytes so far, bytes of a run without steps to find), over all processes."""

    def variates(self) -> Tensor | None:
        """The control variates of this process's clients, as rows; None if there are none."""


def counted_so_far(work: Work, network: Network) -> dict[str, float]:
    """Work and bytes of the whole network."""
    here = [work.gradients, work.proxes, *astuple(network.traffic)]
    return dict(zip(COUNTERS, network.total(here), strict=True))


def count_from(counters: Mapping[str, float], work: Work, network: Network) -> None:
    """Resume counting from these counters, which only the leader needs."""
    counts = [int(counters[name]) if network.leader else 0 for name in COUNTERS]
    work.gradients, work.proxes = counts[:2]
    network.traffic = Traffic(*counts[2:])
