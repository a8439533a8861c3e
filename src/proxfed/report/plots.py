"""Plots of results with matplotlib: a measure over rounds, bytes or seconds; one panel for each case.

A line, or a bar, is the median over the seeds; its band reaches from the smallest to the largest value. An algorithm
has the same colour and marker in all panels and figures. The same rows give identical files.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from proxfed.errors import nearest, require
from proxfed.files import write
from proxfed.report.columns import COMPUTED, Column, axis_value, column
from proxfed.report.curves import Curve, make_curve
from proxfed.report.targets import NEVER, first_reached

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from proxfed.harness.results import Results

MISSING = "figures need matplotlib, which is not installed: pip install 'proxfed[figures]'"

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b04a8f", "#c98a00", "#8c2d04", "#5c6672", "#7a4fbf")
"""The colours of a run's page, which colour-blind readers can distinguish; the markers help."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "*")
DASHES = ("-", "--", ":")
MOST_ACROSS = 3
DECADES = 10.0
"""The ratio between lines' ends from which an axis is logarithmic by default."""
POINTS = 150
"""Approximate number of points per line: more would not be visible, only make the files large."""
MARKED = 0.14
"""The distance between markers, as a share of a panel's diagonal."""


class Figure(Protocol):
    """The description of a figure (a paper's: papers/paper_schema.py)."""

    @property
    def name(self) -> str: ...
    @property
    def y(self) -> str: ...
    @property
    def x(self) -> str: ...
    @property
    def target(self) -> float | None:
        """If given: bars instead of lines, for the first `x` at which the measure reached this."""

    @property
    def log_x(self) -> bool: ...
    @property
    def log_y(self) -> bool: ...
    @property
    def cases(self) -> Sequence[str]:
        """The cases to show; all if empty."""

    @property
    def labels(self) -> Sequence[str]:
        """The algorithms to show; all if empty."""

    @property
    def together(self) -> bool:
        """Whether all cases are in one panel, where their labels differ."""


class Plot(NamedTuple):
    """The figure that `Results.plot` draws."""

    y: str
    x: str = "round"
    labels: Sequence[str] = ()
    target: float | None = None
    log_x: bool = False
    log_y: bool = False
    cases: Sequence[str] = ()
    together: bool = False
    name: str = ""


def plot(
    cases: Mapping[str, Results],
    y: str,
    x: str = "round",
    labels: Sequence[str] = (),
    *,
    target: float | None = None,
    log_x: bool | None = None,
    log_y: bool | None = None,
) -> Drawing:
    """One panel for each case.

    By default the y axis is logarithmic for measures that go to zero, such as the gap, and the x axis is logarithmic
    for bytes and wherever the algorithms end decades apart.
    """
    require(available(), MISSING)
    rows = [row for results in cases.values() for row in results.rows]
    drawn = list(dict.fromkeys(label for results in cases.values() for label in results.labels()))
    known = sorted({name for row in rows for name, value in row.items() if isinstance(value, (int, float))})
    for key, name in (("y", y), ("x", x)):
        axis = name in known or (key == "x" and name in COMPUTED)
        require(axis, f"{key} = {name!r}: no row has such a number; {nearest(name, [*known, *COMPUTED])}")
    for label in labels:
        require(label in drawn, f"there is no {label!r}; {nearest(label, drawn)}")
    log = column(y).log and target is None if log_y is None else log_y
    figure = Plot(y, x, labels, target, bool(log_x), log)
    panels = make_panels(figure, cases)
    if log_x is None and target is None and (x.startswith("bytes") or any(map(_decades_apart, panels))):
        figure = figure._replace(log_x=True)
        panels = make_panels(figure, cases)
    return _draw_figure(figure, panels, _looks(drawn))


def _decades_apart(panel: Panel) -> bool:
    """Whether some lines would collapse at the left end of a linear axis."""
    ends = [float(np.nanmax(line.x)) for line in panel.lines]
    ends = [end for end in ends if end > 0]
    return len(ends) > 1 and max(ends) >= DECADES * min(ends)


class Line(NamedTuple):
    """One algorithm in one panel; nan for values that the figure cannot show.

    A bar is a line of one point, with NEVER if a target was not reached.
    """

    label: str
    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    diverged: bool
    """Whether more than half of its seeds diverged."""


class Panel(NamedTuple):
    """The lines of one case, or of all of them."""

    title: str
    lines: list[Line]


def available() -> bool:
    """Whether figures can be drawn."""
    return find_spec("matplotlib") is not None


def write_figures(
    figures: Sequence[Figure], cases: Mapping[str, Results], out: Path, formats: Sequence[str] = ("svg", "png")
) -> list[Path]:
    """Draw every figure from the cases' results; returns the first file of each.

    A figure is left out if none of its cases was run.
    """
    require(available(), MISSING)
    known = [label for results in cases.values() for label in results.labels()]
    written = []
    for figure in figures:
        panels = make_panels(figure, cases)
        drawn = [line.label for panel in panels for line in panel.lines]
        if drawn:
            written.append(
                _write(figure, panels, _looks([*known, *drawn]), [out / f"{figure.name}.{f}" for f in formats])
            )
    return written


