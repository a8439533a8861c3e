"""A holder: a function from bytes to bytes with a durable state. Asking it twice is harmless.

    hello     what the site's rows look like
    summary   of a table with words and gaps: what it is prepared by (table_rows.py)
    job       what is going to be computed; the site builds it from its own rows, or refuses
    round     t, k: with a server the whole round, from its message; on a graph the part between two calls of `mix`
    query     numbers that a run is judged by (queries.py); nothing of the state changes
    end       the run is over: what was kept of it is removed

The answer to a round is on the disk before it leaves, with the state that belongs to it. The same question again gets
the same bytes. A question that is older than one that was answered is late, and changes nothing. One that goes on
`after` an earlier round than the last, because the last answer never counted, is worked on from the state after that
round. Whatever else comes is answered in one sentence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import Any

from torch import Tensor

from proxfed._version import __version__
from proxfed.engine.messages import dense, nbytes
from proxfed.engine.oracle import Work
from proxfed.errors import InputError, ProxfedError, RunError, require
from proxfed.harness.files import locked
from proxfed.registry import only_installed
from proxfed.silos import queries
from proxfed.silos.fibre import Fibre, Stop
from proxfed.silos.guard import Asked, Guard, Link, Refused, Upload
from proxfed.silos.job import FORMAT, Built, Job, build
from proxfed.silos.message import Letter, canonical, flat, pack, unpack
from proxfed.silos.part import Counts, Part
from proxfed.silos.rows import Rows, empty
from proxfed.silos.store import Entry, Slot, Store
from proxfed.types import Message, Star

_log = logging.getLogger("proxfed.silos")


class Holder:
    """One site: its name, its rows, and a folder of its own for what it keeps."""

    def __init__(self, name: str, rows: Rows | Callable[[], Rows], folder: Path, guard: Guard | None = None) -> None:
        self.name, self.folder, self.guard = name, Path(folder), guard or Guard()
        self._given = rows
        self._runs: dict[str, Run] = {}
        self._built: tuple[bytes, Built] | None = None
        self._one_at_a_time = RLock()

    @property
    def rows(self) -> Rows:
        if callable(self._given):
            self._given = self._given()
        return self._given

    def answer(self, question: bytes) -> bytes:
        """Whatever comes, an answer goes back."""
        try:
            letter = Letter.decode(question)
        except RunError as e:
            return self._declined(Letter("", ""), Letter("damaged", "", head={"why": str(e)}))
        with self._one_at_a_time:
            try:
                with locked(self.folder):
                    return self._answer(letter)
            except _Reply as reply:
                kind, head = reply.args
            except InputError as e:
                kind, head = "refused", {"why": str(e)}
            except ProxfedError as e:
                kind, head = "failed", {"why": str(e)}
            except Exception as e:
                _log.exception("%s: a question of kind %r", self.name, letter.kind)
                kind, head = (
                    "failed",
                    {"why": f"an error that was not expected, {type(e).__name__}: see the site's log"},
                )
            self._runs.pop(letter.run, None)  # what is in memory may be half done: it is read again
            return self._declined(letter, self._seal(letter, kind, head))

    def _declined(self, question: Letter, answer: Letter) -> bytes:
        data = answer.encode()
        self.guard.declined(f"{question.kind:.20} {answer.kind}".strip(), question.run, data)
        return data

    def _seal(self, letter: Letter, kind: str, head: Mapping[str, Any], body: bytes = b"") -> Letter:
        """An answer says what it is the answer to."""
        return Letter(
            kind, letter.run, letter.round, letter.step, {"of": letter.digest, "site": self.name, **head}, body
        )

    def _answer(self, letter: Letter) -> bytes:
        match letter.kind:
            case "hello":
                return self._hello(letter)
            case "summary":
                return self._summary(letter)
            case "job":
                return self._job(letter)
            case "round":
                return self._run(letter.run).round(letter)
            case "query":
                return self._query(letter)
            case "end":
                self._runs.pop(letter.run, None)
                Store(self._place(letter.run)).remove()
                return self._seal(letter, "answer", {}).encode()
        raise RunError(f"a question of kind {letter.kind!r:.40} is not known here")

    # ---- before a run ------------------------------------------------------------------------------------------

    def asked(self, letter: Letter, job: Job | None, what: str = "", parts: tuple[str, ...] = ()) -> Asked:
        return Asked(letter.kind, what, letter.round, job, [int(size) for size in self.rows.sizes], parts)

    def _hello(self, letter: Letter) -> bytes:
        asked = self.asked(letter, None, "sizes" if letter.head.get("weights") else "")
        self.guard.gate(asked)
        told = {"schema": self.rows.schema(), "format": FORMAT, "version": __version__}
        if letter.head.get("weights"):
            told["weights"] = self.rows.weights()
        told["introduction"] = self.guard.introduction().hex()
        return self.leave(asked, self._seal(letter, "answer", {}, canonical(told)))

    def _summary(self, letter: Letter) -> bytes:
        """Of a table, by which all sites prepare theirs."""
        asked = self.asked(letter, None)
        self.guard.gate(asked)
        return self.leave(asked, self._seal(letter, "answer", {}, self.rows.summary()))

    def leave(self, asked: Asked, letter: Letter, to: str = "coordinator") -> bytes:
        """Written down before it leaves."""
        data = letter.encode()
        self.guard.leaving(asked, to, data)
        return data

    def _job(self, letter: Letter) -> bytes:
        """The same job again is harmless; with other rows than it was begun with, it is refused."""
        job = Job.decode(letter.body)
        job.check_code(self.guard.code)
        require(job.digest == letter.run, "the job is not the one that its name says")
        require(self.name in job.sites, f"the job is for {', '.join(job.sites)}, not for {self.name}")
        asked = self.asked(letter, job)
        self.guard.gate(asked)
        store, mine = Store(self._place(job.digest)), canonical({"rows": self.rows.digest()})
        before = store.job()
        if before is None:
            store.begin(mine + b"\n" + letter.body)
        else:
            same = before.partition(b"\n")[0] == mine
            require(same, "the rows are not those that the run was begun with")
        with only_installed(self.guard.code):
            build(job, empty(job.schema, job.window(None)))  # what is wrong with the job itself may be told
        try:
            built = self.build(job)
        except ProxfedError as e:  # its sentence may say something of the rows
            _log.warning("%s: the rows do not fit a job: %s", self.name, e)
            raise Refused("its rows do not fit the job; the log of the site says why") from e
        told = {"d": built.problem.d, "n": built.problem.n}
        return self.leave(asked, self._seal(letter, "answer", told))

    def build(self, job: Job) -> Built:
        """The job over this site's rows; several algorithms share what was read."""
        here = self.rows
        require(
            len(here.sizes) == job.clients[job.sites.index(self.name)],
            f"{self.name} is {len(here.sizes)} clients, and the job counts {job.clients[job.sites.index(self.name)]}",
        )
        with only_installed(self.guard.code):
            return build(job, here.federated(job.schema, job.window(self.name)))

    def _place(self, run: str) -> Path:
        """The folder of a run, whose name is a digest and nothing else."""
        good = len(run) == 32 and all(c in "0123456789abcdef" for c in run)
        if not good:
            raise RunError(f"{run!r:.40} is no name of a run")
        return self.folder / run

    def _run(self, run: str) -> Run:
        if run not in self._runs:
            store = Store(self._place(run))
            told = store.job()
            if told is None:
                raise _Reply("unknown", {})
            job = Job.decode(told.partition(b"\n")[2])
            self._runs = {run: Run(self, job, store)}  # one at a time in memory
        return self._runs[run]

    def _query(self, letter: Letter) -> bytes:
        run = self._run(letter.run)
        what = letter.word("what")
        asked = self.asked(letter, run.job, what, tuple(letter.words("parts")) if what == "point" else ())
        self.guard.gate(asked)
        head, body = queries.answer(run, letter)
        return self.leave(asked, self._seal(letter, "answer", head, body))


