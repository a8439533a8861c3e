"""The table [protection] of an experiment: protection of messages between organisations.

[protection]
secure_aggregation = true                              the coordinator reads sums only (silos/protection/masks.py)
privacy = {clip = 1.0, noise = 8.0, delta = 1e-5}      clipping and Gaussian noise (silos/protection/privacy.py)
recovery = true                                        sums survive dropouts of sites (silos/protection/recovery.py)
word_bits = 16                                         bits per masked number (silos/protection/narrow_words.py)
robust = {name = "trimmed_mean", trim = 1}             instead of the mean of messages (silos/coordinator/robust.py)
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, model_validator

from proxfed.validation import STRICT, refuse_unless


class Privacy(BaseModel):
    """Differential privacy of the messages of a data holder."""

    model_config = STRICT

    clip: float = Field(gt=0, allow_inf_nan=False)
    """C: the clipping norm, a bound on the effect of a holder's rows on its message."""
    noise: float = Field(gt=0, allow_inf_nan=False)
    """sigma: noise of standard deviation sigma C is added to every number."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """The delta of (epsilon, delta); epsilon is computed, and is a column of the rows."""


class Robust(BaseModel):
    """A robust aggregate that the coordinator uses instead of the mean of the clients' messages."""

    model_config = STRICT

    name: Literal["median", "trimmed_mean", "centred_clipping"]
    trim: int = Field(default=1, ge=0)
    """For trimmed_mean: how many of the lowest and of the highest numbers are left out."""
    radius: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """For centred_clipping: the distance from the centre up to which a message counts in full."""


class Protection(BaseModel):
    """The table [protection]."""

    model_config = STRICT

    secure_aggregation: bool = False
    fraction_bits: int = Field(default=40, ge=8, le=52)
    """For secure aggregation: numbers are rounded to multiples of 2^-fraction_bits."""
    word_bits: Literal[16, 24, 32, 64] = 64
    """For secure aggregation: bits per number of a round; below 64, numbers are rounded at random, with a step adapted
    to the messages."""
    recovery: bool = False
    """For secure aggregation with a deadline: the sum of a round can be computed without the sites that drop out."""
    privacy: Privacy | None = None
    robust: Robust | None = None

    @model_validator(mode="after")
    def _of_masks(self) -> Protection:
        for name in () if self.secure_aggregation else ("word_bits", "recovery"):
            usual = getattr(self, name) == type(self).model_fields[name].default
            refuse_unless(usual, f"protection.{name} = {getattr(self, name)}: only with secure_aggregation = true")
        return self
