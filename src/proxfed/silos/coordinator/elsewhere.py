"""The organisations of a fit, each with its rows in its own place: `Organisations` (fit/oracle.py) over a carrier.

Whatever came is kept in a log beside the model: sums, and what single sites say of themselves. A coordinator that is
killed reads these first and asks only what is missing; the model is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import RunError, require
from proxfed.files import Log
from proxfed.fit.inference.heterogeneity import META, OwnEstimate
from proxfed.fit.inference.survival import RISKS
from proxfed.fit.judge import Judgement, Measured
from proxfed.fit.oracle import Gram, Question, Size, Sums, Traffic
from proxfed.fit.own_profile import check_one_score
from proxfed.fit.settings import Settings
from proxfed.problems.losses import Logistic, Loss
from proxfed.silos.protection.masks import add_up_wide
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.fit_answers import BINS, unflat_grams, unflat_sums, whole
from proxfed.silos.wire.fit_job import read_fit
from proxfed.silos.wire.fit_questions import (
    FORM,
    Bootstrap,
    Counts,
    write,
    write_alone,
    write_models,
    write_points,
    write_sums,
)
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Head, Letter, canonical, flat, unpack


def measures_of(head: Head, site: str) -> dict[str, Measured]:
    """What a site tells of a model on its own rows."""
    told: Any = head.get("measures")
    good = isinstance(told, dict) and all(isinstance(v, list) and len(v) == 3 for v in told.values())
    good = good and all(v is None or isinstance(v, (int, float)) for row in told.values() for v in row)
    require(good, f"{site}: what it tells of the model are no measures")
    return {str(k): Measured(*(float("nan") if v is None else float(v) for v in row)) for k, row in told.items()}


class Kept:
    """What has come of each question, by its digest, in a log; without a path nothing is kept."""

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
    length: int
    """Of x, with a shared intercept if the job has one."""
    kept: Kept
    hessians: bool = True
    """All of them tell Hessians."""
    grams_told: bool = True
    """And Gram matrices."""
    asked: Counts = Counts()
    """How rows count."""
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
    def d(self) -> int:
        """Length of x."""
        fit = read_fit(self.job.fit)
        return self.length - 1 if self.asked.own and fit.intercept else self.length

    @property
    def tells_grams(self) -> bool:
        return self.grams_told and not self.asked.own

    @property
    def hessian_columns(self) -> int:
        return self.d if self.hessians else 0

    @property
    def rounding(self) -> float:
        """Each site rounds to the nearest multiple of what masks can hold."""
        protection = self.job.protection
        return len(self.job.sites) * 0.5 ** (protection.fraction_bits + 1) if protection.secure_aggregation else 0.0

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
        return replace(self, asked=self.asked._replace(factors=factors))

    def adding_intercepts(self) -> Self:
        check_one_score(self.loss)
        return replace(self, asked=self.asked._replace(own=True))

    def counts(self) -> Tensor:
        return self._added(write(self.job.digest, "counts")).view(max(1, self.folds), self.classes)

    def size(self) -> Size:
        numbers = self._added(write(self.job.digest, "size", self.asked))
        return Size(numbers[:-2], *numbers[-2:].tolist())

    def ask(self, questions: Sequence[Question]) -> list[Sums]:
        return unflat_sums(self._added(write_sums(self.job.digest, questions, self.asked)), questions)

    def grams(self) -> list[Gram]:
        fit, classes = read_fit(self.job.fit), self.job.schema["classes"]
        outputs = classes if fit.criterion.classes else 1
        numbers = self._added(write(self.job.digest, "grams", self.asked))
        return unflat_grams(numbers, max(1, self.folds), outputs, self.d // outputs)

    def intercept(self, x: Tensor) -> float:
        weight, total = self._added(write_points(self.job.digest, "intercept", [x], self.asked)).tolist()
        return float(total / weight)

    def agreement(self, order: Sequence[int]) -> Tensor:
        return self._added(write(self.job.digest, "agreement", self.asked, order=[*order])).view(len(META), -1)

    def estimates(self, order: Sequence[int]) -> dict[str, OwnEstimate | str]:
        found: dict[str, OwnEstimate | str] = {}
        for site, head in self._told(write(self.job.digest, "estimates", self.asked, order=[*order])).items():
            why, b, error = (head.get(key) for key in ("why", "b", "error"))
            if isinstance(why, str):
                found[site] = why
                continue
            good = all(isinstance(row, list) and len(row) == self.d for row in (b, error))
            require(good, f"{site}: what it tells of its own estimates are no {self.d} numbers")
            found[site] = OwnEstimate(np.array(b, float), np.array(error, float))
        return found

    def risks(self, times: Tensor, x: Tensor) -> Tensor:
        return self._added(write_points(self.job.digest, "risks", [times, x])).view(len(RISKS), -1)

    def private(self) -> np.ndarray:
        """(p + 2, p + 2) the noisy sum of products of a private fit."""
        return whole(self._added(write(self.job.digest, "private")), self.d + 1).numpy()

    # ---- how good a model is -----------------------------------------------------------------------------------------

    def histogram(self, models: Tensor) -> Tensor:
        """(2, BINS): how many held-out rows of both classes have which probability, by (folds, d) models."""
        return self._added(write_models(self.job.digest, "histogram", models, self.asked)).view(2, BINS)

    def judged(self, models: Tensor, bootstrap: Bootstrap) -> Judgement:
        """Measures of those sites that tell them."""
        found: Judgement = {}
        question = write_models(self.job.digest, "judged", models, self.asked, bootstrap=[*bootstrap])
        for site, head in self._told(question).items():
            found[site] = measures_of(head, site)
        return found

    def alone(self, settings: Settings) -> tuple[Judgement, dict[str, int], list[str]]:
        """(measures, coefficients that are not zero, notes) of models of each site's rows, of the sites that tell."""
        judged: Judgement = {}
        nonzeros, notes = dict[str, int](), list[str]()
        bootstrap = Bootstrap(settings.repetitions, settings.level, settings.seed)
        question = write_alone(self.job.digest, settings, self.asked, bootstrap)
        for site, head in self._told(question).items():
            if "why" in head:
                notes.append(f"{site} alone has no model: {head['why']}")
                continue
            judged[site] = measures_of(head, site)
            nonzeros[site] = int(head["nonzeros"]) if isinstance(head.get("nonzeros"), int) else 0
        return judged, nonzeros, notes

    def _told(self, question: Letter) -> dict[str, Head]:
        """What each site says of itself, from the sites that do not refuse."""
        heads: Any = flat(self._kept(question, self._each).body)
        return {site: heads[site] for site in self.job.sites if site in heads}

    def _each(self, question: Letter) -> Letter:
        """The answers of all sites, each with its own; those that refuse are left out."""
        answers = self.exchange.ask(self.job, dict.fromkeys(self.job.sites, question), refusals=True)
        told = {site: answers[site].head for site in self.job.sites if answers[site].kind == "answer"}
        return Letter("told", self.job.digest, body=canonical(told))

    # ---- exchanges -------------------------------------------------------------------------------------------------

    def _kept(self, question: Letter, ask: Callable[[Letter], Letter]) -> Letter:
        """What came of a question, now or before a kill, with its bytes counted once."""
        came = self.kept.known.get(question.digest)
        if came is None:
            out, back = self.exchange.out, self.exchange.back
            came = ask(question)
            head = {"of": question.digest, "up": self.exchange.back - back, "down": self.exchange.out - out}
            came = replace(came, head=came.head | head)
            self.kept.add(came)
        self.spent[0] = self.spent[0] + Traffic(1, came.number("up"), came.number("down"))
        return came

    def _added(self, question: Letter) -> Tensor:
        """The sum of what all sites answer."""
        return torch.from_numpy(np.frombuffer(self._kept(question, self._sum).body, np.float64).copy())

    def _sum(self, question: Letter) -> Letter:
        answers = self.exchange.ask(self.job, dict.fromkeys(self.job.sites, question))
        rows = [self._numbers(site, answers[site]) for site in self.job.sites]
        if self.job.protection.secure_aggregation:
            total = add_up_wide(rows, self.job.protection.fraction_bits)
        else:
            same = all(row.dtype == torch.float64 and row.shape == rows[0].shape for row in rows)
            require(same, "the sites' answers to one question are not of one form")
            total = sum(rows[1:], start=rows[0])
        return Letter("sums", self.job.digest, body=total.contiguous().numpy().tobytes())

    def _numbers(self, site: str, answer: Letter) -> Tensor:
        if answer.word("form") != FORM:
            raise RunError(f"{site}: its answer is not one tensor")
        (found,) = unpack(FORM, answer.body, (), 0, 0)
        good = not found.is_floating_point() or bool(found.isfinite().all())
        if not good:
            raise RunError(f"{site}: a number of its answer is not finite")
        return found
