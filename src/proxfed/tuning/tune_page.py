"""The result of a tuning, in a terminal and as a page."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from proxfed.report.small_plots import Point, scatter
from proxfed.report.static_page import plain_html, write_static_page
from proxfed.report.summary import Shown, fitted
from proxfed.report.terminal import console
from proxfed.tuning.keys import written

if TYPE_CHECKING:
    from proxfed.tuning.trials import Trial
    from proxfed.tuning.tuned import Tuned


def _columns(tuned: Tuned) -> list[Shown]:
    """One line per algorithm and setting."""
    table = tuned.table()
    lost = [e["best"] is None for e in table]

    def cells(words: list[str]) -> list[str]:
        return ["" if gone else word for gone, word in zip(lost, words, strict=True)]

    best = ["all diverged" if e["best"] is None else written(e["best"]) for e in table]
    return [
        Shown(0, "algorithm", [e["algorithm"] for e in table]),
        Shown(0, "setting", [e["setting"] for e in table]),
        Shown(1, "best", best),
        Shown(6, "was", [written(e["before"]) for e in table]),
        Shown(2, "within 5 %", cells([e["within 5 %"] for e in table])),
        Shown(3, "judged", cells([e["judged"] for e in table])),
        Shown(8, "searched", [e["searched"] for e in table]),
        Shown(1, "tried", [str(e["configurations"]) for e in table]),
        Shown(7, "close", cells([str(e["close"]) for e in table])),
        Shown(6, "diverged", [str(e["diverged"]) if e["diverged"] else "" for e in table]),
        Shown(1, "rounds", [str(e["rounds"]) for e in table]),
    ]


def rich_tuned(tuned: Tuned, width: int = 200) -> Table:
    """The table for the terminal."""
    return fitted(_columns(tuned), width)


def about(tuned: Tuned) -> str:
    """The criterion and the effort, in a sentence."""
    return f"Judged by {tuned.judge}; {tuned.ladder}, within {tuned.budget} rounds per algorithm."


def text(tuned: Tuned) -> str:
    """The table, the criterion and the notes, as `print(tuned)` shows them."""
    shown = console(width=200, color_system=None, force_terminal=False, force_jupyter=False)
    with shown.capture() as captured:
        shown.print(rich_tuned(tuned))
    lines = [line.rstrip() for line in captured.get().rstrip().splitlines()]
    return "\n".join([*lines, about(tuned), *(f"{note}." for note in tuned.notes())])


def write_page(tuned: Tuned, path: Path) -> None:
    """Write the choice and its sensitivity, a figure per algorithm and setting, and all configurations."""
    lead = [about(tuned), *(f"{note}." for note in tuned.notes())]
    key = (
        '<p class="note">A line for each rung, from the first (faint) to the last. Orange: the best. Blue: within 5 % '
        "of the best one of its last rung. A cross: it diverged.</p>"
    )
    columns = _columns(tuned)
    sections = {
        "Choice": plain_html([c.heading for c in columns], list(zip(*(c.cells for c in columns), strict=True))),
        "Trials": f'<div class="panels">{"".join(_pictures(tuned))}</div>{key}',
        "All configurations": "".join(_trials_html(tuned, label) for label in tuned.spaces),
    }
    write_static_page(path, f"{tuned.study.name}: tuning", lead, sections)


def _pictures(tuned: Tuned) -> list[str]:
    """The measure over each setting, with a line for each rung."""
    drawn = []
    for label, spaces in tuned.spaces.items():
        mine = tuned.of(label)
        for key in spaces:
            rungs = sorted({t for trial in mine for t in trial.rounds})
            lines = [[_point(tuned, t, key, rung, t is mine[0]) for t in mine if rung in t.rounds] for rung in rungs]
            picture = scatter(lines, key, tuned.judge.measure)
            drawn.append(
                f"<figure><figcaption>{escape(label)}: {escape(key)}</figcaption><div>{picture}</div></figure>"
            )
    return drawn


def _point(tuned: Tuned, trial: Trial, key: str, rung: int, best: bool) -> Point:
    """A configuration at the round of a rung, marked if it is its last rung."""
    score, last = trial.scores[trial.rounds.index(rung)], rung == trial.rounds[-1]
    mark = "best" if best else "close" if trial.close else ""
    settings = ", ".join(f"{k} = {written(v)}" for k, v in trial.values.items())
    says = f"{settings}: {tuned.judge.shown(score)} at round {rung}"
    return Point(trial.values[key], tuned.judge.value(score), mark if last else "", says)


def _trials_html(tuned: Tuned, label: str) -> str:
    mine, keys = tuned.of(label), list(tuned.spaces[label])
    lines = [
        [
            *(written(t.values[k]) for k in keys),
            t.rounds[-1],
            tuned.judge.shown(t.score),
            "yes" if t.close else "",
            t.spent,
        ]
        for t in mine
    ]
    headings = [*keys, "to round", tuned.judge.measure, "within 5 %", "rounds spent"]
    marked = [k == 0 and not t.score.diverged for k, t in enumerate(mine)]
    return f"<h3>{escape(label)}</h3>{plain_html(headings, lines, marked)}"
