"""What every problem over clients' data has: how many clients with which weights, and how long the model is."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from proxfed.data.federated import Federated
from proxfed.errors import InputError, at_least_one, one_of
from proxfed.types import Block


class Shapes:
    """Of a problem with these fields."""

    data: Federated
    batch: int | None
    weighting: str
    dtype: torch.dtype
    device: str

    def check(self) -> None:
        """Refuse values of these fields that mean nothing."""
        one_of(self, "weighting", ("uniform", "size"))
        if self.batch is not None:
            at_least_one(self, "batch")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as e:  # torch's ways of saying that a name is wrong or a driver missing
            raise InputError(f"device = {self.device!r} is not there: {str(e).splitlines()[0]}") from e

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The parts of the model, one after the other."""
        raise NotImplementedError

    @cached_property
    def d(self) -> int:
        return self.blocks[-1].stop

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.asarray(self.data.sizes, np.int64)

    @cached_property
    def offsets(self) -> np.ndarray:
        return self.data.offsets

    @property
    def n(self) -> int:
        return len(self.sizes)

    @cached_property
    def weights(self) -> Tensor:
        """p_i, which sum to 1."""
        p = np.full(self.n, 1 / self.n) if self.weighting == "uniform" else self.sizes / self.sizes.sum()
        return torch.as_tensor(p, dtype=self.dtype, device=self.device)
