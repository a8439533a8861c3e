"""Samples as inputs of a network. Images are stored as bytes: a quarter of the memory, and as fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from proxfed import keyed_random
from proxfed.keyed_random import Key

BORDER = 4
"""Zero padding of an image before it is cropped, in pixels."""

PIECE = 1024
"""Samples processed at a time to compute the statistics of all."""


class Affine(NamedTuple):
    """v -> scale * v + shift; scale and shift are numbers or (channels, 1, 1)."""

    scale: Tensor | float = 1.0
    shift: Tensor | float = 0.0


def unit(features: np.ndarray) -> Affine:
    """Scale bytes to 0 .. 1; leave other numbers unchanged."""
    return Affine(1 / 255 if features.dtype == np.uint8 else 1.0)


def standard(features: np.ndarray) -> Affine:
    """Standardise each channel (of rows: each feature) to mean 0 and variance 1; constant channels become 0."""
    pieces = range(0, len(features), PIECE)
    axes = (0, *range(2, features.ndim))
    count = features.size / features.shape[1]
    mean = sum(features[k : k + PIECE].sum(axes, dtype=np.float64) for k in pieces) / count
    centre = mean.reshape(-1, *(1,) * (features.ndim - 2))
    var = sum(np.square(features[k : k + PIECE] - centre).sum(axes) for k in pieces) / count
    scale = np.divide(1, np.sqrt(var), out=np.zeros_like(var), where=var > 0).reshape(centre.shape)
    return Affine(torch.from_numpy(scale), torch.from_numpy(-centre * scale))


def half(features: np.ndarray) -> Affine:
    """Scale bytes to -1 .. 1 by (v/255 - 0.5)/0.5, as in many torchvision examples; other numbers v become 2 v - 1."""
    return Affine(2 * unit(features).scale, -1.0)


NORMALISATIONS = {"unit": unit, "half": half, "standard": standard}


@dataclass(frozen=True, eq=False)
class Inputs:
    """Samples (N, ...) as stored, and their conversion to floats; tokens stay whole numbers."""

    stored: Tensor
    affine: Affine
    dtype: torch.dtype
    channels_last: bool

    @classmethod
    def of(
        cls, features: np.ndarray, affine: Affine, dtype: torch.dtype, device: str, channels_last: bool = False
    ) -> Inputs:
        stored = torch.from_numpy(np.require(features, requirements=["C", "W"]))
        if stored.dtype != torch.uint8 or not dtype.is_floating_point:
            stored = stored.to(dtype)
        scale, shift = (v.to(device, dtype) if isinstance(v, Tensor) else v for v in affine)
        return cls(stored.to(device), Affine(scale, shift), dtype, channels_last and features.ndim == 4)

    def __len__(self) -> int:
        return len(self.stored)

    def __call__(self, rows: Tensor, key: Key | None = None) -> Tensor:
        """The samples of these rows, (k, ...); given keys of g clients, cropped and mirrored, k/g images per client."""
        samples = self.stored.index_select(0, rows)
        if key is not None:
            samples = crop_flip(samples, key)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        # In-place arithmetic is safe even if `to` does not copy, because index_select has copied.
        samples = samples.to(self.dtype, memory_format=layout)
        if isinstance(self.affine.scale, Tensor) or self.affine.scale != 1:
            samples.mul_(self.affine.scale)
        if isinstance(self.affine.shift, Tensor) or self.affine.shift != 0:
            samples.add_(self.affine.shift)
        return samples


def crop_flip(images: Tensor, key: Key) -> Tensor:
    """Pad each image with zeros, crop it at random to its old size, and mirror it with probability 1/2.

    images: (g * m, C, H, W), m images for each of g clients; key: (g,).
    """
    k, _, H, W = images.shape
    m = k // len(key)
    down, right = (keyed_random.integers(keyed_random.fold(key, j), m, 2 * BORDER + 1).reshape(-1, 1) for j in (0, 1))
    mirror = keyed_random.integers(keyed_random.fold(key, 2), m, 2).reshape(-1, 1)
    columns = np.where(mirror == 1, np.arange(W)[::-1], np.arange(W)) + right
    y = torch.from_numpy(np.arange(H) + down).to(images.device)[:, :, None]
    x = torch.from_numpy(columns).to(images.device)[:, None, :]
    n = torch.arange(k, device=images.device)[:, None, None]
    framed = pad(images, (BORDER,) * 4).permute(0, 2, 3, 1)
    return framed[n, y, x].permute(0, 3, 1, 2)
