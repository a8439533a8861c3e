"""A run without a server: peers that talk to their neighbours at `mix`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from functools import partial
from threading import Lock
from typing import Any, Self, cast

from torch import Tensor

from proxfed.engine.halves import Work
from proxfed.engine.lockstep import in_lockstep
from proxfed.engine.run import Run
from proxfed.engine.state_measures import rows_by_name
from proxfed.engine.states import flatten, put, restore, room, take, writable
from proxfed.keyed_random import Ids
from proxfed.types import Algorithm, Graph, Mix


class GraphRun(Run):
    """`peers` are the states of the clients in this process."""

    algorithm: Graph[Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        net, lock = self.network, Lock()
        self.peers: Any = None

        def begin_block(ids: Ids, work: Work, mix: Mix) -> None:
            new = self.clients.begin_peers(self.algorithm, ids, work, mix)
            with lock:
                self.peers = room(new, len(net.ids)) if self.peers is None else self.peers
            put(self.peers, net.rows(ids), new)

        self._in_blocks(begin_block, 0)

    def _in_blocks(self, work_on: Callable[[Ids, Work, Mix], None], t: int) -> None:
        """One call per block of peers; the blocks wait for each other at `mix`."""
        net = self.network
        blocks = self.blocks(range(net.n))
        works = [Work() for _ in blocks]
        calls = [partial(work_on, ids, work) for ids, work in zip(blocks, works, strict=True)]
        if len(calls) == 1:
            calls[0](lambda x: net.mix(x, t))
        else:
            sizes = [len(ids) for ids in blocks]
            in_lockstep(calls, sizes, lambda x: net.meet(x, t, spare=True), lambda x, rows: net.post(x, rows, t))
        self.work.add(*works)

    def _round(self, t: int) -> None:
        net, alg, half = self.network, self.algorithm, self.clients
        if len(self.blocks(range(net.n))) == 1:
            between = half.before_mix(alg, self.peers, t, net.ids, self.work)
            self.peers = half.step(alg, between, t, net.ids, self.work, lambda x: net.mix(x, t))
            return
        state = writable(self.peers)

        def step_block(ids: Ids, work: Work, mix: Mix) -> None:
            rows = net.rows(ids)
            put(state, rows, half.before_mix(alg, take(state, rows), t, ids, work))  # a block that waits holds little
            put(state, rows, half.step(alg, take(state, rows), t, ids, work, mix))

        self._in_blocks(step_block, t)
        self.peers = state

    @property
    def state(self) -> Any:
        return self.peers

    @state.setter
    def state(self, new: Any) -> None:
        self.peers = new

    def model(self) -> Tensor:
        return self.algorithm.model(self.peers, self.problem.h, self.network.average)

    def fields(self, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """Rows by name; x is always among them."""
        rows = rows_by_name(self.algorithm, self.peers)
        return {name: x for name, x in rows.items() if names is None or name in {"x", *names}}

    def fork(self, algorithm: Algorithm) -> Self:
        other, was, to = copy.copy(self), self.algorithm, cast(Any, algorithm)
        other.algorithm = to
        peers = self.peers if to == was else was.carried(self.peers, to)
        other.peers = restore(peers, flatten(peers))
        return other

    def _parts(self) -> tuple[Any, Any]:
        return self.peers, ()

    def _everyone(self) -> Any:
        return self.peers

    def _restore(self, ids: Tensor, rows: dict[str, Tensor], server: dict[str, Tensor]) -> None:
        self.peers = restore(self.peers, rows, "clients")
