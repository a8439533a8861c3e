"""The holder's process, and how a carrier's processes reach it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from proxfed.errors import ProxfedError
from proxfed.silos.carriers import local_socket

_log = logging.getLogger("proxfed.silos")

SOCKET = "PROXFED_SILO"
"""The environment variable with the socket of this site's holder, for a carrier's processes."""

LONGEST_PAUSE = 2.0
"""The longest pause in seconds between two retries, if the holder is away or does not answer."""


@contextmanager
def serving(path: Path, answer: Callable[[bytes], bytes]) -> Iterator[None]:
    """A context in which questions that arrive at `path` are answered, one at a time.

    If not even a refusal may leave, the connection is closed without an answer, and the log says why.
    """
    one_at_a_time = threading.Lock()

    def talk(c: socket.socket) -> None:
        while True:
            question = local_socket.receive(c)
            try:
                with one_at_a_time:
                    reply = answer(question)
            except ProxfedError as e:
                _log.error("%s", e)
                return
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
    """The answer of this site's holder; if it is away, waits and retries."""
    path, pause = path or Path(os.environ[SOCKET]), 0.2
    while True:
        try:
            with local_socket.connect(path) as s:
                local_socket.send(s, question)
                return local_socket.receive(s)
        except OSError:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
