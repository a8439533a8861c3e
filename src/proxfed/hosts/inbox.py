"""Messages of neighbours, which may arrive before they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Condition
from typing import NamedTuple

from proxfed.errors import RunError

MOST = 64
"""Messages of one sender that may wait here: a peer is at most a round or two ahead of its neighbours."""


class Place(NamedTuple):
    """Where a message belongs."""

    walk: str
    """The digest of its walk."""
    round: int
    step: int


class Inbox:
    """For one receiving thread; any thread may put messages in."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, Place], bytes] = {}
        self._arrived = Condition()

    def begin(self, walk: str) -> None:
        """Drop messages of other walks."""
        with self._arrived:
            self._held = {key: data for key, data in self._held.items() if key[1].walk == walk}

    def put(self, sender: str, place: Place, data: bytes) -> None:
        with self._arrived:
            if sum(who == sender for who, _ in self._held) >= MOST:
                raise RunError(f"{sender} sent {MOST} messages that nobody has asked for yet")
            self._held[sender, place] = data
            self._arrived.notify_all()

    def take(self, senders: Sequence[str], place: Place, timeout: float) -> dict[str, bytes]:
        """The messages of all these senders, once they have arrived."""
        wanted = [(sender, place) for sender in senders]
        with self._arrived:
            if not self._arrived.wait_for(lambda: all(key in self._held for key in wanted), timeout):
                missing = ", ".join(who for who, _ in wanted if (who, place) not in self._held)
                raise RunError(f"round {place.round}: nothing came from {missing} in {timeout:g} seconds")
            return {key[0]: self._held.pop(key) for key in wanted}
