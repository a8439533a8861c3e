"""The page of a sweep: per algorithm a heat map over two settings or a curve over one, and the table."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxfed.errors import finite
from proxfed.report.columns import column
from proxfed.report.latex import cells, chosen_columns
from proxfed.report.small_plots import Point, heat_map, scatter
from proxfed.report.static_page import plain_html, write_static_page
from proxfed.report.summary import fairness
from proxfed.tuning.keys import written

if TYPE_CHECKING:
    from proxfed.tuning.swept import Swept


def write_page(swept: Swept, path: Path) -> None:
    """Write the figures of the sweep, and its table."""
    table = swept.table()
    about = f"{len(swept.lines)} combinations of {', '.join(swept.names)}, by {swept.judge}."
    note = f'<p class="note">{escape(said)}</p>' if (said := fairness(table)) else ""
    pictures = f'<div class="panels">{"".join(_pictures(swept))}</div>'
    key = '<p class="note">Medians over the seeds at their last recorded round; the darker, the better.</p>'
    sections = {"Sweep": pictures + key, "Result": plain_html(*cells(table, chosen_columns(table))) + note}
    write_static_page(path, f"{swept.title}: sweep", [about], sections)


def _pictures(swept: Swept) -> list[str]:
    return _curves(swept) if len(swept.names) == 1 else _heat_maps(swept)


def _curves(swept: Swept) -> list[str]:
    """Curves over a single setting."""
    (name,) = swept.names
    points: dict[str, list[Point]] = {}
    for line, value in swept.measured():
        if name in line.values:
            at: Any = line.values[name]
            shown = at if isinstance(at, (int, float)) else written(at)
            says = f"{name} = {written(at)}: {swept.judge.written(value)}"
            points.setdefault(line.algorithm, []).append(Point(shown, value if finite(value) else None, "close", says))
    return [_figure(label, scatter([some], name, _axis(swept))) for label, some in points.items()]


def _heat_maps(swept: Swept) -> list[str]:
    """Heat maps over the first two settings, for each combination of the others."""
    rows, columns = swept.names[:2]
    judge = swept.judge
    shown = judge.measure if judge.target is None else judge.axis
    drawn = []
    for label, heat in swept.heat(rows, columns).items():
        values = {(written(a), written(b)): v for (a, b), v in heat.items()}
        down, across = (list(dict.fromkeys(pair[k] for pair in values)) for k in (0, 1))
        of = column(shown, judge.directions)
        drawn.append(_figure(label, heat_map(values, down, across, rows, columns, of.kind, of.better == "higher")))
    return drawn


def _axis(swept: Swept) -> str:
    judge = swept.judge
    return judge.measure if judge.target is None else f"{column(judge.axis).label} to {judge.measure} {judge.target:g}"


def _figure(title: str, picture: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption><div>{picture}</div></figure>"
