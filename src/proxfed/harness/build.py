"""From the tables of a configuration file to a study: the problem, the algorithms and everything around them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from proxfed.adapters.trackers import HOOKS
from proxfed.algorithms import ALGORITHMS, CompressedDownlink
from proxfed.compressors import COMPRESSORS
from proxfed.data import DATASETS, PARTITIONS, Dataset, Federated, hand_out
from proxfed.data.limits import LIMITS, limited
from proxfed.data.partitions import NaturalPartition
from proxfed.epochs import Epochs
from proxfed.errors import OTHER_NAMES, InputError, finite, nearest, option, require, whole
from proxfed.harness.experiment import Experiment, canonical, parse, read_cases
from proxfed.harness.overrides import assign, check_not_overruled
from proxfed.harness.study import Entry, Study
from proxfed.hooks import STOPS, StopRule
from proxfed.participation import PARTICIPATIONS
from proxfed.problems import PROBLEMS
from proxfed.problems.linear.linear import Linear
from proxfed.registry import Table, arguments, build, hints, label_of, look_up, plain, prepared
from proxfed.regularisers import REGULARISERS, OnBlocks, SquaredL2, Zero
from proxfed.simulate import Timing
from proxfed.tables import load_tables
from proxfed.topologies import TOPOLOGIES
from proxfed.types import (
    LOCAL_STEPS,
    Algorithm,
    Block,
    Constants,
    Graph,
    Method,
    Participation,
    Problem,
    Regulariser,
    Smooth,
    Smoothness,
    Star,
    Topology,
)

DATASETS["tables"] = load_tables  # here, because the data know nothing of schemas

DTYPES = {"float32": torch.float32, "float64": torch.float64}

GIVEN = {"n", "directory", "data", "dtype", "device", "numbers", "net"}
"""Arguments that the run gives: the number of clients, and what other tables of an experiment say."""


def build_study(
    e: Experiment,
    data_directory: str | None = None,
    data: Federated | None = None,
    problem: Problem | None = None,
    only: Collection[str] = (),
) -> Study:
    """The study that a configuration file describes, with its data loaded unless they, or the problem, are given.

    `only` are the labels of the algorithms that it has; all if empty.
    """
    labels = [label_of(table) for table in e.algorithms]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    require(twice is None, f"two algorithms are called {twice!r}: give each a label of its own")
    for label in only:
        known = label in labels
        require(known, f"{option('only')}: no algorithm has the label {label!r}; {nearest(label, labels)}")
    problem_table = canonical(e.problem)
    here = problem is None  # between organisations the sites add the noise
    privacy = e.protection.privacy if here and e.protection is not None else None
    problem = _problem(e, problem_table, data_directory, data) if problem is None else problem
    each_its_own = here and drawn_by_seed(e.data)
    same = "reference = true needs one problem for all seeds, and data.partition.seed = 'run' gives each its own"
    require(not (each_its_own and e.reference), same)
    decayed: dict[float, Problem] = {}
    entries = {}
    for label, table in zip(labels, e.algorithms, strict=True):
        if only and label not in only:
            continue
        own = _with_decay(problem, table, label, decayed, e.reference)
        entries[label] = _entry(table, label, e, own or problem, own)
    return Study(
        problem,
        entries,
        e.rounds,
        e.seeds,
        e.name,
        e.description,
        every=e.every,
        reference=e.reference,
        stationarity_step=e.stationarity_step,
        measures=e.measures,
        targets=e.targets,
        privacy=privacy,
        timing=None if e.time is None else Timing.read(e.time),
        hooks=[*_stops(e.stop), *(build(HOOKS, table, f"hooks.{k}") for k, table in enumerate(e.hooks))],
        written=_filled_tables(e, problem_table),
        asked=e.asked(),
        again=partial(_again, e, data_directory, problem.f.data),
        problem_of=partial(_problem_of, e, data_directory) if each_its_own else None,
    )


def _again(e: Experiment, directory: str | None, data: Federated | None, changes: Mapping[str, Any]) -> Study:
    """The study with other settings by dotted keys; it has the same data where nothing about them changes."""
    table = e.model_dump(exclude_none=True, exclude={"paper", "claims", "reported"})
    for key, value in changes.items():
        check_not_overruled(table, key, key)
        assign(table, key, value, key)
    others = parse(table, e.name)
    same = partitioned(others.data, others.seeds[0]) == partitioned(e.data, e.seeds[0])
    return build_study(others, directory, data if same else None)


def read_study(source: str | Path, changes: Sequence[str] = (), case: str = "", data: str | None = None) -> Study:
    """The study of a shipped experiment or of a .toml file.

    Parameters
    ----------
    source : str or Path
        The name of the experiment, or the file.
    changes : sequence of str
        'key=value', as on the command line.
    case : str
        One of the file's cases, if it has several.
    data : str, optional
        The data directory; None: PROXFED_DATA.

    Returns
    -------
    Study
    """
    cases = read_cases(str(source), changes, only=[case] if case else [])
    known = ", ".join(map(repr, cases))
    require(len(cases) == 1, f"{source}: case = {case!r} must be one of its cases: {known}")
    return build_study(next(iter(cases.values())), data)


OF_STOP = ("patience", "measure", "least", "target", "seconds", "simulated_seconds", "bytes")
"""Keys of a table [stop]."""


def _stops(given: Table | list[Table]) -> list[StopRule]:
    """The rules of a table [stop], or of a list of tables, as the config.toml of a run has it."""
    if isinstance(given, list):
        return [build(STOPS, table, f"stop.{k}") for k, table in enumerate(given)]
    unknown = next((key for key in given if key not in OF_STOP), None)
    require(unknown is None, f"stop: unknown key {unknown!r}; {nearest(str(unknown), OF_STOP)}")
    of_patience = {key: given[key] for key in ("measure", "least") if key in given}
    alone = next((key for key in of_patience if "patience" not in given), None)
    require(alone is None, f"stop.{alone} is a setting of stop.patience, which is missing")
    target = given.get("target", {})
    good = isinstance(target, dict)
    require(good, f"stop.target = {target!r} must be a table of measures and values, such as {{accuracy = 0.9}}")
    rules: list[Table] = [{"name": "target", "measure": measure, "value": value} for measure, value in target.items()]
    if "patience" in given:
        rules.append({"name": "patience", "rows": given["patience"]} | of_patience)
    for key, more in (("seconds", {}), ("simulated_seconds", {"simulated": True})):
        rules += [{"name": "seconds", "seconds": given[key]} | more] if key in given else []
    rules += [{"name": "bytes", "bytes": given["bytes"]}] if "bytes" in given else []
    return [build(STOPS, rule, "stop") for rule in rules]


SPECIAL = {"label", "rounds", "topology", "participation", "theory", "weight_decay", "name", "source", "tuned"}
"""Keys of an algorithm's table that are no hyper-parameters."""

