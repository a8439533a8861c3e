"""What a site refuses and what it writes down, as its site.toml says.

Every decision is in policy.py, every line in audit.py; here they are asked in their order. The audit file is also the
memory of what has left before: bytes of a job, sums that were already given, epsilon that was already spent. How
messages are sealed, masked and given noise is in site_link.py.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from proxfed.data.federated import Federated
from proxfed.errors import RunError
from proxfed.files import replace
from proxfed.fit.model_file import Signature
from proxfed.fit.own_rows import rows_apart
from proxfed.silos.protection import policy, policy_of_fits
from proxfed.silos.protection.audit import Line
from proxfed.silos.protection.bounded import Bounded
from proxfed.silos.protection.folds import folds
from proxfed.silos.protection.guard import Asked, Guard, Link, Parts, Refused, Wanted
from proxfed.silos.protection.keyring import SiteKey
from proxfed.silos.protection.ledger import Head, Ledger
from proxfed.silos.protection.signatures import sign_model
from proxfed.silos.protection.site_link import SiteLink
from proxfed.silos.protection.trajectory import Trajectory
from proxfed.silos.protection.versions import digests, too_near
from proxfed.silos.protection.witness import Signed, countersign, publics, sign
from proxfed.silos.site.config import Site
from proxfed.silos.site.holder import Holder
from proxfed.silos.site.rows import Rows
from proxfed.silos.site.table_rows import TableRows
from proxfed.silos.wire.job import Job
from proxfed.tables.raw import find_files
from proxfed.tables.schema import read_schema
from proxfed.types import Local

_log = logging.getLogger("proxfed.silos")

WITHOUT_ROWS = ("there", "shares", "unmask")
"""Questions whose answers do not depend on rows."""
COUNTS = "sizes"
"""The question for the number of rows."""


PATHS = 8
"""Families of jobs whose models are remembered."""


class SiteGuard(Guard):
    """Of one site, for all its runs."""

    def __init__(self, site: Site) -> None:
        self.site, self.audit = site, site.audit
        self.code, self.fewest = site.allow.code, site.limits.rows
        trail = self.audit.read()
        if trail.broken:
            raise Refused(f"nothing is answered: {self.audit.path} is not as it was written: {trail.broken}")
        try:
            self._head = self.ledger.check([*trail.lines])
        except RunError as e:
            raise Refused(f"nothing is answered: {e}") from e
        self.beside: Line = {}
        """What the next line of the audit file says more."""
        self.bytes: Counter[str] = Counter()
        """That left, by job."""
        self.answers: Counter[str] = Counter()
        """That depend on rows, by job."""
        self.failures = 0
        """Answers that failed while rows were worked on, over all jobs."""
        self.heads: dict[str, Head] = {}
        """How far partners' audit files were, as far as jobs have said."""
        self.circles: dict[str, Circle] = {}
        """Between whom the jobs with masks were, by job."""
        self._table: tuple[Rows, np.ndarray] | None = None
        """The digests of the rows."""
        self._paths: dict[str, Trajectory] = {}
        """Of the last families."""
        self.keys: dict[str, str] = {}
        """Fingerprints that were seen, by partner."""
        self.sums: dict[tuple[str, str, int], list[Line]] = {}
        """Masked messages that left, by job, kind and round."""
        self.survivors: dict[tuple[str, int], list[str]] = {}
        """For whose sum shares were told, by job and round."""
        self.only: dict[tuple[str, str], str] = {}
        """Questions of which there is one in a job, by job and kind."""
        self.noisy: dict[str, Line] = {}
        """Lines of noisy messages that left, by their digest: the same bytes again give nothing away."""
        for line in trail.lines:
            self._remember(line)

    def _remember(self, line: Line) -> None:
        run = line.get("run", "")
        self.bytes[run] += line.get("bytes", 0)
        self.answers[run] += line.get("answers", 1) * _depends_on_rows(line.get("what", ""))
        self.failures += _failed(line.get("what", ""))
        self.heads |= {partner: Signed.read(said).head for partner, said in line.get("heads", {}).items()}
        if "circle" in line:
            self.circles[run] = Circle(frozenset(line["circle"]), line["weights"])
        if "partner" in line:
            self.keys[line["partner"]] = line["key"]
        if "survivors" in line:
            self.survivors[run, line["t"]] = line["survivors"]
        elif "cohort" in line:
            self.sums.setdefault((run, line["what"].partition(" ")[0], line["t"]), []).append(line)
        if "question" in line:
            self.only[run, line["what"]] = line["question"]
        if "noise" in line:
            self.noisy[line["sha256"]] = line

    @cached_property
    def key(self) -> SiteKey:
        return self.site.key

    @cached_property
    def ledger(self) -> Ledger:
        return self.key.ledger(self.site.path(self.site.files.key))

    def introduction(self) -> bytes:
        return self.key.introduction()

    def head(self) -> str:
        return str(sign(self.key, self.site.name, self._head))

    def countersign(self, job: Job) -> str:
        return countersign(self.key, job.family, job.audits)

    # ---- what is refused -----------------------------------------------------------------------------------------

    def gate(self, asked: Asked) -> None:
        site, job = self.site, asked.job
        policy.check_rows(site, min(asked.rows, default=0))
        if asked.kind == "summary":
            policy.check_preparation(site, "summary")
        if asked.kind == "summary" or asked.what == COUNTS:
            policy.check_counts(site)
        if asked.kind == "query" and asked.what not in WITHOUT_ROWS:
            for measure in asked.parts or (asked.what,):
                policy.check_measure(site, measure)
                policy.check_noiseless(site, measure, None if job is None else job.protection.privacy)
        if asked.kind == "job" and job is not None:
            policy.check_failures(site, self.failures)
            policy.check_job(site, job)
            policy_of_fits.check_fit(site, job)
            self._check_circle(job)
            self._check_heads(job)
        if _depends_on_rows(asked.title):
            run = "" if job is None else job.digest
            policy.check_answers(site, self.answers[run], self.answers.total(), asked.answers)
            policy.check_failures(site, self.failures)
        if asked.kind == "round":
            policy.check_rounds(site, asked.round)

    def _check_circle(self, job: Job) -> None:
        """Sums over nearly the same sites, or with other weights, differ by a message."""
        if not job.protection.secure_aggregation or job.protection.privacy is not None or job.private:
            return
        now = Circle.of(job)
        for before in self.circles.values():
            policy.check_other_circle(self.site, before.sites ^ now.sites, before.weights == now.weights)
        self.beside |= {"circle": sorted(now.sites), "weights": now.weights}

    def _check_heads(self, job: Job) -> None:
        """An audit file only grows: a partner's that was cut is noticed here, and its last digest noted."""
        told = {site: Signed.read(said) for site, said in job.audits.items() if site in job.sites}
        keys = publics(job.introductions)
        for site, signed in told.items():
            policy.check_signed(site, signed.by(site, keys.get(site, b"")))
            before = self._head if site == self.site.name else self.heads.get(site, Head())
            policy.check_head(self.site, site, before, signed.head)
        self.beside |= {"heads": {site: str(signed) for site, signed in told.items() if site != self.site.name}}

    def begins(self, job: Job | None, rows: Rows) -> None:
        """With a table that was used before, or with one that differs from all of those in enough rows."""
        if job is not None and (job.protection.privacy is not None or job.private):
            return
        if self._table is None or self._table[0] is not rows:  # jobs of a family have the same
            self._table = rows, digests(rows.lines(), self.key.secret(b"rows"))
        self._far_enough("tables", self._table[1], "its rows differ from those of an earlier job")
        filled = None if job is None else rows.filled(job.schema)
        if filled is not None:
            said = "rows with gaps get other values than in an earlier job"
            self._far_enough("filled", digests(filled, self.key.secret(b"rows")), said)

    def _far_enough(self, folder: str, table: np.ndarray, said: str) -> None:
        """Two sums over tables that differ in a row differ by that row."""
        if too_near(self.site.path(self.site.files.state) / folder, table, self.site.limits.change):
            _log.warning("%s: %s in fewer rows than limits.change", self.site.name, said)
            raise Refused("it begins nothing new now; the log of the site says why")

    def follow(self, job: Job, start: Tensor, sent: Iterable[Tensor]) -> None:
        if job.protection.privacy is not None:
            return  # it holds at whatever model
        known = job.family in self._paths
        if not known:
            self._paths = dict([*self._paths.items()][1 - PATHS :]) | {job.family: Trajectory(start)}
        path = self._paths[job.family]
        goes_on = not known and self.answers[job.digest] > 0  # after a restart: where it was is not known any more
        for x in sent:
            policy.check_model(self.site, [x])
            policy.check_step(self.site, 0.0 if goes_on else path.far(x))
            path.add(x)

    def computes(self, job: Job, f: Local) -> Local:
        return f if job.protection.privacy is not None else Bounded(f, self.site.limits.norm)

    def folds(self, rows: Rows, strata: np.ndarray, count: int) -> np.ndarray:
        """Keyed by the site's secret. Their number and their units are kept: others would overlap in a few rows."""
        kept = self.site.path(self.site.files.state) / "folds"
        if kept.exists():
            before, _, units = kept.read_text().partition("\n")
            same_units = units.strip() == rows.divided_by
            policy_of_fits.check_same_folds(self.site, int(before), count, same_units)
        else:
            kept.parent.mkdir(parents=True, exist_ok=True)
            replace(kept, f"{count}\n{rows.divided_by}\n".encode())
        return folds(rows.lines(), strata, count, self.key.secret(b"folds"), rows.units)

    def prepares(self, job: Job, data: Federated) -> None:
        fewest = policy.fewest_of_feature(self.site, job)
        if fewest > 1 and data.features.ndim == 2:
            rows = rows_apart(data.features)
            policy.check_features(fewest, rows, data.feature_names or [str(k) for k in range(len(rows))])

    def divides(self, parts: Parts) -> None:
        total = sum(parts.rows)
        for rows in (total, *parts.rows, *(total - rows for rows in parts.rows)):
            if rows:  # of no rows nothing is told
                policy_of_fits.check_part(self.site, rows)

    def tells(self, wanted: Wanted) -> None:
        parts, total = wanted.parts, sum(wanted.parts.rows)
        if wanted.what == "hessian":
            left = [total - rows for rows in parts.rows if rows < total]
            policy_of_fits.check_products(self.site, min(total, *left, total), wanted.d)
        if wanted.what == "gram":
            policy_of_fits.check_products(self.site, min(rows for rows in parts.rows if rows), wanted.d)
        if wanted.factors is not None:
            policy_of_fits.check_factors(self.site, wanted.factors)
        if wanted.factors is not None or (wanted.what == "count" and not wanted.masked):
            policy_of_fits.check_cells(self.site, parts.cells)

    def once(self, asked: Asked, question: str) -> None:
        assert asked.job is not None
        before = self.only.get((asked.job.digest, asked.title), question)
        policy_of_fits.check_once(asked.what, before == question)
        self.beside |= {"question": question}

    def times(self, last: float) -> None:
        """Kept: between two grids single rows leave."""
        kept = self.site.path(self.site.files.state) / "times"
        if kept.exists():
            policy_of_fits.check_same_times(float(kept.read_text()), last)
        else:
            kept.parent.mkdir(parents=True, exist_ok=True)
            replace(kept, f"{last!r}\n".encode())

    def dominates(self, share: float) -> None:
        policy_of_fits.check_dominance(self.site, share)

    def judges(self) -> None:
        policy_of_fits.check_judged(self.site)

    def infers(self, clusters: int | None = None, apart: bool = False, alone: bool = False) -> None:
        policy_of_fits.check_inference(self.site, apart, alone)
        if clusters is not None:
            policy_of_fits.check_clusters(self.site, clusters)

    def signs(self, content: bytes) -> Signature:
        return sign_model(self.key, content)

    # ---- what is written down ------------------------------------------------------------------------------------

    def leaving(self, asked: Asked, to: str, body: bytes) -> None:
        run = asked.job.digest if asked.job is not None else ""
        if run:
            policy.check_bytes(self.site, self.bytes[run], len(body))
        more = {"answers": asked.answers} if asked.answers > 1 else {}
        self.note(to, asked.title, body, run=run, t=asked.round, **more, **self.beside)
        self.beside = {}

    def note(self, to: str, what: str, body: bytes | None = None, **more: Any) -> None:
        line = self.audit.write(to, what, body, **more)
        follows = line["line"] == self._head.lines + 1  # else a write failed halfway: the line is there all the same
        self._head = self._head.then(line) if follows else self.ledger.check([*self.audit.read().lines])
        self.ledger.write(self._head)
        self._remember(line)

    def declined(self, question: str, run: str, body: bytes) -> None:
        self.beside = {}
        self.note("coordinator", question, body, run=run)

    def join(self, job: Job, site: str) -> Link:
        return SiteLink(self, job, site)


