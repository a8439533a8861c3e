"""The stored results of the papers' experiments, small enough for the repository: a few files for each.

    results/PAPER/EXPERIMENT.csv.gz      every row: form, variant, case, algorithm, seed, round, ...; pandas reads it
    results/PAPER/EXPERIMENT.runs.csv    how each algorithm and seed ended: status, round, message
    results/PAPER/EXPERIMENT.toml        settings, versions and the clients' samples of each form and case
    results/PAPER/EXPERIMENT.md          notes in words, written by hand
    results/PAPER/EXPERIMENT.causes.toml why claims are not confirmed, likewise (causes.py)
    results/PAPER.md                     a summary of a paper's verdicts, likewise

The first three are written and read here, in the form of results_format.py; the same runs give the same bytes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from proxfed import files as disk
from proxfed.errors import InputError, require
from proxfed.harness.experiment import shipped
from proxfed.harness.results import Results
from proxfed.harness.settings_diff import by_key, first_changed, other_values
from proxfed.papers.causes import Written
from proxfed.papers.causes import read as read_causes
from proxfed.papers.reproduce import stem
from proxfed.papers.results_format import Kept, KeptRun, Place, Texts, read_texts, write_texts
from proxfed.registry import Table
from proxfed.report.columns import DONE

SETTINGS_APART = ("case", "seeds")
"""Settings of a run that follow from its place and its rows."""


# ---- keeping --------------------------------------------------------------------------------------------------------


def keep(runs: Path, results: Path, say: Callable[[str], None]) -> dict[str, list[Place]]:
    """Keep every finished algorithm of the runs below `runs`, the --out of `proxfed reproduce`, by experiment.

    Other stored algorithms and seeds remain, if nothing that their rows depend on has changed. Omitted and dropped
    results are reported.
    """
    folders = [Results.read(path.parent) for path in sorted(runs.rglob("config.toml"))]
    require(bool(folders), f"there is no run folder below {runs}")
    known = {stem(name): name for name in shipped()}
    found: dict[str, dict[Place, Results]] = {}
    for run in folders:
        assert run.folder is not None
        experiment, form_name = [*run.folder.relative_to(runs).parts, "", ""][:2]
        if experiment not in known:
            say(f"{run.folder} is left out: it is not in a folder PAPER-EXPERIMENT of a shipped experiment")
        elif not (done := _done(run)):
            say(f"{run.folder} is left out: it is not finished")
        else:
            place = Place.of(form_name, run.settings.get("case", ""))
            found.setdefault(known[experiment], {})[place] = replace(
                run,
                rows=[row for row in run.rows if row["algorithm"] in done],
                status=[state for state in run.status if state["algorithm"] in done],
            )
            if open_ := [label for label in _labels(run) if label not in done]:
                say(f"{run.folder}: {', '.join(open_)} {'is' if len(open_) == 1 else 'are'} left out: not finished")
    for name, new in found.items():
        kept = read(results, name)
        for place, run in new.items():
            found_now = _finished(run)
            kept[place] = _with_others(found_now, kept[place], f"{name} ({place})", say) if place in kept else found_now
        write(results, name, kept)
    return {name: list(new) for name, new in found.items()}


def _labels(run: Results) -> list[str]:
    return [table["label"] for table in run.settings["algorithms"]]


def _done(run: Results) -> list[str]:
    """The algorithms that finished with every seed: an unfinished one would be mistaken for a result."""
    ended = {(state["algorithm"], state["seed"]) for state in run.status if state["status"] in DONE}
    return [label for label in _labels(run) if all((label, seed) in ended for seed in run.seeds)]


def _finished(run: Results) -> KeptRun:
    """The part of a run folder that is stored."""
    settings = {key: value for key, value in by_key(dict(run.settings)).items() if key not in SETTINGS_APART}
    sizes = [] if run.client_stats is None else run.client_stats.sizes.tolist()
    return KeptRun(run.rows, run.status, settings, dict(run.versions), sizes)


def _with_others(new: KeptRun, before: KeptRun, where: str, say: Callable[[str], None]) -> KeptRun:
    """With the algorithms and seeds of the stored run only, if nothing that their rows depend on has changed."""
    labels, ended = new.settings["algorithms"], {(state["algorithm"], state["seed"]) for state in new.status}
    missing: dict[str, list[int]] = {}
    for state in before.status:
        if (state["algorithm"], state["seed"]) not in ended:
            missing.setdefault(state["algorithm"], []).append(state["seed"])
    stay = set()
    for label, seeds in missing.items():
        if difference := _difference(new, before, label):
            say(f"{where}: {label}, seeds {sorted(seeds)}, is dropped: {difference}")
        else:
            stay |= {(label, seed) for seed in seeds}
    if not stay:
        return new

    def both(now: Sequence[Any], then: Sequence[Any]) -> list[Any]:
        old = [entry for entry in then if (entry["algorithm"], entry["seed"]) in stay]
        return sorted([*old, *now], key=lambda entry: (entry["seed"], labels.index(entry["algorithm"])))

    return replace(new, status=both(new.status, before.status), rows=both(new.rows, before.rows))


def _difference(new: KeptRun, before: KeptRun, label: str) -> str | None:
    """The first difference between two runs that affects the rows of an algorithm."""
    if label not in new.settings["algorithms"]:
        return "the experiment has no such algorithm now"
    difference = first_changed(*(_of_one(run.settings, label) for run in (before, new)))
    if difference is None and other_values(before.versions, new.versions):
        return f"the versions were {before.versions}, now {new.versions}"
    return difference


def _of_one(settings: Table, label: str) -> Table:
    """The settings without those of other algorithms."""
    others = tuple(f"algorithms.{other}." for other in settings["algorithms"] if other != label)
    own = {key: value for key, value in settings.items() if key.startswith(f"algorithms.{label}.")}
    shared = {key: value for key, value in settings.items() if key != "algorithms" and not key.startswith(others)}
    return shared | own


# ---- files ----------------------------------------------------------------------------------------------------------


class _Files(NamedTuple):
    rows: Path
    status: Path
    about: Path
    notes: Path
    causes: Path


def _files(results: Path, name: str) -> _Files:
    endings = (".csv.gz", ".runs.csv", ".toml", ".md", ".causes.toml")
    return _Files(*(results / f"{name}{ending}" for ending in endings))


def notes(results: Path, name: str) -> str:
    """The notes on an experiment, or a paper."""
    path = _files(results, name).notes
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def causes(results: Path, name: str) -> list[Written]:
    """The recorded causes why its claims are not confirmed."""
    return read_causes(_files(results, name).causes)


def write(results: Path, name: str, kept: Kept) -> list[Path]:
    """Writes all files of an experiment, replacing the old ones; returns their paths."""
    files, texts = _files(results, name), write_texts(kept)
    written = {
        files.rows: gzip.compress(texts.rows.encode(), mtime=0),  # no timestamp: the same rows give the same file
        files.status: texts.status.encode(),
        files.about: texts.about.encode(),
    }
    for path, data in written.items():
        disk.write(path, data, folders=True)
    return list(written)


def read(results: Path, name: str) -> Kept:
    """The stored results of an experiment; none if it was never stored."""
    files = _files(results, name)
    if not files.about.exists():
        return {}
    try:
        with gzip.open(files.rows) as f:
            rows = f.read(disk.LARGEST_TEXT).decode()  # if truncated, its checksum would differ
        return read_texts(Texts(rows, disk.read(files.status).decode(), disk.read(files.about).decode()))
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as e:
        raise InputError(f"what is kept of {name} in {files.about.parent} is damaged: {e}") from e
