"""How an organisation divides its rows into folds: keyed, with the same share of every class in each."""

from __future__ import annotations

import numpy as np

from proxfed import keyed_random
from proxfed.problems.losses import Logistic, Loss
from proxfed.tables.folds import together


def strata_of(labels: np.ndarray, loss: Loss, classes: int | None) -> np.ndarray:
    """(m,) classes, or whether an event was seen, which every fold has its share of; of numbers, one for all."""
    if not loss.separate:
        return np.signbit(np.asarray(labels, np.float64)).astype(np.int64)
    known = classes is not None or isinstance(loss, Logistic)
    return np.asarray(labels).astype(np.int64) if known else np.zeros(len(labels), np.int64)


def drawn_folds(
    strata: np.ndarray, count: int, seed: int, organisation: int, units: np.ndarray | None = None
) -> np.ndarray:
    """(m,): the fold of each row of an organisation, by its number. Rows of a stratum, in random order, go round the
    folds, from a random one on; rows of a unit go together."""
    if units is not None:
        return together(units, strata, lambda names, highest: drawn_folds(highest, count, seed, organisation))
    words = keyed_random.words(
        keyed_random.keys(seed, "folds", range(organisation, organisation + 1), 0), len(strata) + 1
    )
    which = np.empty(len(strata), np.int64)
    which[np.lexsort((words[0][1:], strata))] = (np.arange(len(strata)) + int(words[0][0] % count)) % count
    return which
