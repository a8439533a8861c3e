"""Conversion between a module's trained parameters and one vector."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by name, on the CPU."""
    return {name: p.detach().cpu() for name, p in module.named_parameters() if p.requires_grad}


def flat(parts: Mapping[str, Tensor]) -> Tensor:
    """The concatenated parameters, (d,)."""
    return torch.cat([x.reshape(-1) for x in parts.values()])


def named(x: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `flat`: x in parts with the names and shapes of `like`."""
    parts = torch.split(x, [part.numel() for part in like.values()])
    return {name: part.view_as(form).clone() for (name, form), part in zip(like.items(), parts, strict=True)}


def as_bytes(x: Tensor) -> bytes:
    """The raw bytes of the numbers."""
    return x.cpu().contiguous().numpy().tobytes()


def from_bytes(data: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype)
