"""A graph step of many clients, a cacheful at a time and over the cores.

The equations of a step are written for all clients at once, with `mix` as an ordinary call in their middle. Here the
step runs block by block: each block goes on until it calls `mix`, leaves its message there and waits while the others
catch up, and continues with its mixed rows. Temporaries are then as large as a block, not as the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from threading import Lock

from greenlet import getcurrent, greenlet
from torch import Tensor

from proxfed.threads import hands, shares, side_by_side
from proxfed.types import Message, Mix, Packed

Step = Callable[[Mix], None]


def in_blocks(steps: Sequence[Step], sizes: Sequence[int], mix: Mix) -> None:
    """Steps of blocks of `sizes` clients that meet at their calls of `mix`; all of them call it equally often."""
    meeting = _Meeting(sizes)
    gangs = [_Gang([(k, steps[k]) for k in share], meeting) for share in shares(range(len(steps)), hands())]
    side_by_side([gang.begin for gang in gangs])
    while meeting.arrived:
        mixed = mix(meeting.take())
        side_by_side([partial(gang.go_on, mixed) for gang in gangs])
        del mixed


class _Meeting:
    """Where blocks leave their messages: the rows of all, in the order of the blocks."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.rows = [slice(a, b) for a, b in pairwise(accumulate(sizes, initial=0))]
        self.arrived: dict[int, tuple[int, int] | None] = {}
        self._whole: Tensor | None = None
        self._lock = Lock()

    def leave(self, k: int, message: Message) -> None:
        part = message.dense if isinstance(message, Packed) else message
        with self._lock:
            if self._whole is None:
                self._whole = part.new_empty(self.rows[-1].stop, part.shape[1])
        self._whole[self.rows[k]] = part
        self.arrived[k] = (message.nbytes, message.best) if isinstance(message, Packed) else None

    def take(self) -> Message:
        """What all have left, as one message; the next meeting begins."""
        whole, cost = self._whole, [c for c in self.arrived.values() if c is not None]
        assert whole is not None
        assert len(self.arrived) == len(self.rows)
        self._whole, self.arrived = None, {}
        return Packed({}, whole, *map(sum, zip(*cost, strict=True))) if cost else whole


class _Gang:
    """The blocks of one hand of the crew. Fibres belong to the thread that made them, so each gang keeps its hand."""

    def __init__(self, steps: Sequence[tuple[int, Step]], meeting: _Meeting) -> None:
        self.steps, self.meeting = steps, meeting
        self.fibres: list[greenlet] = []

    def begin(self) -> None:
        self.fibres = [greenlet(partial(step, self._mix(k, getcurrent()))) for k, step in self.steps]
        for fibre in self.fibres:
            fibre.switch()

    def go_on(self, mixed: Tensor) -> None:
        for fibre in self.fibres:
            fibre.switch(mixed)

    def _mix(self, k: int, hub: greenlet) -> Mix:
        """`mix` for block k."""

        def meet(message: Message) -> Tensor:
            self.meeting.leave(k, message)
            del message  # the memory of a temporary is free while its block waits
            return hub.switch()[self.meeting.rows[k]]

        return meet
