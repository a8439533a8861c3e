"""The result of a tuning: the tuned study, all trials, and the sensitivity to the choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from proxfed import __version__, files
from proxfed.errors import InputError, real
from proxfed.explained import explain
from proxfed.harness.results import Results
from proxfed.harness.study import Study
from proxfed.registry import Table, plain
from proxfed.tuning.criterion import Judge
from proxfed.tuning.halving import Ladder
from proxfed.tuning.keys import changed, present, written
from proxfed.tuning.space import Space
from proxfed.tuning.trials import Trial

__all__ = ["Tuned", "applied", "file_table", "record"]

Best = Mapping[str, Mapping[str, Any]]
"""Values by label and key."""


def applied(study: Study, best: Best, records: Mapping[str, Table]) -> Study:
    """The study with these settings, and a record of how each was found."""
    tuned = {label: replace(changed(study, label, values), tuned=records[label]) for label, values in best.items()}
    again = None if study.again is None else partial(_again, study.again, best, records)
    return replace(study, entries={**study.entries, **tuned}, again=again)


def _again(
    again: Callable[[Mapping[str, Any]], Study], best: Best, records: Mapping[str, Table], changes: Mapping[str, Any]
) -> Study:
    return applied(again(changes), best, records)


def record(trials: Sequence[Trial], spaces: Mapping[str, Space], request: Table) -> Table:
    """The record of the tuning for an algorithm's entry; the best trial is the first."""
    diverged = sum(trial.score.diverged for trial in trials)
    out: Table = {
        "configurations": len(trials),
        "rounds": sum(trial.spent for trial in trials),
        "budget": request["budget"],
        "seeds": request["seeds"],
        "diverged": diverged,
        "over": {key: str(space) for key, space in spaces.items()},
        "values": {} if diverged == len(trials) else plain(dict(trials[0].values)),
    }
    return out | {key: request[key] for key in ("search", "measure", "target", "axis", "validation") if key in request}


