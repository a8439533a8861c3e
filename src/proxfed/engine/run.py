"""The loops, star, tree and graph: the whole story of a run in one place.

Round 0 is the start; rounds 1, 2, ... communicate once each. Nothing here knows the algorithm's equations or the place
where clients live.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from math import ceil, sqrt
from threading import Lock
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.halves import Clients, Server, Work
from proxfed.engine.lockstep import in_lockstep
from proxfed.engine.measures import Measures
from proxfed.engine.messages import Traffic, WeightedSum, dense, leaves, rebuild, received
from proxfed.engine.network import Network
from proxfed.engine.state_measures import rows_by_name
from proxfed.engine.states import MET, PIECE, ClientRows, flatten, named, put, restore, room, take, writable
from proxfed.engine.tree import to_the_root
from proxfed.keyed_random import Ids, keys
from proxfed.machine import over_threads
from proxfed.participation import Full, attendance
from proxfed.topologies import SpanningTree
from proxfed.types import (
    Algorithm,
    Graph,
    Message,
    Mix,
    Packed,
    Participation,
    Problem,
    Relay,
    Star,
    Topology,
)

COUNTERS = ("gradients", "proxes", "bytes_up", "bytes_down", "bytes_edge", "bytes_best")

FAR = 1e15
"""A model whose norm reaches this is taken to diverge."""


class StarState(NamedTuple):
    clients: Any  # rows of the clients that live here
    server: Any  # the same in every process


class Held(NamedTuple):
    """A star's state as it is kept."""

    rows: ClientRows
    server: Any


