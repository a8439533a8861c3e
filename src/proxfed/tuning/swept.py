"""The results of a sweep: tables with the swept settings as columns, and the numbers of its heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from proxfed.errors import nearest, require
from proxfed.explained import explain
from proxfed.harness.results import Cases, Results, ResultTable
from proxfed.registry import plain
from proxfed.tuning.criterion import Judge
from proxfed.tuning.keys import written
from proxfed.tuning.points import Values

__all__ = ["Line", "Swept"]

Heat = dict[tuple[Any, Any], float | None]
"""A number for each pair of values; None: it diverged, or never reached the target."""


class Line(NamedTuple):
    """One algorithm at one point of the grid."""

    case: str
    label: str
    """Its label in the results of its case."""
    algorithm: str
    values: Values
    """The swept settings that the algorithm has, by their short names."""


class Swept(Cases):
    """The results of every case by its name, which is '' if only settings of algorithms were swept.

    Parameters
    ----------
    found : mapping of str to Results
        The results by the name of the case.
    names : sequence of str
        The names of the swept settings.
    lines : sequence of Line
        The algorithm and the settings of every point.
    judge : Judge
        The criterion that heat maps and curves show.
    title : str
        The title of the report.
    """

    def __init__(
        self, found: Mapping[str, Results], names: Sequence[str], lines: Sequence[Line], judge: Judge, title: str
    ) -> None:
        super().__init__(found)
        self.names = list(names)
        """The names of the swept settings."""
        self.lines = list(lines)
        self.judge = judge
        self.title = title
        self.page: Path | None = None
        """The path of its report."""

    def table(self) -> ResultTable:
        """One entry per algorithm and point, with the swept settings as columns."""
        entries = {(case, e["algorithm"]): e for case, results in self.items() for e in results.table()}
        found = [(line, entries[line.case, line.label]) for line in self.lines if (line.case, line.label) in entries]
        return ResultTable({**e, "algorithm": line.algorithm, **self._columns(line)} for line, e in found)

    def _columns(self, line: Line) -> dict[str, Any]:
        values = {name: plain(line.values.get(name)) if name in line.values else None for name in self.names}
        return {**values, "swept": self.names}

    def rows(self) -> list[dict[str, Any]]:
        """All rows of all cases, with the swept settings as columns."""
        of = {(line.case, line.label): line for line in self.lines}
        out = []
        for case, results in self.items():
            for row in results.rows:
                line = of[case, row["algorithm"]]
                values = {k: v for k, v in self._columns(line).items() if k != "swept"}
                out.append({**row, "algorithm": line.algorithm, **values})
        return out

    def to_pandas(self) -> Any:
        """All rows as one pandas DataFrame, with the swept settings as columns."""
        return Results(self.rows()).to_pandas()

    def measured(self) -> list[tuple[Line, float | None]]:
        """Each point with its number: the measure at the end, or the cost to the target."""
        out: list[tuple[Line, float | None]] = []
        for line in self.lines:
            results = self.get(line.case)
            histories = [] if results is None else list(results.histories(line.label).values())
            if results is not None and histories:
                score = self.judge.score(histories, bool(results.diverged(line.label)), results.clients)
                out.append((line, self.judge.number(score)))
        return out

    def heat(self, rows: str, columns: str) -> dict[str, Heat]:
        """The numbers of the heat maps by algorithm: {(value of `rows`, value of `columns`): number}.

        Further settings give a map for each of their combinations; an algorithm without one of the two has no map.
        """
        for name in (rows, columns):
            require(name in self.names, f"{name!r} was not swept; {nearest(name, self.names)}")
        out: dict[str, Heat] = {}
        for line, value in self.measured():
            if rows in line.values and columns in line.values:
                rest = [f"{k}={written(v)}" for k, v in line.values.items() if k not in (rows, columns)]
                heat = out.setdefault(", ".join([line.algorithm, *rest]), {})
                heat[line.values[rows], line.values[columns]] = value
        return out

    def report(self, path: Path | str) -> Path:
        """The self-contained page: a heat map or a curve per algorithm, and the table."""
        from proxfed.tuning.sweep_page import write_page

        write_page(self, Path(path))
        return Path(path)

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


explain(__name__)
