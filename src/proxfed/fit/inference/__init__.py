"""Inference for models of several organisations: standard errors, intervals, tests, all from sums over rows."""

from __future__ import annotations

from proxfed.fit.inference.infer import debiased_inference, glm, infer
from proxfed.fit.inference.result import Forest, Inference

__all__ = ["Forest", "Inference", "debiased_inference", "glm", "infer"]
