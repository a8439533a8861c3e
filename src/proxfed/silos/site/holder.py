"""A holder: an idempotent function from bytes to bytes with a durable state.

    hello     the schema of the site's rows
    summary   of a table with words and gaps: the basis of its preparation (table_rows.py)
    job       the computation; the site builds it from its own rows, or refuses
    round     t, k: with a server the whole round, from its message; on a graph the part between two calls of `mix`
    query     numbers that evaluate a run (queries.py), or sums for a fit (site_fit.py); no state changes
    model     the result of a fit: the site keeps a copy
    end       the run is over: its files are removed

Rounds are answered from the stored state of their run (site_run.py). Anything else is refused in one sentence.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, Protocol

from proxfed.errors import InputError, ProxfedError, RunError, require
from proxfed.files import locked, private_folder
from proxfed.machine import versions
from proxfed.registry import only_installed
from proxfed.silos.protection.guard import Asked, Guard, Refused, withheld
from proxfed.silos.site.rows import Rows, without_rows
from proxfed.silos.site.site_fit import SiteFit
from proxfed.silos.site.site_run import Reply, SiteRun
from proxfed.silos.site.store import Begun, Store
from proxfed.silos.wire import queries
from proxfed.silos.wire.job import Built, Job, complete, problem_of
from proxfed.silos.wire.message import Letter, canonical, is_digest
from proxfed.types import Problem

_log = logging.getLogger("proxfed.silos")

VERSIONS = ("proxfed", "torch", "numpy", "kernels", "machine")
"""The versions on which a run's numbers depend; a site sends them."""


FAMILIES = 2
"""Problems kept in memory: an algorithm with its own weight decay runs on one and is measured on another."""


class Unfit(Refused):
    """A job that does not fit the rows. The refusal reveals something about them, so the audit file records it as a
    failure."""


class Source(Protocol):
    """The source of a site's rows."""

    def read(self) -> Rows: ...

    def stamp(self) -> object:
        """Changes whenever one of its files does."""