@dataclass(frozen=True, eq=False)
class Tuned:
    """A tuned study, and the trials behind it."""

    study: Study
    """The study with the best settings; its runs start anew, with its own seeds, on all training data."""
    before: Study
    """The study before tuning."""
    trials: Sequence[Trial]
    """All configurations of all algorithms."""
    judge: Judge
    """The criterion by which configurations were compared."""
    ladder: Ladder
    """How many configurations ran for how many rounds."""
    budget: int
    """Rounds per algorithm."""
    spaces: Mapping[str, Mapping[str, Space]]
    """The search spaces, by label and key."""
    folder: Path | None = None
    """The run folder; None: nothing was kept."""

    def of(self, label: str) -> list[Trial]:
        """The trials of an algorithm, the best first."""
        return sorted((trial for trial in self.trials if trial.algorithm == label), key=lambda trial: trial.order)

    def table(self) -> list[dict[str, Any]]:
        """One JSON-able entry per algorithm and setting: the best value, and the values within 5 % of its score."""
        out = []
        for label, spaces in self.spaces.items():
            mine = self.of(label)
            best, close = mine[0], [trial for trial in mine if trial.close]
            lost = best.score.diverged
            for key, space in spaces.items():
                values = [trial.values[key] for trial in close]
                out.append(
                    {
                        "algorithm": label,
                        "setting": key,
                        "before": plain(present(self.before.complete[label], key)),
                        "best": None if lost else best.values[key],
                        "within 5 %": _range(values),
                        "close": len(close),
                        self.judge.measure: None if lost else self.judge.value(best.score),
                        "judged": self.judge.shown(best.score),
                        "searched": str(space),
                        "edge": "" if lost else _edge(best.values[key], [trial.values[key] for trial in mine]),
                        "configurations": len(mine),
                        "diverged": sum(trial.score.diverged for trial in mine),
                        "rounds": sum(trial.spent for trial in mine),
                    }
                )
        return out

    def rows(self) -> list[dict[str, Any]]:
        """One JSON-able entry per configuration."""
        return [
            {
                "algorithm": trial.algorithm,
                **{f"{key}": plain(value) for key, value in trial.values.items()},
                "round": trial.rounds[-1],
                self.judge.measure: self.judge.value(trial.score),
                "judged": self.judge.shown(trial.score),
                "close": trial.close,
                "rounds spent": trial.spent,
            }
            for trial in self.trials
        ]

    def to_pandas(self) -> Any:
        """All configurations as a pandas DataFrame."""
        return Results(self.rows()).to_pandas()

    def notes(self) -> list[str]:
        """Caveats, one sentence each."""
        said = []
        for entry in self.table():
            name = f"{entry['algorithm']}: {entry['setting']}"
            if entry["diverged"] == entry["configurations"]:
                count = entry["configurations"]
                said.append(f"{entry['algorithm']}: all {count} configurations diverged, so its settings are unchanged")
            if entry["edge"]:
                beyond = {"smallest": "smaller", "largest": "larger"}[entry["edge"]]
                tried = f"is the {entry['edge']} that was tried: a {beyond} one may be better"
                said.append(f"{name} = {written(entry['best'])} {tried}")
        efforts = {label: len(self.of(label)) for label in self.spaces}
        if len({*efforts.values()}) > 1:
            each = ", ".join(f"{label} {count}" for label, count in efforts.items())
            said.append(f"the effort is not the same for all, where a space has few points: configurations of {each}")
        left = [label for label in self.study.entries if label not in self.spaces]
        if left:
            said.append(f"not tuned: {', '.join(left)}")
        return list(dict.fromkeys(said))

    def to_toml(self) -> str:
        """The tuned study as a TOML file for `proxfed run`."""
        if self.study.written is None:
            raise InputError(
                "a study that was made of objects has no file: use `tuned.study`, or read the study from a file"
            )
        return "\n".join([*map("# {}".format, self._comments()), "", tomli_w.dumps(file_table(self.study))])

    def _comments(self) -> list[str]:
        lines = [f"{self.study.name}, tuned by proxfed {__version__}; judged by {self.judge}."]
        for entry in self.table():
            where = f"from {entry['searched']} by {entry['configurations']} configurations in {entry['rounds']} rounds"
            if entry["best"] is None:
                lines.append(f"{entry['algorithm']}: {entry['setting']} stays, for all diverged: {where}")
                continue
            best, before = written(entry["best"]), written(entry["before"])
            close = f"within 5 %: {entry['within 5 %']}"
            lines.append(f"{entry['algorithm']}: {entry['setting']} = {best} (was {before}), {where}; {close}")
        return [*lines, *self.notes()]

    def write(self, folder: Path) -> None:
        """Write the page, and the tuned study if it has a file, to a folder."""
        self.report(folder / "report.html")
        if self.study.written is not None:
            files.replace(folder / "tuned.toml", self.to_toml().encode())

    def report(self, path: Path | str) -> Path:
        """Write the self-contained page of all trials."""
        from proxfed.tuning.tune_page import write_page

        write_page(self, Path(path))
        return Path(path)

    def __str__(self) -> str:
        from proxfed.tuning.tune_page import text

        return text(self)

    __repr__ = __str__


def _range(values: Sequence[Any]) -> str:
    """From the smallest to the largest, or all of them."""
    if values and all(map(real, values)):
        low, high = min(values), max(values)
        return written(low) if low == high else f"{written(low)} to {written(high)}"
    return ", ".join(dict.fromkeys(map(written, values)))


def _edge(best: Any, tried: Sequence[Any]) -> str:
    """'smallest' or 'largest', if there are at least three numbers."""
    if not all(map(real, tried)) or len({*tried}) < 3:
        return ""
    return {min(tried): "smallest", max(tried): "largest"}.get(best, "")


def file_table(study: Study) -> Table:
    """The settings of a study in the form of a file, with settings shared by all algorithms given once."""
    table = {k: v for k, v in study.settings.items() if k not in ("paper", "claims", "reported")}
    table = {k: v for k, v in table.items() if v not in ("", [], {})}
    own = [dict(entry) for entry in table["algorithms"]]
    for entry in own:
        if entry.get("rounds") == table["rounds"]:
            del entry["rounds"]
    for key in ("participation", "topology"):
        shared = [entry[key] for entry in own if key in entry]
        if shared and all(one == shared[0] for one in shared):
            table[key] = shared[0]
            for entry in own:
                entry.pop(key, None)
    return {k: v for k, v in table.items() if k != "algorithms"} | {"algorithms": own}


explain(__name__)
