"""What is kept of the papers' experiments, small enough for the repository: a few files for each of them.

    results/PAPER/EXPERIMENT.csv.gz      every row: form, variant, case, algorithm, seed, round, ...; pandas reads it
    results/PAPER/EXPERIMENT.runs.csv    how each algorithm and seed ended: status, round, message
    results/PAPER/EXPERIMENT.toml        settings, versions and the clients' samples of each form and case
    results/PAPER/EXPERIMENT.md          notes in words, written by hand
    results/PAPER/EXPERIMENT.causes.toml why claims are not confirmed, likewise (causes.py)

Numbers have six digits, and the same runs give the same bytes. [settings] are what all runs have in common, by dotted
keys as in a run folder's config.toml, with all defaults; [forms.NAME] are those that all cases of a form share, and
each of [[runs]] has the rest. They are kept whole, and not as differences from the shipped file, because that file may
change later, and does not say what the defaults were. [sha256] has the checksums of all three files.
"""

from __future__ import annotations

import csv
import gzip
import io
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from proxfed import files as disk
from proxfed.checksums import checksum
from proxfed.errors import InputError, require
from proxfed.harness.results import Results
from proxfed.harness.run_folder import Row
from proxfed.harness.schema import shipped
from proxfed.harness.settings_diff import by_key, first_changed
from proxfed.papers.causes import Written
from proxfed.papers.causes import read as read_causes
from proxfed.papers.reproduce import stem
from proxfed.registry import Table
from proxfed.report.columns import DONE

DIGITS = 6
PLACE = ("form", "variant", "case")
"""The columns that say to which run a row belongs."""
EXACT = ("seed", "round")
SUMS = "sha256"
"""The table of checksums in the TOML file."""
STATUS = ("algorithm", "seed", "status", "round", "message")
SETTINGS_APART = ("case", "seeds")
"""Of a run's settings, what is known from its place and its rows."""


class Place(NamedTuple):
    """Which run of an experiment it is."""

    form: str  # full or quick
    variant: str
    case: str

    @property
    def form_name(self) -> str:
        """As the folders of `proxfed reproduce` are called: 'full', 'quick+variant'."""
        return f"{self.form}+{self.variant}" if self.variant else self.form

    @classmethod
    def of(cls, form_name: str, case: str) -> Place:
        form, _, variant = form_name.partition("+")
        return cls(form, variant, case)

    def __str__(self) -> str:
        return f"{self.form_name}, {self.case}" if self.case else self.form_name


@dataclass(frozen=True)
class KeptRun:
    """One form of an experiment in one case: everything that is kept of it."""

    rows: Sequence[Row]
    status: Sequence[Mapping[str, Any]]
    settings: Table
    """By dotted keys, with all defaults."""
    versions: Table
    sizes: Sequence[int]
    """The samples of each client; empty: not known."""

    @property
    def seeds(self) -> list[int]:
        return sorted({state["seed"] for state in self.status})

    @property
    def results(self) -> Results:
        """As claims are judged on."""
        return Results(rows=self.rows, status=self.status, clients=len(self.sizes) or None, seeds=self.seeds)


Kept = dict[Place, KeptRun]
"""What is kept of one experiment."""
_Table = dict[Place, list[dict[str, Any]]]
"""The rows of a CSV file, run by run."""


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
    """What is said about an experiment in words."""
    path = _files(results, name).notes
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def causes(results: Path, name: str) -> list[Written]:
    """What is written of why its claims are not confirmed."""
    return read_causes(_files(results, name).causes)


