"""One fit at one site: what it answers to questions for sums over its own rows (wire/fit_job.py).

There is no state: an answer follows from the question and the rows, and asked again it is the same bytes. Which rows a
part has is the site's own decision, made once for all jobs, and every part and what it leaves out have enough rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from proxfed import files
from proxfed.data.federated import Window
from proxfed.errors import ProxfedError, RunError, require
from proxfed.files import private_folder
from proxfed.fit.baselines import alone_of
from proxfed.fit.held_out import held_out_scores
from proxfed.fit.here import Here
from proxfed.fit.inference.regression import Intercept
from proxfed.fit.inference.subject import Subject
from proxfed.fit.inference.survival import WIDE, even_steps
from proxfed.fit.judge import judge
from proxfed.fit.metrics import counted_by_score
from proxfed.fit.model_file import Model
from proxfed.fit.oracle import Question
from proxfed.fit.own_rows import OwnRows, dense
from proxfed.fit.own_sums import dominance, leverage
from proxfed.fit.private import noisy
from proxfed.fit.settings import loss_fits
from proxfed.problems.linear.cox import Cox
from proxfed.problems.losses import Huber, Logistic, OneHot, Poisson, Squared
from proxfed.silos.protection.guard import Asked, Link, Parts, Wanted, withheld
from proxfed.silos.site.fit_problem import problem_of_job
from proxfed.silos.site.site_run import REMEMBERED
from proxfed.silos.site.table_rows import TableRows
from proxfed.silos.wire import fit_job
from proxfed.silos.wire.fit_job import BINS, PLAIN, Bootstrap, Counts, read_fit
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Head, Letter, canonical, pack
from proxfed.tables.disclosure import coarsen
from proxfed.tables.preparation import Preparation

if TYPE_CHECKING:
    from proxfed.silos.site.holder import Holder


EXTERNAL = ("counts", "sums", "judged", "histogram")
"""What is asked to validate a model that others have fitted."""

TOO_FEW = "its rows are too few or too much alike"
"""Why a site has no model of its own rows; what is wrong exactly would tell of them."""

Answered = tuple[Head, bytes, Asked]
Answer = Callable[[Letter], Answered]


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

    def _here(self, counts: Counts) -> Here:
        """This organisation alone, asked as all of them are where their tables lie in one place."""
        here = Here((self.own,), (self.holder.name,), counts.factors)
        return here.adding_intercepts() if counts.own else here

    @cached_property
    def _prepared(self) -> Preparation:
        return Preparation.from_plain(self.job.schema["preparation"])

    @property
    def _own_d(self) -> int:
        """Coefficients where sites add intercepts."""
        return self.own.outputs * self.own.width

    @property
    def _parts(self) -> Parts:
        """How many rows each fold has, and how many of each class."""
        cells = replace(self.own, sample_weights=None).counts()
        return Parts(cells.sum(1).long().tolist(), cells)

    def begins(self) -> Head:
        """What is told at the start: how long x is, and up to which derivative sums are told."""
        if self.fit.private is not None:
            return {"d": self.own.d, "n": len(self.job.sites)}
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
        known: dict[str, Answer] = {
            "sums": self._sums,
            "counts": self._counts,
            "grams": self._grams,
            "size": self._size,
            "agreement": self._agreement,
            "estimates": self._estimates,
            "intercept": self._intercept,
            "risks": self._risks,
            "judged": self._judged,
            "alone": self._by_own_model,
            "histogram": self._histogram,
            "private": self._private,
        }
        told_of = ("judged",) if self.job.measures_only else EXTERNAL
        fits = (what == "private") == (self.fit.private is not None)
        if what not in known or not fits or (self.fit.external and what not in told_of):
            raise RunError(f"a fit has no query {what!r:.40}")
        head, body, asked = known[what](letter)
        data = self.holder.leave(asked, self.holder.seal(letter, "answer", head, body))
        self.told[key] = data
        if len(self.told) > REMEMBERED:
            del self.told[next(iter(self.told))]
        return data

    def _asked(self, letter: Letter, what: str, parts: Iterable[str], count: int) -> Asked:
        asked = self.holder.asked(letter, self.job, what, tuple(dict.fromkeys(parts)))._replace(answers=count)
        self.holder.guard.gate(asked)
        return asked

    def _sums(self, letter: Letter) -> Answered:
        questions, counts = fit_job.read_sums(letter, self.own.d, self._own_d, self._classes)
        losses = all(q.order == 0 and not q.products for q in questions)
        require(losses or not self.fit.external, "a validation asks for losses, not for derivatives")
        strange = next((q for q in questions if (q.part.fold or 0) >= max(1, self.fit.folds)), None)
        require(strange is None, f"a fold was asked for that is none of the {self.fit.folds} of this job")
        words = ("value", "gradient", "hessian")
        parts = [words[q.order] for q in questions] + ["products" for q in questions if q.products]
        asked = self._asked(letter, "sums", parts, len(questions))
        self._wanted("hessian" if any(q.order > 1 for q in questions) else "sum", counts.factors)
        for products in {q.products for q in questions} - {""}:
            self.holder.guard.infers(
                self.own.cluster[1] if products == "cluster" else None, apart=products == "organisation"
            )
        points = {q.x.data_ptr(): q.x for q in questions}.values()
        self._follow(points, counts)
        with withheld("a query failed"):
            self._dominated(questions)
            return *self._hidden(fit_job.flat_sums(self._here(counts).ask(questions)), letter), asked

    def _dominated(self, questions: Iterable[Question]) -> None:
        """Where losses grow as e^(score), one row may be all of a sum."""
        if isinstance(self.own.loss, (Poisson, Cox)):
            self.holder.guard.dominates(max(dominance(self.own, q) for q in questions))

    @property
    def _classes(self) -> int:
        return self.own.kinds

    def _follow(self, points: Iterable[Tensor], counts: Counts = PLAIN) -> None:
        """Points far out single out rows, if the loss bends: its unit is 1, or Huber's delta. A squared loss does not
        bend, so that its gradients at any points tell what its Gram matrix tells."""
        loss = self.own.loss
        if not isinstance(loss, (Squared, OneHot)):
            unit = loss.delta if isinstance(loss, Huber) else 1.0
            start = torch.zeros(self.own.d, dtype=torch.float64)
            gap = start[self._own_d if counts.own else self.own.d :]  # where an intercept would be
            self.holder.guard.follow(self.job, start, (torch.cat([x / unit, gap]) for x in points))

    def _counts(self, letter: Letter) -> Answered:
        fit_job.read_plain(letter, self._classes)
        asked = self._asked(letter, "counts", ["counts"], max(1, self.fit.folds))
        self._wanted("count", None)
        with withheld("a query failed"):
            return *self._hidden(self.own.counts().flatten(), letter), asked

    def _grams(self, letter: Letter) -> Answered:
        counts = fit_job.read_plain(letter, self._classes)
        asked = self._asked(letter, "grams", ["grams"], max(1, self.fit.folds))
        self._wanted("gram", counts.factors)
        with withheld("a query failed"):
            return *self._hidden(fit_job.flat_grams(self._here(counts).grams()), letter), asked

    # ---- standard errors and survival --------------------------------------------------------------------------

    def _size(self, letter: Letter) -> Answered:
        counts = fit_job.read_plain(letter, self._classes)
        asked = self._asked(letter, "size", ["size"], 1)
        self.holder.guard.infers()
        self._wanted("count", counts.factors)
        with withheld("a query failed"):
            size = self._here(counts).size()
            more = torch.tensor([size.clusters, size.least], dtype=torch.float64)
            return *self._hidden(torch.cat([size.kinds, more]), letter), asked

    def _alone(self, letter: Letter, what: str) -> tuple[list[int], Here, Asked]:
        """Estimates of this site's rows alone need as many rows as Hessians do."""
        counts = letter.head.get("own") is True
        order, read = fit_job.read_order(letter, self._classes, self._own_d if counts else self.own.d)
        kind: Intercept = "own" if counts else "shared" if self.fit.intercept else "none"
        all_ = Subject(self._here(read), self.own.loss, self._prepared).preferred(kind)
        require(order == all_, "order: estimates are told of the whole model, with all its coefficients")
        asked = self._asked(letter, what, [what], 1)
        self.holder.guard.infers(alone=what == "estimates")
        self.holder.guard.once(asked, letter.digest)
        self._wanted("hessian", read.factors)
        return order, self._here(read), asked

    def _agreement(self, letter: Letter) -> Answered:
        order, here, asked = self._alone(letter, "agreement")
        with withheld("a query failed"):
            return *self._hidden(here.agreement(order).flatten(), letter), asked

    def _estimates(self, letter: Letter) -> Answered:
        order, here, asked = self._alone(letter, "estimates")
        with withheld("a query failed"):
            (own,) = here.estimates(order).values()
            if isinstance(own, str):
                return {"why": TOO_FEW}, b"", asked
            told = {"b": coarse(own.b, own.error), "error": coarse(own.error, own.error)}
        return {key: [v if np.isfinite(v) else None for v in values] for key, values in told.items()}, b"", asked

    def _intercept(self, letter: Letter) -> Answered:
        (x,), counts = fit_job.read_points(letter, self._classes, self._own_d)
        require(counts.own, "an intercept is asked for, where there is one for all")
        asked = self._asked(letter, "intercept", ["intercept"], 1)
        self._wanted("sum", counts.factors)
        self._follow([x], counts)
        with withheld("a query failed"):
            self.holder.guard.dominates(leverage(self.own, x, counts.factors))
            return *self._hidden(self._here(counts).intercept_sums(x), letter), asked

    def _risks(self, letter: Letter) -> Answered:
        """Intervals in which few rows leave are put together, whoever reads the sum; whoever asks can choose where even
        steps end, once."""
        require(isinstance(self.own.loss, Cox), "risks are told of survival")
        (times, x), counts = fit_job.read_points(letter, self._classes, -1, self.own.d)
        grid, last = times.numpy(), float(times[-1])
        wide = np.array_equal(grid, WIDE)
        even = last in WIDE and np.array_equal(grid, even_steps(last))
        require(wide or even, "risks are told at powers of two, or in even steps to one of them")
        asked = self._asked(letter, "risks", ["risks"], 1)
        self.holder.guard.infers()
        self._follow([x], counts)
        if even:
            self.holder.guard.times(last)
        here = self._here(counts)
        with withheld("a query failed"):
            self._dominated([Question(x)])
            self.holder.guard.dominates(here.heaviest_risk(times, x))
            return *self._hidden(here.risks(times, x).flatten(), letter), asked

    def _private(self, letter: Letter) -> Answered:
        fit_job.read_plain(letter, self._classes)
        assert self.fit.private is not None
        asked = self._asked(letter, "private", ["private"], 1)
        with withheld("a query failed"):
            M = self.fit.private.products(dense(self.own.features).numpy(), self.own.labels)
            G = self.link.normal(M, letter, 2 * self.fit.private.noise)
            sent = noisy(M, self.fit.private.noise, G)
            return *self._hidden(fit_job.half(torch.from_numpy(sent)), letter), asked

    def _wanted(self, what: str, factors: Tensor | None) -> None:
        masked = self.job.protection.secure_aggregation
        given = None if factors is None else factors.tolist()
        self.holder.guard.tells(Wanted(self._parts, self.own.d, what, given, masked))

    def _hidden(self, values: Tensor, letter: Letter) -> tuple[Head, bytes]:
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
        """(N, outputs) the scores of every row by the model of its fold, which has not seen it; in a validation, of
        all rows by one model."""
        own, folds = self.own, max(1, self.fit.folds)
        models, counts = fit_job.read_models(letter, folds, own.d, self._own_d, self._classes)
        held_out = own.fold is not None or self.fit.external
        require(held_out, f"{what}: rows are held out by folds, and the job has none")
        asked = self._asked(letter, what, [what], folds)
        self._follow(models, counts)
        with withheld("a query failed"):
            return held_out_scores(self._here(counts), models), asked

    def _judged(self, letter: Letter) -> Answered:
        """Measures of this site alone, rounded, with intervals."""
        self.holder.guard.judges()
        drawn = Bootstrap.read(letter)
        scores, asked = self._held_out(letter, "judged")
        with withheld("a query failed"):
            return {"measures": self.measures(scores, drawn)}, b"", asked

    def _by_own_model(self, letter: Letter) -> Answered:
        """Measures of a model of this site's rows alone, chosen and judged by its own folds."""
        self.holder.guard.judges()
        drawn = Bootstrap.read(letter)
        settings, counts = fit_job.read_alone(letter, self._classes)
        require(self.fit.by == "rows" and self.own.fold is not None, "alone: the job has no folds of a site's own rows")
        asked = self._asked(letter, "alone", ["judged"], self.fit.folds)
        self.holder.guard.once(asked, letter.digest)
        self._wanted("sum", counts.factors)
        h = problem_of_job(settings, self.job, self._prepared, self.fit.intercept and not counts.own).h
        with withheld("a query failed"):
            here = self._here(counts)
            try:
                cv = alone_of(here, h, settings)
            except ProxfedError:
                return {"why": TOO_FEW}, b"", asked
            place = cv.place(settings.rule)
            told = self.measures(held_out_scores(here, cv.models[:, place]), drawn)
            return {"measures": told, "nonzeros": int((cv.fits[place].x[: self._own_d] != 0).sum())}, b"", asked

    def measures(self, scores: np.ndarray, drawn: Bootstrap) -> dict[str, list[float | None]]:
        """By name: [value, low, high] of these scores of all rows, rounded; null where there is no such number."""
        name, more = self.holder.name, drawn._asdict() | {"first": self.job.sites.index(self.holder.name)}
        more["units"] = self.holder.rows.units
        (row, *_) = judge(self.own.loss, scores, self.own.labels, [len(scores)], [name], **more).values()
        each = [self.link.tested({k: m[part] for k, m in row.items()}, len(scores))[0] for part in range(3)]
        return {k: [v if np.isfinite(v := part[k]) else None for part in each] for k in row if np.isfinite(each[0][k])}

    def _histogram(self, letter: Letter) -> Answered:
        """How many rows of each of two classes have which score, of all sites together; few rows go to neighbours."""
        require(isinstance(self.own.loss, Logistic), "a histogram of scores is told of two classes")
        scores, asked = self._held_out(letter, "histogram")
        with withheld("a query failed"):
            fewest = self.holder.guard.fewest
            both = [merged(counts, fewest) for counts in counted_by_score(scores[:, 0], self.own.labels, BINS)]
            return *self._hidden(torch.from_numpy(np.concatenate(both)), letter), asked


def coarse(values: np.ndarray, errors: np.ndarray) -> list[float]:
    """To a hundredth of the standard error, in a power of ten: nothing finer says anything of the population."""
    with np.errstate(divide="ignore", invalid="ignore"):
        step = 10.0 ** np.floor(np.log10(errors) - 2)
    return [float(v) if not s > 0 else round(round(v / s) * s, 12) for v, s in zip(values, step, strict=True)]


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
