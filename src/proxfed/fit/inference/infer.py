"""From prepared tables to inference: the unpenalised model of all organisations, and intervals of a penalised one.

glm("tables.toml", site_intercepts=True)        estimates, errors, tests, heterogeneity
debiased_inference(design, problem, x)          the same of a model that was fitted with a penalty
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from proxfed.errors import InputError, require
from proxfed.fit.inference.adjust import METHODS, adjusted
from proxfed.fit.inference.debiased import debiased, enough_rows
from proxfed.fit.inference.disguise import warnings
from proxfed.fit.inference.families import Array, family_of
from proxfed.fit.inference.heterogeneity import Agreement, OwnEstimate, agreement, own_estimate
from proxfed.fit.inference.newton import Estimate, estimate
from proxfed.fit.inference.own_cox import OwnCox
from proxfed.fit.inference.own_sums import Intercept, OwnRegression
from proxfed.fit.inference.result import INTERCEPT, Forest, Inference
from proxfed.fit.inference.tests_of_terms import Test, deviance_table, likelihood_ratio
from proxfed.fit.inference.wald import coefficients, dispersion, model_covariance, sandwich
from proxfed.tables.column_kinds import Category
from proxfed.tables.design import Design, design
from proxfed.tables.schema import Schema
from proxfed.tables.table import Table, Tables, read_tables

Errors = Literal["model", "robust", "cluster", "organisation"]
ERRORS = ("model", "robust", "cluster", "organisation")
Organisation = OwnRegression | OwnCox

DISCLOSIVE = 3
"""Rows for a coefficient below which sums say too much about single rows."""
FEW_CLUSTERS = 30
DIFFERENT = 1e-3
"""p below which differences between organisations are pointed out."""


def glm(
    tables: str | Path | Schema | Tables,
    directory: str | Path | None = None,
    *,
    loss: str | None = None,
    site_intercepts: bool = False,
    errors: Errors = "model",
    level: float = 0.95,
    adjust: str = "none",
    forest: bool = True,
    ties: str = "breslow",
) -> Inference:
    """The unpenalised model of all organisations' tables, with standard errors: a generalised linear model, or Cox's.

    Parameters
    ----------
    tables : str, Path, Schema or Tables
        The file of their schema, the schema, or tables that were read. `[target]` may name the columns
        offset, exposure, weight and cluster.
    directory : str or Path, optional
        The data directory; None: PROXFED_DATA.
    loss : str, optional
        logistic, squared, poisson, huber or cox; None: as the target needs.
    site_intercepts : bool
        An intercept for every organisation, which it keeps; False: one for all.
    errors : str
        "model": right if the model is; "robust": the sandwich (HC1); "cluster": clustered by the column that
        `target.cluster` names; "organisation": clustered by organisation.
    level : float
        Of the intervals.
    adjust : str
        p-values for several comparisons: none, bonferroni, holm or bh.
    forest : bool
        Organisations show their own estimates, for a forest plot; False: only sums are used.
    ties : str
        Of Cox's model: breslow or efron.

    Returns
    -------
    Inference
        Coefficients in the units of their columns.
    """
    if not isinstance(tables, Tables):
        tables = read_tables(tables, directory)
    made = design(tables)
    return infer(made, _loss(made, loss), site_intercepts, errors, level, adjust, forest, ties)


def _loss(made: Design, asked: str | None) -> str:
    target = made.tables.schema.target
    assert target is not None
    usual = {"number": "squared", "survival": "cox"}.get(target.kind, "logistic")
    loss = usual if asked is None else asked
    allowed = {"number": ("squared", "poisson", "huber"), "survival": ("cox",)}.get(target.kind, ("logistic",))
    require(loss in allowed, f"loss = {loss!r} does not fit the target; one of {', '.join(allowed)} does")
    require(
        len(target.names) in (0, 2), f"target.classes: standard errors are for two classes, not {len(target.names)}"
    )
    return loss


def own_halves(
    made: Design,
    loss: str,
    intercept: Intercept,
    errors: Errors = "model",
    ties: str = "breslow",
    family: Mapping[str, float] = MappingProxyType({}),
) -> list[Organisation]:
    """What every organisation computes of its own rows; `family` are settings of the loss, such as Huber's delta."""
    return [_own(made, table, loss, intercept, errors, ties, family) for table in made.tables.tables]


