"""What error feedback asks of a compressor."""

from __future__ import annotations

from typing import Any

from proxfed.errors import require


def contraction(method: Any, d: int) -> float:
    """q^2 of a method's compressor on vectors of d numbers, which must be below 1."""
    q2: float = method.compressor.contraction(d)
    require(
        q2 < 1,
        f"{type(method).__name__} needs a contractive compressor, but for {type(method.compressor).__name__} only "
        f"E|C(v) - v|^2 <= {q2:g} |v|^2 is known; use its contractive form",
    )
    return q2