OF_ITS_PROBLEM = {"problem", "regulariser", "data", "dtype"}
"""The same in a run folder, of an algorithm with a problem of its own, which only Python can give."""


def _entry(table: Table, label: str, e: Experiment, problem: Problem, own: Problem | None) -> Entry:
    where = f"algorithms.{label}"
    rounds = table.get("rounds", e.rounds)
    if "rounds" in table:
        require(whole(rounds) and rounds >= 1, f"{where}.rounds = {rounds!r} must be a whole number >= 1")
    common = {"participation": e.participation, "topology": e.topology}
    make = look_up(ALGORITHMS, table, where)
    participation, topology = _surroundings(make, table, where, problem.f.n, common)
    algorithm = _algorithm(make, table, where, rounds, problem, topology)
    return Entry(algorithm, topology, participation, table.get("rounds"), own, table.get("tuned"))


def _surroundings(make: Any, table: Table, where: str, n: int, common: Table) -> tuple[Participation, Topology | None]:
    """Who takes part, and who talks to whom, of one algorithm over n clients; `common` is what all have."""
    given, place = _own_or_common("participation", table, common, where)
    participation = build(PARTICIPATIONS, given, place)
    peers = isinstance(make, type) and issubclass(make, Graph)
    if not peers:  # a server takes no graph, but may sit at the root of a tree that its own table names
        common = common | {"topology": None}
    graph, place = _own_or_common("topology", table, common, where)
    if graph is None:
        return participation, None
    tree = isinstance(graph, dict) and graph.get("name") == "spanning_tree"
    only = f"{table['name']!r} has a server and takes no graph but a 'spanning_tree' of one"
    require(peers or tree, f"{place}: {only}")
    return participation, _topology(graph, place, n)


