"""What a tuning found, in a terminal and as a page."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from proxfed.errors import finite
from proxfed.report.columns import column
from proxfed.report.small_plots import Point, scatter
from proxfed.report.static_page import plain_html, write_static_page
from proxfed.report.summary import Shown, fitted
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
        Shown(4, "tried", [str(e["configurations"]) for e in table]),
        Shown(7, "close", cells([str(e["close"]) for e in table])),
        Shown(6, "diverged", [str(e["diverged"]) if e["diverged"] else "" for e in table]),
        Shown(5, "rounds", [str(e["rounds"]) for e in table]),
    ]


def rich_tuned(tuned: Tuned, width: int = 200) -> Table:
    """For the terminal."""
    return fitted(_columns(tuned), width)


def about(tuned: Tuned) -> str:
    """How it was judged, in a sentence."""
    return f"Judged by {tuned.judge}; {tuned.ladder}, within {tuned.budget} rounds per algorithm."


def text(tuned: Tuned) -> str:
    console = Console(width=200, color_system=None, force_terminal=False, force_jupyter=False)
    with console.capture() as captured:
        console.print(rich_tuned(tuned))
    lines = [line.rstrip() for line in captured.get().rstrip().splitlines()]
    return "\n".join([*lines, about(tuned), *(f"{note}." for note in tuned.notes())])


def write_page(tuned: Tuned, path: Path) -> None:
    """Choice and sensitivity, a picture per algorithm and setting, and all configurations."""
    lead = [about(tuned), *(f"{note}." for note in tuned.notes())]
    key = '<p class="note">Orange: the best. Blue: within 5 % of the best one on its last rung. Grey: the others. '
    key += "A cross: it diverged. Configurations that went out early are shown at the round at which they did.</p>"
    columns = _columns(tuned)
    sections = {
        "Choice": plain_html([c.heading for c in columns], list(zip(*(c.cells for c in columns), strict=True))),
        "What was tried": f'<div class="panels">{"".join(_pictures(tuned))}</div>{key}',
        "All configurations": "".join(_trials_html(tuned, label) for label in tuned.spaces),
    }
    write_static_page(path, f"{tuned.study.name}: tuning", lead, sections)


def _pictures(tuned: Tuned) -> list[str]:
    drawn = []
    for label, spaces in tuned.spaces.items():
        mine = tuned.of(label)
        for key in spaces:
            points = [_point(tuned, trial, key, k == 0) for k, trial in enumerate(mine)]
            picture = scatter(list(reversed(points)), key, _measured(tuned))
            drawn.append(f"<figure><figcaption>{escape(label)}: {escape(key)}</figcaption>{picture}</figure>")
    return drawn


def _measured(tuned: Tuned) -> str:
    """What the pictures show: what it took to reach the target if some did, else the measure."""
    j = tuned.judge
    return f"{column(j.axis).label} to {j.measure} {j.target:g}" if _costs(tuned) else j.measure


def _costs(tuned: Tuned) -> bool:
    return tuned.judge.target is not None and any(finite(trial.score.cost) for trial in tuned.trials)


def _point(tuned: Tuned, trial: Trial, key: str, best: bool) -> Point:
    score = trial.score
    y: Any = score.cost if _costs(tuned) else tuned.judge.value(score)
    mark = "best" if best and not score.diverged else "close" if trial.close else ""
    settings = ", ".join(f"{k} = {written(v)}" for k, v in trial.values.items())
    says = f"{settings}: {tuned.judge.shown(score)} at round {trial.rounds[-1]}"
    return Point(trial.values[key], y if not score.diverged and finite(y) else None, mark, says)


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
