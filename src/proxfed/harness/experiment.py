"""An experiment's file, read and validated, and its cases: the same algorithms with different settings.

The tables of a file:

    name = "demo"                                rounds = 100        seeds = [0, 1, 2]
    [data]          name = "synthetic_binary"    ...                 [data.partition]  name = "iid"  ...
    [problem]       name = "logistic"            l2 = 0.01           batch = 20
    [regulariser]   name = "l1"                  weight = 1e-4       blocks = ["weight"]
    [topology]      name = "ring"
    [participation] name = "uniform"             m = 10
    [protection]    secure_aggregation = true
    [stop]          patience = 10                measure = "objective"
    [[hooks]]       name = "tensorboard"
    [[algorithms]]  name = "depositum"           label = "..."       alpha = 0.5
    [cases."few clients"]                        "data.clients" = 5  "algorithms.depositum.alpha" = 0.1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from proxfed.errors import OTHER_NAMES, InputError, nearest, real, require
from proxfed.harness.overrides import assign, override
from proxfed.harness.protection import Privacy, Protection, Robust
from proxfed.registry import Table, label_of, read_named
from proxfed.validation import STRICT, sentence


class Experiment(BaseModel):
    """A configuration file; tables of components are validated when they are built (build.py)."""

    model_config = STRICT

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    rounds: int = Field(ge=1)
    seeds: list[int] = Field([0], min_length=1)
    every: int = Field(1, ge=1)
    """Rounds between evaluations."""
    dtype: str = "float64"
    device: str = "cpu"
    """The device of tensors: 'cpu', 'cuda', 'mps', ...; 'auto' is replaced by the device found on reading."""
    reference: bool = False
    """Compute the minimiser beforehand, so that rows have the optimality gap and the error."""
    stationarity_step: float | None = Field(None, gt=0)
    measures: list[str] = []
    """More measures: of the clients' states, 'consensus_y', 'largest_c', ... (state_measures.py); 'train_loss',
    'train_accuracy'."""
    data: Table
    problem: Table
    regulariser: Table | list[Table] = {"name": "zero"}
    topology: Table | None = None
    participation: Table = {"name": "full"}
    algorithms: list[Table] = Field(min_length=1)
    protection: Protection | None = None
    """The protection of messages between organisations (protection.py)."""
    time: Table | None = None
    """Devices and links, so that rounds and bytes become simulated seconds (simulate/timing.py)."""
    targets: dict[str, list[float]] = {}
    """Targets: tables show the first round, bytes and seconds at which they are reached: {accuracy = [0.97, 0.98]}."""
    better: dict[str, Literal["lower", "higher", ""]] = {}
    """Which values of the problem's own measures are better, recorded in run folders for their readers."""
    stop: Table | list[Table] = {}
    """When a run stops before its last round: {patience = 10, measure = "accuracy", target = {accuracy = 0.9}, ...}."""
    hooks: list[Table] = []
    """Called with every row: trackers such as {name = "tensorboard"}, or your own, {name = "./mine.py:Mine"}."""
    cases: dict[str, Table] = {}
    """The same algorithms with different settings: by name, the changed settings as dotted keys."""
    case: str = ""
    """The name of this case, in the file of a single case."""
    paper: Table | None = None
    reported: list[Table] = []
    claims: list[Table] = []
    """These three keys describe the results, and are read by `proxfed.papers` (`said`)."""

    @field_validator("targets", mode="before")
    @classmethod
    def _lists(cls, targets: Any) -> Any:
        """A number stands for a list of one."""
        return {k: [v] if real(v) else v for k, v in targets.items()} if isinstance(targets, dict) else targets

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is given twice")
        return seeds

    @field_validator("device")
    @classmethod
    def _here(cls, device: str, others: ValidationInfo) -> str:
        """Replace 'auto' by the device found here, so that a run is resumed on the same kind of device, or refused."""
        if device != "auto":
            return device
        from proxfed.machine import device_here
        from proxfed.problems.empirical_risk import DTYPES

        return device_here("auto", DTYPES.get(others.data.get("dtype", ""), DTYPES["float64"]))

    def asked(self) -> list[tuple[str, str, bool]]:
        """(where, measure or axis, whether it needs a direction) that claims, reported numbers and figures speak of."""
        found = said(self, self.name)
        return found.asked(self.case) if found else []


class Said(Protocol):
    """What a file says of its results."""

    def asked(self, case: str) -> list[tuple[str, str, bool]]:
        """(where, measure or axis, whether it needs a direction) that it speaks of in a case."""

    def check_names(self, labels: Mapping[str, Sequence[str]], where: str) -> None:
        """Refuse cases and labels that there are not; `labels` are those of each case."""


def said(e: Experiment, where: str) -> Said | None:
    """What a file says of its results, checked; a file that says nothing does not load `proxfed.papers`."""
    says = e.paper is not None or e.reported or e.claims
    return import_module("proxfed.papers.paper_schema").read_said(e, where) if says else None


# ---- reading -------------------------------------------------------------------------------------------------------


EXPERIMENTS = [Path(str(files("proxfed") / room / "experiments")) for room in ("harness", "papers")]
"""The folder of the shipped experiments."""


def shipped() -> dict[str, Path]:
    """The shipped experiments, by name."""
    found = [(path.relative_to(folder), path) for folder in EXPERIMENTS for path in folder.rglob("*.toml")]
    return {name.with_suffix("").as_posix(): path for name, path in sorted(found)}


def read(source: str, overrides: Iterable[str] = ()) -> Experiment:
    """An experiment from a shipped name or a file, with `key=value` overrides; its cases are not expanded."""
    table, where = read_table(source)
    for text in overrides:
        override(table, text)
    return parse(table, where)


