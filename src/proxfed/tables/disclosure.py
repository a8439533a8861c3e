"""Statistical disclosure control: withholding counts and means, and coarsening histograms.

With `fewest` = 5 (the threshold rule) an organisation never sends a count from 1 to 4, a statistic of 1 to 4 values,
numbers from which such a count follows as a difference, or a smallest or largest value.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def suppress_small(counts: Mapping[str, int], fewest: int) -> dict[str, int | None]:
    """Counts of cells with a known sum, with None for the withheld ones (cell suppression).

    If only one count is below `fewest`, or the withheld counts together are, the next larger one is withheld as well
    (complementary suppression): otherwise the small count would follow from the sum.
    """
    hidden = {name for name, count in counts.items() if 0 < count < fewest}
    others = sorted((count, name) for name, count in counts.items() if count >= fewest)
    while hidden and others and (len(hidden) < 2 or sum(counts[name] for name in hidden) < fewest):
        hidden.add(others.pop(0)[1])
    return {name: None if name in hidden else count for name, count in counts.items()}


def reason_to_withhold(values: np.ndarray, fewest: int) -> str:
    """The reason to withhold the mean of these values; '' if it may be sent."""
    if not len(values):
        return "no values"
    if len(values) < fewest:
        return f"fewer than {fewest} values"
    _, times = np.unique(values, return_counts=True)
    if times.max() > 1 and 0 < len(values) - times.max() < fewest:  # the mean would reveal those few
        return f"fewer than {fewest} rows differ from all others"
    return ""


def coarsen(counts: np.ndarray, fewest: int) -> tuple[list[int], list[int]]:
    """A histogram with neighbouring bins merged until each cell has `fewest`: (last bin of each cell, counts)."""
    last, cells, so_far = list[int](), list[int](), 0
    for k, count in enumerate(counts.tolist()):
        so_far += count
        if so_far >= fewest:
            last.append(k)
            cells.append(so_far)
            so_far = 0
    if cells:  # the remainder joins the last cell
        last[-1], cells[-1] = len(counts) - 1, cells[-1] + so_far
    return last, cells


def refine(last: list[int], cells: list[int], bins: int) -> np.ndarray:
    """The inverse: the count of each cell, divided evenly over its bins."""
    widths = np.diff([-1, *last])
    return np.repeat(np.array(cells) / widths, widths) if cells else np.zeros(bins)


def quantile(counts: np.ndarray, low: float, high: float, part: float = 0.5) -> float:
    """The point with this fraction of the rows below it, by linear interpolation within a bin."""
    edges = np.linspace(low, high, len(counts) + 1)
    below = np.concatenate(([0.0], np.cumsum(counts)))
    wanted = part * below[-1]
    k = int(np.searchsorted(below, wanted, side="left"))
    k = max(k, 1)
    inside = (wanted - below[k - 1]) / (below[k] - below[k - 1])
    return float(edges[k - 1] + inside * (edges[k] - edges[k - 1]))
