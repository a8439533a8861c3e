"""Rows -> simulated seconds: the time at which the last client has finished the round of each row.

The work between two rows is divided evenly among the clients that participated in the rounds between them. A gradient
is a step; a message takes its latency plus its bytes over its bandwidth. Cohorts and graphs are drawn again from the
same keys, so the seconds of a run can be computed during the run or later.

star    A round ends when the slowest participant has the server's message, has done its steps and has sent its own, and
        the server has made its next message.
graph   A client waits for its neighbours, not for the slowest client. With T_i(t) the time at which client i has
        finished round t, and messages sent when the sender's steps are done,

            T_i(t) = max over j = i and the neighbours j of  T_j(t-1) + steps_j(t) + message_ji(t),      message_ii = 0.

        Each exchange in a round adds a latency, but there is only one wait per round.
tree    The server's message goes from the root to all nodes, level by level. A node sends when its steps are done and
        the messages of all its children have arrived; a round ends when this holds for the root and the server is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from proxfed.participation import cohort
from proxfed.simulate.distributions import Amounts
from proxfed.simulate.timing import Timing, hand_out
from proxfed.topologies import SpanningTree
from proxfed.topologies.spanning_tree import Rooted
from proxfed.types import Algorithm, Graph, Participation, Topology

SPENT = ("gradients", "bytes_up", "bytes_down", "bytes_edge")
Some = np.ndarray | slice
"""Of the clients."""

SECONDS_PER_BYTE = 8e-6
"""Seconds per byte at 1 Mbit/s."""


class RoundTimer(Protocol):
    """The time of a run, round by round."""

    def advance(self, rounds: range, spent: Mapping[str, int]) -> float:
        """The time after these rounds, with their costs."""


class Clock:
    """The time of one algorithm with one seed; call it with each row in turn.

    Parameters
    ----------
    network : RoundTimer
        How long rounds take on the devices and links.
    """

    def __init__(self, network: RoundTimer) -> None:
        self.network, self.round, self.before = network, 0, dict.fromkeys(SPENT, 0)

    def __call__(self, row: Mapping[str, Any]) -> float:
        """Seconds at this row; round 0 is the work before the first round."""
        now = {name: row[name] or 0 for name in SPENT}
        rounds = range(min(self.round + 1, row["round"]), row["round"] + 1)
        spent = {name: now[name] - self.before[name] for name in SPENT}
        self.round, self.before = row["round"], now
        return self.network.advance(rounds, spent)


def clock(
    timing: Timing,
    algorithm: Algorithm,
    participation: Participation,
    topology: Topology | None,
    n: int,
    seed: int,
    own_steps: np.ndarray | None = None,
) -> Clock:
    """The clock of one algorithm with one seed on these devices and links.

    own_steps: (n,) local steps per client if they differ; None: all clients take the same number.
    """
    if isinstance(algorithm, Graph):
        assert topology is not None
        return Clock(_Graph(timing, topology, algorithm.sends().edge, n, seed))
    if isinstance(topology, SpanningTree):
        return Clock(_Tree(timing, topology.rooted, n, seed, algorithm.sends().up, own_steps))
    return Clock(_Star(timing, participation, n, seed, algorithm.sends().up, own_steps))


class _Clients:
    """Steps and links of n clients, drawn for all or some of them at once."""

    def __init__(self, timing: Timing, n: int, seed: int, own_steps: np.ndarray | None = None) -> None:
        clients, links = np.arange(n), timing.links
        self._share = np.ones(n) if own_steps is None else own_steps / own_steps.mean()
        self.n, self.seed, self.scale = n, seed, timing.step_scale
        device, link = hand_out(timing.devices, n, "time.devices"), hand_out(links, n, "time.links")
        self._step = Amounts([d.seconds_per_step for d in timing.devices], clients, "seconds per step", device)
        self._latency = Amounts([l.latency for l in links], clients, "latency", link)
        self._up = Amounts([l.up for l in links], clients, "up", link)
        self._down = Amounts([l.down for l in links], clients, "down", link)

    def visits(self, some: Some = slice(None)) -> float:
        """The total local steps of these clients in a round, relative to a client with the mean number."""
        return float(self._share[some].sum())

    def steps(self, count: float, t: int, some: Some = slice(None)) -> np.ndarray:
        """Seconds of each client for its steps, given the mean number of steps."""
        return count * self._share[some] * self.scale * self._step(self.seed, t, some)

    def links(self, t: int, some: Some = slice(None)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Latency, up and down."""
        return self._latency(self.seed, t, some), self._up(self.seed, t, some), self._down(self.seed, t, some)


class _Server:
    """The server's seconds in a round: a constant, plus a time per vector that clients send and it averages."""

    def __init__(self, timing: Timing, vectors: int) -> None:
        self._round = Amounts([timing.server_seconds], np.arange(1), "server seconds")
        self._vectors = vectors * timing.vector_seconds

    def __call__(self, seed: int, t: int) -> float:
        return float(self._round(seed, t)[0]) + self._vectors if t else 0.0


