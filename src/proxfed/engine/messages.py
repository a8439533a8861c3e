"""Messages: reading them, their size in bytes, and their weighted mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from proxfed.compressors import Identity
from proxfed.compressors.arrays import host, tensor
from proxfed.engine import tuning
from proxfed.machine import run_parallel, thread_count
from proxfed.types import Message, Packed, RowsApart, SparseCompressor


@dataclass
class Traffic:
    """Bytes sent over the network so far; `best` counts each message in its shortest encoding."""

    up: int = 0
    down: int = 0
    edge: int = 0
    best: int = 0


def leaves(message: Message) -> list[Tensor | Packed]:
    """The tensors and Packed of a message, from left to right."""
    return [leaf for m in message for leaf in leaves(m)] if isinstance(message, tuple) else [message]


def rebuild(form: Message, parts: Iterator[Tensor | Packed]) -> Message:
    """A message of the given form from its leaves."""
    if not isinstance(form, tuple):
        return next(parts)
    built = [rebuild(m, parts) for m in form]
    return tuple(built) if type(form) is tuple else type(form)(*built)


def dense(part: Tensor | Packed) -> Tensor:
    """The value that the receiver decodes."""
    return part.dense if isinstance(part, Packed) else part


def apart(part: Tensor | Packed) -> TypeGuard[Packed]:
    """Whether the server reads its rows one by one instead of their mean."""
    return isinstance(part, Packed) and isinstance(part.compressor, RowsApart)


def with_rows(part: Tensor | Packed, rows: Tensor) -> Tensor | Packed:
    """These rows, to be read like the rows of `part`: one by one, or as their mean."""
    return replace(part, dense=rows) if apart(part) else rows


def received(down: Message) -> Message:
    """The server's message as clients read it: the single row of a Packed is a shared point (d,)."""
    if isinstance(down, Tensor):
        return down
    return rebuild(down, iter([m.dense[0] if isinstance(m, Packed) else m for m in leaves(down)]))


def nbytes(message: Message) -> tuple[int, int]:
    """(bytes as the papers count them, bytes in the best encoding) of all rows together."""
    sizes = [(m.nbytes, m.best) if isinstance(m, Packed) else (m.nbytes, m.nbytes) for m in leaves(message)]
    return sum(paper for paper, _ in sizes), sum(best for _, best in sizes)


# ---- between processes: the bytes themselves -----------------------------------------------------------------------


def compressed(part: Tensor | Packed) -> TypeGuard[Packed]:
    """Whether it travels between processes as encoded bytes; a message of Identity travels as a tensor."""
    return isinstance(part, Packed) and not isinstance(part.compressor, Identity)


def encoded(packed: Packed, rows: Any = slice(None)) -> list[bytes]:
    """The encoded messages of these rows."""
    parts = {name: part[rows] for name, part in packed.parts.items()}
    return packed.compressor.encode(replace(packed, parts=parts, dense=packed.dense[rows]))


def decoded(messages: Sequence[bytes], like: Packed) -> Tensor:
    """The rows (c, d) of messages of the same compressor."""
    if not messages:
        return like.dense[:0]
    return like.compressor.decode(messages, like.dense.shape[1], like.dense.dtype).to(like.dense.device)


