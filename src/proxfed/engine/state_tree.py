"""States are NamedTuples (or tuples) of tensors, nested as the algorithm likes. Rows in and out, names in and out."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from proxfed.keyed_random import Ids


def _rebuild(like: Any, parts: list[Any]) -> Any:
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def take(state: Any, rows: Ids | slice) -> Any:
    """The state of some clients: rows of every tensor."""
    if isinstance(state, Tensor):
        return state[rows].data  # with a version of its own: other threads write other rows meanwhile
    return _rebuild(state, [take(part, rows) for part in state])


def put(state: Any, rows: Ids | slice, new: Any) -> None:
    """Write the new state of some clients into the network's own copy, in place."""
    if isinstance(state, Tensor):
        state[rows] = new
    else:
        for part, new_part in zip(state, new, strict=True):
            put(part, rows, new_part)


def room(part: Any, n: int) -> Any:
    """Space for the state of n clients, of which `part` is the state of some."""
    if isinstance(part, Tensor):
        return part.new_empty(n, *part.shape[1:])
    return _rebuild(part, [room(p, n) for p in part])


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
