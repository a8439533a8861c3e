"""From an estimate to the lines that are reported: in the units of the columns, with errors, tests and notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from proxfed.errors import require
from proxfed.fit.inference.adjust import adjusted
from proxfed.fit.inference.disguise import warnings
from proxfed.fit.inference.estimate import Estimate
from proxfed.fit.inference.result import INTERCEPT, Inference
from proxfed.fit.inference.subject import Subject
from proxfed.fit.inference.wald import coefficients, model_covariance, sandwich

Errors = Literal["model", "robust", "cluster", "organisation"]
FEW_CLUSTERS = 30

RATIOS = {"logistic": "odds ratio", "poisson": "rate ratio", "cox": "hazard ratio"}
"""What exp(coefficient) is called, by loss."""


def reported(
    asked: Subject,
    found: Estimate,
    phi: float,
    errors: Errors,
    level: float,
    adjust: str,
    names: Sequence[str],
    method: str,
    notes: list[str],
) -> Inference:
    """Coefficients with what is to be said of them; `phi` is the dispersion."""
    regression, clusters = found.regression, found.regression.clusters
    how = {"robust": "HC1", "cluster": "cluster", "organisation": "cluster"}
    require(
        regression.likelihood or errors != "model",
        "loss = 'huber' is no likelihood: errors must be 'robust' or clustered",
    )
    V = sandwich(found, how[errors]) if errors != "model" else model_covariance(found, phi)
    if errors in ("cluster", "organisation"):
        require(clusters > 1, "errors: there is only one cluster")
        if clusters < FEW_CLUSTERS:
            notes.append(f"{clusters:.0f} clusters: with fewer than {FEW_CLUSTERS}, errors are too small")
    kind, loss = regression.intercept, asked.name
    M = asked.to_original(kind)
    at = found.free
    estimates, covariance = (M @ found.x)[at], M[np.ix_(at, at)] @ V @ M[np.ix_(at, at)].T
    df = found.residual_df if regression.dispersed and errors == "model" else math.inf
    if errors in ("cluster", "organisation"):
        df = clusters - 1
    lines = coefficients([names[j] for j in at], estimates, covariance, level, df)
    lines = [lines[-1], *lines[:-1]] if kind == "shared" and lines[-1].name == INTERCEPT else lines
    if kind == "shared" and at[-1] == len(names) - 1:
        covariance = np.roll(covariance, 1, (0, 1))
    tested = [line.p for line in lines if line.name != INTERCEPT]
    better = iter(adjusted(tested, adjust))
    lines = [line if line.name == INTERCEPT else replace(line, adjusted=next(better)) for line in lines]
    held = [names[j] for j in asked.references]
    if held:
        notes.append(f"references, with which the other categories of their columns are compared: {', '.join(held)}")
    left_out = tuple(names[j] for j in found.aliased)
    if left_out:
        notes.append(f"left out, as combinations of features before them: {', '.join(left_out)}")
    if asked.gaps:
        notes.append(f"{asked.gaps:,} missing values were imputed once: standard errors take no account of that")
    notes += warnings(asked.disguises, kind != "shared")
    return Inference(
        title=asked.preparation.schema.table.name,
        loss=loss,
        method=method,
        errors=_said(asked, errors),
        level=level,
        ratio=RATIOS.get(loss, ""),
        coefficients=tuple(lines),
        covariance=covariance,
        organisations=asked.organisations.names,
        site_intercepts=kind == "own",
        rows=int(found.rows),
        parameters=found.parameters,
        log_likelihood=_log_likelihood(loss, found),
        deviance=found.deviance,
        dispersion=phi,
        adjustment=adjust,
        left_out=left_out,
        notes=tuple(notes),
        exchanges=found.exchanges,
    )


def _log_likelihood(loss: str, found: Estimate) -> float:
    """Of least squares at its variance's own maximum."""
    if loss == "huber":
        return math.nan
    if loss == "squared":
        n = found.rows
        return -n / 2 * (math.log(2 * math.pi * found.deviance / n) + 1)
    return -found.sums.value


def _said(asked: Subject, errors: Errors) -> str:
    target = asked.preparation.schema.target
    column = "" if target is None else target.cluster
    return {"cluster": f"clustered by {column}", "organisation": "clustered by organisation"}.get(errors, errors)
