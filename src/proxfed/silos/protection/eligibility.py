"""Which algorithms work with protected messages (masks, noise), and why others do not."""

from __future__ import annotations

from proxfed.engine.compatibility import why_not_dense, why_not_private
from proxfed.errors import InputError, require
from proxfed.harness.protection import Protection
from proxfed.types import Algorithm, Graph


def check_protection(protection: Protection, algorithm: Algorithm, d: int) -> None:
    """One sentence if messages of this algorithm cannot be protected as asked."""
    if protection.secure_aggregation and (why := why_no_masks(algorithm)):
        raise InputError(f"protection.secure_aggregation = true: {type(algorithm).__name__} {why}")
    if protection.recovery or protection.word_bits < 64:
        key = "recovery" if protection.recovery else "word_bits"
        require(not isinstance(algorithm, Graph), f"protection.{key}: {type(algorithm).__name__} has no server")
    if protection.robust is not None:
        hidden, peers = protection.secure_aggregation, isinstance(algorithm, Graph)
        require(not hidden, "protection.robust: with secure_aggregation no message can be compared with the others")
        apart = not peers and algorithm.sends().rows_apart
        require(not apart, f"protection.robust: {type(algorithm).__name__} reads messages one by one, not their centre")
        require(not peers, f"protection.robust: {type(algorithm).__name__} has no server that could compare messages")
    if protection.privacy is not None and (why := why_not_private(algorithm, d)):
        raise InputError(f"protection.privacy: {type(algorithm).__name__} {why}")


def why_no_masks(algorithm: Algorithm) -> str:
    """The rest of a sentence that begins with its name; empty: the coordinator needs sums only."""
    if isinstance(algorithm, Graph):  # messages are sealed for neighbours, and the model is a mean
        return ""
    return why_not_dense(algorithm, "masks fill every number")
