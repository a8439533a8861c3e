"""What a holder keeps of a run on its own disk: two slots with its state after a round, and the log of one under way.

    job                             what the run is, and over which rows
    0.safetensors, 1.safetensors    two slots (files/slots.py): the state after a round, and the answer that ended it
    log                             questions and answers of a round that is not over (files/log.py)

A slot is on the disk before its answer leaves. The one that a round began from stays until the next round has begun
from another, so that a round whose answer never counted can be left out: the coordinator says after which round it goes
on. The log counts up to the first entry that is torn or damaged: what is behind it is asked for again.
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


ANSWER = "answer"
"""The name of the answer's bytes beside the tensors of a state, whose names have a dot in them."""


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
        self._slots = Slots(folder, folder.name)
        self._log = Log(folder / "log", folder.name)
        self._seen = Seen()

    # ---- the job -----------------------------------------------------------------------------------------------

    def begin(self, begun: Begun) -> None:
        """Before anything is computed."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        letter = Letter("job", self.folder.name, head={"rows": begun.rows}, body=begun.job)
        replace(self.folder / "job", letter.encode())
        flush_folder(self.folder)

    def begun(self) -> Begun | None:
        """None if it has not begun."""
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
        """The run is over."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- slots -------------------------------------------------------------------------------------------------

    def slots(self) -> dict[int, Slot]:
        """Those that are there, by round."""
        found, written = self._found(), self._slots.written()
        require(bool(found) or not written, "what this site keeps of the run is lost: none of its states can be read")
        return {slot.round: slot for slot in found.values()}

    def _found(self) -> dict[int, Slot]:
        """Those that are whole, by their place."""
        both = {k: self._seen.get(self._slots.path(k), partial(self._read_slot, k)) for k in (0, 1)}
        return {k: slot for k, slot in both.items() if slot is not None}

    def _read_slot(self, k: int) -> Slot | None:
        with suppress(*UNREADABLE):
            about, tensors = self._slots.read(k)
            return Slot(**about, answer=tensors.pop(ANSWER).numpy().tobytes(), tensors=tensors)
        return None

    def save(self, slot: Slot) -> None:
        """In the place of the one that the round did not begin from."""
        found, about = self._found(), slot._asdict()
        k = 1 if 0 in found and found[0].round == slot.after else 0
        answer = torch.from_numpy(np.frombuffer(about.pop("answer"), np.uint8).copy())
        tensors = {**about.pop("tensors"), ANSWER: answer}
        self._slots.write(k, about, tensors)
        self._seen.put(self._slots.path(k), slot)

    # ---- the log -----------------------------------------------------------------------------------------------

    def log(self) -> list[Entry]:
        """Of the round under way, from its first question on."""
        return [entry for entry, _ in self._logged()]

    def _logged(self) -> list[tuple[Entry, End]]:
        """The entries, and where the log ends with each."""
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
        """Behind these, which are the log or its beginning; without any, a new log begins."""
        kept = self._logged()[: len(before)]
        self._log.end = kept[-1][1] if kept else self._log.begin
        self._log.append([[entry.encode()]])
        self._seen.put(self._log.path, [*kept, (entry, self._log.end)])
