"""Fits that several tests look at, made once."""

from __future__ import annotations

from functools import cache
from typing import Any

from proxfed.fit import Fitted, fit

from support.tables import CLINICS

QUICK: dict[str, Any] = {"weights": 6, "folds": 3, "repetitions": 20}


@cache
def clinics() -> Fitted:
    """The four made-up clinics, with all there is."""
    return fit(CLINICS / "tables.toml", **QUICK)


@cache
def clinics_plain(**settings: Any) -> Fitted:
    """The same with one weight and nothing to compare with."""
    return fit(CLINICS / "tables.toml", **({"weight": 0.03, "folds": 2, "repetitions": 0, "alone": False} | settings))
