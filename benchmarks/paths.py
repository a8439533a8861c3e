"""A path of 30 weights on 10 organisations x (2000 x 300): what sharing f saves, in CPU seconds of this process.

    python benchmarks/paths.py

Three ways take turns, and the least of several times is shown: `fit`'s path (`Solver.path`), the reference solver with
one f for all weights, and the same with a new f for each weight, which computes everything again that follows from the
data alone. All begin each weight at the solution of the last one. Beside the seconds: spectra that were computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import torch

from proxfed import Federated, Linear, Logistic
from proxfed.fit.model import linear_model
from proxfed.fit.solve import Solver
from proxfed.regularisers import L1

ORGANISATIONS, ROWS, FEATURES, WEIGHTS, TIMES = 10, 2000, 300, 30, 3


def made() -> Federated:
    """Standardised features, ten of which matter."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(ORGANISATIONS * ROWS, FEATURES)) / np.sqrt(FEATURES)
    s = A[:, :10] @ (5 * rng.normal(size=10))
    return Federated(A, np.where(s + rng.logistic(size=len(A)) > 0, 1.0, -1.0), np.full(ORGANISATIONS, ROWS))


def along(f: Callable[[], Linear], weights: np.ndarray) -> list[torch.Tensor]:
    """A solution for each weight."""
    found = [torch.zeros(FEATURES, dtype=torch.float64)]
    for w in weights.tolist():
        found.append((f() + L1(w)).starting_at(found[-1]).solve(1e-8))
    return found[1:]


def main() -> None:
    data = made()
    largest = (Linear(data, Logistic()) + L1(1.0)).alpha_max()
    weights = np.geomspace(largest, largest * 1e-2, WEIGHTS)

    def shared() -> list[torch.Tensor]:
        f = Linear(data, Logistic())
        return along(lambda: f, weights)

    ways: dict[str, Callable[[], list[torch.Tensor]]] = {
        "fit's path": lambda: [
            fit.x for fit in Solver(1e-8).path(linear_model(data, "logistic", L1(1.0)), weights.tolist())
        ],
        "one f": shared,
        "a new f each": lambda: along(lambda: Linear(data, Logistic()), weights),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    spectra, last = dict.fromkeys(ways, 0), {}
    compute = torch.linalg.eigvalsh, torch.linalg.eigh
    for turn in range(TIMES + 1):
        for name, way in ways.items():
            counted = [0]

            def counting(function: Callable[..., object], counted: list[int] = counted) -> Callable[..., object]:
                def called(*given: object, **how: object) -> object:
                    counted[0] += 1
                    return function(*given, **how)

                return called

            with (
                patch.object(torch.linalg, "eigvalsh", counting(compute[0])),
                patch.object(torch.linalg, "eigh", counting(compute[1])),
            ):
                start = time.process_time()
                last[name] = way()[-1]
                if turn:  # the first compiles
                    spent[name].append(time.process_time() - start)
            spectra[name] = counted[0]
    least = {name: min(seconds) for name, seconds in spent.items()}
    print(f"{'way':14} {'CPU s':>7} {'times less':>11} {'spectra':>8} {'non-zero':>9}")
    for name, seconds in least.items():
        ratio = least["a new f each"] / seconds
        print(f"{name:14} {seconds:7.2f} {ratio:11.1f} {spectra[name]:8} {int((last[name].abs() > 1e-6).sum()):9}")


if __name__ == "__main__":
    main()
