"""A study: the algorithms to compare, the problem, the rounds and the seeds, as one object.

A study is made in Python from objects, or from the tables of a configuration file (build.py). The rest of the harness
works with studies: it runs them (execute.py) in a run folder, resumes, reports and simulates them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from proxfed.algorithms import ALGORITHMS, CompressedDownlink
from proxfed.compressors import COMPRESSORS
from proxfed.engine.compatibility import check_combination, why_not_private
from proxfed.engine.state_measures import check_names
from proxfed.errors import InputError, finite, nearest, of_kind, real, require, shown, whole
from proxfed.explained import explain
from proxfed.harness.protection import Privacy
from proxfed.hooks import STOPS, Hook, StopRule, checked
from proxfed.participation import PARTICIPATIONS, Full
from proxfed.problems import PROBLEMS
from proxfed.registry import Table, describe, plain
from proxfed.regularisers import REGULARISERS, Zero
from proxfed.report.columns import COMPUTED, MEASURED, ROW, Directions, column, direction
from proxfed.simulate import Timing
from proxfed.topologies import TOPOLOGIES
from proxfed.types import Algorithm, Graph, Method, Participation, Problem, Smooth, Topology, directions

__all__ = ["Entry", "Study"]


@dataclass(frozen=True)
class Entry:
    """An algorithm of a study, with its own settings."""

    algorithm: Algorithm
    """An object such as FedAvg(0.1, K=5)."""
    topology: Topology | None = None
    """The graph of an algorithm without a server; None: the study's."""
    participation: Participation | None = None
    """Which clients take part in its rounds; None: the study's."""
    rounds: int | None = None
    """Its communication rounds; None: the study's."""
    problem: Problem | None = None
    """Its own problem, with the same clients and the same model; None: the study's."""
    tuned: Mapping[str, Any] | None = None
    """How its settings were chosen: {configurations, rounds, values, ...}, as `tune` writes it; None: by hand."""

    def __post_init__(self) -> None:
        a = self.algorithm
        hint = f"; give an object, {a.__name__}(...)" if isinstance(a, type) else ""
        require(isinstance(a, Method), f"algorithm = {shown(a)} is not an algorithm (a Star or a Graph){hint}")
        if self.rounds is not None and whole(self.rounds):
            object.__setattr__(self, "rounds", int(self.rounds))
        object.__setattr__(self, "problem", as_problem(self.problem))
        if self.tuned is not None:
            table: Any = self.tuned if isinstance(self.tuned, Mapping) else {}
            counts = [table.get("configurations"), table.get("rounds")]
            good = all(whole(count) and count >= 0 for count in counts)
            require(good, f"tuned = {self.tuned!r} must be a table with whole numbers 'configurations' and 'rounds'")


class CompleteEntry(NamedTuple):
    """An entry with defaults filled in from the study."""

    algorithm: Algorithm
    topology: Topology | None
    participation: Participation
    rounds: int
    problem: Problem


class Task(NamedTuple):
    """An algorithm's label and a seed: the unit of work."""

    label: str
    seed: int


