"""What `help` shows of a class: its docstring, every parameter, and of an algorithm the equations and the paper.

What a field means is said in the string below it, or in the comment behind it. `explain` joins these strings into
`__doc__`, in the form of numpydoc, as soon as a public module is imported: `help` reads `__doc__` of abstract classes
past any descriptor, so that it cannot be made on demand. Parsing the source would take a second for all classes; it is
split at its quotes instead, which takes milliseconds.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from dataclasses import fields, is_dataclass
from functools import cache

__all__ = ["explain", "field_docs", "summary"]

_FIELD = re.compile(r"^    (\w+): [^\n]*\n(?:     +[^\n]*\n|    [\])}][^\n]*\n)*    \Z", re.MULTILINE)
_BEHIND_FIELDS = re.compile(r"\n(?:[^\s)]|    def |    @)")
_COMMENT = re.compile(r"^    (\w+): [^#\n]*  # (.+)$", re.MULTILINE)
_PARAMETERS = "\n\nParameters\n----------\n"


def explain(module: str) -> None:
    """Complete the docstrings of all classes in the `__all__` of a module."""
    names = vars(sys.modules[module])
    for name in names["__all__"]:
        cls = names[name]
        ours = isinstance(cls, type) and cls.__module__.startswith("proxfed.")
        if ours and _PARAMETERS not in inspect.cleandoc(cls.__doc__ or ""):
            cls.__doc__ = _explained(cls)


def summary(what: object) -> str:
    """The docstring without the parameters that `explain` has added."""
    return (inspect.getdoc(what) or "").partition(_PARAMETERS)[0]


def field_docs(cls: type) -> dict[str, str]:
    """What the fields of a class mean, as it is written below them; fields may stand in a base class."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__annotations__" in vars(base):
            docs |= _strings(base)
    return docs


def _explained(cls: type) -> str | None:
    text, types = inspect.cleandoc(cls.__doc__ or ""), _parameters(cls)
    if types:
        docs = field_docs(cls)
        text += _PARAMETERS + "\n".join(f"{name} : {kind}\n    {docs.get(name, '')}" for name, kind in types.items())
    if hasattr(cls, "facts"):
        text += f"\n\nNotes\n-----\n{inspect.cleandoc(sys.modules[cls.__module__].__doc__ or '')}"
    return text or None


def _parameters(cls: type) -> dict[str, str]:
    """The fields that are given to make an object, with their types."""
    if is_dataclass(cls):
        return {f.name: _shown(f.type) for f in fields(cls) if f.init}
    types = vars(cls).get("__annotations__", {})
    return {name: _shown(types[name]) for name in getattr(cls, "_fields", ()) if name in types}


def _shown(kind: object) -> str:
    return getattr(kind, "__forward_arg__", None) or (kind.__name__ if isinstance(kind, type) else str(kind))


@cache
def _strings(cls: type) -> dict[str, str]:
    """Those of the fields that stand in the class itself."""
    source = _source(cls)
    docs = dict(_COMMENT.findall(source))
    parts = source.split('"""')
    for code, text in zip(parts[::2], parts[1::2], strict=False):
        if field := _FIELD.search(code):
            docs[field[1]] = text
    return docs


def _source(cls: type) -> str:
    module = _module_source(cls.__module__)
    starts = (module.find(f"\nclass {cls.__name__}{mark}") for mark in "(:[")
    if (start := max(starts)) >= 0 and cls.__qualname__ == cls.__name__:
        end = _BEHIND_FIELDS.search(module, start + 1)
        return module[start + 1 : end.start() + 1 if end else len(module)]
    try:
        return textwrap.dedent(inspect.getsource(cls))  # it is defined inside a function
    except (OSError, TypeError):
        return ""


@cache
def _module_source(name: str) -> str:
    loader = getattr(sys.modules.get(name), "__loader__", None)
    try:
        return loader.get_source(name) or "" if loader is not None else ""
    except (OSError, ImportError, AttributeError):
        return ""
