"""What one organisation computes of its own rows for inference, and what it sends: sums over rows, at a point.

    l = sum w l(s)        g = sum w l'(s) a        H = sum w l''(s) a a'
    M = sum over clusters of u u', where u is the sum of w l'(s) a over the rows of a cluster

a are the features of a row, and 1 for an intercept that all organisations share. A row is a cluster of its own unless
the organisation has others: all its rows, or those with the same value in a column.

An intercept of the organisation's own never leaves it. It is solved for at every point and eliminated as a block:

    g = g_b        H = H_bb - H_ba H_ab / H_aa        u = u_b - H_ba u_a / H_aa

which are the derivatives of the profile likelihood. Their sums over organisations give the estimate, the Wald and the
sandwich covariance of the model with an indicator for every organisation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple, Protocol

import numpy as np

from proxfed.errors import require
from proxfed.fit.inference.families import Array, Family

Intercept = Literal["shared", "own", "none"]


class Sums(NamedTuple):
    """What is sent; those of all organisations are added up."""

    rows: float
    weight: float
    """sum w"""
    value: float
    gradient: Array
    """(d,)"""
    hessian: Array
    """(d, d)"""
    products: Array
    """(d, d) M"""
    clusters: float
    deviance: float
    pearson: float
    intercepts: float
    """How many intercepts of organisations' own are among the parameters: 1 or 0 of an organisation."""

    def __add__(self, other: Sums) -> Sums:  # type: ignore[override]
        return Sums._make(one + two for one, two in zip(self, other, strict=True))  # type: ignore[operator]


class Own(Protocol):
    """An organisation's half of a regression."""

    @property
    def d(self) -> int: ...

    def sums(self, x: Array) -> Sums: ...


def ask(organisations: Sequence[Own], x: Array) -> Sums:
    """One exchange: x to all of them, and the sum of what they send back."""
    return reduce(Sums.__add__, (own.sums(x) for own in organisations))


@dataclass(frozen=True, eq=False)
class OwnRegression:
    """The rows of one organisation in a generalised linear model."""

    family: Family
    features: Array
    """(n, p)"""
    labels: Array
    """(n,)"""
    weights: Array | None = None
    """(n,) prior weights; None: all 1."""
    offset: Array | None = None
    """(n,) added to every score: log(exposure) of rates."""
    clusters: Array | None = None
    """(n,) rows with the same value depend on each other; None: every row is a cluster of its own."""
    intercept: Intercept = "shared"

    @property
    def d(self) -> int:
        """How many coefficients are asked for: with a shared intercept as the last."""
        return self.features.shape[1] + (self.intercept == "shared")

    @property
    def _a(self) -> Array:
        n = len(self.labels)
        return np.column_stack([self.features, np.ones(n)]) if self.intercept == "shared" else self.features

    @property
    def _w(self) -> Array:
        return np.ones(len(self.labels)) if self.weights is None else self.weights

    def scores(self, x: Array) -> Array:
        """(n,) without an intercept of its own."""
        s = self._a @ x
        return s if self.offset is None else s + self.offset

    def own_intercept(self, x: Array) -> float | None:
        """What this organisation adds to every score at x; None: infinite, since all its rows have the same outcome."""
        y, w = self.labels, self._w
        if self.intercept != "own":
            return 0.0
        if self.family.degenerate(y, w):
            return None
        return root(lambda a: self._first_and_second(self.scores(x) + a, y, w))

    def _first_and_second(self, s: Array, y: Array, w: Array) -> tuple[float, float]:
        terms = self.family.terms(s, y)
        return float(w @ terms.slope), float(w @ terms.curvature)

    def sums(self, x: Array) -> Sums:
        a, w, y, n, d = self._a, self._w, self.labels, len(self.labels), self.d
        own = self.own_intercept(x)
        if own is None:  # with its own intercept, it says nothing about the other coefficients
            zero = np.zeros((d, d))
            return Sums(n, float(w.sum()), 0.0, np.zeros(d), zero, zero, self._labels_of_clusters()[1], 0.0, 0.0, 1.0)
        terms = self.family.terms(self.scores(x) + own, y)
        slope, curvature = w * terms.slope, w * terms.curvature
        hessian = (a.T * curvature) @ a
        rows = a * slope[:, None]
        if self.intercept == "own":
            cross, mass = a.T @ curvature, float(curvature.sum())
            hessian = hessian - np.outer(cross, cross) / mass
            rows = rows - np.outer(slope, cross / mass)
        place, clusters = self._labels_of_clusters()
        by_cluster = rows if self.clusters is None else _sum_by(rows, place, clusters)
        return Sums(
            float(n),
            float(w.sum()),
            float(w @ terms.value),
            a.T @ slope,
            hessian,
            by_cluster.T @ by_cluster,
            float(clusters),
            float(w @ terms.deviance),
            float(w @ terms.pearson),
            float(self.intercept == "own"),
        )

    def _labels_of_clusters(self) -> tuple[Array, int]:
        if self.clusters is None:
            return np.arange(len(self.labels)), len(self.labels)
        names, place = np.unique(self.clusters, return_inverse=True)
        return place, len(names)


def _sum_by(rows: Array, place: Array, count: int) -> Array:
    out = np.zeros((count, rows.shape[1]))
    np.add.at(out, place, rows)
    return out


def root(derivative: Callable[[float], tuple[float, float]]) -> float:
    """Where an increasing function is 0, by Newton's method inside a bracket; it is given with its derivative."""
    low, high, a = -np.inf, np.inf, 0.0
    for _ in range(200):
        g, h = derivative(a)
        if g == 0:
            return a
        low, high = (a, high) if g < 0 else (low, a)
        step = a - g / h if h > 0 else np.inf
        if not low < step < high or abs(step - a) > 10:
            bracketed = np.isfinite(low) and np.isfinite(high)
            step = (low + high) / 2 if bracketed else a + (10.0 if g < 0 else -10.0)
        if abs(step - a) <= 1e-15 * max(1.0, abs(a)):
            return float(step)
        a = float(step)
    return a


def check(organisations: Sequence[OwnRegression]) -> None:
    """Every row is finite, and the labels are those of the family."""
    for k, own in enumerate(organisations):
        every = [own.features, own.labels, *(v for v in (own.weights, own.offset) if v is not None)]
        fine = all(bool(np.isfinite(v).all()) for v in every)
        require(fine, f"organisation {k}: a feature, label, weight or offset is not a finite number")
        require(own.weights is None or bool((own.weights >= 0).all()), f"organisation {k}: a weight is below 0")
        if own.family.name == "logistic":
            require(bool(np.isin(own.labels, (-1, 1)).all()), f"organisation {k}: labels must be -1 or +1")
        if own.family.name == "poisson":
            require(bool((own.labels >= 0).all()), f"organisation {k}: counts must be >= 0")