def _own(
    made: Design,
    table: Table,
    loss: str,
    intercept: Intercept,
    errors: Errors,
    ties: str,
    family: Mapping[str, float],
) -> Organisation:
    X, y = made.preparation.apply(table), table.labels
    assert y is not None
    clusters = None
    if errors == "cluster":
        require(table.clusters is not None, "errors = 'cluster' needs target.cluster, the column that names them")
        clusters = table.clusters
    elif errors == "organisation":
        clusters = np.zeros(len(table))
    more: dict[str, Any] = {"weights": table.weights, "offset": table.offset, "clusters": clusters}
    if loss == "cox":
        assert table.events is not None
        return OwnCox(X, np.asarray(y, float), table.events > 0, **more, ties=ties)
    labels = 2.0 * y - 1.0 if loss == "logistic" else np.asarray(y, float)
    if loss == "poisson":
        require(bool((labels >= 0).all()), f"{table.organisation}: loss = 'poisson' takes counts >= 0")
    return OwnRegression(family_of(loss, **family), X, labels, **more, intercept=intercept)


def infer(
    made: Design,
    loss: str,
    site_intercepts: bool = False,
    errors: Errors = "model",
    level: float = 0.95,
    adjust: str = "none",
    forest: bool = True,
    ties: str = "breslow",
    **family: float,
) -> Inference:
    """The same of prepared tables."""
    _check(errors, level, adjust)
    kind: Intercept = "none" if loss == "cox" else "own" if site_intercepts else "shared"
    halves = own_halves(made, loss, kind, errors, ties, family)
    names = [*made.preparation.names, *([INTERCEPT] if kind == "shared" else [])]
    order = preferred(made, kind)
    rows = _informative(halves)
    require(
        DISCLOSIVE * len(names) <= sum(len(half.features) for half in halves),
        f"no standard errors: {len(names)} coefficients need {DISCLOSIVE * len(names):,} rows or more, since sums over "
        f"fewer say too much about single rows, and there are {sum(len(half.features) for half in halves):,}",
    )
    found = estimate(halves, order, names, order=order)
    notes = list(made.preparation.notes)
    if rows < 10 * len(found.free):
        notes.append(
            f"{rows:,.0f} {_what(loss)} for {len(found.free)} coefficients: with fewer than 10 for each, intervals are "
            "too short"
        )
    phi = dispersion(found) if loss == "squared" else 1.0
    result = _result(made, loss, kind, found, phi, errors, level, adjust, names, "maximum likelihood", notes)
    terms, exchanges = _terms(made, halves, found, names, phi if loss == "squared" else None, order)
    own = {
        table.organisation: half.own_intercept(found.x) if isinstance(half, OwnRegression) else 0.0
        for table, half in zip(made.tables.tables, halves, strict=True)
    }
    agree, lines, more = _heterogeneity(made, loss, halves, found, names, level, forest)
    sites = _sites(made, loss, kind, errors, found, phi, order, family)
    if sites is not None and sites.p < DIFFERENT and not site_intercepts:
        more.append(
            f"organisations differ in their intercepts (p = {sites.p:.1g}), so features that differ between them may "
            "stand for the organisation: fit with site intercepts"
        )
    return replace(
        result,
        terms=tuple(terms),
        agreement=tuple(agree),
        forest=tuple(lines),
        sites=sites,
        notes=(*result.notes, *more),
        exchanges=found.exchanges + exchanges,
        own_intercepts=own if kind == "own" else {},
    )


def debiased_inference(
    made: Design,
    loss: str,
    x: Array,
    site_intercepts: bool = False,
    errors: Errors = "model",
    level: float = 0.95,
    adjust: str = "holm",
    **family: float,
) -> Inference:
    """Intervals of a model with a penalty, x on the prepared scale: the features, and a shared intercept last."""
    _check(errors, level, adjust)
    kind: Intercept = "none" if loss == "cox" else "own" if site_intercepts else "shared"
    halves = own_halves(made, loss, kind, errors, family=family)
    names = [*made.preparation.names, *([INTERCEPT] if kind == "shared" else [])]
    enough_rows(_informative(halves), len(preferred(made, kind)), _what(loss))
    found = debiased(halves, recoded(made, kind, np.asarray(x, float)), preferred(made, kind))
    phi = dispersion(found) if loss == "squared" else 1.0
    notes = list(made.preparation.notes)
    result = _result(made, loss, kind, found, phi, errors, level, adjust, names, "debiased", notes)
    return replace(result, exchanges=found.exchanges)