def _topology(table: Table, where: str, n: int) -> Topology:
    """Over n clients; a tree has the table of another one."""
    if isinstance(table, dict) and isinstance(inner := table.get("of"), dict):
        table = table | {"of": _topology(inner, f"{where}.of", n)}
    return build(TOPOLOGIES, table, where, **_size(table, where, n))


def _algorithm(
    make: Any, table: Table, where: str, rounds: int, problem: Problem, topology: Topology | None
) -> Algorithm:
    """With the hyper-parameters that the table gives, or those of its theory, and its compressed downlink."""
    settings, down = _without_down(make, table)
    return _with_downlink(_bare(make, settings, where, rounds, problem, topology), down, where)


def _without_down(make: Any, table: Table) -> tuple[Table, Any]:
    """A table apart from its `down`, unless that is a hyper-parameter of the algorithm's own."""
    if "down" not in table or "down" in inspect.signature(make).parameters:
        return table, None
    return {k: v for k, v in table.items() if k != "down"}, table["down"]


def _with_downlink(algorithm: Algorithm, down: Any, where: str) -> Algorithm:
    if down is None:
        return algorithm
    if not isinstance(algorithm, Star):
        raise InputError(f"{where}.down: {type(algorithm).__name__} has no server that could send")
    try:
        return CompressedDownlink(algorithm, build(COMPRESSORS, down, f"{where}.down"))
    except InputError as e:
        raise InputError(str(e) if str(e).startswith(where) else f"{where}.down: {e}") from e


def _bare(
    make: Any, settings: Table, where: str, rounds: int, problem: Problem, topology: Topology | None
) -> Algorithm:
    own = {k: _steps(make, k, v, problem, where) for k, v in settings.items() if k not in SPECIAL}
    theory = settings.get("theory", False)
    if theory is False:
        _check_names(make, own, where)
        return make(**arguments(make, own, where))
    require(theory is True, f"{where}.theory = {theory!r} must be true or false")
    rule = make.theory
    if rule is None:
        raise InputError(f"{where}: there are no step sizes of the theory for {settings['name']!r}")
    graph = topology if issubclass(make, Graph) else None
    constants = _constants(problem, rounds, graph, make.needs.composite, where)
    return rule(constants, **arguments(rule, own, where, {"c"}))


def _check_names(make: Any, own: Table, where: str) -> None:
    """Refuse names that other libraries have for what is called differently here."""
    if not (isinstance(make, type) and issubclass(make, Method)):
        return
    takes = inspect.signature(make).parameters
    meant = {"eta": ("step size", make.facts.step)}
    meant["K"] = ("number of local steps", next((name for name in LOCAL_STEPS if name in takes), ""))
    for key in own:
        said, name = meant.get(next(iter(OTHER_NAMES.get(key, ("",)))), ("", ""))
        if key not in takes and name in takes:
            raise InputError(f"{where}: unknown key {key!r}; the {said} is called {name!r} here")


def _with_decay(
    problem: Problem, table: Table, label: str, decayed: dict[float, Problem], reference: bool
) -> Problem | None:
    """With the algorithm's own weight decay if it has one; algorithms with the same one share the data."""
    if (decay := table.get("weight_decay")) is None:
        return None
    where = f"algorithms.{label}.weight_decay"
    require(finite(decay) and decay >= 0, f"{where} = {decay!r} must be a finite number >= 0")
    require(not reference, f"{where} = {decay!r}: with reference = true all algorithms have the problem's own")
    if decay not in decayed:
        decayed[decay] = replace(problem, f=problem.f.with_l2(decay))
    return decayed[decay]


def _filled_tables(e: Experiment, problem: Table) -> Table:
    """The configuration with every default written out, but for the algorithms, whose objects say it."""
    out = e.model_dump(exclude_none=True, exclude={"topology", "participation", "stop", "hooks"})
    if e.data:  # between organisations the sites' rows are the data
        out["data"] = _filled(DATASETS[e.data["name"]], e.data)
    out["problem"] = _filled(PROBLEMS[problem["name"]], problem)
    return out


