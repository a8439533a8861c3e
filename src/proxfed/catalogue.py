"""What there is to choose from, read off the classes themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from proxfed.algorithms import ALGORITHMS
from proxfed.compressors import COMPRESSORS
from proxfed.config import shipped
from proxfed.data import DATASETS, PARTITIONS
from proxfed.errors import nearest, require
from proxfed.participation import PARTICIPATIONS
from proxfed.problems.linear import LOSSES
from proxfed.regularisers import REGULARISERS
from proxfed.schedules import SCHEDULES
from proxfed.topologies import TOPOLOGIES

KINDS: dict[str, Mapping[str, Callable[..., Any]]] = {
    "algorithms": ALGORITHMS,
    "losses": LOSSES,
    "regularisers": REGULARISERS,
    "compressors": COMPRESSORS,
    "topologies": TOPOLOGIES,
    "participations": PARTICIPATIONS,
    "schedules": SCHEDULES,
    "datasets": DATASETS,
    "partitions": PARTITIONS,
}


def catalogue(kind: str = "") -> dict[str, list[dict[str, str]]]:
    """Entries of one kind, or of all."""
    known = [*KINDS, "experiments"]
    require(kind in ("", *known), f"there is no list of {kind!r}; {nearest(kind, known)}")
    return {k: _entries(k) for k in known if kind in ("", k)}


def _entries(kind: str) -> list[dict[str, str]]:
    if kind == "experiments":
        return [
            {"name": name, "settings": "", "about": _headline(path.read_text())} for name, path in shipped().items()
        ]
    return [
        {"name": name, "settings": _settings(make), "about": (inspect.getdoc(make) or "").split("\n")[0]}
        for name, make in sorted(KINDS[kind].items())
    ]


def _settings(make: Callable[..., Any]) -> str:
    """'alpha, beta = 1.0': required ones without a value. The number of clients and the data directory are given."""
    shown = []
    for name, parameter in inspect.signature(make).parameters.items():
        if name not in ("n", "directory"):
            default = parameter.default
            value = type(default).__name__ if hasattr(default, "__dataclass_fields__") else default
            shown.append(name if default is parameter.empty else f"{name} = {value}")
    return ", ".join(shown)


def _headline(text: str) -> str:
    """The first comment line of an experiment."""
    return text.splitlines()[0].lstrip("# ") if text.startswith("#") else ""