def _check(errors: str, level: float, adjust: str) -> None:
    require(errors in ERRORS, f"errors = {errors!r} is not one of {', '.join(ERRORS)}")
    require(0 < level < 1, f"level = {level!r} must be between 0 and 1")
    require(adjust in METHODS, f"adjust = {adjust!r} is not one of {', '.join(METHODS)}")


def preferred(made: Design, kind: Intercept) -> list[int]:
    """The coefficients that are estimated, in the order in which they are kept where some are combinations of others.

    The intercept comes first. A category without a reference in the schema has its first one as such.
    """
    p, held = len(made.preparation.names), set(references(made))
    return [*([p] if kind == "shared" else []), *(j for j in range(p) if j not in held)]


def references(made: Design) -> dict[int, list[int]]:
    """By the place of a reference, those of the other categories of its column, where the schema names none."""
    places = {name: k for k, name in enumerate(made.preparation.names)}
    found = {}
    for name, column in made.preparation.schema.inputs.items():
        if isinstance(column, Category) and not column.reference:
            first, *others = (places[f"{name}={c}"] for c in column.names)
            found[first] = others
    return found


def recoded(made: Design, kind: Intercept, x: Array) -> Array:
    """The same scores with references at zero: what they had moves to the intercept; gaps count as references."""
    x = x.copy()
    for first, others in references(made).items():
        x[others] -= x[first]
        if kind == "shared":
            x[-1] += x[first]
        x[first] = 0.0
    return x


def _informative(halves: Sequence[Organisation]) -> float:
    """Rows; of two outcomes those of the rarer one, of survival times the events."""
    if isinstance(halves[0], OwnCox):
        return float(sum(half.events.sum() for half in halves if isinstance(half, OwnCox)))
    labels = np.concatenate([half.labels for half in halves if isinstance(half, OwnRegression)])
    logistic = isinstance(halves[0], OwnRegression) and halves[0].family.name == "logistic"
    return float(min((labels > 0).sum(), (labels < 0).sum()) if logistic else len(labels))


def _what(loss: str) -> str:
    return {"cox": "events", "logistic": "rows of the rarer class"}.get(loss, "rows")


