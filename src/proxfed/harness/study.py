"""A study: which algorithms are compared on which problem, for how long, with which seeds. An object of objects.

A study is made in Python from objects, or from the tables of a configuration file (build.py). Everything else of the
harness takes a study: it is run (execute.py) into a run folder, resumed there, reported and simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from proxfed.algorithms import ALGORITHMS, CompressedDownlink
from proxfed.auto import AUTO, Auto
from proxfed.compressors import COMPRESSORS
from proxfed.engine.compatibility import check_combination
from proxfed.engine.state_measures import check_names
from proxfed.errors import InputError, finite, nearest, real, require, whole
from proxfed.participation import PARTICIPATIONS, Full
from proxfed.problems import PROBLEMS
from proxfed.registry import Table, describe, plain
from proxfed.regularisers import REGULARISERS
from proxfed.report.columns import COMPUTED, MEASURED, ROW
from proxfed.simulate import Timing
from proxfed.topologies import TOPOLOGIES
from proxfed.types import Algorithm, Graph, Method, Participation, Problem, Topology


@dataclass(frozen=True)
class Entry:
    """An algorithm of a study, with what is its own."""

    algorithm: Algorithm | Auto
    topology: Topology | None = None
    """Of an algorithm without a server; None: the study's."""
    participation: Participation | None = None
    """None: the study's."""
    rounds: int | None = None
    """None: the study's."""
    problem: Problem | None = None
    """None: the study's; of the same clients and the same model."""
    tuned: Mapping[str, Any] | None = None
    """How its settings were chosen: {configurations, rounds, values, ...}, as `tune` writes it; None: by hand."""

    def __post_init__(self) -> None:
        a = self.algorithm
        hint = f"; give an object, {a.__name__}(...)" if isinstance(a, type) else ""
        require(isinstance(a, (Method, Auto)), f"algorithm = {a!r} is not an algorithm (a Star or a Graph){hint}")
        if self.rounds is not None and whole(self.rounds):
            object.__setattr__(self, "rounds", int(self.rounds))
        if self.tuned is not None:
            table: Any = self.tuned if isinstance(self.tuned, Mapping) else {}
            counts = [table.get("configurations"), table.get("rounds")]
            good = all(whole(count) and count >= 0 for count in counts)
            require(good, f"tuned = {self.tuned!r} must be a table with whole numbers 'configurations' and 'rounds'")


class CompleteEntry(NamedTuple):
    """An entry with all that it needs."""

    algorithm: Algorithm | Auto
    topology: Topology | None
    participation: Participation
    rounds: int
    problem: Problem
    example: Algorithm
    """To ask what it needs and sends: itself, or with some steps where they are to be found."""


class Task(NamedTuple):
    """An algorithm's label and a seed: the unit of work."""

    label: str
    seed: int