# ---- content --------------------------------------------------------------------------------------------------------


def make_panels(figure: Figure, cases: Mapping[str, Results]) -> list[Panel]:
    """The lines of each panel."""
    chosen = {case: results for case, results in cases.items() if not figure.cases or case in figure.cases}
    panels = [Panel(case, _lines(figure, results)) for case, results in chosen.items()]
    return [_joined(panels)] if figure.together else panels


def _joined(panels: Sequence[Panel]) -> Panel:
    """All lines in one panel; a label that occurs twice names its case."""
    labels = [line.label for panel in panels for line in panel.lines]
    lines = [
        line if labels.count(line.label) == 1 else line._replace(label=f"{panel.title}: {line.label}")
        for panel in panels
        for line in panel.lines
    ]
    return Panel("", lines)


def _lines(figure: Figure, results: Results) -> list[Line]:
    if figure.target is not None:
        labels = [label for label in results.labels() if not figure.labels or label in figure.labels]
        return [bar for label in labels if (bar := _bar(figure, figure.target, results, label)) is not None]
    axis, measure = Column("axis", "", "number"), Column(figure.y, "", "number")
    lines = []
    for label in results.labels():
        if not figure.labels or label in figure.labels:
            mine = [row for row in results.rows if row["algorithm"] == label]
            placed = [{**row, "axis": axis_value(row, figure.x, results.clients)} for row in mine]
            states = [state for state in results.status if state["algorithm"] == label]
            line = _line(figure, make_curve(label, placed, states, [axis], [measure], POINTS))
            if np.isfinite(line.x + line.middle).any():
                lines.append(line)
    return lines


def _bar(figure: Figure, target: float, results: Results, label: str) -> Line | None:
    """The position at which half of the seeds had reached the target; None if nothing was measured."""
    of, own = (figure.y, target, figure.x, results.clients), results.directions
    found = [first_reached(history, *of, own) for history in results.histories(label).values()]
    places = [where for where in found if where is not None]
    if not places:
        return None
    middle, low, high = (np.array([place]) for place in (median_low(places), min(places), max(places)))
    return Line(label, np.zeros(1), middle, low, high, diverged=False)


def _line(figure: Figure, curve: Curve) -> Line:
    def showable(values: Sequence[float | None], log: bool) -> np.ndarray:
        numbers = np.array(values, dtype=float)
        return np.where(numbers > 0, numbers, np.nan) if log else numbers

    middle = showable(curve.middle[figure.y], figure.log_y)
    low, high = (showable(part[figure.y], figure.log_y) if part else middle for part in (curve.low, curve.high))
    return Line(
        curve.label, showable(curve.x["axis"], figure.log_x), middle, low, high, 2 * curve.diverged > curve.seeds
    )