def read_table(source: str) -> tuple[Table, str]:
    """(the raw table of an experiment from a shipped name or a path, its source)."""
    path = Path(source)
    if path.suffix != ".toml":
        require(
            source in shipped(),
            f"there is no experiment {source!r}; {nearest(source, shipped())}, or give a .toml file",
        )
        path = shipped()[source]
    return read_named(path), str(path)


def parse(table: Table, where: str) -> Experiment:
    """Validate the top level of an experiment."""
    try:
        experiment = Experiment(**table)
    except ValidationError as e:
        raise InputError(f"{where}: {sentence(e, table, _known, _inside)}") from e
    said(experiment, where)
    return experiment


def _inside(key: str, table: Table) -> str:
    """A hint for an unknown top-level key: the table that has it, perhaps under another name."""
    entries = [entry for entry in table.get("algorithms", ()) if isinstance(entry, dict)]
    inner = {name: table[name] for name in ("data", "problem", "regulariser") if isinstance(table.get(name), dict)}
    for here in (key, *OTHER_NAMES.get(key, ())):
        if any(here in entry for entry in entries):
            return f"algorithms.*.{here}"
        if within := [name for name in inner if here in inner[name]]:
            return f"{within[0]}.{here}"
    return "problem.batch" if "batch" in OTHER_NAMES.get(key, ()) else ""


def canonical(problem: Table) -> Table:
    """The table of a problem with the names of its class: `weight_decay` is an alias of `l2`."""
    if "weight_decay" not in problem:
        return problem
    require("l2" not in problem, "problem: l2 and weight_decay are the same; give one of them")
    return {"l2" if key == "weight_decay" else key: value for key, value in problem.items()}


def _known(path: Sequence[str]) -> Iterable[str]:
    """The keys that are allowed at the end of a path such as protection.privacy."""
    known: dict[str, type[BaseModel]] = {"protection": Protection, "privacy": Privacy, "robust": Robust}
    return next((known[part] for part in reversed(path) if part in known), Experiment).model_fields


# ---- its cases -----------------------------------------------------------------------------------------------------


Layers = Sequence[tuple[str, Table]]
"""Settings that override a case's, with their source."""


class ExperimentFile:
    """An experiment's file, read and validated once, and its cases."""

    def __init__(self, source: str) -> None:
        self.table, self._where = read_table(source)
        """The raw table."""
        self.whole = parse(self.table, self._where)
        """The experiment with all its cases."""
        self._check_cases()
        if (found := said(self.whole, self._where)) and not self.whole.case:
            found.check_names(self.labels(), self._where)  # the config.toml of a run has one case, and all claims

    def cases(
        self, overrides: Iterable[str] = (), only: Sequence[str] = (), layers: Layers = ()
    ) -> dict[str, Experiment]:
        """The cases by name, `only` some of them if given; without [cases] there is one, called ''.

        Later settings override earlier ones, in the order file, case, layers, `key=value` overrides.
        """
        overrides = list(overrides)
        if not (self.whole.cases or layers or overrides or only):
            return {self.whole.case: self.whole}
        cases = {}
        for name in self._chosen(only):
            own = self._settings(name, layers)
            for text in overrides:
                _check_changed(text.partition("=")[0], f"-c {text}")
                override(own, text)
            cases[name] = parse(own, f"{self._where}: case {name!r}" if self.whole.cases else self._where)
        return cases

    def labels(self) -> dict[str, list[str]]:
        """The labels of the algorithms, by case."""
        cases = {name: self._settings(name) for name in self.whole.cases or [self.whole.case]}
        return {name: [label_of(algorithm) for algorithm in own["algorithms"]] for name, own in cases.items()}

    def _settings(self, name: str, layers: Layers = ()) -> Table:
        """The settings of one case."""
        own = deepcopy({key: value for key, value in self.table.items() if key != "cases"})
        for key, value in self.whole.cases.get(name, {}).items():
            assign(own, key, value, f"{self._where}: cases.{name}: {key!r}")
        for place, layer in layers:
            for key, value in layer.items():
                _check_changed(key, f"{self._where}: {place}")
                assign(own, key, value, f"{self._where}: {place}: {key!r}")
        return own | {"case": name}

    def _chosen(self, only: Sequence[str]) -> list[str]:
        """The selected cases, in the order of the file; a case may also be given by the name of its folder."""
        names = list(self.whole.cases or [self.whole.case])
        for name in only:
            close = nearest(name, names) if self.whole.cases else "it has none"
            require(slug(name) in map(slug, names), f"{self._where} has no case {name!r}; {close}")
        return [name for name in names if slug(name) in map(slug, only)] if only else names

    def _check_cases(self) -> None:
        """Check that every case has its own folder."""
        slugs = list(map(slug, self.whole.cases))
        for name in self.whole.cases:
            require(slug(name) != "", f"{self._where}: the case {name!r} needs a name with letters or digits")
            alone = slugs.count(slug(name)) == 1
            require(alone, f"{self._where}: another case has nearly the same name as {name!r}")


def read_cases(source: str, overrides: Iterable[str] = (), only: Sequence[str] = ()) -> dict[str, Experiment]:
    """The cases of a file or a shipped experiment."""
    return ExperimentFile(source).cases(overrides, only)


def slug(case: str) -> str:
    """The folder of a case: 'MNIST MLP, IID' -> 'mnist-mlp-iid'."""
    return re.sub(r"[^\w.+]+", "-", case.lower()).strip("-.")


def _check_changed(key: str, where: str) -> None:
    """Refuse overrides of keys that can only be changed in the file."""
    first = key.partition(".")[0]
    fixed = first in ("cases", "claims", "reported", "paper")
    require(not fixed, f"{where}: {first!r} cannot be overridden; change the file, or the settings themselves")
