"""What every problem over clients' data has: how many clients with which weights, and how long the model is."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from proxfed.data.federated import Federated
from proxfed.types import Block


class Shapes:
    """Of a problem with these fields."""

    data: Federated
    weighting: str
    dtype: torch.dtype
    device: str

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
