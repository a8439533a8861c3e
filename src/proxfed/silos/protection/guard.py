"""What a site puts between its holder and the world. This one allows everything and changes nothing.

A site with rules of its own has a class of its own (site_guard.py): it may refuse a question before it is worked on,
write down what is about to leave, seal what goes to neighbours, and change what goes to the server.
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
    """What a site does not allow; its sentence travels to the coordinator."""


@contextmanager
def withheld(what: str) -> Iterator[None]:
    """What goes wrong while rows are worked on stays in the site's own log: a sentence could tell something of them."""
    try:
        yield
    except Refused:
        raise
    except ProxfedError as e:
        _log.warning("%s: %s", what, e)
        raise RunError(f"{what}; the log of the site says why") from e


class Asked(NamedTuple):
    """A question, described for those who decide whether it is worked on."""

    kind: str
    """hello: what the rows look like; job; round; or a query."""
    what: str
    """Of a query: smoothness, point, mean, field, apart; of a hello: sizes, if these are asked for; else empty."""
    round: int
    job: Job | None
    """None: there is none yet."""
    rows: list[int]
    """How many rows each client of the site has."""
    parts: tuple[str, ...] = ()
    """Of a query about a point: value, gradient, test."""
    answers: int = 1
    """How many answers it is, as budgets count them: one for each point of a fit."""

    @property
    def title(self) -> str:
        """What the audit file calls it."""
        return f"{self.kind} {self.what}".strip()


class Shares(NamedTuple):
    """What a site is told of the others' masks of a round, so that these can be undone (recovery.py)."""

    among: list[str]
    """All sites that dealt shares, or were to."""
    sealed: dict[str, bytes]
    """Their shares for this site, by who dealt them."""

    @classmethod
    def of(cls, letter: Letter) -> Shares | None:
        """From the head of a question; None: there are none."""
        if "among" not in letter.head:
            return None
        dealers, boxes = letter.words("dealers"), letter.words("boxes")
        try:
            return cls(letter.words("among"), dict(zip(dealers, map(bytes.fromhex, boxes), strict=True)))
        except ValueError as e:
            raise RunError("the shares of other sites are none") from e


class Parts(NamedTuple):
    """Into what the rows of a site are divided for a fit."""

    rows: list[int]
    """Of each fold; of all rows, if there are no folds."""
    cells: Tensor
    """(folds, classes)"""


class Wanted(NamedTuple):
    """What a question of a fit wants to know of these."""

    parts: Parts
    d: int
    """Coefficients."""
    what: str
    """sum: values and gradients; hessian; gram; count"""
    factors: list[float] | None = None
    """By class: how much more its rows count."""
    masked: bool = True


class Upload(NamedTuple):
    """What a message to the server was made from."""

    t: int
    step: int
    """How often this round has been asked for, with other cohorts."""
    cohort: list[str]
    """The sites that take part, in their order."""
    ids: list[int]
    """The clients of this site that do."""
    broadcast: bytes
    """The server's message as it came."""
    down: Message
    """As clients read it."""
    state: Any
    """Of the site's clients before the round."""
    part: Any
    """The site's part (part.py): problem, algorithm, weights."""
    grain: Any = None
    """Of narrow words: the exponent of their step, as the coordinator says it; None: words are wide."""
    shares: Shares | None = None