@dataclass(frozen=True, eq=False)
class Study:
    """Labelled algorithms on one problem."""

    problem: Problem
    entries: Mapping[str, Entry]
    """By label; a plain algorithm is an entry with nothing of its own."""
    rounds: int
    seeds: Sequence[int] = (0,)
    name: str = "study"
    description: str = ""
    topology: Topology | None = None
    """Of the algorithms without a server."""
    participation: Participation = Full()
    every: int = 1
    """A row of measures every so many rounds."""
    reference: bool = False
    """Compute the minimiser beforehand, so that rows have the optimality gap and the error."""
    stationarity_step: float | None = None
    measures: Sequence[str] = ()
    """More measures: of the clients' states, 'consensus_y', 'largest_c', ...; 'train_loss', 'train_accuracy'."""
    targets: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Values of measures whose first round, bytes and seconds the tables show."""
    timing: Timing | None = None
    """Devices and links, so that rounds and bytes become simulated seconds."""
    written: Mapping[str, Any] | None = None
    """The settings as a configuration file has them, if the study was made from one."""
    asked: Sequence[tuple[str, str]] = ()
    """(where, measure or axis) that claims and figures of a paper ask for."""
    again: Callable[[Mapping[str, Any]], Study] | None = field(default=None, repr=False)
    """The same study with other settings, by dotted keys, if it was made from a file."""

    def __post_init__(self) -> None:
        require(isinstance(self.entries, Mapping) and len(self.entries) > 0, "a study needs at least one algorithm")
        own = {label: e if isinstance(e, Entry) else Entry(e) for label, e in self.entries.items()}
        for label in own:
            good = isinstance(label, str) and label.strip() != "" and "/" not in label and label.isprintable()
            require(good, f"the label {label!r} must be a word or words in one line, without '/'")
        seeds = list(self.seeds) if isinstance(self.seeds, (Sequence, range)) else self.seeds
        listed = isinstance(seeds, list) and len(seeds) > 0 and all(map(whole, seeds))
        require(listed, f"seeds = {self.seeds!r} must be a list of whole numbers, such as [0, 1, 2]")
        require(len(set(seeds)) == len(seeds), f"seeds = {seeds!r}: a seed stands there twice")
        for key, value, least in (("rounds", self.rounds, 1), ("every", self.every, 1)):
            good = whole(value) and value >= least
            require(good, f"{key} = {value!r} must be a whole number >= {least}")
        for label, entry in own.items():
            good = entry.rounds is None or (whole(entry.rounds) and entry.rounds >= 1)
            require(good, f"algorithms.{label}.rounds = {entry.rounds!r} must be a whole number >= 1")
        for key in ("name", "description"):
            value = getattr(self, key)
            require(isinstance(value, str), f"{key} = {value!r} must be a text")
        good = self.name.strip() != "" and self.name.isprintable()
        require(good, f"name = {self.name!r} must be a word or words in one line")
        require(isinstance(self.reference, bool), f"reference = {self.reference!r} must be True or False")
        step = self.stationarity_step
        good = step is None or (finite(step) and step > 0)
        require(good, f"stationarity_step = {step!r} must be a finite number > 0")
        timed = self.timing is None or isinstance(self.timing, Timing)
        require(timed, f"timing = {self.timing!r} must be a Timing, or None")
        require(isinstance(self.targets, Mapping), f"targets = {self.targets!r} must be a dict of measures and values")
        kinds: tuple[tuple[str, Any, str], ...] = (
            ("problem", Problem, "Linear(data, Logistic())"),
            ("topology", (Topology, type(None)), "Ring(10)"),
            ("participation", Participation, "Full()"),
        )
        for key, kind, allowed in kinds:
            value = getattr(self, key)
            if not isinstance(value, kind) or isinstance(value, type):  # to write down a problem takes long
                raise InputError(f"{key} = {value!r:.80} will not do: give an object such as {allowed}")
        object.__setattr__(self, "entries", own)
        object.__setattr__(self, "seeds", [int(seed) for seed in seeds])
        object.__setattr__(self, "rounds", int(self.rounds))
        object.__setattr__(self, "every", int(self.every))
        object.__setattr__(self, "measures", names(self.measures))
        object.__setattr__(self, "targets", {k: _numbers(k, v) for k, v in self.targets.items()})

    # ---- an entry with what it has from the study --------------------------------------------------------------

    @cached_property
    def complete(self) -> dict[str, CompleteEntry]:
        """The entries with the study's rounds, problem, participation and topology where they have no own."""
        return {label: self._completed(entry) for label, entry in self.entries.items()}

    def _completed(self, e: Entry) -> CompleteEntry:
        example = e.algorithm.example if isinstance(e.algorithm, Auto) else e.algorithm
        common = self.topology if isinstance(example, Graph) else None
        return CompleteEntry(
            e.algorithm,
            common if e.topology is None else e.topology,
            self.participation if e.participation is None else e.participation,
            self.rounds if e.rounds is None else e.rounds,
            self.problem if e.problem is None else e.problem,
            example,
        )

    @cached_property
    def tasks(self) -> list[Task]:
        """Seed by seed, so that seeds which are added later come after all that has been done."""
        return [Task(label, seed) for seed in self.seeds for label in self.entries]

    @cached_property
    def own_measures(self) -> list[str]:
        """What rows have beside the columns of every study."""
        return [*self.measures, *self.problem.measures]

    # ---- does it fit? ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse, before anything is computed, what cannot be run or measured."""
        for label, e in self.complete.items():
            try:
                check_combination(e.problem, e.example, e.topology, e.participation)
            except InputError as error:
                raise type(error)(f"algorithms.{label}: {error}") from error
            fits = (e.problem.n, e.problem.blocks) == (self.problem.n, self.problem.blocks)
            require(fits, f"algorithms.{label}: its problem must have the clients and the model of the study's")
        solvable = not self.reference or self.problem.solvable
        require(
            solvable, f"reference = true, but there is no solver for the problem {self.settings['problem']['name']!r}"
        )
        if self.timing is not None:
            self.timing.check(self.problem.n)
        if self.measures:
            examples = [e.example for e in self.complete.values()]
            check_names(self.measures, examples, self.problem, self.stationarity_step)
        measured = [*MEASURED, *self.own_measures]
        for name in self.targets:
            require(name in measured, f"targets: there is no measure {name!r}; {nearest(name, measured)}")
        known = {*ROW, *measured, *COMPUTED} - {"run", "algorithm"}
        for where, name in self.asked:
            require(name in known, f"{where}: there is no measure {name!r}; {nearest(name, known)}")

    # ---- what identifies it ------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> Table:
        """The table that says what is run, with every default and every computed step size written out."""
        table = self._described() if self.written is None else dict(self.written)
        table["seeds"] = list(self.seeds)
        if self.timing is not None:
            table["time"] = self.timing.table()
        table["algorithms"] = [self._entry_table(label) for label in self.entries]
        return table

    def _described(self) -> Table:
        """Of a study that was made of objects."""
        about = {"name": self.name, "description": self.description, "rounds": self.rounds, "every": self.every}
        about |= {"reference": self.reference, "measures": list(self.measures), "targets": dict(self.targets)}
        if self.stationarity_step is not None:
            about["stationarity_step"] = self.stationarity_step
        return about | describe_problem(self.problem)

    def _entry_table(self, label: str) -> Table:
        e = self.complete[label]
        out: Table = {"label": label, "rounds": e.rounds} | describe_algorithm(e.example)
        out |= dict.fromkeys(e.algorithm.found, AUTO) if isinstance(e.algorithm, Auto) else {}
        out["participation"] = describe(e.participation, PARTICIPATIONS)
        if (own_problem := self.entries[label].problem) is not None:
            out |= _own_problem(describe_problem(own_problem), describe_problem(self.problem))
        if e.topology is not None:
            out["topology"] = {k: v for k, v in describe(e.topology, TOPOLOGIES).items() if k != "n"}
        if (tuned := self.entries[label].tuned) is not None:
            out["tuned"] = plain(tuned)
        return out