def _looks(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The colour, marker and dash of each algorithm, by its index in the experiment."""
    return {
        label: {
            "color": COLOURS[k % len(COLOURS)],
            "marker": MARKERS[k % len(MARKERS)],
            "linestyle": DASHES[k // len(COLOURS) % len(DASHES)],
        }
        for k, label in enumerate(dict.fromkeys(labels))
    }


def axis_words(name: str, values: Iterable[np.ndarray]) -> tuple[str, float]:
    """(the axis label, the unit that its numbers are divided by)."""
    words = column(name).words or column(name).label
    if not name.startswith("bytes"):
        return words, 1.0
    largest = max((float(np.nanmax(v)) for v in values if np.isfinite(v).any()), default=0.0)
    power = min(4, max(0, int(math.log10(max(largest, 1.0)) // 3)))
    return f"{words} [{('B', 'kB', 'MB', 'GB', 'TB')[power]}]", 1000.0**power


def _axes(figure: Figure, lines: Sequence[Line]) -> tuple[tuple[str, float], tuple[str, float]]:
    """(label, unit that numbers are divided by) of both axes; bars have no numbers below them."""
    if figure.target is None:
        return axis_words(figure.x, [line.x for line in lines]), axis_words(figure.y, [line.high for line in lines])
    along = axis_words(figure.x, [place for line in lines for place in (line.low, line.middle)])
    return ("", 1.0), (f"{along[0]}\nuntil {axis_words(figure.y, [])[0]} is {figure.target:g}", along[1])


# ---- drawing --------------------------------------------------------------------------------------------------------

PANEL = (3.5, 2.8)
"""Inches."""
LETTER = 0.085
"""The largest width of a letter of the legend, in inches."""
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e3e5e8",
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "legend.frameon": False,
    "savefig.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "proxfed",
}


def _write(figure: Figure, panels: Sequence[Panel], looks: Mapping[str, dict[str, Any]], files: Sequence[Path]) -> Path:
    drawing = _draw_figure(figure, panels, looks)
    with _style():
        for file in files:
            _save(drawing, file)
    return files[0]


@contextmanager
def _style() -> Iterator[None]:
    """Only our own style: with the user's, files would differ."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def _draw_figure(figure: Figure, panels: Sequence[Panel], looks: Mapping[str, dict[str, Any]]) -> Drawing:
    from proxfed.report.picture import Picture

    across = min(MOST_ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    lines = [line for panel in panels for line in panel.lines]
    drawn = {line.label for line in lines}
    shown = [label for label in looks if label in drawn]
    columns = max(1, min(len(shown), int(across * PANEL[0] / (LETTER * (max(map(len, shown)) + 4)))))
    height = down * PANEL[1] + 0.2 * math.ceil(len(shown) / columns)
    x, y = _axes(figure, lines)
    with _style():
        drawing = Picture(figsize=(across * PANEL[0], height), layout="constrained")
        places = list(drawing.subplots(down, across, squeeze=False).flat)
        handles: dict[str, Any] = {}
        for axes, panel in zip(places, panels, strict=False):
            if figure.target is None:
                handles |= _draw(axes, figure, panel, looks, (x[1], y[1]))
            else:
                handles |= _bars(axes, panel, looks, y[1])
            axes.set(title=_plain(panel.title), xlabel=_plain(x[0]), ylabel=_plain(y[0]))
        for axes in places[len(panels) :]:
            axes.remove()
        names = [_plain(label) for label in shown]
        drawing.legend([handles[label] for label in shown], names, loc="outside lower center", ncols=columns)
    return drawing


def _plain(text: str) -> str:
    """Escape dollar signs, so that text is never a formula."""
    return text.replace("$", r"\$")


def _save(drawing: Any, file: Path) -> None:
    """Save without date and version, so that files are reproducible."""
    data = io.BytesIO()
    nameless = {"Date": None, "Creator": None} if file.suffix == ".svg" else {"Software": None}
    drawing.savefig(data, format=file.suffix[1:], metadata=nameless)
    write(file, _short(data.getvalue()) if file.suffix == ".svg" else data.getvalue(), "the figure ", folders=True)


def _draw(
    axes: Any, figure: Figure, panel: Panel, looks: Mapping[str, dict[str, Any]], units: tuple[float, float]
) -> dict[str, Any]:
    """One panel; lines that diverged come last and do not stretch it."""
    if panel.lines and figure.log_x:
        axes.set_xscale("log")
    if panel.lines and figure.log_y:
        axes.set_yscale("log")
    handles = {}
    for k, line in enumerate(sorted(panel.lines, key=lambda line: line.diverged)):
        look, x = looks[line.label], line.x / units[0]
        middle, low, high = (values / units[1] for values in (line.middle, line.low, line.high))
        if k and line.diverged:
            bottom, top = axes.set_ylim(axes.get_ylim())
            beyond = bottom - 10 * (top - bottom), top + 10 * (top - bottom)
            middle, low, high = (np.clip(values, *beyond) for values in (middle, low, high))
        (handles[line.label],) = axes.plot(x, middle, markevery=(0.035 * (k % 4), MARKED), **look)
        if line.low is not line.middle:
            axes.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)
    if lost := [line.label for line in panel.lines if line.diverged]:
        said = "\n".join(f"{label} diverged" for label in lost)
        axes.text(0.98, 0.97, said, transform=axes.transAxes, ha="right", va="top", fontsize=7.5, color="#5b6675")
    return handles


def _bars(axes: Any, panel: Panel, looks: Mapping[str, dict[str, Any]], unit: float) -> dict[str, Any]:
    """One panel of bars, with the range over the seeds as a thin line; a note marks a target that was not reached.

    If one of the seeds did not reach it, the line leaves the panel with an arrow.
    """
    handles, ranges = {}, []
    for k, line in enumerate(panel.lines):
        middle, low, high = (float(place[0]) / unit for place in (line.middle, line.low, line.high))
        handles[line.label] = axes.bar(k, middle if middle < NEVER else 0, color=looks[line.label]["color"], zorder=2)
        if middle == NEVER:
            side = "right" if low < NEVER else "center"  # beside the line
            axes.text(k, 0, " not reached", rotation=90, ha=side, va="bottom", fontsize=7.5, color="#5b6675")
        if low < high:
            ranges.append((k, low, high))
    tops = [place for _, low, high in ranges for place in (low, high) if place < NEVER]
    top = max([axes.get_ylim()[1], *(1.05 * place for place in tops)])
    axes.set_ylim(0, top)
    for k, low, high in ranges:
        axes.vlines(k, low, min(high, top), color="#20262e", linewidth=1, zorder=3)
        if high == NEVER:
            axes.plot(k, top, marker="^", color="#20262e", clip_on=False, zorder=3)
    axes.set_xticks([])
    return handles


def _short(svg: bytes) -> bytes:
    """Round paths to two decimals: smaller files, and identical ones on machines that round differently."""
    number = re.compile(rb"-?\d+\.\d+")
    return re.sub(rb' d="[^"]*"', lambda path: number.sub(lambda n: b"%.2f" % float(n[0]), path[0]), svg)
