"""f_i of a block of clients with a network in a round: minibatches, gradients and values, as rows.

Consecutive clients with equally many samples are processed together, in groups of the engine's preferred size, and the
groups are divided among the cores. Neither changes a client's result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from math import prod
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from proxfed import keyed_random
from proxfed.keyed_random import Ids, Key
from proxfed.machine import map_parallel
from proxfed.problems.neural.minibatches import Epochs, cuts
from proxfed.types import Local

if TYPE_CHECKING:
    from proxfed.problems.neural.neural import Neural

CHUNK = 256
"""Samples per chunk of a pass over all data of a client; batch norm normalises each chunk by itself."""

AHEAD = 1 << 20
"""Numbers of minibatches fetched in advance at a time."""


class Engine(Protocol):
    """Computes gradients of g clients; x and out are (g, d), A has their g * m samples, b is (g, m)."""

    @property
    def together(self) -> int:
        """The largest useful g."""

    def gradient(
        self, x: Tensor, A: Tensor, b: Tensor, out: Tensor, alpha: float, add: bool, key: Key | None = None
    ) -> None:
        """out <- alpha times the gradient of each client's mean loss, or add it to `out`.

        key: (g,), of the random numbers in `forward`; None: none are drawn.
        """

    def descend(self, y: Tensor, batches: Iterable[tuple[Tensor, Tensor, Key | None]], eta: float, keep: float) -> None:
        """y <- keep y - eta times the gradient of each client's mean loss, for every A, b, key of the batches."""

    def scores(self, x: Tensor, A: Tensor) -> Tensor:
        """(g, outputs, m), without dropout"""


