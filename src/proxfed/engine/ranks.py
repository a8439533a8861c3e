"""Blocks of clients over the processes of torch.distributed (gloo), on one machine or on many.

A mean is one all-reduce. Compressed messages travel as their bytes instead, once to every other process, and are added
up there in the order of the clients. A gossip step sends to each other process only the rows that its clients' weights
need (neighbours.py). Every process keeps a copy of the server's state, so that nothing is sent down.
Each process may use its own device: messages are copied to the CPU, and back on arrival.
Processes find each other through the environment, see `world` in network.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from proxfed.engine import joining
from proxfed.engine.bundle import bundle, unbundle
from proxfed.engine.messages import WeightedSum, compressed, decoded, encoded, leaves
from proxfed.engine.neighbours import Neighbours
from proxfed.engine.network import Network, world
from proxfed.errors import InputError, RunError, option, require
from proxfed.machine import take_gpu
from proxfed.types import Mixing, Packed, Topology


class Meeting(NamedTuple):
    """The rendezvous of the ranks of one machine: a file that only this user can read, and no open port."""

    file: str
    secret: bytes


def connect(timeout: float, meeting: Meeting | None = None) -> None:
    """Join the other processes; the run ends after `timeout` seconds without an answer.

    Without a `meeting` they join at MASTER_ADDR and use PROXFED_SECRET as their secret, if it is set.
    """
    found = world()
    if found is None:
        raise InputError(f"there are no other ranks: start them with {option('ranks', 4)}, torchrun or srun")
    rank, size = found
    take_gpu()
    how: dict[str, Any] = {"rank": rank, "world_size": size, "timeout": timedelta(seconds=timeout)}
    if meeting is not None:
        how["store"] = dist.FileStore(meeting.file, size)  # type: ignore[attr-defined]
        how["store"].set_timeout(how["timeout"])
    else:
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            require(
                name in os.environ,
                f"{name} is not set: rank {rank} of {size} cannot find the others; in a Slurm script, "
                "`export MASTER_ADDR=$(hostname) MASTER_PORT=29500` before srun",
            )
        port = os.environ["MASTER_PORT"]
        good = port.isascii() and port.isdigit() and int(port) < 1 << 16
        require(good, f"MASTER_PORT = {port!r} must be a whole number below {1 << 16}")
    with _together("joining the other ranks"):
        dist.init_process_group("gloo", **how)
        joining.prove(os.environ.get("PROXFED_SECRET", "").encode() if meeting is None else meeting.secret)


def agree(about: Mapping[str, Any]) -> None:
    """Check that all ranks have the same settings `about`, by dotted keys; otherwise all raise an error."""
    with _together("comparing what is run"):
        joining.agree(about)


def disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def _together(doing: str) -> Iterator[None]:
    """Turn a lost or silent rank into a one-sentence error."""
    try:
        yield
    except (RuntimeError, dist.DistError) as e:
        reason = re.sub(r"^\[[^]]*\] *", "", str(e)).split(". ")[0].strip() or type(e).__name__
        raise RunError(
            f"lost another rank while {doing} ({reason}); resume the run to continue from the checkpoint"
        ) from e


def _bytes(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


class Ranks(Network):
    """This process's block of the n clients."""

    posting = True

    def __init__(self, n: int, d: int, topology: Topology | None = None) -> None:
        super().__init__(n, d, topology)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        require(self.size <= n, f"{self.size} ranks for {n} clients: at most one rank per client")
        self.starts = np.linspace(0, n, self.size + 1).astype(int)
        self.ids = range(int(self.starts[self.rank]), int(self.starts[self.rank + 1]))
        self.leader = self.rank == 0

    def all_sums(self, parts: list[Tensor]) -> list[Tensor]:
        flat = torch.cat(parts)
        travels = flat.cpu()
        with _together("adding up"):
            dist.all_reduce(travels)
        return list(torch.split(travels.to(flat.device), [part.shape[0] for part in parts]))

    def owner(self, clients: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.starts, clients, side="right") - 1

    def swap(self, out: Mapping[int, Sequence[bytes]], hear: Sequence[int]) -> dict[int, list[bytes]]:
        """Send lists of messages to other ranks and return those from the ranks in `hear`."""
        bundles = {q: _bytes(bundle(messages)) for q, messages in out.items()}
        lengths = {q: torch.zeros(1, dtype=torch.int64) for q in hear}
        self.swap_rows({q: torch.tensor([len(data)]) for q, data in bundles.items()}, lengths)
        into = {q: torch.empty(int(length), dtype=torch.uint8) for q, length in lengths.items()}
        self.swap_rows(bundles, into)
        return {q: unbundle(data.numpy().tobytes()) for q, data in into.items()}

    def swap_rows(self, out: Mapping[int, Tensor], into: Mapping[int, Tensor]) -> None:
        arrived = {q: x if x.device.type == "cpu" else torch.empty(x.shape, dtype=x.dtype) for q, x in into.items()}
        ops = [dist.P2POp(dist.isend, x.cpu().contiguous(), q) for q, x in out.items()]
        ops += [dist.P2POp(dist.irecv, x, q) for q, x in arrived.items()]
        with _together("exchanging messages"):
            for request in dist.batch_isend_irecv(ops) if ops else ():
                request.wait()
        for q, x in into.items():
            if x is not arrived[q]:
                x.copy_(arrived[q])

    def add_up(self, total: WeightedSum) -> list[Tensor]:
        """Every rank reads all compressed messages; dense parts are summed by an all-reduce."""
        if not total.posted:
            return self.all_sums(total.sums)
        others, letters = [q for q in range(self.size) if q != self.rank], total.letters()
        heard = self.swap(dict.fromkeys(others, letters), others) | {self.rank: letters}
        posted, weight = total.read([heard[q] for q in range(self.size)])
        here = iter(self.all_sums(total.sums[:-1]) if len(total.sums) > 1 else [])
        read = iter(posted)
        return [*(next(read if compressed(leaf) else here) for leaf in leaves(total.form)), weight]

    def sums_of(self, rows: Tensor | Packed, nodes: np.ndarray, to: np.ndarray) -> Tensor:
        if not compressed(rows):
            return super().sums_of(rows, nodes, to)
        here, owner, receiver = self.within(nodes), self.owner(nodes), self.owner(to)
        for_me, mine = receiver == self.rank, receiver[here] == self.rank
        out = {int(q): encoded(rows, receiver[here] == q) for q in np.unique(receiver[here][~mine])}
        hear = [int(q) for q in np.unique(owner[for_me & ~here])]
        heard = self.swap(out, hear)
        foreign = decoded([m for q in hear for m in heard[q]], rows)
        order = np.argsort(np.concatenate([nodes[here][mine], nodes[for_me & ~here]]))
        received = torch.cat([rows.dense[torch.from_numpy(mine)], foreign])[torch.from_numpy(order)]
        receivers, index = np.unique(to[for_me], return_inverse=True)
        slot = torch.from_numpy(index).to(received.device)
        return received.new_zeros(len(receivers), received.shape[1]).index_add_(0, slot, received)

    def prepare(self, W: Mixing, like: Tensor) -> Neighbours:
        return Neighbours(W, like, self)

    def gather(self, rows: Tensor) -> Tensor:
        counts, rows = self._everyones(len(rows)), rows.cpu()
        with _together("gathering the state"):
            if not self.leader:
                if len(rows):
                    dist.send(rows.contiguous(), 0)
                return rows
            parts = [rows, *(torch.empty(k, *rows.shape[1:], dtype=rows.dtype) for k in counts[1:])]
            for q in range(1, self.size):
                if counts[q]:
                    dist.recv(parts[q], q)
        return torch.cat(parts)

    def counts(self, ids: Tensor | None) -> list[int]:
        each = torch.zeros(self.size, dtype=torch.int64)
        if ids is not None:
            each = torch.from_numpy(np.diff(np.searchsorted(ids.numpy(), self.starts)))
        return [int(k) for k in self.from_leader(each)]

    def scatter(self, rows: Tensor | None, like: Tensor, counts: list[int]) -> Tensor:
        with _together("handing out the state"):
            if rows is None:
                own = torch.empty(counts[self.rank], *like.shape[1:], dtype=like.dtype)
                if len(own):
                    dist.recv(own, 0)
                return own
            parts: tuple[Tensor, ...] = torch.split(rows, counts)
            for q in range(1, self.size):
                if counts[q]:
                    dist.send(parts[q].contiguous(), q)
        return parts[0]

    def most(self, number: int) -> int:
        return max(self._everyones(number))

    def _everyones(self, number: int) -> list[int]:
        """The numbers of all processes, in rank order."""
        own = torch.zeros(self.size, dtype=torch.float64)
        own[self.rank] = number
        return [int(k) for k in self.all_sum(own)]

    def from_leader(self, x: Tensor) -> Tensor:
        travels = x.cpu() if x.device.type != "cpu" else x.clone()
        with _together("listening to the leader"):
            dist.broadcast(travels, 0)
        return travels.to(x.device)
