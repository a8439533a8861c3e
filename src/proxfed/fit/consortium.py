"""From the tables of organisations to one model: prepared, chosen, fitted, judged. Nothing but messages leaves a table.

read_tables -> summaries -> preparation -> path and cross-validation -> model -> measures on rows that it has not seen
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import InputError, require
from proxfed.explained import explain
from proxfed.files import write_together
from proxfed.fit.baselines import Alone, Held, Pooled, alone, pooled, scores
from proxfed.fit.costs import CHOICE, FINAL, MEASURES, SUMMARIES, costs
from proxfed.fit.cross_validate import CrossValidation, cross_validate
from proxfed.fit.inference.of_fit import advice, inference_of, reason_for_none
from proxfed.fit.inference.result import Inference
from proxfed.fit.inference.subject import subject
from proxfed.fit.inference.survival import baseline_hazard
from proxfed.fit.judge import ALL, Judgement, judge, plain
from proxfed.fit.metrics import Bin, calibration_curve
from proxfed.fit.model_file import FORM, BaselineHazard, Model, Scale, Sent
from proxfed.fit.nested import Nested, nested
from proxfed.fit.objective import Objective
from proxfed.fit.oracle import Organisations, Part
from proxfed.fit.own_intercepts import profiled, shifts
from proxfed.fit.settings import Settings, problem_of, read_settings, solver_of
from proxfed.fit.shown import Shown
from proxfed.fit.solve import Fit, Solver, Traffic, objective_of
from proxfed.fit.validation import Validation, of_two_classes, resampled
from proxfed.machine import versions
from proxfed.problems.linear.cox import Cox
from proxfed.problems.linear.linear import Linear
from proxfed.problems.losses import Logistic
from proxfed.problems.named_losses import KINDS
from proxfed.problems.neural.loop import parameters
from proxfed.registry import describe
from proxfed.simulate.timing import Timing
from proxfed.tables.design import Design, design
from proxfed.tables.holdings import Holdings, holdings
from proxfed.tables.preparation import Preparation
from proxfed.tables.schema import Schema, read_schema
from proxfed.tables.table import Tables, read_tables
from proxfed.types import Block, Problem

__all__ = ["Fitted", "fit"]

PATH = re.compile(r"[^\s:,]*/([^/\s:,]+)")
"""The path of a file in a note, of which a model that is passed on keeps the last part only."""

FILES = ("model.json", "coefficients.csv", "model.R", "report.html", "model_card.md")
"""What a model is saved as; the others describe the first."""
INTERVALS = ("intervals.csv", "intervals.tex", "intervals.json")
"""Beside them, where there are intervals."""

Watch = Callable[[str, int, int], object]
"""Called with what is done now, how much of it is done, and how much there is."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model with what it came from and how good it is."""

    model: Model
    """Coefficients, preparation and measures: what `save` writes."""
    settings: Settings
    """With which it was fitted."""
    design: Design
    """The prepared tables."""
    problem: Problem[Linear]
    """With the weight that was chosen."""
    fit: Fit
    """The final fit: its coefficients, rounds and bytes."""
    cv: CrossValidation | None
    """None: the weight was given, and there is a test part."""
    held: Held
    """The rows that the model was judged on."""
    scores: np.ndarray
    """(N, outputs) of the held-out rows."""
    federated: Judgement
    """Measures of the model on held-out rows."""
    alone: Judgement
    """Measures of each organisation's model of its own rows."""
    pooled: Judgement
    """Measures of a model of all rows in one place."""
    own_intercepts: dict[str, float]
    """With site intercepts: what each organisation adds to its scores, and keeps."""
    alone_nonzeros: dict[str, int]
    """Non-zero coefficients of each organisation's own model."""
    off_pooled: float | None
    """The largest difference of a coefficient, on the prepared scale, from that of pooled rows."""
    validation: Validation = field(default_factory=Validation)
    """Calibration by organisation, decision curve, and what was asked for of the rows drawn again."""

    @property
    def sent(self) -> list[Sent]:
        """What was sent, step by step."""
        return self.model.sent

    @cached_property
    def inference(self) -> Inference:
        """Debiased estimates with intervals, in the units of the columns; refused where there are too few rows."""
        return inference_of(self, self.settings.site_intercepts)

    @property
    def block(self) -> Block:
        """Where the weights are in x."""
        return self.problem.f.blocks[0]

    @property
    def rows(self) -> int:
        """That it was fitted to."""
        return len(self.problem.f.data.labels)

    @property
    def holdings(self) -> Holdings:
        """Who holds what."""
        return holdings(self.design.tables)

    @property
    def calibration(self) -> list[Bin]:
        """Predicted and observed probabilities of two classes; none of other models."""
        two = self.model.loss["name"] == "logistic"
        return calibration_curve(self.scores[:, 0], self.held.labels) if two else []

    @property
    def intervals(self) -> str:
        """What those of the measures are."""
        return f"the interval of {100 * self.settings.level:g} % by bootstrap within organisations"

    @property
    def judged_by_folds(self) -> bool:
        """The rows that it was judged on are those of the folds."""
        return self.held.rows is not None

    @property
    def protection(self) -> str:
        """How sums travelled."""
        return "Gradients and sums were sent as they are: no noise was added and no secure sum was used."

    def save(self, folder: str | Path) -> None:
        """model.json, coefficients.csv, report.html and model_card.md."""
        save(self, folder)


