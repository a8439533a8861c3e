"""Compressors: v (c, d) -> Packed. Rows are clients, and each is compressed independently.

`contraction(d)` is the q^2 of E|C(v) - v|^2 <= q^2 |v|^2. If it is below 1, the compressor is contractive and can be
used with error feedback. An unbiased compressor, E C(v) = v, has q^2 = omega(d), often far above 1; C / (1 + omega)
is contractive, with q^2 = omega / (1 + omega). RandK, QSGD and Natural have both forms.

Numbers are sent in the dtype of v, float32 or float64. Randomness is a function of the key, and sums over a row have a
fixed order: the bits of a row depend neither on other rows nor on the number of threads (except for LowRank, whose
factors come from LAPACK).
"""

from __future__ import annotations

from proxfed.compressors.byte_budget import ByteBudgetQuantiser
from proxfed.compressors.error_bounded import ErrorBoundedQuantiser
from proxfed.compressors.identity import Identity
from proxfed.compressors.lowrank import LowRank
from proxfed.compressors.quantise import QSGD, NaturalCompressor, ScaledSign
from proxfed.compressors.sparsify import RandK, TopK
from proxfed.explained import explain
from proxfed.registry import Registry
from proxfed.types import Compressor

__all__ = [
    "COMPRESSORS",
    "QSGD",
    "ByteBudgetQuantiser",
    "ErrorBoundedQuantiser",
    "Identity",
    "LowRank",
    "NaturalCompressor",
    "RandK",
    "ScaledSign",
    "TopK",
]

COMPRESSORS: Registry[type] = Registry(
    "compressors",
    {
        "identity": Identity,
        "top_k": TopK,
        "rand_k": RandK,
        "scaled_sign": ScaledSign,
        "qsgd": QSGD,
        "natural": NaturalCompressor,
        "low_rank": LowRank,
        "error_bounded": ErrorBoundedQuantiser,
        "byte_budget": ByteBudgetQuantiser,
    },
    of=Compressor,
)


explain(__name__)
