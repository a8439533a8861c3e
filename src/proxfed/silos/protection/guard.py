"""The interface of a site's guard, between its holder and the world. This one allows everything unchanged.

A site with a policy has its own class (site_guard.py): it may refuse a question before any computation, record what is
about to leave, seal messages to neighbours, and mask messages to the server.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from proxfed.errors import InputError, ProxfedError, RunError
from proxfed.silos.protection.folds import folds
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Head, Letter
from proxfed.types import Local, Message

if TYPE_CHECKING:
    from proxfed.data.federated import Federated
    from proxfed.fit.model_file import Signature
    from proxfed.silos.site.rows import Rows

_log = logging.getLogger("proxfed.silos")


class Refused(InputError):
    """A request that a site does not allow; the sentence is sent to the coordinator."""


@contextmanager
def withheld(what: str) -> Iterator[None]:
    """Errors of computations on rows stay in the site's own log: their text could reveal something about rows."""
    try:
        yield
    except Refused:
        raise
    except ProxfedError as e:
        _log.warning("%s: %s", what, e)
        raise RunError(f"{what}; the log of the site says why") from e


class Asked(NamedTuple):
    """A question, described for the decision whether to answer it."""

    kind: str
    """hello (the schema of the rows), job, round, or a query."""
    what: str
    """Of a query: smoothness, point, mean, field, apart; of a hello: sizes, if requested; else empty."""
    round: int
    job: Job | None
    """None before a job is known."""
    rows: list[int]
    """The number of rows of each client of the site."""
    parts: tuple[str, ...] = ()
    """Of a query about a point: value, gradient, test."""
    answers: int = 1
    """The number of answers in terms of budgets: one per point of a fit."""

    @property
    def title(self) -> str:
        """Its name in the audit file."""
        return f"{self.kind} {self.what}".strip()


class Shares(NamedTuple):
    """Shares of the other sites' masks of a round, so that these can be undone (recovery.py)."""

    among: list[str]
    """All sites that dealt, or should have dealt, shares."""
    sealed: dict[str, bytes]
    """Their shares for this site, by sender."""

    @classmethod
    def of(cls, letter: Letter) -> Shares | None:
        """From the head of a question; None if it has no shares."""
        if "among" not in letter.head:
            return None
        dealers, boxes = letter.words("dealers"), letter.words("boxes")
        try:
            return cls(letter.words("among"), dict(zip(dealers, map(bytes.fromhex, boxes), strict=True)))
        except ValueError as e:
            raise RunError("the shares of other sites are none") from e


class Parts(NamedTuple):
    """The parts into which a fit divides a site's rows."""

    rows: list[int]
    """The number of rows per fold; of all rows if there are no folds."""
    cells: Tensor
    """(folds, classes)"""


class Wanted(NamedTuple):
    """The quantity about these parts that a question of a fit requests."""

    parts: Parts
    d: int
    """Coefficients."""
    what: str
    """sum: values and gradients; hessian; gram; count"""
    factors: list[float] | None = None
    """The weight factor of each class's rows."""
    masked: bool = True


class Upload(NamedTuple):
    """The origin of a message to the server."""

    t: int
    step: int
    """How many cohorts this round was requested for before."""
    cohort: list[str]
    """The participating sites, in their order."""
    ids: list[int]
    """The participating clients of this site."""
    broadcast: bytes
    """The server's message as received."""
    down: Message
    """The server's message, decoded."""
    state: Any
    """The state of the site's clients before the round."""
    part: Any
    """The site's part (part.py): problem, algorithm, weights."""
    grain: Any = None
    """The coordinator's exponent of the step of narrow words; None: words are wide."""
    shares: Shares | None = None


