"""Messages on their way to a mean: their weighted sum so far, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from proxfed.engine.messages import dense, leaves, nbytes
from proxfed.types import Message


@dataclass
class Tally:
    """sum_i w_i m_i for each leaf of the messages, and sum_i w_i."""

    sums: list[Tensor] = field(default_factory=list)
    form: Message = None
    nbytes: int = 0
    best: int = 0

    def add(self, message: Message, w: Tensor) -> None:
        """Messages (c, d) of a block with weights (c,)."""
        size, best = nbytes(message)
        here = [w @ dense(m) for m in leaves(message)] + [w.sum(0, keepdim=True)]
        self._add(Tally(here, message, size, best))

    @classmethod
    def sum(cls, tallies: Iterable[Tally]) -> Tally:
        total = cls()
        for tally in tallies:
            total._add(tally)
        return total

    def _add(self, other: Tally) -> None:
        self.sums = [a.add_(b) for a, b in zip(self.sums, other.sums, strict=True)] if self.sums else other.sums
        self.form = other.form
        self.nbytes += other.nbytes
        self.best += other.best
