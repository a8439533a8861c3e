"""One fit at one site: what it answers to questions for sums over its own rows (wire/fit_job.py).

There is no state: an answer follows from the question and the rows, and asked again it is the same bytes. Which rows a
part has is the site's own decision, made once for all jobs, and every part and what it leaves out have enough rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from proxfed import files
from proxfed.data.federated import Window
from proxfed.errors import RunError, require
from proxfed.files import private_folder
from proxfed.fit import own_sums
from proxfed.fit.judge import judge
from proxfed.fit.metrics import probability
from proxfed.fit.model_file import Model
from proxfed.fit.own_rows import OwnRows
from proxfed.fit.settings import loss_fits
from proxfed.problems.linear.cox import Cox
from proxfed.problems.losses import Huber, Logistic, OneHot, Poisson, Squared
from proxfed.silos.protection.guard import Asked, Link, Parts, Wanted, withheld
from proxfed.silos.site.site_run import REMEMBERED
from proxfed.silos.site.table_rows import TableRows
from proxfed.silos.wire import fit_job
from proxfed.silos.wire.fit_job import BINS, read_fit
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Head, Letter, canonical, pack
from proxfed.tables.disclosure import coarsen

if TYPE_CHECKING:
    from proxfed.silos.site.holder import Holder


class SiteFit:
    """What one site keeps of a fit between two questions."""

    def __init__(self, holder: Holder, job: Job) -> None:
        self.holder, self.job, self.fit = holder, job, read_fit(job.fit)
        self.own = self._own_rows()
        self.link: Link = holder.guard.join(job, holder.name)
        self.told: dict[bytes, bytes] = {}
        """The last questions, and what was answered: asked again, they get the same bytes."""
        holder.guard.divides(self._parts)

    def _own_rows(self) -> OwnRows:
        rows, job, fit = self.holder.rows, self.job, self.fit
        require(len(rows.sizes) == 1, f"{self.holder.name} is {len(rows.sizes)} clients, and a fit takes it as one")
        target = rows.table.schema.target if isinstance(rows, TableRows) and rows.table is not None else None
        fits = target is None or loss_fits(fit.criterion, target)
        require(fits, f"fit.loss = {fit.loss.name!r} does not fit the target of its tables")
        data = rows.federated(job.schema, Window(0, np.ones(1)))
        self.holder.guard.prepares(data)
        fold: np.ndarray | None = None
        if fit.by == "organisation":
            fold = np.full(len(data.labels), job.sites.index(self.holder.name))
        elif fit.folds:
            fold = self.holder.guard.folds(rows, rows.strata(), fit.folds)
        return OwnRows(
            data.features, data.labels, fit.criterion, fit.intercept, data.classes, data.sample_weights, fit.folds, fold
        )

    @property
    def _parts(self) -> Parts:
        """How many rows each fold has, and how many of each class."""
        cells = replace(self.own, sample_weights=None).counts()
        return Parts(cells.sum(1).long().tolist(), cells)

    def begins(self) -> Head:
        """What is told at the start: how long x is, and up to which derivative sums are told."""
        wanted = {order: Wanted(self._parts, self.own.d, order) for order in ("hessian", "gram")}
        told = {f"{order}s": self.holder.guard.may_tell(each) for order, each in wanted.items()}
        return {"d": self.own.d, "n": len(self.job.sites), **told}

    # ---- questions -----------------------------------------------------------------------------------------------

    def answer(self, letter: Letter) -> bytes:
        if (told := self.told.get(key := letter.digest.encode())) is not None:
            return told
        what = letter.word("what")
        if what == "there":
            return self.holder.seal(letter, "answer", {}).encode()
        if what == "sums":
            head, body, asked = self._sums(letter)
        elif what in ("counts", "grams"):
            head, body, asked = self._of_folds(letter, what)
        elif what in ("judged", "histogram"):
            head, body, asked = self._judged(letter) if what == "judged" else self._histogram(letter)
        else:
            raise RunError(f"a fit has no query {what!r:.40}")
        data = self.holder.leave(asked, self.holder.seal(letter, "answer", head, body))
        self.told[key] = data
        if len(self.told) > REMEMBERED:
            del self.told[next(iter(self.told))]
        return data

    def _asked(self, letter: Letter, what: str, parts: Iterable[str], count: int) -> Asked:
        asked = self.holder.asked(letter, self.job, what, tuple(dict.fromkeys(parts)))._replace(answers=count)
        self.holder.guard.gate(asked)
        return asked

    def _sums(self, letter: Letter) -> tuple[Head, bytes, Asked]:
        found = fit_job.read_sums(letter, self.own.d, self.own.counts().shape[1])
        strange = next((q for q in found.questions if (q.part.fold or 0) >= max(1, self.fit.folds)), None)
        require(strange is None, f"a fold was asked for that is none of the {self.fit.folds} of this job")
        words = ("value", "gradient", "hessian")
        asked = self._asked(letter, "sums", (words[q.order] for q in found.questions), len(found.questions))
        hessians = any(q.order > 1 for q in found.questions)
        self._wanted("hessian" if hessians else "sum", found.factors)
        points = {q.x.data_ptr(): q.x for q in found.questions}.values()
        self._follow(points)
        with withheld("a query failed"):
            if isinstance(self.own.loss, (Poisson, Cox)):
                self.holder.guard.dominates(max(own_sums.dominance(self.own, q) for q in found.questions))
            answers = own_sums.answer(self.own, found.questions, found.factors)
            return *self._told(fit_job.flat_sums(answers), letter), asked

    def _follow(self, points: Iterable[Tensor]) -> None:
        """Points far out single out rows, if the loss bends: its unit is 1, or Huber's delta. A squared loss does not
        bend, so that its gradients at any points tell what its Gram matrix tells."""
        loss = self.own.loss
        if not isinstance(loss, (Squared, OneHot)):
            unit = loss.delta if isinstance(loss, Huber) else 1.0
            start = torch.zeros(self.own.d, dtype=torch.float64)
            self.holder.guard.follow(self.job, start, (x / unit for x in points))

    def _of_folds(self, letter: Letter, what: str) -> tuple[Head, bytes, Asked]:
        factors = fit_job.read_plain(letter, self.own.counts().shape[1])
        asked = self._asked(letter, what, [what], max(1, self.fit.folds))
        self._wanted("gram" if what == "grams" else "count", factors)
        with withheld("a query failed"):
            if what == "counts":
                return *self._told(self.own.counts().flatten(), letter), asked
            return *self._told(fit_job.flat_grams(own_sums.grams(self.own, factors)), letter), asked

    def _wanted(self, what: str, factors: Tensor | None) -> None:
        masked = self.job.protection.secure_aggregation
        given = None if factors is None else factors.tolist()
        self.holder.guard.tells(Wanted(self._parts, self.own.d, what, given, masked))

    def _told(self, values: Tensor, letter: Letter) -> tuple[Head, bytes]:
        form, body = pack((self.link.sums(values, letter),), ())
        return {"form": form}, body

    # ---- the model that came out -----------------------------------------------------------------------------------

    def keep(self, content: bytes, path: Path) -> None:
        """A copy of the model, if it is one of this fit; there is one of each."""
        try:
            model = Model.model_validate_json(content)
            written = model.content() == content and not model.signatures
        except ValueError:
            raise RunError("what was sent is no model") from None
        require(written, "the model is not written as it is signed")
        same = canonical(model.preparation) == canonical(self.job.schema["preparation"])
        same = same and tuple(model.organisations) == self.job.sites
        same = same and model.loss.get("name") == self.fit.loss.name
        require(same, "the model is not of this fit: its organisations, its preparation or its loss are others")
        coef, at = model.prepare.original_scale(np.array(model.prepared.coef), np.array(model.prepared.intercept))
        told = [*np.ravel(model.original.coef), *model.original.intercept]
        require(np.allclose([*np.ravel(coef), *np.atleast_1d(at)], told, rtol=1e-9), "the model has two contents")
        new = not path.exists()
        text = model.text().encode()
        require(new or path.read_bytes() == text, "another model came of this fit before")
        if new:
            private_folder(path.parent)
            files.replace(path, text)

    # ---- how good a model is here ----------------------------------------------------------------------------------

    def _held_out(self, letter: Letter, what: str) -> tuple[np.ndarray, Asked]:
        """(N, outputs) the scores of every row by the model of its fold, which has not seen it; (folds, d) models."""
        fold, folds = self.own.fold, self.fit.folds
        models = fit_job.read_models(letter, max(1, folds), self.own.d)
        require(fold is not None, f"{what}: rows are held out by folds, and the job has none")
        asked = self._asked(letter, what, [what], folds)
        self._follow(models)
        q, p = self.own.outputs, int(self.own.features.shape[1])
        weights, bias = models[:, : q * p].view(-1, q, p).numpy(), models[:, q * p :].numpy()
        scores = np.einsum("nqp,np->nq", weights[fold], np.asarray(self.own.features))
        return scores + bias[fold] if self.fit.intercept else scores, asked

    def _judged(self, letter: Letter) -> tuple[Head, bytes, Asked]:
        """Measures of this site alone, rounded."""
        self.holder.guard.judges()
        scores, asked = self._held_out(letter, "judged")
        with withheld("a query failed"):
            (row, *_) = judge(self.own.loss, scores, self.own.labels, [len(scores)], ["here"], repetitions=0).values()
            values, _ = self.link.tested({name: m.value for name, m in row.items()}, len(scores))
        return {"measures": {name: value for name, value in values.items() if np.isfinite(value)}}, b"", asked

    def _histogram(self, letter: Letter) -> tuple[Head, bytes, Asked]:
        """How many rows of each of two classes have which score, of all sites together; few rows go to neighbours."""
        require(isinstance(self.own.loss, Logistic), "a histogram of scores is told of two classes")
        scores, asked = self._held_out(letter, "histogram")
        with withheld("a query failed"):
            bins = np.clip((BINS * probability(scores[:, 0])).astype(np.int64), 0, BINS - 1)
            fewest = self.holder.guard.fewest
            both = [merged(np.bincount(bins[self.own.labels * sign > 0], minlength=BINS), fewest) for sign in (-1, 1)]
            return *self._told(torch.from_numpy(np.concatenate(both)), letter), asked


def merged(counts: np.ndarray, fewest: int) -> np.ndarray:
    """(bins,) with neighbours together until no bin has few rows: they go where most of them are."""
    out = np.zeros(len(counts))
    if not fewest <= counts.sum():
        return out
    first = 0
    for last, count in zip(*coarsen(counts, fewest), strict=True):
        out[first + int(counts[first : last + 1].argmax())] = count
        first = last + 1
    return out
