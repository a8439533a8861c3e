"""From the tables of organisations to one model: prepared, chosen, fitted, judged. Nothing but messages leaves a table.

read_tables -> summaries -> preparation -> path and cross-validation -> model -> measures on rows that it has not seen
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxfed.explained import explain
from proxfed.fit.baselines import Held, scores
from proxfed.fit.choice import cross_validated, final_fit, held_out_intercepts, nested_choice
from proxfed.fit.costs import CHOICE, FINAL, MEASURES, SUMMARIES, costs
from proxfed.fit.cross_validate import CrossValidation
from proxfed.fit.evaluate import comparisons, held_rows, judge_alone, judge_held_out, largest_difference
from proxfed.fit.final_model import baseline_of_tables, model_of
from proxfed.fit.inference.of_fit import advice, inference_of
from proxfed.fit.inference.result import Inference
from proxfed.fit.judge import ALL, Judgement
from proxfed.fit.metrics import Bin, calibration_curve
from proxfed.fit.model_file import Model, Sent
from proxfed.fit.own_intercepts import profiled, shifts
from proxfed.fit.save import save
from proxfed.fit.settings import Settings, given_weight, problem_of, settings_for, solver_of
from proxfed.fit.solve import Fit, Traffic, objective_of
from proxfed.fit.steps import Watch
from proxfed.fit.validation import Validation, of_two_classes, resampled
from proxfed.problems.linear.linear import Linear
from proxfed.problems.losses import Logistic
from proxfed.problems.named_losses import KINDS
from proxfed.registry import describe
from proxfed.simulate.timing import Timing
from proxfed.tables.design import Design, design
from proxfed.tables.holdings import Holdings, holdings
from proxfed.tables.schema import Schema, read_schema
from proxfed.tables.table import Tables, read_tables
from proxfed.types import Block, Problem

__all__ = ["Fitted", "fit"]

PATH = re.compile(r"[^\s:,]*/([^/\s:,]+)")
"""A file's path in a note. The model file keeps only the name of the file, since the model is passed on."""


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
        cv = cross_validated(fitted_to, given, asked, smallest, path_solver, watch, made.units)
    place = 0 if cv is None else cv.place(asked.rule)
    chosen, final, objective = final_fit(fitted_to, given, cv, asked, watch)
    held = held_rows(made, problem, cv, asked)
    twice = None
    if asked.nested:
        twice = nested_choice(fitted_to, cv, held, asked, smallest, path_solver, watch)
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
            own_scores = own_scores + held_out_intercepts(
                objective, final, cv if held.rows is not None else None, place, held, made
            )
        own = dict(zip(made.organisations, shifts(objective, final.x), strict=True))
        mean = final.x.new_tensor([objective.organisations.intercept(final.x)])
        chosen = problem.with_h(problem.h.with_weight(float(final.weight or 0)))
        final = replace(final, x=torch.cat([final.x, mean]))
    watch("judging the model", 0, 1)
    measures = judge_held_out(chosen, own_scores, held, asked)
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
        MEASURES: Traffic(1, n * 3 * 8 * len(measures[ALL]), 0 if held.rows is not None else n * problem.f.d * 8),
    }
    sent = costs(steps, n, asked.profile)
    separate, central = comparisons(chosen, made, held, asked, smallest, watch)
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
            measures,
            held.about,
            notes,
            baseline_of_tables(made, chosen, final.x),
            tables.schema.source.drop,
        ),
        settings=asked,
        design=made,
        problem=chosen,
        fit=final,
        cv=cv,
        held=held,
        scores=own_scores,
        federated=measures,
        alone=judge_alone(chosen, separate, held, asked),
        pooled={} if central is None else judge_held_out(chosen, central.scores, held, without),
        own_intercepts=own,
        alone_nonzeros=separate.nonzeros,
        off_pooled=None if central is None else largest_difference(chosen, central.x, final.x),
        validation=shown,
    )


explain(__name__)
