"""The result of a fit over organisations that keep their tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from proxfed.errors import InputError
from proxfed.fit.cross_validate import CrossValidation
from proxfed.fit.inference.result import Inference
from proxfed.fit.judge import Judgement
from proxfed.fit.metrics import Bin
from proxfed.fit.model_file import Model, Sent
from proxfed.fit.save import save
from proxfed.fit.settings import Settings
from proxfed.fit.solve import Fit
from proxfed.fit.validation import Validation
from proxfed.problems.linear.linear import Linear
from proxfed.tables.holdings import Holdings
from proxfed.types import Block, Problem


@dataclass(frozen=True, eq=False)
class FittedBetween:
    """A model of tables that stayed at their organisations, with its measures."""

    model: Model
    """Coefficients, preparation and measures, with the signatures of the sites."""
    settings: Settings
    """The settings of the fit."""
    problem: Problem[Linear]
    """The problem without rows."""
    fit: Fit
    """The final fit."""
    cv: CrossValidation | None
    """None if the weight of the penalty was given."""
    holdings: Holdings
    """The organisations' holdings, as far as they reveal them."""
    rows: int
    """The total weight of all rows: their number if there are no weights."""
    federated: Judgement
    """Measures on held-out rows: over all sites, and of each site that reveals its own."""
    calibration: list[Bin]
    protection: str
    """How sums were protected."""

    found: Inference | str = ""
    """Intervals, or a sentence that says why there are none."""
    alone: Judgement = field(default_factory=dict)
    pooled: Judgement = field(default_factory=dict)
    alone_nonzeros: dict[str, int] = field(default_factory=dict)
    off_pooled: float | None = None
    intervals: str = "the interval by bootstrap at each site, and over all that of the mean over the folds"
    judged_by_folds: bool = True
    own_intercepts: dict[str, float] = field(default_factory=dict)
    validation: Validation = field(default_factory=Validation)

    @property
    def sent(self) -> list[Sent]:
        """The bytes sent, step by step."""
        return self.model.sent

    @property
    def block(self) -> Block:
        """The position of the weights in x."""
        return self.problem.f.blocks[0]

    @property
    def inference(self) -> Inference:
        """Debiased estimates with intervals; refused if there are none."""
        if isinstance(self.found, str):
            raise InputError(self.found)
        return self.found

    def save(self, folder: str | Path) -> None:
        """model.json, coefficients.csv, report.html and model_card.md."""
        save(self, folder)
