"""One pass over the samples, dense or sparse, by the loops of kernels.py, divided among the cores by samples."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from proxfed.data.sparse_rows import SparseRows
from proxfed.engine import tuning
from proxfed.keyed_random import Ids
from proxfed.machine import run_parallel, thread_count
from proxfed.problems.linear import kernels
from proxfed.problems.linear.passes import FUSED, Passes, Sums
from proxfed.problems.losses import Huber

if TYPE_CHECKING:
    from proxfed.problems.linear.linear import Linear

CHUNK = 4096
"""Samples of a task. A client with more samples has several tasks, which different threads may take."""

NONE = np.empty(0, np.int64)


class Fused(Passes):
    def __init__(self, p: Linear) -> None:
        loss = p.criterion
        A: Any = p.samples
        if sparse := isinstance(A, SparseRows):
            A = (*A.arrays, A.width)
        self.q = p.blocks[0].shape[0]
        self.chunk = max(CHUNK, p.samples.shape[1])  # else summing their results costs more
        delta = loss.delta if isinstance(loss, Huber) else 0.0
        v = np.empty(0) if p.v is None else p.v.double().numpy()
        self.kernel = partial(
            kernels.sparse if sparse else kernels.dense, FUSED.index(type(loss)), delta, A, p.b.double().numpy(), v
        )
        self._tasks: dict[tuple[int, int, bool], np.ndarray] = {}

    def full(self, p: Linear, ids: Ids, x: Tensor, values: bool = False, gradients: bool = False) -> Sums:
        points, shared = _points(x, len(ids))
        key = (ids.start, ids.stop, shared) if isinstance(ids, range) else None
        tasks = None if key is None else self._tasks.get(key)
        if tasks is None:
            tasks = self._tasks_of(p, np.asarray(ids, np.int64), shared)
        if key is not None:
            self._tasks[key] = tasks
        return self._run(p, tasks, len(ids), NONE, points, values, gradients)

    def minibatch(self, p: Linear, rows: np.ndarray, x: Tensor) -> Tensor:
        (c, batch), (points, shared) = rows.shape, _points(x, len(rows))
        tasks = np.empty((c, 5), np.int64)
        tasks[:, 0] = np.arange(0, c * batch, batch)
        tasks[:, 1] = tasks[:, 0] + batch
        tasks[:, 2] = 0 if shared else np.arange(c)
        tasks[:, 3:] = batch, 1
        return self._run(p, tasks, c, rows.reshape(-1), points, False, True).gradients

    def descend(self, p: Linear, rows: np.ndarray, y: Tensor, eta: float) -> None:
        """All steps of a client one after the other, so that its point and its samples stay in the cache."""
        if not y.is_contiguous() or eta == 0:
            super().descend(p, rows, y, eta)
            return
        steps, c, batch = rows.shape
        client = np.repeat(np.arange(c), steps)
        tasks = np.empty((c * steps, 5), np.int64)
        tasks[:, 0] = batch * (client + c * np.tile(np.arange(steps), c))
        tasks[:, 1] = tasks[:, 0] + batch
        tasks[:, 2] = client
        tasks[:, 3:] = batch, 1
        points = y.detach().numpy()

        def work(some: slice) -> None:
            room, no_values = np.empty((1, p.d), points.dtype), np.empty(0, points.dtype)
            self.kernel(rows.reshape(-1), tasks[some], points, self.q, p.l2, room, no_values, eta)

        run_parallel([partial(work, some) for some in self._shares(p, tasks, steps)])

    def _tasks_of(self, p: Linear, ids: np.ndarray, shared: bool) -> np.ndarray:
        """The tasks (tasks, 5) in the form of kernels.dense."""
        sizes, counts = p.sizes[ids], -(-p.sizes[ids] // self.chunk)
        client = np.repeat(np.arange(len(ids)), counts)
        nth = np.arange(len(client)) - np.repeat(counts.cumsum() - counts, counts)
        start = p.offsets[ids][client] + nth * self.chunk
        stop = np.minimum(start + self.chunk, p.offsets[ids + 1][client])
        return np.stack([start, stop, 0 * client if shared else client, sizes[client], nth == 0], 1)

    def _run(
        self, p: Linear, tasks: np.ndarray, c: int, rows: np.ndarray, points: np.ndarray, values: bool, gradients: bool
    ) -> Sums:
        count = len(tasks)
        G = torch.empty(count if gradients else 0, p.d, dtype=p.dtype)
        f = torch.empty(count if values else 0, dtype=p.dtype)

        def work(some: slice) -> None:
            self.kernel(rows, tasks[some], points, self.q, p.l2, G.numpy()[some], f.numpy()[some], 0.0)

        run_parallel([partial(work, some) for some in self._shares(p, tasks)])
        return Sums(*(x if len(x) in (0, c) else _added(x, tasks, c) for x in (f, G)))

    def _shares(self, p: Linear, tasks: np.ndarray, together: int = 1) -> list[slice]:
        """Consecutive tasks for each thread, with about equally many samples; groups of `together` are not split."""
        threads, groups = thread_count(), len(tasks) // together
        if threads == 1 or groups < 2:
            return [slice(None)]
        samples = (tasks[:, 1] - tasks[:, 0]).reshape(groups, together).sum(1).cumsum()
        if samples[-1] * p.sample_size < tuning.PARALLEL_READ:
            return [slice(None)]
        cuts = np.searchsorted(samples, samples[-1] * np.arange(1, threads) / threads, side="left")
        ends = together * np.unique([0, *(cuts + 1), groups])
        return [slice(a, b) for a, b in pairwise(ends.tolist())]


def _points(x: Tensor, c: int) -> tuple[np.ndarray, bool]:
    """(rows of x, whether all clients share one row)."""
    shared = x.ndim == 1 or (c > 1 and x.stride(0) == 0)
    rows = x[None] if x.ndim == 1 else x[:1] if shared else x
    return rows.detach().contiguous().numpy(), shared


def _added(parts: Tensor, tasks: np.ndarray, c: int) -> Tensor:
    out = parts.new_empty(c, *parts.shape[1:])
    kernels.add_up(parts.view(len(parts), -1).numpy(), tasks, out.view(c, -1).numpy())
    return out