class Holder:
    """One site: its name, its rows, and its folder."""

    def __init__(self, name: str, rows: Rows | Source, folder: Path, guard: Guard | None = None) -> None:
        self.name, self.folder, self.guard = name, Path(folder), guard or Guard()
        self._source = None if isinstance(rows, Rows) else rows
        self._rows = rows if isinstance(rows, Rows) else None
        self._stamp: object = None
        self._runs: dict[str, SiteRun | SiteFit] = {}
        """The runs of the families whose problems are in memory."""
        self._problems: dict[str, Problem] = {}
        """The latest problems, by family: the jobs of a family share theirs."""
        self._one_at_a_time = RLock()

    @property
    def rows(self) -> Rows:
        """The rows as of the last question."""
        if self._rows is None:
            self._look()
        assert self._rows is not None
        return self._rows

    def _look(self) -> None:
        """Read changed files again; runs that began with other rows are refused from then on."""
        if self._source is None or (stamp := self._source.stamp()) == self._stamp:
            return
        self._rows, self._stamp = self._source.read(), stamp
        self._runs, self._problems = {}, {}
        self.__dict__.pop("_rows_digest", None)

    def answer(self, question: bytes) -> bytes:
        """Every question gets an answer; RunError if not even a refusal can be written to the audit file first."""
        try:
            letter = Letter.decode(question)
        except RunError as e:
            return self._declined(Letter("", ""), Letter("damaged", "", head={"why": str(e)}))
        unfit = False
        with self._one_at_a_time:
            try:
                private_folder(self.folder)
                with locked(self.folder):
                    return self._answer(letter)
            except Reply as reply:
                kind, head = reply.args
            except InputError as e:
                kind, head, unfit = "refused", {"why": str(e)}, isinstance(e, Unfit)
            except ProxfedError as e:
                kind, head = "failed", {"why": str(e)}
            except Exception as e:
                _log.exception("%s: a question of kind %r", self.name, letter.kind)
                kind, head = (
                    "failed",
                    {"why": f"an error that was not expected, {type(e).__name__}: see the site's log"},
                )
            self._runs.pop(letter.run, None)  # the state in memory may be inconsistent: read it again
            return self._declined(letter, self.seal(letter, kind, head), unfit)

    def _declined(self, question: Letter, answer: Letter, unfit: bool = False) -> bytes:
        data = answer.encode()
        kind = "failed" if unfit else answer.kind
        self.guard.declined(f"{question.kind} {kind}".strip(), question.run, data)
        return data

    def seal(self, letter: Letter, kind: str, head: Mapping[str, Any], body: bytes = b"") -> Letter:
        """An answer, which names its question."""
        return Letter(
            kind, letter.run, letter.round, letter.step, {"of": letter.digest, "site": self.name, **head}, body
        )

    def _answer(self, letter: Letter) -> bytes:
        try:
            self._look()
        except (ProxfedError, OSError) as e:
            _log.error("%s: its rows cannot be read: %s", self.name, e)
            raise Refused("its rows cannot be read now; the log of the site says why") from e
        match letter.kind:
            case "hello":
                return self._hello(letter)
            case "summary":
                return self._summary(letter)
            case "job":
                return self._job(letter)
            case "round":
                run = self._run(letter.run)
                if isinstance(run, SiteFit):
                    raise RunError("a fit has no rounds")
                return run.round(letter)
            case "query":
                return self._query(letter)
            case "model":
                return self._model(letter)
            case "end":
                self._runs.pop(letter.run, None)
                Store(self._place(letter.run)).remove()
                return self.seal(letter, "answer", {"audit": self.guard.head()}).encode()
        raise RunError(f"a question of kind {letter.kind!r:.40} is not known here")

    # ---- before a run ------------------------------------------------------------------------------------------

    def asked(self, letter: Letter, job: Job | None, what: str = "", parts: tuple[str, ...] = ()) -> Asked:
        return Asked(letter.kind, what, letter.round, job, [int(size) for size in self.rows.sizes], parts)

    def _hello(self, letter: Letter) -> bytes:
        asked = self.asked(letter, None, "sizes" if letter.head.get("weights") else "")
        self.guard.gate(asked)
        told: dict[str, Any] = {"schema": self.rows.schema(), "versions": {key: versions()[key] for key in VERSIONS}}
        if letter.head.get("weights"):
            told["weights"] = self.rows.weights()
        told |= {"introduction": self.guard.introduction().hex(), "audit": self.guard.head()}
        return self.leave(asked, self.seal(letter, "answer", {}, canonical(told)))

    def _summary(self, letter: Letter) -> bytes:
        """Of a table; from all summaries follows the common preparation."""
        asked = self.asked(letter, None)
        self.guard.gate(asked)
        self.guard.begins(None, self.rows)
        with withheld("its rows have no summary"):
            summary = self.rows.summary()
        return self.leave(asked, self.seal(letter, "answer", {}, summary))

    def leave(self, asked: Asked, letter: Letter, to: str = "coordinator") -> bytes:
        """Encode an answer and write it to the audit file before it leaves."""
        data = letter.encode()
        self.guard.leaving(asked, to, data)
        return data

    def _job(self, letter: Letter) -> bytes:
        """Idempotent; refused if the rows have changed since the job began."""
        job = Job.decode(letter.body)
        job.check_code(self.guard.code)
        require(job.digest == letter.run, "the job is not the one that its name says")
        require(self.name in job.sites, f"the job is for {', '.join(job.sites)}, not for {self.name}")
        asked = self.asked(letter, job)
        self.guard.gate(asked)
        store = Store(self._place(job.digest))
        if self._begun(store) is None:
            self.guard.begins(job, self.rows)
            store.begin(Begun(self._rows_digest, letter.body))
        if job.fit is not None:
            self._runs[job.digest] = fit = self._fit(job)
            return self.leave(asked, self.seal(letter, "answer", fit.begins()))
        try:
            with withheld("its rows do not fit the job"):
                built = self.build(job)
        except RunError as e:
            with only_installed(self.guard.code):
                complete(job, without_rows(job))  # errors of the job itself may be revealed
            raise Unfit(str(e)) from e
        told = {"d": built.problem.f.d, "n": built.problem.f.n, "countersigned": self.guard.countersign(job)}
        return self.leave(asked, self.seal(letter, "answer", told))

    def _fit(self, job: Job) -> SiteFit:
        """The fit of a job; the last one is in memory, with its rows."""
        self._runs = {run: each for run, each in self._runs.items() if not isinstance(each, SiteFit)}
        try:
            with withheld("its rows do not fit the job"):
                return SiteFit(self, job)
        except RunError as e:
            raise Unfit(str(e)) from e

    def _begun(self, store: Store) -> Job | None:
        """The job of a run, None if it has not begun; refused if the rows have changed since."""
        begun = store.begun()
        if begun is None:
            return None
        require(begun.rows == self._rows_digest, "the rows are not those that the run was begun with")
        return Job.decode(begun.job)

    @cached_property
    def _rows_digest(self) -> str:
        return self.rows.digest()

    def build(self, job: Job) -> Built:
        """Build the job over this site's rows; jobs of one family share their problem."""
        here = self.rows
        require(
            len(here.sizes) == job.clients[job.sites.index(self.name)],
            f"{self.name} is {len(here.sizes)} clients, and the job counts {job.clients[job.sites.index(self.name)]}",
        )
        with only_installed(self.guard.code):
            family = job.family
            if family not in self._problems:
                kept = [*self._problems][1 - FAMILIES :]
                self._problems = {key: self._problems[key] for key in kept}
                self._runs = {run: each for run, each in self._runs.items() if each.job.family in kept}
                data = here.federated(job.schema, job.window(self.name))
                self.guard.prepares(job, data)
                self._problems[family] = problem_of(job, data)
            return complete(job, self._problems[family])

    def _place(self, run: str) -> Path:
        """The folder of a run, whose name must be a digest."""
        if not is_digest(run):
            raise RunError(f"{run!r:.40} is no name of a run")
        return self.folder / run

    def _run(self, run: str) -> SiteRun | SiteFit:
        if run not in self._runs:
            store = Store(self._place(run))
            job = self._begun(store)
            if job is None:
                raise Reply("unknown", {})
            self._runs[run] = SiteRun(self, job, store) if job.fit is None else self._fit(job)
        return self._runs[run]

    def _model(self, letter: Letter) -> bytes:
        """Store and sign the result of a fit, which is the same for every site."""
        run = self._run(letter.run)
        if not isinstance(run, SiteFit):
            raise RunError("only a fit has a model of its own")
        asked = self.asked(letter, run.job)
        self.guard.gate(asked)
        run.keep(letter.body, self.folder / "models" / f"{letter.run}.json")
        signature = self.guard.signs(letter.body)
        told = {} if signature is None else signature.model_dump()
        return self.leave(asked, self.seal(letter, "answer", told))

    def _query(self, letter: Letter) -> bytes:
        run = self._run(letter.run)
        if isinstance(run, SiteFit):
            return run.answer(letter)
        if (told := run.told.get(letter.encode())) is not None:
            return told
        what = letter.word("what")
        asked = self.asked(letter, run.job, what, tuple(letter.words("parts")) if what == "point" else ())
        self.guard.gate(asked)
        head, body = queries.answer(run, letter)
        return run.remember(letter, self.leave(asked, self.seal(letter, "answer", head, body)))
