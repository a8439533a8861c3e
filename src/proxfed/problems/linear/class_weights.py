"""Weights of classes as weights of samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from proxfed.data.federated import Federated
from proxfed.errors import InputError, finite, require


def with_classes(data: Federated, class_weights: str | Mapping[Any, float]) -> np.ndarray:
    """(N,): each sample's own weight times that of its class.

    'balanced' gives every class the same sum of weights over all clients: (sum of all) / (classes * sum of the class);
    each client reveals one number per class. A mapping has labels and weights; other labels have weight 1.
    """
    labels = np.asarray(data.labels)
    signs = data.classes is None and bool(np.isin(labels, (-1, 1)).all())
    asked = f"class_weights = {class_weights!r}"
    require(data.classes is not None or signs, f"{asked}: labels of {data.name} are numbers, not classes")
    present, which = np.unique(labels, return_inverse=True)
    own = np.ones(len(labels)) if data.sample_weights is None else data.sample_weights
    if class_weights == "balanced":
        sums = np.bincount(which, own)
        require(bool((sums > 0).all()), f"{asked}: all samples of a class have weight 0")
        return own * (own.sum() / (len(present) * sums))[which]
    if not isinstance(class_weights, Mapping):
        raise InputError(f"{asked} must be 'balanced', or a number for each label, such as {{'1': 5.0}}")
    allowed = [-1, 1] if signs else list(range(data.classes or 0))
    factors = np.ones(len(present))
    for label, weight in class_weights.items():
        number = _number(label)
        require(number in allowed, f"{asked}: {data.name} has no label {label!r}, only {', '.join(map(str, allowed))}")
        require(finite(weight) and weight >= 0, f"{asked}: {weight!r} must be a finite number >= 0")
        factors[present == number] = weight
    return own * factors[which]


def _number(label: Any) -> float | None:
    try:
        return float(label)
    except (TypeError, ValueError):
        return None