def drawn_by_seed(data: Table) -> bool:
    """Whether every seed of a run has a partition of its own: data.partition.seed = 'run'."""
    partition = data.get("partition")
    return isinstance(partition, dict) and partition.get("seed") == "run"


def partitioned(data: Table, seed: int) -> Table:
    """The table of the data with which this seed runs."""
    return data | {"partition": data["partition"] | {"seed": seed}} if drawn_by_seed(data) else data


def load_data(table: Table, directory: str | None) -> Federated:
    """The data that a table describes, handed out to the clients."""
    read = _reader({key: value for key, value in table.items() if key != "partition"}, directory)
    asked = table.get("partition")
    partition = None if asked is None else build(PARTITIONS, asked, "data.partition")
    data = read()
    if asked is None and isinstance(data, Federated):  # they come with their clients
        return data
    return hand_out(data, partition, table["name"])


def load_together(table: Table, directory: str | None) -> Federated:
    """The same without a partition: with the data's own clients if they have any, else all held by one."""
    data = _reader(table, directory)()
    if isinstance(data, Federated):
        return data
    whole = [np.arange(len(data.labels))]
    return Federated.split(data, whole if data.groups is None else NaturalPartition()(data.labels, data.groups))


def _reader(table: Table, directory: str | None) -> Callable[[], Dataset | Federated]:
    """What reads the data, once its options are checked."""
    limits = {key: table[key] for key in LIMITS if key in table}
    loader, own = prepared(DATASETS, {k: v for k, v in table.items() if k not in LIMITS}, "data", GIVEN)
    if "directory" in inspect.signature(loader).parameters:
        own["directory"] = directory
    return (lambda: limited(loader(**own), **limits)) if limits else partial(loader, **own)


def build_problem(e: Experiment, directory: str | None = None, data: Federated | None = None) -> Problem:
    """The problem that a configuration file describes."""
    return _problem(e, canonical(e.problem), directory, data)


def _problem_of(e: Experiment, directory: str | None, seed: int) -> Problem:
    """The problem with the partition that a seed draws."""
    return _problem(e, canonical(e.problem), directory, load_data(partitioned(e.data, seed), directory))


def _problem(e: Experiment, table: Table, directory: str | None, data: Federated | None) -> Problem:
    """With its regulariser, which may act on some of the problem's blocks only."""
    require(e.dtype in DTYPES, f"dtype = {e.dtype!r} is not one of {', '.join(DTYPES)}")
    for key in ("device", "dtype"):
        require(key not in table, f"problem: {key!r} stands above the tables, not inside [problem]")
    make, given = prepared(PROBLEMS, table, "problem", GIVEN)
    given |= {
        "data": load_data(partitioned(e.data, e.seeds[0]), directory) if data is None else data,
        "dtype": DTYPES[e.dtype],
        "device": e.device,
    }
    tables = e.regulariser if isinstance(e.regulariser, list) else [e.regulariser]
    alone = len(tables) == 1 and "blocks" not in tables[0]
    if alone and "groups" not in tables[0]:
        return make(**given) + build(REGULARISERS, tables[0], "regulariser")
    f = make(**given)
    tables = [_with_groups(table, f) for table in tables]
    if alone:  # groups are of features, so the intercept is left alone
        tables = [{**tables[0], "blocks": ["weight"]}]
    return f + _on_blocks(tables, f.blocks)


def _with_groups(table: Table, f: Smooth) -> Table:
    """A regulariser's table with the labels of its groups of features, if it names any."""
    if "groups" not in table:
        return table
    if not isinstance(f, Linear):
        raise InputError(f"regulariser.groups = {table['groups']!r}: only linear models have features by name")
    rest = {k: v for k, v in table.items() if k != "groups"}
    both = next((key for key in ("size", "labels") if key in rest), None)
    require(both is None, f"regulariser: groups and {both} exclude each other")
    return {**rest, "labels": f.feature_groups(table["groups"])}


