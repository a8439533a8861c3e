"""Limits on the number of samples: fixed random subsets, which do not depend on the run's seed and are nested."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from proxfed.data.federated import Dataset, Federated
from proxfed.data.on_demand import OnDemand
from proxfed.errors import InputError, require, whole
from proxfed.keyed_random import generator

LIMITS = {
    "limit": "Train with a fixed random subset of this many samples; None: with all.",
    "test_limit": "Test with a fixed random subset of this many samples; None: with all.",
}
"""Keys allowed in the table of every dataset."""


def limited(data: Dataset | Federated, limit: int | None = None, test_limit: int | None = None) -> Dataset | Federated:
    """The data with at most these numbers of samples; None: all."""
    asked = next((f"{key} = {value!r}" for key, value in (("limit", limit), ("test_limit", test_limit)) if value), "")
    here = not asked or not isinstance(data, OnDemand)
    require(here, f"{asked}: the samples of {data.name} are read on demand, all of a client's or none")
    if limit is not None:
        kept = _subset(data, "limit", limit, len(data.labels), "training samples")
        if isinstance(data, Federated):
            holders = np.unique(np.repeat(np.arange(len(data)), data.sizes)[kept])
            enough = len(holders) == len(data)
            require(enough, f"limit = {limit} is too few: {data.name} would have clients without samples")
            data = data.keep(kept)
        else:
            groups, weights = (None if v is None else v[kept] for v in (data.groups, data.sample_weights))
            fewer = {"features": data.features[kept], "labels": data.labels[kept]}
            data = replace(data, **fewer, groups=groups, sample_weights=weights)
    if test_limit is not None:
        if data.test is None:
            raise InputError(f"test_limit = {test_limit!r}: {data.name} has no test samples")
        features, labels = data.test
        kept = _subset(data, "test_limit", test_limit, len(labels), "test samples")
        if isinstance(data, Federated):
            owners = None if data.test_clients is None else data.test_clients[kept]
            data = replace(data, test=(features[kept], labels[kept]), test_clients=owners)
        else:
            data = replace(data, test_features=features[kept], test_labels=labels[kept])
    return data


def _subset(data: Dataset | Federated, key: str, limit: int, available: int, what: str) -> np.ndarray:
    if data.remark and whole(limit):  # the data are a sample themselves: allow a limit above their size
        limit = min(limit, available)
    require(
        whole(limit) and 1 <= limit <= available,
        f"{key} = {limit!r} must be a whole number from 1 to {available}: {data.name} has {available} {what}",
    )
    return np.sort(generator(0, key).permutation(available)[:limit])
