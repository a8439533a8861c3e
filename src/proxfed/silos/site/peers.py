"""The clients of a site among peers: a step that stops at every `mix` until the neighbours' messages are there.

While the process lives, the step stays paused. After a restart it is replayed from the beginning of the round with the
questions in the site's log, and must produce the same messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from torch import Tensor

from proxfed.engine.halves import Work
from proxfed.engine.messages import dense
from proxfed.errors import RunError
from proxfed.silos.protection.guard import Link, withheld
from proxfed.silos.site.fibre import Fibre, Stop
from proxfed.silos.site.part import Counts, Part
from proxfed.silos.site.store import Entry
from proxfed.silos.wire.message import Letter, canonical, flat, pack, unpack
from proxfed.types import Message


class Peers:
    """The step of one round, and its position."""

    def __init__(self, part: Part, link: Link) -> None:
        self.part, self.link = part, link
        self._fibre: Fibre | None = None
        self._at = (-1, -1)
        """The round, and how many questions of it have been answered."""
        self._stop = Stop(False, None)
        """Its message at the last `mix`."""
        self._work, self._said = Work(), Counts()

    def stands_before(self, t: int, k: int) -> bool:
        """Whether its next question is the k-th of round t; every round starts afresh."""
        return k > 0 and self._fibre is not None and self._fibre.here and self._at == (t, k)

    def replay(self, t: int, before: Any, log: Sequence[Entry]) -> None:
        """Replay round t from the state before it, through the questions that were answered."""
        self._work, self._said, self._stop = Work(), Counts(), Stop(False, None)
        self._fibre, self._at = Fibre(self.part.step(before, t, self._work)), (t, 0)
        for k, entry in enumerate(log):
            stop = self.go(entry.question)
            if entry.said != _said(*pack(stop.value, self.part.codecs)):
                raise RunError(
                    f"round {t}: computed again after a restart, step {k} is not what it was before; "
                    "has the software of this site changed?"
                )

    def go(self, letter: Letter) -> Stop:
        """Resume with the neighbours' messages of the last `mix`, until the next one or the end."""
        assert self._fibre is not None
        t, k = self._at
        heard = [self._mixed(t, k, letter)] if k > 0 else []
        with withheld(f"round {t}, step {k} failed"):
            stop = self._fibre.go(*heard)
        self._at = t, k + 1
        if stop.done:
            self._fibre = None
        else:  # count it, and mix it with the received rows
            self._stop = stop
            self._said = Counts(*map(sum, zip(self._said, self.part.sent(stop.value, t), strict=True)))
        return stop

    def counts(self) -> Counts:
        return self._said._replace(gradients=self._work.gradients, proxes=self._work.proxes)

    def told(self, t: int, k: int, message: Message) -> tuple[dict[str, Any], bytes, str]:
        """(head, body, digest) of the message at `mix`: sealed for each neighbour, or the same for all."""
        form, body = pack(message, self.part.codecs)
        whole = canonical({"form": form}) + b"\n" + body
        to = self.part.neighbours(t) if self.link.sealed else ["*"]
        parts = [self.link.seal(site, t, k, whole) for site in to] if self.link.sealed else [whole]
        return {"done": False, "to": to, "sizes": [len(p) for p in parts]}, b"".join(parts), _said(form, body)

    # ---- received messages --------------------------------------------------------------------------------------

    def _mixed(self, t: int, k: int, letter: Letter) -> Tensor:
        heard = self._heard(letter)
        missing = [site for site in self.part.neighbours(t) if site not in heard]
        if missing:
            raise RunError(f"round {t}, step {k}: nothing came from {', '.join(missing)}")
        return self.part.mixed(t, heard, dense(self._stop.value))

    def _heard(self, letter: Letter) -> dict[str, Tensor]:
        """The rows that the neighbours sent at the previous stop."""
        part, heard, at = self.part, {}, 0
        for site, size in zip(letter.words("from"), letter.numbers("sizes"), strict=True):
            body, at = letter.body[at : at + size], at + size
            if site not in part.job.sites:
                raise RunError(f"{site!r:.40} is no site of this run")
            plain = self.link.unseal(site, letter.round, letter.step - 1, body)
            about, _, vectors = plain.partition(b"\n")
            form, rows = _form(about), len(part.job.who.here(site))
            message = unpack(form, vectors, part.codecs, part.problem.f.d, rows)
            heard[site] = _rows(message, rows, site)
        return heard


def _said(form: str, body: bytes) -> str:
    return sha256(form.encode() + b"\n" + body).hexdigest()[:32]


def _form(about: bytes) -> str:
    form = flat(about).get("form")
    if not isinstance(form, str):
        raise RunError("a message has no form")
    return form


def _rows(message: Message, rows: int, site: str) -> Tensor:
    good = isinstance(message, Tensor) and message.ndim == 2 and len(message) == rows
    if not good:
        raise RunError(f"what {site} sent to its neighbours is not {rows} rows")
    return message