@dataclass(frozen=True, eq=False)
class Clients(Local):
    """The clients `ids` in round t."""

    problem: Neural
    t: int
    ids: Ids
    seed: int

    @cached_property
    def _augment_key(self) -> Key:
        return keyed_random.keys(self.seed, "augment", self.problem.numbered(self.ids), self.t)

    @cached_property
    def _forward_key(self) -> Key | None:
        """The key of random numbers in `forward` in this round; None: it draws none."""
        draws = self.problem.net.draws
        return keyed_random.keys(self.seed, "forward", self.problem.numbered(self.ids), self.t) if draws else None

    def _forward_keys(self, draw: int) -> Key | None:
        return None if self._forward_key is None else keyed_random.fold(self._forward_key, draw)

    @cached_property
    def _first(self) -> np.ndarray:
        """(c,): the index of each client's first sample."""
        return self.problem.offsets[np.asarray(self.ids, np.int64)]

    @cached_property
    def _sizes(self) -> np.ndarray:
        return self.problem.sizes[np.asarray(self.ids, np.int64)]

    @cached_property
    def _epochs(self) -> Epochs:
        p = self.problem
        key = keyed_random.keys(self.seed, "minibatch", p.numbered(self.ids), self.t)
        return Epochs(key, self._first, self._sizes, p.batch or 1, p.net.alone)

    def grad(self, x: Tensor, draw: int) -> Tensor:
        p = self.problem
        if p.batch is None:
            return self._gradient(x, self._everything(), CHUNK, p.clip, None, self._forward_keys(draw))
        key = None if p.augment is None else keyed_random.fold(self._augment_key, draw)
        chunk = p.batch + 1  # in one chunk, even if a single last sample has joined the batch
        return self._gradient(x, self._epochs(draw), chunk, p.clip, key, self._forward_keys(draw))

    def descend(self, y: Tensor, draws: range, eta: float) -> None:
        p = self.problem
        if p.batch is None or p.clip is not None:
            super().descend(y, draws, eta)
            return

        def work(part: slice) -> None:
            p.net.engine.descend(y[part], self._batches(part, alike), eta, 1 - eta * p.l2)

        for lengths, run in groupby(draws, self._epochs.lengths):
            alike = list(run)
            self._work(work, lengths)

    def _batches(self, part: slice, alike: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Key | None]]:
        """The minibatches of those draws in which all clients of this part have equally many samples."""
        p, clients = self.problem, range(part.start, part.stop)
        m = len(self._epochs.minibatch(part.start, alike[0]))
        one = len(clients) * m
        ahead = max(1, AHEAD // (one * prod(p.shape))) if p.augment is None else 1
        for k in range(0, len(alike), ahead):
            rows = np.stack([self._epochs.minibatch(i, draw) for draw in alike[k : k + ahead] for i in clients])
            key = None if p.augment is None else keyed_random.fold(self._augment_key[part], alike[k])
            A, b = p.samples(rows, key)
            keys = [self._forward_keys(draw) for draw in alike[k : k + ahead]]
            mine = [None if key is None else keyed_random.fold(key[part], 0) for key in keys]
            yield from zip(A.split(one), b.split(len(clients)), mine, strict=True)

    def full_grad(self, x: Tensor) -> Tensor:
        return self._gradient(x, self._everything(), CHUNK)

    def value(self, x: Tensor) -> Tensor:
        p = self.problem
        x, out = self._rows(x), torch.empty(len(self.ids), dtype=p.dtype, device=p.device)

        def work(part: slice) -> None:
            index = np.stack(rows[part])
            losses = []
            for span in cuts(index.shape[1], CHUNK, p.net.alone):
                A, b = p.samples(index[:, span])
                losses.append(p.criterion.value(p.net.engine.scores(x[part], A), b))
            out[part] = torch.cat(losses, -1).mean(-1)

        rows = self._everything()
        self._work(work, [len(r) for r in rows])
        return out + p.l2 / 2 * x.square().sum(-1)

    def _everything(self) -> list[np.ndarray]:
        """The rows of all samples of each client."""
        return [np.arange(first, first + m) for first, m in zip(self._first, self._sizes, strict=True)]

    def _gradient(
        self,
        x: Tensor,
        rows: list[np.ndarray],
        chunk: int,
        clip: float | None = None,
        key: Key | None = None,
        forward: Key | None = None,
    ) -> Tensor:
        """Gradients (c, d) over each client's samples `rows`, at most `chunk` at a time.

        key, forward: (c,), the keys of data augmentation and of the network's random numbers.
        """
        p = self.problem
        x, out = self._rows(x), torch.empty(len(self.ids), p.d, dtype=p.dtype, device=p.device)

        def work(part: slice) -> None:
            here, g, index = x[part], out[part], np.stack(rows[part])
            for k, span in enumerate(cuts(index.shape[1], chunk, p.net.alone)):
                A, b = p.samples(index[:, span], None if key is None else key[part])
                drawn = None if forward is None else keyed_random.fold(forward[part], k)
                share = (span.stop - span.start) / index.shape[1]
                p.net.engine.gradient(here, A, b, g, share, span.start > 0, drawn)
            if clip is not None:
                g.mul_((clip / g.norm(dim=-1, keepdim=True)).clamp_max(1))
            if p.l2:
                g.add_(here, alpha=p.l2)

        self._work(work, [len(r) for r in rows])
        return out

    def _rows(self, x: Tensor) -> Tensor:
        x = self.spread(x)
        return x if x.stride(-1) == 1 else x.contiguous()

    def _work(self, work: Callable[[slice], None], lengths: list[int]) -> None:
        """Call work(part) for runs of clients with equally many samples, of the engine's preferred size."""
        p = self.problem
        parts = _equal_runs(lengths, p.net.engine.together)
        if p.net.engine.together < len(lengths) and torch.device(p.device).type == "cpu":
            map_parallel(work, parts)
        else:
            for part in parts:
                work(part)


def _equal_runs(lengths: list[int], longest: int) -> list[slice]:
    """Runs of equal consecutive entries, at most `longest` each, of nearly even size."""
    parts, start = [], 0
    for _, run in groupby(lengths):
        count = len(list(run))
        pieces = -(-count // longest)
        edges = [start + count * k // pieces for k in range(pieces + 1)]
        parts += [slice(a, b) for a, b in pairwise(edges)]
        start += count
    return parts
