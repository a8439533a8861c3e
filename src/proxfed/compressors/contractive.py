"""The requirement of error feedback on a compressor."""

from __future__ import annotations

from proxfed.errors import require
from proxfed.types import Compressor


def contraction(compressor: Compressor, d: int, method: str) -> float:
    """q^2 of the compressor on vectors of d numbers; refused unless it is below 1, as this method needs."""
    q2 = compressor.contraction(d)
    require(
        q2 < 1,
        f"{method} needs a contractive compressor, but for {type(compressor).__name__} only "
        f"E|C(v) - v|^2 <= {q2:g} |v|^2 is known; use its contractive form",
    )
    return q2
