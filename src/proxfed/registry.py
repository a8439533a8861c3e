"""Names for classes, and tables for objects: how a configuration file describes objects.

`{name = "top_k", fraction = 0.01}` names a class and gives its arguments. A name is

    top_k                        registered here
    my_package.my_module:Mine    a class or function of an installed package, or of a module beside the program
    ./mine.py:Mine               the same in a file; relative to the configuration file that names it
    their_name                   an entry point "proxfed.compressors" (and so on) of an installed package

A wrong name, key or type gives one sentence with the place, the value and the allowed values. `describe` is the
inverse: it turns an object into the table that builds it; a custom class has its name and the hash of its source.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from importlib.metadata import EntryPoint, entry_points
from numbers import Number
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from proxfed.epochs import Epochs
from proxfed.errors import InputError, finite, nearest, require
from proxfed.files import read

Table = dict[str, Any]
Make = TypeVar("Make", bound=Callable[..., Any])

NESTED: dict[Any, Registry[Any]] = {}
"""The registry for each type of argument that is itself a table with a name."""


class Registry(dict[str, Make]):
    """The classes registered under a name; other names are looked up among plug-ins.

    `of` is the type of the arguments that accept such a table: a field `compressor: Compressor` takes the name of a
    compressor.
    """

    def __init__(self, kind: str, entries: Mapping[str, Make], of: Any = None) -> None:
        super().__init__(entries)
        self.kind = kind
        if of is not None:
            NESTED[of] = self

    @cached_property
    def plugins(self) -> dict[str, EntryPoint]:
        """The entry points of installed packages."""
        return {entry.name: entry for entry in entry_points(group=f"proxfed.{self.kind}")}

    def __missing__(self, name: str) -> Make:
        if name in self.plugins:
            entry = self.plugins[name]
            try:
                return entry.load()
            except Exception as e:
                raise InputError(f"{self.kind}: the plug-in {name!r} ({entry.value}) cannot be loaded: {e}") from e
        if ":" in name:
            return _import(name)
        raise InputError(f"there is no {name!r}; {nearest(name, self.names())}")

    def __contains__(self, name: object) -> bool:
        """Whether it can be looked up: registered, a plug-in, or the name of a class elsewhere that exists."""
        return super().__contains__(name) or (isinstance(name, str) and (":" in name or name in self.plugins))

    def names(self) -> list[str]:
        """The registered names, and the plug-ins."""
        return sorted({*self, *self.plugins})


# ---- names of classes elsewhere --------------------------------------------------------------------------------------


def import_name(make: Any) -> str:
    """'module:Class', or 'file.py:Class' for a class of the running program itself."""
    module = sys.modules.get(make.__module__)
    file = getattr(module, "__file__", None)
    if make.__module__ == "__main__" or (module is not None and module.__name__.startswith(FROM_FILE)):
        return f"{Path(file).resolve()}:{make.__qualname__}" if file else f"__main__:{make.__qualname__}"
    return f"{make.__module__}:{make.__qualname__}"


FROM_FILE = "proxfed_plugin_"

_importable: ContextVar[Collection[str] | None] = ContextVar("importable", default=None)
"""The names elsewhere that may be imported; None: all."""


@contextmanager
def only_installed(but: Collection[str] = ()) -> Iterator[None]:
    """Within this context only registered and installed names are found; of other code only `but` is imported."""
    before = _importable.set(but)
    try:
        yield
    finally:
        _importable.reset(before)


def _import(name: str) -> Any:
    allowed = _importable.get()
    require(allowed is None or name in allowed, f"{name!r} is code from elsewhere, which is not imported here")
    place, _, path = name.rpartition(":")
    try:
        found: Any = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    except InputError:
        raise
    except Exception as e:
        raise InputError(f"{name!r}: {place} cannot be imported: {type(e).__name__}: {e}") from e
    for part in path.split("."):
        public = [n for n in dir(found) if not n.startswith("_")]
        require(hasattr(found, part), f"{name!r}: {place} has no {part!r}; {nearest(part, public)}")
        found = getattr(found, part)
    require(callable(found), f"{name!r} is {found!r}, which is neither a class nor a function")
    return found


def _from_module(name: str) -> ModuleType:
    with modules_here():
        return importlib.import_module(name)


@contextmanager
def modules_here() -> Iterator[None]:
    """Within this context modules in the working directory can be imported, as with `python -m`."""
    here = str(Path.cwd())
    if "" in sys.path or here in sys.path:
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _from_file(path: Path) -> ModuleType:
    """The module of a file, loaded once; for the running program's own file, the program itself."""
    path = path.resolve()
    require(path.is_file(), f"there is no file {path}")
    main = sys.modules["__main__"]
    if (program := getattr(main, "__file__", None)) and Path(program).resolve() == path:
        return main
    called = FROM_FILE + hashlib.sha256(str(path).encode()).hexdigest()[:12]
    if called in sys.modules:
        return sys.modules[called]
    spec = importlib.util.spec_from_file_location(called, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[called] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[called]
        raise
    return module


def source_hash(make: Any) -> str | None:
    """A digest of the source of a custom class or function, which detects changes; None: not known."""
    if make.__module__.partition(".")[0] == "proxfed":  # versions.json says which proxfed it was
        return None
    try:
        return hashlib.sha256(inspect.getsource(make).encode()).hexdigest()[:12]
    except (OSError, TypeError):
        return None


# ---- from tables to objects -----------------------------------------------------------------------------------------


def read_toml(path: Path) -> Table:
    """A TOML file as it stands."""
    try:
        return tomllib.loads(read(path).decode())
    except OSError as e:
        raise InputError(f"cannot read {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InputError(f"{path} is not valid TOML: {e}") from e


def read_named(path: Path) -> Table:
    """A TOML file with relative names of files made absolute."""
    return _beside(read_toml(path), path.parent)


def _beside(table: Any, directory: Path) -> Any:
    if isinstance(table, dict):
        named = {k: v for k, v in table.items() if isinstance(v, str) and k.rpartition(".")[2] in ("name", "model")}
        return {k: _absolute(v, directory) if k in named else _beside(v, directory) for k, v in table.items()}
    return [_beside(v, directory) for v in table] if isinstance(table, list) else table


def _absolute(name: str, directory: Path) -> str:
    """A file name relative to `directory` as an absolute one; any other name unchanged."""
    file, colon, attribute = name.rpartition(":")
    return f"{(directory / file).resolve()}:{attribute}" if colon and file.endswith(".py") else name


def label_of(algorithm: Table) -> str:
    """An algorithm's label, or its name if it has none."""
    return str(algorithm.get("label", algorithm.get("name")))


def build(registry: Mapping[str, Make], table: Any, where: str, **known: Any) -> Any:
    """The object that a table describes; `known` are further arguments, which are not in the file."""
    make, given = prepared(registry, table, where, set(known))
    return make(**known, **given)


def prepared(registry: Mapping[str, Make], table: Any, where: str, known: set[str]) -> tuple[Make, Table]:
    """The class or function that a table names, and the arguments in the table, which lacks the `known` ones."""
    make = look_up(registry, table, where)
    return make, arguments(make, settings_of(table), where, known)


def look_up(registry: Mapping[str, Make], table: Any, where: str) -> Make:
    """The class or function that a table names."""
    require(isinstance(table, dict), f"{where} = {table!r} must be a table with a name, such as {{name = ...}}")
    require("name" in table, f"{where}: the key 'name' is missing; known: {', '.join(sorted(registry))}")
    if not isinstance(table["name"], str):
        raise InputError(f"{where}: there is no {table['name']!r}; {nearest('', registry)}")
    try:
        return registry[table["name"]]
    except InputError as e:
        raise InputError(f"{where}: {e}") from e


def settings_of(table: Table) -> Table:
    """A table without the keys that name the class."""
    return {k: v for k, v in table.items() if k not in ("name", "source")}


def arguments(make: Callable[..., Any], given: Table, where: str, known: set[str] = frozenset()) -> Table:  # type: ignore[assignment]
    """Check keys and types of a table against the parameters of `make`; nested tables are built."""
    if isinstance(make, partial):
        known, make = known | make.keywords.keys(), make.func
    types = hints(make)
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError) as e:  # functions written in C
        raise InputError(f"{where}: {make!r} has no signature, so its settings are unknown") from e
    takes = {k: p for k, p in parameters.items() if k not in known and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if (unknown := next((key for key in given if key not in takes), None)) is not None:
        raise InputError(f"{where}: unknown key {unknown!r}; {nearest(unknown, takes) if takes else 'it takes none'}")
    if missing := [key for key, p in takes.items() if p.default is p.empty and key not in given]:
        named = " and ".join(f"{key!r} is missing ({_type_name(types.get(key))})" for key in missing)
        raise InputError(f"{where}: the key {named}")
    return {key: _value(types.get(key, Any), value, f"{where}.{key}") for key, value in given.items()}


def hints(make: Callable[..., Any]) -> dict[str, Any]:
    """The types of what a class or function takes, as far as they can be read."""
    make = make.func if isinstance(make, partial) else make
    try:
        return get_type_hints(make.__init__ if isinstance(make, type) and not is_dataclass(make) else make)  # type: ignore[misc]
    except (NameError, TypeError, AttributeError):  # annotations of other packages that only a type checker can read
        return {}


def _value(hint: Any, value: Any, where: str) -> Any:
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    value, instead = _python_number(value, hint), ""
    for nested, registry in NESTED.items():
        if hint == nested:
            if not isinstance(value, dict) and float in get_args(hint):  # a step size may be a number, or "auto"
                hint, instead = float | Literal["auto"], f" or a table with a name ({', '.join(registry)})"
                break
            return value if is_dataclass(value) else build(registry, value, where)
    try:  # JSON, because it accepts a list for a tuple, and is strict otherwise
        # Arguments may also be objects, such as a loss or a module, which have no table.
        adapter: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as e:
        problem, *others = dict.fromkeys(error["msg"] for error in e.errors())
        words = [f"{problem[0].lower()}{problem[1:]}", *(other.removeprefix("Input should be ") for other in others)]
        raise InputError(f"{where} = {value!r} is not allowed: {' or '.join(words)}{instead}") from e
    except TypeError as e:
        raise InputError(f"{where} = {value!r} is not allowed: {e}") from e


def _python_number(value: Any, hint: Any) -> Any:
    """A NumPy number as a Python number; 2.0 as 2 for a whole number, since JSON may write it so."""
    if isinstance(value, Number) and hasattr(value, "item"):
        value = value.item()
    asked = get_args(hint) or (hint,)
    return int(value) if int in asked and float not in asked and finite(value) and value == int(value) else value


def _type_name(hint: Any) -> str:
    if Epochs in get_args(hint):
        return "int, or {epochs = 1}"
    return getattr(hint, "__name__", str(hint)).replace("proxfed.", "")


# ---- from objects to tables ------------------------------------------------------------------------------------------


def describe(value: Any, registry: Registry[Any]) -> Table:
    """The table that builds this object, with every field; for a function, its name."""
    if isinstance(value, FunctionType):
        return {"name": import_name(value)} | ({} if (digest := source_hash(value)) is None else {"source": digest})
    name, fixed = _registered(value, registry)
    table = {"name": name or import_name(type(value))}
    if name is None and (digest := source_hash(type(value))) is not None:
        table["source"] = digest  # of a custom class: changing it makes another study
    if is_dataclass(value):
        given = {f.name: getattr(value, f.name) for f in fields(value) if f.init and f.repr}
    else:
        given = getattr(value, "__dict__", {})
    shown = {k: v for k, v in given.items() if v is not None and k not in fixed and not k.startswith("_")}
    return table | {k: plain(v) for k, v in shown.items()}


def _registered(value: Any, registry: Registry[Any]) -> tuple[str | None, Collection[str]]:
    """The name that makes such an object, and the arguments that the name implies."""
    for name, make in registry.items():
        if make is type(value):
            return name, ()
        if isinstance(make, partial) and make.func is type(value):
            fits = all(getattr(value, k) == v for k, v in make.keywords.items())
            if fits:
                return name, make.keywords
    return None, ()


def plain(value: Any) -> Any:
    """A value for TOML: components as tables; large values and objects that are not data as digests."""
    for registry in NESTED.values():
        if type(value) in registry.values():
            return describe(value, registry)
    if isinstance(value, Number) and hasattr(value, "item"):  # of numpy
        return value.item()
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list, range)):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, Epochs):
        return {"epochs": value.epochs}
    if is_dataclass(value) and not isinstance(value, type):
        return describe(value, Registry("", {}))
    if hasattr(value, "__array__"):
        return _digest(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return import_name(value) + (f"#{digest}" if (digest := source_hash(value)) else "")
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__ and kind.__str__ is object.__str__:  # its repr would have a memory address
        return describe(value, Registry("", {}))
    return str(value)


def _digest(array: Any) -> str:
    import numpy as np

    numbers = np.ascontiguousarray(array)
    return f"{numbers.dtype}{list(numbers.shape)}#{hashlib.sha256(numbers.tobytes()).hexdigest()[:12]}"
