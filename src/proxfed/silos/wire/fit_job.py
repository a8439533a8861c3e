"""What a job says of a fit: the loss, and how rows are held out. The penalty and its weights stay at the coordinator.

    hello, summary      as in every job with tables: the preparation follows (table_rows.py)
    job                 fit = {loss, intercept, folds, by}
    query counts        what the rows of every fold and class weigh
    query sums          many points at once: the loss of all rows or of a part, gradients, Hessians
    query grams         of squared loss: products of columns, fold by fold
    query private       noisy sums of products, instead of all others (fit/private_tables.py)
    query histogram     of two classes: how many held-out rows have which score
    query judged        measures of a model on this site's held-out rows, if the site tells them
    query size          how many rows there are of each class, and clusters
    query agreement     what says whether sites agree on coefficients: four sums of each site's own estimates
    query estimates     a site's own estimates, if the site tells them
    query intercept     with intercepts that sites keep: what rows weigh, and that times the intercept
    query risks         of survival: how many rows leave, and how much risk is left, in intervals of time
    model               the model that came out, which every site keeps and signs

Sums are added up over all sites, under masks: the coordinator reads nothing of a single site. The questions are in
fit_questions.py, the numbers of answers in fit_answers.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from proxfed.errors import RunError
from proxfed.fit.private_tables import Private
from proxfed.problems.losses import Loss
from proxfed.problems.named_losses import find_loss
from proxfed.registry import Table
from proxfed.validation import STRICT

MOST_FOLDS = 64
"""Of a job; no more organisations can be left out one at a time."""

LossName = Literal["logistic", "cross_entropy", "one_hot", "squared", "huber", "poisson", "cox"]


class Criterion(BaseModel):
    """The loss by its name, and what is a setting of it."""

    model_config = STRICT

    name: LossName
    delta: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Of Huber's."""
    ties: Literal["breslow", "efron"] | None = None
    """Of Cox's."""


class FitTable(BaseModel):
    """The table `fit` of a job."""

    model_config = STRICT

    loss: Criterion
    intercept: bool
    folds: int = Field(ge=0, le=MOST_FOLDS)
    """How many; 0: nothing is held out."""
    private: Private | None = None
    """One question is answered, with noise, and no other."""
    by: Literal["rows", "organisation"]
    """What a fold is: rows of every site, as each has divided them, or all rows of one site."""
    external: bool = False
    """A model that others have fitted is validated: all rows are new to it, and only measures and sums of losses are
    told."""

    @property
    def criterion(self) -> Loss:
        return find_loss(self.loss.model_dump(exclude_none=True))


def read_fit(table: Table | None) -> FitTable:
    """RunError if it is none."""
    try:
        return FitTable.model_validate(table)
    except ValidationError as e:
        first = e.errors()[0]
        raise RunError(f"the job's fit: {'.'.join(map(str, first['loc']))}: {first['msg']:.100}") from None