def save(fitted: Shown, folder: str | Path) -> None:
    """All FILES, and INTERVALS where there are some."""
    from proxfed.fit.card import card
    from proxfed.fit.page import page
    from proxfed.fit.r_script import r_script

    try:
        script = r_script(fitted.model)
    except InputError as e:
        script = f"stop({json.dumps(f'{e}; proxfed predict reads it')})\n"
    texts = [fitted.model.text(), fitted.model.csv(), script, page(fitted), card(fitted)]
    named = dict(zip(FILES, texts, strict=True))
    if not reason_for_none(fitted):
        found = fitted.inference
        named |= zip(INTERVALS, (found.csv(), found.latex(), found.json()), strict=True)
    write_together(Path(folder), named)


def fit(
    tables: str | Path | Schema | Tables,
    directory: str | Path | None = None,
    *,
    watch: Watch = lambda what, done, total: None,
    **settings: Any,
) -> Fitted:
    """One model of all organisations' tables.

    Parameters
    ----------
    tables : str, Path, Schema or Tables
        The file of their schema, the schema, or tables that were read.
    directory : str or Path, optional
        The data directory; None: PROXFED_DATA.
    watch : callable
        Called with what is done now, how much of it is done, and how much there is.
    **settings : Any
        Those of `Settings`, such as penalty="group_lasso" or weight=0.02; they overrule [model] of the file.

    Returns
    -------
    Fitted
        The model, what it came from and how good it is.
    """
    base: dict[str, Any] = {}
    if isinstance(tables, (str, Path)):
        base = read_schema(tables).model
    elif isinstance(tables, Schema):
        base = tables.model
    asked = settings_for(base, settings)
    if not isinstance(tables, Tables):
        watch("reading tables", 0, 1)
        tables = read_tables(tables, directory)
    return _fit(tables, asked, watch)


