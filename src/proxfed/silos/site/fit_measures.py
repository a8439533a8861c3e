"""A site's answers about held-out rows: measures of a model, of the site's own model, and a histogram of scores."""

from __future__ import annotations

import numpy as np
import torch

from proxfed.errors import ProxfedError, require
from proxfed.fit.baselines import alone_of
from proxfed.fit.held_out import held_out_scores
from proxfed.fit.judge import judge
from proxfed.fit.metrics import counted_by_score
from proxfed.problems.losses import Logistic
from proxfed.silos.protection.guard import Asked, withheld
from proxfed.silos.site.fit_problem import problem_of_job
from proxfed.silos.site.fit_rows import TOO_FEW, Answer, Answered, FitRows
from proxfed.silos.wire import fit_questions
from proxfed.silos.wire.fit_answers import BINS
from proxfed.silos.wire.fit_questions import Bootstrap
from proxfed.silos.wire.message import Letter
from proxfed.tables.disclosure import coarsen


def _held_out(rows: FitRows, letter: Letter, what: str) -> tuple[np.ndarray, Asked]:
    """(N, outputs) the scores, each row by the model fitted without its fold; in a validation, one model for all."""
    own, folds = rows.own, max(1, rows.fit.folds)
    models, counts = fit_questions.read_models(letter, folds, own.d, rows.own_d, rows.classes)
    held_out = own.fold is not None or rows.fit.external
    require(held_out, f"{what}: rows are held out by folds, and the job has none")
    asked = rows.asked(letter, what, [what], folds)
    rows.follow(models, counts)
    with withheld("a query failed"):
        return held_out_scores(rows.here(counts), models), asked


def _judged(rows: FitRows, letter: Letter) -> Answered:
    """Rounded measures on the rows of this site, with intervals."""
    rows.holder.guard.judges()
    drawn = Bootstrap.read(letter)
    scores, asked = _held_out(rows, letter, "judged")
    with withheld("a query failed"):
        return {"measures": _measures(rows, scores, drawn)}, b"", asked


def _alone(rows: FitRows, letter: Letter) -> Answered:
    """Measures of a model of this site's rows alone, cross-validated in the site's own folds."""
    rows.holder.guard.judges()
    drawn = Bootstrap.read(letter)
    settings, counts = fit_questions.read_alone(letter, rows.classes)
    require(rows.fit.by == "rows" and rows.own.fold is not None, "alone: the job has no folds of a site's own rows")
    asked = rows.asked(letter, "alone", ["judged"], rows.fit.folds)
    rows.holder.guard.once(asked, letter.digest)
    rows.wanted("sum", counts.factors)
    h = problem_of_job(settings, rows.job, rows.prepared, rows.fit.intercept and not counts.own).h
    with withheld("a query failed"):
        here = rows.here(counts)
        try:
            cv = alone_of(here, h, settings)
        except ProxfedError:
            return {"why": TOO_FEW}, b"", asked
        place = cv.place(settings.rule)
        told = _measures(rows, held_out_scores(here, cv.models[:, place]), drawn)
        return {"measures": told, "nonzeros": int((cv.fits[place].x[: rows.own_d] != 0).sum())}, b"", asked


def _measures(rows: FitRows, scores: np.ndarray, drawn: Bootstrap) -> dict[str, list[float | None]]:
    """By name: [value, low, high] of these scores, rounded; null if a number is not finite."""
    name, more = rows.holder.name, drawn._asdict() | {"first": rows.job.sites.index(rows.holder.name)}
    more["units"] = rows.holder.rows.units
    (row, *_) = judge(rows.own.loss, scores, rows.own.labels, [len(scores)], [name], **more).values()
    each = [rows.link.tested({k: m[part] for k, m in row.items()}, len(scores))[0] for part in range(3)]
    return {k: [v if np.isfinite(v := part[k]) else None for part in each] for k in row if np.isfinite(each[0][k])}


def _histogram(rows: FitRows, letter: Letter) -> Answered:
    """A histogram of scores for each of two classes, summed over sites; small bins are merged with neighbours."""
    require(isinstance(rows.own.loss, Logistic), "a histogram of scores is told of two classes")
    scores, asked = _held_out(rows, letter, "histogram")
    with withheld("a query failed"):
        fewest = rows.holder.guard.fewest
        both = [merged(counts, fewest) for counts in counted_by_score(scores[:, 0], rows.own.labels, BINS)]
        return *rows.hidden(torch.from_numpy(np.concatenate(both)), letter), asked


def merged(counts: np.ndarray, fewest: int) -> np.ndarray:
    """(bins,) merged with neighbours until no bin has few rows; the merged count stands in its largest bin."""
    out = np.zeros(len(counts))
    if not fewest <= counts.sum():
        return out
    first = 0
    for last, count in zip(*coarsen(counts, fewest), strict=True):
        out[first + int(counts[first : last + 1].argmax())] = count
        first = last + 1
    return out


ANSWERS: dict[str, Answer] = {
    "judged": _judged,
    "alone": _alone,
    "histogram": _histogram,
}
