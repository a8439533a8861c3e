"""Laws of everything that a configuration file can name."""

from __future__ import annotations

import inspect
from typing import Any

from proxfed.harness.catalogue import settings
from proxfed.registry import Registry, build, describe
from proxfed.testing.law import DoesNotApply, must


def survives_the_configuration_file(value: Any, registry: Registry[Any]) -> None:
    """The table that describes it builds the same object again."""
    cls: Any = type(value)
    if "<locals>" in cls.__qualname__:
        raise DoesNotApply(f"{cls.__name__} is defined inside a function, where no configuration file can find it")
    table = describe(value, registry)
    again = build(registry, table, table["name"])
    same = describe(again, registry) == table and (cls.__eq__ is object.__eq__ or again == value)
    must(same, f"it is {value!r:.200}, and comes back as {again!r:.200}")


def is_documented(value: Any) -> None:
    """The class has a docstring, and each of its settings a line of its own below it or there."""
    cls = type(value)
    try:
        inspect.getsource(cls)
    except OSError as e:
        raise DoesNotApply(f"the source of {cls.__name__} is not there to be read") from e
    own = cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}(")  # what dataclass writes
    must(bool(own), f"{cls.__name__} has no docstring")
    missing = [s.name for s in settings(cls) if not s.about]
    must(not missing, f"nothing says what {', '.join(missing)} means: put a string below the field")
