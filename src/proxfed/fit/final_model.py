"""The model that comes out of a fit, as model.json holds it: coefficients, preparation, measures and settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor

from proxfed.errors import require
from proxfed.fit.inference.subject import subject
from proxfed.fit.inference.survival import baseline_hazard
from proxfed.fit.judge import Judgement, plain
from proxfed.fit.model_file import FORM, BaselineHazard, Model, Scale, Sent
from proxfed.fit.oracle import Organisations
from proxfed.fit.settings import Settings
from proxfed.fit.solve import Fit
from proxfed.machine import versions
from proxfed.problems.linear.cox import Cox
from proxfed.problems.linear.linear import Linear
from proxfed.problems.named_losses import KINDS
from proxfed.problems.neural.loop import parameters
from proxfed.registry import describe
from proxfed.tables.design import Design
from proxfed.tables.preparation import Preparation
from proxfed.types import Problem


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
    """The model of this fit, with its coefficients on the prepared and on the original scale."""
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


def baseline_of_tables(made: Design, problem: Problem[Linear], x: Tensor) -> BaselineHazard | None:
    """The baseline hazard of a Cox model; None for other models."""
    if not isinstance(problem.f.criterion, Cox):
        return None
    asked = subject(made, "cox", problem.f.criterion.ties)
    return baseline_of(asked.organisations, x, made.tables.schema.table.fewest)


def baseline_of(organisations: Organisations, x: Tensor, fewest: int) -> BaselineHazard:
    """The baseline hazard, from counts of the organisations at agreed times."""
    found = baseline_hazard(organisations, x.cpu().double().numpy(), fewest)
    return BaselineHazard(times=found.times.tolist(), hazard=found.hazard.tolist())
