"""Contestants that are alive at once and take one round each in turn; turns with foreign load are dropped and counted.

A contestant is a command; its processes wait at a socket for their turn (`turns.py`). While one computes, all others
sleep. What the machine's cores did beyond that, /proc/stat against the CPU time of the contestant's own processes, is
foreign load: more than a tenth of the cores, and the turn does not count. So neighbours that come and go hit all
contestants alike, or nobody. Needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import TextIO

from turns import ADDRESS, family

CORES = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else os.cpu_count() or 1
FOREIGN = 0.1
"""The part of the cores that others may use in a turn."""
LEAST = 3
"""Turns that a median is taken of."""
PATIENCE = 900
"""Seconds that a round may take."""
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Contestant:
    name: str
    setup: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    processes: int = 1
    """How many of them make a clock."""
    checked: bool = True
    """It takes the same steps as the others that are, so it must learn the same."""


@dataclass
class Score:
    """What is known of a contestant: seconds of its undisturbed turns, how many were not, or why there are none."""

    contestant: Contestant
    first: float = 0.0
    seconds: list[float] = field(default_factory=list)
    dropped: int = 0
    learned: float | None = None
    memory: float = 0.0
    failure: str = ""

    @property
    def median(self) -> float | None:
        return median(self.seconds) if len(self.seconds) >= LEAST else None

    @property
    def spread(self) -> str:
        """The middle half of the turns."""
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return f"{number(low)} - {number(high)}"


class _Process:
    """A contestant that is alive."""

    def __init__(self, contestant: Contestant, rounds: int, folder: Path) -> None:
        self.contestant = contestant
        self.lines: list[tuple[socket.socket, TextIO]] = []
        self.log = (folder / "log").open("w+b")
        self.door = socket.socket(socket.AF_UNIX)
        self.door.bind(str(folder / "turns"))
        self.door.listen()
        self.process = subprocess.Popen(
            [*contestant.command, "--rounds", str(rounds)],
            env=os.environ | contestant.environment | {ADDRESS: str(folder / "turns")},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def enter(self) -> None:
        """Wait until all of it is ready."""
        deadline = time.monotonic() + PATIENCE
        self.door.settimeout(1.0)
        while len(self.lines) < self.contestant.processes:
            try:
                line, _ = self.door.accept()
            except TimeoutError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise ConnectionError(self._reason()) from None
                continue
            line.settimeout(PATIENCE)
            self.lines.append((line, line.makefile()))

    def turn(self) -> float:
        """Seconds of a round: of the slowest of its processes."""
        self._go()
        return max(said["seconds"] for said in self._hear())

    def end(self) -> dict:
        """What it reports."""
        self._go()
        return next(iter(self._hear(last=True)), {})

    def _go(self) -> None:
        try:
            for line, _ in self.lines:
                line.sendall(b"r")
        except OSError:
            raise ConnectionError(self._reason()) from None

    def _hear(self, last: bool = False) -> list[dict]:
        try:
            said = [file.readline() for _, file in self.lines]
        except OSError:
            raise ConnectionError(self._reason()) from None
        if not last and not all(said):
            raise ConnectionError(self._reason())
        return [json.loads(line) for line in said if line]

    def cpu(self) -> float:
        """Seconds that its processes have computed so far."""
        return sum(ticks for _, ticks in self._family().values()) / TICK

    def _family(self) -> dict[int, tuple[int, int]]:
        """(parent, CPU time in ticks) of its processes."""
        stats = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            stats[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
        own = family(self.process.pid, {pid: parent for pid, (parent, _) in stats.items()})
        return {pid: stats[pid] for pid in own if pid in stats}

    def _reason(self) -> str:
        """The last line that says what went wrong."""
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["it ended without a word"])[-1][:200]

    def kill(self) -> None:
        """Nothing that it started stays behind."""
        for pid in {self.process.pid, *self._family()}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for line, _ in self.lines:
            line.close()
        self.door.close()
        self.log.close()


def take_turns(contestants: Sequence[Contestant], turns: int) -> list[Score]:
    """So many turns of each, after a first round that is counted apart."""
    scores = [Score(c) for c in contestants]
    with _alive(scores, turns + 1) as processes:
        for turn in range(turns + 1):
            for score, process in zip(scores, processes, strict=True):
                _one_turn(score, process, turn == 0)
            print(f"turn {turn} of {turns}", file=sys.stderr, flush=True)
        for score, process in zip(scores, processes, strict=True):
            if not score.failure:
                said = process.end()
                score.learned, score.memory = said.get("learned"), said.get("peak_rss_mb") or 0.0
    return scores


def _one_turn(score: Score, process: _Process, first: bool) -> None:
    if score.failure:
        return
    before, own, start = _busy(), process.cpu(), time.perf_counter()
    try:
        seconds = process.turn()
    except ConnectionError as e:
        score.failure = str(e)
        return
    wall = time.perf_counter() - start
    foreign = (_busy() - before) - (process.cpu() - own)
    if first:
        score.first = seconds
    elif foreign > FOREIGN * CORES * wall + 2 / TICK:  # what a clock of so many ticks can tell
        score.dropped += 1
    else:
        score.seconds.append(seconds)


@contextmanager
def _alive(scores: Sequence[Score], rounds: int) -> Iterator[list[_Process]]:
    """Their processes, one ready after another; they end with us, also when we are stopped."""
    processes: list[_Process] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="turns-") as folder:
        try:
            for k, score in enumerate(scores):
                own = Path(folder) / str(k)
                own.mkdir()
                processes.append(_Process(score.contestant, rounds, own))
                try:
                    processes[-1].enter()
                except ConnectionError as e:
                    score.failure = str(e)
            yield processes
        finally:
            for process in processes:
                process.kill()


def _busy() -> float:
    """Seconds that the cores of the machine have worked so far, for us or for others; without /proc: 0."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, stat.read_text().split(maxsplit=9)[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


