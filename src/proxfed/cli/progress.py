"""What a command that trains shows on the way, and how it is stopped."""

from __future__ import annotations

import signal
import time
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from proxfed.cli.common import err


class StopOnSignal:
    """The first Ctrl-C (or SIGTERM) asks the run to stop after its round; the second ends the process."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(number, signal.SIG_DFL)

    def __call__(self) -> bool:
        return self.asked


class Watch:
    """A progress bar per task: rounds, rounds/s and the current measures."""

    def __init__(self, show: bool, case: str) -> None:
        self.case = f"{case}: " if case else ""
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[measures]}", markup=False),
            console=err,
            disable=not show,
        )
        self.current: tuple[int, Any] | None = None
        self.began = (0, 0.0)

    def __enter__(self) -> Watch:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.bar.disable:  # rich below 14.3 prints an empty line even then
            self.bar.stop()

    def __call__(self, p: Any) -> None:
        if self.bar.disable:
            return
        if self.current is None or self.current[0] != p.task:
            name = f"{self.case}{p.task + 1}/{p.tasks} {p.label}, seed {p.seed}"
            self.current = p.task, self.bar.add_task(name, total=p.rounds, rate="", measures="")
            self.began = p.round, time.monotonic()
        rounds, seconds = p.round - self.began[0], time.monotonic() - self.began[1]
        rate = f"{rounds / seconds:.3g} rounds/s" if rounds and seconds > 0 else ""
        self.bar.update(self.current[1], completed=p.round, rate=rate)
        if p.row is not None:
            shown = [k for k in ("objective", "error", "gap", "accuracy") if p.row.get(k) is not None][:2]
            self.bar.update(self.current[1], measures="  ".join(f"{k} {p.row[k]:.3g}" for k in shown))


def say_diverged(diverged: list[dict[str, Any]]) -> None:
    for s in diverged:
        where = f"{s['case']}: " if s["case"] else ""
        err.print(f"[red]{escape(where + s['algorithm'])}, seed {s['seed']}: {escape(s['message'])}[/red]")
