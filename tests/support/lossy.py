"""A proxy between couriers and the desk that loses, repeats and reorders frames, at random but repeatably."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from pathlib import Path

from proxfed.silos.carriers import local_socket


class Lossy:
    """Listens at `front`, speaks to `back`; a share `rate` of the frames is lost, repeated or held back until the next.

    The first frame of a line, which says whose it is, always gets through.
    """

    def __init__(self, front: Path, back: Path, rate: float = 0.1, seed: int = 0) -> None:
        self.front, self.back, self.rate, self.random = front, back, rate, random.Random(seed)
        self.done = {"passed": 0, "lost": 0, "repeated": 0, "reordered": 0}
        self._lock = threading.Lock()

    def __enter__(self) -> Lossy:
        self._socket = local_socket.listen(self.front)
        threading.Thread(target=local_socket.accepting, args=(self._socket, self._line), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _line(self, near: socket.socket) -> None:
        with local_socket.connect(self.back) as far:
            local_socket.send(far, local_socket.receive(near))
            back = threading.Thread(target=self._pass, args=(far, near), daemon=True)
            back.start()
            self._pass(near, far)
            back.join()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        held: bytes | None = None
        with suppress(OSError):
            while True:
                frame = local_socket.receive(source)
                fate = self._fate() if frame else "passed"
                if fate == "reordered" and held is None:
                    held = frame
                    continue
                for _ in range({"lost": 0, "repeated": 2}.get(fate, 1)):
                    local_socket.send(sink, frame)
                if held is not None:
                    local_socket.send(sink, held)
                    held = None
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _fate(self) -> str:
        with self._lock:
            fate = (
                self.random.choice(("lost", "repeated", "reordered")) if self.random.random() < self.rate else "passed"
            )
            self.done[fate] += 1
            return fate
