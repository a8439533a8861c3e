"""The base of runs whose clients are in this process or in one of its ranks: star.py, tree.py and graph.py.

Round 0 is the start; rounds 1, 2, ... communicate once each. Nothing here depends on the algorithm's equations or on
the processes of the clients.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from proxfed.engine.halves import Clients, Work
from proxfed.engine.network import Network
from proxfed.engine.noise import Noise
from proxfed.engine.running import count_from, counted_so_far
from proxfed.engine.states import MET, flatten
from proxfed.errors import require
from proxfed.keyed_random import Ids
from proxfed.participation import Full
from proxfed.types import Algorithm, Participation, Problem


@dataclass
class Run(ABC):
    """One algorithm on one problem: call `round` for t = 1, 2, ...; `dump` gives all that a resumed run needs."""

    problem: Problem
    algorithm: Algorithm
    network: Network
    participation: Participation = Full()
    seed: int = 0
    work: Work = field(default_factory=Work)
    seconds: float = 0.0
    """Wall time in rounds; the clock stops during evaluation."""
    privacy: Noise | None = None
    """How messages to a server are clipped and made noisy; None: they are not."""

    def __post_init__(self) -> None:
        alg, found = self.algorithm, " and ".join(f"{name} = 'auto'" for name in self.algorithm.to_find)
        require(not found, f"{type(alg).__name__}: {found}: only a `Race` finds steps during a run; give numbers")
        self.clients = Clients(self.problem, alg, self.seed, self.privacy)
        self.x0 = self.clients.x0

    def blocks(self, cohort: Ids) -> list[Ids]:
        """This process's clients of the cohort, in blocks of a size that suits this problem."""
        return self.network.blocks(cohort, self.problem.f.gradient_size)

    def begin(self) -> None:  # noqa: B027
        """Nothing to do: the clients are in this process and ready."""

    def round(self, t: int) -> None:
        start = time.perf_counter()
        self._round(t)
        self.seconds += time.perf_counter() - start

    def dump(self, clients: bool = True) -> dict[str, Tensor]:
        _, server = self._parts()
        rows = flatten(self._everyone(), "clients") if clients else {}
        return {name: self.network.gather(x) for name, x in rows.items()} | flatten(server, "server")

    def changes(self) -> Iterator[dict[str, Tensor]] | None:
        return None

    def names(self) -> list[str]:
        """The names of the tensors in a dump."""
        form, server = self._parts()
        return [*flatten(form, "clients"), *flatten(server, "server")]

    def load(self, tensors: dict[str, Tensor] | None, counters: Mapping[str, float]) -> None:
        net, (form, server) = self.network, self._parts()
        known = None if tensors is None else tensors.get(MET, torch.arange(net.n))
        counts = net.counts(known)
        ids = net.scatter(known, torch.empty(0, dtype=torch.int64), counts)
        rows = {
            name: net.scatter(None if tensors is None else tensors[name] if sum(counts) else x, x, counts)
            for name, x in flatten(form, "clients").items()
        }
        shared = {
            name: net.from_leader(x if tensors is None else tensors[name])
            for name, x in flatten(server, "server").items()
        }
        self._restore(ids, rows, shared)
        count_from(counters, self.work, net)
        self.seconds = counters["wall_seconds"]

    def counters(self) -> dict[str, float]:
        return counted_so_far(self.work, self.network)

    def found(self) -> dict[str, float]:
        return {}

    def sent(self) -> tuple[int, int]:
        return 0, 0

    def variates(self) -> Tensor | None:
        return None

    # ---- what subclasses implement -----------------------------------------------------------------------------

    @abstractmethod
    def _round(self, t: int) -> None: ...

    @property
    @abstractmethod
    def state(self) -> Any: ...

    @state.setter
    @abstractmethod
    def state(self, new: Any) -> None: ...

    @abstractmethod
    def model(self) -> Tensor: ...

    @abstractmethod
    def fields(self, names: Collection[str] | None = None) -> dict[str, Tensor]: ...

    @abstractmethod
    def fork(self, algorithm: Algorithm) -> Self:
        """Another run that continues from the same state with `algorithm`: the same one, perhaps with other steps."""

    @abstractmethod
    def _parts(self) -> tuple[Any, Any]:
        """The form of the clients' states, and the server's state."""

    @abstractmethod
    def _everyone(self) -> Any:
        """The states of all clients of this process."""

    @abstractmethod
    def _restore(self, ids: Tensor, rows: dict[str, Tensor], server: dict[str, Tensor]) -> None:
        """The states of these clients, and the server's, by their names."""
