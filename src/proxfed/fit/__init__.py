"""Models of a consortium: fitted by federated rounds without a step size, chosen by cross-validation, judged."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxfed.fit.consortium import Fitted, fit
    from proxfed.fit.model_file import Model, read_model

_HOME = {
    "Fitted": "proxfed.fit.consortium",
    "Model": "proxfed.fit.model_file",
    "fit": "proxfed.fit.consortium",
    "read_model": "proxfed.fit.model_file",
}

__all__ = ["Fitted", "Model", "fit", "read_model"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'proxfed.fit' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
