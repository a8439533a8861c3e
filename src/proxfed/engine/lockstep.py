"""A graph step of many clients, block by block and over the cores, in lockstep at every `mix`.

The equations of a step are written for all clients at once, with `mix` as an ordinary call in their middle. Here the
step runs for each block of clients by itself: a block runs until it calls `mix`, leaves its message there, waits while
the others catch up, and continues with its mixed rows. Temporaries are then as large as a block, not as the network. A
waiting block is a greenlet, a call that can be suspended and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from threading import Lock

from greenlet import getcurrent, greenlet
from torch import Tensor

from proxfed.engine.messages import dense
from proxfed.machine import run_parallel, split_evenly, thread_count
from proxfed.types import Compressor, Message, Mix, Packed

Step = Callable[[Mix], None]


Post = Callable[[Message, slice], None]


def in_lockstep(steps: Sequence[Step], sizes: Sequence[int], mix: Mix, post: Post = lambda message, rows: None) -> None:
    """Run the steps of blocks of `sizes` clients, synchronised at each call of `mix`; all call it equally often.

    `post` receives the message of each block, with its rows, while it is complete: `mix` sees a Packed without its
    parts.
    """
    exchange = _Exchange(sizes, post)
    parts = split_evenly(range(len(steps)), thread_count())
    threads = [_Thread([(k, steps[k]) for k in part], exchange) for part in parts]
    run_parallel([thread.start for thread in threads])
    while exchange.arrived:
        mixed = mix(exchange.collect())
        run_parallel([partial(thread.resume, mixed) for thread in threads])
        del mixed


class _Exchange:
    """The messages of all blocks: their rows, in the order of the blocks."""

    def __init__(self, sizes: Sequence[int], post: Post) -> None:
        self.post = post
        self.rows = [slice(a, b) for a, b in pairwise(accumulate(sizes, initial=0))]
        self.arrived: dict[int, tuple[int, int, Compressor] | None] = {}
        self._whole: Tensor | None = None
        self._lock = Lock()

    def leave(self, k: int, message: Message) -> None:
        part = dense(message)
        with self._lock:
            if self._whole is None:
                self._whole = part.new_empty(self.rows[-1].stop, part.shape[1])
        self._whole[self.rows[k]] = part
        self.post(message, self.rows[k])
        self.arrived[k] = (message.nbytes, message.best, message.compressor) if isinstance(message, Packed) else None

    def collect(self) -> Message:
        """The messages of all blocks as one; the next exchange begins."""
        whole, cost = self._whole, [c for c in self.arrived.values() if c is not None]
        assert whole is not None
        assert len(self.arrived) == len(self.rows)
        self._whole, self.arrived = None, {}
        if not cost:
            return whole
        nbytes, best, compressors = zip(*cost, strict=True)
        return Packed({}, whole, sum(nbytes), sum(best), compressors[0])


class _Thread:
    """The blocks of one thread. A greenlet belongs to the thread that made it, so its block always runs there."""

    def __init__(self, steps: Sequence[tuple[int, Step]], exchange: _Exchange) -> None:
        self.steps, self.exchange = steps, exchange
        self.blocks: list[greenlet] = []

    def start(self) -> None:
        self.blocks = [greenlet(partial(step, self._mix(k, getcurrent()))) for k, step in self.steps]
        for block in self.blocks:
            block.switch()

    def resume(self, mixed: Tensor) -> None:
        for block in self.blocks:
            block.switch(mixed)

    def _mix(self, k: int, hub: greenlet) -> Mix:
        """`mix` for block k."""

        def meet(message: Message) -> Tensor:
            self.exchange.leave(k, message)
            del message  # the memory of a temporary is free while its block waits
            mixed: Tensor = hub.switch()
            return mixed[self.exchange.rows[k]]

        return meet