# ---- the table -----------------------------------------------------------------------------------------------------

HEAD = ("", "set-up", "s a round", "middle half", "in units of ours", "turns", "dropped", "first round", "peak memory")
TOLERANCE = 0.2
"""Largest relative difference to what ours learned. Other shuffles alone make up to a tenth; a wrong step size or half
an epoch makes much more."""


def number(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds < 1 else f"{seconds:.2f}"


def ours(scores: Sequence[Score]) -> Score:
    """The best of our own set-ups, if any has enough turns, else the first."""
    own = [score for score in scores if score.contestant.name == "proxfed"]
    return min(own, key=lambda score: score.median or float("inf"))


def table(scores: Sequence[Score]) -> list[tuple[str, ...]]:
    base = ours(scores)
    rows: list[tuple[str, ...]] = [HEAD]
    for score in scores:
        c, middle = score.contestant, score.median
        if score.failure:
            rows.append((c.name, c.setup, f"cannot be run: {score.failure}", *[""] * (len(HEAD) - 3)))
            continue
        ratio = "" if middle is None or base.median is None else f"{middle / base.median:.2f}"
        rows.append(
            (
                c.name + _doubt(score, base),
                c.setup,
                "too few turns" if middle is None else number(middle),
                "" if middle is None else score.spread,
                ratio,
                str(len(score.seconds)),
                str(score.dropped),
                number(score.first),
                f"{score.memory / 1024:.1f} GB" if score.memory else "it ended without its report",
            )
        )
    return rows


def _doubt(score: Score, base: Score) -> str:
    own, learned = score.learned, base.learned
    if own is None or learned is None or not score.contestant.checked or abs(own - learned) <= TOLERANCE * abs(learned):
        return ""
    return f" (computes something else: its loss fell by {own:.3f}, ours by {learned:.3f})"


def plain(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[k]) for row in rows if len(row[k]) < 40) for k in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def markdown(rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (rows[0], ("---",) * len(HEAD), *rows[1:]))
