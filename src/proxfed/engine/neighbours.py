"""Gossip between processes: each process sends only the rows that the receiver's clients have weights for.

Rows of a compressed message travel as their bytes, once to each process that needs them; other messages travel as
numbers, and if W is the average over all clients, only their sum does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.messages import compressed, decoded, dense, encoded
from proxfed.engine.mixing import is_average, rows_times
from proxfed.types import Mixing, Packed


class Processes(Protocol):
    """The interface that the network must provide."""

    rank: int
    size: int
    ids: range

    def owner(self, clients: np.ndarray) -> np.ndarray:
        """The process of each client."""

    def all_sum(self, x: Tensor) -> Tensor: ...

    def swap(self, out: Mapping[int, Sequence[bytes]], hear: Sequence[int]) -> dict[int, list[bytes]]:
        """Send messages to other processes and return those from the processes in `hear`."""

    def swap_rows(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> None:
        """The same for numbers, whose shape both ends know."""


class Neighbours:
    """W of a round, as applied by one of several processes."""

    def __init__(self, W: Mixing, like: Tensor, net: Processes) -> None:
        self.net, self.n, self.average = net, W.n, is_average(W)
        lo, hi = net.ids.start, net.ids.stop
        owner = net.owner(np.arange(W.n))
        to_me = (W.row >= lo) & (W.row < hi)
        mine = (W.col >= lo) & (W.col < hi)
        others = [q for q in range(net.size) if q != net.rank]
        wanted = {q: np.unique(W.col[to_me & (owner[W.col] == q)]) for q in others}
        offered = {q: np.unique(W.col[mine & (owner[W.row] == q)]) - lo for q in others}
        self.wanted = {q: len(clients) for q, clients in wanted.items() if len(clients)}
        self.offered = {q: rows for q, rows in offered.items() if len(rows)}
        self.needed = np.unique(np.concatenate([*self.offered.values(), np.empty(0, np.int64)]))
        self.outbox: dict[int, bytes] = {}
        if not self.average:
            foreign = np.concatenate([*wanted.values(), np.empty(0, np.int64)])
            own, other = to_me & mine, to_me & ~mine
            column = np.searchsorted(foreign, W.col[other])
            self.near = rows_times(W.row[own] - lo, W.col[own] - lo, W.weight[own], hi - lo, hi - lo, like)
            self.far = rows_times(W.row[other] - lo, column, W.weight[other], hi - lo, len(foreign), like)

    def post(self, message: Tensor | Packed, rows: slice) -> None:
        """Encode the rows that other processes wait for."""
        if compressed(message):
            here = self.needed[(self.needed >= rows.start) & (self.needed < rows.stop)]
            self.outbox |= zip(here.tolist(), encoded(message, here - rows.start), strict=True)

    def mixed(self, message: Tensor | Packed, spare: bool) -> Tensor:
        x = dense(message)
        if self.average and not compressed(message):
            return (self.net.all_sum(x.sum(0)) / self.n).expand(len(x), -1)
        inbox = self._hear(message) if compressed(message) else self._hear_rows(x)
        if self.average:
            return ((x.sum(0) + inbox.sum(0)) / self.n).expand(len(x), -1)
        mixed = self.near(x, spare)
        return mixed.add_(self.far(inbox, False)) if len(inbox) else mixed

    def _hear(self, message: Packed) -> Tensor:
        """The rows needed here, decoded, in the order of their clients."""
        out = {q: [self.outbox[row] for row in rows.tolist()] for q, rows in self.offered.items()}
        self.outbox = {}
        heard = self.net.swap(out, list(self.wanted))
        return decoded([m for q in self.wanted for m in heard[q]], message)

    def _hear_rows(self, x: Tensor) -> Tensor:
        inbox = x.new_empty(sum(self.wanted.values()), x.shape[1])
        into = dict(zip(self.wanted, torch.split(inbox, list(self.wanted.values())), strict=True))
        self.net.swap_rows({q: x[torch.from_numpy(rows)] for q, rows in self.offered.items()}, into)
        return inbox
