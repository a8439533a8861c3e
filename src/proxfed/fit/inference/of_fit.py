"""Inference for a fit that was made with a penalty: debiased intervals, and what its organisations differ in."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from proxfed.errors import ProxfedError, require
from proxfed.fit.inference.disguise import disguises, warnings
from proxfed.fit.inference.estimate import estimate
from proxfed.fit.inference.infer import DIFFERENT, debiased_of
from proxfed.fit.inference.regression import Array
from proxfed.fit.inference.reported import Errors
from proxfed.fit.inference.result import Inference, said_p
from proxfed.fit.inference.subject import KNOWN, Subject, subject
from proxfed.fit.inference.tests_of_terms import Test, likelihood_ratio
from proxfed.fit.inference.wald import dispersion
from proxfed.fit.settings import Settings
from proxfed.fit.solve import Fit
from proxfed.problems.losses import Loss
from proxfed.problems.named_losses import KINDS
from proxfed.registry import describe
from proxfed.tables.design import Design

if TYPE_CHECKING:
    from proxfed.fit.consortium import Fitted
    from proxfed.fit.shown import Shown


def inference_of(
    fitted: Fitted, site_intercepts: bool = False, errors: Errors | None = None, adjust: str = "holm"
) -> Inference:
    """Debiased estimates with intervals of a fitted model; refused, with a reason, where there are none."""
    loss = fitted.problem.f.criterion
    check_loss(loss, fitted.settings)
    options = {k: v for k, v in describe(loss, KINDS).items() if k not in ("name", "ties")}
    asked = subject(fitted.design, str(describe(loss, KINDS)["name"]), getattr(loss, "ties", "breslow"), options)
    return intervals_of(asked, fitted.settings, fitted.fit, site_intercepts, errors, adjust)


def check_loss(loss: Loss, settings: Settings) -> None:
    """Refused where there are no standard errors."""
    name = str(describe(loss, KINDS)["name"])
    require(name in KNOWN, f"loss = {name!r} has no standard errors here; those that do are {', '.join(KNOWN)}")
    require(settings.class_weights is None, "class_weights: a fit with weights for classes has no standard errors here")
    require(settings.intercept or name == "cox", "intercept = false: a fit without an intercept has no standard errors")


def intervals_of(
    asked: Subject,
    settings: Settings,
    fit: Fit,
    site_intercepts: bool | None = None,
    errors: Errors | None = None,
    adjust: str = "holm",
) -> Inference:
    """The same of a regression, wherever its rows lie."""
    check_loss(asked.loss, settings)
    own = settings.site_intercepts if site_intercepts is None else site_intercepts
    x = np.asarray(fit.x.double().numpy(), float)
    x = x[:-1] if own and asked.name != "cox" else x
    kind: Errors = errors or ("robust" if asked.name == "huber" else "model")
    found = debiased_of(asked, x, own, kind, settings.level, adjust)
    return found if fit.weight else replace(found, method="maximum likelihood")


def reason_for_none(fitted: Shown) -> str:
    """Why a fit has no intervals; '' if it has."""
    try:
        fitted.inference  # noqa: B018  kept, once it is there
    except (ProxfedError, np.linalg.LinAlgError) as e:
        return str(e)
    return ""


def calibration_intercepts(asked: Subject, x: Array) -> tuple[dict[str, float | None], Test] | None:
    """What every organisation that tells it would add to the model's scores, and the test that it is the same for all.

    None where the loss has no intercepts, or only one organisation takes part.
    """
    if asked.name not in ("squared", "logistic", "poisson") or len(asked.organisations.names) < 2:
        return None
    place = len(x) - 1
    full = estimate(asked.regression("own"), [], start=x[:place])
    small = estimate(asked.regression("shared"), [place], start=x)
    test = likelihood_ratio("organisation", full, small, dispersion(full) if full.regression.dispersed else None)
    own = asked.own_intercepts(x[:place])
    return {name: None if a is None else a - float(x[place]) for name, a in own.items()}, test


def advice(made: Design, loss: str, x: Array, site_intercepts: bool = False) -> list[str]:
    """What a reader of the coefficients must know: organisations that differ in level, features that stand for one."""
    found, lines = None, warnings(disguises(made), loss == "cox" or site_intercepts)
    if loss in KNOWN:
        with suppress(ProxfedError):
            found = calibration_intercepts(subject(made, loss), x)
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