class _Reply(Exception):
    """(kind, head) of an answer that is none."""


class Run:
    """One run at one site, between two questions."""

    def __init__(self, holder: Holder, job: Job, store: Store) -> None:
        self.holder, self.job, self.store = holder, job, store
        self.here = job.who.here(holder.name)
        self.built = holder.build(job)
        self.part = Part(job, self.built, self.here) if self.built.algorithm is not None else None
        self.link: Link = holder.guard.join(job, holder.name)
        self._fibre: Fibre | None = None
        self._at = (-1, -1, -1)
        """The round, the one that it goes on after, and the step at which the fibre has stopped."""
        self._own: Message = None
        """What it said there."""
        self._work, self._said = Work(), Counts()

    def state(self, t: int) -> Any:
        """After round t."""
        slots = self.store.slots()
        if t not in slots:
            raise _Reply("gone", {"have": sorted(slots)})
        assert self.part is not None
        return self.part.state(slots[t].tensors)

    def round(self, letter: Letter) -> bytes:
        slots, log = self.store.slots(), self.store.log()
        for question, answer in [
            *((slot.question, slot.answer) for slot in slots.values()),
            *((entry.question.digest, entry.answer) for entry in log),
        ]:
            if question == letter.digest:
                return answer
        lives = [(slot.life, slot.round, slot.step) for slot in slots.values()]
        lives += [(e.question.life, e.question.round, e.question.step) for e in log]
        latest = max(lives, default=(-1, -1, -1))
        if (letter.life, letter.round, letter.step) <= latest:
            raise _Reply("late", {"at": list(latest[1:])})
        require(self.part is not None, "the job has no algorithm")
        asked = self.holder.asked(letter, self.job)
        self.holder.guard.gate(asked)
        assert self.part is not None
        return (self._star if isinstance(self.part.algorithm, Star) else self._peers)(letter, asked)

    def _before(self, letter: Letter) -> tuple[int, Any]:
        """The round that this one goes on from, and the state after it."""
        after = letter.number("after", -1)
        if not -1 <= after < letter.round and not after == -1 == letter.round - 1:
            raise RunError(f"round {letter.round} cannot go on after round {after}")
        return after, None if letter.round == 0 else self.state(after)

    def _keep(self, letter: Letter, after: int, state: Any, answer: bytes) -> bytes:
        """On the disk; then it may leave."""
        assert self.part is not None
        self.store.save(
            Slot(letter.round, after, letter.step, letter.life, letter.digest, answer, self.part.tensors(state))
        )
        return answer

    # ---- star --------------------------------------------------------------------------------------------------

    def _star(self, letter: Letter, asked: Asked) -> bytes:
        part, (after, before) = self.part, self._before(letter)
        assert part is not None
        if letter.round == 0:
            state, counts = part.begin()
            answer = self.holder._seal(letter, "answer", {"counts": list(counts)})
            return self._keep(letter, after, state, self.holder.leave(asked, answer))
        ids, form = letter.numbers("ids"), letter.word("form")
        some = len(ids) > 0 or part.algorithm.requires().all_hear
        if not (some and ids == sorted({*ids}) and all(i in self.here for i in ids)):
            raise RunError(f"ids = {ids!r:.60} are not clients of {self.holder.name}")
        down = unpack(form, letter.body, part.codecs, part.problem.d, 1, shared=True)
        done = part.answer(before, down, letter.round, ids)
        if not ids:  # it has heard what the server said, and has nothing to say
            answer = self.holder._seal(letter, "answer", {"counts": list(done.counts)})
            return self._keep(letter, after, done.state, self.holder.leave(asked, answer))
        upload = Upload(letter.round, letter.step, letter.words("cohort"), ids, letter.body, down, before, part)
        up, said = self.link.upload(done.up, upload)
        counts = done.counts
        if up is not done.up and not isinstance(up, bytes):
            size, best = nbytes(up)
            counts = counts._replace(sent=size, best=best)
        head = {"counts": list(counts), **said}
        if isinstance(up, bytes):
            form, body = "", up
        else:
            form, body = pack(up, part.codecs)
        answer = self.holder._seal(letter, "answer", {"form": form, **head}, body)
        return self._keep(letter, after, done.state, self.holder.leave(asked, answer))

    # ---- graph -------------------------------------------------------------------------------------------------

    def _peers(self, letter: Letter, asked: Asked) -> bytes:
        part, t, k = self.part, letter.round, letter.step
        assert part is not None
        after = letter.number("after", -1)
        if after != t - 1:
            raise RunError(f"round {t} of peers cannot go on after round {after}")
        log = [e for e in self.store.log() if (e.question.round, e.question.number("after", -1)) == (t, after)][:k]
        if len(log) < k:
            raise _Reply("late", {"at": [t, len(log) - 1]})
        stop = Stop(False, None)
        if k == 0 or self._fibre is None or not self._fibre.here or self._at != (t, after, k - 1):
            stop = self._replay(letter, log)
        if k > 0:
            assert self._fibre is not None
            stop = self._go(self._fibre, t, k, letter)
        self._at = t, after, k
        if stop.done:
            self._fibre = None
            answer = self.holder._seal(letter, "answer", {"done": True, "counts": list(self._counts())})
            return self._keep(letter, after, stop.value, self.holder.leave(asked, answer))
        form, body = pack(stop.value, part.codecs)
        answer = self._told(letter, form, body)
        data = self.holder.leave(asked, answer, "neighbours")
        self.store.append(log, Entry(letter, data, _said(form, body)))
        return data

    def _replay(self, letter: Letter, log: list[Entry]) -> Stop:
        """From the beginning of the round up to the last question that was answered."""
        part, (_, before) = self.part, self._before(letter)
        assert part is not None
        self._work, self._said, self._own = Work(), Counts(), None
        self._fibre = Fibre(part.step(before, letter.round, self._work))
        stop = self._note(self._fibre.go(), letter.round)
        for k, entry in enumerate(log):
            if k > 0:
                stop = self._go(self._fibre, letter.round, k, entry.question)
            form, body = pack(stop.value, part.codecs)
            if entry.said != _said(form, body):
                raise RunError(
                    f"round {letter.round}: computed again after a restart, step {k} is not what it was before; "
                    "has the software of this site changed?"
                )
        return stop

    def _go(self, fibre: Fibre, t: int, k: int, letter: Letter) -> Stop:
        """On with what the neighbours said at the last stop."""
        part = self.part
        assert part is not None
        heard = self._heard(letter)
        missing = [site for site in part.neighbours(t) if site not in heard]
        if missing:
            raise RunError(f"round {t}, step {k}: nothing came from {', '.join(missing)}")
        return self._note(fibre.go(part.mixed(t, heard, dense(self._own))), t)

    def _note(self, stop: Stop, t: int) -> Stop:
        """What is sent at a stop is counted, and mixed with what is heard."""
        assert self.part is not None
        if not stop.done:
            self._own = stop.value
            self._said = Counts(*map(sum, zip(self._said, self.part.sent(stop.value, t), strict=True)))
        return stop

    def _counts(self) -> Counts:
        return self._said._replace(gradients=self._work.gradients, proxes=self._work.proxes)

    def _told(self, letter: Letter, form: str, body: bytes) -> Letter:
        """The message at `mix`: for each neighbour under its seal, or the same for all."""
        assert self.part is not None
        t, k = letter.round, letter.step
        if self.link.sealed:
            to = self.part.neighbours(t)
            parts = [self.link.seal(site, t, k, canonical({"form": form}) + b"\n" + body) for site in to]
        else:
            to, parts = ["*"], [canonical({"form": form}) + b"\n" + body]
        head = {"done": False, "to": to, "sizes": [len(p) for p in parts]}
        return self.holder._seal(letter, "answer", head, b"".join(parts))

    def _heard(self, letter: Letter) -> dict[str, Tensor]:
        """The rows that the neighbours sent at the stop before this question."""
        part = self.part
        assert part is not None
        heard, at = {}, 0
        for site, size in zip(letter.words("from"), letter.numbers("sizes"), strict=True):
            body, at = letter.body[at : at + size], at + size
            if site not in part.job.sites:
                raise RunError(f"{site!r:.40} is no site of this run")
            plain = self.link.unseal(site, letter.round, letter.step - 1, body)
            about, _, vectors = plain.partition(b"\n")
            form, rows = _form(about), len(part.job.who.here(site))
            message = unpack(form, vectors, part.codecs, part.problem.d, rows)
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
