"""Inference for a fit that was made with a penalty: debiased intervals, and what its organisations differ in."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from proxfed.errors import InputError, ProxfedError, require
from proxfed.fit.inference.disguise import warnings
from proxfed.fit.inference.families import Array
from proxfed.fit.inference.infer import DIFFERENT, Errors, debiased_inference, own_halves
from proxfed.fit.inference.newton import estimate
from proxfed.fit.inference.own_sums import OwnRegression
from proxfed.fit.inference.result import Inference, said_p
from proxfed.fit.inference.tests_of_terms import Test, likelihood_ratio
from proxfed.fit.inference.wald import dispersion
from proxfed.tables.design import Design

if TYPE_CHECKING:
    from proxfed.fit.consortium import Fitted
    from proxfed.fit.shown import Shown

KNOWN = ("squared", "logistic", "poisson", "huber", "cox")


def inference_of(
    fitted: Fitted, site_intercepts: bool = False, errors: Errors | None = None, adjust: str = "holm"
) -> Inference:
    """Debiased estimates with intervals of a fitted model; refused, with a reason, where there are none."""
    loss, settings = fitted.model.loss, fitted.settings
    name = str(loss["name"])
    require(name in KNOWN, f"loss = {name!r} has no standard errors here; those that do are {', '.join(KNOWN)}")
    require(settings.class_weights is None, "class_weights: a fit with weights for classes has no standard errors here")
    require(settings.intercept or name == "cox", "intercept = false: a fit without an intercept has no standard errors")
    family = {"delta": float(loss["delta"])} if "delta" in loss else {}
    x = np.asarray(fitted.fit.x.double().numpy(), float)
    x = x[:-1] if site_intercepts and name != "cox" else x
    asked: Errors = errors or ("robust" if name == "huber" else "model")
    found = debiased_inference(fitted.design, name, x, site_intercepts, asked, settings.level, adjust, **family)
    return found if fitted.model.weight else replace(found, method="maximum likelihood")


def reason_for_none(fitted: Shown) -> str:
    """Why a fit has no intervals; '' if it has."""
    try:
        fitted.inference  # noqa: B018  kept, once it is there
    except (ProxfedError, np.linalg.LinAlgError) as e:
        return str(e)
    return ""


def calibration_intercepts(made: Design, loss: str, x: Array) -> tuple[dict[str, float | None], Test] | None:
    """What every organisation would add to the model's scores, and the test that it is the same for all.

    None where the loss has no intercepts, or only one organisation takes part.
    """
    if loss not in ("squared", "logistic", "poisson") or len(made.organisations) < 2:
        return None
    halves = [half for half in own_halves(made, loss, "shared") if isinstance(half, OwnRegression)]
    nothing = [np.zeros((len(half.labels), 0)) for half in halves]

    def kind(intercept: Any) -> list[OwnRegression]:
        return [
            OwnRegression(half.family, none, half.labels, half.weights, half.scores(x), intercept=intercept)
            for half, none in zip(halves, nothing, strict=True)
        ]

    own, one = kind("own"), kind("shared")
    full, small = estimate(own), estimate(one)
    test = likelihood_ratio("organisation", full, small, dispersion(full) if loss == "squared" else None)
    shifts = {name: half.own_intercept(np.zeros(0)) for name, half in zip(made.organisations, own, strict=True)}
    return shifts, test


def advice(made: Design, loss: str, x: Array, site_intercepts: bool = False) -> list[str]:
    """What a reader of the coefficients must know: organisations that differ in level, features that stand for one."""
    try:
        found = calibration_intercepts(made, loss, x)
    except (InputError, ProxfedError):
        found = None
    lines = warnings(made, loss == "cox" or site_intercepts)
    if site_intercepts or found is None or found[1].p >= DIFFERENT:
        return lines
    shifts, test = found
    sizes = {name: math.inf if shift is None else shift for name, shift in shifts.items()}
    low, high = min(sizes, key=lambda name: sizes[name]), max(sizes, key=lambda name: sizes[name])
    span = ", ".join(f"{sizes[name]:+.2f} at {name}" for name in (low, high))
    return [
        *lines,
        f"calibration intercepts differ between organisations ({said_p(test.p)}; {span}): a coefficient may stand for "
        "what is different about one of them; fit with site intercepts",
    ]
