"""One algorithm with one seed, while it is under way: its rows so far, and a checkpoint that survives kill -9.

    rows.csv           appended as it goes, without a head; each line ends with the checksum of all lines up to it
    0.safetensors      two slots, written in turn, each replaced atomically, with checksums
    1.safetensors
    0.journal          where few clients take part: what has changed of their states (journal.py)

Rows after the last checkpoint are cut off on resume and computed again, bit for bit the same. A slot that is damaged is
passed over for the other one. When the task is done its rows and its model go to the run folder, and this folder is
removed.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
from torch import Tensor

from proxfed.errors import InputError, require
from proxfed.files import LARGEST_ROWS, locked, read, read_tensors, replace, tensor_file, writing
from proxfed.harness.journal import Journals, Place, Rows
from proxfed.report.columns import Row, cell

UNREADABLE = (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError)
"""What reading a damaged safetensors file may raise."""

DIGITS = 16
"""Of the checksum at the end of a line."""


class Checkpoint(NamedTuple):
    """Where a task stands: after which round, with which state."""

    round: int
    rows_end: int
    counters: dict[str, float]
    tensors: dict[str, Tensor]
    rows_sum: str = ""
    """The checksum of the rows up to `rows_end`."""
    passed_over: str = ""
    """What is to be said of a newer slot that is damaged."""
    journal: Place | None = None
    """Where the clients' states are, if not among the tensors."""


def task_name(label: str, seed: int) -> str:
    """The name of a task's folder; labels that look alike differ in their digest."""
    words = re.sub(r"[^\w.+]+", "-", label.lower()).strip("-.")[:40]
    return f"{words}-{sha256(label.encode()).hexdigest()[:6]}-seed{seed}"


