"""Messages: how to read them, what they cost, and their weighted mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field

from torch import Tensor

from proxfed.types import Message, Packed


@dataclass
class Traffic:
    """Bytes that crossed the network so far. `best` counts all of them in the shortest encoding of each message."""

    up: int = 0
    down: int = 0
    edge: int = 0
    best: int = 0

    def numbers(self) -> list[int]:
        return list(astuple(self))


def leaves(message: Message) -> list[Tensor | Packed]:
    """The tensors and Packed of a message, from left to right."""
    return [leaf for m in message for leaf in leaves(m)] if isinstance(message, tuple) else [message]


def rebuild(form: Message, parts: Iterator[Tensor]) -> Message:
    """A message of the given form from its leaves."""
    if not isinstance(form, tuple):
        return next(parts)
    built = [rebuild(m, parts) for m in form]
    return tuple(built) if type(form) is tuple else type(form)(*built)


def dense(part: Tensor | Packed) -> Tensor:
    """The value that the receiver reads."""
    return part.dense if isinstance(part, Packed) else part


def received(down: Message) -> Message:
    """What clients read of the server's message: the one row of a Packed is a shared point (d,)."""
    if isinstance(down, Tensor):
        return down
    return rebuild(down, iter([m.dense[0] if isinstance(m, Packed) else m for m in leaves(down)]))


def nbytes(message: Message) -> tuple[int, int]:
    """(bytes as the papers count them, bytes in the best encoding) of all rows together."""
    sizes = [(m.nbytes, m.best) if isinstance(m, Packed) else (m.nbytes, m.nbytes) for m in leaves(message)]
    return sum(paper for paper, _ in sizes), sum(best for _, best in sizes)


@dataclass
class WeightedSum:
    """sum_i w_i m_i for each leaf of the messages so far, sum_i w_i, and what the messages cost."""

    sums: list[Tensor] = field(default_factory=list)
    form: Message = None
    nbytes: int = 0
    best: int = 0

    def add(self, message: Message, w: Tensor) -> None:
        """Messages (c, d) of a block with weights (c,)."""
        size, best = nbytes(message)
        here = [w @ dense(m) for m in leaves(message)] + [w.sum(0, keepdim=True)]
        self._add(WeightedSum(here, message, size, best))

    @classmethod
    def total(cls, parts: Iterable[WeightedSum]) -> WeightedSum:
        """The sum of several."""
        total = cls()
        for part in parts:
            total._add(part)
        return total

    def _add(self, other: WeightedSum) -> None:
        self.sums = [a.add_(b) for a, b in zip(self.sums, other.sums, strict=True)] if self.sums else other.sums
        self.form = other.form
        self.nbytes += other.nbytes
        self.best += other.best
