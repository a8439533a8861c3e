"""The catalogue of available components, derived from the classes themselves."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from proxfed.adapters.trackers import HOOKS
from proxfed.algorithms import ALGORITHMS
from proxfed.compressors import COMPRESSORS
from proxfed.data import DATASETS, PARTITIONS
from proxfed.data.limits import LIMITS
from proxfed.errors import InputError, nearest, require
from proxfed.explained import field_docs, summary
from proxfed.harness.build import GIVEN
from proxfed.harness.experiment import shipped
from proxfed.hooks import STOPS
from proxfed.participation import PARTICIPATIONS
from proxfed.problems import PROBLEMS
from proxfed.problems.neural.architectures import MODELS
from proxfed.registry import Registry
from proxfed.regularisers import REGULARISERS
from proxfed.schedules import SCHEDULES
from proxfed.simulate import profiles
from proxfed.topologies import TOPOLOGIES
from proxfed.types import Needs, Star, When

Entry = dict[str, str]

KINDS: dict[str, Registry[Any]] = {
    "algorithms": ALGORITHMS,
    "problems": PROBLEMS,
    "models": MODELS,
    "regularisers": REGULARISERS,
    "compressors": COMPRESSORS,
    "topologies": TOPOLOGIES,
    "participations": PARTICIPATIONS,
    "schedules": SCHEDULES,
    "datasets": DATASETS,
    "partitions": PARTITIONS,
    "stops": STOPS,
    "hooks": HOOKS,
}

FILES: dict[str, Callable[[], dict[str, Path]]] = {"profiles": profiles, "experiments": shipped}
"""Kinds of entries that are TOML files."""


class Setting(NamedTuple):
    """One key of a table in a configuration file."""

    name: str
    default: str | None
    about: str


def catalogue(kind: str = "") -> dict[str, list[Entry]]:
    """Entries of one kind, or of all."""
    known = [*KINDS, *FILES]
    require(kind in ("", *known), f"there is no list of {kind!r}; {nearest(kind, known)}")
    return {k: _entries(k) for k in known if kind in ("", k)}


def find(kind: str, name: str) -> Callable[..., Any]:
    """The class or function of one entry."""
    require(kind not in FILES, f"{kind} are files, without settings of their own: `proxfed list {kind}` has them all")
    require(kind in KINDS, f"there is no list of {kind!r}; {nearest(kind, KINDS)}")
    require(name in KINDS[kind], f"{kind}: there is no {name!r}; {nearest(name, KINDS[kind].names())}")
    return KINDS[kind][name]


def settings(make: Callable[..., Any]) -> list[Setting]:
    """The settings of an entry."""
    if make in MODELS.values():  # channels, pixels and classes follow from the data
        return []
    fixed = make.keywords.keys() if isinstance(make, partial) else ()
    cls = make.func if isinstance(make, partial) else make
    docs = field_docs(cls) if isinstance(cls, type) else {}
    out = []
    for name, parameter in inspect.signature(make).parameters.items():
        if name not in GIVEN and name not in fixed:
            default = parameter.default
            value = type(default).__name__ if hasattr(default, "__dataclass_fields__") else repr(default)
            meaning = " ".join(docs.get(name, "").split())
            out.append(Setting(name, None if default is parameter.empty else value, meaning))
    if make in DATASETS.values():
        out += [Setting(name, repr(None), meaning) for name, meaning in LIMITS.items()]
    return out


def about(make: Callable[..., Any]) -> str:
    """The description of an entry: its docstring, or the docstring of the function that makes it."""
    return summary(type(next(iter(make.keywords.values()))) if isinstance(make, partial) else make)


def recursion(make: Any) -> str:
    """The docstring of an algorithm's file: its equations and messages; and the reference."""
    text = inspect.getdoc(sys.modules[make.__module__]) or ""
    return text if "Reference:" in text else f"{text}\nReference: {make.reference()}"


def needs(what: Needs) -> str:
    """'convex h, all clients': the needs of an algorithm."""
    words = {
        "no constraints": not what.composite,
        "convex h": what.convex,
        "all clients": what.everyone,
        "all hear": what.all_hear,
        "contractive compressor": what.contractive,
        "unbiased compressor": what.unbiased,
        "exact downlink": what.exact_downlink,
        "fixed graph": what.fixed_graph,
        "symmetric W": what.symmetric,
        "doubly stochastic W": what.doubly_stochastic,
    }
    return ", ".join(word for word, asked in words.items() if asked)


WORDS = ("settings", "runs on", "handles h by", "needs", "sends", "exact", "different data", "some clients")
"""The facts of an entry beside its name, description and paper."""


def _entries(kind: str) -> list[Entry]:
    if kind in FILES:
        found = FILES[kind]().items()
        return [{"name": n, "settings": "", "about": _headline(path.read_text())} for n, path in found]
    entries = []
    for name in KINDS[kind].names():
        try:
            make = KINDS[kind][name]
        except InputError as e:  # a broken plug-in
            entries.append(dict.fromkeys(WORDS, "") | {"name": name, "about": str(e), "paper": str(e)})
            continue
        shown = ", ".join(s.name if s.default is None else f"{s.name} = {s.default}" for s in settings(make))
        entry = {"name": name, "settings": shown, "about": about(make).split("\n")[0]}
        if kind == "algorithms":
            entry |= _algorithm(make)
        entries.append(entry)
    return entries


def _algorithm(make: Any) -> Entry:
    star = issubclass(make, Star)
    return {
        "runs on": "server" if star else "peers",
        "handles h by": "prox" if make.needs.composite else "subgradient",
        "needs": needs(make.needs) if star else ", ".join(filter(None, [needs(make.needs), "all clients"])),
        "sends": str(make.facts.sends),
        "exact": {True: "yes", False: "no"}.get(make.facts.exact, "depends"),
        "different data": _different_data(make),
        "some clients": _some_clients(make) if star else "refused",
        "paper": make.reference(),
    }


def _different_data(make: Any) -> str:
    """Its limit on heterogeneous data, first with default settings."""
    exact = make.facts.exact
    if not isinstance(exact, When):
        return "exact" if exact else "biased"
    defaults = {name: parameter.default for name, parameter in inspect.signature(make).parameters.items()}
    return f"exact with {exact}" if exact.holds(defaults) else f"biased, exact with {exact}"


def _some_clients(make: Any) -> str:
    """Its limit with partial participation."""
    exact = make.facts.exact_partial
    if exact is False:
        return "refused" if make.needs.everyone else "inexact"
    conditions = ["`partial`"] * make.needs.everyone + [str(exact)] * isinstance(exact, When)
    return "exact with " + " and ".join(conditions) if conditions else "exact"


def _headline(text: str) -> str:
    """The first comment line of an experiment's file."""
    return text.splitlines()[0].lstrip("# ") if text.startswith("#") else ""
