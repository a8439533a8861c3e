"""A site's part in a run: the computations of its clients, without letters or files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.compatibility import compressors
from proxfed.engine.halves import Clients, Work
from proxfed.engine.messages import dense, nbytes
from proxfed.engine.mixing import edges
from proxfed.engine.network import mixed_at
from proxfed.engine.states import flatten, put, restore, take, writable
from proxfed.keyed_random import Ids
from proxfed.silos.wire.job import Built, Job
from proxfed.types import Graph, Local, Message, Mix, Mixing, Star


class Counts(NamedTuple):
    """A site's work in a round, for the counters of the run."""

    gradients: int = 0
    proxes: int = 0
    sent: int = 0
    """Bytes by the papers' convention."""
    best: int = 0
    """Bytes in the shortest encoding."""


class Answered(NamedTuple):
    """The result of a round of clients with a server."""

    state: Any
    up: Message
    counts: Counts


class Part:
    """The clients `here` of a run."""

    def __init__(self, job: Job, built: Built, here: range, watch: Callable[[Local], Local] = lambda f: f) -> None:
        assert built.algorithm is not None
        self.job, self.here, self.problem, self.topology = job, here, built.problem, built.topology
        self.algorithm = built.algorithm
        self.codecs = compressors(built.algorithm)
        self.clients = Clients(built.problem, built.algorithm, job.seed, watch=watch)
        self._mixers: dict[int, tuple[Mixing, Any]] = {}

    # ---- state -------------------------------------------------------------------------------------------------

    def tensors(self, state: Any) -> dict[str, Tensor]:
        return flatten(state, "clients")

    def state(self, tensors: Mapping[str, Tensor]) -> Any:
        """The clients' states from tensors; their form is taken from a state without clients."""
        return restore(self._form(), dict(tensors), "clients")

    def _form(self) -> Any:
        nobody, alg = range(0), self.algorithm
        if isinstance(alg, Star):
            return self.clients.begin(alg, nobody, Work())[0]
        return self.clients.begin_peers(alg, nobody, Work(), dense)

    # ---- star --------------------------------------------------------------------------------------------------

    def begin(self) -> tuple[Any, Counts]:
        assert isinstance(self.algorithm, Star)
        work = Work()
        state, _ = self.clients.begin(self.algorithm, self.here, work)
        return state, Counts(work.gradients, work.proxes)

    def answer(self, state: Any, down: Message, t: int, ids: list[int]) -> Answered:
        """The round of its clients that take part; the others get the server's message if the algorithm needs it."""
        alg, work = self.algorithm, Work()
        assert isinstance(alg, Star)
        rows = self._rows(ids)
        who: Ids = self.here if ids == list(self.here) else np.array(ids, np.int64)
        state = writable(restore(state, flatten(state)))  # the old one stays unchanged
        up: Message = ()
        if ids:
            new, up = self.clients.answer(alg, take(state, rows), down, t, who, work)
            up = _apart(up)
            put(state, rows, new)
        others = np.setdiff1d(np.array(self.here), who) - self.here.start
        if alg.requires().all_hear and len(others):
            put(state, others, alg.hear(take(state, others), down))
        return Answered(state, up, Counts(work.gradients, work.proxes, *nbytes(up)))

    def _rows(self, ids: list[int]) -> slice | Ids:
        return slice(0, len(ids)) if ids == list(self.here) else np.array(ids, np.int64) - self.here.start

    def of(self, state: Any, ids: list[int]) -> Any:
        """The states of these clients."""
        return take(state, self._rows(ids))

    def after(self, state: Any, before: Any, down: Message, sent: Message, ids: list[int]) -> Any:
        """The states after a round in which these clients sent `sent` instead of their own messages."""
        assert isinstance(self.algorithm, Star)
        new = self.clients.after(self.algorithm, self.of(before, ids), self.of(state, ids), down, sent)
        put(state, self._rows(ids), new)
        return state

    # ---- graph -------------------------------------------------------------------------------------------------

    def step(self, state: Any, t: int, work: Work) -> Callable[[Mix], Any]:
        """The round as a function of `mix`; round 0 is the start."""
        alg = self.algorithm
        assert isinstance(alg, Graph)
        return partial(self._step, alg, state, t, work)

    def _step(self, alg: Graph[Any], state: Any, t: int, work: Work, mix: Mix) -> Any:
        if t == 0:
            return self.clients.begin_peers(alg, self.here, work, mix)
        between = self.clients.before_mix(alg, state, t, self.here, work)
        return self.clients.step(alg, between, t, self.here, work, mix)

    def W(self, t: int) -> Mixing:
        return self._mixer(t)[0]

    def neighbours(self, t: int) -> list[str]:
        """The other sites whose messages this one receives in round t."""
        return neighbours(self.W(t), self.job, self.here)

    def mixed(self, t: int, heard: Mapping[str, Tensor], own: Tensor) -> Tensor:
        """sum_j w_ij x_j, over its own rows and its neighbours'; the same operation as in a local run."""
        W, mixer = self._mixer(t)
        X = own.new_zeros(W.n, own.shape[1])
        X[self.here.start : self.here.stop] = own
        for site, rows in heard.items():
            there = self.job.who.here(site)
            X[there.start : there.stop] = rows
        if mixer is None:
            mixer = mixed_at(W, self.here, own)
            self._mixers[self._key(t)] = W, mixer
        return mixer(X, False)

    def _key(self, t: int) -> int:
        assert self.topology is not None
        return t % self.topology.period if self.topology.period else t

    def _mixer(self, t: int) -> tuple[Mixing, Any]:
        key = self._key(t)
        if key not in self._mixers:
            assert self.topology is not None
            if self.topology.period is None:
                self._mixers.clear()
            self._mixers[key] = self.topology.W(key), None
        return self._mixers[key]

    def sent(self, message: Message, t: int) -> Counts:
        """The bytes of a message to the neighbours: one row per outgoing edge."""
        lines, c = edges(self.W(t), self.here), len(self.here)
        size, best = nbytes(message)
        return Counts(0, 0, lines * size // c, lines * best // c)


def neighbours(W: Mixing, job: Job, here: range) -> list[str]:
    """The sites whose messages the clients `here` receive."""
    hears = np.unique(W.col[(W.row >= here.start) & (W.row < here.stop)])
    return [site for site in job.who.among(hears) if job.who.here(site) != here]


def _apart(up: Message) -> Message:
    """A copy of the message that shares no memory with a state."""
    if isinstance(up, tuple):
        return tuple(map(_apart, up)) if type(up) is tuple else type(up)(*map(_apart, up))
    return up.clone() if isinstance(up, torch.Tensor) else up
