"""The configurations of a search, run rung by rung as one study in a run folder.

A configuration is an entry: "FedAvg eta=0.1". It is run to the round of its rung, keeps its checkpoint, and resumes
from it if it is promoted. Promotions depend on the rows alone, so a resumed search has the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.plan import Planned, carry_out
from proxfed.harness.results import Results
from proxfed.harness.study import Entry, Study
from proxfed.report.columns import DONE, Row, RunStatus
from proxfed.tuning.criterion import DIVERGED, Judge, Score, fell_apart
from proxfed.tuning.halving import Ladder, Rung
from proxfed.tuning.keys import changed, short_names, written


class Stopped(Exception):
    """The search was interrupted by Ctrl-C or another `stop`."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One configuration, and its results."""

    algorithm: str
    label: str
    values: Mapping[str, Any]
    scores: tuple[Score, ...] = ()
    """Its score on each rung that it reached."""
    rounds: tuple[int, ...] = ()
    """The rounds of these rungs."""
    spent: int = 0
    """The number of rounds computed, over all seeds."""
    close: bool = False
    """Whether it was within 5 % of the best on its last rung."""

    @property
    def score(self) -> Score:
        """The score on its last rung."""
        return self.scores[-1]

    @property
    def order(self) -> tuple[Any, ...]:
        """The sort key, best first: by the last rung, then by the score there."""
        return self.score.diverged, -len(self.scores), self.score


def name_trials(label: str, points: Sequence[Mapping[str, Any]]) -> list[Trial]:
    """A label for each configuration of an algorithm."""
    short = short_names(key for point in points for key in point)
    named = [" ".join([label, *(f"{short[k]}={written(v)}" for k, v in point.items())]) for point in points]
    return [Trial(label, name, dict(point)) for name, point in zip(named, points, strict=True)]


@dataclass
class Search:
    """The configurations of all algorithms on the rungs of one ladder, in one run folder."""

    study: Study
    """The study on validation data, with the seeds and rounds of the search."""
    trials: Sequence[Trial]
    ladder: Ladder
    judge: Judge
    path: Path
    case: str = ""

    def __post_init__(self) -> None:
        """Refuse invalid configurations."""
        entries: dict[str, Entry] = {}
        for trial in self.trials:
            entries[trial.label] = replace(changed(self.study, trial.algorithm, trial.values), rounds=None)
        self.tried = replace(self.study, entries=entries)
        self.tried.check()
        self.folder = RunFolder(self.path)
        self.results: Results | None = None
        """The results in the folder, if there are any."""

    def run(self, stop: Callable[[], bool], **how: Any) -> list[Trial]:
        """All trials with their scores, in order; resumes the search in the folder."""
        self.planned = Planned(self.tried, self.folder, resume=True, case=self.case)
        self.found = {trial.label: trial for trial in self.trials}
        ranked: dict[str, list[str]] = {}
        for trial in self.trials:
            ranked.setdefault(trial.algorithm, []).append(trial.label)
        for rung in self.ladder.rungs:
            on = self._fill(rung, ranked, partial(self._advance, rung.round, stop, how))
            self._forget(
                {label for labels in ranked.values() for label in labels} - {x for own in on.values() for x in own}
            )
            for algorithm, labels in on.items():
                order = sorted(labels, key=lambda label: self.found[label].score)
                for label in order:
                    close = self.judge.close(self.found[label].score, self.found[order[0]].score)
                    self.found[label] = replace(self.found[label], close=close)
                ranked[algorithm] = [label for label in order if not self.found[label].score.diverged]
        self._forget(set(self.found))
        return [self.found[trial.label] for trial in self.trials]

    def _fill(
        self, rung: Rung, ranked: Mapping[str, list[str]], advance: Callable[[list[str]], None]
    ) -> dict[str, list[str]]:
        """Run the configurations of each algorithm on a rung to its round.

        Configurations that diverge or get much worse there are replaced by the next best ones while the budget lasts;
        the rounds of later rungs are only used if no configuration is left.
        """
        on: dict[str, list[str]] = {algorithm: [] for algorithm in ranked}
        while True:
            fresh: list[str] = []
            for algorithm, labels in ranked.items():
                waiting = [label for label in labels if label not in on[algorithm]]
                standing = sum(not self.found[label].score.diverged for label in on[algorithm])
                budget = (self.ladder.until(rung) if standing else self.ladder).cost()
                left = budget - sum(t.spent for t in self.found.values() if t.algorithm == algorithm)
                for label in waiting[: rung.configurations - standing]:
                    trial = self.found[label]
                    left -= len(self.tried.seeds) * rung.round - trial.spent
                    if left >= 0:
                        fresh.append(label)
                        on[algorithm].append(label)
            if not fresh:
                return on
            advance(fresh)
            for label, (score, spent) in self._measured(fresh, rung.round).items():
                old = self.found[label]
                if old.scores and fell_apart(score, old.score):
                    score = DIVERGED
                scores, rounds = (*old.scores, score), (*old.rounds, rung.round)
                self.found[label] = replace(old, scores=scores, rounds=rounds, spent=spent)

    def _advance(self, round: int, stop: Callable[[], bool], how: Mapping[str, Any], labels: Sequence[str]) -> None:
        """Run those of these configurations that have not reached this round."""
        behind = [label for label in labels if not self._is_at(label, round)]
        if behind:
            self.planned.only, self.planned.until = behind, round
            (self.results,) = carry_out([self.planned], stop, **how)
        if stop() or not all(self._is_at(label, round) for label in labels):
            raise Stopped

    def _is_at(self, label: str, round: int) -> bool:
        states = self.folder.status() if self.folder.exists() else []
        there = [s for s in states if s["algorithm"] == label and (s["status"] in DONE or _aside(s, round))]
        return len(there) == len(self.tried.seeds)

    def _measured(self, labels: Sequence[str], round: int) -> dict[str, tuple[Score, int]]:
        """The score of each configuration after this round, and the rounds computed so far."""
        rows: dict[str, dict[int, list[Row]]] = {label: {} for label in labels}
        results = self.results or Results.read(self.folder)
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
        """Remove the checkpoints of eliminated configurations; their rows stay."""
        for label in labels:
            for seed in self.tried.seeds:
                for slot in self.folder.task(label, seed, ()).path.glob("*.safetensors"):
                    slot.unlink(missing_ok=True)


def _aside(status: Mapping[str, Any], round: int) -> bool:
    return status["status"] == RunStatus.ASIDE and status["round"] >= round