def describe_algorithm(algorithm: Algorithm) -> Table:
    """The table of an algorithm; `down` is the compressor of its downlink, if it has one around it."""
    if isinstance(algorithm, CompressedDownlink):
        return describe_algorithm(algorithm.star) | {"down": describe(algorithm.compressor, COMPRESSORS)}
    return describe(algorithm, ALGORITHMS)


def describe_problem(problem: Problem) -> Table:
    """The tables [data], [problem] and [regulariser] of a problem that was made of objects."""
    problem = problem.described
    table = {k: v for k, v in describe(problem, PROBLEMS).items() if k not in ("data", "h", "dtype")}
    out: Table = {"problem": table, "regulariser": describe(problem.h, REGULARISERS)}
    if (data := problem.data) is not None:
        out["data"] = {"name": data.name, "clients": problem.n, "samples": int(sum(data.sizes))}
    out["dtype"] = str(problem.weights.dtype).removeprefix("torch.")
    return out


def _own_problem(own: Table, common: Table) -> Table:
    """What is different in the tables of an entry's own problem; its weight decay has a key of its own."""
    out = {key: value for key, value in own.items() if common.get(key) != value}
    here, there = dict(own["problem"]), dict(common["problem"])
    decay, other = here.pop("l2", None), there.pop("l2", None)
    if decay != other and here == there:
        del out["problem"]
        out["weight_decay"] = decay
    return out


def names(measures: Any) -> tuple[str, ...]:
    """A list of words, and not one word."""
    listed = isinstance(measures, Sequence) and not isinstance(measures, str)
    good = listed and all(isinstance(name, str) for name in measures)
    require(good, f"measures = {measures!r} must be a list of names")
    return tuple(measures)


def _numbers(measure: str, values: Any) -> list[float]:
    listed = [values] if real(values) else values
    good = isinstance(listed, Sequence) and all(map(real, listed))
    require(good, f"targets.{measure} = {values!r} must be a number, or a list of numbers")
    return [float(v) for v in listed]