class TaskFolder:
    """The files of one task of a run, in a folder of their own."""

    def __init__(self, folder: Path, label: str, seed: int, run: str, columns: Sequence[str]) -> None:
        self.path, self.columns = folder / task_name(label, seed), columns
        self.of = f"{label}, seed {seed}, of run {run}"
        """Which task of which run: its files belong to no other."""
        self._slot, self._sum = 0, _next("", self.of.encode())

    @cached_property
    def _journals(self) -> Journals:
        return Journals(self.path)

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """The task is ours; or False: another process has it."""
        with locked(self.path, wait=False) as free:
            try:
                yield free
            finally:
                if free:  # else it is another's, who may not have put anything there yet
                    with suppress(OSError):  # a task that is done, or never begun, has an empty folder
                        self.path.rmdir()

    # ---- rows --------------------------------------------------------------------------------------------------

    def append(self, row: Row) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow([cell(row.get(c)) for c in self.columns])
        line = text.getvalue().encode()
        total = _next(self._sum, line)
        with writing(self.path), (self.path / "rows.csv").open("ab") as f:
            f.write(line + b"," + total.encode() + b"\n")
        self._sum = total

    def rows(self) -> bytes:
        """All rows as the run folder's rows.csv has them, without a half-written last one."""
        data = self._bytes()
        least = max((found.rows_end for found, _ in self._slots()), default=0)
        lines, _ = self._whole_lines(data[: data.rfind(b"\n") + 1], least)
        return b"".join(line + b"\n" for line in lines)

    def old_rows(self) -> bytes:
        """The same of a version whose lines had no checksums."""
        data = self._bytes()
        return data[: data.rfind(b"\n") + 1]

    def _bytes(self) -> bytes:
        try:
            return read(self.path / "rows.csv", LARGEST_ROWS)
        except FileNotFoundError:
            return b""
        except OSError as e:
            raise InputError(f"cannot read {self.path / 'rows.csv'}: {e.strerror}") from e

    def _whole_lines(self, data: bytes, least: int) -> tuple[list[bytes], str]:
        """(the lines without their checksums, the checksum of all); refused if one does not fit."""
        rows, total, kept = self.path / "rows.csv", _next("", self.of.encode()), []
        again = f"remove {self.path}, and the task begins anew"
        require(len(data) >= least, f"{rows} is shorter than when the checkpoint was written: {again}")
        for k, written in enumerate(data.split(b"\n")[:-1], start=1):
            line, _, said = written.rpartition(b",")
            total = _next(total, line)
            require(said == total.encode(), f"{rows}, line {k}, is damaged: {again}")
            kept.append(line)
        return kept, total

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def save(
        self, round: int, counters: dict[str, float], tensors: dict[str, Tensor], changes: Iterable[Rows] | None = None
    ) -> None:
        """Write the older slot; the newer one stays whole until this one is safely on the disk.

        Clients' states are among the tensors; or what has changed of them since the last checkpoint is in `changes`.
        """
        with writing(self.path), (self.path / "rows.csv").open("ab") as f:  # there may be none yet
            os.fsync(f.fileno())
            end = f.seek(0, os.SEEK_END)
        journal = None if changes is None else self._journals.append(changes)
        about = {
            "round": round, "rows_end": end, "rows_sum": self._sum, "counters": counters, "of": self.of,
            "journal": journal,
        }  # fmt: skip
        replace(self._slot_path(self._slot), tensor_file(tensors, {"about": json.dumps(about)}).data)
        self._slot = 1 - self._slot
        if journal is not None:
            with writing(self.path):
                self._journals.keep(found.journal for found, _ in self._slots() if found.journal is not None)

    def load(self) -> Checkpoint | None:
        """The newest slot that is whole, with the rows cut to where it stands; None if the task had not got so far:
        then none of them is left."""
        if not (written := self._written()):
            self.clear()
            return None
        slots = self._slots()
        bad = [slot for slot in written if slot not in [k for _, k in slots]]
        why: Exception | None = None
        for found, slot in slots:
            try:
                tensors = read_tensors(self._slot_path(slot), ["about"]).tensors
                if found.journal is not None:
                    tensors |= self._journals.read(found.journal)
                self._cut(found)
            except (*UNREADABLE, InputError) as e:
                bad, why = [*bad, slot], e
                continue
            self._slot, self._sum = 1 - slot, found.rows_sum
            for damaged in bad:  # its place is the next to be written, and the rows are shorter now than it says
                self._slot_path(damaged).unlink()
            said = f"the checkpoint {self._slot_path(bad[0])} is damaged, went on from the other" if bad else ""
            return found._replace(tensors=tensors, passed_over=said)
        if isinstance(why, InputError):  # the rows are at fault, and it says what to do
            raise why
        require(not bad, f"{self.path} has no readable checkpoint: remove it, and the task begins anew")
        return None

    def _cut(self, found: Checkpoint) -> None:
        """The rows to where this checkpoint stands, if they are those that it was written with."""
        rows = self.path / "rows.csv"
        _, total = self._whole_lines(self._bytes()[: found.rows_end], found.rows_end)
        same = total == found.rows_sum
        require(same, f"{rows} is not what it was when the checkpoint was written: remove {self.path} to begin anew")
        with writing(self.path), rows.open("r+b") as f:
            f.truncate(found.rows_end)

    def clear(self) -> None:
        """Nothing of the task is left but its folder, which holds its lock."""
        with writing(self.path):
            for old in self.path.iterdir():
                shutil.rmtree(old) if old.is_dir() else old.unlink()

    def _slots(self) -> list[tuple[Checkpoint, int]]:
        """The slots that say where they stand, the newest first, still without their tensors."""
        slots = []
        for slot in self._written():
            with suppress(*UNREADABLE):
                about: dict[str, Any] = json.loads(
                    read_tensors(self._slot_path(slot), ["about"], only=()).about["about"]
                )
                if about.pop("of") == self.of:
                    slots.append((Checkpoint(**about, tensors={}), slot))
        return sorted(slots, key=lambda pair: pair[0].round, reverse=True)

    def _written(self) -> list[int]:
        """The slots that have a file."""
        return [slot for slot in (0, 1) if self._slot_path(slot).exists()]

    def _slot_path(self, slot: int) -> Path:
        return self.path / f"{slot}.safetensors"


def _next(total: str, line: bytes) -> str:
    """The checksum of lines of which the last one is this, and `total` that of those before it."""
    return sha256(total.encode() + line).hexdigest()[:DIGITS]
