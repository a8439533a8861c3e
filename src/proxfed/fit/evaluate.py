"""The model on held-out rows, and the models to compare it with: of each organisation alone and of pooled rows."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from proxfed.fit.baselines import Alone, Held, Pooled, alone, pooled
from proxfed.fit.cross_validate import CrossValidation
from proxfed.fit.judge import Judgement, judge
from proxfed.fit.settings import Settings
from proxfed.fit.steps import Watch
from proxfed.problems.linear.linear import Linear
from proxfed.problems.neural.loop import parameters
from proxfed.tables.design import Design
from proxfed.types import Problem


def held_rows(made: Design, problem: Problem[Linear], cv: CrossValidation | None, asked: Settings) -> Held:
    """The rows of the test part, if there is one; otherwise all rows, each held out once by cross-validation."""
    if problem.f.data.test is not None:
        names, sizes = [t.organisation for t in made.tables.test], [len(t) for t in made.tables.test]
        features, labels = problem.f.data.test
        each = [t.units for t in made.tables.test if t.units is not None]
        units = np.concatenate(each) if each else None
        return Held(np.asarray(features), np.asarray(labels), sizes, names, None, "the test part", units)
    assert cv is not None
    how = {
        "within": f"{len(cv.rows)} folds, each with rows of every organisation",
        "organisation": "each organisation in turn, by the model of all others",
    }[asked.chosen_by]
    rule = made.tables.schema.folds
    if rule.about and asked.chosen_by == "within":
        how += f"; rows of the same {rule.about} are held out together"
    data = problem.f.data
    names = list(made.organisations)
    return Held(np.asarray(data.features), data.labels, data.sizes.tolist(), names, cv.rows, how, made.units)


def judge_held_out(problem: Problem[Linear], values: np.ndarray, held: Held, asked: Settings) -> Judgement:
    """Measures of these scores of the held-out rows, by organisation, with bootstrap intervals."""
    return judge(
        problem.f.criterion,
        values,
        held.labels,
        held.sizes,
        held.names,
        repetitions=asked.repetitions,
        level=asked.level,
        seed=asked.seed,
        units=held.units,
    )


def comparisons(
    problem: Problem[Linear], made: Design, held: Held, asked: Settings, smallest: float, watch: Watch
) -> tuple[Alone, Pooled | None]:
    """The models of each organisation alone and of pooled rows, unless `alone` is false."""
    if not asked.alone:
        return Alone({}, {}, []), None
    done = 0
    total = len(made.organisations) + 1 + (0 if held.rows is None else len(held.rows))

    def one_more() -> None:
        nonlocal done
        watch("models to compare with", done, total)
        done += 1

    same = problem.h.weak_convexity == 0 and not asked.site_intercepts  # pooled rows have one intercept
    central = pooled(problem, held, one_more) if same else None
    return alone(problem, made.organisations, held, asked, smallest, one_more, made.units), central


def judge_alone(problem: Problem[Linear], found: Alone, held: Held, asked: Settings) -> Judgement:
    """Measures of each organisation's own model on its held-out rows, where it has such a model."""
    if not found.scores:
        return {}
    names = [name for name in held.names if name in found.scores]
    labels = np.concatenate([held.labels[held.parts[name]] for name in names])
    sizes = [len(found.scores[name]) for name in names]
    units = None if held.units is None else np.concatenate([held.units[held.parts[name]] for name in names])
    own = held._replace(labels=labels, sizes=sizes, names=names, units=units)
    return judge_held_out(problem, np.concatenate([found.scores[name] for name in names]), own, asked)


def largest_difference(problem: Problem[Linear], one: Tensor, other: Tensor) -> float:
    """The largest difference of a coefficient; a common shift of all classes' intercepts does not count."""
    a, b = parameters(one, problem.f.blocks), parameters(other, problem.f.blocks)
    parts = [a["weight"] - b["weight"]]
    if problem.f.intercept:
        shift = a["bias"] - b["bias"]
        parts.append(shift - shift.mean() if len(shift) > 1 else shift)
    return max(float(part.abs().max()) for part in parts)
