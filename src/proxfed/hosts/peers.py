"""A peer's half of an algorithm without a server, for a framework that carries bytes between neighbours.

Rounds run in one thread. At every `mix` the message goes to `exchange`, which sends it to the receivers of this peer
and returns its neighbours' messages. They must have the shape of the peer's own message and finite numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.compatibility import check_combination, compressors
from proxfed.engine.halves import Clients, Work
from proxfed.engine.messages import dense
from proxfed.engine.mixing import Operator
from proxfed.engine.network import mixed_at
from proxfed.errors import RunError, require
from proxfed.hosts.halves import ClientsElsewhere, Sent, check_steps
from proxfed.hosts.training import OneClient, Training
from proxfed.participation import Full
from proxfed.silos.wire.message import pack, unpack
from proxfed.types import Graph, Message, Mix, Problem, Regulariser, Topology


class Mixed(NamedTuple):
    """A message at one `mix`."""

    round: int
    step: int
    """The index of the `mix` within the round."""
    to: list[int]
    """Peers that receive this message."""
    hears: list[int]
    """Peers whose messages this one receives."""
    sent: Sent


Exchange = Callable[[Mixed], Mapping[int, Sent]]
"""Sends a message to its receivers and returns the messages of the senders."""


def check_peers(algorithm: Any, h: Regulariser, topology: Topology, x0: Tensor, n: int) -> None:
    """One sentence if the algorithm does not work for n peers."""
    name = type(algorithm).__name__
    require(isinstance(algorithm, Graph), f"{name} has a server: peers run algorithms on a graph, such as PledgePeers")
    check_steps(algorithm)
    check_combination(Problem(ClientsElsewhere(n, x0), h), algorithm, topology, Full())


class PeerSide:
    """One peer's computation."""

    def __init__(
        self,
        algorithm: Graph[Any],
        h: Regulariser,
        topology: Topology,
        training: Training,
        x0: Tensor,
        number: int,
        seed: int = 0,
    ) -> None:
        require(len(x0) == len(training.x), f"the server has {len(x0)} parameters, and the module {len(training.x)}")
        self.algorithm, self.topology, self.number = algorithm, topology, number
        self.clients = Clients(Problem(OneClient(training), h, x0.to(training.x.device)), algorithm, seed)
        self.codecs, self.d, self.here = compressors(algorithm), len(x0), range(number, number + 1)
        self._mixers: dict[int, Operator] = {}

    def walk(self, rounds: int, exchange: Exchange) -> list[Tensor]:
        """Run all rounds; returns the rows (1, d) whose means over all peers give the model (`model_of`)."""
        alg, half, work, rows = self.algorithm, self.clients, Work(), []
        state = half.begin_peers(alg, self.here, work, self._mix(0, exchange))
        for t in range(1, rounds + 1):
            between = half.before_mix(alg, state, t, self.here, work)
            state = half.step(alg, between, t, self.here, work, self._mix(t, exchange))

        def mean(x: Tensor) -> Tensor:
            rows.append(x)
            return x[0]

        alg.model(state, half.h, mean)
        return rows

    def _mix(self, t: int, exchange: Exchange) -> Mix:
        key = t % self.topology.period if self.topology.period else t
        W, steps, i = self.topology.W(key), count(), self.number
        to = sorted(set(W.row[W.col == i].tolist()) - {i})
        hears = sorted(set(W.col[W.row == i].tolist()) - {i})

        def mix(message: Message) -> Tensor:
            own, k = dense(message), next(steps)
            heard = exchange(Mixed(t, k, to, hears, Sent(*pack(message, self.codecs))))
            X = own.new_zeros(W.n, self.d)
            X[i] = own[0]
            for j in hears:
                X[j] = self._read(j, t, heard[j], own)
            if key not in self._mixers:
                if self.topology.period is None:
                    self._mixers.clear()
                self._mixers[key] = mixed_at(W, self.here, own)
            return self._mixers[key](X, False)

        return mix

    def _read(self, who: int, t: int, sent: Sent, own: Tensor) -> Tensor:
        try:
            found = dense(unpack(*sent, self.codecs, self.d, 1))
        except RunError as e:
            raise RunError(f"round {t}: the message of peer {who} cannot be read: {e}") from e
        if not isinstance(found, Tensor) or (found.shape, found.dtype) != (own.shape, own.dtype):
            name = type(self.algorithm).__name__
            raise RunError(f"round {t}: the message of peer {who} is none of {name} for this model")
        if not bool(found.isfinite().all()):
            raise RunError(f"round {t}: peer {who} sent numbers that are not finite; try smaller steps")
        return found[0].to(own.device)


def model_of(algorithm: Graph[Any], h: Regulariser, x0: Tensor, rows: Sequence[Sequence[np.ndarray]]) -> Tensor:
    """The model (d,) from the rows of all peers."""
    clients = Clients(Problem(ClientsElsewhere(1, x0), h, x0), algorithm)
    nobody = clients.begin_peers(algorithm, range(1), Work(), lambda message: dense(message))
    each = iter(zip(*rows, strict=True))

    def mean(like: Tensor) -> Tensor:
        found = torch.from_numpy(np.stack(next(each)))
        return found.new_full((len(found),), 1 / len(found)) @ found

    return algorithm.model(nobody, clients.h, mean)
