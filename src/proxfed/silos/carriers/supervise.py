"""Supervised processes: restarted when they end, and ended together with their supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

QUICK = 5.0
"""Seconds: a process that ends sooner has failed, and is restarted after ever longer pauses."""

LONGEST_PAUSE = 10.0

GUARDED = ("sh", "-c", 'exec 3<&0; (trap "" TERM; read -r _ <&3; kill -KILL 0) & exec "$@" </dev/null 3<&-', "sh")
"""The prefix of each command: standard input is a pipe that the supervisor holds and never writes to. When the
supervisor ends, however it ends, the pipe closes, and a shell in the background kills all processes of the group."""


def _has_lost_a_child(pid: int) -> bool:
    """Whether a child of process `pid` is a zombie: it has ended, and its parent has not collected it."""
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    return True
    return False


class Kept:
    """One process and its children, in their own process group; their output goes to the file `log`.

    whole    it needs the processes that it started itself: if one of them ends, all are restarted
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, whole: bool = False
    ) -> None:
        self.command, self.log, self.whole = [str(part) for part in command], log, whole
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
        pause = 0.5
        while not self._stopping.is_set():
            began = time.monotonic()
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [*GUARDED, *self.command], env=self.environment, stdin=subprocess.PIPE, stdout=log,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            self.starts += 1
            while self.process.poll() is None and not self._stopping.wait(0.1):
                if self.whole and _has_lost_a_child(self.process.pid):
                    break
            self._end()
            pause = min(2 * pause, LONGEST_PAUSE) if time.monotonic() - began < QUICK else 0.5
            self._stopping.wait(pause)

    def _end(self) -> None:
        """Ends the whole group: first SIGTERM, then SIGKILL."""
        assert self.process is not None
        for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience if self.process.returncode is None else 0)
        assert self.process.stdin is not None
        self.process.stdin.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
