"""The organisations of a fit, each with its rows in its own place: `Organisations` (fit/oracle.py) over a carrier.

Sums that came are kept in a log beside the model. A coordinator that is killed asks again what it had asked, reads the
first answers from there, and goes on where it was: the model is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import InputError, RunError, require
from proxfed.files import Log
from proxfed.fit.oracle import Gram, Question, Size, Sums, Traffic
from proxfed.problems.losses import Logistic, Loss
from proxfed.silos.protection.masks import add_up_wide
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.fit_job import (
    BINS,
    FORM,
    read_fit,
    unflat_grams,
    unflat_sums,
    whole,
    write,
    write_models,
    write_sums,
)
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Letter, unpack


class Kept:
    """Sums over all sites that have come, by the digest of the question, in a log; None: nothing is kept."""

    def __init__(self, path: Path | None, run: str) -> None:
        self.known: dict[str, Letter] = {}
        self._log = None if path is None else Log(path, run)
        if self._log is None or not self._log.path.exists():
            return
        data = self._log.path.read_bytes()
        for frame in self._log.frames(data):
            if not frame.fits:
                break  # what is behind it is asked for again
            self._log.end = frame.end
            letter = Letter.decode(data[frame.start : frame.stop])
            self.known[letter.word("of")] = letter

    def add(self, letter: Letter) -> None:
        """On the disk when this returns."""
        self.known[letter.word("of")] = letter
        if self._log is not None:
            self._log.append([[letter.encode()]])


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """The sites of a job, after they have agreed to it."""

    job: Job
    exchange: Exchange
    d: int
    kept: Kept
    hessians: bool = True
    """All of them tell Hessians."""
    tells_grams: bool = True
    factors: Tensor | None = None
    """(classes,) by which rows count more."""
    spent: list[Traffic] = field(default_factory=lambda: [Traffic()])
    """So far, as one number; shared by all that were made of these organisations."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.job.sites

    @property
    def folds(self) -> int:
        return read_fit(self.job.fit).folds

    @property
    def traffic(self) -> Traffic:
        return self.spent[0]

    @property
    def hessian_columns(self) -> int:
        return self.d if self.hessians else 0

    @property
    def loss(self) -> Loss:
        return read_fit(self.job.fit).criterion

    @property
    def classes(self) -> int:
        """As `counts` numbers them."""
        known: int | None = self.job.schema["classes"]
        loss = self.loss
        return known or (2 if isinstance(loss, Logistic) or not loss.separate else 1)

    def weighing(self, factors: Tensor | None) -> Self:
        return replace(self, factors=factors)

    def adding_intercepts(self) -> Self:
        raise InputError("site_intercepts: sites are not asked for intercepts of their own yet")

    def size(self) -> Size:
        raise InputError("sites are not asked for the number of their rows yet")

    def counts(self) -> Tensor:
        return self._added(write(self.job.digest, "counts")).view(max(1, self.folds), self.classes)

    def ask(self, questions: Sequence[Question]) -> list[Sums]:
        return unflat_sums(self._added(write_sums(self.job.digest, questions, self.factors)), questions)

    def grams(self) -> list[Gram]:
        fit, classes = read_fit(self.job.fit), self.job.schema["classes"]
        outputs = classes if fit.criterion.classes else 1
        numbers = self._added(write(self.job.digest, "grams", self.factors))
        return unflat_grams(numbers, max(1, self.folds), outputs, self.d // outputs)

    def private(self) -> np.ndarray:
        """(p + 2, p + 2) the noisy sum of products of a private fit."""
        return whole(self._added(write(self.job.digest, "private")), self.d + 1).numpy()

    # ---- how good a model is -----------------------------------------------------------------------------------------

    def histogram(self, models: Tensor) -> Tensor:
        """(2, BINS): how many held-out rows of both classes have which probability, by (folds, d) models."""
        return self._added(write_models(self.job.digest, "histogram", models)).view(2, BINS)

    def judged(self, models: Tensor) -> dict[str, dict[str, float]]:
        """Measures of those sites that tell them."""
        question, found = write_models(self.job.digest, "judged", models), {}
        for site in self.job.sites:
            try:
                answer = self.exchange.ask(self.job, {site: question})[site]
            except InputError:  # it does not
                continue
            told = answer.head.get("measures")
            good = isinstance(told, dict) and all(isinstance(v, (int, float)) for v in told.values())
            require(good, f"{site}: what it tells of the model are no measures")
            found[site] = {str(name): float(value) for name, value in dict(told or {}).items()}
        return found

    # ---- exchanges -------------------------------------------------------------------------------------------------

    def _added(self, question: Letter) -> Tensor:
        """The sum of what all sites answer."""
        told = self.kept.known.get(question.digest)
        if told is None:
            told = self._asked(question)
            self.kept.add(told)
        self.spent[0] = self.spent[0] + Traffic(1, told.number("up"), told.number("down"))
        return torch.from_numpy(np.frombuffer(told.body, np.float64).copy())

    def _asked(self, question: Letter) -> Letter:
        before = self.exchange.out, self.exchange.back
        answers = self.exchange.ask(self.job, dict.fromkeys(self.job.sites, question))
        down, up = self.exchange.out - before[0], self.exchange.back - before[1]
        rows = [self._numbers(site, answers[site]) for site in self.job.sites]
        if self.job.protection.secure_aggregation:
            total = add_up_wide(rows, self.job.protection.fraction_bits)
        else:
            same = all(row.dtype == torch.float64 and row.shape == rows[0].shape for row in rows)
            require(same, "the sites' answers to one question are not of one form")
            total = sum(rows[1:], start=rows[0])
        head = {"of": question.digest, "up": up, "down": down}
        return Letter("sums", self.job.digest, head=head, body=total.contiguous().numpy().tobytes())

    def _numbers(self, site: str, answer: Letter) -> Tensor:
        if answer.word("form") != FORM:
            raise RunError(f"{site}: its answer is not one tensor")
        (found,) = unpack(FORM, answer.body, (), 0, 0)
        good = not found.is_floating_point() or bool(found.isfinite().all())
        if not good:
            raise RunError(f"{site}: a number of its answer is not finite")
        return found
