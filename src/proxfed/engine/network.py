"""What all networks share: blocks of clients, the weighted mean, the gossip step, and counting bytes.

A network is one process or several, each with a block of consecutive clients. Networks differ in how the processes add
their sums and exchange their rows: `Stacked` is a single process and exchanges nothing, `ranks.py` has several. The
environment says which rank this process is: `world`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from math import ceil
from threading import Lock
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from proxfed.engine import tuning
from proxfed.engine.messages import Traffic, WeightedSum, dense, divided, nbytes, rebuild
from proxfed.engine.mixing import Operator, edges, gathered, is_average, rows_times
from proxfed.errors import InputError, require
from proxfed.keyed_random import Ids
from proxfed.machine import thread_count
from proxfed.types import Message, Mixing, Packed, Topology


class Gossip(Protocol):
    """W of a round, as applied by one process."""

    def post(self, message: Tensor | Packed, rows: slice) -> None:
        """Accept rows that are ready."""

    def mixed(self, message: Tensor | Packed, spare: bool) -> Tensor:
        """The rows of W X that belong to this process."""


class Network(ABC):
    """n clients, of which `ids` are in this process; `topology` is needed by algorithms without a server."""

    ids: range
    leader: bool
    """Whether this process writes the records."""
    posting: ClassVar[bool] = False
    """Whether compressed messages travel to other processes as their bytes (`WeightedSum`)."""

    def __init__(self, n: int, d: int, topology: Topology | None = None) -> None:
        self.n, self.d, self.topology = n, d, topology
        self.traffic = Traffic()
        self._gossip: dict[int, tuple[Gossip, int]] = {}
        self._lock = Lock()

    # ---- how the processes work together -----------------------------------------------------------------------

    @abstractmethod
    def all_sums(self, parts: list[Tensor]) -> list[Tensor]:
        """The sums of several vectors over all processes, in one exchange."""

    def all_sum(self, x: Tensor) -> Tensor:
        """The sum of one vector over the processes."""
        return self.all_sums([x])[0]

    def some(self, *flags: bool) -> Sequence[bool]:
        """For each flag, whether it is true in at least one process."""
        return [count > 0 for count in self.all_sum(torch.tensor(flags, dtype=torch.float64)).tolist()]

    @abstractmethod
    def prepare(self, W: Mixing, like: Tensor) -> Gossip:
        """W as a map from the message of this process's clients to their mixed rows."""

    @abstractmethod
    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes in rank order, at the leader (undefined elsewhere)."""

    @abstractmethod
    def counts(self, ids: Tensor | None) -> list[int]:
        """How many of the leader's ids, ascending, belong to each process."""

    @abstractmethod
    def scatter(self, rows: Tensor | None, like: Tensor, counts: list[int]) -> Tensor:
        """The inverse of `gather`: each process receives its count of the leader's rows, similar to `like`."""

    @abstractmethod
    def most(self, number: int) -> int:
        """The largest number over all processes."""

    @abstractmethod
    def from_leader(self, x: Tensor) -> Tensor:
        """The leader's x, in every process."""

    # ---- star --------------------------------------------------------------------------------------------------

    def blocks(self, cohort: Ids, reads: int = 0) -> list[Ids]:
        """This process's clients of the cohort, in blocks that fit in the cache; one empty block if there are none. If
        threads are worth while, each gets equally many blocks. `reads`: numbers of its data that a client's gradient
        reads."""
        if isinstance(cohort, range):
            here: Ids = self.ids
        else:
            first, last = np.searchsorted(cohort, (self.ids.start, self.ids.stop)).tolist()
            here = cohort[first:last]
        m, blocks = len(here), ceil(len(here) * self.d / tuning.BLOCK)
        worth_while = m * self.d >= tuning.PARALLEL_FROM or m * reads >= tuning.PARALLEL_READ
        threads = thread_count() if worth_while else 1
        count = max(1, min(m, ceil(blocks / threads) * threads))
        return [here[k * m // count : (k + 1) * m // count] for k in range(count)]

    def rows(self, ids: Ids) -> slice | np.ndarray:
        """The positions of these clients in this process's state; a slice, so no copy, if they are consecutive."""
        if isinstance(ids, range):
            return slice(ids.start - self.ids.start, ids.stop - self.ids.start)
        return np.asarray(ids) - self.ids.start

    def send(self, down: Message, clients: int) -> None:
        """Count the server's message to this many clients of this process."""
        size, best = nbytes(down)
        self.traffic.down += size * clients
        self.traffic.best += best * clients

    def mean(self, sums: Iterable[WeightedSum]) -> Message:
        """sum_i w_i m_i / sum_i w_i over all messages, in one sum over the processes."""
        total = WeightedSum.total(sums)
        self.traffic.up += total.nbytes
        self.traffic.best += total.best
        *means, weight = self.add_up(total)
        return rebuild(total.form, iter([divided(m, weight) for m in means]))

    def add_up(self, total: WeightedSum) -> list[Tensor]:
        """The sum of each leaf, and of the weights, over all processes."""
        return self.all_sums(total.sums)

    def pass_on(self, up: Message) -> None:
        """Count the messages that tree nodes of this process send to their parents."""
        size, best = nbytes(up)
        self.traffic.up += size
        self.traffic.best += best

    def sums_of(self, rows: Tensor | Packed, nodes: np.ndarray, to: np.ndarray) -> Tensor:
        """For each client of `to` in this process, in order, the sum of the messages to it. nodes[k] sends to to[k],
        over all processes; `rows` are the messages of the nodes in this process."""
        receivers, index = np.unique(to, return_inverse=True)
        sent = dense(rows)
        slot = torch.from_numpy(index[self.within(nodes)]).to(sent.device)
        part = sent.new_zeros(len(receivers), sent.shape[1]).index_add_(0, slot, sent)
        return self.all_sum(part.ravel()).view_as(part)[torch.from_numpy(self.within(receivers))]

    def within(self, nodes: np.ndarray) -> np.ndarray:
        """Which of them are in this process."""
        return (nodes >= self.ids.start) & (nodes < self.ids.stop)

    # ---- graph -------------------------------------------------------------------------------------------------

    def mix(self, message: Tensor | Packed, t: int, spare: bool = False) -> Tensor:
        """Row i becomes sum_j w_ij x_j over the graph of round t, where x is the message as the receivers decode it.

        The memory of a spare message may be overwritten.
        """
        self.post(message, slice(0, len(dense(message))), t)
        return self.meet(message, t, spare)

    def post(self, message: Tensor | Packed, rows: slice, t: int) -> None:
        """Accept the message of a block of clients, at these rows of this process; threads may call it at once."""
        gossip, _ = self._of_round(t, dense(message))
        gossip.post(message, rows)

    def meet(self, message: Tensor | Packed, t: int, spare: bool) -> Tensor:
        """`mix` of all rows of this process, once all are posted."""
        x = dense(message)
        gossip, lines = self._of_round(t, x)
        # A message of many rows only knows its total bytes. All rows cost the same except in some best encodings;
        # their count is exact if all clients have equally many neighbours.
        size, best = nbytes(message)
        self.traffic.edge += lines * size // len(x)
        self.traffic.best += lines * best // len(x)
        return gossip.mixed(message, spare)

    def _of_round(self, t: int, like: Tensor) -> tuple[Gossip, int]:
        """(the gossip of this round, the number of edges that begin at this process's clients)."""
        if self.topology is None:
            raise InputError("this algorithm works on a graph: give a topology")
        key = t % self.topology.period if self.topology.period else t
        with self._lock:
            if key not in self._gossip:
                if self.topology.period is None:
                    self._gossip.clear()
                W = self.topology.W(key)
                self._gossip[key] = self.prepare(W, like), edges(W, self.ids)
            return self._gossip[key]

    # ---- for measures; not counted as traffic ------------------------------------------------------------------

    def average(self, rows: Tensor) -> Tensor:
        """(1/n) sum_i x_i over all clients, from the rows of this process's clients."""
        return self.all_sum(rows.new_full((len(rows),), 1 / self.n) @ rows)

    def of_all(self, own: Tensor) -> Tensor:
        """One number per client, (n,), from the numbers of this process's clients."""
        each = own.new_zeros(self.n)
        each[self.ids.start : self.ids.stop] = own
        return self.all_sum(each)

    def consensus(self, rows: Tensor) -> float:
        """(1/n) sum_i |x_i - mean x|^2."""
        return float(self.average((rows - self.average(rows)).square().sum(-1, keepdim=True)))

    def total(self, numbers: list[int]) -> list[int]:
        """Counters summed over all processes."""
        return [round(x) for x in self.all_sum(torch.tensor(numbers, dtype=torch.float64)).tolist()]


# ---- one process ----------------------------------------------------------------------------------------------------


class Here(NamedTuple):
    """Gossip among the clients of one process, where nothing has to travel."""

    times: Operator

    def post(self, message: Tensor | Packed, rows: slice) -> None: ...

    def mixed(self, message: Tensor | Packed, spare: bool) -> Tensor:
        return self.times(dense(message), spare)


class Stacked(Network):
    """All n clients in one process, stacked on the first axis."""

    leader = True

    def __init__(self, n: int, d: int, topology: Topology | None = None) -> None:
        super().__init__(n, d, topology)
        self.ids = range(n)

    def all_sums(self, parts: list[Tensor]) -> list[Tensor]:
        return parts

    def some(self, *flags: bool) -> Sequence[bool]:
        return flags

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


def mixed_at(W: Mixing, here: range, like: Tensor) -> Operator:
    """The map from the rows of all clients, zero where `here` does not need them, to the mixed rows of `here`, bit for
    bit as if all were mixed at once. The rounding of a dense product depends on the whole product, so all of it is
    computed; gathered rows are added one by one."""
    if len(W.weight) >= tuning.DENSE_FROM * W.n * W.n:
        whole = Stacked(W.n, like.shape[1]).prepare(W, like)
        return lambda X, spare: whole.mixed(X, spare)[here.start : here.stop].clone()
    own = (W.row >= here.start) & (W.row < here.stop)
    return gathered(W.row[own] - here.start, W.col[own], W.weight[own], len(here), like)


# ---- or several -----------------------------------------------------------------------------------------------------


RESERVED_STEPS = 0xFFFFFFF0
"""Slurm reserves step numbers from here on for the batch script, interactive shells and the like."""


def world() -> tuple[int, int] | None:
    """(rank, number of ranks) if this process was started as one of several, else None.

    torchrun and --ranks   RANK below a WORLD_SIZE above 1
    srun                   SLURM_PROCID below a SLURM_STEP_NUM_TASKS above 1, in a numbered step (SLURM_STEP_ID)

    In a batch script Slurm also sets SLURM_PROCID = 0 and SLURM_NTASKS, but no step, or one with a reserved number: a
    program that runs there without srun is a single process, even if the script exports MASTER_ADDR for its ranks.
    """
    for rank, size in (_torchrun_task(), _srun_task()):
        if rank is not None and size is not None and rank < size and size > 1:
            return rank, size
    return None


def _torchrun_task() -> tuple[int | None, int | None]:
    for name in ("RANK", "WORLD_SIZE"):
        given = os.environ.get(name, "")
        require(not given or _number(name) is not None, f"{name} = {given!r} must be a whole number >= 0")
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    fits = rank is None or size is None or rank < size
    require(fits, f"RANK = {rank} must be below WORLD_SIZE = {size}: ranks are counted from 0")
    return rank, size


def _srun_task() -> tuple[int | None, int | None]:
    step = _number("SLURM_STEP_ID")
    if step is None or step >= RESERVED_STEPS:
        return None, None
    return _number("SLURM_PROCID"), _number("SLURM_STEP_NUM_TASKS")


def _number(name: str) -> int | None:
    """A whole number >= 0 from the environment."""
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
