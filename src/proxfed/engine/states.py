"""The clients' states between rounds: reading and writing rows, naming tensors, and the rows of a server's clients.

A state is a NamedTuple (or a tuple) of tensors, nested as the algorithm likes, with a row for each client.

A client that has not yet taken part in a star's rounds has the state of `init`, which is computed on demand and not
stored. So memory and checkpoints grow with the clients met so far, not with all clients. If all take part in every
round, all are met at the start, in order, and a block of them is a slice, taken without a copy.

If the rows exceed `PROXFED_STATE_GB` of memory, they move to a memory-mapped file (reserve.py).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from math import inf, prod
from typing import Any, Self

import numpy as np
from torch import Tensor

from proxfed.engine.halves import Work
from proxfed.engine.reserve import reserved
from proxfed.errors import require
from proxfed.keyed_random import Ids

Begin = Callable[[Ids, Work], Any]
"""(clients, counter of their work) -> their states before they first take part."""

MET = "met"
"""The name under which a dump has the ids, (k,), of the clients that its rows belong to."""

LIMIT = "PROXFED_STATE_GB"

PIECE = 1 << 26
"""Bytes of clients' states that are worked on at a time."""


# ---- one state ------------------------------------------------------------------------------------------------------


def _rebuild(like: Any, parts: list[Any]) -> Any:
    return tuple(parts) if type(like) is tuple else type(like)(*parts)


def _names(state: Any) -> tuple[str, ...]:
    return tuple(map(str, range(len(state)))) if type(state) is tuple else state._fields


def leaves(state: Any) -> list[Tensor]:
    """The tensors of a state, from left to right."""
    return [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in leaves(part)]


def each(change: Callable[[Tensor], Tensor], state: Any) -> Any:
    """A state of the same form with `change` applied to each tensor."""
    return change(state) if isinstance(state, Tensor) else _rebuild(state, [each(change, part) for part in state])


def take(state: Any, rows: Ids | slice) -> Any:
    """The states of some clients: their rows of every tensor."""
    return each(lambda x: x[rows].data, state)  # its own version counter: other threads write other rows meanwhile


def put(state: Any, rows: Ids | slice, new: Any) -> None:
    """Write the new state of some clients into the network's own copy, in place.

    The result of `take` may be a view of that copy, and parts of the new state may be views of it in turn. A view that
    stays in its place is not written; one that moves is copied before its old place is overwritten.
    """
    slots = leaves(state)
    here = {_memory(slot) for slot in slots}
    moved = [(slot, part) for slot, part in zip(slots, leaves(new), strict=True) if not _stays(slot, rows, part)]
    values = [part.clone() if _memory(part) in here else part for _, part in moved]
    for (slot, _), value in zip(moved, values, strict=True):
        slot[rows] = value.to(slot.device)


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _stays(slot: Tensor, rows: Ids | slice, part: Tensor) -> bool:
    """Whether the part is a view of exactly these rows of the slot; only slices are taken without a copy."""
    if not isinstance(rows, slice):
        return False
    own = slot[rows]
    return (part.data_ptr(), part.shape, part.stride()) == (own.data_ptr(), own.shape, own.stride())


def writable(state: Any) -> Any:
    """The state as `put` needs it: no two tensors, and no two rows, share memory."""
    slots = leaves(state)
    apart = len({_memory(x) for x in slots}) == len(slots) and all(x.is_contiguous() for x in slots)
    return state if apart else restore(state, flatten(state))


def room(part: Any, n: int) -> Any:
    """Space for the states of n clients; `part` is the state of some of them."""
    return each(lambda x: x.new_empty(n, *x.shape[1:]), part)


def flatten(state: Any, name: str = "state") -> dict[str, Tensor]:
    """Every tensor of a state under its path, such as 'state.x'."""
    if isinstance(state, Tensor):
        return {name: state}
    parts = zip(_names(state), state, strict=True)
    return {k: v for n, part in parts for k, v in flatten(part, f"{name}.{n}").items()}


def named(like: Any, tensors: dict[str, Tensor], name: str = "state") -> Any:
    """The inverse of `flatten`, for a state of the same form as `like`; the tensors are not copied."""
    if isinstance(like, Tensor):
        return tensors[name]
    parts = zip(_names(like), like, strict=True)
    return _rebuild(like, [named(part, tensors, f"{name}.{n}") for n, part in parts])


def restore(like: Any, tensors: dict[str, Tensor], name: str = "state") -> Any:
    """The same with copies on the devices of `like`."""
    if isinstance(like, Tensor):
        # A copy in torch's own, aligned memory: arithmetic on a view into a file's buffer may round differently.
        return tensors[name].to(like.device, copy=True)
    parts = zip(_names(like), like, strict=True)
    return _rebuild(like, [restore(part, tensors, f"{name}.{n}") for n, part in parts])


# ---- of a server's clients ------------------------------------------------------------------------------------------


def memory_limit() -> float:
    """How many bytes of one run's clients' states may stay in memory; unlimited without the setting."""
    text = os.environ.get(LIMIT, "")
    if not text:
        return inf
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    require(value >= 0, f"{LIMIT} = {text!r} must be a number >= 0: the GB of clients' states to keep in memory")
    return value * 1e9


