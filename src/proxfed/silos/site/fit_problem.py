"""The model of a fit without rows, which the coordinator and each site build identically."""

from __future__ import annotations

from proxfed.fit.model import linear_model
from proxfed.fit.settings import Settings, penalty_of
from proxfed.problems.linear.linear import Linear
from proxfed.silos.site.rows import empty
from proxfed.silos.wire.fit_job import read_fit
from proxfed.silos.wire.job import Job
from proxfed.tables.preparation import Preparation
from proxfed.types import Problem


def problem_of_job(asked: Settings, job: Job, prepared: Preparation, intercept: bool) -> Problem[Linear]:
    """With a penalty of weight 1 or the given weight; `intercept`: one for all organisations."""
    loss, data = read_fit(job.fit).criterion, empty(job.schema, job.window(None))
    bare = linear_model(data, loss, intercept=intercept)
    penalty = penalty_of(asked, bare.f.blocks[0].shape, prepared.groups)
    return linear_model(data, loss, penalty, groups=asked.groups, intercept=intercept)
