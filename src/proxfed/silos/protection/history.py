"""What has left a site, over all jobs, as its audit file says: bytes, answers, masked sums, noise and keys."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any, NamedTuple

from proxfed.errors import RunError
from proxfed.silos.protection.audit import Line
from proxfed.silos.protection.guard import Refused
from proxfed.silos.protection.ledger import Head
from proxfed.silos.protection.witness import Signed
from proxfed.silos.site.config import Site
from proxfed.silos.wire.job import Job

WITHOUT_ROWS = ("there", "shares", "unmask")
"""Questions whose answers do not depend on rows."""


class History:
    """All that has left one site, over all jobs: its audit file, and the ledger that notices a change of it."""

    def __init__(self, site: Site) -> None:
        self.audit = site.audit
        trail = self.audit.read()
        if trail.broken:
            raise Refused(f"nothing is answered: {self.audit.path} is not as it was written: {trail.broken}")
        try:
            self.key = site.key
            """Read once, so that the ledger and all secrets of a process are of the same key."""
            self._ledger = self.key.ledger(site.path(site.files.key))
            self.head = self._ledger.check([*trail.lines])
        except RunError as e:
            raise Refused(f"nothing is answered: {e}") from e
        self.beside: Line = {}
        """More entries of the next line of the audit file."""
        self.bytes: Counter[str] = Counter()
        """Bytes that left, by job."""
        self.answers: Counter[str] = Counter()
        """Answers that depend on rows, by job."""
        self.failures = 0
        """Answers that failed while rows were worked on, over all jobs."""
        self.heads: dict[str, Head] = {}
        """The last known length and digest of each partner's audit file."""
        self.circles: dict[str, Circle] = {}
        """The sites of each job with masks, and their weights."""
        self.keys: dict[str, str] = {}
        """Fingerprints of keys, by partner."""
        self.sums: dict[tuple[str, str, int], list[Line]] = {}
        """Masked messages that left, by job, kind and round."""
        self.survivors: dict[tuple[str, int], list[str]] = {}
        """The surviving sites for whose sum the shares of masks were sent, by job and round."""
        self.only: dict[tuple[str, str], str] = {}
        """Questions that a job may ask once, by job and kind."""
        self.noisy: dict[str, Line] = {}
        """Noisy messages that left, by their digest; the same bytes sent again reveal nothing new."""
        for line in trail.lines:
            self._remember(line)

    def _remember(self, line: Line) -> None:
        run = line.get("run", "")
        self.bytes[run] += line.get("bytes", 0)
        self.answers[run] += line.get("answers", 1) * depends_on_rows(line.get("what", ""))
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

    def note(self, to: str, what: str, body: bytes | None = None, **more: Any) -> None:
        """Write a line of the audit file, and remember it."""
        line = self.audit.write(to, what, body, **more)
        follows = line["line"] == self.head.lines + 1  # else a write failed halfway: the line is there all the same
        self.head = self.head.then(line) if follows else self._ledger.check([*self.audit.read().lines])
        self._ledger.write(self.head)
        self._remember(line)


def depends_on_rows(what: str) -> bool:
    """Whether an answer reveals something about rows; `what` is the first words of its line in the audit file.

    An answer that failed while rows were worked on does. A refusal does not, since it comes before.
    """
    kind, _, rest = what.partition(" ")
    return kind in ("round", "query", "summary") and rest not in (*WITHOUT_ROWS, "refused", "late", "gone", "unknown")


def _failed(what: str) -> bool:
    return what.endswith(" failed") and (what.startswith("job") or depends_on_rows(what))


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