class _Star:
    """With a server."""

    def __init__(
        self,
        timing: Timing,
        participation: Participation,
        n: int,
        seed: int,
        vectors: int,
        own_steps: np.ndarray | None = None,
    ) -> None:
        self.clients, self.participation, self.now = _Clients(timing, n, seed, own_steps), participation, 0.0
        self.server = _Server(timing, vectors)

    def advance(self, rounds: range, spent: Mapping[str, int]) -> float:
        n, seed = self.clients.n, self.clients.seed
        cohorts = [(t, cohort(self.participation, t, n, seed) if t else range(n)) for t in rounds]
        visits = max(1, sum(len(ids) for _, ids in cohorts))
        some: Some
        chosen = [(t, slice(None) if isinstance(ids, range) else np.asarray(ids)) for t, ids in cohorts if len(ids)]
        steps = spent["gradients"] / (sum(self.clients.visits(some) for _, some in chosen) or 1)
        down, up = (spent[name] / visits for name in ("bytes_down", "bytes_up"))
        for t, some in chosen:  # an empty cohort takes no time
            seconds = self.clients.steps(steps, t, some)
            if down or up:
                latency, faster_up, faster_down = self.clients.links(t, some)
                seconds = seconds + (down > 0) * latency + SECONDS_PER_BYTE * down / faster_down
                seconds += (up > 0) * latency + SECONDS_PER_BYTE * up / faster_up
            self.now += float(seconds.max()) + self.server(seed, t)
        return self.now


class _Lines:
    """Latency and bandwidth between two clients: the slower end's, or those of the edge's own entry."""

    def __init__(self, timing: Timing, clients: _Clients) -> None:
        timing.check_edges(clients.n)
        self.clients = clients
        ends = np.array([sorted(e.between) for e in timing.edges], np.int64).reshape(-1, 2)
        self.names = ends[:, 0] * clients.n + ends[:, 1]
        self.order = np.argsort(self.names)
        self.latency = Amounts([e.latency for e in timing.edges], self.names, "edge latency")
        self.bandwidth = Amounts([e.bandwidth for e in timing.edges], self.names, "edge bandwidth")

    def __call__(self, sender: np.ndarray, receiver: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Seconds and Mbit/s of each of these directed edges in round t."""
        latency, up, down = self.clients.links(t)
        wait = np.maximum(latency[sender], latency[receiver])
        rate = np.minimum(up[sender], down[receiver])
        if len(self.names):
            names = np.minimum(sender, receiver) * self.clients.n + np.maximum(sender, receiver)
            special = np.flatnonzero(np.isin(names, self.names))
            which = self.order[np.searchsorted(self.names[self.order], names[special])]
            wait[special] = self.latency(self.clients.seed, t)[which]
            rate[special] = self.bandwidth(self.clients.seed, t)[which]
        return wait, rate


class _Tree:
    """With a server at the root of a tree."""

    def __init__(
        self, timing: Timing, tree: Rooted, n: int, seed: int, vectors: int, own_steps: np.ndarray | None = None
    ) -> None:
        self.clients, self.tree, self.now = _Clients(timing, n, seed, own_steps), tree, 0.0
        self.lines = _Lines(timing, self.clients)
        self.server = _Server(timing, vectors)

    def advance(self, rounds: range, spent: Mapping[str, int]) -> float:
        n, seed, (parent, levels) = self.clients.n, self.clients.seed, self.tree
        steps = spent["gradients"] / (len(rounds) * n)
        down, up = (spent[name] / max(1, len(rounds) * (n - 1)) for name in ("bytes_down", "bytes_up"))
        root = levels[0][0]
        for t in rounds:
            T = np.full(n, self.now)
            for nodes in levels[1:] if down else ():
                wait, rate = self.lines(parent[nodes], nodes, t)
                T[nodes] = T[parent[nodes]] + wait + SECONDS_PER_BYTE * down / rate
            T += self.clients.steps(steps, t)
            for nodes in reversed(levels[1:]):
                wait, rate = self.lines(nodes, parent[nodes], t)
                np.maximum.at(T, parent[nodes], T[nodes] + ((up > 0) * wait + SECONDS_PER_BYTE * up / rate))
            self.now = float(T[root]) + self.server(seed, t)
        return self.now


class _Edges(NamedTuple):
    """The directed edges of one round's graph, including loops, in the order of their receivers."""

    sender: np.ndarray
    receiver: np.ndarray
    loop: np.ndarray
    start: np.ndarray  # where the edges of each receiver begin

    @property
    def lines(self) -> int:
        return len(self.sender) - int(self.loop.sum())


class _Graph:
    """Between peers."""

    def __init__(self, timing: Timing, topology: Topology, exchanges: int, n: int, seed: int) -> None:
        self.clients, self.topology, self.exchanges = _Clients(timing, n, seed), topology, exchanges
        self.lines = _Lines(timing, self.clients)
        self.T = np.zeros(n)
        self.edges: dict[int, _Edges] = {}

    def advance(self, rounds: range, spent: Mapping[str, int]) -> float:
        steps = spent["gradients"] / (len(rounds) * self.clients.n)
        lines = sum(self._edges(t).lines for t in rounds) if spent["bytes_edge"] else 0
        size = spent["bytes_edge"] / max(1, lines)
        for t in rounds:
            done = self.T + self.clients.steps(steps, t)
            self.T = self._meet(done, size, t) if size else done
        return float(self.T.max())

    def _meet(self, done: np.ndarray, size: float, t: int) -> np.ndarray:
        """The time at which each client has its neighbours' messages, if their steps are done at these times."""
        e = self._edges(t)
        wait, rate = self.lines(e.sender, e.receiver, t)
        travel = self.exchanges * wait + SECONDS_PER_BYTE * size / rate
        travel[e.loop] = 0.0
        return np.maximum(done, np.maximum.reduceat(done[e.sender] + travel, e.start))

    def _edges(self, t: int) -> _Edges:
        key = t % self.topology.period if self.topology.period else t
        if key not in self.edges:
            if self.topology.period is None:
                self.edges.clear()
            n, row, col, _ = self.topology.W(key)
            self.edges[key] = _Edges(col, row, row == col, np.searchsorted(row, np.arange(n)))
        return self.edges[key]