def _on_blocks(tables: list[Table], blocks: tuple[Block, ...]) -> Regulariser:
    """From tables that each name their blocks of the model."""
    parts: dict[str, Regulariser] = {}
    for table in tables:
        require("blocks" in table, "regulariser: with several tables, each must name its blocks")
        h = build(REGULARISERS, {k: v for k, v in table.items() if k != "blocks"}, "regulariser")
        names = table["blocks"]
        words = isinstance(names, list) and all(isinstance(name, str) for name in names)
        require(words, f"regulariser.blocks = {names!r} must be a list of names")
        twice = next((name for name in names if name in parts), None)
        require(twice is None, f"regulariser: two tables name the block {twice!r}")
        parts |= dict.fromkeys(names, h)
    return OnBlocks.named(blocks, parts)


def _filled(make: Any, table: Table) -> Table:
    """A table with its defaults written out."""
    parameters = inspect.signature(make).parameters.items()
    defaults = {
        k: p.default for k, p in parameters if k not in GIVEN and isinstance(p.default, (bool, int, float, str))
    }
    return {k: plain(v) for k, v in (defaults | table).items() if v is not None}


def _constants(problem: Problem, rounds: int, topology: Topology | None, composite: bool, where: str) -> Constants:
    psi, h, smoothness = 0.0, problem.h, problem.f.smoothness()
    curved = smoothness.L_f > 0
    require(curved, f"{where}.theory: the losses have no curvature (L_f = 0), from which the theory takes its steps")
    if topology is not None:  # peers see n p_i f_i, so that their plain averages are the weighted ones
        psi = 1 - topology.spectral_gap()
        most, least = (problem.f.n * float(p) for p in (problem.f.weights.max(), problem.f.weights.min()))
        smoothness = smoothness._replace(L=smoothness.L * most, mu_min=smoothness.mu_min * least)
    if not composite and not isinstance(h, Zero):  # then h is a part of every f_i
        if not isinstance(h, SquaredL2):
            raise InputError(f"{where}: there are no step sizes of the theory with {h}, which is not smooth: give them")
        smoothness = Smoothness(*(constant + h.weight for constant in smoothness))
    return Constants(smoothness, problem.f.n, problem.f.d, rounds, h.weak_convexity, psi)


def _steps(make: Any, key: str, value: Any, problem: Problem, where: str) -> Any:
    """Where a number of local steps is meant: {epochs = 5} is five passes over each client's own samples;
    {mean_epochs = 5} is as many steps, for every client, as five passes over a client of mean size take."""
    where = f"{where}.{key}"
    if not isinstance(value, dict) or len(value) != 1 or not value.keys() <= {"epochs", "mean_epochs"}:
        return value
    (kind, epochs), batch, data = *value.items(), problem.f.batch, problem.f.data
    require(whole(epochs) and epochs >= 1, f"{where}.{kind} = {epochs!r} must be a whole number >= 1")
    if data is None:
        raise InputError(f"{where}: between organisations, epochs need the sizes of all sites; give a number")
    if batch is None:
        raise InputError(f"{where}: epochs need minibatches; give problem.batch")
    if kind == "mean_epochs":
        return data.steps(batch, epochs)
    own = Epochs in get_args(hints(make).get(key))
    require(
        own,
        f"{where} = {{epochs = {epochs}}}: clients of this algorithm take equally many local steps; give a number, or "
        f"{{mean_epochs = {epochs}}}, the steps of a client of mean size",
    )
    return value


def build_again(table: Table, n: int) -> Entry:
    """The entry of a resolved table, as a run folder has it, without its problem."""
    where = f"algorithms.{table['label']}"
    make: Any = look_up(ALGORITHMS, table, where)
    participation, topology = _surroundings(make, table, where, n, {})
    settings, down = _without_down(make, table)
    own = {k: v for k, v in settings.items() if k not in SPECIAL | OF_ITS_PROBLEM}
    algorithm = _with_downlink(make(**arguments(make, own, where)), down, where)
    return Entry(algorithm, topology, participation)


def _own_or_common(key: str, table: Table, common: Table, where: str) -> tuple[Any, str]:
    """A setting that an algorithm may have of its own, and where it stands."""
    return (table[key], f"{where}.{key}") if key in table else (common.get(key), key)


def _size(table: Any, where: str, n: int) -> dict[str, int]:
    """The number of nodes, for topologies that have it as a field."""
    takes = "n" in inspect.signature(look_up(TOPOLOGIES, table, where)).parameters and "n" not in table
    return {"n": n} if takes else {}
