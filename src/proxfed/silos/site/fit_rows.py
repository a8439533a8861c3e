"""The rows of a site in one fit, and the checks that an answer from them passes.

Which rows a part has is the site's own decision, made once for all jobs. Every part and what it leaves out have enough
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from proxfed.data.federated import Window
from proxfed.errors import require
from proxfed.fit.dominance import dominance
from proxfed.fit.here import Here
from proxfed.fit.oracle import Question
from proxfed.fit.own_rows import OwnRows
from proxfed.fit.settings import loss_fits
from proxfed.problems.linear.cox import Cox
from proxfed.problems.losses import Huber, OneHot, Poisson, Squared
from proxfed.silos.protection.guard import Asked, Link, Parts, Wanted
from proxfed.silos.site.table_rows import TableRows
from proxfed.silos.wire.fit_job import read_fit
from proxfed.silos.wire.fit_questions import PLAIN, Counts
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Head, Letter, pack
from proxfed.tables.preparation import Preparation

if TYPE_CHECKING:
    from proxfed.silos.site.holder import Holder


TOO_FEW = "its rows are too few or too much alike"
"""Why a site has no model of its own rows; an exact reason would reveal something about them."""

Answered = tuple[Head, bytes, Asked]


class FitRows:
    """The rows of one site in one fit, and what its guard must allow before they answer."""

    def __init__(self, holder: Holder, job: Job) -> None:
        self.holder, self.job, self.fit = holder, job, read_fit(job.fit)
        self.own = self._own_rows()
        self.link: Link = holder.guard.join(job, holder.name)
        holder.guard.divides(self.parts)

    def _own_rows(self) -> OwnRows:
        rows, job, fit = self.holder.rows, self.job, self.fit
        require(len(rows.sizes) == 1, f"{self.holder.name} is {len(rows.sizes)} clients, and a fit takes it as one")
        target = rows.table.schema.target if isinstance(rows, TableRows) and rows.table is not None else None
        fits = target is None or loss_fits(fit.criterion, target)
        require(fits, f"fit.loss = {fit.loss.name!r} does not fit the target of its tables")
        data = rows.federated(job.schema, Window(0, np.ones(1)))
        self.holder.guard.prepares(job, data)
        fold: np.ndarray | None = None
        if fit.by == "organisation":
            fold = np.full(len(data.labels), job.sites.index(self.holder.name))
        elif fit.folds:
            fold = self.holder.guard.folds(rows, rows.strata(), fit.folds)
        return OwnRows(
            data.features,
            data.labels,
            fit.criterion,
            fit.intercept,
            data.classes,
            data.sample_weights,
            fit.folds,
            fold,
            offset=rows.offset,
            clusters=rows.clusters,
            fewest=self.holder.guard.fewest,
        )

    def here(self, counts: Counts) -> Here:
        """The one organisation of this site; it answers as organisations do whose tables lie in one place."""
        here = Here((self.own,), (self.holder.name,), counts.factors)
        return here.adding_intercepts() if counts.own else here

    @cached_property
    def prepared(self) -> Preparation:
        """The preparation that all sites agreed on."""
        return Preparation.from_plain(self.job.schema["preparation"])

    @property
    def own_d(self) -> int:
        """The number of coefficients if each site adds its own intercept."""
        return self.own.outputs * self.own.width

    @property
    def parts(self) -> Parts:
        """The number of rows of each fold, and of each class in it."""
        cells = replace(self.own, sample_weights=None).counts()
        return Parts(cells.sum(1).long().tolist(), cells)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.own.kinds

    def asked(self, letter: Letter, what: str, parts: Iterable[str], count: int) -> Asked:
        """The question as the guard sees it, after the guard let it through."""
        asked = self.holder.asked(letter, self.job, what, tuple(dict.fromkeys(parts)))._replace(answers=count)
        self.holder.guard.gate(asked)
        return asked

    def wanted(self, what: str, factors: Tensor | None) -> None:
        """The guard checks that each part has enough rows for such sums."""
        masked = self.job.protection.secure_aggregation
        given = None if factors is None else factors.tolist()
        self.holder.guard.tells(Wanted(self.parts, self.own.d, what, given, masked))

    def follow(self, points: Iterable[Tensor], counts: Counts = PLAIN) -> None:
        """The guard checks that the points are not far out.

        A point far out singles out rows if the loss has curvature that varies, on a scale of 1 or of Huber's delta.
        A squared loss has constant curvature: its gradients at any points reveal only what its Gram matrix reveals.
        """
        loss = self.own.loss
        if not isinstance(loss, (Squared, OneHot)):
            unit = loss.delta if isinstance(loss, Huber) else 1.0
            start = torch.zeros(self.own.d, dtype=torch.float64)
            gap = start[self.own_d if counts.own else self.own.d :]  # where an intercept would be
            self.holder.guard.follow(self.job, start, (torch.cat([x / unit, gap]) for x in points))

    def dominated(self, questions: Iterable[Question]) -> None:
        """The guard checks that no row dominates a sum, which can happen if the loss grows as e^(score)."""
        if isinstance(self.own.loss, (Poisson, Cox)):
            self.holder.guard.dominates(max(dominance(self.own, q) for q in questions))

    def hidden(self, values: Tensor, letter: Letter) -> tuple[Head, bytes]:
        """The head and the body of an answer, under the masks of this run."""
        form, body = pack((self.link.sums(values, letter),), ())
        return {"form": form}, body


Answer = Callable[[FitRows, Letter], Answered]
"""Answers one kind of question."""
