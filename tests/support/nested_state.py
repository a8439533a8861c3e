"""A state with tensors at several depths, and an empty part."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Inner(NamedTuple):
    a: Tensor
    b: tuple


class Outer(NamedTuple):
    x: Tensor
    inner: Inner
