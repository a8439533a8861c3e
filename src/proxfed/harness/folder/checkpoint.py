"""An unfinished task, one algorithm with one seed: its rows so far, and a checkpoint that survives kill -9.

    rows.csv                        a log of lines (files/log.py), without a head
    0.safetensors, 1.safetensors    two slots (files/slots.py), with the valid length of each log
    0.journal                       with partial participation: changes of the clients' states (journal.py)

On resume, rows after the last checkpoint are dropped and computed again, bit for bit the same. If one slot is damaged,
the other one is used. When the task is done, its rows and its model move to the run folder, and this folder is removed.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from proxfed.errors import InputError, require
from proxfed.files import LARGEST_ROWS, UNREADABLE, End, Lines, Log, Slots, file_name, locked, read, writing
from proxfed.harness.folder.journal import Journals, Place, Rows
from proxfed.report.columns import Row, cell

LARGEST_KEPT = 1 << 25
"""The largest checkpoint of a finished task that is kept, in bytes."""

DIGITS = 16
"""Length of the checksum at the end of a line of rows.csv."""


class Checkpoint(NamedTuple):
    """The progress of a task: the last round and the state after it."""

    round: int
    rows_end: int
    counters: dict[str, float]
    tensors: dict[str, Tensor]
    rows_sum: str = ""
    """The checksum of the rows up to `rows_end`."""
    passed_over: str = ""
    """A remark, if a newer slot is damaged."""
    journal: Place | None = None
    """The position of the clients' states in a journal, if they are not among the tensors."""


def task_name(label: str, seed: int) -> str:
    """The name of a task's folder."""
    return f"{file_name(label)}-seed{seed}"


class TaskFolder:
    """The files of one task of a run, in a folder of their own."""

    def __init__(self, folder: Path, label: str, seed: int, run: str, columns: Sequence[str]) -> None:
        self.path, self.columns = folder / task_name(label, seed), columns
        self.of = f"{label}, seed {seed}, of run {run}"
        """The identity of the task and run, checked when its files are read."""
        self._rows = Log(self.path / "rows.csv", self.of, Lines(b",", digits=DIGITS))
        self._slots, self._slot = Slots(self.path, self.of), 0
        self._journals = Journals(self.path, self.of)

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Lock the task: True if this process has it, False if another process does."""
        with locked(self.path, wait=False) as free:
            try:
                yield free
            finally:
                if free:  # else another process has it, perhaps before writing any file
                    with suppress(OSError):  # remove the folder if it is empty: the task is done, or was never begun
                        self.path.rmdir()

    # ---- rows --------------------------------------------------------------------------------------------------

    def append(self, row: Row) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow([cell(row.get(c)) for c in self.columns])
        self._rows.append([[text.getvalue().encode()]], flush=False)

    def rows(self) -> bytes:
        """All rows in the format of the run folder's rows.csv, without a half-written last one."""
        least = max((about["rows_end"] for about in self._slots.about().values()), default=0)
        return self._checked(None, least)

    def _checked(self, upto: End | None, least: int = 0) -> bytes:
        """The rows without their checksums; refused if a checksum is wrong."""
        try:
            data = read(self._rows.path, LARGEST_ROWS)
        except FileNotFoundError:
            data = b""
        except OSError as e:
            raise InputError(f"cannot read {self._rows.path}: {e.strerror}") from e
        try:
            found = self._rows.whole(data, upto)
            if (found[-1].end.size if found else 0) < least:  # also if no line of it can be read
                raise ValueError(f"{self._rows.path} has fewer rows than when the checkpoint was written")
            return b"".join(data[row.start : row.stop] + b"\n" for row in found)
        except ValueError as e:
            raise InputError(f"{e}: remove {self.path} to start the task again") from e

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def save(
        self, round: int, counters: dict[str, float], tensors: dict[str, Tensor], changes: Iterable[Rows] | None = None
    ) -> None:
        """Overwrite the older slot; the newer one stays intact until this one is safely on disk.

        The clients' states are among the tensors, or `changes` has their changes since the last checkpoint.
        """
        self._rows.append([])  # flushes the rows
        journal = None if changes is None else self._journals.append(changes)
        rows = {"rows_end": self._rows.end.size, "rows_sum": self._rows.end.sum}
        self._slots.write(self._slot, {"round": round, "counters": counters, "journal": journal, **rows}, tensors)
        self._slot = 1 - self._slot
        if journal is not None:
            kept = [about["journal"] for about in self._slots.about().values()]
            self._journals.keep(place for place in kept if place is not None)

    def load(self) -> Checkpoint | None:
        """The newest intact slot, with the rows cut to its round; None, with all rows removed, if there is no
        checkpoint yet."""
        if not (written := self._slots.written()):
            self.clear()
            return None
        found = self._slots.about()
        bad = [slot for slot in written if slot not in found]
        why: Exception | None = None
        for slot in sorted(found, key=lambda slot: found[slot]["round"], reverse=True):
            try:
                here = self._load(slot)
            except (*UNREADABLE, InputError) as e:
                bad, why = [*bad, slot], e
                continue
            self._slot = 1 - slot
            for damaged in bad:  # it is overwritten next, and the rows are now shorter than it records
                self._slots.path(damaged).unlink()
            said = f"the checkpoint {self._slots.path(bad[0])} is damaged; resumed from the other one" if bad else ""
            return here._replace(passed_over=said)
        if isinstance(why, InputError):  # the rows are damaged; the error says what to do
            raise why
        require(not bad, f"{self.path} has no readable checkpoint: remove it to start the task again")
        return None

    def _load(self, slot: int) -> Checkpoint:
        """The checkpoint in a slot, with its rows and the clients' states."""
        about, tensors = self._slots.read(slot)
        here = Checkpoint(**about, tensors=tensors)
        if here.journal is not None:
            tensors |= self._journals.read(here.journal)
        end = End(here.rows_end, here.rows_sum)
        self._checked(end)
        self._rows.end = end
        self._rows.append([])  # cuts off later rows
        return here

    def clear(self) -> None:
        """Remove all files of the task; its folder stays, because it has the lock."""
        self._rows.end = self._rows.begin
        with writing(self.path):
            for old in self.path.iterdir():
                shutil.rmtree(old) if old.is_dir() else old.unlink()

    # ---- finished tasks ----------------------------------------------------------------------------------------

    def keep(self, place: Path) -> None:
        """Finish the task, whose rows are saved elsewhere. Unless it is large, its checkpoint is kept for a run of more
        rounds, which would otherwise start again."""
        kept, files = place / self.path.name, [file for file in self.path.iterdir() if file != self._rows.path]
        shutil.rmtree(kept, ignore_errors=True)
        if files and sum(file.stat().st_size for file in files) <= LARGEST_KEPT:
            with writing(self.path):
                kept.mkdir(parents=True)
                for file in files:
                    os.replace(file, kept / file.name)
        self.clear()

    def reopen(self, place: Path, lines: Iterable[bytes]) -> None:
        """Continue a finished task, with these rows and the kept checkpoint, if there is one."""
        kept = place / self.path.name
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self.clear()
            for file in kept.glob("*"):
                os.replace(file, self.path / file.name)
            shutil.rmtree(kept, ignore_errors=True)
        self._rows.append([line] for line in lines)
