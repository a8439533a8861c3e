"""All clients in one process, stacked on the first axis."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from proxfed.engine.messages import dense
from proxfed.engine.mixing import Operator, is_average, rows_times
from proxfed.engine.network import Network
from proxfed.types import Mixing, Packed, Topology


class Here(NamedTuple):
    """Gossip among clients of one process: nothing travels."""

    times: Operator

    def post(self, message: Tensor | Packed, rows: slice) -> None: ...

    def mixed(self, message: Tensor | Packed, spare: bool) -> Tensor:
        return self.times(dense(message), spare)


class Stacked(Network):
    """n clients here."""

    leader = True

    def __init__(self, n: int, d: int, topology: Topology | None = None) -> None:
        super().__init__(n, d, topology)
        self.ids = range(n)

    def all_sums(self, parts: list[Tensor]) -> list[Tensor]:
        return parts

    def prepare(self, W: Mixing, like: Tensor) -> Here:
        if is_average(W):
            return Here(lambda x, spare: x.mean(0).expand(W.n, -1))
        return Here(rows_times(W.row, W.col, W.weight, W.n, W.n, like))

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
