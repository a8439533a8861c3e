"""An experiment as data: TOML -> validated, frozen, and back, fully resolved.

name = "demo"                                rounds = 100        seeds = [0, 1, 2]
[data]          name = "synthetic_binary"    ...                 [data.partition]  name = "iid"  ...
[problem]       name = "logistic"            l2 = 0.01           batch = 20
[regulariser]   name = "l1"                  weight = 1e-4       blocks = ["weight"]
[topology]      name = "ring"
[participation] name = "uniform"             m = 10
[[algorithms]]  name = "depositum"           label = "..."       alpha = 0.5
[cases."few clients"]                        "data.clients" = 5  "algorithms.depositum.alpha" = 0.1
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from proxfed.errors import InputError, nearest, require
from proxfed.registry import Table, beside


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Figure(_Strict):
    """[[paper.figures]]: a picture in the paper's axes; one panel for each case."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    """Of the files, NAME.svg and NAME.png."""
    y: str
    """A measure, a column of rows.csv."""
    x: str = "round"
    """'round', 'steps' (gradients of a client), 'bytes', 'sim_seconds' or any other column."""
    target: float | None = None
    """Given: bars instead of lines, of where on `x` the measure first reached this."""
    log_x: bool = False
    log_y: bool = False
    cases: list[str] = []
    """The cases that it shows; all if empty."""
    labels: list[str] = []
    """The algorithms that it shows; all if empty."""
    together: bool = False
    """The cases in one panel, where their labels differ."""


class Paper(_Strict):
    """[paper]: what an experiment reproduces."""

    title: str
    figure: str
    """The figure or table, as the paper counts it."""
    quick: Table = {}
    """Settings of the quick form, by their dotted keys."""
    quick_cases: list[str] = []
    """The cases of the quick form; all if empty."""
    variants: dict[str, Table] = {}
    """Other choices for what the paper leaves open, each by a name: settings by their dotted keys."""
    departures: list[str] = []
    """The variants that change what the paper states instead; they speak neither for its claims nor against them."""
    figures: list[Figure] = []


class Reported(_Strict):
    """[[reported]]: numbers that the paper prints, by the labels of the algorithms."""

    measure: str
    """A measure, or an axis such as 'bytes'."""
    values: dict[str, float | str]
    """A number, or '> 300': it did not reach the target in 300 rounds."""
    case: str | None = None
    target: float | None = None
    """Given: the values say where on `axis` the measure first reached this."""
    axis: str = "round"
    """As `x` of a figure."""


class Claim(_Strict):
    """[[claims]]: something that a paper says of its results, so that it can be checked (claims.py)."""

    says: str
    measure: str = "objective"
    round: int | None = Field(None, ge=1)
    """The round that it speaks of; the last one if not given."""
    target: float | None = None
    """Given: it speaks of where on `axis` the measure first reached this; smaller is then better."""
    quick_target: float | None = None
    """Instead of `target` in the quick form, which may not get as far."""
    axis: str = "round"
    """As `x` of a figure."""
    case: str | None = None
    """The case that it speaks of; without one it must hold in every case."""
    lost_from: str | None = None
    """Given: it speaks of how much worse the measure is than in this case; smaller is then better."""
    across: bool = False
    """The labels stand in different cases; a label that stands in several of them is written 'case: label'."""
    form: Literal["full", "any"] = "any"
    """'full': it needs the rounds or the scale of the full form."""
    label: str | None = None
    below: float | None = None
    above: float | None = None
    near: float | None = None
    """The number that the paper reports, of which ours differs by at most `tolerance`."""
    tolerance: float | None = Field(None, gt=0)
    order: list[str] | None = Field(None, min_length=2)
    """Labels from the best to the worst."""
    labels: list[str] | None = Field(None, min_length=2)
    within_factor: float | None = Field(None, ge=1)
    """The values of `labels` differ by no more than this factor."""
    diverges: bool | None = None
    """Every seed diverges, or none does."""

    def in_form(self, quick: bool) -> Claim:
        """With the target of that form."""
        other = quick and self.quick_target is not None
        return self.model_copy(update={"target": self.quick_target}) if other else self


