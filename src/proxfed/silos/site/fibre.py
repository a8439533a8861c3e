"""A computation that pauses when it needs other sites, and resumes when they have answered.

The equations of a graph step call `mix` in their middle, and a model calls `mean`. At a holder such a call ends an
answer, and its result arrives with the next question. Meanwhile the computation waits in a greenlet. If the process
dies, it is replayed from its beginning with the results so far, which is exact because all randomness is keyed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet


class Stop(NamedTuple):
    """The point at which a computation paused or ended."""

    done: bool
    value: Any
    """Its result, or the rows to mix."""


class Fibre:
    """work(stop), where stop(message) returns the next argument of `go`."""

    def __init__(self, work: Callable[[Callable[[Any], Any]], Any]) -> None:
        self._call = greenlet(lambda: work(self._stop))
        self._thread = get_ident()

    def _stop(self, message: Any) -> Any:
        return self._call.parent.switch(message)

    @property
    def here(self) -> bool:
        """Whether it can resume here: greenlets belong to the thread that made them."""
        return self._thread == get_ident() and not self._call.dead

    def go(self, given: Any = None) -> Stop:
        """Resume until the next stop, or the end."""
        self._call.parent = getcurrent()
        value = self._call.switch(given) if self._call else self._call.switch()
        return Stop(self._call.dead, value)


def replay(work: Callable[[Callable[[Any], Any]], Any], given: Sequence[Any]) -> tuple[Fibre, list[Stop]]:
    """Replay from the beginning with the given results; returns the stops, too."""
    fibre = Fibre(work)
    stops = [fibre.go()]
    for value in given:
        stops.append(fibre.go(value))
    return fibre, stops