class Guard:
    """Of one site."""

    fewest = 1
    """Rows that a cell must have, if it has any."""
    code: Collection[str] = ()
    """'module:Class' that a job may name; nothing else is imported."""

    def introduction(self) -> bytes:
        """What the site says of its keys before a run; empty: it has none."""
        return b""

    def head(self) -> str:
        """How far its audit file is, signed, for its partners to note; empty: it has none."""
        return ""

    def countersign(self, job: Job) -> str:
        """Signed: how far the sites of a job say that their audit files are; empty: it has no key."""
        return ""

    def gate(self, asked: Asked) -> None:
        """Refused, in one sentence, if this is not to be worked on."""

    def begins(self, job: Job | None, rows: Rows) -> None:
        """Refused if nothing new is begun with these rows; without a job, a summary of them is asked for."""

    def follow(self, job: Job, start: Tensor, sent: Iterable[Tensor]) -> None:
        """Refused if nothing is told about vectors that the coordinator sent; the job begins at `start`."""

    def computes(self, job: Job, f: Local) -> Local:
        """What the job's clients compute with; it may refuse models of their own."""
        return f

    def folds(self, rows: Rows, strata: np.ndarray, count: int) -> np.ndarray:
        """(N,) the fold of each training row, the same in all jobs; each has its share of every stratum."""
        return folds(rows.lines(), strata, count, b"", rows.units)

    def prepares(self, job: Job, data: Federated) -> None:
        """Refused if the job's features single out too few rows."""

    def divides(self, parts: Parts) -> None:
        """Refused if a fold, or what is left without it, has too few rows."""

    def may_tell(self, wanted: Wanted) -> bool:
        """Whether this would be told."""
        try:
            self.tells(wanted)
        except Refused:
            return False
        return True

    def tells(self, wanted: Wanted) -> None:
        """Refused if it is not told."""

    def once(self, asked: Asked, question: str) -> None:
        """Refused if another question of this kind was answered in this job; `question` is the digest of this one."""

    def times(self, last: float) -> None:
        """Refused if who leaves was told on other times than even steps to this one."""

    def dominates(self, share: float) -> None:
        """Refused if one row has this share of a sum."""

    def judges(self) -> None:
        """Refused if measures of held-out rows are not told."""

    def infers(self, clusters: int | None = None, apart: bool = False, alone: bool = False) -> None:
        """Refused if what standard errors need is not told: products of so many clusters, of this organisation as a
        whole (`apart`), or estimates of its own rows `alone`."""

    def signs(self, content: bytes) -> Signature | None:
        """Its signature under a model; None: it has no key."""
        return None

    def leaving(self, asked: Asked, to: str, body: bytes) -> None:
        """Called before these bytes leave, and must have written them down when it returns."""

    def declined(self, question: str, run: str, body: bytes) -> None:
        """Called before an answer leaves that is only a sentence."""

    def join(self, job: Job, site: str) -> Link:
        """What is between this site and the others in a run."""
        return Link()


class Link:
    """In one run: everybody reads everything."""

    sealed = False
    """Each neighbour gets bytes of its own."""

    def seal(self, to: str, t: int, k: int, body: bytes) -> bytes:
        return body

    def unseal(self, sender: str, t: int, k: int, body: bytes) -> bytes:
        return body

    def noisy(self, up: Message, about: Upload) -> Message:
        """What everybody may know instead of `up`, of the same form."""
        return up

    def upload(self, up: Message, about: Upload) -> Message:
        """What goes to the server instead of `up`, of the same form."""
        return up

    def deal(self, question: Letter) -> tuple[Head, bytes]:
        """Shares of what masks this site's message of a round, for all others (recovery.py)."""
        raise Refused("it has no masks that could be undone")

    def unmask(self, question: Letter) -> tuple[Head, bytes]:
        """Its shares of others' masks, so that the sum over those who have answered a round can be read."""
        raise Refused("it has no masks that could be undone")

    def told(self, rows: tuple[Tensor, ...], p: Tensor, question: Letter) -> tuple[Tensor, ...]:
        """What goes to the coordinator instead of `rows`, of which it needs averages with the weights p only."""
        return rows

    def sums(self, values: Tensor, question: Letter) -> Tensor:
        """What goes to the coordinator instead of (k,) sums over rows, of which it needs the sum over all sites."""
        return values

    def normal(self, secret: np.ndarray, question: Letter, noise: float) -> np.ndarray:
        """Standard normal numbers of its shape, for noise that only this site can compute; `noise` as its account has
        it: twice as many standard deviations as a row has sensitivity."""
        raise Refused("it has no key from which noise could be drawn")

    def tested(self, values: Mapping[str, float], rows: int) -> tuple[dict[str, float], int]:
        """What is told of measures on so many test rows, and of their number; 0: that is not told."""
        return dict(values), rows
