"""A holder's files of a run: two slots with its state after a round, and the log of the current round.

    job                             the job, and the digest of its rows
    0.safetensors, 1.safetensors    two slots (files/slots.py): the state after a round, and the answer that ended it
    log                             questions and answers of the current round (files/log.py)

A slot is on the disk before its answer leaves. The slot that a round began from stays until the next round has begun
from another, so that a round whose answer never counted can be skipped: the coordinator names the round to continue
from. The log counts up to the first torn or damaged entry: everything after it is requested again.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import RunError, require
from proxfed.files import UNREADABLE, End, Log, Seen, Slots, flush_folder, replace, writing
from proxfed.silos.wire.message import Letter


class Begun(NamedTuple):
    """The job and the rows with which a run was begun."""

    rows: str
    """The digest of the site's rows."""
    job: bytes


class Slot(NamedTuple):
    """The state after a round."""

    round: int
    after: int
    """The round that it began from; -1: none."""
    step: int
    life: int
    """The life of the coordinator that asked."""
    question: str
    """The digest of the question."""
    answer: bytes
    tensors: dict[str, Tensor]


ANSWER = "answer"
"""The name of the answer's bytes; the names of a state's tensors contain a dot."""


class Entry(NamedTuple):
    """A question of the current round, and its answer."""

    question: Letter
    answer: bytes
    said: str
    """The digest of the message to its neighbours, before sealing."""

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
        self._slots = Slots(folder, folder.name)
        self._log = Log(folder / "log", folder.name)
        self._seen = Seen()

    # ---- the job -----------------------------------------------------------------------------------------------

    def begin(self, begun: Begun) -> None:
        """Write the job, before the computation."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        letter = Letter("job", self.folder.name, head={"rows": begun.rows}, body=begun.job)
        replace(self.folder / "job", letter.encode())
        flush_folder(self.folder)

    def begun(self) -> Begun | None:
        """The stored job; None if it has not begun."""
        try:
            letter = Letter.decode((self.folder / "job").read_bytes())
            if (letter.kind, letter.run) != ("job", self.folder.name):
                raise RunError("it is another file, or of another run")
            return Begun(letter.word("rows"), letter.body)
        except FileNotFoundError:
            return None
        except RunError as e:
            raise RunError(f"what this site keeps of the job is damaged: {e}") from e

    def remove(self) -> None:
        """Remove the files of a finished run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- slots -------------------------------------------------------------------------------------------------

    def slots(self) -> dict[int, Slot]:
        """The existing slots, by round."""
        found, written = self._found(), self._slots.written()
        require(bool(found) or not written, "what this site keeps of the run is lost: none of its states can be read")
        return {slot.round: slot for slot in found.values()}

    def _found(self) -> dict[int, Slot]:
        """The undamaged slots, by their index."""
        both = {k: self._seen.get(self._slots.path(k), partial(self._read_slot, k)) for k in (0, 1)}
        return {k: slot for k, slot in both.items() if slot is not None}

    def _read_slot(self, k: int) -> Slot | None:
        with suppress(*UNREADABLE):
            about, tensors = self._slots.read(k)
            return Slot(**about, answer=tensors.pop(ANSWER).numpy().tobytes(), tensors=tensors)
        return None

    def save(self, slot: Slot) -> None:
        """Write over the slot that the round did not begin from."""
        found, about = self._found(), slot._asdict()
        k = 1 if 0 in found and found[0].round == slot.after else 0
        answer = torch.from_numpy(np.frombuffer(about.pop("answer"), np.uint8).copy())
        tensors = {**about.pop("tensors"), ANSWER: answer}
        self._slots.write(k, about, tensors)
        self._seen.put(self._slots.path(k), slot)

    # ---- the log -----------------------------------------------------------------------------------------------

    def log(self) -> list[Entry]:
        """The entries of the current round, from its first question on."""
        return [entry for entry, _ in self._logged()]

    def _logged(self) -> list[tuple[Entry, End]]:
        """The entries, and the end of the log after each."""
        return self._seen.get(self._log.path, self._read_log)

    def _read_log(self) -> list[tuple[Entry, End]]:
        entries = []
        with suppress(FileNotFoundError, RunError):
            data = self._log.path.read_bytes()
            for frame in self._log.frames(data):
                if not frame.fits:
                    break
                entries.append((Entry.of(Letter.decode(data[frame.start : frame.stop])), frame.end))
        return entries

    def append(self, before: list[Entry], entry: Entry) -> None:
        """Append after these entries, a prefix of the log; without any, a new log begins."""
        kept = self._logged()[: len(before)]
        self._log.end = kept[-1][1] if kept else self._log.begin
        self._log.append([[entry.encode()]])
        self._seen.put(self._log.path, [*kept, (entry, self._log.end)])
