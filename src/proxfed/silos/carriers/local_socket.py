"""Bytes between two processes of one machine: frames over a Unix socket that only this user can open.

A carrier's processes come and go. The holder and the coordinator must stay, so they are separate processes, and the
carrier's processes reach them here.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from proxfed.errors import InputError, require

LARGEST = 1 << 34
"""The largest size of a frame in bytes; longer ones are refused."""

PIECE = 1 << 20
"""Bytes per read."""

_HEAD = struct.Struct(">Q")


def send(s: socket.socket, frame: bytes) -> None:
    s.sendall(_HEAD.pack(len(frame)))
    s.sendall(frame)


def receive(s: socket.socket) -> bytes:
    """The next frame; ConnectionError if the other side is gone."""
    size = _HEAD.unpack(_exactly(s, _HEAD.size))[0]
    if size > LARGEST:
        raise ConnectionError(f"a frame of {size} bytes")
    return _exactly(s, size)


def _exactly(s: socket.socket, size: int) -> bytes:
    """Reads exactly `size` bytes; memory grows with the bytes received, not with the announced size."""
    got = bytearray()
    while len(got) < size:
        more = s.recv(min(size - len(got), PIECE))
        if not more:
            raise ConnectionError("the other side is gone")
        got += more
    return bytes(got)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of this path that is short enough for a socket: the system allows about a hundred characters."""
    if len(os.fsencode(path)) <= 100:
        yield str(path)
        return
    require(sys.platform == "linux", f"{path} is too long for a socket: this system allows 100 characters")
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> socket.socket:
    """OSError if no process listens."""
    s = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as name:
            s.connect(name)
    except OSError:
        s.close()
        raise
    return s


def listen(path: Path) -> socket.socket:
    """Replaces an earlier socket at this path; locking is up to the caller."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    s = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)  # no other user can open it, from its creation on
    try:
        with _short(path) as name:
            s.bind(name)
    except OSError as e:
        s.close()
        raise InputError(f"cannot listen at {path}: {e.strerror}") from e
    finally:
        os.umask(before)
    s.listen()
    return s


def accepting(s: socket.socket, each: Callable[[socket.socket], None]) -> None:
    """Calls `each` with every connection, in its own thread, until the socket is closed."""

    def one(c: socket.socket) -> None:
        with c, suppress(OSError):  # the other side may close at any time
            each(c)

    with suppress(OSError):
        while True:
            threading.Thread(target=one, args=(s.accept()[0],), daemon=True).start()