def decoded_sum(messages: Sequence[bytes], w: Tensor, like: Packed) -> Tensor:
    """sum_i w_i m_i, some rows at a time on all cores; the order of summation depends on the messages alone."""
    d = like.dense.shape[1]
    size, threads = max(1, tuning.BLOCK // d), thread_count()
    blocks = [slice(start, start + size) for start in range(0, len(messages), size)]
    total = np.zeros(d, host(like.dense[:0]).dtype)

    def part_sum(rows: slice) -> Tensor:
        return w[rows] @ decoded(messages[rows], like)

    for k in range(0, len(blocks), threads):
        some = blocks[k : k + threads]
        if isinstance(like.compressor, SparseCompressor):
            rows = slice(some[0].start, some[-1].stop)
            index, value = like.compressor.entries(messages[rows], d, like.dense.dtype)
            np.add.at(total, host(index).ravel(), host(w[rows, None].cpu() * value).ravel())
        else:
            for part in run_parallel([partial(part_sum, rows) for rows in some]):
                total += host(part)
    return tensor(total, like.dense)


# ---- the weighted mean ---------------------------------------------------------------------------------------------


@dataclass
class WeightedSum:
    """sum_i w_i m_i for each leaf of the messages so far, sum_i w_i, and the bytes of the messages.

    A leaf whose rows are read one by one is kept as all its rows (w_i, m_i) instead of their sum.

    With `posting`, compressed leaves are not added up here: their bytes are kept and summed where they arrive.
    """

    posting: bool = False
    sums: list[Tensor] = field(default_factory=list)
    """Sums of the leaves that are added up here, and of the weights."""
    posted: list[list[bytes]] = field(default_factory=list)
    """The message of each client, for each other leaf."""
    weights: list[Tensor] = field(default_factory=list)
    """w_i of the clients whose messages are posted."""
    form: Message = None
    nbytes: int = 0
    best: int = 0

    def add(self, message: Message, w: Tensor) -> None:
        """Messages (c, d) of a block with weights (c,)."""
        size, best = nbytes(message)
        posted = [encoded(m) for m in leaves(message) if self.posting and compressed(m)]
        here = [_term(m, w) for m in leaves(message) if not (self.posting and compressed(m))]
        self._add(WeightedSum(self.posting, [*here, w.sum(0, keepdim=True)], posted, [w], message, size, best))

    @classmethod
    def total(cls, parts: Iterable[WeightedSum]) -> WeightedSum:
        """The sum of several."""
        total = cls()
        for part in parts:
            total._add(part)
        return total

    def _add(self, other: WeightedSum) -> None:
        self.sums = list(map(_together, self.sums, other.sums)) if self.sums else other.sums
        self.posted = [a + b for a, b in zip(self.posted, other.posted, strict=True)] if self.posted else other.posted
        self.weights += other.weights
        self.form = other.form
        self.nbytes += other.nbytes
        self.best += other.best

    def letters(self) -> list[bytes]:
        """The bytes to send: the clients' weights, then their messages, leaf by leaf."""
        return [host(torch.cat(self.weights)).tobytes(), *(m for leaf in self.posted for m in leaf)]

    def read(self, letters: Sequence[Sequence[bytes]]) -> tuple[list[Tensor], Tensor]:
        """(the sum of each posted leaf, the sum of the weights), from the letters of all processes in rank order."""
        like = host(self.weights[0])
        parts = [np.frombuffer(first, like.dtype) for first, *_ in letters]
        w, sums = tensor(np.concatenate(parts), self.weights[0]), []
        for k, leaf in enumerate(filter(compressed, leaves(self.form))):
            rows = [slice(1 + k * len(part), 1 + (k + 1) * len(part)) for part in parts]
            messages = [m for own, some in zip(letters, rows, strict=True) for m in own[some]]
            sums.append(_listed(decoded(messages, leaf), w) if apart(leaf) else decoded_sum(messages, w, leaf))
        return sums, w.sum(0, keepdim=True)


def _listed(rows: Tensor, w: Tensor) -> Tensor:
    return torch.cat([w[:, None].to(rows), rows], 1)


def _term(part: Tensor | Packed, w: Tensor) -> Tensor:
    """The weighted sum of the rows, (k,); or, if they are read one by one, all rows with their weights, (c, 1 + k)."""
    return _listed(dense(part), w) if apart(part) else w @ dense(part)


def _together(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b]) if a.ndim == 2 else a.add_(b)


def divided(total: Tensor, weight: Tensor) -> Tensor:
    """The mean from the sum; rows that are read one by one get weights that sum to one."""
    return torch.cat([total[:, :1] / weight, total[:, 1:]], 1) if total.ndim == 2 else total / weight
