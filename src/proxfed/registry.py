"""Tables of a configuration file become objects, and objects tables, by the fields and types that classes declare.

`{name = "top_k", fraction = 0.01}` is looked up in a registry and called with the rest as arguments. A wrong name, key
or type gives one sentence with the place, the value and what is allowed.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from proxfed.compressors import COMPRESSORS
from proxfed.errors import InputError, nearest, require
from proxfed.schedules import SCHEDULES, Step
from proxfed.types import Compressor

Registry = Mapping[str, Callable[..., Any]]
Table = dict[str, Any]
Make = TypeVar("Make", bound=Callable[..., Any])

NESTED: dict[Any, Registry] = {Compressor: COMPRESSORS, Step: SCHEDULES}
"""Types of arguments that are themselves tables with a name."""

ARBITRARY = ConfigDict(arbitrary_types_allowed=True)
"""Arguments may also be objects, such as a loss or a module, which no table can write down."""


def build(registry: Registry, table: Any, where: str, **known: Any) -> Any:
    """The object that a table describes; `known` are arguments that the file does not give."""
    make = look_up(registry, table, where)
    return make(**known, **arguments(make, without_name(table), where, set(known)))


def look_up(registry: Mapping[str, Make], table: Any, where: str) -> Make:
    """The class or function that a table names."""
    require(isinstance(table, dict), f"{where} = {table!r} must be a table with a name, such as {{name = ...}}")
    require("name" in table, f"{where}: the key 'name' is missing; known: {', '.join(sorted(registry))}")
    name = table["name"]
    known = isinstance(name, str) and name in registry
    require(known, f"{where}: there is no {name!r}; {nearest(str(name), registry)}")
    return registry[name]


def without_name(table: Table) -> Table:
    return {k: v for k, v in table.items() if k != "name"}


def arguments(make: Callable[..., Any], given: Table, where: str, known: set[str] = frozenset()) -> Table:  # type: ignore[assignment]
    """Check keys and types of a table against what `make` takes; nested tables are built."""
    if isinstance(make, partial):
        known, make = known | make.keywords.keys(), make.func
    hints = get_type_hints(make)
    takes = {k: p for k, p in inspect.signature(make).parameters.items() if k not in known and p.kind != p.VAR_KEYWORD}
    for key in given:
        require(key in takes, f"{where}: unknown key {key!r}; {nearest(key, takes) if takes else 'it takes none'}")
    for key, parameter in takes.items():
        needed = parameter.default is parameter.empty and key not in given
        require(not needed, f"{where}: the key {key!r} is missing ({_type_name(hints.get(key))})")
    return {key: _value(hints.get(key, Any), value, f"{where}.{key}") for key, value in given.items()}


def _value(hint: Any, value: Any, where: str) -> Any:
    for nested, registry in NESTED.items():
        if hint == nested:
            if hint == Step and not isinstance(value, dict):
                hint = float
                break
            return value if is_dataclass(value) else build(registry, value, where)
    try:  # JSON, because it reads a list as a tuple where a tuple is asked for, and is strict otherwise
        return TypeAdapter(hint, config=ARBITRARY).validate_json(json.dumps(value), strict=True)
    except ValidationError as e:
        problem = e.errors()[0]["msg"]
        raise InputError(f"{where} = {value!r} is not allowed: {problem[0].lower()}{problem[1:]}") from e
    except TypeError as e:
        raise InputError(f"{where} = {value!r} is not allowed: {e}") from e


def describe(value: Any, registry: Registry) -> Table:
    """The table that builds this object, with every field."""
    name = next(k for k, make in registry.items() if make is type(value))
    pairs = ((f.name, plain(getattr(value, f.name))) for f in fields(value) if f.init)
    return {"name": name} | {k: v for k, v in pairs if v is not None}


def plain(value: Any) -> Any:
    """A value as TOML has it; nested components as tables."""
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    for registry in NESTED.values():
        if type(value) in registry.values():
            return describe(value, registry)
    return value


def _type_name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint)).replace("proxfed.", "")
