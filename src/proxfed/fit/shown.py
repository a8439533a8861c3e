"""What a page, a card and the terminal show of a fit, wherever the tables lie."""

from __future__ import annotations

from typing import Protocol

from proxfed.fit.cross_validate import CrossValidation
from proxfed.fit.inference.result import Inference
from proxfed.fit.judge import Judgement
from proxfed.fit.metrics import Bin
from proxfed.fit.model_file import Model, Sent
from proxfed.fit.settings import Settings
from proxfed.fit.solve import Fit
from proxfed.fit.validation import Validation
from proxfed.tables.holdings import Holdings
from proxfed.types import Block


class Shown(Protocol):
    """A model with what it came from and how good it is."""

    @property
    def model(self) -> Model: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def fit(self) -> Fit: ...
    @property
    def cv(self) -> CrossValidation | None: ...
    @property
    def sent(self) -> list[Sent]: ...

    @property
    def block(self) -> Block:
        """Where the weights are in x."""

    @property
    def rows(self) -> int:
        """That it was fitted to."""

    @property
    def holdings(self) -> Holdings: ...

    @property
    def federated(self) -> Judgement:
        """Measures on held-out rows."""

    @property
    def alone(self) -> Judgement:
        """Measures of each organisation's model of its own rows."""

    @property
    def pooled(self) -> Judgement:
        """Measures of a model of all rows in one place."""

    @property
    def alone_nonzeros(self) -> dict[str, int]: ...

    @property
    def off_pooled(self) -> float | None:
        """The largest difference of a coefficient from that of pooled rows."""

    @property
    def calibration(self) -> list[Bin]:
        """Predicted and observed probabilities of two classes; none of other models."""

    @property
    def intervals(self) -> str:
        """What those of the measures are."""

    @property
    def judged_by_folds(self) -> bool:
        """The rows that it was judged on are those of the folds."""

    @property
    def inference(self) -> Inference:
        """Debiased estimates with intervals; refused where there are none."""

    @property
    def own_intercepts(self) -> dict[str, float]:
        """Of organisations with one of their own."""

    @property
    def validation(self) -> Validation:
        """How far the model can be trusted, beside its measures."""

    @property
    def protection(self) -> str:
        """How sums travelled."""
