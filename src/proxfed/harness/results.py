"""The results of a study: rows, models, status; as tables, plots, pages and data frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from proxfed.errors import InputError
from proxfed.explained import explain
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.report.client_stats import ClientStats
from proxfed.report.columns import DONE, UNDER_WAY, Directions, Row, RunStatus
from proxfed.report.summary import result_table
from proxfed.report.terminal import console
from proxfed.types import Block

__all__ = ["Cases", "Models", "ResultTable", "Results"]


class Models(Mapping[tuple[str, int], Tensor]):
    """The final models by label and seed: models["FedAvg", 0]. Read at the first access."""

    def __init__(self, read: Callable[[], tuple[dict[str, Tensor], list[Block]]] = lambda: ({}, [])) -> None:
        self._read = read
        self._found: tuple[dict[tuple[str, int], Tensor], list[Block]] | None = None

    def load(self) -> tuple[dict[tuple[str, int], Tensor], list[Block]]:
        """(models, the blocks of a model)"""
        if self._found is None:
            models, blocks = self._read()
            split = {key: key.rpartition("/") for key in models}
            self._found = {(label, int(seed)): models[key] for key, (label, _, seed) in split.items()}, blocks
        return self._found

    def __getitem__(self, key: tuple[str, int]) -> Tensor:
        models, _ = self.load()
        if key not in models:
            known = ", ".join(f"[{label!r}, {seed}]" for label, seed in models) or "none yet"
            raise InputError(f"there is no model of {key!r}; there are: {known}")
        return models[key]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self.load()[0])

    def __len__(self) -> int:
        return len(self.load()[0])


@dataclass(frozen=True, eq=False)
class Results:
    """The results of one study, or of one case of it."""

    rows: Sequence[Row]
    """A row per evaluation: algorithm, seed, round, costs and measures."""
    status: Sequence[Mapping[str, Any]] = ()
    """The status (running, interrupted, stopped, finished, diverged), round and message of each algorithm and seed."""
    clients: int | None = None
    """The number of clients; None: not known."""
    seeds: Sequence[int] = ()
    """The requested seeds, including those that have not begun."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The whole study as a table, with all defaults."""
    versions: Mapping[str, Any] = field(default_factory=dict)
    """The versions of Python, proxfed, torch and other libraries, and facts about the machine."""
    client_stats: ClientStats | None = None
    """The distribution of samples and classes over the clients; None: not known."""
    models: Models = field(default_factory=Models)
    """The final models by (label, seed), read on access."""
    name: str = "study"
    """The name of the study or case."""
    folder: Path | None = None
    """The run folder; None: nothing was kept."""

    @classmethod
    def read(cls, folder: Path | str | RunFolder) -> Results:
        """The results in a run folder, finished or not."""
        f = folder if isinstance(folder, RunFolder) else RunFolder(folder)
        settings, versions, stats, status, rows = f.contents()
        order = {table["label"]: k for k, table in enumerate(settings.get("algorithms", ())) if "label" in table}
        place = {seed: k for k, seed in enumerate(settings.get("seeds", ()))}

        def by_task(line: Mapping[str, Any]) -> tuple[int, int]:
            """The sort key for the study's order of tasks."""
            return place.get(line["seed"], len(place)), order.get(line["algorithm"], len(order))

        return cls(
            sorted(rows, key=by_task),
            sorted(status, key=by_task),
            None if stats is None else len(stats.sizes),
            settings.get("seeds", ()),
            settings,
            versions,
            stats,
            Models(f.models),
            f.path.resolve().name,
            f.path,
        )

    # ---- access ------------------------------------------------------------------------------------------------

    @property
    def blocks(self) -> list[Block]:
        """The named parts of a model."""
        return self.models.load()[1]

    @property
    def targets(self) -> Mapping[str, Sequence[float]]:
        return self.settings.get("targets", {})

    @property
    def directions(self) -> Directions:
        """Which values of measures are better, if the problem overrides the table of columns."""
        return self.settings.get("better", {})

    def labels(self) -> list[str]:
        """The algorithms that have rows, in their order."""
        return list(dict.fromkeys(row["algorithm"] for row in self.rows))

    def histories(self, label: str) -> dict[int, list[Row]]:
        """The rows of an algorithm by seed, from the first round to the last; without unfinished seeds."""
        open_ = {s["seed"] for s in self.status if s["algorithm"] == label and s["status"] in UNDER_WAY}
        mine = [row for row in self.rows if row["algorithm"] == label and row["seed"] not in open_]
        seeds: dict[int, list[Row]] = {}
        for row in sorted(mine, key=lambda row: row["round"]):
            seeds.setdefault(row["seed"], []).append(row)
        return seeds

    def diverged(self, label: str) -> dict[int, int]:
        """{seed: round} for the seeds of an algorithm that diverged."""
        mine = [s for s in self.status if s["algorithm"] == label]
        return {s["seed"]: s["round"] for s in mine if s["status"] == RunStatus.DIVERGED}

    @property
    def complete(self) -> bool:
        """Whether every algorithm has ended with every seed."""
        ended = sum(s["status"] in DONE for s in self.status)
        return ended == len(self.settings.get("algorithms", ())) * len(self.seeds)

    # ---- output ------------------------------------------------------------------------------------------------

    def table(self) -> ResultTable:
        """One entry per algorithm: the median over the seeds, each at its last recorded round."""
        return ResultTable(map(dict, self._table))

    @cached_property
    def _table(self) -> list[dict[str, Any]]:
        """The table for the page and the terminal, which show the same."""
        return result_table(self, self.targets)

    def to_pandas(self) -> Any:
        """All rows as a pandas DataFrame."""
        try:
            import pandas
        except ImportError as e:
            raise InputError("to_pandas() needs pandas, which is not installed: pip install pandas") from e
        return pandas.DataFrame(self.rows)

    def to_latex(
        self, columns: Sequence[str] = (), stat: str = "median", targets: bool = False, caption: str = ""
    ) -> str:
        """The table for a paper, in the style of booktabs, with the best number of each measure in bold.

        Parameters
        ----------
        columns : sequence of str
            Names such as "gap" and "bytes_total"; empty: the measures and the costs.
        stat : {"median", "mean"}
            With several seeds: the median with the range, or the mean with the standard deviation.
        targets : bool
            Whether to show the costs to reach the study's targets.
        caption : str
            Puts the table into an environment `table` with this caption.
        """
        from proxfed.report.latex import latex_table

        return latex_table(self.table(), columns, stat, targets, caption)

    def to_csv(self) -> str:
        """The table for a spreadsheet, with numbers in full precision and the spread over seeds."""
        from proxfed.report.latex import csv_table

        return csv_table(self.table())

    @property
    def time_origin(self) -> str:
        """The origin of the shipped profile behind simulated seconds; '' if it is not a shipped one."""
        from proxfed.simulate import origin

        with suppress(InputError):  # the trace's file may be missing
            return origin(self.settings.get("time", {}))
        return ""

    def plot(self, y: str, x: str = "round", labels: Sequence[str] = (), **options: Any) -> Any:
        """A matplotlib figure of a measure over rounds, 'bytes', 'steps', 'sim_seconds' or any other column.

        A line is the median over the seeds, its band the range. `log_x`, `log_y` choose the axes (by default
        logarithmic if values span decades); `target` draws bars of the cost at which the measure first reached it.
        A notebook shows the figure, and `.savefig("figure.pdf")` saves it.
        """
        from proxfed.report.plots import plot

        return plot({"": self}, y, x, labels, **options)

    def report(self, path: Path | str, command: str = "") -> Path:
        """Write the self-contained page of tables, curves and models; `command` is shown at its end."""
        from proxfed.report.page import write_report

        write_report([self], Path(path), command=command)
        return Path(path)

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