def _result(
    made: Design,
    loss: str,
    kind: Intercept,
    found: Estimate,
    phi: float,
    errors: Errors,
    level: float,
    adjust: str,
    names: Sequence[str],
    method: str,
    notes: list[str],
) -> Inference:
    how = {"robust": "HC1", "cluster": "cluster", "organisation": "cluster"}
    likelihood = loss != "huber"
    require(likelihood or errors != "model", "loss = 'huber' is no likelihood: errors must be 'robust' or clustered")
    V = sandwich(found, how[errors]) if errors != "model" else model_covariance(found, phi)
    if errors in ("cluster", "organisation"):
        require(found.sums.clusters > 1, "errors: there is only one cluster")
        if found.sums.clusters < FEW_CLUSTERS:
            notes.append(f"{found.sums.clusters:.0f} clusters: with fewer than {FEW_CLUSTERS}, errors are too small")
    M = to_original(made, kind)
    at = found.free
    estimates, covariance = (M @ found.x)[at], M[np.ix_(at, at)] @ V @ M[np.ix_(at, at)].T
    df = found.residual_df if loss == "squared" and errors == "model" else math.inf
    if errors in ("cluster", "organisation"):
        df = found.sums.clusters - 1
    lines = coefficients([names[j] for j in at], estimates, covariance, level, df)
    lines = [lines[-1], *lines[:-1]] if kind == "shared" and lines[-1].name == INTERCEPT else lines
    if kind == "shared" and at[-1] == len(names) - 1:
        covariance = np.roll(covariance, 1, (0, 1))
    tested = [line.p for line in lines if line.name != INTERCEPT]
    better = iter(adjusted(tested, adjust))
    lines = [line if line.name == INTERCEPT else replace(line, adjusted=next(better)) for line in lines]
    held = [names[j] for j in references(made)]
    if held:
        notes.append(f"references, with which the other categories of their columns are compared: {', '.join(held)}")
    left_out = tuple(names[j] for j in found.aliased)
    if left_out:
        notes.append(f"left out, as combinations of features before them: {', '.join(left_out)}")
    gaps = sum(int(np.isnan(v).sum()) for table in made.tables.tables for v in table.columns.values())
    if gaps:
        notes.append(f"{gaps:,} missing values were imputed once: standard errors take no account of that")
    notes += warnings(made, kind == "own" or loss == "cox")
    return Inference(
        title=made.tables.schema.table.name,
        loss=loss,
        method=method,
        errors=_said(made, errors),
        level=level,
        ratio={"logistic": "odds ratio", "poisson": "rate ratio", "cox": "hazard ratio"}.get(loss, ""),
        coefficients=tuple(lines),
        covariance=covariance,
        organisations=made.organisations,
        site_intercepts=kind == "own",
        rows=int(found.sums.rows),
        parameters=found.parameters,
        log_likelihood=_log_likelihood(loss, found),
        deviance=found.sums.deviance,
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
        n = found.sums.rows
        return -n / 2 * (math.log(2 * math.pi * found.sums.deviance / n) + 1)
    return -found.sums.value


def _said(made: Design, errors: Errors) -> str:
    target = made.tables.schema.target
    column = "" if target is None else target.cluster
    return {"cluster": f"clustered by {column}", "organisation": "clustered by organisation"}.get(errors, errors)


def to_original(made: Design, kind: Intercept) -> Array:
    """(d, d) from coefficients on the prepared scale to those in the units of the columns."""
    p = len(made.preparation.names)
    coef, at = made.preparation.original_scale(np.eye(p), np.zeros(p))
    if kind != "shared":
        return coef
    M = np.eye(p + 1)
    M[:p, :p], M[p, :p] = coef, at
    return M


def _terms(
    made: Design,
    halves: Sequence[Organisation],
    found: Estimate,
    names: Sequence[str],
    phi: float | None,
    order: Sequence[int],
) -> tuple[list[Test], int]:
    if isinstance(halves[0], OwnRegression) and not halves[0].family.likelihood:
        return [], 0
    columns: dict[str, list[int]] = {}
    for j, feature in enumerate(made.preparation.features):
        columns.setdefault(feature.column, []).append(j)
    return deviance_table(halves, found, columns, phi, order)


def _sites(
    made: Design,
    loss: str,
    kind: Intercept,
    errors: Errors,
    found: Estimate,
    phi: float,
    order: Sequence[int],
    family: Mapping[str, float],
) -> Test | None:
    """The likelihood-ratio (F) test of the organisations' intercepts, whichever of the two models was asked for."""
    if loss in ("cox", "huber") or len(made.organisations) < 2:
        return None
    other: Intercept = "shared" if kind == "own" else "own"
    halves = own_halves(made, loss, other, errors, family=family)
    free = preferred(made, other)
    rival = estimate(halves, free, order=free)
    full, small = (found, rival) if kind == "own" else (rival, found)
    return likelihood_ratio("organisation", full, small, dispersion(full) if loss == "squared" else None)


def _heterogeneity(
    made: Design,
    loss: str,
    halves: Sequence[Organisation],
    found: Estimate,
    names: Sequence[str],
    level: float,
    forest: bool,
) -> tuple[list[Agreement], list[Forest], list[str]]:
    if loss == "huber" or len(halves) < 2:
        return [], [], []
    order = preferred(made, "shared" if names[-1] == INTERCEPT else "own")
    own = [own_estimate(half, loss == "squared", names, order) for half in halves]
    fine = {o: e for o, e in zip(made.organisations, own, strict=True) if isinstance(e, OwnEstimate)}
    notes = [
        f"{o}: no estimate from its own rows ({e})"
        for o, e in zip(made.organisations, own, strict=True)
        if isinstance(e, str)
    ]
    if len(fine) < 2:
        return [], [], notes
    try:
        agree = agreement(names, [*fine.values()], halves, found)
    except InputError as e:
        return [], [], [*notes, str(e)]
    scale = np.diag(to_original(made, "none")) if names[-1] != INTERCEPT else np.diag(to_original(made, "shared"))
    by_name = dict(zip(names, scale.tolist(), strict=True))
    # An intercept on the prepared scale is that of a row with average features: in original units it mixes others in.
    kept = [_scaled(a, by_name[a.name]) for a in agree if a.name != INTERCEPT]
    lines = [
        Forest(c.name, o, c.estimate, c.low, c.high)
        for o, e in fine.items()
        for c in coefficients(names, e.b * scale, np.diag((e.error * scale) ** 2), level)
        if c.name != INTERCEPT and c.estimate == c.estimate
    ]
    return kept, lines if forest else [], notes


def _scaled(a: Agreement, by: float) -> Agreement:
    return replace(a, tau=a.tau * by, meta=a.meta * by, meta_error=a.meta_error * by, one_step=a.one_step * by)
