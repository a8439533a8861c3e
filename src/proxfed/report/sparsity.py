"""The sparsity pattern of a model as a few small images, one per block of parameters.

A vector is laid out line by line, a tensor as a matrix (first axis x the rest). A cell shows one value; or, if there
are more coordinates than cells, its share of non-zero coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CELLS = 2000
"""Cells of one model, divided among its blocks by size."""
FEW = 40
"""The minimum number of cells of a small block, such as a bias."""
LINE = 200
"""Cells in a line of a vector: they stay visible on a phone."""

BlockLike = Sequence[Any]
"""(name, start, stop, shape)"""


@dataclass(frozen=True)
class Image:
    """rows x cols cells, line by line; a cell covers high x wide coordinates; None: past the end, or not finite.

    shares      cells are shares of non-zero coordinates rather than values
    transposed  the block has more rows than columns and is shown lying down
    """

    name: str
    shape: list[int]
    nonzeros: int
    rows: int
    cols: int
    high: int
    wide: int
    shares: bool
    transposed: bool
    cells: list[float | None]


def images(model: np.ndarray, blocks: Sequence[BlockLike]) -> list[Image]:
    """One image per block, together about CELLS cells."""
    parts = list(blocks) or [("x", 0, model.size, [model.size])]
    return [
        _image(str(name), model[start:stop], list(shape), max(FEW, CELLS * (stop - start) // model.size))
        for name, start, stop, shape in parts
        if stop > start
    ]


def _image(name: str, values: np.ndarray, shape: list[int], budget: int) -> Image:
    nonzeros = int(np.count_nonzero(values))
    vector = len([side for side in shape if side > 1]) < 2
    matrix = values.reshape(1, -1) if vector else values.reshape(shape[0], -1)
    transposed = matrix.shape[0] > matrix.shape[1]
    matrix = matrix.T if transposed else matrix
    high, wide = _bin(*matrix.shape, budget)
    binned = high * wide > 1
    cells = _shares(matrix, high, wide) if binned else matrix
    if vector:
        lines = math.ceil(cells.size / LINE)
        cols = math.ceil(cells.size / lines)
        cells = np.append(cells.ravel(), np.full(lines * cols - cells.size, np.nan)).reshape(lines, cols)
    digits = 2 if binned else 4
    shown = [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in cells.ravel()]
    return Image(
        name=name,
        shape=[int(side) for side in shape],
        nonzeros=nonzeros,
        rows=cells.shape[0],
        cols=cells.shape[1],
        high=high,
        wide=wide,
        shares=binned,
        transposed=transposed,
        cells=[int(v) if v is not None and v.is_integer() and abs(v) < 1e15 else v for v in shown],
    )


def _bin(rows: int, cols: int, budget: int) -> tuple[int, int]:
    """The size (high, wide) of a cell with which the matrix needs at most `budget` cells; wider before higher."""
    high = wide = 1
    while math.ceil(rows / high) * math.ceil(cols / wide) > budget:
        if math.ceil(cols / wide) >= math.ceil(rows / high):
            wide += max(1, wide // 8)
        else:
            high += max(1, high // 8)
    return high, wide


def _shares(matrix: np.ndarray, high: int, wide: int) -> np.ndarray:
    """The share of non-zero entries in each cell; cells at the border may be smaller."""
    rows, cols = matrix.shape
    tops, lefts = np.arange(0, rows, high), np.arange(0, cols, wide)
    counts = np.add.reduceat(np.add.reduceat((matrix != 0).astype(np.int64), tops, axis=0), lefts, axis=1)
    heights, widths = np.diff(np.append(tops, rows)), np.diff(np.append(lefts, cols))
    return counts / (heights[:, None] * widths)
