"""Validation data: a fraction of every client's training rows, held out while settings are chosen.

The test data are not used, so that later measurements on them are not biased by the choice.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from proxfed.data.federated import Federated
from proxfed.data.on_demand import OnDemand
from proxfed.errors import InputError, require
from proxfed.keyed_random import generator
from proxfed.problems.empirical_risk import EmpiricalRisk
from proxfed.types import Problem


def chosen_rows(data: Federated, part: float, seed: int = 0) -> np.ndarray:
    """(N,): the training rows to hold out, a fixed random fraction `part` of each client's; each keeps one row."""
    here = not isinstance(data, OnDemand)
    require(here, f"validation = {part:g}: the samples of {data.name} are read on demand; give test data")
    held = np.zeros(len(data.labels), bool)
    for i, (start, stop) in enumerate(zip(data.offsets[:-1], data.offsets[1:], strict=True)):
        count = min(round(part * (stop - start)), stop - start - 1)
        held[start + generator(seed, "validation", i).permutation(stop - start)[:count]] = True
    require(bool(held.any()), f"validation = {part:g}: no client of {data.name} has enough rows to hold some out")
    return held


def hold_out(data: Federated, part: float, seed: int = 0) -> Federated:
    """The data with the held-out rows as test data, and the others for training."""
    held = chosen_rows(data, part, seed)
    test = (data.features[held], data.labels[held])
    return replace(data.keep(np.flatnonzero(~held)), test=test, test_clients=None)


def on_validation(problem: Problem, data: Federated | None) -> Problem:
    """The same problem over these data; refused if the problem may use other data."""
    f = problem.f
    if not isinstance(f, EmpiricalRisk) or data is None:
        raise InputError(f"rows of {f} cannot be held out: give a measure on training data, such as 'objective'")
    return replace(problem, f=f.over_rows(data))
