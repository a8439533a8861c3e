"""What a holder keeps of a run on its own disk: two slots with its state after a round, and the log of one under way.

    job               what the run is, and over which rows
    0.slot, 1.slot    the state after a round, and the answer that ended it
    log               questions and answers of a round that is not over, one behind the other

A slot is replaced atomically and flushed to the disk before its answer leaves. The one that a round began from stays
until the next round has begun from another, so that a round whose answer never counted can be left out: the coordinator
says after which round it goes on. The log is appended to and flushed; a torn end is ignored. All of it has checksums.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from proxfed.errors import RunError, require
from proxfed.files import owned, replace, writing
from proxfed.silos.message import Letter


class Begun(NamedTuple):
    """What a run was begun with."""

    rows: str
    """The digest of the site's rows."""
    job: bytes


class Slot(NamedTuple):
    """The state after a round."""

    round: int
    after: int
    """The round that it began from; -1: nothing was there before."""
    step: int
    life: int
    """Of the coordinator that asked."""
    question: str
    """Its digest."""
    answer: bytes
    tensors: dict[str, Tensor]


class Entry(NamedTuple):
    """A question of the round under way, and what was answered."""

    question: Letter
    answer: bytes
    said: str
    """The digest of what it told its neighbours, before it was sealed."""

    def encode(self) -> bytes:
        question = self.question.encode()
        head = {"question": len(question), "said": self.said}
        return Letter("entry", self.question.run, head=head, body=question + self.answer).encode()

    @classmethod
    def of(cls, both: Letter) -> Entry:
        end = both.number("question")
        return cls(Letter.decode(both.body[:end]), both.body[end:], both.word("said"))


class Store:
    """The files of one run at one site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[Path, tuple[Any, Slot | None]] = {}
        self._logged: tuple[Any, list[Entry]] = (None, [])

    # ---- the job -----------------------------------------------------------------------------------------------

    def begin(self, begun: Begun) -> None:
        """Before anything is computed."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        letter = Letter("job", self.folder.name, head={"rows": begun.rows}, body=begun.job)
        replace(self.folder / "job", letter.encode())
        self._flush()

    def begun(self) -> Begun | None:
        """None if it has not begun."""
        try:
            letter = self._ours((self.folder / "job").read_bytes(), "job")
            return Begun(letter.word("rows"), letter.body)
        except FileNotFoundError:
            return None
        except RunError as e:
            raise RunError(f"what this site keeps of the job is damaged: {e}") from e

    def _ours(self, data: bytes, kind: str) -> Letter:
        """What stands in a file of this run, or RunError."""
        letter = Letter.decode(data)
        if (letter.kind, letter.run) != (kind, self.folder.name):
            raise RunError("it is another file, or of another run")
        return letter

    def remove(self) -> None:
        """The run is over."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- slots -------------------------------------------------------------------------------------------------

    def slots(self) -> dict[int, Slot]:
        """Those that are there, by round."""
        found = [self._slot(path) for path in self._paths()]
        damaged = not any(found) and any(path.exists() for path in self._paths())
        require(not damaged, "what this site keeps of the run is lost: none of its states can be read")
        return {slot.round: slot for slot in found if slot is not None}

    def _slot(self, path: Path) -> Slot | None:
        """None if it is not there, or not whole."""
        with suppress(FileNotFoundError):
            stamp = _stamp(path)
            if stamp != self._seen.get(path, (None, None))[0]:
                self._seen[path] = stamp, self._read_slot(path)
            return self._seen[path][1]
        return None

    def _read_slot(self, path: Path) -> Slot | None:
        with suppress(RunError, SafetensorError, ValueError):
            letter = self._ours(path.read_bytes(), "slot")
            end, question = letter.number("answer"), letter.word("question")
            tensors = load(letter.body[end:])
            after = letter.number("after", -1)
            return Slot(letter.round, after, letter.step, letter.life, question, letter.body[:end], tensors)
        return None

    def save(self, slot: Slot) -> None:
        """In the place of the one that the round did not begin from."""
        head = {"after": slot.after, "question": slot.question, "answer": len(slot.answer)}
        body = slot.answer + save(owned(slot.tensors))
        rounds = [None if (found := self._slot(path)) is None else found.round for path in self._paths()]
        path = self._paths()[1 if rounds[0] == slot.after else 0]
        replace(path, Letter("slot", self.folder.name, slot.round, slot.step, head, body, slot.life).encode())
        self._flush()
        self._seen[path] = _stamp(path), slot

    def _paths(self) -> tuple[Path, Path]:
        return self.folder / "0.slot", self.folder / "1.slot"

    def _flush(self) -> None:
        """The names of files, as well as their content."""
        with suppress(OSError):  # a system that cannot flush a folder
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    # ---- the log -----------------------------------------------------------------------------------------------

    def log(self) -> list[Entry]:
        """Of the round under way, from its first question on."""
        path = self.folder / "log"
        with suppress(FileNotFoundError):
            if _stamp(path) != self._logged[0]:
                self._logged = _stamp(path), list(self._entries(path.read_bytes()))
            return self._logged[1]
        return []

    def _entries(self, data: bytes) -> Iterator[Entry]:
        """Those that are whole, up to a torn end."""
        while len(data) >= 8:
            size = int.from_bytes(data[:8], "little")
            try:
                yield Entry.of(self._ours(data[8 : 8 + size], "entry"))
            except RunError:
                return
            data = data[8 + size :]

    def append(self, before: list[Entry], entry: Entry) -> None:
        """Behind these, which are the log or its beginning; without any, a new log begins."""
        path, data = self.folder / "log", _frame(entry.encode())
        if not before:
            replace(path, data)
            self._flush()
        else:
            end = sum(len(_frame(e.encode())) for e in before)
            with writing(self.folder), path.open("r+b") as f:
                f.truncate(end)
                f.seek(end)
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
        self._logged = _stamp(path), [*before, entry]


def _stamp(path: Path) -> tuple[int, int, int]:
    """Changes whenever the file does."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data