class Experiment(_Strict):
    """A whole configuration file; the tables of components are checked when they are built (build.py)."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    rounds: int = Field(ge=1)
    seeds: list[int] = Field([0], min_length=1)
    every: int = Field(1, ge=1)
    """A row of measures every so many rounds."""
    dtype: str = "float64"
    device: str = "cpu"
    reference: bool = False
    """Compute the minimiser beforehand, so that rows have the optimality gap and the error."""
    stationarity_step: float | None = Field(None, gt=0)
    measures: list[str] = []
    """More measures, of fields of the clients' states on graphs: 'consensus_y', 'accuracy_x', ... (measures.py)."""
    data: Table
    problem: Table
    regulariser: Table | list[Table] = {"name": "zero"}
    topology: Table | None = None
    participation: Table = {"name": "full"}
    algorithms: list[Table] = Field(min_length=1)
    time: Table | None = None
    """Devices and links, so that rounds and bytes become simulated seconds (simulate/timing.py)."""
    targets: dict[str, list[float]] = {}
    """Values of measures whose first round, bytes and seconds the tables show: {accuracy = [0.97, 0.98]}."""
    cases: dict[str, Table] = {}
    """The same algorithms in several settings: a name and, by dotted keys, what differs."""
    case: str = ""
    """Which of the cases this is, when it stands alone."""
    paper: Paper | None = None
    reported: list[Reported] = []
    claims: list[Claim] = []

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed stands there twice")
        return seeds

    def asked(self) -> list[tuple[str, str]]:
        """(where, measure or axis) that claims, reported numbers and figures speak of."""
        figures = self.paper.figures if self.paper is not None else []
        asked = [
            *(("claims", c.measure, c.axis) for c in self.claims if c.case in (None, self.case)),
            *(("reported", r.measure, r.axis) for r in self.reported if r.case in (None, self.case)),
            *(("paper.figures", f.y, f.x) for f in figures if not f.cases or self.case in f.cases),
        ]
        return [(where, name) for where, *names in asked for name in names]


# ---- reading -------------------------------------------------------------------------------------------------------


def shipped() -> dict[str, Path]:
    """The experiments that come with the package, by name."""
    folder = Path(str(files("proxfed.papers") / "experiments"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))}


def read(source: str, overrides: Iterable[str] = ()) -> Experiment:
    """An experiment from a shipped name or a file, with `key=value` overrides; its cases are left as they are."""
    table, where = read_table(source)
    for text in overrides:
        override(table, text)
    return parse(table, where)


def read_table(source: str) -> tuple[Table, str]:
    """The file of an experiment as it stands, from a shipped name or a path; and where it was read from."""
    path = Path(source)
    if path.suffix != ".toml":
        require(
            source in shipped(),
            f"there is no experiment {source!r}; {nearest(source, shipped())}, or give a .toml file",
        )
        path = shipped()[source]
    return _plugged(read_toml(path), path.parent), str(path)


def _plugged(table: Any, directory: Path) -> Any:
    """With names of files that stand beside this one written out."""
    if isinstance(table, dict):
        named = {k: v for k, v in table.items() if isinstance(v, str) and k.rpartition(".")[2] in ("name", "model")}
        return {k: beside(v, directory) if k in named else _plugged(v, directory) for k, v in table.items()}
    return [_plugged(v, directory) for v in table] if isinstance(table, list) else table


