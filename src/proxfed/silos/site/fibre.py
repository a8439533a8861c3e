"""A computation that stops wherever it needs others, and goes on when they have answered.

The equations of a graph step call `mix` in their middle, and a model calls `mean`. At a holder such a call ends an
answer, and its result comes with the next question. The computation sits in a greenlet meanwhile. If the process dies,
it runs again from its beginning with the results so far, which is exact because everything random is keyed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet


class Stop(NamedTuple):
    """Where a computation is."""

    done: bool
    value: Any
    """Its result, or what it wants to have mixed."""


class Fibre:
    """work(stop), where stop(message) returns what `go` is given next."""

    def __init__(self, work: Callable[[Callable[[Any], Any]], Any]) -> None:
        self._call = greenlet(lambda: work(self._stop))
        self._thread = get_ident()

    def _stop(self, message: Any) -> Any:
        return self._call.parent.switch(message)

    @property
    def here(self) -> bool:
        """It can go on: greenlets belong to the thread that made them."""
        return self._thread == get_ident() and not self._call.dead

    def go(self, given: Any = None) -> Stop:
        """To the next stop, or to the end."""
        self._call.parent = getcurrent()
        value = self._call.switch(given) if self._call else self._call.switch()
        return Stop(self._call.dead, value)


def replay(work: Callable[[Callable[[Any], Any]], Any], given: Sequence[Any]) -> tuple[Fibre, list[Stop]]:
    """From the beginning, with what was given so far; where it stopped on the way."""
    fibre = Fibre(work)
    stops = [fibre.go()]
    for value in given:
        stops.append(fibre.go(value))
    return fibre, stops
