"""The states of a server's clients: a row each, from the round on in which they first take part.

Who has not taken part yet is where `init` puts it; that is computed when it is asked for, and not kept. So memory and
checkpoints follow the clients that were met, not those there are. Where all take part in every round, all are met at
the start, in order, and a block of them is a slice, taken without a copy.

Rows that outgrow `PROXFED_STATE_GB` in memory move to a file that is mapped into it (reserve.py).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from math import inf, prod
from typing import Any, Self

import numpy as np

from proxfed.engine.oracle import Work
from proxfed.engine.reserve import reserved
from proxfed.engine.state_tree import each, leaves, put, room, take, writable
from proxfed.errors import require
from proxfed.keyed_random import Ids

Begin = Callable[[Ids, Work], Any]
"""(clients, who counts the work) -> their states before they first take part."""

MET = "met"
"""The name of the ids, (k,), beside rows of just these clients."""

LIMIT = "PROXFED_STATE_GB"

PIECE = 1 << 26
"""Bytes of clients' states that are worked on at a time."""


def memory_limit() -> float:
    """Bytes of one run's clients' states that may stay in memory; without the setting, any number."""
    text = os.environ.get(LIMIT, "")
    if not text:
        return inf
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    require(value >= 0, f"{LIMIT} = {text!r} must be a number >= 0, of GB of clients' states that are kept in memory")
    return value * 1e9


class ClientRows:
    """The states of the clients `here`, of whom `form` is the state of some."""

    def __init__(self, here: range, form: Any, begin: Begin, everyone: bool) -> None:
        self.here, self.begin, self.everyone = here, begin, everyone
        self.form = room(form, 0)
        self.keeps = bool(leaves(form))
        """Clients keep something from round to round; who keeps nothing needs no row."""
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
        """Of the state of one client."""
        return sum(x.dtype.itemsize * prod(x.shape[1:]) for x in leaves(self.form))

    # ---- in a round --------------------------------------------------------------------------------------------

    def meet(self, ids: Ids) -> None:
        """Those of the clients that take part for the first time get a row. Not while others take or put."""
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
        """The states of these clients, met or not; the work of those that begin is counted."""
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
        """The new states of these clients, all of whom were met."""
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
        """Where clients stand if all do, in order: a slice, so no copy, if they stand together."""
        if isinstance(ids, range):
            return slice(ids.start - self.here.start, ids.stop - self.here.start)
        return self._places(ids)

    # ---- between rounds ----------------------------------------------------------------------------------------

    def all(self) -> Any:
        """The states of all clients that live here, also of those who have not taken part."""
        return self._rows if self.everyone else self.take(self.here, Work())

    def changed(self) -> np.ndarray:
        """The clients, ascending, whose states were put since they were last settled."""
        return np.sort(self._who[: self.met][self._changed[: self.met]])

    def settle(self) -> None:
        """What has changed so far is kept elsewhere."""
        self._changed[: self.met] = False

    def load(self, ids: Ids, states: Any) -> None:
        """Go on from the states of these clients, where nobody else has taken part."""
        self.meet(ids)
        self.put(ids, states)
        if not self.everyone:
            self.settle()

    def copy(self, change: Callable[[Any], Any] = lambda own: own) -> Self:
        """Another one, with what becomes of the states of all clients, also of those who have not taken part."""
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
