"""From prepared tables to inference: the unpenalised model of all organisations, and intervals of a penalised one.

glm("tables.toml", site_intercepts=True)        estimates, errors, tests, heterogeneity
debiased_inference(design, problem, x)          the same of a model that was fitted with a penalty
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from proxfed.errors import InputError, require
from proxfed.fit.inference.adjust import METHODS
from proxfed.fit.inference.debiased import debiased, enough_rows
from proxfed.fit.inference.estimate import Estimate, estimate
from proxfed.fit.inference.heterogeneity import Agreement, MetaSums, OwnEstimate, agreement
from proxfed.fit.inference.joint import joint_estimate
from proxfed.fit.inference.random_intercepts import mixed
from proxfed.fit.inference.regression import Array
from proxfed.fit.inference.reported import Errors, reported
from proxfed.fit.inference.result import INTERCEPT, Forest, Inference
from proxfed.fit.inference.rubin import pooled
from proxfed.fit.inference.subject import PRODUCTS, Subject, subject
from proxfed.fit.inference.tests_of_terms import Test, deviance_table, likelihood_ratio
from proxfed.fit.inference.wald import coefficients, dispersion
from proxfed.tables.design import Design, design
from proxfed.tables.imputation import closed, imputed
from proxfed.tables.schema import Schema
from proxfed.tables.table import Tables, read_tables

DIFFERENT = 1e-3
"""p below which differences between organisations are pointed out."""


def glm(
    tables: str | Path | Schema | Tables,
    directory: str | Path | None = None,
    *,
    loss: str | None = None,
    site_intercepts: bool = False,
    random_intercepts: bool = False,
    errors: Errors = "model",
    level: float = 0.95,
    adjust: str = "none",
    forest: bool = True,
    ties: str = "breslow",
    imputations: int = 0,
    seed: int = 0,
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
    random_intercepts : bool
        The intercepts of organisations are draws from a normal distribution, whose standard deviation tau is estimated:
        by restricted maximum likelihood in linear models, and Laplace's approximation otherwise.
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
    imputations : int
        How often every organisation fills its gaps, from its own rows; results are pooled by Rubin's rules. 0: once,
        as the schema says, which standard errors take no account of.
    seed : int
        Of the imputations.

    Returns
    -------
    Inference
        Coefficients in the units of their columns.
    """
    if not isinstance(tables, Tables):
        tables = read_tables(tables, directory)
    made = design(tables)
    if random_intercepts:
        require(not site_intercepts, "random_intercepts and site_intercepts exclude each other")
        require(errors == "model", f"random_intercepts: errors = {errors!r} must be 'model'")
        require(
            not imputations, "random_intercepts: tau of several imputed tables is not pooled; imputations must be 0"
        )
        check(errors, level, adjust)
        return mixed(subject(made, _loss(made, loss), ties), level, adjust)
    options = (_loss(made, loss), site_intercepts, errors, level, adjust, forest, ties)
    if not imputations:
        return infer(made, *options)
    return pooled([infer(each, *options) for each in _completed(made, imputations, seed)], _closed(made))


def _completed(made: Design, count: int, seed: int) -> Iterator[Design]:
    """The same design of tables without gaps, so many times; where there are none, there are no indicators of them."""
    require(count > 1, f"imputations = {count} must be 0, or 2 and more")
    tables = made.tables.tables
    gaps = any(np.isnan(values).any() for table in tables for values in table.columns.values())
    require(gaps, f"imputations = {count}: no value is missing")
    schema = made.tables.schema.without_indicators()
    preparation = replace(made.preparation, schema=schema)
    for draw in range(count):
        whole = tuple(replace(imputed(table, seed, draw, i), schema=schema) for i, table in enumerate(tables))
        yield replace(made, tables=made.tables._replace(schema=schema, tables=whole), preparation=preparation)


def _closed(made: Design) -> list[str]:
    """What could not be filled from an organisation's own rows."""
    each = {table.organisation: closed(table) for table in made.tables.tables}
    return [
        f"{name}: {', '.join(map(repr, columns))} cannot be imputed from its own rows: the preparation fills it once"
        for name, columns in each.items()
        if columns
    ]


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
    check(errors, level, adjust)
    return inferred(subject(made, loss, ties, family), site_intercepts, errors, level, adjust, forest)