@dataclass
class Run:
    """One algorithm on one problem: call `round` for t = 1, 2, ...; `held` is all that a resumed run needs."""

    problem: Problem
    algorithm: Algorithm
    network: Network
    participation: Participation = Full()
    seed: int = 0
    work: Work = field(default_factory=Work)
    seconds: float = 0.0
    """Spent in rounds; the clock stops while we measure."""

    def __post_init__(self) -> None:
        alg = self.algorithm
        self.clients = Clients(self.problem, alg, self.seed)
        self.x0 = self.clients.x0
        self.held: Any = self._begin_star(alg) if isinstance(alg, Star) else self._begin_graph(alg)
        """Of a star; else the states of the peers."""

    def _server(self, alg: Star[Any, Any]) -> Server:
        return Server(alg, self.clients.h, self.problem.weights, self.seed)

    def _begin_star(self, alg: Star[Any, Any]) -> Held:
        """What the server begins with does not depend on the clients. Where all take part, or all hear what the server
        sends, all are met at the start.
        """
        net, everyone = self.network, isinstance(self.participation, Full) or alg.requires().all_hear
        one, server = self.clients.begin(alg, net.ids[:1], Work())
        rows = ClientRows(net.ids, one, lambda ids, work: self.clients.begin(alg, ids, work)[0], everyone)
        for ids in self.blocks(range(net.n)) if everyone else ():
            rows.put(ids, self.clients.begin(alg, ids, self.work)[0])
        return Held(rows, server)

    def _begin_graph(self, alg: Graph[Any]) -> Any:
        net, state = self.network, None

        def begin_block(ids: Ids, work: Work, mix: Mix) -> None:
            nonlocal state
            new = self.clients.begin_peers(alg, ids, work, mix)
            with lock:
                state = room(new, len(net.ids)) if state is None else state
            put(state, net.rows(ids), new)

        lock = Lock()
        self._in_blocks(begin_block, 0)
        return state

    def _in_blocks(self, work_on: Callable[[Ids, Work, Mix], None], t: int) -> None:
        """One call for each block of peers; they meet at `mix`."""
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

    def blocks(self, cohort: Ids) -> list[Ids]:
        """The clients of the cohort that live here, as many at a time as suits this problem."""
        return self.network.blocks(cohort, self.problem.gradient_size)

    def round(self, t: int) -> None:
        start = time.perf_counter()
        alg = self.algorithm
        if isinstance(alg, Graph):
            self.held = self._graph(alg, t)
        else:
            tree = self.network.topology
            self.held = self._star(alg, t) if tree is None else self._tree(alg, t, tree)
        self.seconds += time.perf_counter() - start

    def _star(self, alg: Star[Any, Any], t: int) -> Held:
        net, half, (rows, state) = self.network, self._server(alg), self.held
        taking_part, heard, go_on = attendance(self.participation, t, net.n, self.seed)
        if len(taking_part) == 0:
            return Held(rows, state)
        state, message = half.down(state, t)
        blocks, down = self.blocks(taking_part), received(message)
        all_hear = alg.requires().all_hear
        net.send(message, len(net.ids) if all_hear else sum(len(ids) for ids in blocks))
        if not rows.everyone:
            for ids in blocks:
                rows.meet(ids)

        def client_rounds(blocks: Sequence[Ids]) -> tuple[WeightedSum, Work]:
            """The clients of one thread, block after block: the sum of their messages, and their work."""
            sent, work = WeightedSum(net.posting), Work()
            for ids in blocks:
                new, up = self.clients.answer(alg, rows.take(ids, work), down, t, ids, work)
                half.add(sent, up, ids, None if heard is taking_part else np.isin(ids, heard))
                if go_on is not taking_part:  # who was lost keeps its old state
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
        if len(heard) == 0:
            return Held(rows, state)
        return Held(rows, half.update(state, up, heard, self.work, int(net.leader)))

    def _tree(self, alg: Star[Any, Any], t: int, topology: Topology) -> Held:
        """A round along a tree: the server's message goes down every edge, and sums of messages come up."""
        net, half, (rows, state) = self.network, self._server(alg), self.held
        assert isinstance(topology, SpanningTree)
        tree, everyone = topology.rooted, self.blocks(range(net.n))
        state, message = half.down(state, t)
        down, root = received(message), int(tree.levels[0][0])
        net.send(message, len(net.ids) - (root in net.ids))  # the server is where the root is
        scale = net.n * half.weights[net.ids.start : net.ids.stop, None]

        def client_rounds(blocks: Sequence[Ids]) -> tuple[list[Message], Work]:
            sent, work = [], Work()
            for ids in blocks:
                new, up = self.clients.client(alg, rows.take(ids, work), down, t, ids, work)
                sent.append(rebuild(up, iter([scale[net.rows(ids)] * dense(m) for m in leaves(up)])))
                rows.put(ids, new)
            return sent, work

        parts, works = zip(*over_threads(client_rounds, everyone), strict=True)
        self.work.add(*works)
        messages = [m for part in parts for m in part]
        own = [torch.cat(rows) for rows in zip(*map(leaves, messages), strict=True)]

        def pass_on(nodes: Ids, below: list[Tensor], at_root: bool) -> list[Tensor | Packed]:
            at = net.rows(nodes)
            if isinstance(alg, Relay):
                key = None if at_root else keys(self.seed, "message", nodes, t)
                new, up = alg.relay(rows.take(nodes, self.work), own[0][at], below[0], key)
                rows.put(nodes, new)
            else:
                up = tuple(mine[at] + theirs for mine, theirs in zip(own, below, strict=True))
            if not at_root:
                net.pass_on(up)
            return leaves(up)

        totals = to_the_root(net, tree, own, pass_on)
        up = rebuild(messages[0], iter([total / net.n for total in totals]))
        return Held(rows, half.update(state, up, range(net.n), self.work, int(net.leader)))

    def _graph(self, alg: Graph[Any], t: int) -> Any:
        net, half = self.network, self.clients
        if len(self.blocks(range(net.n))) == 1:
            between = half.before_mix(alg, self.held, t, net.ids, self.work)
            return half.step(alg, between, t, net.ids, self.work, lambda x: net.mix(x, t))
        state = writable(self.held)

        def step_block(ids: Ids, work: Work, mix: Mix) -> None:
            rows = net.rows(ids)
            put(state, rows, half.before_mix(alg, take(state, rows), t, ids, work))  # a block that waits holds little
            put(state, rows, half.step(alg, take(state, rows), t, ids, work, mix))

        self._in_blocks(step_block, t)
        return state

    @property
    def state(self) -> Any:
        """To look at: the states of all clients that live here, also of those who have not taken part, and the
        server's; or those of the peers.
        """
        return StarState(self.held.rows.all(), self.held.server) if isinstance(self.algorithm, Star) else self.held

    @state.setter
    def state(self, new: Any) -> None:
        if isinstance(self.algorithm, Star):
            self.held.rows.load(self.network.ids, new.clients)
            self.held = self.held._replace(server=new.server)
        else:
            self.held = new

    def model(self) -> Tensor:
        """The point that is evaluated and kept."""
        if isinstance(self.algorithm, Star):
            return self.algorithm.model(self.held.server, self.problem.h)
        return self.algorithm.model(self.held, self.problem.h, self.network.average)

    def fields(self, asked: Collection[str] | None = None) -> dict[str, Tensor]:
        """Rows of the clients' states by name, and what the algorithm shows besides: all, or those asked for.

        On a graph x is always there. With a server, rows are those of all clients, also of those who have not taken
        part, so that nothing is computed unless it is asked for.
        """
        alg, star = self.algorithm, isinstance(self.algorithm, Star)
        wanted = asked if asked is None or star else {"x", *asked}
        if wanted is not None and not wanted:
            return {}
        rows = rows_by_name(alg, *self.state) if star else rows_by_name(alg, self.held)
        return {name: x for name, x in rows.items() if wanted is None or name in wanted}

    def fork(self, algorithm: Algorithm) -> Run:
        """Another run, which goes on from the same state with this algorithm, or with the same that has other steps."""
        other, was, to = copy.copy(self), self.algorithm, cast(Any, algorithm)
        other.algorithm = algorithm
        if isinstance(was, Graph):
            peers = self.held if to == was else was.carried(self.held, to)
            other.held = restore(peers, flatten(peers))
            return other
        rows, server = self.held

        def carried(own: Any) -> tuple[Any, Any]:
            return (own, server) if to == was else was.carried(own, server, self.clients.h, to)

        _, shared = carried(rows.form)
        other.held = Held(rows.copy(lambda own: carried(own)[0]), restore(shared, flatten(shared)))
        return other

    def dump(self, clients: bool = True) -> dict[str, Tensor]:
        """The state of all clients and of the server, at the leader, as named tensors; or of the server alone."""
        server = flatten(self._parts()[1], "server")
        if not clients:
            return server
        everyone = self.state.clients if isinstance(self.algorithm, Star) else self.state
        return {name: self.network.gather(x) for name, x in flatten(everyone, "clients").items()} | server

    def changes(self) -> Iterator[dict[str, Tensor]] | None:
        """What has changed of the clients' states since this was last asked, at the leader, a piece at a time: under
        `MET` the clients, ascending, and their rows by name. None: all of them change in every round.
        """
        return None if not isinstance(self.algorithm, Star) or self.held.rows.everyone else self._changed_rows()

    def _changed_rows(self) -> Iterator[dict[str, Tensor]]:
        net, rows = self.network, self.held.rows
        who, step = rows.changed(), max(1, PIECE // max(1, rows.row_bytes))
        for k in range(net.most(ceil(len(who) / step))):
            ids = who[k * step : (k + 1) * step]
            named = flatten(rows.take(ids, Work()), "clients")
            yield {MET: net.gather(torch.from_numpy(ids))} | {name: net.gather(x) for name, x in named.items()}
        rows.settle()

    def names(self) -> list[str]:
        """Of the tensors in a dump."""
        form, server = self._parts()
        return [*flatten(form, "clients"), *flatten(server, "server")]

    def load(self, tensors: dict[str, Tensor] | None, counters: dict[str, float]) -> None:
        """Go on from a dump, or from a dump of the server and the rows of those who were met. Only the leader needs to
        have it, with the counters of the whole network.
        """
        net, (form, server) = self.network, self._parts()
        known = None if tensors is None else tensors.get(MET, torch.arange(net.n))
        counts = net.counts(known)
        ids = net.scatter(known, torch.empty(0, dtype=torch.int64), counts)
        parts = {
            name: net.scatter(None if tensors is None else tensors[name] if sum(counts) else x, x, counts)
            for name, x in flatten(form, "clients").items()
        }
        shared = {
            name: net.from_leader(x if tensors is None else tensors[name])
            for name, x in flatten(server, "server").items()
        }
        if isinstance(self.algorithm, Star):
            self.held.rows.load(ids.numpy(), named(form, parts, "clients"))
            self.held = self.held._replace(server=restore(server, shared, "server"))
        else:
            self.held = restore(form, parts, "clients")
        count_from(counters, self.work, net)
        self.seconds = counters["wall_seconds"]

    def _parts(self) -> tuple[Any, Any]:
        """The clients' states, or of a star what they look like; and the server's."""
        return (self.held.rows.form, self.held.server) if isinstance(self.algorithm, Star) else (self.held, ())

    def counters(self) -> dict[str, int]:
        return counted_so_far(self.work, self.network)


def counted_so_far(work: Work, network: Network) -> dict[str, int]:
    """Work and bytes of the whole network."""
    here = [work.gradients, work.proxes, *astuple(network.traffic)]
    return dict(zip(COUNTERS, network.total(here), strict=True))


def count_from(counters: Mapping[str, float], work: Work, network: Network) -> None:
    """Go on counting from these, which only the leader needs to have."""
    counts = [int(counters[name]) if network.leader else 0 for name in COUNTERS]
    work.gradients, work.proxes = counts[:2]
    network.traffic = Traffic(*counts[2:])


Row = dict[str, Any]


class Step(NamedTuple):
    """What there is after a round."""

    t: int
    row: Row | None = None
    """The measures, where they are due."""
    x: Tensor | None = None
    """The model that they are of."""
    diverged: str = ""
    """In one sentence, if the run has left for infinity; it is then over."""


class Running(Protocol):
    """A run, or a race of runs (race.py)."""

    x0: Tensor
    seconds: float

    def round(self, t: int) -> None: ...
    def model(self) -> Tensor: ...
    def fields(self, asked: Collection[str] | None = None) -> dict[str, Tensor]: ...
    def counters(self) -> dict[str, int]: ...


def rounds(run: Running, measures: Measures, done: int, last: int, every: int) -> Iterator[Step]:
    """Go on after round `done` (-1: before the start) to round `last`; one step after each round."""
    if done < 0:
        yield Step(0, _row(run, 0, run.x0, measures), run.x0)
    for t in range(max(done, 0) + 1, last + 1):
        run.round(t)
        if t % every and t != last:
            yield Step(t)
            continue
        x = run.model()
        row = _row(run, t, x, measures)
        size, apart = float(x.norm()), sqrt(row.get("consensus", 0.0))  # clients' errors may cancel in the mean
        if not (size < FAR and apart < FAR):
            where = f"the clients are {apart:g} from their mean" if size < FAR else f"the model has norm {size:g}"
            yield Step(t, row, x, f"diverged: {where} in round {t}; try smaller steps")
            return
        yield Step(t, row, x)


def _row(run: Running, t: int, x: Tensor, measures: Measures) -> Row:
    return {"round": t, "wall_seconds": run.seconds} | run.counters() | measures(x, run.fields(measures.fields))