class ClientRows:
    """The states of the clients `here`; `form` is the state of some of them."""

    def __init__(self, here: range, form: Any, begin: Begin, everyone: bool) -> None:
        self.here, self.begin, self.everyone = here, begin, everyone
        self.form = room(form, 0)
        self.keeps = bool(leaves(form))
        """Whether clients keep a state from round to round; without one no rows are stored."""
        self.met = 0
        """How many clients have a row."""
        self.on_disk = False
        if everyone:
            self._rows, self.met = room(form, len(here)), len(here)
            return
        count = len(here) if self.keeps else 0
        self._rows = self._reserve()
        self._who = np.empty(count, np.int64)  # the client of each row
        self._row = np.full(count, -1, np.int32)  # of each client
        self._written, self._changed = np.zeros((2, count), bool)  # by row: ever, and since `settle`

    def _reserve(self) -> Any:
        return each(lambda x: reserved((len(self.here), *x.shape[1:]), x.dtype, self.on_disk), self.form)

    @property
    def row_bytes(self) -> int:
        """Bytes of one client's state."""
        return sum(x.dtype.itemsize * prod(x.shape[1:]) for x in leaves(self.form))

    # ---- in a round --------------------------------------------------------------------------------------------

    def meet(self, ids: Ids) -> None:
        """Give a row to each client that takes part for the first time. Not safe during `take` or `put`."""
        if self.everyone or not self.keeps:
            return
        at = self._places(ids)
        new = at[self._row[at] < 0]
        last = self.met + len(new)
        self._who[self.met : last] = new + self.here.start
        self._row[new] = np.arange(self.met, last, dtype=np.int32)
        self.met = last
        if not self.on_disk and self.met * self.row_bytes > memory_limit():
            self._move_to_disk()

    def take(self, ids: Ids, work: Work) -> Any:
        """The states of these clients, met or not; the work of computing initial states is counted."""
        if not self.keeps:
            return self.form
        if self.everyone:
            return take(self._rows, self._dense(ids))
        row = self._row[self._places(ids)]
        known = (row >= 0) & self._written[row]
        if not known.any():
            return writable(self.begin(ids, work))
        out = take(self._rows, np.where(known, row, 0))
        if not known.all():
            put(out, np.flatnonzero(~known), self.begin(np.asarray(ids, np.int64)[~known], work))
        return each(lambda x: x.to(leaves(self.form)[0].device), out)

    def put(self, ids: Ids, new: Any) -> None:
        """Write the new states of these clients, all of which were met."""
        if not self.keeps:
            return
        if self.everyone:
            put(self._rows, self._dense(ids), new)
        else:
            row = self._row[self._places(ids)]
            put(self._rows, row, new)
            self._written[row] = self._changed[row] = True

    def _places(self, ids: Ids) -> np.ndarray:
        who = np.arange(ids.start, ids.stop) if isinstance(ids, range) else np.asarray(ids, np.int64)
        return who - self.here.start

    def _dense(self, ids: Ids) -> slice | np.ndarray:
        """The rows of these clients if all clients have one: a slice, which avoids a copy, if they are consecutive."""
        if isinstance(ids, range):
            return slice(ids.start - self.here.start, ids.stop - self.here.start)
        return self._places(ids)

    # ---- between rounds ----------------------------------------------------------------------------------------

    def all(self) -> Any:
        """The states of all clients of this process, including those that have not taken part."""
        return self._rows if self.everyone else self.take(self.here, Work())

    def changed(self) -> np.ndarray:
        """The clients, ascending, whose states were written since the last `settle`."""
        return np.sort(self._who[: self.met][self._changed[: self.met]])

    def settle(self) -> None:
        """Mark all changes so far as saved."""
        self._changed[: self.met] = False

    def load(self, ids: Ids, states: Any) -> None:
        """Continue from the states of these clients, the only ones that have taken part."""
        self.meet(ids)
        self.put(ids, states)
        if not self.everyone:
            self.settle()

    def copy(self, change: Callable[[Any], Any] = lambda own: own) -> Self:
        """A copy with `change` applied to the states of all clients, including those that have not taken part."""
        other, begin = copy.copy(self), self.begin
        other.begin = lambda ids, work: change(begin(ids, work))
        if self.everyone:
            other._rows = each(lambda x: x.clone(), change(self._rows))
            return other
        other._who, other._row = self._who.copy(), self._row.copy()
        other._written, other._changed = self._written.copy(), self._changed.copy()
        other._rows, device = other._reserve(), leaves(self.form)[0].device if self.keeps else None
        step = max(1, PIECE // max(1, self.row_bytes))
        for start in range(0, self.met, step):
            rows = slice(start, min(start + step, self.met))
            put(other._rows, rows, change(each(lambda x: x.to(device), take(self._rows, rows))))
        return other

    def _move_to_disk(self) -> None:
        before, self.on_disk = self._rows, True
        self._rows = self._reserve()
        for mine, theirs in zip(leaves(self._rows), leaves(before), strict=True):
            mine[: self.met] = theirs[: self.met]
