"""States are NamedTuples (or tuples) of tensors, nested as the algorithm likes. Rows in and out, names in and out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from proxfed.keyed_random import Ids


def _rebuild(like: Any, parts: list[Any]) -> Any:
    return tuple(parts) if type(like) is tuple else type(like)(*parts)


def _names(state: Any) -> tuple[str, ...]:
    return tuple(map(str, range(len(state)))) if type(state) is tuple else state._fields


def leaves(state: Any) -> list[Tensor]:
    """The tensors of a state, from left to right."""
    return [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in leaves(part)]


def each(change: Callable[[Tensor], Tensor], state: Any) -> Any:
    """A state of the same form, of what becomes of each tensor."""
    return change(state) if isinstance(state, Tensor) else _rebuild(state, [each(change, part) for part in state])


def take(state: Any, rows: Ids | slice) -> Any:
    """The state of some clients: rows of every tensor."""
    return each(lambda x: x[rows].data, state)  # with a version of its own: other threads write other rows meanwhile


def put(state: Any, rows: Ids | slice, new: Any) -> None:
    """Write the new state of some clients into the network's own copy, in place.

    What `take` gave may be a view of that copy, and parts of the new state may be views of it in turn. One that stays
    where it was need not be written; one that moves to another place is copied before its old one is overwritten.
    """
    slots = leaves(state)
    here = {_memory(slot) for slot in slots}
    moved = [(slot, part) for slot, part in zip(slots, leaves(new), strict=True) if not _stays(slot, rows, part)]
    values = [part.clone() if _memory(part) in here else part for _, part in moved]
    for (slot, _), value in zip(moved, values, strict=True):
        slot[rows] = value


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _stays(slot: Tensor, rows: Ids | slice, part: Tensor) -> bool:
    """The part is these rows of the slot themselves; only those of a slice are taken without a copy."""
    if not isinstance(rows, slice):
        return False
    own = slot[rows]
    return (part.data_ptr(), part.shape, part.stride()) == (own.data_ptr(), own.shape, own.stride())


def writable(state: Any) -> Any:
    """The state as `put` needs it: no two of its tensors, and no two rows of them, share memory."""
    slots = leaves(state)
    apart = len({_memory(x) for x in slots}) == len(slots) and all(x.is_contiguous() for x in slots)
    return state if apart else restore(state, flatten(state))


def room(part: Any, n: int) -> Any:
    """Space for the state of n clients, of which `part` is the state of some."""
    return each(lambda x: x.new_empty(n, *x.shape[1:]), part)


def flatten(state: Any, name: str = "state") -> dict[str, Tensor]:
    """Every tensor of a state under its path, such as 'state.x'."""
    if isinstance(state, Tensor):
        return {name: state}
    parts = zip(_names(state), state, strict=True)
    return {k: v for n, part in parts for k, v in flatten(part, f"{name}.{n}").items()}


def named(like: Any, tensors: dict[str, Tensor], name: str = "state") -> Any:
    """The inverse of `flatten`, for a state of the same form as `like`: of these very tensors."""
    if isinstance(like, Tensor):
        return tensors[name]
    parts = zip(_names(like), like, strict=True)
    return _rebuild(like, [named(part, tensors, f"{name}.{n}") for n, part in parts])


def restore(like: Any, tensors: dict[str, Tensor], name: str = "state") -> Any:
    """The same, of copies on the devices of `like`."""
    if isinstance(like, Tensor):
        # A copy in torch's own, aligned memory: arithmetic on a view into a file's buffer may round differently.
        return tensors[name].to(like.device, copy=True)
    parts = zip(_names(like), like, strict=True)
    return _rebuild(like, [restore(part, tensors, f"{name}.{n}") for n, part in parts])
