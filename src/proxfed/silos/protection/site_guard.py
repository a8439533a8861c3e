"""The decisions of a site, as its site.toml says.

Every decision is in policy.py or policy_of_fits.py; here they are asked in their order. What left before is
in history.py, and what is fixed for all jobs in fixed.py. How messages are sealed, masked and given noise is in
site_link.py.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from proxfed.data.federated import Federated
from proxfed.fit.model_file import Signature
from proxfed.fit.own_rows import rows_apart
from proxfed.silos.protection import policy, policy_of_fits
from proxfed.silos.protection.bounded import Bounded
from proxfed.silos.protection.fixed import check_filled, check_table, check_times, own_folds
from proxfed.silos.protection.guard import Asked, Guard, Link, Parts, Wanted
from proxfed.silos.protection.history import WITHOUT_ROWS, Circle, History, depends_on_rows
from proxfed.silos.protection.ledger import Head
from proxfed.silos.protection.signatures import sign_model
from proxfed.silos.protection.site_link import SiteLink
from proxfed.silos.protection.trajectory import Trajectory
from proxfed.silos.protection.versions import digests
from proxfed.silos.protection.witness import Signed, countersign, publics, sign
from proxfed.silos.site.config import Site
from proxfed.silos.site.rows import Rows
from proxfed.silos.wire.job import Job
from proxfed.types import Local

COUNTS = "sizes"
"""Asks for the number of rows."""

PATHS = 8
"""The number of families of jobs whose models are remembered."""


class SiteGuard(Guard):
    """The guard of one site, for all its runs."""

    def __init__(self, site: Site) -> None:
        self.site, self.history = site, History(site)
        self.key = self.history.key
        self.code, self.fewest = site.allow.code, site.limits.rows
        self._table: tuple[Rows, np.ndarray] | None = None
        """The digests of the rows."""
        self._paths: dict[str, Trajectory] = {}
        """The models of the last families of jobs."""

    def introduction(self) -> bytes:
        return self.key.introduction()

    def head(self) -> str:
        return str(sign(self.key, self.site.name, self.history.head))

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
            policy.check_failures(site, self.history.failures)
            policy.check_job(site, job)
            policy_of_fits.check_fit(site, job)
            self._check_circle(job)
            self._check_heads(job)
        if depends_on_rows(asked.title):
            run = "" if job is None else job.digest
            policy.check_answers(site, self.history.answers[run], self.history.answers.total(), asked.answers)
            policy.check_failures(site, self.history.failures)
        if asked.kind == "round":
            policy.check_rounds(site, asked.round)

    def _check_circle(self, job: Job) -> None:
        """Sums over nearly the same sites, or with other weights, differ by a message."""
        if not job.protection.secure_aggregation or job.protection.privacy is not None or job.private:
            return
        now = Circle.of(job)
        for before in self.history.circles.values():
            policy.check_other_circle(self.site, before.sites ^ now.sites, before.weights == now.weights)
        self.history.beside |= {"circle": sorted(now.sites), "weights": now.weights}

    def _check_heads(self, job: Job) -> None:
        """An audit file only grows: a partner's that was cut is noticed here, and its last digest noted."""
        told = {site: Signed.read(said) for site, said in job.audits.items() if site in job.sites}
        keys = publics(job.introductions)
        for site, signed in told.items():
            policy.check_signed(site, signed.by(site, keys.get(site, b"")))
            before = self.history.head if site == self.site.name else self.history.heads.get(site, Head())
            policy.check_head(self.site, site, before, signed.head)
        self.history.beside |= {"heads": {site: str(signed) for site, signed in told.items() if site != self.site.name}}

    def begins(self, job: Job | None, rows: Rows) -> None:
        """With a table that was used before, or with one that differs from all of those in enough rows."""
        if job is not None and (job.protection.privacy is not None or job.private):
            return
        if self._table is None or self._table[0] is not rows:  # jobs of a family have the same
            self._table = rows, digests(rows.lines(), self.key.secret(b"rows"))
        check_table(self.site, self._table[1])
        filled = None if job is None else rows.filled(job.schema)
        if filled is not None:
            check_filled(self.site, digests(filled, self.key.secret(b"rows")))

    def follow(self, job: Job, start: Tensor, sent: Iterable[Tensor]) -> None:
        if job.protection.privacy is not None:
            return  # it holds at whatever model
        known = job.family in self._paths
        if not known:
            self._paths = dict([*self._paths.items()][1 - PATHS :]) | {job.family: Trajectory(start)}
        path = self._paths[job.family]
        goes_on = (
            not known and self.history.answers[job.digest] > 0
        )  # after a restart: where it was is not known any more
        for x in sent:
            policy.check_model(self.site, [x])
            policy.check_step(self.site, 0.0 if goes_on else path.far(x))
            path.add(x)

    def computes(self, job: Job, f: Local) -> Local:
        return f if job.protection.privacy is not None else Bounded(f, self.site.limits.norm)

    def folds(self, rows: Rows, strata: np.ndarray, count: int) -> np.ndarray:
        return own_folds(self.site, self.key.secret(b"folds"), rows, strata, count)

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
        before = self.history.only.get((asked.job.digest, asked.title), question)
        policy_of_fits.check_once(asked.what, before == question)
        self.history.beside |= {"question": question}

    def times(self, last: float) -> None:
        check_times(self.site, last)

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
            policy.check_bytes(self.site, self.history.bytes[run], len(body))
        more = {"answers": asked.answers} if asked.answers > 1 else {}
        self.history.note(to, asked.title, body, run=run, t=asked.round, **more, **self.history.beside)
        self.history.beside = {}

    def declined(self, question: str, run: str, body: bytes) -> None:
        self.history.beside = {}
        self.history.note("coordinator", question, body, run=run)

    def join(self, job: Job, site: str) -> Link:
        return SiteLink(self, job, site)
