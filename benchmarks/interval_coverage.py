"""How often 95 % intervals hold the true coefficient: unpenalised, debiased, and the lasso read as if it were unbiased.

    python benchmarks/interval_coverage.py                    1,000 draws of every regime
    python benchmarks/interval_coverage.py --draws 200        fewer; the error of a share is then about 1.5 %

Four organisations whose features differ in mean and whose levels differ too, an intercept for each of them, features
with correlations 0.5^|j - k|, four coefficients 1, -0.8, 0.6 and 0.4 and all others zero. Every draw is a new data set.
The number of debiasing steps was chosen on the draws 0 to 299, so the draws here begin beyond them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from proxfed.data.survival import survival_labels
from proxfed.errors import ProxfedError
from proxfed.fit.here import Here
from proxfed.fit.inference.debiased import debiased
from proxfed.fit.inference.distributions import t_quantile
from proxfed.fit.inference.estimate import estimate
from proxfed.fit.inference.regression import Regression
from proxfed.fit.inference.wald import dispersion, model_covariance, sandwich
from proxfed.fit.own_rows import OwnRows
from proxfed.problems.linear.cox import Cox
from proxfed.problems.named_losses import find_loss

SITES = 4
FIRST = 10_000
"""The number of the first draw: none of those on which anything was chosen."""
SIGNALS = np.array([1.0, -0.8, 0.6, 0.4])


class Regime(NamedTuple):
    """What is drawn."""

    loss: str
    rows: int
    features: int
    weight: float
    """Of the l1 penalty, for the mean loss."""
    strength: float = 1.0
    """By which the coefficients are multiplied."""


REGIMES = [
    Regime("squared", 400, 20, 0.1),
    Regime("logistic", 400, 20, 0.03),
    Regime("logistic", 1000, 20, 0.02),
    Regime("logistic", 2000, 50, 0.015),
    Regime("poisson", 400, 20, 0.1, 0.5),
    Regime("cox", 400, 20, 0.03),
    Regime("logistic", 150, 20, 0.05),
]
"""The last one has fewer rows than `proxfed` gives intervals for: there they fail."""


def draw(regime: Regime, seed: int) -> tuple[Regression, np.ndarray]:
    """(what is regressed, true coefficients)."""
    rng = np.random.default_rng([seed, regime.rows, regime.features])
    p, m = regime.features, regime.rows // SITES
    b = np.zeros(p)
    b[: len(SIGNALS)] = regime.strength * SIGNALS
    C = 0.5 ** np.abs(np.subtract.outer(range(p), range(p)))
    rows = []
    for _ in range(SITES):
        X = rng.multivariate_normal(rng.normal(scale=0.3, size=p), C, m)
        s = X @ b + rng.normal(scale=0.5)
        if regime.loss == "cox":
            t, c = rng.exponential(np.exp(-s)), rng.exponential(3, size=m)
            rows.append(OwnRows(X, survival_labels(np.minimum(t, c), t <= c), Cox(), False))
            continue
        if regime.loss == "logistic":
            y = np.where(rng.random(m) < 1 / (1 + np.exp(-s)), 1.0, -1.0)
        elif regime.loss == "poisson":
            y = rng.poisson(np.exp(s)).astype(float)
        else:
            y = s + rng.normal(size=m)
        rows.append(OwnRows(X, y, find_loss(regime.loss), False))
    here = Here(tuple(rows), tuple(map(str, range(SITES))))
    return Regression.of(here, find_loss(regime.loss), p, "none" if regime.loss == "cox" else "own"), b


def lasso(regression: Regression, weight: float) -> np.ndarray:
    """The penalised model, by proximal Newton steps on the organisations' sums."""
    x = np.zeros(regression.d)
    for _ in range(50):
        now = regression.ask(x)
        g, H = now.gradient / regression.size.rows, now.hessian / regression.size.rows
        z = x.copy()
        for _ in range(200):
            before = z.copy()
            for j in range(len(x)):
                slope = g[j] + H[j] @ (z - x) - H[j, j] * z[j]
                z[j] = -np.sign(slope) * max(abs(slope) - weight, 0.0) / H[j, j]
            if np.abs(z - before).max() < 1e-9:
                break
        if np.abs(z - x).max() < 1e-7:
            return z
        x = z
    return x


def covered(found: np.ndarray, V: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(found - b) <= t_quantile(0.95) * np.sqrt(np.diag(V))


def of_one(regime: Regime, seed: int) -> dict[str, np.ndarray] | None:
    """By estimator: which coefficients the intervals hold; None where there is no estimate."""
    regression, b = draw(regime, seed)
    try:
        exact = estimate(regression)
    except ProxfedError:
        return None
    phi: Callable[[Any], float] = (lambda e: dispersion(e)) if regime.loss == "squared" else (lambda e: 1.0)
    x = lasso(regression, regime.weight)
    one = debiased(regression, x)
    V = model_covariance(one, phi(one))
    return {
        "unpenalised": covered(exact.x, model_covariance(exact, phi(exact)), b),
        "unpenalised, sandwich": covered(exact.x, sandwich(exact, "HC1"), b),
        "debiased": covered(one.x, V, b),
        "lasso, naively": covered(x, V, b),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    draws = parser.parse_args().draws
    print(f"{draws} draws; signals / zeros, in %\n")
    print("| loss | rows | features | estimator | signals | zeros |\n|---|---|---|---|---|---|")
    for regime in REGIMES:
        found = [of_one(regime, seed) for seed in range(FIRST, FIRST + draws)]
        there = [f for f in found if f is not None]
        for name in there[0]:
            hits = np.array([f[name] for f in there])
            signals, zeros = hits[:, : len(SIGNALS)].mean(), hits[:, len(SIGNALS) :].mean()
            cells = (regime.loss, regime.rows, regime.features, name, f"{100 * signals:.1f}", f"{100 * zeros:.1f}")
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
        if len(there) < draws:
            print(
                f"| {regime.loss} | {regime.rows} | {regime.features} | no finite estimate | {draws - len(there)} | |"
            )


if __name__ == "__main__":
    main()
