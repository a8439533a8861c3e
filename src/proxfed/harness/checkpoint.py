"""One algorithm with one seed, while it is under way: its rows so far, and a checkpoint that survives kill -9.

    rows.csv           appended as it goes, without a head
    0.safetensors      two slots, written in turn, each replaced atomically
    1.safetensors
    0.journal          where few clients take part: what has changed of their states (journal.py)

Rows after the last checkpoint are cut off on resume and computed again, bit for bit the same. When the task is done
its rows and its model go to the run folder, and this folder is removed.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import safetensors
from safetensors.torch import load_file, save
from torch import Tensor

from proxfed.errors import require
from proxfed.harness.files import locked, owned, replace, writing
from proxfed.harness.journal import Journals, Place, Rows
from proxfed.report.columns import Row, cell

UNREADABLE = (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError)
"""What reading a damaged safetensors file may raise."""


class Checkpoint(NamedTuple):
    """Where a task stands: after which round, with which state."""

    round: int
    rows_end: int
    counters: dict[str, float]
    tensors: dict[str, Tensor]
    journal: Place | None = None
    """Where the clients' states are, if not among the tensors."""


def task_name(label: str, seed: int) -> str:
    """The name of a task's folder; labels that look alike differ in their digest."""
    words = re.sub(r"[^\w.+]+", "-", label.lower()).strip("-.")[:40]
    return f"{words}-{sha256(label.encode()).hexdigest()[:6]}-seed{seed}"


class TaskFolder:
    """The files of one task."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, columns
        self._slot, self._journals = 0, Journals(path)

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

    def start(self) -> None:
        """With nothing done."""
        self.clear()
        replace(self.path / "rows.csv", b"")

    def append(self, row: Row) -> None:
        with writing(self.path), (self.path / "rows.csv").open("a", newline="") as f:
            csv.writer(f, lineterminator="\n").writerow([cell(row.get(c)) for c in self.columns])

    def rows(self) -> bytes:
        """All rows as rows.csv has them."""
        with writing(self.path):
            return (self.path / "rows.csv").read_bytes()

    def save(
        self, round: int, counters: dict[str, float], tensors: dict[str, Tensor], changes: Iterable[Rows] | None = None
    ) -> None:
        """Write the older slot; the newer one stays whole until this one is safely on the disk.

        Clients' states are among the tensors; or what has changed of them since the last checkpoint is in `changes`.
        """
        with writing(self.path), (self.path / "rows.csv").open("rb") as f:
            os.fsync(f.fileno())
            end = f.seek(0, os.SEEK_END)
        journal = None if changes is None else self._journals.append(changes)
        about = {"round": round, "rows_end": end, "counters": counters, "journal": journal}
        replace(self._slot_path(self._slot), save(owned(tensors), metadata={"about": json.dumps(about)}))
        self._slot = 1 - self._slot
        with writing(self.path):
            self._journals.keep(found.journal for found, _ in self._slots() if found.journal is not None)

    def load(self) -> Checkpoint | None:
        """The newest readable slot, with the rows cut to where it stands; None if the task had not got that far."""
        for found, slot in self._slots():
            with suppress(*UNREADABLE):
                rows = {} if found.journal is None else self._journals.read(found.journal)
                whole = found._replace(tensors=load_file(self._slot_path(slot)) | rows)
                self._slot = 1 - slot
                self._cut(found.rows_end)
                return whole
        damaged = any(self.path.glob("*.safetensors"))
        require(not damaged, f"{self.path} has no readable checkpoint: remove it, and the task begins anew")
        return None

    def _cut(self, end: int) -> None:
        rows = self.path / "rows.csv"
        enough = rows.exists() and rows.stat().st_size >= end
        require(enough, f"{rows} is shorter than when the checkpoint was written: remove {self.path} to begin anew")
        with writing(self.path), rows.open("r+b") as f:
            f.truncate(end)

    def clear(self) -> None:
        """Nothing of the task is left but its folder, which holds its lock."""
        with writing(self.path):
            for old in self.path.iterdir():
                shutil.rmtree(old) if old.is_dir() else old.unlink()

    def _slots(self) -> list[tuple[Checkpoint, int]]:
        """The slots that say where they stand, the newest first, still without their tensors."""
        slots = []
        for slot in (0, 1):
            with suppress(*UNREADABLE), safetensors.safe_open(self._slot_path(slot), framework="pt") as f:
                slots.append((Checkpoint(**json.loads(f.metadata()["about"]), tensors={}), slot))
        return sorted(slots, key=lambda pair: pair[0].round, reverse=True)

    def _slot_path(self, slot: int) -> Path:
        return self.path / f"{slot}.safetensors"
