"""Scores of rows by the models of the folds that hold them out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from proxfed.fit.here import Here
from proxfed.fit.oracle import Part
from proxfed.fit.own_profile import FURTHEST
from proxfed.fit.own_rows import OwnRows, dense


def held_out_scores(here: Here, models: Tensor | Sequence[Tensor]) -> np.ndarray:
    """(N, outputs) of all rows, in their order; models (folds, d) have not seen those of their fold."""
    return np.concatenate([_of_one(here, k, own, models) for k, own in enumerate(here.own)])


def _of_one(here: Here, k: int, own: OwnRows, models: Tensor | Sequence[Tensor]) -> np.ndarray:
    q, p = own.outputs, own.width
    out = np.zeros((len(own.labels), q))
    alone = here.each[k] if here.own_intercepts else None
    fold = np.zeros(len(out), int) if own.fold is None else own.fold
    for f, x in enumerate(models):
        rows = np.flatnonzero(fold == f)
        if not len(rows):
            continue
        s = dense(own.features[rows]).numpy() @ x[: q * p].view(q, p).numpy().T
        if alone is not None:
            (a,) = alone.intercepts(x, Part(f)).values()
            s = s + float(np.clip(a, -FURTHEST, FURTHEST))
        elif own.intercept:
            s = s + x[q * p :].numpy()
        out[rows] = s if own.offset is None else s + own.offset[rows, None]
    return out
