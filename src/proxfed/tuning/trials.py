"""The configurations of a search as one study in a run folder, taken from rung to rung.

A configuration is an entry: "FedAvg eta=0.1". It is run to the round of its rung and put aside there with its
checkpoint, and goes on from it if it is promoted. Who is promoted follows from the rows, so a search that was stopped
anywhere comes to the same end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proxfed.harness.execute import check_folder
from proxfed.harness.plan import Planned, carry_out
from proxfed.harness.results import Results
from proxfed.harness.run_folder import DONE, RunFolder
from proxfed.harness.study import Entry, Study
from proxfed.report.columns import Row
from proxfed.tuning.halving import Ladder
from proxfed.tuning.judge import Judge, Score
from proxfed.tuning.keys import changed, short_names, written


class Stopped(Exception):
    """Somebody asked for it on the way."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One configuration, and what became of it."""

    algorithm: str
    label: str
    values: Mapping[str, Any]
    scores: tuple[Score, ...] = ()
    """On each rung that it was on."""
    rounds: tuple[int, ...] = ()
    """Of these rungs."""
    spent: int = 0
    """Rounds that were computed, with all seeds."""
    close: bool = False
    """On its last rung it was within 5 % of the best one there."""

    @property
    def score(self) -> Score:
        return self.scores[-1]

    @property
    def order(self) -> tuple[Any, ...]:
        """The best first: who got furthest, then who was better there."""
        return self.score.diverged, -len(self.scores), self.score


def name_trials(label: str, points: Sequence[Mapping[str, Any]]) -> list[Trial]:
    """A label for each configuration of an algorithm."""
    short = short_names(key for point in points for key in point)
    named = [" ".join([label, *(f"{short[k]}={written(v)}" for k, v in point.items())]) for point in points]
    return [Trial(label, name, dict(point)) for name, point in zip(named, points, strict=True)]


@dataclass
class Search:
    """Configurations of all algorithms on the rungs of one ladder, in one run folder."""

    study: Study
    """On the data that configurations are judged by, with the seeds and rounds of the search."""
    trials: Sequence[Trial]
    ladder: Ladder
    judge: Judge
    path: Path
    case: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        entries: dict[str, Entry] = {}
        for trial in self.trials:
            entries[trial.label] = replace(changed(self.study, trial.algorithm, trial.values), rounds=None)
        self.tried = replace(self.study, entries=entries)
        self.tried.check()
        self.folder = RunFolder(self.path)

    def run(self, stop: Callable[[], bool], **how: Any) -> list[Trial]:
        """All trials with their scores, in their order; goes on with what is in the folder."""
        if self.folder.exists():
            check_folder(self.tried, self.folder, resume=True, force=False)
        found = {trial.label: trial for trial in self.trials}
        going = {a: [t.label for t in self.trials if t.algorithm == a] for a in {t.algorithm: 0 for t in self.trials}}
        for rung in self.ladder.rungs:
            going = {a: labels[: rung.configurations] for a, labels in going.items()}
            everyone = [label for labels in going.values() for label in labels]
            self._advance(everyone, rung.round, stop, **how)
            measured = self._measured(everyone, rung.round)
            for label in everyone:
                score, spent = measured[label]
                old = found[label]
                scores, rounds = (*old.scores, score), (*old.rounds, rung.round)
                found[label] = replace(old, scores=scores, rounds=rounds, spent=spent)
            for a, labels in going.items():
                if not labels:  # all of them diverged
                    continue
                best = min(measured[label][0] for label in labels)
                for label in labels:
                    found[label] = replace(found[label], close=self.judge.close(measured[label][0], best))
                ranked = sorted(labels, key=lambda label: measured[label][0])
                going[a] = [label for label in ranked if not measured[label][0].diverged]
            self._forget(set(everyone) - {x for labels in going.values() for x in labels[: self._next(rung.round)]})
        return [found[trial.label] for trial in self.trials]

    def _next(self, round: int) -> int:
        """How many configurations are promoted from this round."""
        return next((rung.configurations for rung in self.ladder.rungs if rung.round > round), 0)

    def _advance(self, labels: Sequence[str], round: int, stop: Callable[[], bool], **how: Any) -> None:
        """Run these configurations to this round, those of them that are not there yet."""
        behind = [label for label in labels if not self._is_at(label, round)]
        if behind:
            planned = Planned(self.tried, self.path, resume=True, only=behind, case=self.case, until=round)
            carry_out([planned], stop, **how)
            self.folder = RunFolder(self.path)
        if stop() or not all(self._is_at(label, round) for label in labels):
            raise Stopped

    def _is_at(self, label: str, round: int) -> bool:
        states = self.folder.status() if self.folder.exists() else []
        there = [s for s in states if s["algorithm"] == label and (s["status"] in DONE or _aside(s, round))]
        return len(there) == len(self.tried.seeds)

    def _measured(self, labels: Sequence[str], round: int) -> dict[str, tuple[Score, int]]:
        """The score of each configuration after this round, and the rounds that it took until there."""
        rows: dict[str, dict[int, list[Row]]] = {label: {} for label in labels}
        results = Results.read(self.folder)
        for row in results.rows:
            if row["algorithm"] in rows and row["round"] <= round:
                rows[row["algorithm"]].setdefault(row["seed"], []).append(row)
        found = {}
        for label in labels:
            histories = [sorted(history, key=lambda row: row["round"]) for history in rows[label].values()]
            spent = sum(history[-1]["round"] for history in histories)
            lost = any(t <= round for t in results.diverged(label).values())
            found[label] = self.judge.score(histories, lost, results.clients), spent
        return found

    def _forget(self, labels: set[str]) -> None:
        """Checkpoints of configurations that are out; their rows stay."""
        for label in labels:
            for seed in self.tried.seeds:
                for slot in self.folder.task(label, seed, ()).path.glob("*.safetensors"):
                    slot.unlink(missing_ok=True)


def _aside(status: Mapping[str, Any], round: int) -> bool:
    return status["status"] == "stopped" and status["round"] >= round
