"""An experiment as data: TOML -> validated, frozen, and back, fully resolved.

name = "demo"                                rounds = 100        seeds = [0, 1, 2]
[data]          name = "synthetic_binary"    ...                 [data.partition]  name = "iid"  ...
[problem]       loss = "logistic"            l2 = 0.01           batch = 20
[regulariser]   name = "l1"                  weight = 1e-4       blocks = ["weight"]
[topology]      name = "ring"
[participation] name = "uniform"             m = 10
[[algorithms]]  name = "depositum"           label = "..."       alpha = 0.5
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterable
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from proxfed.algorithms import ALGORITHMS
from proxfed.components import Table, arguments, build, describe, look_up, plain, without_name
from proxfed.data import DATASETS, PARTITIONS, load
from proxfed.errors import InputError, nearest, require
from proxfed.participation import PARTICIPATIONS
from proxfed.problems.linear import LOSSES, Linear
from proxfed.regularisers import REGULARISERS, OnBlocks, Zero
from proxfed.topologies import TOPOLOGIES
from proxfed.types import Algorithm, Block, Constants, Graph, Participation, Problem, Regulariser, Topology

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ProblemTable(_Frozen):
    """[problem]"""

    loss: str
    l2: float = Field(0.0, ge=0)
    batch: int | None = Field(None, ge=1)
    weighting: str = "uniform"
    intercept: bool = False


class Experiment(_Frozen):
    """A whole configuration file."""

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
    data: Table
    problem: ProblemTable
    regulariser: Table | list[Table] = {"name": "zero"}
    topology: Table | None = None
    participation: Table = {"name": "full"}
    algorithms: list[Table] = Field(min_length=1)


# ---- reading -------------------------------------------------------------------------------------------------------


def shipped() -> dict[str, Path]:
    """The experiments that come with the package, by name."""
    folder = Path(str(files("proxfed") / "experiments"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read(source: str, overrides: Iterable[str] = ()) -> Experiment:
    """An experiment from a shipped name or a file, with `key=value` overrides."""
    path = Path(source)
    if path.suffix != ".toml":
        require(
            source in shipped(),
            f"there is no experiment {source!r}; {nearest(source, shipped())}, or give a .toml file",
        )
        path = shipped()[source]
    try:
        table = tomllib.loads(path.read_text())
    except OSError as e:
        raise InputError(f"cannot read {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise InputError(f"{path} is not valid TOML: {e}") from e
    for override in overrides:
        _override(table, override)
    return parse(table, str(path))


def parse(table: Table, where: str) -> Experiment:
    """Check the outer form of an experiment."""
    try:
        return Experiment(**table)
    except ValidationError as e:
        raise InputError(f"{where}: {_sentence(e)}") from e


def _sentence(e: ValidationError) -> str:
    error = e.errors()[0]
    *path, key = [str(part) for part in error["loc"]] or [""]
    place = ".".join([*path, key])
    if error["type"] == "extra_forbidden":
        known = ProblemTable.model_fields if path == ["problem"] else Experiment.model_fields
        return f"unknown key {place!r}; {nearest(key, known)}"
    if error["type"] == "missing":
        return f"the key {place!r} is missing"
    return f"{place} = {error['input']!r} is not allowed: {error['msg'][0].lower()}{error['msg'][1:]}"


def _override(table: Table, override: str) -> None:
    """key=value with a dotted key; algorithms are chosen by label, name or place: algorithms.fedavg.eta=0.1."""
    key, equals, text = override.partition("=")
    require(bool(equals) and bool(key), f"-c {override!r} is not of the form key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    *path, last = key.split(".")
    here: Any = table
    for part in path:
        here = _entry(here, part, override)
    if isinstance(here, list):
        here[_place(here, last, override)] = value
    else:
        here[last] = value


def _entry(here: Any, part: str, override: str) -> Any:
    if isinstance(here, list):
        return here[_place(here, part, override)]
    require(isinstance(here, dict), f"-c {override}: {part!r} is not inside a table")
    return here.setdefault(part, {})


def _place(here: list, part: str, override: str) -> int:
    if part.isdigit() and int(part) < len(here):
        return int(part)
    matches = [
        k for k, entry in enumerate(here) if isinstance(entry, dict) and part in (entry.get("label"), entry.get("name"))
    ]
    known = [str(entry.get("label", entry.get("name"))) for entry in here if isinstance(entry, dict)]
    require(len(matches) == 1, f"-c {override}: {part!r} names {len(matches)} entries; known: {', '.join(known)}")
    return matches[0]


# ---- building ------------------------------------------------------------------------------------------------------


class Task:
    """One algorithm of an experiment, ready to run."""

    def __init__(self, table: Table, label: str, experiment: Experiment, problem: Problem) -> None:
        where = f"algorithms.{label}"
        special = {"label", "rounds", "topology", "participation", "theory"}
        own = {k: v for k, v in table.items() if k not in special}
        make = look_up(ALGORITHMS, own, where)
        self.label = label
        self.rounds: int = table.get("rounds", experiment.rounds)
        require(isinstance(self.rounds, int) and self.rounds >= 1, f"{where}.rounds = {self.rounds!r} must be >= 1")
        self.participation: Participation = build(
            PARTICIPATIONS, table.get("participation", experiment.participation), where
        )
        self.topology: Topology | None = None
        graph = table.get("topology", experiment.topology)
        if isinstance(make, type) and issubclass(make, Graph) and graph is not None:
            self.topology = build(TOPOLOGIES, graph, f"{where}.topology", **_size(graph, problem.n))
        if table.get("theory", False):
            rule = getattr(make, "theory", None)
            if rule is None:
                raise InputError(f"{where}: there are no step sizes of the theory for {own['name']!r}")
            constants = _constants(problem, self.rounds, self.topology)
            self.algorithm: Algorithm = rule(constants, **arguments(rule, without_name(own), where, {"c"}))
        else:
            self.algorithm = build(ALGORITHMS, own, where)

    def resolved(self) -> Table:
        out = {"label": self.label, "rounds": self.rounds} | describe(self.algorithm, ALGORITHMS)
        out["participation"] = describe(self.participation, PARTICIPATIONS)
        if self.topology is not None:
            out["topology"] = _without_size(describe(self.topology, TOPOLOGIES))
        return out


class Resolved:
    """An experiment with its data loaded and everything built."""

    def __init__(self, experiment: Experiment, data_directory: str | None = None) -> None:
        self.experiment = experiment
        self.problem = _problem(experiment, data_directory)
        labels = [str(t.get("label", t.get("name"))) for t in experiment.algorithms]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        require(twice is None, f"two algorithms are called {twice!r}: give each a label of its own")
        require(not any("/" in label for label in labels), "a label must not contain '/'")
        self.tasks = [Task(t, l, experiment, self.problem) for t, l in zip(experiment.algorithms, labels, strict=True)]

    @cached_property
    def table(self) -> Table:
        """The configuration with every default and every computed step size written out."""
        e = self.experiment
        out = e.model_dump(exclude_none=True, exclude={"topology", "participation"})
        make = DATASETS[e.data["name"]]
        defaults = {k: p.default for k, p in inspect.signature(make).parameters.items() if k != "directory"}
        out["data"] = {
            k: plain(v) for k, v in (defaults | e.data).items() if v is not None and v is not inspect.Parameter.empty
        }
        out["algorithms"] = [task.resolved() for task in self.tasks]
        return out


def _problem(e: Experiment, data_directory: str | None) -> Linear:
    require(e.dtype in DTYPES, f"dtype = {e.dtype!r} is not one of {', '.join(DTYPES)}")
    require(
        e.problem.loss in LOSSES, f"problem.loss: there is no {e.problem.loss!r}; {nearest(e.problem.loss, LOSSES)}"
    )
    table = dict(e.data)
    partition = table.pop("partition", None)
    make = look_up(DATASETS, table, "data")
    options = arguments(make, without_name(table), "data", {"directory"})
    split = None if partition is None else build(PARTITIONS, partition, "data.partition")
    data = load(table["name"], split, data_directory, **options)
    p = e.problem
    loss = LOSSES[p.loss]()
    bare = Linear(data, loss, Zero(), p.l2, p.batch, p.weighting, p.intercept, DTYPES[e.dtype], e.device)
    return Linear(
        data, loss, _regulariser(e, bare.blocks), p.l2, p.batch, p.weighting, p.intercept, bare.dtype, e.device
    )


def _regulariser(e: Experiment, blocks: tuple[Block, ...]) -> Regulariser:
    """One table for the whole vector, or tables that each name their blocks."""
    tables = e.regulariser if isinstance(e.regulariser, list) else [e.regulariser]
    if len(tables) == 1 and "blocks" not in tables[0]:
        return build(REGULARISERS, tables[0], "regulariser")
    parts: dict[str, Regulariser] = {}
    for table in tables:
        require("blocks" in table, "regulariser: with several tables, each must name its blocks")
        h = build(REGULARISERS, {k: v for k, v in table.items() if k != "blocks"}, "regulariser")
        require(isinstance(table["blocks"], list), f"regulariser.blocks = {table['blocks']!r} must be a list of names")
        parts |= dict.fromkeys(table["blocks"], h)
    return OnBlocks.named(blocks, parts)


def _constants(problem: Problem, rounds: int, topology: Topology | None) -> Constants:
    psi = 0.0 if topology is None else 1 - topology.spectral_gap()
    return Constants(problem.smoothness(), problem.n, problem.d, rounds, problem.h.weak_convexity, psi)


def _size(table: Table, n: int) -> dict[str, int]:
    """The number of nodes, for topologies that have it as a field."""
    make = TOPOLOGIES.get(table.get("name", ""))
    takes = make is not None and "n" in inspect.signature(make).parameters and "n" not in table
    return {"n": n} if takes else {}


def _without_size(table: Table) -> Table:
    return {k: v for k, v in table.items() if k != "n"}
