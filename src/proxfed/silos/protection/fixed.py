"""What a site fixes on its disk for all jobs: its tables, folds and grid of times. Others would single out rows."""

from __future__ import annotations

import logging

import numpy as np

from proxfed.files import replace
from proxfed.silos.protection import policy_of_fits
from proxfed.silos.protection.folds import folds
from proxfed.silos.protection.guard import Refused
from proxfed.silos.protection.versions import too_near
from proxfed.silos.site.config import Site
from proxfed.silos.site.rows import Rows

_log = logging.getLogger("proxfed.silos")


def check_table(site: Site, rows: np.ndarray) -> None:
    """Whether a table, given by digests of its rows, is one that was used before, or differs in enough rows."""
    _far_enough(site, "tables", rows, "its rows differ from those of an earlier job")


def check_filled(site: Site, rows: np.ndarray) -> None:
    """The same of the rows with gaps, as they are filled."""
    _far_enough(site, "filled", rows, "rows with gaps get other values than in an earlier job")


def _far_enough(site: Site, folder: str, table: np.ndarray, said: str) -> None:
    """Two sums over tables that differ in a row differ by that row."""
    if too_near(site.path(site.files.state) / folder, table, site.limits.change):
        _log.warning("%s: %s in fewer rows than limits.change", site.name, said)
        raise Refused("it begins nothing new now; the log of the site says why")


def own_folds(site: Site, secret: bytes, rows: Rows, strata: np.ndarray, count: int) -> np.ndarray:
    """The fold of each row, keyed by a secret of the site.

    The number of folds and their units are fixed: other folds would overlap with these in a few rows.
    """
    kept = site.path(site.files.state) / "folds"
    if kept.exists():
        before, _, units = kept.read_text().partition("\n")
        same_units = units.strip() == rows.divided_by
        policy_of_fits.check_same_folds(site, int(before), count, same_units)
    else:
        kept.parent.mkdir(parents=True, exist_ok=True)
        replace(kept, f"{count}\n{rows.divided_by}\n".encode())
    return folds(rows.lines(), strata, count, secret, rows.units)


def check_times(site: Site, last: float) -> None:
    """Fix the end of the grid of times: two grids would reveal the rows that leave between their times."""
    kept = site.path(site.files.state) / "times"
    if kept.exists():
        policy_of_fits.check_same_times(float(kept.read_text()), last)
    else:
        kept.parent.mkdir(parents=True, exist_ok=True)
        replace(kept, f"{last!r}\n".encode())
