"""The coordinator's side of secure aggregation: it hears masked messages, and reads their sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.messages import rebuild
from proxfed.errors import RunError
from proxfed.silos.coordinator import Collect
from proxfed.silos.masks import reveal
from proxfed.silos.message import Letter
from proxfed.types import Message

if TYPE_CHECKING:
    from proxfed.silos.coordinator import Coordinator


class Sums(Collect):
    """Of messages in fixed point with so many bits."""

    whole = True

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def mean(self, coordinator: Coordinator, answers: Mapping[str, Letter], ids: Mapping[str, list[int]]) -> Message:
        c = coordinator
        form, rows = c.stacked({site: c.message(site, answers[site], 1) for site in ids})
        share = sum(c.job.weights[i] for own in ids.values() for i in own)
        return rebuild(form, iter([(add_up(x, self.bits) / share).to(c.problem.weights) for x in rows]))


def add_up(rows: Tensor, bits: int) -> Tensor:
    """(sites, k) masked numbers, of all sites of a cohort -> (k,) their sum, in double precision."""
    if rows.dtype != torch.int64:
        raise RunError(f"masked messages are whole numbers, not {rows.dtype}")
    return torch.from_numpy(reveal(list(rows.numpy().view(np.uint64)), bits))


