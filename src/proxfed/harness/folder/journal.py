"""A journal of changes of the clients' states, appended at each checkpoint instead of writing the whole state.

A journal is a log (files/log.py) whose records have the ids of some clients, ascending, and their rows:

    length of the head | head: name, type and shape of each tensor | ids | rows ...

each padded to 8 bytes. A checkpoint has the valid length of its journal and the checksum of all records up to there, so
that damaged, missing, repeated, moved or foreign records are detected. The last row of a client is its state. Records
beyond the valid length belong to an unfinished checkpoint and are cut off. If more than half of a journal is outdated,
it is compacted to another file, record by record.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.states import MET
from proxfed.files import End, Log, writing

Rows = dict[str, Tensor]
"""Rows of some clients by name, and their ids under `MET`."""

Place = tuple[str, int, str]
"""A journal's file, its valid length, and the checksum of all records up to there."""

SUFFIX = ".journal"

SLACK = 1 << 26
"""Outdated bytes up to which a journal is not compacted."""


class _Record(NamedTuple):
    """The positions of the parts of a record."""

    ids: np.ndarray  # a copy
    tensors: dict[str, tuple[int, torch.dtype, tuple[int, ...]]]  # name: offset, type, shape

    def rows(self, file: mmap.mmap, name: str) -> Tensor:
        at, dtype, shape = self.tensors[name]
        count = prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(file, dtype=dtype, count=count, offset=at).view(shape)


class Journal:
    """The journal at `path` of the task with this name, valid up to `end`."""

    def __init__(self, path: Path, name: str, end: End | None = None) -> None:
        self.path, self.name = path, name
        self._log = Log(path, name, end=end)
        self._ids, self._row_bytes = np.empty(0, np.int64), 0

    @property
    def end(self) -> End:
        return self._log.end

    @property
    def wasteful(self) -> bool:
        """Whether more than half of it is outdated."""
        return self.end.size > 2 * len(self._ids) * self._row_bytes + SLACK

    def append(self, pieces: Iterable[Rows]) -> None:
        """Append changed rows, which are on disk when this returns."""
        self._log.append(self._payload(piece) for piece in pieces if len(piece[MET]))

    def _payload(self, piece: Rows) -> Iterator[Any]:
        rows = {name: x.detach().cpu().contiguous() for name, x in piece.items()}
        head = json.dumps([[name, str(x.dtype).removeprefix("torch."), list(x.shape)] for name, x in rows.items()])
        yield len(head).to_bytes(8, "little")
        for part in (head.encode(), *(x.reshape(-1).view(torch.uint8).numpy().data for x in rows.values())):
            yield from (part, bytes(-len(part) % 8))
        self._know(rows[MET].numpy(), sum(x[:1].nbytes for x in rows.values()))

    def read(self) -> Rows:
        """The last rows of all clients in it. ValueError: it is damaged."""
        with self._mapped() as file:
            records = self._records(file)
            ids = self._ids
            out = {
                name: torch.empty(len(ids), *shape[1:], dtype=dtype)
                for name, (_, dtype, shape) in (records[0].tensors if records else {}).items()
                if name != MET
            }
            for record in records:
                at = torch.from_numpy(np.searchsorted(ids, record.ids))
                for name, x in out.items():
                    x[at] = record.rows(file, name)
        return {MET: torch.from_numpy(ids)} | out

    def copied_to(self, path: Path) -> Journal:
        """Another journal with the last rows only."""
        other = Journal(path, self.name)
        with self._mapped() as file:
            records = self._records(file)
            later, last = np.zeros(len(self._ids), bool), []
            for record in reversed(records):
                at = np.searchsorted(self._ids, record.ids)
                last.append(~later[at])
                later[at] = True

            def pieces() -> Iterator[Rows]:
                for record, kept in zip(records, reversed(last), strict=True):
                    keep = torch.from_numpy(np.flatnonzero(kept))
                    yield {name: record.rows(file, name)[keep] for name in record.tensors}

            other.append(pieces())
        return other

    @contextmanager
    def _mapped(self) -> Iterator[mmap.mmap]:
        """The file mapped into memory; copy-on-write, because torch needs writable memory, but nothing is written."""
        with self.path.open("rb") as f:
            size = os.fstat(f.fileno()).st_size
            yield mmap.mmap(f.fileno(), size, access=mmap.ACCESS_COPY) if size else mmap.mmap(-1, 1)

    def _records(self, file: mmap.mmap) -> list[_Record]:
        """All records, verified."""
        self._ids = np.empty(0, np.int64)
        records = [_record(file, frame.start) for frame in self._log.whole(file, self.end)]
        for record in records:
            self._know(record.ids, sum(dtype.itemsize * prod(shape[1:]) for _, dtype, shape in record.tensors.values()))
        return records

    def _know(self, ids: np.ndarray, row_bytes: int) -> None:
        self._ids, self._row_bytes = np.union1d(self._ids, ids), row_bytes


class Journals:
    """The journals of one task: the current one, and its predecessor as long as a checkpoint needs it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.current: Journal | None = None

    def append(self, pieces: Iterable[Rows]) -> Place:
        """Append changed rows, which are on disk when this returns; returns their end."""
        if self.current is None:
            self.current = Journal(self._path(0), self.name)
        elif self.current.wasteful:
            self.current = self.current.copied_to(self._path(1 + int(self.current.path.stem)))
        self.current.append(pieces)
        return self.current.path.name, *self.current.end

    def read(self, place: Place) -> Rows:
        """The rows up to this position, from which the journal then continues."""
        name, length, total = place
        if not (self.folder / name).is_file():
            raise ValueError(f"{self.folder / name} is missing")
        self.current = Journal(self.folder / name, self.name, End(length, total))
        return self.current.read()

    def keep(self, needed: Iterable[Place]) -> None:
        """Remove the journals that no checkpoint needs."""
        names = {name for name, *_ in needed}
        with writing(self.folder):
            for path in self.folder.glob(f"*{SUFFIX}"):
                if path.name not in names:
                    path.unlink()

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}{SUFFIX}"


def _record(file: mmap.mmap, at: int) -> _Record:
    """The record whose verified payload begins at this position; its ids are copied."""
    at, length = at + 8, int.from_bytes(file[at : at + 8], "little")
    head, tensors = file[at : at + length], {}
    at += _padded(length)
    for name, kind, shape in json.loads(head):
        dtype = getattr(torch, kind)
        tensors[name] = at, dtype, tuple(shape)
        at += _padded(dtype.itemsize * prod(shape))
    record = _Record(np.empty(0, np.int64), tensors)
    return record._replace(ids=record.rows(file, MET).numpy().copy())


def _padded(size: int) -> int:
    return size + -size % 8
