"""Our numbers beside a paper's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from proxfed.harness.results import Results
from proxfed.papers.paper_schema import Reported
from proxfed.papers.quantities import axis_end, seed_median, seed_values, written
from proxfed.report.targets import NEVER

AXES = {"round": "rounds", "sim_seconds": "simulated seconds"}
"""Names of axes in text, if they differ."""


class Comparison(NamedTuple):
    """A number reported by the paper, and ours over the seeds."""

    case: str
    reported: Reported
    label: str
    paper: float | str
    ours: list[float]
    """Our number per seed, NEVER if a target was not reached; empty if it was not run."""
    end: float | None
    """The end of our runs on the axis."""

    @property
    def measure(self) -> str:
        """The quantity, in words."""
        r = self.reported
        if r.target is None:
            return f"best {r.measure}" if r.best else r.measure
        return f"{AXES.get(r.axis, r.axis)} to {r.measure} {r.target:g}"

    @property
    def printed(self) -> str:
        """The paper's number."""
        return self.paper if isinstance(self.paper, str) else written(self.paper, self.reported.counts, 6)

    @property
    def found(self) -> str:
        """The median, and the range if seeds differ."""
        ours = seed_median(self.ours, self.reported.target)
        if ours is None:
            return "not run"
        low, high = min(self.ours), max(self.ours)
        spread = "" if low == high else f" ({self._show(low)} .. {self._show(high)})"
        return self._show(ours) + spread

    def _show(self, value: float) -> str:
        if value == NEVER and self.reported.target is not None and self.end is not None:
            return f"> {written(self.end, self.reported.axis, 6)}"
        return written(value, self.reported.counts)


def compare(reported: Reported, results: Mapping[str, Results]) -> Iterator[Comparison]:
    """Each reported number beside ours, in its case or in every case that has the algorithm."""
    for label, paper in reported.values.items():
        having = [case for case, r in results.items() if label in r.labels()] or [""]
        for case in having if reported.case is None else [reported.case]:
            r = results.get(case, Results([]))
            ours = list(seed_values(reported, r, label).values())
            yield Comparison(case, reported, label, paper, ours, axis_end(reported, r, label))
