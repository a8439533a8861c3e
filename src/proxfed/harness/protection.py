"""What an experiment asks holders to do to their messages, when it is run between organisations.

[protection]
secure_aggregation = true                              the coordinator reads sums only (silos/protection/masks.py)
privacy = {clip = 1.0, noise = 8.0, delta = 1e-5}      clipped, with Gaussian noise (silos/protection/privacy.py)
recovery = true                                        of sums, if a site drops out (silos/protection/recovery.py)
word_bits = 16                                         of a masked number (silos/protection/narrow_words.py)
robust = {name = "trimmed_mean", trim = 1}             instead of the mean of messages (silos/coordinator/robust.py)
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, model_validator

from proxfed.validation import STRICT, refuse_unless


class Privacy(BaseModel):
    """Differential privacy of what a holder sends in rounds."""

    model_config = STRICT

    clip: float = Field(gt=0, allow_inf_nan=False)
    """C: the largest norm that the rows of a holder may make its message move by."""
    noise: float = Field(gt=0, allow_inf_nan=False)
    """sigma: noise of standard deviation sigma C is added to every number."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Of (epsilon, delta); epsilon follows, and is a column of the rows."""


class Robust(BaseModel):
    """What the coordinator takes instead of the mean of the clients' messages."""

    model_config = STRICT

    name: Literal["median", "trimmed_mean", "centred_clipping"]
    trim: int = Field(default=1, ge=0)
    """Of trimmed_mean: how many of the lowest and of the highest numbers are left out."""
    radius: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Of centred_clipping: how far from the centre a message counts in full."""


class Protection(BaseModel):
    """The table [protection]."""

    model_config = STRICT

    secure_aggregation: bool = False
    fraction_bits: int = Field(default=40, ge=8, le=52)
    """Of secure aggregation: numbers are rounded to multiples of 2^-fraction_bits."""
    word_bits: Literal[16, 24, 32, 64] = 64
    """Of secure aggregation: so many bits for each number of a round; below 64, numbers are rounded at random, to a
    step that follows the messages."""
    recovery: bool = False
    """Of secure aggregation: with a deadline, the sum of a round can be read without sites that drop out in it."""
    privacy: Privacy | None = None
    robust: Robust | None = None

    @model_validator(mode="after")
    def _of_masks(self) -> Protection:
        for name in () if self.secure_aggregation else ("word_bits", "recovery"):
            usual = getattr(self, name) == type(self).model_fields[name].default
            refuse_unless(usual, f"protection.{name} = {getattr(self, name)}: only with secure_aggregation = true")
        return self