def _depends_on_rows(what: str) -> bool:
    """An answer of this kind, by the first words of its line in the audit file, tells something of rows.

    So does one that failed while rows were worked on. Refusals come before.
    """
    kind, _, rest = what.partition(" ")
    return kind in ("round", "query", "summary") and rest not in (*WITHOUT_ROWS, "refused", "late", "gone", "unknown")


def _failed(what: str) -> bool:
    return what.endswith(" failed") and (what.startswith("job") or _depends_on_rows(what))


class Circle(NamedTuple):
    """The sites of a job with masks, and the digest of what each client weighs."""

    sites: frozenset[str]
    weights: str

    @classmethod
    def of(cls, job: Job) -> Circle:
        each = sorted(zip(job.sites, job.clients, _by_site(job), strict=True))
        return cls(frozenset(job.sites), hashlib.sha256(repr(each).encode()).hexdigest()[:32])


def _by_site(job: Job) -> list[tuple[float, ...]]:
    return [tuple(job.weights[i] for i in job.who.here(site)) for site in job.sites]


def holder(site: Site) -> Holder:
    """The holder of a site, as its site.toml says; rows are read when they are first asked for."""
    return Holder(site.name, SiteFiles(site), site.path(site.files.state), SiteGuard(site))


@dataclass(frozen=True)
class SiteFiles:
    """The rows of a site, from where site.toml says, and from nowhere else."""

    site: Site

    def read(self) -> Rows:
        data = self.site.data
        if data.schema_file:
            return TableRows.read_table(self.site.path(data.schema_file), self.site.name, data.organisation)
        test = None if data.test is None else self.site.path(data.test)
        more = {"classes": data.classes, "test": test, "held_out": data.held_out}
        return Rows.read(self.site.path(data.path), data.label, data.client, **more)

    def stamp(self) -> object:
        return [(str(path), found.st_ino, found.st_mtime_ns, found.st_size) for path in self._files()
                if (found := path.stat())]  # fmt: skip

    def _files(self) -> list[Path]:
        data = self.site.data
        if not data.schema_file:
            return [self.site.path(name) for name in (data.path, data.test) if name]
        schema = self.site.path(data.schema_file)
        source = read_schema(schema).source
        joins = [source.model_copy(update={"files": join.file}) for join in source.join]
        return [schema, *(path for of in (source, *joins) for path in find_files(of, schema.parent).values())]
