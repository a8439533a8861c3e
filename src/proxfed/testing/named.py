"""Tests the laws for the object that a name on the command line or in a configuration file stands for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from proxfed.algorithms import ALGORITHMS
from proxfed.compressors import COMPRESSORS
from proxfed.errors import InputError, ProxfedError, nearest
from proxfed.registry import Registry, Table, arguments
from proxfed.regularisers import REGULARISERS
from proxfed.testing.algorithms import check_algorithm
from proxfed.testing.compressors import check_compressor
from proxfed.testing.law import Report, told
from proxfed.testing.regularisers import check_regulariser
from proxfed.testing.topologies import NODES, check_topology
from proxfed.topologies import TOPOLOGIES
from proxfed.types import Graph, Star

REGISTRIES: tuple[Registry[Any], ...] = (ALGORITHMS, REGULARISERS, COMPRESSORS, TOPOLOGIES)


def check_named(name: str, settings: Table) -> Report:
    """Make the object with this name and these settings, and test the laws of its kind."""
    make = _find(name)
    if isinstance(make, type):
        _laws_of(make, name)  # what is of no kind is refused, whatever its settings
    if hasattr(make, "W") and "n" in inspect.signature(make).parameters:  # a run would say how many clients there are
        settings = {"n": NODES} | settings
    given = arguments(make, settings, name)
    try:
        value = make(**given)
    except ProxfedError as e:
        raise InputError(f"{name}: {e}") from e
    except Exception as e:
        raise InputError(f"{name} cannot be made: {told(e, make)}") from e
    return _laws_of(value, name)(value)


def _find(name: str) -> Callable[..., Any]:
    for registry in REGISTRIES:
        if name in registry.names():
            return registry[name]
    if ":" in name:
        return ALGORITHMS[name]  # a class elsewhere, of whatever kind
    if name.endswith(".py"):
        raise InputError(f"{name} is a file: name the class in it, {name}:Class")
    known = [known for registry in REGISTRIES for known in registry.names()]
    close = nearest(name, known)
    close = f"{close} " if "mean" in close else ""  # all the names would be too many
    raise InputError(f"there is no {name!r}; {close}(a class of your own is package.module:Class or ./file.py:Class)")


def _laws_of(what: Any, name: str) -> Callable[[Any], Report]:
    """The check for its kind, which a class determines as well as an object."""
    if issubclass(what if isinstance(what, type) else type(what), (Star, Graph)):
        return check_algorithm
    for method, check in (("prox", check_regulariser), ("encode", check_compressor), ("W", check_topology)):
        if callable(getattr(what, method, None)):
            return check
    raise InputError(
        f"{name} is neither an algorithm (a Star or a Graph) nor a regulariser (with `prox`), a compressor (`encode`) "
        "or a topology (`W`)"
    )
