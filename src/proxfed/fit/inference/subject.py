"""What inference is about: a prepared regression, wherever its rows lie, and how its coefficients are written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from proxfed.data.survival import survival_labels
from proxfed.errors import require
from proxfed.fit.here import Here
from proxfed.fit.inference.disguise import Disguise, disguises
from proxfed.fit.inference.regression import Array, Intercept, Regression
from proxfed.fit.oracle import Organisations
from proxfed.fit.own_rows import OwnRows
from proxfed.problems.losses import Loss
from proxfed.problems.named_losses import KINDS, find_loss
from proxfed.registry import describe
from proxfed.tables.column_kinds import Category
from proxfed.tables.design import Design
from proxfed.tables.preparation import Parameters, Preparation
from proxfed.tables.table import Table

KNOWN = ("squared", "logistic", "poisson", "huber", "cox")
"""Losses with standard errors."""

ROWS_FOR_EACH = {"cox": "events", "logistic": "rows of the rarer class"}
"""What tells how well coefficients are known, where it is not rows."""

PRODUCTS = {"model": "", "robust": "row", "cluster": "cluster", "organisation": "organisation"}
"""What a cluster is, by the errors that are asked for."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A regression that was prepared."""

    organisations: Organisations
    """Who answers; with a shared intercept."""
    loss: Loss
    preparation: Preparation
    gaps: int | None = None
    """Values that are missing; None: it is not known."""
    disguises: tuple[Disguise, ...] = ()
    """Features that are an organisation, as far as it is known."""

    @property
    def name(self) -> str:
        """Of the loss."""
        return str(describe(self.loss, KINDS)["name"])

    @property
    def what(self) -> str:
        """Of which a coefficient needs some."""
        return ROWS_FOR_EACH.get(self.name, "rows")

    def kind(self, site_intercepts: bool) -> Intercept:
        """Which intercepts there are."""
        return "none" if self.name == "cox" else "own" if site_intercepts else "shared"

    def regression(self, intercept: Intercept, errors: str = "model") -> Regression:
        """Asked of all organisations."""
        width = len(self.preparation.names)
        return Regression.of(self.organisations, self.loss, width, intercept, PRODUCTS[errors])

    def own_intercepts(self, x: Array) -> dict[str, float | None]:
        """Of organisations that tell them, by coefficients; None: infinite, as all its outcomes are the same."""
        if not isinstance(self.organisations, Here):
            return {}
        each = self.organisations.intercepts(torch.from_numpy(np.array(x, float)))
        return {name: a if np.isfinite(a) else None for name, a in each.items()}

    # ---- coefficients ------------------------------------------------------------------------------------------

    @property
    def references(self) -> dict[int, list[int]]:
        """By the place of a reference, those of the other categories of its column, where the schema names none."""
        places = {name: k for k, name in enumerate(self.preparation.names)}
        found = {}
        for name, column in self.preparation.schema.inputs.items():
            if isinstance(column, Category) and not column.reference:
                first, *others = (places[f"{name}={c}"] for c in column.names)
                found[first] = others
        return found

    def preferred(self, kind: Intercept) -> list[int]:
        """The coefficients that are estimated, in the order in which they are kept where some are combinations of
        others.

        The intercept comes first. A category without a reference in the schema has its first one as such.
        """
        p, held = len(self.preparation.names), set(self.references)
        return [*([p] if kind == "shared" else []), *(j for j in range(p) if j not in held)]

    def recoded(self, kind: Intercept, x: Array) -> Array:
        """The same scores with references at zero: what they had moves to the intercept; gaps count as references."""
        known = self.preparation.parameters
        parameters = [known.get(name, Parameters()) for name in self.preparation.names]
        centre, scale = (np.array([getattr(one, of) for one in parameters]) for of in ("centre", "scale"))
        x = x.copy()
        for first, others in self.references.items():
            by = x[first] / scale[first]
            x[others] -= by * scale[others]
            if kind == "shared":
                x[-1] += by * (1 - centre[[first, *others]].sum())
            x[first] = 0.0
        return x

    def to_original(self, kind: Intercept) -> Array:
        """(d, d) from coefficients on the prepared scale to those in the units of the columns."""
        p = len(self.preparation.names)
        coef, at = self.preparation.original_scale(np.eye(p), np.zeros(p))
        if kind != "shared":
            return coef.T
        M = np.eye(p + 1)
        M[:p, :p], M[p, :p] = coef.T, at
        return M


def subject(
    made: Design, loss: str, ties: str = "breslow", family: Mapping[str, float] = MappingProxyType({})
) -> Subject:
    """Of tables that lie here; `family` are settings of the loss, such as Huber's delta."""
    require(loss in KNOWN, f"loss = {loss!r} has no standard errors here; those that do are {', '.join(KNOWN)}")
    options: dict[str, Any] = {"ties": ties} if loss == "cox" else dict(family)
    kind = find_loss({"name": loss} | options)
    own = tuple(_own_rows(made, table, loss, kind) for table in made.tables.tables)
    gaps = sum(int(np.isnan(v).sum()) for table in made.tables.tables for v in table.columns.values())
    return Subject(Here(own, made.organisations), kind, made.preparation, gaps, tuple(disguises(made)))


def _own_rows(made: Design, table: Table, loss: str, kind: Loss) -> OwnRows:
    y = table.labels
    assert y is not None
    labels = 2.0 * y - 1.0 if loss == "logistic" else np.asarray(y, float)
    if loss == "poisson":
        require(bool((labels >= 0).all()), f"{table.organisation}: loss = 'poisson' takes counts >= 0")
    if loss == "cox":
        assert table.events is not None
        labels = survival_labels(labels, table.events > 0)
    return OwnRows(
        made.preparation.apply(table),
        labels,
        kind,
        loss != "cox",
        sample_weights=table.weights,
        offset=table.offset,
        clusters=table.clusters,
        fewest=made.tables.schema.table.fewest,
    )