def settings_for(base: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """Those of a schema's [model], overruled by what is given."""
    besides = "cv" if given.get("weight") is not None else "weight" if given.get("cv") is not None else ""
    return read_settings({key: value for key, value in base.items() if key != besides} | dict(given))


def _fit(tables: Tables, asked: Settings, watch: Watch) -> Fitted:
    path_solver = solver_of(asked, asked.cv_tolerance)  # what is wrong with it is refused before tables are prepared
    Timing.read({"profile": asked.profile}).check(len(tables.tables))
    watch("preparing tables", 0, 1)
    made = design(tables)
    problem = fitted_to = problem_of(asked, made)
    if asked.site_intercepts:
        fitted_to = problem_of(asked.model_copy(update={"intercept": False}), made)
    n, data = problem.f.n, problem.f.data
    smallest = asked.smallest or (1e-2 if data.features.shape[1] > len(data.labels) else 1e-3)
    given = given_weight(asked)
    cv = None
    if given is None or data.test is None:
        cv = _cross_validated(fitted_to, given, asked, smallest, path_solver, watch, made.units)
    place = 0 if cv is None else cv.place(asked.rule)
    chosen, final, objective = _final(fitted_to, given, cv, asked, watch)
    held = _held(made, problem, cv, asked)
    twice = None
    if asked.nested:
        twice = _nested(fitted_to, cv, held, asked, smallest, path_solver, watch)
        own_scores = twice.scores
    elif cv is not None and held.rows is not None:
        own_scores = cv.scores(fitted_to, place)
    else:
        own_scores = scores(chosen, final.x, held.features)
    kind = profiled if asked.site_intercepts else objective_of
    again = resampled(chosen, final.x, asked, path_solver, kind, made.units, watch)
    own: dict[str, float] = {}
    if asked.site_intercepts:
        assert objective is not None
        if twice is None:
            own_scores = own_scores + _added(objective, final, cv if held.rows is not None else None, place, held, made)
        own = dict(zip(made.organisations, shifts(objective, final.x), strict=True))
        mean = final.x.new_tensor([objective.organisations.intercept(final.x)])
        chosen = problem.with_h(problem.h.with_weight(float(final.weight or 0)))
        final = replace(final, x=torch.cat([final.x, mean]))
    watch("judging the model", 0, 1)
    judged = _judge(chosen, own_scores, held, asked)
    shown = Validation()
    if isinstance(chosen.f.criterion, Logistic):
        fewest = made.tables.schema.table.fewest
        shown = of_two_classes(own_scores[:, 0], held.labels, held.sizes, held.names, fewest)
    nested_weights = [] if twice is None else twice.weights
    shown = replace(shown, nested=nested_weights, optimism=again[0], stability=again[1])
    steps = {
        SUMMARIES: Traffic(1, sum(m.size for m in made.messages), n * len(json.dumps(made.preparation.plain()))),
        **({} if cv is None else {CHOICE: cv.traffic + (Traffic() if twice is None else twice.traffic)}),
        FINAL: final.traffic,
        MEASURES: Traffic(1, n * 3 * 8 * len(judged[ALL]), 0 if held.rows is not None else n * problem.f.d * 8),
    }
    sent = costs(steps, n, asked.profile)
    separate, central = _others(chosen, made, held, asked, smallest, watch)
    told = advice(made, str(describe(problem.f.criterion, KINDS)["name"]), final.x.double().numpy(), bool(own))
    said = (*tables.notes, *made.preparation.notes, *final.notes, *separate.notes, *told)
    notes = [PATH.sub(r"\1", note) for note in said]
    without = asked.model_copy(update={"repetitions": 0})  # intervals of pooled rows would be the same
    return Fitted(
        model=model_of(
            made.preparation,
            made.organisations,
            chosen,
            final,
            asked,
            sent,
            judged,
            held.about,
            notes,
            _baseline(made, chosen, final.x),
            tables.schema.source.drop,
        ),
        settings=asked,
        design=made,
        problem=chosen,
        fit=final,
        cv=cv,
        held=held,
        scores=own_scores,
        federated=judged,
        alone=_judge_alone(chosen, separate, held, asked),
        pooled={} if central is None else _judge(chosen, central.scores, held, without),
        own_intercepts=own,
        alone_nonzeros=separate.nonzeros,
        off_pooled=None if central is None else _difference(chosen, central.x, final.x),
        validation=shown,
    )


# ---- the choice of the weight, and the model with it -----------------------------------------------------------------


def given_weight(asked: Settings) -> float | None:
    """None: it is to be chosen. Without a penalty it is 0."""
    return 0.0 if asked.penalty in ("zero", {"name": "zero"}) else asked.weight


def _cross_validated(
    problem: Problem[Linear],
    given: float | None,
    asked: Settings,
    smallest: float,
    solver: Solver,
    watch: Watch,
    units: np.ndarray | None,
) -> CrossValidation:
    """Along a path, or, to judge the model only, with the weight that is given."""
    return cross_validate(
        problem,
        "organisation" if asked.cv == "organisation" else asked.folds,
        asked.weights if given is None else [given],
        smallest,
        solver,
        asked.cv_tolerance,
        asked.seed,
        lambda done, total: watch("cross-validation", done, total),
        profiled if asked.site_intercepts else objective_of,
        units,
    )


def _nested(
    problem: Problem[Linear],
    cv: CrossValidation | None,
    held: Held,
    asked: Settings,
    smallest: float,
    solver: Solver,
    watch: Watch,
) -> Nested:
    """The same choice without each fold."""
    unused = "nested = true: the schema has a test part, on which the choice of the weight knows nothing already"
    require(cv is not None and held.rows is not None, unused)
    assert held.rows is not None
    return nested(
        problem,
        held.rows,
        asked.weights,
        smallest,
        asked.rule,
        solver,
        profiled if asked.site_intercepts else objective_of,
        lambda done, total: watch("nested choice", done, total),
        shifts if asked.site_intercepts else None,
    )


def _final(
    problem: Problem[Linear], given: float | None, cv: CrossValidation | None, asked: Settings, watch: Watch
) -> tuple[Problem[Linear], Fit, Objective | None]:
    """(the problem with the weight that was chosen, its fit, what was asked), begun at the fit of cross-validation."""
    begin = None if cv is None else cv.choose(asked.rule)
    solver = solver_of(asked, asked.tolerance, watch=lambda rounds, residual: watch("fitting the model", rounds, 0))
    if begin is None and asked.site_intercepts:
        objective = profiled(problem.f)
        return problem, replace(solver.one(objective, problem.h), weight=given), objective
    if begin is None:
        return problem, replace(solver.fit(problem), weight=given), None
    chosen = problem.with_h(problem.h.with_weight(float(begin.weight or 0)))
    assert cv is not None
    return chosen, solver.after(cv.objective, chosen, begin), cv.objective


def _added(
    objective: Objective, final: Fit, cv: CrossValidation | None, place: int, held: Held, made: Design
) -> np.ndarray:
    """(N, 1) the intercepts of held-out rows: of an organisation, as the fold that holds them out has it."""
    if cv is None:  # a test part
        own = dict(zip(made.organisations, shifts(objective, final.x), strict=True))
        mean = float(np.mean([*own.values()]))
        return np.repeat([own.get(name, mean) for name in held.names], held.sizes)[:, None]
    added = np.zeros(len(held.labels))
    for k, (rows, x) in enumerate(zip(cv.rows, cv.models[:, place], strict=True)):
        added[rows] = np.repeat(shifts(objective, x, Part(k)), held.sizes)[rows]
    return added[:, None]


# ---- how good it is -------------------------------------------------------------------------------------------------


def _held(made: Design, problem: Problem[Linear], cv: CrossValidation | None, asked: Settings) -> Held:
    """The test part if there is one; else every row, when it is held out."""
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


def _judge(problem: Problem[Linear], values: np.ndarray, held: Held, asked: Settings) -> Judgement:
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


def _others(
    problem: Problem[Linear], made: Design, held: Held, asked: Settings, smallest: float, watch: Watch
) -> tuple[Alone, Pooled | None]:
    """The models to compare with, of each organisation alone and of pooled rows; none if they are not asked for."""
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


def _judge_alone(problem: Problem[Linear], found: Alone, held: Held, asked: Settings) -> Judgement:
    """Of those organisations that have a model of their own."""
    if not found.scores:
        return {}
    names = [name for name in held.names if name in found.scores]
    labels = np.concatenate([held.labels[held.parts[name]] for name in names])
    sizes = [len(found.scores[name]) for name in names]
    units = None if held.units is None else np.concatenate([held.units[held.parts[name]] for name in names])
    own = held._replace(labels=labels, sizes=sizes, names=names, units=units)
    return _judge(problem, np.concatenate([found.scores[name] for name in names]), own, asked)


def _difference(problem: Problem[Linear], one: Tensor, other: Tensor) -> float:
    """The largest of a coefficient; a common shift of all classes' intercepts is none."""
    a, b = parameters(one, problem.f.blocks), parameters(other, problem.f.blocks)
    parts = [a["weight"] - b["weight"]]
    if problem.f.intercept:
        shift = a["bias"] - b["bias"]
        parts.append(shift - shift.mean() if len(shift) > 1 else shift)
    return max(float(part.abs().max()) for part in parts)


# ---- the model file -------------------------------------------------------------------------------------------------


def model_of(
    preparation: Preparation,
    organisations: Sequence[str],
    problem: Problem[Linear],
    final: Fit,
    asked: Settings,
    sent: list[Sent],
    judged: Judgement,
    held_out: str,
    notes: Iterable[str],
    baseline: BaselineHazard | None = None,
    drop: Sequence[str] = (),
) -> Model:
    """What model.json says."""
    parts = parameters(final.x, problem.f.blocks)
    coef = parts["weight"].cpu().double().numpy()
    intercept = parts["bias"].cpu().double().numpy() if problem.f.intercept else np.zeros(len(coef))
    original, at = preparation.original_scale(coef, intercept)
    require(bool(np.isfinite(original).all()), "some coefficients are not finite numbers")
    penalty = asked.penalty if isinstance(asked.penalty, dict) else {"name": asked.penalty}
    target = preparation.schema.target
    return Model(
        form=FORM,
        name=preparation.schema.table.name,
        loss=describe(problem.f.criterion, KINDS),
        penalty=penalty,
        weight=float(final.weight or 0),
        classes=[] if target is None else list(target.names),
        features=list(preparation.names),
        prepared=Scale(coef=coef.tolist(), intercept=intercept.tolist()),
        original=Scale(coef=original.tolist(), intercept=np.atleast_1d(at).tolist()),
        preparation=preparation.plain(),
        organisations=list(organisations),
        settings=asked.model_dump(mode="json", exclude_defaults=True),
        sent=sent,
        measures=plain(judged),
        held_out=held_out,
        notes=list(notes),
        baseline=baseline,
        drop=list(drop),
        versions={key: value for key, value in versions().items() if key in ("proxfed", "python", "torch", "numpy")},
    )


def _baseline(made: Design, problem: Problem[Linear], x: Tensor) -> BaselineHazard | None:
    if not isinstance(problem.f.criterion, Cox):
        return None
    asked = subject(made, "cox", problem.f.criterion.ties)
    return baseline_of(asked.organisations, x, made.tables.schema.table.fewest)


def baseline_of(organisations: Organisations, x: Tensor, fewest: int) -> BaselineHazard:
    """Of survival: from what organisations count at agreed times."""
    found = baseline_hazard(organisations, x.cpu().double().numpy(), fewest)
    return BaselineHazard(times=found.times.tolist(), hazard=found.hazard.tolist())


explain(__name__)
