"""An experiment as data: its file, read and validated, and its cases: the same algorithms in several settings.

The tables of a file:

    name = "demo"                                rounds = 100        seeds = [0, 1, 2]
    [data]          name = "synthetic_binary"    ...                 [data.partition]  name = "iid"  ...
    [problem]       name = "logistic"            l2 = 0.01           batch = 20
    [regulariser]   name = "l1"                  weight = 1e-4       blocks = ["weight"]
    [topology]      name = "ring"
    [participation] name = "uniform"             m = 10
    [protection]    secure_aggregation = true
    [[algorithms]]  name = "depositum"           label = "..."       alpha = 0.5
    [cases."few clients"]                        "data.clients" = 5  "algorithms.depositum.alpha" = 0.1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from copy import deepcopy
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError, field_validator

from proxfed.errors import InputError, nearest, require
from proxfed.harness.overrides import assign, override
from proxfed.harness.paper_schema import Claim, Figure, Paper, Reported, check_names, claim_keys
from proxfed.harness.protection import Privacy, Protection
from proxfed.registry import Table, label_of, read_named
from proxfed.validation import STRICT, sentence


class Experiment(BaseModel):
    """A whole configuration file; tables of components are checked when they are built (build.py)."""

    model_config = STRICT

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
    """More measures: of the clients' states, 'consensus_y', 'largest_c', ... (state_measures.py); 'train_loss',
    'train_accuracy'."""
    data: Table
    problem: Table
    regulariser: Table | list[Table] = {"name": "zero"}
    topology: Table | None = None
    participation: Table = {"name": "full"}
    algorithms: list[Table] = Field(min_length=1)
    protection: Protection | None = None
    """What holders do to their messages between organisations (protection.py)."""
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


EXPERIMENTS = Path(str(files("proxfed.papers") / "experiments"))
"""Where the experiments that come with the package are."""


def shipped() -> dict[str, Path]:
    """The experiments that come with the package, by name."""
    found = sorted(EXPERIMENTS.rglob("*.toml"))
    return {path.relative_to(EXPERIMENTS).with_suffix("").as_posix(): path for path in found}


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
    return read_named(path), str(path)


def parse(table: Table, where: str) -> Experiment:
    """Check the outer form of an experiment."""
    try:
        return Experiment(**table)
    except ValidationError as e:
        raise InputError(f"{where}: {sentence(e, table, _known)}") from e


def canonical(problem: Table) -> Table:
    """The table of a problem in the words of its class: `weight_decay` is another one for `l2`."""
    if "weight_decay" not in problem:
        return problem
    require("l2" not in problem, "problem: l2 and weight_decay are the same; give one of them")
    return {"l2" if key == "weight_decay" else key: value for key, value in problem.items()}


def _known(path: Sequence[str]) -> Iterable[str]:
    """The keys that are allowed at the end of a path such as paper.figures.0."""
    known: dict[str, Iterable[str]] = {
        "paper": Paper.model_fields,
        "figures": Figure.model_fields,
        "reported": Reported.model_fields,
        "claims": claim_keys(),
        "protection": Protection.model_fields,
        "privacy": Privacy.model_fields,
    }
    return next((known[part] for part in reversed(path) if part in known), Experiment.model_fields)


# ---- its cases -----------------------------------------------------------------------------------------------------


Layers = Sequence[tuple[str, Table]]
"""Settings on top of those of a case, with where they stand."""


class ExperimentFile:
    """An experiment's file, read and checked once: its cases in any form."""

    def __init__(self, source: str) -> None:
        self.table, self._where = read_table(source)
        """As it stands."""
        self.whole = parse(self.table, self._where)
        """With all its cases."""
        self._check_cases()
        e = self.whole
        says = e.claims or e.reported or e.paper
        if says and not e.case:  # the config.toml of a run has one case, and the claims about all of them
            check_names(e.claims, e.reported, e.paper, self.labels(), self._where)

    def cases(
        self,
        overrides: Iterable[str] = (),
        *,
        quick: bool = False,
        variant: str | None = None,
        only: Sequence[str] = (),
    ) -> dict[str, Experiment]:
        """The cases by name, `only` some of them if given; without [cases] there is one, called ''.

        What is set later wins: the file, the case, the quick form, the variant, `key=value` overrides.
        """
        layers, chosen, overrides = self._layers(quick, variant), self._chosen(quick, only), list(overrides)
        if not (self.whole.cases or layers or overrides):
            return {self.whole.case: self.whole}
        if variant is not None:
            form, some = "quick" if quick else "full", {*chosen, *self._chosen(quick, ())}
            changes = any(self._settings(name, layers) != self._settings(name, layers[:-1]) for name in some)
            same = f"the variant {variant!r} changes nothing in the {form} form: it is the same run"
            require(changes, f"{self._where}: {same}")
        cases = {}
        for name in chosen:
            own = self._settings(name, layers)
            for text in overrides:
                _check_changed(text.partition("=")[0], f"-c {text}")
                override(own, text)
            cases[name] = parse(own, f"{self._where}: case {name!r}" if self.whole.cases else self._where)
        return cases

    def labels(self) -> dict[str, list[str]]:
        """What the algorithms are called, in every case."""
        cases = {name: self._settings(name) for name in self.whole.cases or [self.whole.case]}
        return {name: [label_of(algorithm) for algorithm in own["algorithms"]] for name, own in cases.items()}

    def _settings(self, name: str, layers: Layers = ()) -> Table:
        """Of one case."""
        own = deepcopy({key: value for key, value in self.table.items() if key != "cases"})
        for key, value in self.whole.cases.get(name, {}).items():
            assign(own, key, value, f"{self._where}: cases.{name}: {key!r}")
        for place, layer in layers:
            for key, value in layer.items():
                _check_changed(key, f"{self._where}: {place}")
                assign(own, key, value, f"{self._where}: {place}: {key!r}")
        return own | {"case": name}

    def _layers(self, quick: bool, variant: str | None) -> Layers:
        """The quick form and the variant."""
        layers, paper = [], self.whole.paper
        if quick and paper is not None:
            layers.append(("paper.quick", paper.quick))
        if variant is not None:
            known = {} if paper is None else paper.variants
            require(variant in known, f"{self._where} has no variant {variant!r}; {nearest(variant, known)}")
            layers.append((f"paper.variants.{variant}", known[variant]))
        return layers

    def _chosen(self, quick: bool, only: Sequence[str]) -> list[str]:
        """The cases that are meant, in the order of the file; their folder's name will do."""
        names, paper = list(self.whole.cases or [self.whole.case]), self.whole.paper
        for name in only:
            close = nearest(name, names) if self.whole.cases else "it has none"
            require(slug(name) in map(slug, names), f"{self._where} has no case {name!r}; {close}")
        few = only or (paper.quick_cases if quick and paper is not None else ())
        return [name for name in names if slug(name) in map(slug, few)] if few else names

    def _check_cases(self) -> None:
        """Every case has a folder of its own."""
        slugs = list(map(slug, self.whole.cases))
        for name in self.whole.cases:
            require(slug(name) != "", f"{self._where}: the case {name!r} needs a name with letters or digits")
            alone = slugs.count(slug(name)) == 1
            require(alone, f"{self._where}: another case has nearly the same name as {name!r}")


def read_cases(
    source: str,
    overrides: Iterable[str] = (),
    *,
    quick: bool = False,
    variant: str | None = None,
    only: Sequence[str] = (),
) -> dict[str, Experiment]:
    """The cases of a file or a shipped experiment."""
    return ExperimentFile(source).cases(overrides, quick=quick, variant=variant, only=only)


def slug(case: str) -> str:
    """The folder of a case: 'MNIST MLP, IID' -> 'mnist-mlp-iid'."""
    return re.sub(r"[^\w.+]+", "-", case.lower()).strip("-.")


def _check_changed(key: str, where: str) -> None:
    """A form is changed by its settings; what is said about them is read from the file."""
    first = key.partition(".")[0]
    fixed = first in ("cases", "claims", "reported", "paper")
    require(not fixed, f"{where}: {first!r} is taken as the file has it; change the file, or the settings themselves")
