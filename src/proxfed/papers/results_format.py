"""The files of stored results: runs as text in CSV and TOML, and back.

Numbers have six digits, and the same runs give the same text. [settings] are common to all runs, by dotted keys as in a
run folder's config.toml, with all defaults; [forms.NAME] are common to all cases of a form, and each of [[runs]] has
the rest. They are stored in full, not as differences from the shipped file, because that file may change later and does
not record the defaults. [sha256] has the checksums of all three texts.
"""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, groupby
from typing import Any, NamedTuple

import tomli_w

from proxfed.files import checksum
from proxfed.harness.results import Results
from proxfed.registry import Table
from proxfed.report.columns import Row

DIGITS = 6
PLACE = ("form", "variant", "case")
"""The columns that identify the run of a row."""
EXACT = ("seed", "round")
SUMS = "sha256"
"""The table of checksums in the TOML file."""
STATUS = ("algorithm", "seed", "status", "round", "message")


class Place(NamedTuple):
    """The identity of a run within an experiment."""

    form: str  # full or quick
    variant: str
    case: str

    @property
    def form_name(self) -> str:
        """The folder's name in `proxfed reproduce`: 'full', 'quick+variant'."""
        return f"{self.form}+{self.variant}" if self.variant else self.form

    @classmethod
    def of(cls, form_name: str, case: str) -> Place:
        """From the name of the form's folder."""
        form, _, variant = form_name.partition("+")
        return cls(form, variant, case)

    def __str__(self) -> str:
        return f"{self.form_name}, {self.case}" if self.case else self.form_name


@dataclass(frozen=True)
class KeptRun:
    """One form of an experiment in one case: all its stored results."""

    rows: Sequence[Row]
    status: Sequence[Mapping[str, Any]]
    settings: Table
    """Settings by dotted keys, with all defaults."""
    versions: Table
    sizes: Sequence[int]
    """Samples per client; empty: not known."""

    @property
    def seeds(self) -> list[int]:
        """The seeds with which all stored algorithms were run."""
        found: dict[str, set[int]] = {}
        for state in self.status:
            found.setdefault(state["algorithm"], set()).add(state["seed"])
        return sorted(set.intersection(*found.values())) if found else []

    @property
    def results(self) -> Results:
        """The results in the form for judging claims."""
        return Results(rows=self.rows, status=self.status, clients=len(self.sizes) or None, seeds=self.seeds)


Kept = dict[Place, KeptRun]
"""The stored results of one experiment."""
_Table = dict[Place, list[dict[str, Any]]]
"""The rows of a CSV file, run by run."""


class Texts(NamedTuple):
    """The contents of an experiment's three files."""

    rows: str
    """CSV: every row."""
    status: str
    """CSV: how each algorithm and seed ended."""
    about: str
    """TOML: settings, versions and the clients' samples of each form and case."""


def write_texts(kept: Kept) -> Texts:
    """The runs as text."""
    kept = {place: kept[place] for place in sorted(kept)}
    rows = _table((place, [_small(row) for row in run.rows]) for place, run in kept.items())
    states = _table((place, [{key: s.get(key) for key in STATUS} for s in run.status]) for place, run in kept.items())
    about = _about(kept)
    return Texts(rows, states, tomli_w.dumps(about | {SUMS: _sums(about, rows, states)}))


def read_texts(texts: Texts) -> Kept:
    """The runs in these texts; a ValueError, KeyError or TypeError if they are damaged."""
    about = tomllib.loads(texts.about)
    sums = about.pop(SUMS, None)  # earlier versions wrote none
    found = _sums(about, texts.rows, texts.status)
    if sums is not None and sums != found:
        other = [name for name, digest in found.items() if sums.get(name) != digest]
        raise ValueError(f"the checksums of {' and '.join(other) or 'it'} are of something else")
    return dict(_runs(about, _by_place(texts.rows), _by_place(texts.status)))


def _sums(about: Table, rows: str, status: str) -> dict[str, str]:
    """A checksum for each of the three files."""
    texts = {"rows": rows, "runs": status}
    return {name: sha256(text.encode()).hexdigest() for name, text in texts.items()} | {"settings": checksum(about)}


def _runs(about: Table, rows: _Table, status: _Table) -> Iterator[tuple[Place, KeptRun]]:
    """The runs from the three files."""
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
    """Without the name of the run, with six digits; floats keep a decimal point: 65.0."""
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
    """The TOML file: settings of all runs, then of all cases of a form, then the rest for each run."""
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
    """The settings with the same value in all."""
    first, *rest = tables
    return {k: v for k, v in first.items() if all(k in table and table[k] == v for table in rest)}


def _lengths(sizes: Sequence[int]) -> str:
    """Run lengths: [600, 600, 540] -> '2 x 600, 540'."""
    runs = [(len(list(same)), size) for size, same in groupby(sizes)]
    return ", ".join(f"{times} x {size}" if times > 1 else f"{size}" for times, size in runs)


def _each(lengths: str) -> list[int]:
    """The inverse."""

    def expand(part: str) -> Iterator[int]:
        times, x, size = part.rpartition(" x ")
        yield from [int(size)] * (int(times) if x else 1)

    return list(chain.from_iterable(expand(part) for part in lengths.split(", "))) if lengths else []