def read_toml(path: Path) -> Table:
    """A TOML file as it stands."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"cannot read {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise InputError(f"{path} is not valid TOML: {e}") from e


def parse(table: Table, where: str) -> Experiment:
    """Check the outer form of an experiment."""
    try:
        return Experiment(**table)
    except ValidationError as e:
        raise InputError(f"{where}: {_sentence(e, table)}") from e


def _sentence(e: ValidationError, table: Table) -> str:
    error = e.errors()[0]
    keys = _keys(error["loc"], table)
    place = ".".join(keys)
    if error["type"] == "extra_forbidden":
        return f"unknown key {place!r}; {nearest(keys[-1], _model_at(keys[:-1]).model_fields)}"
    if error["type"] == "missing":
        return f"the key {'.'.join([*keys, str(error['loc'][-1])])!r} is missing"
    said = error["msg"].removeprefix("Value error, ")
    return f"{place} = {error['input']!r} is not allowed: {said[0].lower()}{said[1:]}"


def _keys(location: Iterable[str | int], here: Any) -> list[str]:
    """Those of a location that are there; where a value may be of several types, pydantic names the type as well."""
    keys = []
    for part in location:
        inside = here if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        if part in inside:
            keys.append(str(part))
            here = here[part]
    return keys


def _model_at(path: list[str]) -> type[BaseModel]:
    """What stands at the end of a path such as paper.figures.0."""
    models: dict[str, type[BaseModel]] = {"paper": Paper, "figures": Figure, "reported": Reported, "claims": Claim}
    return next((models[part] for part in reversed(path) if part in models), Experiment)


def label_of(algorithm: Table) -> str:
    """What an algorithm is called: its label, or its name if it has none."""
    return str(algorithm.get("label", algorithm.get("name")))


OF_EACH = ("rounds", "topology", "participation")
"""Settings of an experiment that an algorithm may have of its own; in the config.toml of a run, each has them."""


def override(table: Table, override: str) -> None:
    """key=value with a dotted key, as on the command line."""
    key, equals, text = override.partition("=")
    require(bool(equals) and bool(key), f"-c {override!r} is not of the form key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    first = key.partition(".")[0]
    overruled = first in OF_EACH and _have_their_own(first, table)
    where = f"-c algorithms.NAME.{key}=..., or * for NAME"
    require(not overruled, f"-c {override}: algorithms have their own {first}; use {where}")
    assign(table, key, value, f"-c {override}")


def _have_their_own(setting: str, table: Table) -> bool:
    """So that a change of the setting would not mean all, or nobody; some may well have a graph or a server's own."""
    owners = [setting in a for a in table.get("algorithms", []) if isinstance(a, dict)]
    # Without a graph for all, those that need one have their own.
    return any(owners) and (all(owners) or setting == "rounds" or (setting == "topology" and setting not in table))


def assign(here: Any, key: str, value: Any, where: str) -> None:
    """Set what a dotted key names. Algorithms go by label, name or place, or * for all: algorithms.fedavg.eta."""
    if isinstance(here, list):
        for place, rest in _places(here, key, where):
            if rest:
                assign(here[place], rest, value, where)
            else:
                here[place] = deepcopy(value)
        return
    first, dot, rest = key.partition(".")
    require(isinstance(here, dict), f"{where}: {first!r} is not inside a table")
    if dot:
        assign(here.setdefault(first, {}), rest, value, where)
    else:
        here[first] = deepcopy(value)


def _places(here: list, key: str, where: str) -> list[tuple[int, str]]:
    """Which entries of a list the start of a key means, with the rest of the key. Labels may contain dots."""
    first, _, rest = key.partition(".")
    if first == "*":
        return [(k, rest) for k in range(len(here))]
    if first.isdigit() and int(first) < len(here):
        return [(int(first), rest)]
    entries = [(k, entry) for k, entry in enumerate(here) if isinstance(entry, dict)]
    names = {str(entry[word]) for _, entry in entries for word in ("label", "name") if word in entry}
    meant = max((name for name in names if f"{key}.".startswith(f"{name}.")), key=len, default=first)
    matches = [k for k, entry in entries if meant in (entry.get("label"), entry.get("name"))]
    known = ", ".join(label_of(entry) for _, entry in entries)
    require(len(matches) == 1, f"{where}: {meant!r} names {len(matches)} entries; known: {known}")
    return [(matches[0], key.removeprefix(meant).removeprefix("."))]