class Guard:
    """The guard of one site."""

    fewest = 1
    """The minimum number of rows of a non-empty cell."""
    code: Collection[str] = ()
    """'module:Class' names that a job may use; nothing else is imported."""

    def introduction(self) -> bytes:
        """The site's public keys for a run; empty: it has none."""
        return b""

    def head(self) -> str:
        """The signed position of its audit file, for its partners to record; empty: it has none."""
        return ""

    def countersign(self, job: Job) -> str:
        """A signature over the audit positions of all sites of a job; empty: the site has no key."""
        return ""

    def gate(self, asked: Asked) -> None:
        """Refused, in one sentence, if this question may not be answered."""

    def begins(self, job: Job | None, rows: Rows) -> None:
        """Refused if nothing new may begin with these rows; without a job, a summary of them is requested."""

    def follow(self, job: Job, start: Tensor, sent: Iterable[Tensor]) -> None:
        """Refused if the coordinator's vectors may not be evaluated; the job begins at `start`."""

    def computes(self, job: Job, f: Local) -> Local:
        """The f with which the job's clients compute; it may refuse their local models."""
        return f

    def folds(self, rows: Rows, strata: np.ndarray, count: int) -> np.ndarray:
        """(N,) the fold of each training row, the same in all jobs, stratified."""
        return folds(rows.lines(), strata, count, b"", rows.units)

    def prepares(self, job: Job, data: Federated) -> None:
        """Refused if the job's features single out too few rows."""

    def divides(self, parts: Parts) -> None:
        """Refused if a fold, or its complement, has too few rows."""

    def may_tell(self, wanted: Wanted) -> bool:
        """Whether this may be revealed."""
        try:
            self.tells(wanted)
        except Refused:
            return False
        return True

    def tells(self, wanted: Wanted) -> None:
        """Refused if it may not be revealed."""

    def once(self, asked: Asked, question: str) -> None:
        """Refused if another question of this kind was answered in this job; `question` is the digest of this one."""

    def times(self, last: float) -> None:
        """Refused if times of leaving were revealed on another grid than even steps up to `last`."""

    def dominates(self, share: float) -> None:
        """Refused if one row has this share of a sum."""

    def judges(self) -> None:
        """Refused if measures of held-out rows may not be revealed."""

    def infers(self, clusters: int | None = None, apart: bool = False, alone: bool = False) -> None:
        """Refused if inputs of standard errors may not be revealed: products of so many clusters, of this organisation
        as a whole (`apart`), or estimates of its own rows `alone`."""

    def signs(self, content: bytes) -> Signature | None:
        """Its signature of a model; None: it has no key."""
        return None

    def leaving(self, asked: Asked, to: str, body: bytes) -> None:
        """Called before these bytes leave; must have recorded them when it returns."""

    def declined(self, question: str, run: str, body: bytes) -> None:
        """Called before a refusal leaves."""

    def join(self, job: Job, site: str) -> Link:
        """The link between this site and the others in a run."""
        return Link()


class Link:
    """The link in one run without protection: all messages are readable."""

    sealed = False
    """Whether each neighbour gets its own encrypted bytes."""

    def seal(self, to: str, t: int, k: int, body: bytes) -> bytes:
        return body

    def unseal(self, sender: str, t: int, k: int, body: bytes) -> bytes:
        return body

    def noisy(self, up: Message, about: Upload) -> Message:
        """A public version of `up`, with noise, of the same form."""
        return up

    def upload(self, up: Message, about: Upload) -> Message:
        """The protected message to the server instead of `up`, of the same form."""
        return up

    def deal(self, question: Letter) -> tuple[Head, bytes]:
        """Shares of this site's mask of a round, for all others (recovery.py)."""
        raise Refused("it has no masks that could be undone")

    def unmask(self, question: Letter) -> tuple[Head, bytes]:
        """Its shares of others' masks, so that the sum over the sites that answered a round can be read."""
        raise Refused("it has no masks that could be undone")

    def told(self, rows: tuple[Tensor, ...], p: Tensor, question: Letter) -> tuple[Tensor, ...]:
        """Sent to the coordinator instead of `rows`, of which it only needs the averages with weights p."""
        return rows

    def sums(self, values: Tensor, question: Letter) -> Tensor:
        """Sent to the coordinator instead of (k,) sums over rows, of which it only needs the sum over all sites."""
        return values

    def normal(self, secret: np.ndarray, question: Letter, noise: float) -> np.ndarray:
        """Standard normal numbers of its shape, for noise that only this site can compute; `noise` as in its budget:
        twice the ratio of standard deviation to sensitivity of a row."""
        raise Refused("it has no key from which noise could be drawn")

    def tested(self, values: Mapping[str, float], rows: int) -> tuple[dict[str, float], int]:
        """The revealed measures on so many test rows, and the revealed number of rows; 0: not revealed."""
        return dict(values), rows
