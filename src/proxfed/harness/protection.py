"""What an experiment asks holders to do to their messages, when it is run between organisations.

[protection]
secure_aggregation = true                              the coordinator reads sums of messages only (silos/masks.py)
privacy = {clip = 1.0, noise = 8.0, delta = 1e-5}      clipped, with Gaussian noise (silos/privacy.py)
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from proxfed.validation import STRICT


class Privacy(BaseModel):
    """Differential privacy of what a holder sends in rounds."""

    model_config = STRICT

    clip: float = Field(gt=0, allow_inf_nan=False)
    """C: the largest norm that the rows of a holder may make its message move by."""
    noise: float = Field(gt=0, allow_inf_nan=False)
    """sigma: noise of standard deviation sigma C is added to every number."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Of (epsilon, delta); epsilon follows, and is a column of the rows."""


class Protection(BaseModel):
    """The table [protection]."""

    model_config = STRICT

    secure_aggregation: bool = False
    fraction_bits: int = Field(default=40, ge=8, le=52)
    """Of secure aggregation: numbers are rounded to multiples of 2^-fraction_bits."""
    privacy: Privacy | None = None
