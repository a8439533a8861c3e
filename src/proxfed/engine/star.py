"""A run with a server, which sends a message to the participating clients and averages their replies."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from math import ceil
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.halves import Server, Work
from proxfed.engine.messages import WeightedSum, received
from proxfed.engine.run import Run
from proxfed.engine.state_measures import rows_by_name
from proxfed.engine.states import MET, PIECE, ClientRows, flatten, named, restore, take
from proxfed.keyed_random import Ids
from proxfed.machine import over_threads
from proxfed.participation import Full, attendance
from proxfed.types import Algorithm, Star


class StarState(NamedTuple):
    clients: Any  # rows of this process's clients
    server: Any  # the same in every process


class StarRun(Run):
    """The server's state is the same in every process; `rows` belong to this process's clients."""

    algorithm: Star[Any, Any]

    def __post_init__(self) -> None:
        """The server's initial state does not depend on the clients. If all clients take part, or all receive the
        server's message, all states are created at the start.
        """
        super().__post_init__()
        alg, net = self.algorithm, self.network
        everyone = isinstance(self.participation, Full) or alg.requires().all_hear
        one, self.server = self.clients.begin(alg, net.ids[:1], Work())
        self.rows = ClientRows(net.ids, one, lambda ids, work: self.clients.begin(alg, ids, work)[0], everyone)
        for ids in self.blocks(range(net.n)) if everyone else ():
            self.rows.put(ids, self.clients.begin(alg, ids, self.work)[0])

    @property
    def half(self) -> Server:
        """The server's half of a round."""
        return Server(self.algorithm, self.clients.h, self.problem.f.weights, self.seed)

    def _round(self, t: int) -> None:
        net, alg, half, rows = self.network, self.algorithm, self.half, self.rows
        taking_part, heard, go_on = attendance(self.participation, t, net.n, self.seed)
        if len(taking_part) == 0:
            return
        state, message = half.down(self.server, t)
        blocks, down = self.blocks(taking_part), received(message)
        all_hear = alg.requires().all_hear
        net.send(message, len(net.ids) if all_hear else sum(len(ids) for ids in blocks))
        if not rows.everyone:
            for ids in blocks:
                rows.meet(ids)

        def client_rounds(blocks: Sequence[Ids]) -> tuple[WeightedSum, Work]:
            """The clients of one thread, block by block: the sum of their messages, and their work."""
            sent, work = WeightedSum(net.posting), Work()
            for ids in blocks:
                new, up = self.clients.answer(alg, rows.take(ids, work), down, t, ids, work)
                half.add(sent, up, ids, None if heard is taking_part else np.isin(ids, heard))
                if go_on is not taking_part:  # a client that was lost keeps its old state
                    there = np.flatnonzero(np.isin(ids, go_on))
                    ids, new = np.asarray(ids)[there], take(new, there)
                rows.put(ids, new)  # only now: the message may have been a view of the old state
            return sent, work

        sums, works = zip(*over_threads(client_rounds, blocks), strict=True)
        self.work.add(*works)
        if all_hear:
            for ids in self.blocks(np.setdiff1d(np.arange(net.n), go_on)):
                rows.put(ids, alg.hear(rows.take(ids, self.work), down))
        up = net.mean(sums)
        self.server = half.update(state, up, heard, self.work, int(net.leader)) if len(heard) else state

    @property
    def state(self) -> StarState:
        """For inspection: the states of all clients of this process, including those that have not taken part."""
        return StarState(self.rows.all(), self.server)

    @state.setter
    def state(self, new: StarState) -> None:
        self.rows.load(self.network.ids, new.clients)
        self.server = new.server

    def model(self) -> Tensor:
        return self.algorithm.model(self.server, self.problem.h)

    def fields(self, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """Rows of all clients, including those that have not taken part: computed only on request."""
        if names is not None and not names:
            return {}
        rows = rows_by_name(self.algorithm, *self.state)
        return {name: x for name, x in rows.items() if names is None or name in names}

    def variates(self) -> Tensor | None:
        """None also if states are created as clients first take part."""
        name = self.algorithm.facts.variate
        if not self.rows.everyone or not isinstance(getattr(self.rows.form, name, None), Tensor):
            return None
        return cast(Tensor, getattr(self.rows.all(), name))

    def fork(self, algorithm: Algorithm) -> Self:
        other, was, to = copy.copy(self), self.algorithm, cast(Any, algorithm)
        other.algorithm = to

        def carried(own: Any) -> tuple[Any, Any]:
            return (own, self.server) if to == was else was.carried(own, self.server, self.clients.h, to)

        _, shared = carried(self.rows.form)
        other.rows = self.rows.copy(lambda own: carried(own)[0])
        other.server = restore(shared, flatten(shared))
        return other

    def changes(self) -> Iterator[dict[str, Tensor]] | None:
        return None if self.rows.everyone else self._changed_rows()

    def _changed_rows(self) -> Iterator[dict[str, Tensor]]:
        net, rows = self.network, self.rows
        who, step = rows.changed(), max(1, PIECE // max(1, rows.row_bytes))
        for k in range(net.most(ceil(len(who) / step))):
            ids = who[k * step : (k + 1) * step]
            named = flatten(rows.take(ids, Work()), "clients")
            yield {MET: net.gather(torch.from_numpy(ids))} | {name: net.gather(x) for name, x in named.items()}
        rows.settle()

    def _parts(self) -> tuple[Any, Any]:
        return self.rows.form, self.server

    def _everyone(self) -> Any:
        return self.rows.all()

    def _restore(self, ids: Tensor, rows: dict[str, Tensor], server: dict[str, Tensor]) -> None:
        self.rows.load(ids.numpy(), named(self.rows.form, rows, "clients"))
        self.server = restore(self.server, server, "server")
