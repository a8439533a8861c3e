"""Statistical disclosure control: which counts, means and histograms are withheld or made coarser, and how.

With `fewest` = 5 (the threshold rule): no count from 1 to 4 is sent, nothing that was computed from 1 to 4 values,
nothing from which such a count follows as a difference, and no smallest or largest value ever.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def suppress_small(counts: Mapping[str, int], fewest: int) -> dict[str, int | None]:
    """Counts of cells whose sum is known, with None for those that are withheld (cell suppression).

    If only one is below `fewest`, or all of those that are withheld together are, the next larger one is withheld as
    well (complementary suppression): otherwise it would follow from the sum.
    """
    hidden = {name for name, count in counts.items() if 0 < count < fewest}
    others = sorted((count, name) for name, count in counts.items() if count >= fewest)
    while hidden and others and (len(hidden) < 2 or sum(counts[name] for name in hidden) < fewest):
        hidden.add(others.pop(0)[1])
    return {name: None if name in hidden else count for name, count in counts.items()}


def reason_to_withhold(values: np.ndarray, fewest: int) -> str:
    """Why the mean of these values must not be sent; empty if it may be."""
    if not len(values):
        return "no values"
    if len(values) < fewest:
        return f"fewer than {fewest} values"
    _, times = np.unique(values, return_counts=True)
    if times.max() > 1 and 0 < len(values) - times.max() < fewest:  # the mean would be about those few
        return f"fewer than {fewest} rows differ from all others"
    return ""


def coarsen(counts: np.ndarray, fewest: int) -> tuple[list[int], list[int]]:
    """A histogram with neighbouring bins taken together until each cell has `fewest`: (bins that end cells, counts)."""
    last, cells, so_far = list[int](), list[int](), 0
    for k, count in enumerate(counts.tolist()):
        so_far += count
        if so_far >= fewest:
            last.append(k)
            cells.append(so_far)
            so_far = 0
    if cells:  # what is left joins the last cell
        last[-1], cells[-1] = len(counts) - 1, cells[-1] + so_far
    return last, cells


def refine(last: list[int], cells: list[int], bins: int) -> np.ndarray:
    """The way back: the count of each cell, shared out evenly over its bins."""
    widths = np.diff([-1, *last])
    return np.repeat(np.array(cells) / widths, widths) if cells else np.zeros(bins)


def quantile(counts: np.ndarray, low: float, high: float, part: float = 0.5) -> float:
    """The point with this part of the rows below it, by a straight line within a bin."""
    edges = np.linspace(low, high, len(counts) + 1)
    below = np.concatenate(([0.0], np.cumsum(counts)))
    wanted = part * below[-1]
    k = int(np.searchsorted(below, wanted, side="left"))
    k = max(k, 1)
    inside = (wanted - below[k - 1]) / (below[k] - below[k - 1])
    return float(edges[k - 1] + inside * (edges[k] - edges[k - 1]))
