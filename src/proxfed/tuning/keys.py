"""Settings of a study's algorithms by dotted keys: FedAvg.eta, *.eta, "FedCEF top 10 %.compressor.fraction"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

from proxfed.algorithms import CompressedDownlink
from proxfed.errors import InputError, nearest, require
from proxfed.harness.study import CompleteEntry, Entry, Study, describe_algorithm
from proxfed.registry import arguments
from proxfed.types import Algorithm

AROUND = ("participation", "topology")
"""The fields of an entry beside its algorithm whose settings may be changed."""


def algorithm_keys(study: Study, key: str, where: str) -> list[tuple[str, str]]:
    """(label, path) of the algorithms' settings that a key names, with or without the prefix 'algorithms.'."""
    key = key.removeprefix("algorithms.")
    first, _, path = key.partition(".")
    if first == "*":
        require(path != "", f"{where}: after '*.' there must be a setting, such as *.eta")
        found = [(label, path) for label, e in study.complete.items() if _has(e, path)]
        known = sorted({name for e in study.complete.values() for name in settings(e)})
        require(len(found) > 0, f"{where}: no algorithm has a setting {path!r}; {nearest(path, known)}")
        return found
    called = _called(study)
    meant = max((name for name in called if key.startswith(f"{name}.")), key=len, default=None)
    if meant is None:
        raise InputError(f"{where}: there is no algorithm {first!r}; {nearest(first, study.entries)}")
    label, path = called[meant], key[len(meant) + 1 :]
    known = settings(study.complete[label])
    has = _has(study.complete[label], path)
    require(has, f"{where}: {label} has no setting {path!r}; {nearest(path, known)}")
    return [(label, path)]


def is_of_algorithm(study: Study, key: str) -> bool:
    """Whether it is a key of one of the study's algorithms, or of all."""
    return key.startswith(("algorithms.", "*.")) or any(key.startswith(f"{name}.") for name in _called(study))


def _called(study: Study) -> dict[str, str]:
    """The names by which an algorithm can be given: its label, or its class's name if it is unique."""
    names = [str(describe_algorithm(e.algorithm)["name"]) for e in study.entries.values()]
    alone = {name: label for name, label in zip(names, study.entries, strict=True) if names.count(name) == 1}
    return alone | {label: label for label in study.entries}


def settings(e: CompleteEntry) -> list[str]:
    """The keys of an algorithm's settings."""
    algorithm, _ = _taken_apart(e.algorithm)
    own = [field.name for field in _fields(algorithm)]
    inner = [f"{name}.{field.name}" for name in own for field in _fields(getattr(algorithm, name))]
    around = [f"{name}.{field.name}" for name in AROUND for field in _fields(getattr(e, name))]
    decay = [] if e.problem.f.l2 is None else ["weight_decay"]
    return [*own, *inner, *around, *decay]


def _fields(value: Any) -> Iterable[Any]:
    return [field for field in fields(value) if field.init] if is_dataclass(value) else []


def _has(e: CompleteEntry, path: str) -> bool:
    return path in settings(e)


def present(e: CompleteEntry, path: str) -> Any:
    """The present value of a setting."""
    if path == "weight_decay":
        return e.problem.f.l2
    algorithm, _ = _taken_apart(e.algorithm)
    here: Any = e if path.partition(".")[0] in AROUND else algorithm
    for name in path.split("."):
        here = getattr(here, name)
    return here


def changed(study: Study, label: str, values: Mapping[str, Any]) -> Entry:
    """The entry with other values of these settings, and without the record of its tuning."""
    e, entry = study.complete[label], replace(study.entries[label], tuned=None)
    for path, value in values.items():
        where = f"algorithms.{label}.{path}"
        first, _, rest = path.partition(".")
        if path == "weight_decay":
            own = entry.problem or study.problem
            entry = replace(entry, problem=replace(own, f=own.f.with_l2(float(value))))
        elif first in AROUND:
            whole = getattr(entry, first) or getattr(e, first)
            entry = replace(entry, **{first: set_field(whole, rest, value, where)})
        else:
            entry = replace(entry, algorithm=_set(entry.algorithm, path, value, where))
    return entry


def _set(algorithm: Algorithm, path: str, value: Any, where: str) -> Any:
    """The algorithm with another value of a setting."""
    inside, around = _taken_apart(algorithm)
    return around(set_field(inside, path, value, where))


def _taken_apart(algorithm: Algorithm) -> tuple[Algorithm, Callable[[Any], Any]]:
    """(the algorithm that has the settings, a function that restores its wrapper)"""
    if isinstance(algorithm, CompressedDownlink):
        return algorithm.star, partial(CompressedDownlink, compressor=algorithm.compressor)
    return algorithm, copy


def set_field(owner: Any, path: str, value: Any, where: str) -> Any:
    """A copy of a dataclass with another value of one of its fields, possibly a nested one."""
    first, _, rest = path.partition(".")
    known = [field.name for field in _fields(owner)]
    require(
        first in known, f"{where}: {type(owner).__name__} has no {first!r}; {nearest(first, known) if known else ''}"
    )
    others = {name: getattr(owner, name) for name in known if name != first}
    if rest:
        new = set_field(getattr(owner, first), rest, value, where)
    else:  # checked as in a file; a number such as 1 may stand for 1.0
        make: Any = type(owner)
        new = arguments(partial(make, **others), {first: value}, where.rpartition(".")[0])[first]
    try:
        return replace(owner, **{first: new})
    except InputError as e:
        raise InputError(f"{where}: {e}") from e


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """The last part of each key, if these are unique."""
    keys = list(dict.fromkeys(keys))
    last = [key.rpartition(".")[2] for key in keys]
    return {key: word if last.count(word) == 1 else key for key, word in zip(keys, last, strict=True)}


def written(value: Any) -> str:
    """A value in few characters, for a label."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return " ".join([str(value.get("name", "")), *(f"{k}={written(v)}" for k, v in value.items() if k != "name")])
    return str(value).replace("/", "|")
