"""What a contestant does: a round when it is its turn, and nothing in between. Needs the standard library alone.

`interleave.py` starts contestants with the address of a socket in their environment. Every process of a contestant
makes a `Clock`, which waits there for its turn, and says after each round how long it took. Started by hand, without
that address, rounds follow each other and the report is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path

ADDRESS = "PROXFED_TURNS"


def options(description: str | None, workloads: str | tuple[str, ...], **more: object) -> argparse.Namespace:
    """The command line of every contestant."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("workload", choices=tuple(workloads))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    for name, value in more.items():
        parser.add_argument(f"--{name}", default=value)
    return parser.parse_args()


class Clock:
    """Seconds of the rounds. Starts when made; the first round has all that must be set up before it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._socket: socket.socket | None = None
        if ADDRESS in os.environ:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(os.environ[ADDRESS])
        self._wait()

    def _wait(self) -> None:
        """For our turn, or for the end."""
        if self._socket is not None:
            self._socket.recv(1)
        self._since = time.perf_counter()

    def tick(self, times: float = 1) -> None:
        """So many rounds are over, or a part of one; the next begins when it is our turn."""
        self.seconds.append((time.perf_counter() - self._since) / times)
        self._say({"seconds": self.seconds[-1]})
        self._wait()

    def time(self, one_round: Callable[[], object], rounds: int, times: int = 1) -> None:
        """So many turns of so many rounds each."""
        for _ in range(rounds):
            for _ in range(times):
                one_round()
            self.tick(times)

    def report(self, learned: float | None = None, memory: float | None = None) -> None:
        """How much the loss fell, if that is known, and the peak of the memory."""
        said = {"learned": learned, "peak_rss_mb": peak_rss_mb() if memory is None else memory}
        if self._socket is None:
            print(json.dumps({"seconds": self.seconds} | said), flush=True)
        else:
            self._say(said)

    def _say(self, said: dict) -> None:
        if self._socket is not None:
            self._socket.sendall(json.dumps(said).encode() + b"\n")


def peak_rss_mb(root: int | None = None) -> float:
    """Peak memory of the process `root` (this one) and of all that descend from it, added up; what they share counts
    in each. Without /proc only this process is seen."""
    if not Path("/proc/self/status").exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes, on a Mac
    parents, peaks = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # it has just ended
            continue
        pid = int(fields["Pid"])
        parents[pid] = int(fields["PPid"])
        peaks[pid] = int(fields.get("VmHWM", "0 kB").split()[0]) / 1024
    return sum(peaks.get(pid, 0.0) for pid in family(root or os.getpid(), parents))


def family(root: int, parents: dict[int, int]) -> set[int]:
    """A process and all that descend from it."""
    found, before = {root}, 0
    while len(found) > before:
        before = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found
