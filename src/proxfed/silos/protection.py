"""What is done to the message of a holder before it leaves, which algorithms can have it, and why others cannot."""

from __future__ import annotations

from typing import Any

import torch

from proxfed.auto import Auto, example
from proxfed.compressors import Identity
from proxfed.engine.compatibility import compressors
from proxfed.engine.states import flatten
from proxfed.errors import InputError
from proxfed.harness.protection import Protection
from proxfed.regularisers import Zero
from proxfed.silos.privacy import NoRows
from proxfed.types import Algorithm, Graph, Star


def check_protection(protection: Protection, given: Algorithm | Auto, d: int) -> None:
    """One sentence if messages of this algorithm cannot be protected as asked."""
    algorithm = example(given)
    if protection.secure_aggregation and (why := why_no_masks(algorithm)):
        raise InputError(f"protection.secure_aggregation = true: {type(algorithm).__name__} {why}")
    if protection.privacy is not None and (why := why_not_private(algorithm, d)):
        raise InputError(f"protection.privacy: {type(algorithm).__name__} {why}")


def why_no_masks(algorithm: Algorithm) -> str:
    """The rest of a sentence that begins with its name; empty: sums are all that the coordinator needs."""
    if isinstance(algorithm, Graph):  # messages are sealed for neighbours, and the model is a mean
        return ""
    return _why_dense(algorithm, "masks fill every number")


def why_not_private(algorithm: Algorithm, d: int) -> str:
    """The same of clipping and noise."""
    if isinstance(algorithm, Graph):
        return "has no server, and noise in what clients average with each other would stay in their states"
    if why := _why_dense(algorithm, "noise fills every number"):
        return why
    if algorithm.sends().numbers_up:
        return "sends a single number beside its vectors, which noise of their size would drown"
    if _keeps_a_state(algorithm, d):
        return (
            "has clients that keep a state which must agree with what the server received of them: clipping and noise "
            "would part the two for good; those of fedavg, fedprox, feddualavg and others keep none"
        )
    return ""


def _why_dense(algorithm: Star[Any, Any], because: str) -> str:
    squeezed = "up" in algorithm.sends().compressed
    if squeezed and not all(isinstance(c, Identity) for c in compressors(algorithm)):
        return f"compresses what clients send, and {because}: nothing would be saved; take the compressor 'identity'"
    return ""


def _keeps_a_state(algorithm: Star[Any, Any], d: int) -> bool:
    """Its clients keep something from round to round."""
    own, _ = algorithm.init(torch.zeros(d, dtype=torch.float64), NoRows(0, range(1), 0), Zero())
    return bool(flatten(own, "own"))
