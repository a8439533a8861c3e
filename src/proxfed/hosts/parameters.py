"""The parameters of a module that are trained, as one vector and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """By name, on the CPU."""
    return {name: p.detach().cpu() for name, p in module.named_parameters() if p.requires_grad}


def flat(parts: Mapping[str, Tensor]) -> Tensor:
    """One after the other, (d,)."""
    return torch.cat([x.reshape(-1) for x in parts.values()])


def named(x: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Its inverse: x in parts that have the names and shapes of `like`."""
    parts = torch.split(x, [part.numel() for part in like.values()])
    return {name: part.view_as(form).clone() for (name, form), part in zip(like.items(), parts, strict=True)}


def as_bytes(x: Tensor) -> bytes:
    """The numbers, and nothing else."""
    return x.cpu().contiguous().numpy().tobytes()


def from_bytes(data: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype)
