"""What a regression needs to know of its loss, row by row: value, slope and curvature in the score, variance, deviance.

A score is s = x'beta + offset. Labels are those of `proxfed.problems.losses`: -1 and +1 of logistic regression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from proxfed.errors import require

Array = np.ndarray


class Terms(NamedTuple):
    """Of every row, (n,)."""

    value: Array
    """The loss: minus the log-likelihood, up to what does not depend on s."""
    slope: Array
    curvature: Array
    deviance: Array
    """Twice the loss above that of a model that fits every row."""
    pearson: Array
    """(y - mu)^2 / V(mu)."""


@dataclass(frozen=True)
class Family:
    """A generalised linear model with its canonical link."""

    name: ClassVar[str]
    ratio: ClassVar[str] = ""
    """What exp(coefficient) is called; '' where it has no meaning."""
    dispersed: ClassVar[bool] = False
    """The dispersion is estimated; otherwise it is 1."""
    likelihood: ClassVar[bool] = True
    """The loss is minus a log-likelihood, so that the inverse Hessian is a covariance."""

    def terms(self, s: Array, y: Array) -> Terms:
        raise NotImplementedError

    def degenerate(self, y: Array, w: Array) -> bool:
        """An intercept of these rows alone would be infinite."""
        return bool(w.sum() == 0)


@dataclass(frozen=True)
class Gaussian(Family):
    """Least squares."""

    name: ClassVar[str] = "squared"
    dispersed: ClassVar[bool] = True

    def terms(self, s: Array, y: Array) -> Terms:
        r = s - y
        return Terms(r * r / 2, r, np.ones_like(r), r * r, r * r)


@dataclass(frozen=True)
class Binomial(Family):
    """Logistic regression, labels -1 and +1."""

    name: ClassVar[str] = "logistic"
    ratio: ClassVar[str] = "odds ratio"

    def terms(self, s: Array, y: Array) -> Terms:
        value = np.logaddexp(0, -y * s)
        p = np.exp(-np.logaddexp(0, -s))
        q = np.exp(-np.logaddexp(0, s))
        slope = np.where(y > 0, -q, p)
        return Terms(value, slope, p * q, 2 * value, np.exp(np.clip(-y * s, -700, 700)))

    def degenerate(self, y: Array, w: Array) -> bool:
        return len(np.unique(y[w > 0])) < 2


@dataclass(frozen=True)
class PoissonFamily(Family):
    """Counts, with the logarithm as link."""

    name: ClassVar[str] = "poisson"
    ratio: ClassVar[str] = "rate ratio"

    def terms(self, s: Array, y: Array) -> Terms:
        mu = np.exp(np.minimum(s, 700))
        fits = np.where(y > 0, y - y * np.log(np.where(y > 0, y, 1)), 0)
        value = mu - y * s
        return Terms(value, mu - y, mu, 2 * (value - fits), (y - mu) ** 2 / np.maximum(mu, 1e-300))

    def degenerate(self, y: Array, w: Array) -> bool:
        return not (y[w > 0] > 0).any()


@dataclass(frozen=True)
class HuberFamily(Family):
    """Least squares that outliers cannot pull: no likelihood, so only its sandwich covariance means anything."""

    delta: float = 1.35

    name: ClassVar[str] = "huber"
    likelihood: ClassVar[bool] = False

    def terms(self, s: Array, y: Array) -> Terms:
        r = s - y
        inside = np.abs(r) <= self.delta
        value = np.where(inside, r * r / 2, self.delta * (np.abs(r) - self.delta / 2))
        return Terms(value, np.clip(r, -self.delta, self.delta), inside.astype(float), 2 * value, r * r)


FAMILIES: dict[str, type[Family]] = {each.name: each for each in (Gaussian, Binomial, PoissonFamily, HuberFamily)}


def family_of(loss: str, **settings: float) -> Family:
    """The family of a loss by its name."""
    known = ", ".join([*FAMILIES, "cox"])
    require(loss in FAMILIES, f"loss = {loss!r} has no standard errors here; those that do are {known}")
    return FAMILIES[loss](**settings)
