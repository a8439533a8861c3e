"""Processes that are kept running: started again when they end, and ended with the one that keeps them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

QUICK = 5.0
"""Seconds: a process that ends sooner than that failed, and is started again after ever longer pauses."""

LONGEST_PAUSE = 10.0

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """Runs in the new process: it is killed when its parent is, however that happens."""
    if _libc is not None:
        _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Kept:
    """One process and those that it starts, in a group of their own; what they print goes to the file `log`."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.command, self.log = [str(part) for part in command], log
        self.environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def start(self) -> Kept:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _keep(self) -> None:
        """In one thread from beginning to end: the system takes the end of a thread for that of a parent."""
        pause = 0.5
        while not self._stopping.is_set():
            began = time.monotonic()
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    start_new_session=True, preexec_fn=_end_with_parent,
                )  # fmt: skip
            self.starts += 1
            while self.process.poll() is None and not self._stopping.wait(0.1):
                pass
            self._end()
            pause = min(2 * pause, LONGEST_PAUSE) if time.monotonic() - began < QUICK else 0.5
            self._stopping.wait(pause)

    def _end(self) -> None:
        """The whole group: first asked, then killed."""
        assert self.process is not None
        for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience if self.process.returncode is None else 0)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
