"""The holder's own process, and how a carrier's processes reach it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from proxfed.silos import local_socket

SOCKET = "PROXFED_SILO"
"""The environment variable that tells a carrier's processes where the holder of this site listens."""


@contextmanager
def serving(path: Path, answer: Callable[[bytes], bytes]) -> Iterator[None]:
    """Meanwhile questions that come in at `path` are answered, one at a time."""
    one_at_a_time = threading.Lock()

    def talk(c: socket.socket) -> None:
        while True:
            question = local_socket.receive(c)
            with one_at_a_time:
                reply = answer(question)
            local_socket.send(c, reply)

    s = local_socket.listen(path)
    thread = threading.Thread(target=local_socket.accepting, args=(s, talk), daemon=True)
    thread.start()
    try:
        yield
    finally:
        s.shutdown(socket.SHUT_RDWR)
        s.close()
        thread.join()


def ask_here(question: bytes, path: Path | None = None) -> bytes:
    """The answer of the holder of this site; one that is away is waited for, and asked again."""
    path = path or Path(os.environ[SOCKET])
    while True:
        try:
            with local_socket.connect(path) as s:
                local_socket.send(s, question)
                return local_socket.receive(s)
        except OSError:
            time.sleep(0.2)