def write(results: Path, name: str, kept: Kept) -> list[Path]:
    """All of an experiment, in place of what is there: its files."""
    files, kept = _files(results, name), {place: kept[place] for place in sorted(kept)}
    rows = _table((place, [_small(row) for row in run.rows]) for place, run in kept.items())
    states = _table((place, [{key: s.get(key) for key in STATUS} for s in run.status]) for place, run in kept.items())
    about = _about(kept)
    written = {
        files.rows: gzip.compress(rows.encode(), mtime=0),  # without a time inside, the same rows are the same file
        files.status: states.encode(),
        files.about: tomli_w.dumps(about | {SUMS: _sums(about, rows, states)}).encode(),
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
        about = tomllib.loads(disk.read(files.about).decode())
        with gzip.open(files.rows) as f:
            rows = f.read(disk.LARGEST_TEXT).decode()  # cut short, it would not have its checksum
        status = disk.read(files.status).decode()
        sums = about.pop(SUMS, None)  # earlier versions wrote none
        if sums is not None and sums != _sums(about, rows, status):
            other = [name for name, digest in _sums(about, rows, status).items() if sums.get(name) != digest]
            raise ValueError(f"the checksums of {' and '.join(other) or 'it'} are of something else")
        return dict(_runs(about, _by_place(rows), _by_place(status)))
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as e:
        raise InputError(f"what is kept of {name} in {files.about.parent} is damaged: {e}") from e


def _sums(about: Table, rows: str, status: str) -> dict[str, str]:
    """A checksum for each of the three files."""
    texts = {"rows": rows, "runs": status}
    return {name: sha256(text.encode()).hexdigest() for name, text in texts.items()} | {"settings": checksum(about)}


def _runs(about: Table, rows: _Table, status: _Table) -> Iterator[tuple[Place, KeptRun]]:
    """The three files put together."""
    for run in about["runs"]:
        place = Place(run["form"], run.get("variant", ""), run.get("case", ""))
        if place not in rows or place not in status:
            raise ValueError(f"there are no rows of {place}")
        settings = about["settings"] | about["forms"][place.form_name] | run.get("settings", {})
        versions = about["versions"][run["versions"]]
        yield place, KeptRun(rows[place], status[place], settings, versions, _each(run.get("samples", "")))


# ---- rows -----------------------------------------------------------------------------------------------------------


def _table(runs: Iterable[tuple[Place, Sequence[Row]]]) -> str:
    """CSV with the columns that have a value anywhere."""
    placed = [{**place._asdict(), **row} for place, rows in runs for row in rows]
    names = dict.fromkeys(chain(PLACE, chain.from_iterable(placed)))
    columns = [name for name in names if name in PLACE or any(row.get(name) is not None for row in placed)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *([row.get(name) for name in columns] for row in placed)])
    return text.getvalue()


def _small(row: Row) -> Row:
    """Without the name of the run, with six digits; a number that is not whole shows it: 65.0."""
    return {name: _digits(value, name) for name, value in row.items() if name != "run" and value is not None}


def _digits(value: Any, name: str) -> Any:
    if isinstance(value, str) or name in EXACT:
        return value
    text = f"{value:.{DIGITS}g}"
    if isinstance(value, int):
        return int(float(text))
    return text if any(sign in text for sign in ".en") else f"{text}.0"


def _by_place(text: str) -> _Table:
    """The rows of a CSV table, run by run; numbers are numbers."""
    reader = csv.reader(io.StringIO(text))
    names = next(reader)
    rows = [dict(zip(names, cells, strict=True)) for cells in reader]
    found: _Table = {}
    for row in rows:
        values = {name: _value(name, cell) for name, cell in row.items() if name not in PLACE}
        found.setdefault(Place(*(row[name] for name in PLACE)), []).append(values)
    return found


def _value(name: str, cell: str) -> Any:
    if name in ("algorithm", "status", "message"):
        return cell
    if cell == "":
        return None
    return int(cell) if cell.lstrip("-").isdigit() else float(cell)


# ---- settings, versions and samples ---------------------------------------------------------------------------------


def _about(kept: Kept) -> Table:
    """The TOML file: what all runs have in common, then all cases of a form, and each run with the rest."""
    versions = _different(run.versions for run in kept.values())
    common = _common([run.settings for run in kept.values()])
    forms = {
        name: _without(_common([run.settings for place, run in kept.items() if place.form_name == name]), common)
        for name in dict.fromkeys(place.form_name for place in kept)
    }
    return {
        "settings": common,
        "versions": {str(k): one for k, one in enumerate(versions, 1)},
        "forms": forms,
        "runs": [
            {key: value for key, value in place._asdict().items() if value}
            | {"versions": str(versions.index(run.versions) + 1), "samples": _lengths(run.sizes)}
            | ({"settings": own} if (own := _without(run.settings, common | forms[place.form_name])) else {})
            for place, run in kept.items()
        ],
    }


def _without(settings: Table, others: Table) -> Table:
    return {key: value for key, value in settings.items() if key not in others}


def _different(tables: Iterable[Table]) -> list[Table]:
    found: list[Table] = []
    for table in tables:
        if table not in found:
            found.append(table)
    return found


def _common(tables: Sequence[Table]) -> Table:
    """The settings that all have with the same value."""
    first, *rest = tables
    return {k: v for k, v in first.items() if all(k in table and table[k] == v for table in rest)}


def _lengths(sizes: Sequence[int]) -> str:
    """Run lengths: [600, 600, 540] -> '2 x 600, 540'."""
    runs = [(len(list(same)), size) for size, same in groupby(sizes)]
    return ", ".join(f"{times} x {size}" if times > 1 else f"{size}" for times, size in runs)


def _each(lengths: str) -> list[int]:
    """The other way round."""

    def expand(part: str) -> Iterator[int]:
        times, x, size = part.rpartition(" x ")
        yield from [int(size)] * (int(times) if x else 1)

    return list(chain.from_iterable(expand(part) for part in lengths.split(", "))) if lengths else []
