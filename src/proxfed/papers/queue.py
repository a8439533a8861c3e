"""The papers' experiments that are still to be run, in order, with their expected cost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from proxfed.data import read as read_data
from proxfed.data.federated import Federated
from proxfed.errors import MissingData
from proxfed.harness.experiment import Experiment, slug
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.results import Results
from proxfed.harness.settings_diff import by_key, other_values
from proxfed.papers import results_store
from proxfed.papers.paper_file import PaperFile
from proxfed.papers.reproduce import Part, as_recorded, form_name, papers, select, stem
from proxfed.papers.results_format import KeptRun, Place
from proxfed.papers.run_costs import Cost, Speeds
from proxfed.report.columns import DONE

MOST = 0.95
"""Partitions may leave out some samples; runs with a smaller fraction than this used a subsample of the data."""


@dataclass(frozen=True)
class Waiting:
    """A case of an experiment that is still to be run, with its missing seeds."""

    name: str  # composite_fl/fig1_full
    case: str
    quick: bool
    seeds: Sequence[int]
    cost: Cost
    begun: bool
    """Whether it has a run folder, which is then resumed."""
    missing: str = ""
    """The reason why it cannot be run: missing data."""

    def __str__(self) -> str:
        return f"{self.name}, {self.case}" if self.case else self.name

    def part(self, out: Path) -> Part:
        """The part of `proxfed reproduce` that runs it."""
        only = [self.case] if self.case else []
        (part,) = select(self.name, out, quick=self.quick, cases=only, changes=[f"seeds={list(self.seeds)}"])
        return part


def waiting(
    names: Iterable[str], out: Path, results: Path, *, quick: bool, directory: str | None = None
) -> list[Waiting]:
    """The cases of these experiments that are neither in `results` nor in the run folders in `out`, cheapest first.

    Cases of unknown cost come after them, and cases without data last.
    """
    speeds = Speeds.read(results, [name for some in papers().values() for name in some])
    found = [case for name in names for case in _of(name, out, results, speeds, quick, directory)]
    return sorted(found, key=lambda w: (bool(w.missing), inf if w.cost.seconds is None else w.cost.seconds))


def _of(name: str, out: Path, results: Path, speeds: Speeds, quick: bool, directory: str | None) -> Iterator[Waiting]:
    """The cases of one experiment."""
    kept, form = results_store.read(results, name), form_name(quick, None)
    for case, experiment in PaperFile(name).form(quick=quick).items():
        settings, missing = by_key(as_recorded(experiment)), ""
        try:
            clients, held = _clients(experiment, directory)
        except MissingData as e:
            clients, held, missing = 0, 0, str(e)
        have = _kept_seeds(kept.get(Place.of(form, case)), settings, held)
        seeds = [seed for seed in experiment.seeds if seed not in have]
        folder = RunFolder(out / stem(name) / form / slug(case))
        begun = folder.exists()
        if seeds and not (begun and _complete(folder, settings["algorithms"], seeds)):
            cost = Cost(None, "") if missing else speeds.cost(name, settings, clients, held, len(seeds))
            yield Waiting(name, case, quick, seeds, cost, begun, missing)


def _kept_seeds(run: KeptRun | None, settings: dict[str, Any], held: int) -> set[int]:
    """Those of which every algorithm is kept, as it would be run now, and not of a sample where there are more data."""
    if run is None or other_values(run.settings, settings) or (run.sizes and sum(run.sizes) < MOST * held):
        return set()
    return _ended(run.status, settings["algorithms"])


def _complete(folder: RunFolder, labels: Sequence[str], seeds: Sequence[int]) -> bool:
    return {*seeds} <= _ended(Results.read(folder).status, labels)


def _ended(status: Sequence[Any], labels: Sequence[str]) -> set[int]:
    """The seeds with which all algorithms have come to an end."""
    ended = {(s["algorithm"], s["seed"]) for s in status if s["status"] in DONE}
    return {seed for _, seed in ended if all((label, seed) in ended for label in labels)}


def _clients(experiment: Experiment, directory: str | None) -> tuple[int, int]:
    """(number of clients, number of samples)"""
    table = {key: value for key, value in experiment.data.items() if key != "partition"}
    clients, held = _size(directory, json.dumps(table, sort_keys=True))
    return experiment.data.get("partition", {}).get("num_partitions", clients), held


@lru_cache
def _size(directory: str | None, table: str) -> tuple[int, int]:
    """(clients, or groups that may become clients, samples) of a dataset, of which only the numbers are remembered."""
    data = read_data(directory=directory, **json.loads(table))
    if isinstance(data, Federated):
        return len(data), int(data.sizes.sum())
    return 1 if data.groups is None else len({*data.groups.tolist()}), len(data.labels)
