"""The devices and links of FedNAG's Fig. 6, from the six times that its section 6.4 prints.

A run that reaches 95 % after R rounds of tau iterations takes R (tau a + s + m V) seconds: a of a step of the slowest
worker, s of what every round has besides (the aggregator and latency), m of a vector up and down, of which FedNAG
sends V = 2 and the others 1. R is not printed, but a whole number, at most T/tau with T = 1000, and smaller where the
time is. So all such R are tried, and a, s, m >= 0 fitted to the six times by least squares of relative errors.

The best R has every time to 0.3 %, and the next best is four times as far off; without R tau <= T many others fit. Of
700 choices one may be near by chance, but our own runs, which it does not know, take just as many rounds with FedMom
and nearly as many with FedAvg: 8, 12, 18 and 36, where it has 8, 12, 19 and 35. It is the profile `fednag_paper`, with
the bytes of our reading of the CNN for a vector. Run: python benchmarks/fednag_profile.py
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

TIMES = {
    ("FedNAG", 40): 263.34,
    ("FedNAG", 20): 307.35,
    ("FedMom", 40): 377.20,
    ("FedMom", 20): 345.72,
    ("FedAvg", 40): 893.96,
    ("FedAvg", 20): 1011.72,
}
VECTORS = {"FedNAG": 2, "FedMom": 1, "FedAvg": 1}
T = 1000
PARAMETERS = 569_606
SAME = 0.01
"""FedMom and FedAvg have rounds of the same length, so their times per round agree at least so far."""


class Fit(NamedTuple):
    error: float  # root of the sum of squared relative errors
    rounds: dict[tuple[str, int], int]
    a: float  # s of a step
    s: float  # s of a round
    m: float  # s of a vector up and down

    @property
    def mbit_per_second(self) -> float:
        """Of a link that is as fast up as down."""
        return 2 * 32 * PARAMETERS / 1e6 / self.m if self.m else np.inf


def fits() -> list[Fit]:
    """All that is possible, the best first."""
    found = [_fit(dict(zip(TIMES, rounds, strict=True))) for rounds in _possible()]
    return sorted(found, key=lambda fit: fit.error)


def _possible() -> Iterator[tuple[int, ...]]:
    """Whole numbers of rounds for the six times, in their order."""
    for (nag40, mom40, avg40), (nag20, mom20, avg20) in product(_of(40), _of(20)):
        yield nag40, nag20, mom40, mom20, avg40, avg20


def _of(tau: int) -> Iterator[tuple[int, int, int]]:
    """Of the three algorithms with this tau; FedNAG, with longer rounds and a shorter time, has fewer of them."""
    most = range(1, T // tau + 1)
    for mom, avg in product(most, most):
        ratio = TIMES["FedMom", tau] / mom / (TIMES["FedAvg", tau] / avg)
        if abs(ratio - 1) < SAME:
            yield from ((nag, mom, avg) for nag in range(1, mom))


def _fit(rounds: dict[tuple[str, int], int]) -> Fit:
    each = np.array([TIMES[key] / rounds[key] for key in TIMES])
    parts = np.array([[tau, 1, VECTORS[name]] for name, tau in TIMES], float)
    (a, s, m), error = nnls(parts / each[:, None], np.ones(len(TIMES)))
    return Fit(error, rounds, a, s, m)


if __name__ == "__main__":
    for fit in fits()[:5]:
        fitted = f"step {fit.a:.3f} s  round {fit.s:.3f} s  vector {fit.m:.3f} s ({fit.mbit_per_second:.3f} Mbit/s)"
        print(f"{100 * fit.error:.2f} %  rounds {[*fit.rounds.values()]}  {fitted}")
    best = fits()[0]
    for (name, tau), time in TIMES.items():
        ours = best.rounds[name, tau] * (tau * best.a + best.s + VECTORS[name] * best.m)
        print(f"{name}, tau = {tau}: {best.rounds[name, tau]} rounds, {ours:.2f} s, printed {time} s")