def inferred(
    asked: Subject,
    site_intercepts: bool = False,
    errors: Errors = "model",
    level: float = 0.95,
    adjust: str = "none",
    forest: bool = True,
) -> Inference:
    """The same of a regression, wherever its rows lie."""
    kind = asked.kind(site_intercepts)
    found, names, notes = joint_estimate(asked, kind, errors)
    order, phi = asked.preferred(kind), dispersion(found)
    result = reported(asked, found, phi, errors, level, adjust, names, "maximum likelihood", notes)
    terms, exchanges = _terms(asked, found, phi, order)
    agree, lines, more = _heterogeneity(asked, found, names, level, forest)
    sites = _sites(asked, found, phi)
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
        own_intercepts=asked.own_intercepts(found.x) if kind == "own" else {},
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
    check(errors, level, adjust)
    return debiased_of(subject(made, loss, family=family), x, site_intercepts, errors, level, adjust)


def debiased_of(
    asked: Subject,
    x: Array,
    site_intercepts: bool = False,
    errors: Errors = "model",
    level: float = 0.95,
    adjust: str = "holm",
) -> Inference:
    """The same of a regression, wherever its rows lie."""
    kind = asked.kind(site_intercepts)
    regression, order = asked.regression(kind, errors), asked.preferred(kind)
    names = [*asked.preparation.names, *([INTERCEPT] if kind == "shared" else [])]
    enough_rows(regression.informative, len(order), asked.what)
    found = debiased(regression, asked.recoded(kind, np.asarray(x, float)), order)
    phi = dispersion(found)
    notes = list(asked.preparation.notes)
    result = reported(asked, found, phi, errors, level, adjust, names, "debiased", notes)
    return replace(result, exchanges=found.exchanges)


def check(errors: str, level: float, adjust: str) -> None:
    """Refused if they are none."""
    require(errors in PRODUCTS, f"errors = {errors!r} is not one of {', '.join(PRODUCTS)}")
    require(0 < level < 1, f"level = {level!r} must be between 0 and 1")
    require(adjust in METHODS, f"adjust = {adjust!r} is not one of {', '.join(METHODS)}")


def _terms(asked: Subject, found: Estimate, phi: float, order: Sequence[int]) -> tuple[list[Test], int]:
    if not found.regression.likelihood:
        return [], 0
    columns: dict[str, list[int]] = {}
    for j, feature in enumerate(asked.preparation.features):
        columns.setdefault(feature.column, []).append(j)
    return deviance_table(found, columns, phi if found.regression.dispersed else None, order)


def _sites(asked: Subject, found: Estimate, phi: float) -> Test | None:
    """The likelihood-ratio (F) test of the organisations' intercepts, whichever of the two models was asked for."""
    kind, names = found.regression.intercept, asked.organisations.names
    if kind == "none" or not found.regression.likelihood or len(names) < 2:
        return None
    other = asked.kind(site_intercepts=kind != "own")
    free = asked.preferred(other)
    rival = estimate(asked.regression(other), free, order=free)
    full, small = (found, rival) if kind == "own" else (rival, found)
    return likelihood_ratio("organisation", full, small, dispersion(full) if found.regression.dispersed else None)


def _heterogeneity(
    asked: Subject, found: Estimate, names: Sequence[str], level: float, forest: bool
) -> tuple[list[Agreement], list[Forest], list[str]]:
    if not found.regression.likelihood or len(asked.organisations.names) < 2:
        return [], [], []
    kind, asking = found.regression.intercept, found.regression.objective.organisations
    order = asked.preferred(kind)
    try:
        total = MetaSums(*asking.agreement(order).numpy())
        agree = agreement(names, total, found) if total.k.max() > 1 else []
    except InputError as e:
        return [], [], [str(e)]
    own = asking.estimates(order) if forest else {}
    fine = {o: e for o, e in own.items() if isinstance(e, OwnEstimate)}
    notes = [f"{o}: no estimate from its own rows ({_named(e, names)})" for o, e in own.items() if isinstance(e, str)]
    scale = np.diag(asked.to_original(kind))
    by_name = dict(zip(names, scale.tolist(), strict=True))
    # On the prepared scale, an intercept and a feature with a product are those of a row with average features: in
    # original units they mix others in.
    mixed = {INTERCEPT, *(names[k] for each in asked.preparation.products for k in (each.one, each.other))}
    kept = [_scaled(a, by_name[a.name]) for a in agree if a.name not in mixed]
    lines = [
        Forest(c.name, o, c.estimate, c.low, c.high)
        for o, e in fine.items()
        for c in coefficients(names, e.b * scale, np.diag((e.error * scale) ** 2), level)
        if c.name not in mixed and c.estimate == c.estimate
    ]
    return kept, lines if agree else [], notes


def _named(said: str, names: Sequence[str]) -> str:
    """With the name of a coefficient instead of its number."""
    return re.sub(r"coefficient (\d+)", lambda found: repr(names[int(found[1])]), said)


def _scaled(a: Agreement, by: float) -> Agreement:
    return replace(a, tau=a.tau * by, meta=a.meta * by, meta_error=a.meta_error * by, one_step=a.one_step * by)
