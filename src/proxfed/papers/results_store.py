"""What is kept of the papers' experiments, small enough for the repository: a few files for each of them.

    results/PAPER/EXPERIMENT.csv.gz      every row: form, variant, case, algorithm, seed, round, ...; pandas reads it
    results/PAPER/EXPERIMENT.runs.csv    how each algorithm and seed ended: status, round, message
    results/PAPER/EXPERIMENT.toml        settings, versions and the clients' samples of each form and case
    results/PAPER/EXPERIMENT.md          notes in words, written by hand
    results/PAPER/EXPERIMENT.causes.toml why claims are not confirmed, likewise (causes.py)
    results/PAPER.md                     what holds of a paper, in a few sentences, likewise

The first three are written and read here, in the form of results_format.py; the same runs give the same bytes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from proxfed import files as disk
from proxfed.errors import InputError, require
from proxfed.harness.experiment import shipped
from proxfed.harness.results import Results
from proxfed.harness.settings_diff import by_key, first_changed
from proxfed.papers.causes import Written
from proxfed.papers.causes import read as read_causes
from proxfed.papers.reproduce import stem
from proxfed.papers.results_format import Kept, KeptRun, Place, Texts, read_texts, write_texts
from proxfed.report.columns import DONE

SETTINGS_APART = ("case", "seeds")
"""Of a run's settings, what is known from its place and its rows."""


# ---- keeping --------------------------------------------------------------------------------------------------------


def keep(runs: Path, results: Path, say: Callable[[str], None]) -> dict[str, list[Place]]:
    """Keep every finished algorithm of the runs below `runs`, the --out of `proxfed reproduce`, by experiment.

    Other seeds that are kept already stay, if they had the same settings and versions. What is left out or dropped is
    said.
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
            if gone := {row["algorithm"] for row in kept[place].rows} - {*run.labels()} if place in kept else ():
                say(f"{name} ({place}): {', '.join(sorted(gone))} dropped: the new run has no such rows")
            kept[place] = _with_other_seeds(_finished(run), kept.get(place), f"{name} ({place})", say)
        write(results, name, kept)
    return {name: list(new) for name, new in found.items()}


def _labels(run: Results) -> list[str]:
    return [table["label"] for table in run.settings["algorithms"]]


def _done(run: Results) -> list[str]:
    """The algorithms that have come to an end with every seed: half of one would be taken for its result."""
    ended = {(state["algorithm"], state["seed"]) for state in run.status if state["status"] in DONE}
    return [label for label in _labels(run) if all((label, seed) in ended for seed in run.seeds)]


def _finished(run: Results) -> KeptRun:
    """What a run folder holds, of what is kept."""
    settings = {key: value for key, value in by_key(dict(run.settings)).items() if key not in SETTINGS_APART}
    sizes = [] if run.client_stats is None else run.client_stats.sizes.tolist()
    return KeptRun(run.rows, run.status, settings, dict(run.versions), sizes)


def _with_other_seeds(new: KeptRun, before: KeptRun | None, where: str, say: Callable[[str], None]) -> KeptRun:
    """With those seeds that only the kept run has; they stay if nothing that rows depend on is different."""
    others = {*before.seeds} - {*new.seeds} if before is not None else set()
    if before is None or not others:
        return new
    difference = first_changed(before.settings, new.settings)
    if difference is None and before.versions != new.versions:
        difference = f"the versions were {before.versions}, now {new.versions}"
    if difference is not None:
        say(f"{where}: seeds {sorted(others)} are dropped: {difference}")
        return new
    status = [state for state in before.status if state["seed"] in others]
    rows = [row for row in before.rows if row["seed"] in others]
    by_seed = itemgetter("seed")
    return replace(
        new, status=sorted([*status, *new.status], key=by_seed), rows=sorted([*rows, *new.rows], key=by_seed)
    )


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
    """What is said about an experiment, or a paper, in words."""
    path = _files(results, name).notes
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def causes(results: Path, name: str) -> list[Written]:
    """What is written of why its claims are not confirmed."""
    return read_causes(_files(results, name).causes)


def write(results: Path, name: str, kept: Kept) -> list[Path]:
    """All of an experiment, in place of what is there: its files."""
    files, texts = _files(results, name), write_texts(kept)
    written = {
        files.rows: gzip.compress(texts.rows.encode(), mtime=0),  # no time inside: the same rows are the same file
        files.status: texts.status.encode(),
        files.about: texts.about.encode(),
    }
    for path, data in written.items():
        disk.write(path, data, folders=True)
    return list(written)


def read(results: Path, name: str) -> Kept:
    """What is kept of an experiment; nothing if it was never kept."""
    files = _files(results, name)
    if not files.about.exists():
        return {}
    try:
        with gzip.open(files.rows) as f:
            rows = f.read(disk.LARGEST_TEXT).decode()  # cut short, it would not have its checksum
        return read_texts(Texts(rows, disk.read(files.status).decode(), disk.read(files.about).decode()))
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as e:
        raise InputError(f"what is kept of {name} in {files.about.parent} is damaged: {e}") from e
