"""Inference for models of several organisations: standard errors, intervals, tests, all from sums over rows."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxfed.fit.inference.infer import debiased_inference, glm, infer
    from proxfed.fit.inference.result import Forest, Inference

_HOME = {
    "Forest": "proxfed.fit.inference.result",
    "Inference": "proxfed.fit.inference.result",
    "debiased_inference": "proxfed.fit.inference.infer",
    "glm": "proxfed.fit.inference.infer",
    "infer": "proxfed.fit.inference.infer",
}

__all__ = ["Forest", "Inference", "debiased_inference", "glm", "infer"]


def __getattr__(name: str) -> Any:
    """Imported when it is asked for: predictions need nothing of it, and no torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'proxfed.fit.inference' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
