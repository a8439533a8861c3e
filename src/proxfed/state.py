"""States are NamedTuples (or tuples) of tensors, nested as the algorithm likes. Rows in and out, names in and out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxfed.draws import Ids


def _rebuild(like: Any, parts: list[Any]) -> Any:
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def take(state: Any, rows: Ids | slice) -> Any:
    """The state of some clients: rows of every tensor."""
    if isinstance(state, Tensor):
        return state[rows]
    return _rebuild(state, [take(part, rows) for part in state])


def put(state: Any, rows: Ids | slice, new: Any) -> None:
    """Write the new state of some clients into the network's own copy, in place."""
    if isinstance(state, Tensor):
        state[rows] = new
    else:
        for part, new_part in zip(state, new, strict=True):
            put(part, rows, new_part)


def own(state: Any) -> Any:
    """A copy whose rows can be written: clients' states often begin as views of one shared point."""
    return (
        state.clone(memory_format=torch.contiguous_format)
        if isinstance(state, Tensor)
        else _rebuild(state, [own(part) for part in state])
    )


def flatten(state: Any, name: str = "state") -> dict[str, Tensor]:
    """Every tensor of a state under its path, such as 'state.x'."""
    if isinstance(state, Tensor):
        return {name: state}
    names = getattr(state, "_fields", range(len(state)))
    return {k: v for n, part in zip(names, state, strict=True) for k, v in flatten(part, f"{name}.{n}").items()}


def restore(like: Any, tensors: dict[str, Tensor], name: str = "state") -> Any:
    """The inverse of `flatten`, for a state of the same form as `like`."""
    if isinstance(like, Tensor):
        # A copy in torch's own, aligned memory: arithmetic on a view into a file's buffer may round differently.
        return tensors[name].to(like.device, copy=True)
    names = getattr(like, "_fields", range(len(like)))
    return _rebuild(like, [restore(part, tensors, f"{name}.{n}") for n, part in zip(names, like, strict=True)])
