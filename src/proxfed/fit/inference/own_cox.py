"""What one organisation computes of its own survival times: Cox's partial likelihood, each organisation a stratum.

With the rows in order of their times, latest first, a risk set is what stands before the end of its ties, and all sums
over risk sets are cumulative sums. z_j is the mean of the features in the risk set of event j, a_j its weight:

    g = sum_j a_j (z_j - x_j)        H = sum_k r_k x_k x_k' - sum_j a_j z_j z_j'

where r_k is the cumulative hazard of row k. Under Efron, of d events at the same time the i-th sees (i-1)/d of them
gone. Products for the sandwich are those of Lin and Wei's score residuals.

Reference: D. Y. Lin and L. J. Wei, "The Robust Inference for the Cox Proportional Hazards Model", Journal of the
American Statistical Association, 1989.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from proxfed.fit.inference.families import Array
from proxfed.fit.inference.own_sums import Sums, _sum_by


@dataclass(frozen=True, eq=False)
class OwnCox:
    """The rows of one organisation in Cox's model."""

    features: Array
    """(n, p)"""
    times: Array
    events: Array
    """(n,) True where the event happened."""
    weights: Array | None = None
    offset: Array | None = None
    clusters: Array | None = None
    ties: str = "breslow"

    @property
    def d(self) -> int:
        return self.features.shape[1]

    def scores(self, x: Array) -> Array:
        s = self.features @ x
        return s if self.offset is None else s + self.offset

    def sums(self, x: Array) -> Sums:
        order = np.argsort(-self.times, kind="stable")
        X, t, e = self.features[order], self.times[order], self.events[order].astype(float)
        w = np.ones(len(t)) if self.weights is None else self.weights[order]
        s = self.scores(x)[order]
        top = s.max(initial=0.0)
        risk = w * np.exp(s - top)
        first, last = np.searchsorted(-t, -t, "left"), np.searchsorted(-t, -t, "right") - 1
        a, gone = _of_ties(e, w, first, last, self.ties)
        tied0, tied1 = _within(risk * e, first, last), _within(X * (risk * e)[:, None], first, last)
        S0 = np.cumsum(risk)[last] - gone * tied0
        S1 = np.cumsum(X * risk[:, None], 0)[last] - gone[:, None] * tied1
        S0 = np.where(a > 0, S0, 1.0)
        z = S1 / S0[:, None]
        rate = a / S0
        r, of_z = _hazards(rate, z, gone, e, first, last)
        r, of_z = risk * r, of_z * risk[:, None]
        mean_z = _within(z * a[:, None], first, last) / np.maximum(_within(a, first, last), 1e-300)[:, None]
        slope = r - w * e
        rows = X * slope[:, None] - of_z + (w * e)[:, None] * mean_z
        value = float(a @ (np.log(S0) + top)) - float((w * e) @ s)
        hessian = (X.T * r) @ X - (z.T * a) @ z
        clusters, place = len(t), np.arange(len(t))
        if self.clusters is not None:
            names, place = np.unique(self.clusters[order], return_inverse=True)
            clusters = len(names)
            rows = _sum_by(rows, place, clusters)
        return Sums(
            float(len(t)),
            float(w.sum()),
            value,
            X.T @ slope,
            hessian,
            rows.T @ rows,
            float(clusters),
            2 * value,
            float("nan"),
            0.0,
        )


class _Ties(NamedTuple):
    weight: Array
    """(n,) of events, 0 elsewhere; among tied ones, under Efron, their mean."""
    gone: Array
    """(n,) which part of the tied events counts as gone."""


def _of_ties(e: Array, w: Array, first: Array, last: Array, ties: str) -> _Ties:
    if ties == "breslow":
        return _Ties(e * w, np.zeros_like(w))
    d = np.maximum(_within(e, first, last), 1)
    before = np.cumsum(e) - e
    return _Ties(e * _within(e * w, first, last) / d, e * (before - before[first]) / d)


def _within(x: Array, first: Array, last: Array) -> Array:
    """Sums over the rows with the same time, at each of them."""
    total = np.concatenate([np.zeros_like(x[:1]), np.cumsum(x, 0)])
    return total[last + 1] - total[first]


def _hazards(rate: Array, z: Array, gone: Array, e: Array, first: Array, last: Array) -> tuple[Array, Array]:
    """Of every row: the sum of rates of the events that it was at risk of, and the same of rates times z."""

    def at_risk(x: Array) -> Array:
        return (np.cumsum(x[::-1], 0)[::-1])[first]

    lost = e * _within(gone * rate, first, last)
    lost_z = e[:, None] * _within((gone * rate)[:, None] * z, first, last)
    return at_risk(rate) - lost, at_risk(rate[:, None] * z) - lost_z
