"""Three sites with CSV files of their own, and an experiment over them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed.harness.build import build_study
from proxfed.harness.experiment import Experiment, parse
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.plan import Planned, carry_out
from proxfed.silos.site.holder import Holder
from proxfed.silos.site.rows import Rows
from proxfed.silos.wire.carrier import Direct

SITES = ("north", "south", "west")
ROWS = (40, 16, 24)
HERE = {"wall_seconds", "wire_bytes", "absent"}


def files(folder: Path, columns: Mapping[str, list[str]] | None = None, words: bool = False) -> None:
    """A file of each site, whose columns need not stand in the same order."""
    rng = np.random.default_rng(5)
    names = [f"x{j}" for j in range(8)]
    truth = rng.normal(size=8)
    folder.mkdir(parents=True)
    for k, (site, m) in enumerate(zip(SITES, ROWS, strict=True)):
        A = rng.normal(size=(m, 8)) + 0.3 * k
        b = A @ truth + 0.1 * rng.normal(size=m)
        label = [["ill", "well", "dead"][int(v > 0) + (k == 2 and v > 3)] for v in b] if words else b.tolist()
        order = (columns or {}).get(site, names)
        table = {**dict(zip(names, A.T.tolist(), strict=True)), "outcome": label}
        with (folder / f"{site}.csv").open("w", newline="") as f:
            csv.writer(f).writerows([[*order, "outcome"], *zip(*(table[c] for c in [*order, "outcome"]), strict=True)])


def holders(folder: Path, disk: Path, **options: Any) -> Direct:
    made = {}
    for site in SITES:
        rows = Rows.read(folder / f"{site}.csv", "outcome", **options)
        made[site] = Holder(site, rows, disk / site).answer
    return Direct(made)


def experiment(**more: Any) -> Experiment:
    table: dict[str, Any] = {
        "name": "together",
        "rounds": 6,
        "every": 2,
        "stationarity_step": 0.05,
        "data": {"name": "own", "path": "nowhere", "label": "outcome"},
        "problem": {"name": "least_squares", "l2": 0.1, "weighting": "size"},
        "regulariser": {"name": "l1", "weight": 0.05},
        "topology": {"name": "ring"},
        "algorithms": [
            {"name": "fedcomposite", "eta": 0.02, "tau": 2},
            {"name": "scaffold", "eta": 0.02, "K": 2, "participation": {"name": "uniform", "m": 2}},
            {"name": "depositum", "alpha": 0.05},
        ],
    }
    return parse(table | more, "test")


def in_one_place(e: Experiment, folder: Path, out: Path) -> RunFolder:
    e = e.model_copy(update={"data": e.data | {"path": str(folder)}})
    carry_out([Planned(build_study(e), RunFolder(out))], lambda: False, jobs=1, progress=False)
    return RunFolder(out)


def same_rows(one: RunFolder, other: RunFolder, apart: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    a, b = one.rows(), other.rows()
    assert len(a) == len(b) > 0
    for x, y in zip(a, b, strict=True):
        for key in x.keys() - HERE:
            if key in apart and x[key] is not None:
                assert y[key] == pytest.approx(x[key], rel=1e-12, abs=1e-25), key
            else:
                assert y[key] == x[key], (key, x, y)
    for name, model in one.models()[0].items():
        assert (other.models()[0][name] == model).all(), name
