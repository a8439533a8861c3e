"""What changes of the clients' states, appended checkpoint by checkpoint: a state that is large is not written whole.

A journal is a file of records, each with the ids of some clients, ascending, and their rows:

    PXJ1, length of the head, length of it all | head: name, type and shape of each tensor | ids | rows ... | CRC-32

Who reads it says up to where; the last row of a client is its state. What stands behind that place was appended for a
checkpoint that was never finished, and is cut off. A journal of which more than half is out of date is copied to
another file without that, record by record.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.states import MET
from proxfed.files import writing

Rows = dict[str, Tensor]
"""Rows of some clients by name, and under `MET` who they are."""

_MAGIC, _HEAD, _CRC = b"PXJ1", struct.Struct("<4sIQ"), struct.Struct("<Q")

Place = tuple[str, int]
"""A journal's file, and up to where it counts."""

SUFFIX = ".journal"

SLACK = 1 << 26
"""Bytes out of date that are not worth copying a journal for."""


class _Record(NamedTuple):
    """Where the parts of a record are."""

    ids: np.ndarray  # a copy
    tensors: dict[str, tuple[int, torch.dtype, tuple[int, ...]]]  # name: offset, type, shape
    end: int

    def rows(self, file: mmap.mmap, name: str) -> Tensor:
        at, dtype, shape = self.tensors[name]
        count = prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(file, dtype=dtype, count=count, offset=at).view(shape)


class Journal:
    """The journal at `path`, of which the first `end` bytes count; what is behind them is cut off."""

    def __init__(self, path: Path, end: int = 0) -> None:
        self.path, self.end = path, end
        self._ids, self._row_bytes = np.empty(0, np.int64), 0
        with writing(path.parent), path.open("ab") as f:
            if f.tell() > end:
                f.truncate(end)

    @property
    def wasteful(self) -> bool:
        """More than half of it is out of date."""
        return self.end > 2 * len(self._ids) * self._row_bytes + SLACK

    def append(self, pieces: Iterable[Rows]) -> None:
        """Rows that have changed, on the disk when this returns."""
        with writing(self.path.parent), self.path.open("r+b") as f:
            f.truncate(self.end)
            f.seek(self.end)
            for piece in pieces:
                if len(piece[MET]):
                    self._write(f, piece)
            f.flush()
            os.fsync(f.fileno())
            self.end = f.tell()

    def _write(self, f: BinaryIO, piece: Rows) -> None:
        rows = {name: x.detach().cpu().contiguous() for name, x in piece.items()}
        about = [[name, str(x.dtype).removeprefix("torch."), list(x.shape)] for name, x in rows.items()]
        head = json.dumps(about).encode()
        numbers: list[Any] = [x.reshape(-1).view(torch.uint8).numpy().data for x in rows.values()]
        size = _HEAD.size + sum(_padded(len(part)) for part in (head, *numbers)) + _CRC.size
        check = 0
        for part in (_HEAD.pack(_MAGIC, len(head), size), head, *numbers):
            for data in (part, bytes(-len(part) % 8)):  # numbers stand at multiples of 8
                check = crc32(data, check)
                f.write(data)
        f.write(_CRC.pack(check))
        self._know(rows[MET].numpy(), sum(x[:1].nbytes for x in rows.values()))

    def read(self) -> Rows:
        """The last rows of all clients that are in it. ValueError: it is damaged, or shorter than it should be."""
        with self._mapped() as file:
            records = list(self._records(file))
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
        other = Journal(path)
        with self._mapped() as file:
            records = list(self._records(file))
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
        """The file in memory; a private copy of what one writes to, as torch wants it, but nobody writes."""
        with self.path.open("rb") as f:
            if os.fstat(f.fileno()).st_size < self.end:
                raise ValueError(f"{self.path} is shorter than when the checkpoint was written")
            yield mmap.mmap(f.fileno(), self.end, access=mmap.ACCESS_COPY) if self.end else mmap.mmap(-1, 1)

    def _records(self, file: mmap.mmap) -> Iterator[_Record]:
        """All of them, checked."""
        self._ids, at = np.empty(0, np.int64), 0
        while at < self.end:
            record = _parse(file, at, self.end)
            self._know(record.ids, sum(dtype.itemsize * prod(shape[1:]) for _, dtype, shape in record.tensors.values()))
            at = record.end
            yield record

    def _know(self, ids: np.ndarray, row_bytes: int) -> None:
        self._ids, self._row_bytes = np.union1d(self._ids, ids), row_bytes


class Journals:
    """Those of one task: the one that is written to, and the one before it as long as a checkpoint needs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.current: Journal | None = None

    def append(self, pieces: Iterable[Rows]) -> Place:
        """Rows that have changed, on the disk when this returns; where they end."""
        if self.current is None:
            self.current = Journal(self._path(0))
        elif self.current.wasteful:
            self.current = self.current.copied_to(self._path(1 + int(self.current.path.stem)))
        self.current.append(pieces)
        return self.current.path.name, self.current.end

    def read(self, place: Place) -> Rows:
        """What there was up to this place, from where it goes on."""
        name, end = place
        if not (self.folder / name).is_file():
            raise ValueError(f"{self.folder / name} is not there")
        self.current = Journal(self.folder / name, end)
        return self.current.read()

    def keep(self, needed: Iterable[Place]) -> None:
        """Remove those that no checkpoint needs."""
        names = {name for name, _ in needed}
        for path in self.folder.glob(f"*{SUFFIX}"):
            if path.name not in names:
                path.unlink()

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}{SUFFIX}"


def _parse(file: mmap.mmap, start: int, end: int) -> _Record:
    """The record at `start`; its ids are copied."""
    magic, length, size = _HEAD.unpack_from(file, start) if start + _HEAD.size <= end else (b"", 0, 0)
    if magic != _MAGIC or not _HEAD.size + _CRC.size <= size <= end - start:
        raise ValueError("a record does not begin where it should")
    stop = start + size - _CRC.size
    if (crc32(memoryview(file)[start:stop]),) != _CRC.unpack_from(file, stop):
        raise ValueError("a record is damaged: its checksum is another")
    at, tensors = start + _HEAD.size + _padded(length), {}
    for name, kind, shape in json.loads(file[start + _HEAD.size : start + _HEAD.size + length]):
        dtype = getattr(torch, kind)
        tensors[name] = at, dtype, tuple(shape)
        at += _padded(dtype.itemsize * prod(shape))
    record = _Record(np.empty(0, np.int64), tensors, start + size)
    return record._replace(ids=record.rows(file, MET).numpy().copy())


def _padded(size: int) -> int:
    return size + -size % 8
