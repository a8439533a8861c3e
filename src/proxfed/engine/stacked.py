"""All clients in one process, stacked on the first axis."""

from __future__ import annotations

from torch import Tensor

from proxfed.engine.mixing import Operator, is_average, rows_times
from proxfed.engine.network import Network
from proxfed.types import Mixing, Topology


class Stacked(Network):
    """n clients here."""

    leader = True

    def __init__(self, n: int, d: int, topology: Topology | None = None) -> None:
        super().__init__(n, d, topology)
        self.ids = range(n)

    def all_sums(self, parts: list[Tensor]) -> list[Tensor]:
        return parts

    def prepare(self, W: Mixing, like: Tensor) -> Operator:
        if is_average(W):
            return lambda x, spare: x.mean(0).expand(W.n, -1)
        return rows_times(W.row, W.col, W.weight, W.n, W.n, like)

    def gather(self, rows: Tensor) -> Tensor:
        return rows

    def counts(self, ids: Tensor | None) -> list[int]:
        assert ids is not None
        return [len(ids)]

    def scatter(self, rows: Tensor | None, like: Tensor, counts: list[int]) -> Tensor:
        assert rows is not None
        return rows

    def most(self, number: int) -> int:
        return number

    def from_leader(self, x: Tensor) -> Tensor:
        return x