class Cases(dict[str, Results]):
    """The results of several problems, by their names."""

    def to_pandas(self) -> Any:
        """All rows as one pandas DataFrame, with a column that names the case."""
        rows = [{"case": case, **row} for case, results in self.items() for row in results.rows]
        return Results(rows).to_pandas()

    def plot(self, y: str, x: str = "round", labels: Sequence[str] = (), **options: Any) -> Any:
        """A matplotlib figure with a panel for each case; see Results.plot."""
        from proxfed.report.plots import plot

        return plot(self, y, x, labels, **options)

    def report(self, path: Path | str) -> Path:
        """One page about all cases."""
        from proxfed.report.page import write_report

        write_report([replace(results, name=case) for case, results in self.items()], Path(path))
        return Path(path)

    def __str__(self) -> str:
        return "\n\n".join(f"{case}\n{results}" for case, results in self.items())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(f"<h4>{escape(case)}</h4>{results._repr_html_()}" for case, results in self.items())


class ResultTable(list[dict[str, Any]]):
    """One entry per algorithm, JSON-able; shows itself in a terminal and in a notebook."""

    def __str__(self) -> str:
        from proxfed.report.summary import rich_results

        shown = console(width=200, color_system=None, force_terminal=False, force_jupyter=False)
        with shown.capture() as captured:
            shown.print(rich_results(self, 200))
        return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from proxfed.report.latex import html_table

        return html_table(self)


explain(__name__)
