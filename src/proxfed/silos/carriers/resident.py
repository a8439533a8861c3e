"""The holder's own process, and how a carrier's processes reach it."""

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
"""The environment variable that tells a carrier's processes where the holder of this site listens."""

LONGEST_PAUSE = 2.0
"""Seconds between two questions to a holder that is away, or has nothing to say."""


@contextmanager
def serving(path: Path, answer: Callable[[bytes], bytes]) -> Iterator[None]:
    """Meanwhile questions that come in at `path` are answered, one at a time.

    Where nothing may leave, the line is cut without an answer, and the log says why.
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
    """The answer of the holder of this site; one that is away is waited for, and asked again."""
    path, pause = path or Path(os.environ[SOCKET]), 0.2
    while True:
        try:
            with local_socket.connect(path) as s:
                local_socket.send(s, question)
                return local_socket.receive(s)
        except OSError:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