@dataclass(frozen=True, eq=False)
class Study:
    """Labelled algorithms on one problem."""

    problem: Problem
    """f + h; f alone is f + 0."""
    entries: Mapping[str, Entry]
    """The algorithms by label; a plain algorithm stands for an entry without own settings."""
    rounds: int
    """Communication rounds of every algorithm without its own."""
    seeds: Sequence[int] = (0,)
    """Every algorithm runs once per seed."""
    name: str = "study"
    """The name in reports."""
    description: str = ""
    """A sentence for the top of the report."""
    topology: Topology | None = None
    """The graph of the algorithms without a server."""
    participation: Participation = Full()
    """Which clients take part in a round."""
    every: int = 1
    """Rounds between evaluations."""
    reference: bool = False
    """Compute the minimiser beforehand, so that rows have the optimality gap and the error."""
    stationarity_step: float | None = None
    """The prox step with which stationarity is measured; None: chosen for f and h."""
    measures: Sequence[str] = ()
    """More measures: of the clients' states, 'consensus_y', 'largest_c', ...; 'train_loss', 'train_accuracy'."""
    targets: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Targets: tables show the first round, bytes and seconds at which they are reached."""
    privacy: Privacy | None = None
    """Clipping and noise of clients' messages, as between organisations; the noise is derived from the seed."""
    timing: Timing | None = None
    """Devices and links, so that rounds and bytes become simulated seconds."""
    hooks: Sequence[Any] = ()
    """Called with every row of every algorithm and seed; they may stop it (proxfed.hooks)."""
    written: Mapping[str, Any] | None = None
    """The settings in the form of a configuration file, if the study was made from one."""
    asked: Sequence[tuple[str, str, bool]] = ()
    """(where, measure or axis, whether it needs a direction) for the claims and figures of a paper."""
    again: Callable[[Mapping[str, Any]], Study] | None = field(default=None, repr=False)
    """A function that makes the same study with other settings, by dotted keys, if it was made from a file."""
    problem_of: Callable[[int], Problem] | None = field(default=None, repr=False)
    """The problem of each seed, if each has its own partition of the data; `problem` is the first one."""

    def __post_init__(self) -> None:
        require(isinstance(self.entries, Mapping) and len(self.entries) > 0, "a study needs at least one algorithm")
        own = {label: e if isinstance(e, Entry) else Entry(e) for label, e in self.entries.items()}
        for label in own:
            good = isinstance(label, str) and label.strip() != "" and "/" not in label and label.isprintable()
            require(good, f"the label {label!r} must be text in one line, without '/'")
        seeds = list(self.seeds) if isinstance(self.seeds, (Sequence, range)) else self.seeds
        listed = isinstance(seeds, list) and len(seeds) > 0 and all(map(whole, seeds))
        require(listed, f"seeds = {self.seeds!r} must be a list of whole numbers, such as [0, 1, 2]")
        require(len(set(seeds)) == len(seeds), f"seeds = {seeds!r}: a seed is given twice")
        for key, value in (("rounds", self.rounds), ("every", self.every)):
            require(whole(value) and value >= 1, f"{key} = {value!r} must be a whole number >= 1")
        for label, entry in own.items():
            good = entry.rounds is None or (whole(entry.rounds) and entry.rounds >= 1)
            require(good, f"algorithms.{label}.rounds = {entry.rounds!r} must be a whole number >= 1")
        for key in ("name", "description"):
            value = getattr(self, key)
            require(isinstance(value, str), f"{key} = {value!r} must be a text")
        good = self.name.strip() != "" and self.name.isprintable()
        require(good, f"name = {self.name!r} must be text in one line")
        require(isinstance(self.reference, bool), f"reference = {self.reference!r} must be True or False")
        step = self.stationarity_step
        good = step is None or (finite(step) and step > 0)
        require(good, f"stationarity_step = {step!r} must be a finite number > 0")
        timed = self.timing is None or isinstance(self.timing, Timing)
        require(timed, f"timing = {self.timing!r} must be a Timing, or None")
        require(isinstance(self.targets, Mapping), f"targets = {self.targets!r} must be a dict of measures and values")
        object.__setattr__(self, "problem", as_problem(self.problem))
        kinds: tuple[tuple[str, Any, str], ...] = (
            ("problem", Problem, "Linear(data, Logistic()) + L1(0.1)"),
            ("topology", (Topology, type(None)), "Ring(10)"),
            ("participation", Participation, "Full()"),
        )
        for key, kind, allowed in kinds:
            of_kind(key, getattr(self, key), kind, f"an object such as {allowed}")
        object.__setattr__(self, "entries", own)
        object.__setattr__(self, "seeds", [int(seed) for seed in seeds])
        object.__setattr__(self, "rounds", int(self.rounds))
        object.__setattr__(self, "every", int(self.every))
        object.__setattr__(self, "measures", names(self.measures))
        object.__setattr__(self, "hooks", checked(self.hooks))
        object.__setattr__(self, "targets", {k: _numbers(k, v) for k, v in self.targets.items()})

    # ---- entries with defaults from the study ------------------------------------------------------------------

    @cached_property
    def complete(self) -> dict[str, CompleteEntry]:
        """The entries, with the study's rounds, problem, participation and topology as defaults."""
        return {label: self._completed(entry) for label, entry in self.entries.items()}

    def _completed(self, e: Entry) -> CompleteEntry:
        common = self.topology if isinstance(e.algorithm, Graph) else None
        return CompleteEntry(
            e.algorithm,
            common if e.topology is None else e.topology,
            self.participation if e.participation is None else e.participation,
            self.rounds if e.rounds is None else e.rounds,
            self.problem if e.problem is None else e.problem,
        )

    @cached_property
    def tasks(self) -> list[Task]:
        """The tasks seed by seed, so that seeds added later come last."""
        return [Task(label, seed) for seed in self.seeds for label in self.entries]

    @cached_property
    def own_measures(self) -> list[str]:
        """The columns of rows beside those of every study."""
        return [*self.measures, *directions(self.problem.f.measures)]

    @cached_property
    def directions(self) -> Directions:
        """Which values of the problem's own measures are better, if the table of columns does not have them."""
        f = self.problem.f
        said = directions((*f.training_measures, *f.measures))
        return {k: way for k, way in said.items() if k in self.own_measures and way != column(k).better}

    @property
    def stops(self) -> list[StopRule]:
        """The hooks that stop a run by its rows alone: rows depend on them."""
        return [hook for hook in self.hooks if isinstance(hook, StopRule)]

    # ---- validation --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse an invalid study before anything is computed."""
        for label, e in self.complete.items():
            try:
                check_combination(e.problem, e.algorithm, e.topology, e.participation)
            except InputError as error:
                raise type(error)(f"algorithms.{label}: {error}") from error
            if self.privacy is not None:
                alone = e.topology is None and not e.algorithm.to_find
                why = why_not_private(e.algorithm, self.problem.f.d)
                why = why or ("" if alone else "takes steps as numbers then, and no tree")
                require(not why, f"algorithms.{label}: protection.privacy: {type(e.algorithm).__name__} {why}")
            fits = (e.problem.f.n, e.problem.f.blocks) == (self.problem.f.n, self.problem.f.blocks)
            require(fits, f"algorithms.{label}: its problem must have the clients and the model of the study's")
        solvable = not self.reference or self.problem.f.solvable
        require(
            solvable, f"reference = true, but there is no solver for the problem {self.settings['problem']['name']!r}"
        )
        if self.timing is not None:
            self.timing.check(self.problem.f.n)
        if self.measures:
            algorithms = [e.algorithm for e in self.complete.values()]
            check_names(self.measures, algorithms, self.problem, self.stationarity_step)
        measured = [*MEASURED, *self.own_measures]
        for name in self.targets:
            require(name in measured, f"targets: there is no measure {name!r}; {nearest(name, measured)}")
            direction(name, self.directions, "targets")
            above = next((value for value in self.targets[name] if name.endswith("accuracy") and value > 1), None)
            require(above is None, f"targets.{name} = {above} is not a fraction between 0 and 1")
        columns = [*measured, *(["sim_seconds"] if self.timing is not None else [])]
        for name in (name for rule in self.stops for name in rule.measures):
            require(name in columns, f"stop: there is no measure {name!r}; {nearest(name, columns)}")
        for rule in self.stops:
            rule.rule(self.directions)  # or it is refused
        for hook in self.hooks:
            if isinstance(hook, Hook):
                hook.check()
        known = {*ROW, *measured, *COMPUTED} - {"run", "algorithm"}
        for where, name, directed in self.asked:
            require(name in known, f"{where}: there is no measure {name!r}; {nearest(name, known)}")
            if directed:
                direction(name, self.directions, where)
        given = (self.written or {}).get("better") or self.directions
        require(given == self.directions, f"better = {given!r}, but the problem says {self.directions!r}")

    # ---- identity ----------------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> Table:
        """The table of all settings, with every default and every computed step size."""
        table = self._described() if self.written is None else dict(self.written)
        table["seeds"] = list(self.seeds)
        table["better"] = dict(self.directions)
        if self.timing is not None:
            table["time"] = self.timing.table()
        if self.stops:
            table["stop"] = [describe(rule, STOPS) for rule in self.stops]
        table["algorithms"] = [self._entry_table(label) for label in self.entries]
        return table

    def _described(self) -> Table:
        """The same for a study made from objects."""
        about = {"name": self.name, "description": self.description, "rounds": self.rounds, "every": self.every}
        about |= {"reference": self.reference, "measures": list(self.measures), "targets": dict(self.targets)}
        if self.stationarity_step is not None:
            about["stationarity_step"] = self.stationarity_step
        if self.privacy is not None:
            about["protection"] = {"privacy": self.privacy.model_dump()}
        return about | describe_problem(self.problem)

    def _entry_table(self, label: str) -> Table:
        e = self.complete[label]
        out: Table = {"label": label, "rounds": e.rounds} | describe_algorithm(e.algorithm)
        out["participation"] = describe(e.participation, PARTICIPATIONS)
        if (own := self.entries[label].problem) is not None:
            written = self.written is not None  # in a file, an entry's own problem differs in its weight decay
            tables = () if written else (describe_problem(own), describe_problem(self.problem))
            out |= {"weight_decay": own.f.l2} if written else _own_problem(*tables)
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
    """The tables [data], [problem] and [regulariser] of a problem made from objects."""
    f = problem.f
    table = {k: v for k, v in describe(f, PROBLEMS).items() if k not in ("data", "dtype")}
    table |= {} if problem.x0 is None else {"x0": plain(problem.x0)}
    out: Table = {"problem": table, "regulariser": describe(problem.h, REGULARISERS)}
    if (data := f.data) is not None:
        out["data"] = {"name": data.name, "clients": f.n, "samples": int(sum(data.sizes))}
    out["dtype"] = str(f.weights.dtype).removeprefix("torch.")
    return out


def _own_problem(own: Table, common: Table) -> Table:
    """The differences in the tables of an entry's own problem; its weight decay has a separate key."""
    out = {key: value for key, value in own.items() if common.get(key) != value}
    here, there = dict(own["problem"]), dict(common["problem"])
    decay, other = here.pop("l2", None), there.pop("l2", None)
    if decay != other and here == there:
        del out["problem"]
        out["weight_decay"] = decay
    return out


def as_problem(given: Any) -> Any:
    """f alone is f + 0."""
    return given + Zero() if isinstance(given, Smooth) else given


def names(measures: Any) -> tuple[str, ...]:
    """A list of names as a tuple; a single string is refused."""
    listed = isinstance(measures, Sequence) and not isinstance(measures, str)
    good = listed and all(isinstance(name, str) for name in measures)
    require(good, f"measures = {measures!r} must be a list of names")
    return tuple(measures)


def _numbers(measure: str, values: Any) -> list[float]:
    listed = [values] if real(values) else values
    good = isinstance(listed, Sequence) and all(map(real, listed))
    require(good, f"targets.{measure} = {values!r} must be a number, or a list of numbers")
    return [float(v) for v in listed]


explain(__name__)
