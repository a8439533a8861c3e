"""Sparse features as compressed sparse rows, which are never converted to a dense matrix.

The non-zero numbers of row i are values[indptr[i]:indptr[i+1]], in the columns indices[indptr[i]:indptr[i+1]].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxfed.errors import InputError, require


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A matrix (N, p) as its non-zero entries. Validated on construction."""

    values: np.ndarray
    """(non-zeros,) float32 or float64."""
    indices: np.ndarray
    """(non-zeros,): the column of each entry."""
    indptr: np.ndarray
    """(N + 1,): the start of each row, and the end of the last one."""
    width: int
    """p"""

    def __post_init__(self) -> None:
        most, values = np.iinfo(np.int32).max, np.asarray(self.values)
        require(0 <= self.width <= most, f"SparseRows: width = {self.width} must be in 0..{most}")
        object.__setattr__(self, "values", values if values.dtype == np.float32 else values.astype(float, copy=False))
        for name, dtype in (("indices", np.int32), ("indptr", np.int64)):
            given = np.asarray(getattr(self, name))
            whole = given.ndim == 1 and given.dtype.kind in "iu"
            require(whole, f"SparseRows: {name} must be whole numbers in one row, not {given.dtype} {given.shape}")
            outside = given[(given < 0) | (given >= self.width)] if name == "indices" else given[:0]
            if len(outside):
                raise InputError(f"SparseRows: column {outside[0]}, but there are {self.width}, from 0 on")
            object.__setattr__(self, name, given.astype(dtype, copy=False))
        count, ends = len(self.indices), self.indptr
        require(self.values.shape == (count,), f"SparseRows: {self.values.shape} values for {count} indices")
        fits = len(ends) > 0 and ends[0] == 0 and ends[-1] == count and bool((np.diff(ends) >= 0).all())
        require(fits, f"SparseRows: indptr must ascend from 0 to the {count} non-zeros")

    @classmethod
    def of(cls, matrix: Any) -> SparseRows:
        """From any matrix of scipy.sparse, or from a dense one."""
        if isinstance(matrix, SparseRows):
            return matrix
        if hasattr(matrix, "tocsr"):
            csr = matrix.tocsr()
            if not csr.has_canonical_format:
                csr = csr.copy()
                csr.sum_duplicates()
            return cls(csr.data, csr.indices, csr.indptr, int(csr.shape[1]))
        dense = np.asarray(matrix)
        require(dense.ndim == 2, f"sparse features must have the shape (samples, p), not {dense.shape}")
        rows, columns = np.nonzero(dense)
        counts = np.bincount(rows, minlength=len(dense))
        return cls(dense[rows, columns], columns, np.concatenate(([0], counts.cumsum())), dense.shape[1])

    @classmethod
    def stack(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """The rows of all parts, which have the same columns."""
        starts = np.cumsum([0, *(len(part.values) for part in parts)])
        ends = [part.indptr[1:] + start for part, start in zip(parts, starts, strict=False)]
        values, indices = (
            np.concatenate(column) for column in zip(*((a.values, a.indices) for a in parts), strict=True)
        )
        return cls(values, indices, np.concatenate([[0], *ends]), parts[0].width)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, p)."""
        return len(self), self.width

    @property
    def ndim(self) -> int:
        """2, as for an array."""
        return 2

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all three arrays."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(values, indices, indptr)."""
        return self.values, self.indices, self.indptr

    @property
    def row_of(self) -> np.ndarray:
        """(non-zeros,): the row of each entry."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, rows: slice | np.ndarray | list[int]) -> SparseRows:
        """Some of the rows: a slice (as views), their numbers, or a mask."""
        if isinstance(rows, slice) and rows.step in (None, 1):
            start, stop, _ = rows.indices(len(self))
            ends = self.indptr[start : max(start, stop) + 1]
            some = slice(ends[0], ends[-1])
            return SparseRows(self.values[some], self.indices[some], ends - ends[0], self.width)
        chosen = np.arange(len(self))[rows]
        counts = np.diff(self.indptr)[chosen]
        ends = np.concatenate(([0], counts.cumsum()))
        places = np.repeat(self.indptr[chosen] - ends[:-1], counts) + np.arange(ends[-1])
        return SparseRows(self.values[places], self.indices[places], ends, self.width)

    def toarray(self) -> np.ndarray:
        """The dense matrix (N, p)."""
        dense = np.zeros(self.shape, self.dtype)
        np.add.at(dense, (self.row_of, self.indices), self.values)
        return dense

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise InputError("sparse features are not converted to a dense array by themselves: use toarray()")


Features = np.ndarray | SparseRows
