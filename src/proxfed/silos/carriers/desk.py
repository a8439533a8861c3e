"""The coordinator's side of a carrier that is a separate service: requests and answers go over connections (lines).

A line is a connection to one site, opened and kept by a process of the carrier, a courier. Lines break, couriers are
killed, sites vanish: a question stays open until it is answered, and is sent again on the next line. Holders are
idempotent: they answer a repeated question with the same bytes.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from proxfed.silos.carriers import local_socket

log = logging.getLogger(__name__)

PATIENCE = 15.0
"""Seconds without an answer after which the missing sites are reported."""

GRACE = 3.0
"""Seconds that running couriers have to reconnect, before new ones are sent."""

ON_THE_WAY = 45.0
"""Seconds that a courier has to open a line, before the next one is sent."""

AGAIN = 30.0
"""Seconds without an answer after which a question is sent again on the same line, then after twice as many."""

_TAG = struct.Struct(">Q")


class Desk:
    """A `Carrier` whose couriers are sent by `dispatch(site, socket)`, again whenever a site has no line.

    `dispatch` returns when a courier has started, and raises if none can be sent now. `say` is called with a sentence
    that names the sites waited for, and why.
    """

    def __init__(
        self,
        sites: tuple[str, ...],
        path: Path,
        dispatch: Callable[[str, Path], None],
        say: Callable[[str], None] = log.warning,
        again: float = AGAIN,
    ) -> None:
        self.sites, self.path, self.dispatch, self.say, self.again = sites, path, dispatch, say, again
        self._change = threading.Condition()
        self._lines: dict[str, socket.socket] = {}
        self._open: dict[str, bytes] = {}  # frames that have no answer yet: a tag and the question
        self._answers: dict[str, bytes] = {}
        self._tag = time.time_ns()  # larger than any tag of a coordinator before this one
        self._due = dict.fromkeys(sites, time.monotonic() + GRACE)  # when to send a courier, if there is no line
        self._trouble: dict[str, str] = {}
        self._closing = False

    def __enter__(self) -> Desk:
        self._socket = local_socket.listen(self.path)
        self._threads = [threading.Thread(target=self._keep, args=(site,), daemon=True) for site in self.sites]
        accept = threading.Thread(target=local_socket.accepting, args=(self._socket, self._line), daemon=True)
        for thread in (accept, *self._threads):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the couriers."""
        with self._change:
            self._closing = True
            self._change.notify_all()
            self._change.wait_for(lambda: not self._lines, 5.0)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.path.unlink(missing_ok=True)
        for thread in self._threads:
            thread.join(10.0)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The sites whose answers are missing."""
        return tuple(self._open)

    # ---- questions and answers ----------------------------------------------------------------------------------

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        """The answers by site; with `deadline`, only those that arrived within so many seconds."""
        begin, told = time.monotonic(), PATIENCE
        with self._change:
            self._answers = {}
            for site, question in questions.items():
                self._tag += 1
                self._open[site] = _TAG.pack(self._tag) + question
            self._change.notify_all()
            while self._open:
                waited = time.monotonic() - begin
                if deadline is not None and waited >= deadline:
                    break
                if waited >= told:
                    self._tell(waited)
                    told *= 2
                self._change.wait(0.5 if deadline is None else min(0.5, deadline - waited))
            self._open = {}
            return self._answers

    def _tell(self, waited: float) -> None:
        why = {s: "has not answered" if s in self._lines else self._trouble.get(s, "not connected") for s in self._open}
        names = ", ".join(f"{site} ({reason})" for site, reason in why.items())
        self.say(f"waiting {waited:.0f} s for {names}; Ctrl-C stops, and --resume goes on from here")

    def _line(self, line: socket.socket) -> None:
        """One line from its beginning to its end: the site's name, then answers."""
        site = local_socket.receive(line).decode(errors="replace")
        if site not in self.sites:
            local_socket.send(line, b"")
            return
        with self._change:
            self._lines[site] = line  # replaces an older one
            self._trouble.pop(site, None)
            self._change.notify_all()
        threading.Thread(target=self._write, args=(site, line), daemon=True).start()
        try:
            while True:
                self._take(site, local_socket.receive(line))
        finally:
            with self._change:
                if self._lines.get(site) is line:
                    del self._lines[site]
                    self._due[site] = time.monotonic()
                self._change.notify_all()

    def _write(self, site: str, line: socket.socket) -> None:
        """Sends the open question of a site on its line, and again after a while; a line that is replaced is closed."""
        sent, due, pause = b"", 0.0, self.again
        with suppress(OSError):
            while True:
                with self._change:
                    over, frame = self._over(site, line), self._open.get(site, b"")
                    fresh = frame is not sent
                    if not over and (not frame or not (fresh or time.monotonic() >= due)):
                        self._change.wait(min(1.0, self.again))
                        continue
                local_socket.send(line, b"" if over else frame)
                if over:
                    return
                sent, pause = frame, self.again if fresh else 2 * pause
                due = time.monotonic() + pause

    def _over(self, site: str, line: socket.socket) -> bool:
        return self._closing or self._lines.get(site) is not line

    def _take(self, site: str, frame: bytes) -> None:
        with self._change:
            if site in self._open and frame[: _TAG.size] == self._open[site][: _TAG.size]:  # else it is late
                del self._open[site]
                self._answers[site] = frame[_TAG.size :]
                self._change.notify_all()

    # ---- couriers -----------------------------------------------------------------------------------------------

    def _keep(self, site: str) -> None:
        """Sends a courier whenever a site has no line."""
        while not self._closing:
            with self._change:
                if site in self._lines or time.monotonic() < self._due[site]:
                    self._change.wait(0.5)
                    continue
            try:
                self.dispatch(site, self.path)
                trouble, pause = "a courier is on its way", ON_THE_WAY
            except Exception as e:  # report any failure, and retry
                trouble, pause = str(e) or type(e).__name__, 2.0
            with self._change:
                self._trouble[site], self._due[site] = trouble, time.monotonic() + pause


# ---- the courier's side ---------------------------------------------------------------------------------------------


def carry(path: Path, site: str, call: Callable[[bytes], bytes], patience: float = 60.0) -> None:
    """Runs in the carrier: passes questions from the desk to `call` and answers back, until the desk ends it.

    A coordinator that is gone has `patience` seconds to come back. An exception of `call` ends the courier; the desk
    sends another one.
    """
    last = time.monotonic()
    while time.monotonic() - last < patience:
        try:
            line = local_socket.connect(path)
        except OSError:
            time.sleep(0.2)
            continue
        with line:
            try:
                local_socket.send(line, site.encode())
                while True:
                    frame = local_socket.receive(line)
                    if not frame:
                        return
                    answer = _called(call, frame[_TAG.size :])
                    local_socket.send(line, frame[: _TAG.size] + answer)
            except OSError:
                last = time.monotonic()


def _called(call: Callable[[bytes], bytes], question: bytes) -> bytes:
    try:
        return call(question)
    except OSError as e:  # not an error of the line
        raise RuntimeError(f"the site cannot be reached: {e}") from e
