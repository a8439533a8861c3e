"""Questions to sites and their matching answers: those that a carrier delivers twice, late, damaged or to the wrong run
are recognised, and the question is repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import RLock

from proxfed.errors import InputError, RunError
from proxfed.silos.wire.carrier import Carrier
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Letter

TRIES = 5
"""Invalid answers of one site in a row before it fails."""


class Exchange:
    """Between this process of the coordinator and the sites."""

    def __init__(self, carrier: Carrier, life: int = 1, say: Callable[[str], None] = lambda sentence: None) -> None:
        self.carrier, self.life, self.say = carrier, life, say
        self.out = self.back = 0
        """Bytes of letters so far, to and from the sites."""
        self.open: tuple[str, ...] = ()
        """The sites that are being asked."""
        self._one_at_a_time = RLock()

    def ask(
        self,
        job: Job | None,
        questions: Mapping[str, Letter],
        deadline: float | None = None,
        refusals: bool = False,
    ) -> dict[str, Letter]:
        """The answers; with a deadline, those that arrived in time. A refusal raises the site's own sentence, or, with
        `refusals`, counts as that site's answer."""
        with self._one_at_a_time:
            try:
                return self._ask(job, questions, deadline, refusals)
            finally:
                self.open = ()

    @property
    def waiting(self) -> tuple[str, ...]:
        """The sites whose answers are missing, as far as the carrier knows."""
        return tuple(site for site in self.open if site in getattr(self.carrier, "waiting", self.open))

    def _ask(
        self, job: Job | None, questions: Mapping[str, Letter], deadline: float | None, refusals: bool = False
    ) -> dict[str, Letter]:
        open_, found, tries = dict(questions), dict[str, Letter](), dict.fromkeys(questions, 0)
        end = None if deadline is None else time.monotonic() + deadline
        while open_:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            self.open = tuple(open_)
            for site, answer in self._send(open_, left).items():
                try:
                    letter = self._read(site, answer, open_[site])
                except RunError as e:
                    tries[site] += 1
                    if tries[site] >= TRIES:
                        raise RunError(f"{site}: {TRIES} answers in a row make no sense; the last one: {e}") from e
                    continue
                if letter.kind == "unknown":
                    tries[site] += 1
                    if job is None or tries[site] >= TRIES or questions[site].kind == "job":
                        raise RunError(f"{site} does not know the run, though it was told of it {TRIES} times")
                    self._ask(job, {site: Letter("job", job.digest, body=job.encode())}, left)
                    continue
                found[site] = letter if refusals and letter.kind == "refused" else self._checked(site, letter)
                del open_[site]
            if end is None and open_:
                self.say(f"no answer yet from {', '.join(open_)}; it is asked again")
        return found

    def _send(self, questions: Mapping[str, Letter], deadline: float | None) -> dict[str, bytes]:
        data = {site: replace(letter, life=self.life).encode() for site, letter in questions.items()}
        got = {site: bytes(a) for site, a in self.carrier.ask(data, deadline).items() if site in questions}
        self.out += sum(map(len, data.values()))
        self.back += sum(map(len, got.values()))
        return got

    def _read(self, site: str, answer: bytes, question: Letter) -> Letter:
        """The answer to just this question, or RunError."""
        letter = Letter.decode(answer)
        if letter.kind == "damaged":
            raise RunError(f"the question arrived damaged: {letter.head.get('why')!s:.100}")
        if letter.head.get("of") != question.digest or letter.head.get("site") != site:
            raise RunError("it is the answer to another question")
        return letter

    def _checked(self, site: str, letter: Letter) -> Letter:
        why = str(letter.head.get("why", ""))[:500]
        if letter.kind == "answer":
            return letter
        if letter.kind == "refused":
            raise InputError(f"{site} refuses: {why}")
        if letter.kind == "late":
            t, k = [*letter.numbers("at"), -1, -1][:2]
            raise RunError(f"{site} has been asked by another coordinator since, and is at round {t}, step {k}")
        if letter.kind == "gone":
            raise RunError(f"{site} has no state to go on from: it has those after rounds {letter.head.get('have')}")
        raise RunError(f"{site} failed: {why}")
