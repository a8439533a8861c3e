"""Fits of tables: rounds, bytes and CPU of every shipped example, and cross-validation beside scikit-learn's.

    python benchmarks/fits.py                 the shipped examples whose data are there
    python benchmarks/fits.py --beside        lasso and logistic regression beside scikit-learn on the pooled rows

CPU is that of this process, not of the wall; both sides take turns, and the least of several times is shown. scikit-learn
has the same weights and folds. Compiling is not counted: the first turn warms up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.linear_model import LassoCV, LogisticRegressionCV

from proxfed import Federated
from proxfed.data.directory import data_directory
from proxfed.errors import InputError
from proxfed.fit.consortium import fit
from proxfed.fit.costs import total
from proxfed.fit.cross_validate import cross_validate, fold_of_rows
from proxfed.fit.model import linear_model
from proxfed.fit.solve import Solver
from proxfed.regularisers import L1

EXAMPLES = Path("examples/tables")
SIZES = ((10_000, 20, 4), (2_000, 100, 4), (5_000, 500, 4))
"""Rows, features, organisations."""


def examples() -> None:
    print(f"{'example':20} {'rounds':>7} {'MB up':>8} {'MB down':>8} {'CPU s':>7} {'non-zero':>9}")
    for path in [*sorted(EXAMPLES.glob("*.toml")), EXAMPLES / "clinics" / "tables.toml"]:
        start = time.process_time()
        try:
            found = fit(path, data_directory() if path.stem != "tables" else None, alone=False, repetitions=0)
        except InputError as e:
            print(f"{path.stem:20} {e}")
            continue
        all_of, spent = total(found.sent), time.process_time() - start
        print(
            f"{found.model.name:20.20} {all_of.rounds:7} {all_of.bytes_up / 1e6:8.2f} {all_of.bytes_down / 1e6:8.2f} "
            f"{spent:7.2f} {found.model.nonzeros:9}"
        )


def made(rows: int, features: int, organisations: int, loss: str) -> Federated:
    """Rows with correlated features, a few of which matter."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(rows, features)) + 0.5 * rng.normal(size=(rows, 1))
    A = (A - A.mean(0)) / A.std(0)
    s = A[:, :10] @ rng.normal(size=10)
    y = s + rng.normal(size=rows) * 3 if loss == "squared" else np.where(s + 3 * rng.logistic(size=rows) > 0, 1.0, -1.0)
    return Federated(A, y, np.full(organisations, rows // organisations))


def turns(ours: Callable[[], object], theirs: Callable[[], object], times: int = 3) -> tuple[float, float]:
    """The least CPU of each, in turns."""
    spent: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(times + 1):
        for own in (True, False):
            start = time.process_time()
            (ours if own else theirs)()
            spent[own].append(time.process_time() - start)
    return min(spent[True][1:]), min(spent[False][1:])


def beside(weights: int = 30, folds: int = 5, smallest: float = 1e-3) -> None:
    print(f"{'loss':9} {'rows':>7} {'features':>9} {'rounds':>7} {'ours s':>7} {'theirs s':>9} {'ratio':>6}")
    for loss in ("squared", "logistic"):
        for rows, features, organisations in SIZES if loss == "squared" else SIZES[:2]:
            data = made(rows, features, organisations, loss)
            problem = linear_model(data, loss, L1(1.0))
            fold = fold_of_rows(problem.f, folds, 0)
            splits = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(folds)]
            found = cross_validate(problem, folds, weights, smallest, Solver(1e-6), 1e-4)
            if loss == "squared":
                theirs = LassoCV(alphas=found.weights, cv=splits)
            else:
                theirs = LogisticRegressionCV(
                    Cs=1 / (found.weights * rows), cv=splits, l1_ratios=(1.0,), solver="saga", scoring="neg_log_loss",
                    use_legacy_attributes=False,
                )  # fmt: skip
            own, other = turns(
                lambda p=problem: cross_validate(p, folds, weights, smallest, Solver(1e-6), 1e-4),  # type: ignore[misc]
                lambda t=theirs, d=data: t.fit(d.features, d.labels),  # type: ignore[misc]
                times=3 if loss == "squared" else 1,
            )
            print(
                f"{loss:9} {rows:7} {features:9} {found.traffic.rounds:7} {own:7.2f} {other:9.2f} {own / other:6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", action="store_true", help="beside scikit-learn instead of the shipped examples")
    if parser.parse_args().beside:
        beside()
    else:
        examples()
