"""`help` explains every parameter of every public class and function."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from typing import Any

import pytest
from pydantic import BaseModel

import proxfed
from proxfed.algorithms import FedComposite
from proxfed.explained import field_docs, summary
from proxfed.regularisers import L1

MODULES = [
    "algorithms", "compressors", "data", "hooks", "participation", "problems", "regularisers", "schedules", "simulate",
    "tables", "testing", "topologies", "types",
]  # fmt: skip


def public() -> Iterator[Any]:
    """All that the root offers, and the classes of the modules that users import from."""
    offered = [getattr(proxfed, name) for name in proxfed.__all__ if name != "__version__"]
    modules = [import_module(f"proxfed.{name}") for name in MODULES]
    classes = [what for module in modules for name in module.__all__ if isinstance(what := vars(module)[name], type)]
    for what in dict.fromkeys([*offered, *classes]):
        told = isinstance(what, type) and issubclass(what, (Exception, Enum, BaseModel))
        if what.__module__.startswith("proxfed") and not told:
            yield pytest.param(what, id=what.__qualname__)


@pytest.mark.parametrize("what", list(public()))
def test_every_parameter_is_explained(what: Any) -> None:
    try:
        parameters = [name for name in inspect.signature(what).parameters if name not in ("args", "kwargs")]
    except ValueError:  # it is made by C code, from what dict or list take
        return
    text = inspect.getdoc(what) or ""
    assert [name for name in parameters if not re.search(rf"^\*{{0,2}}{name} : .+\n    +\S", text, re.MULTILINE)] == []


def test_help_of_an_algorithm_has_equations_parameters_traffic_and_paper() -> None:
    text = pydoc.render_doc(FedComposite, renderer=pydoc.plaintext)
    for part in ("z = prox_{S h}(x)", "eta : FloatOrAuto", "Local step size.", "What travels:", "arXiv:2309.01795"):
        assert part in text
    assert summary(FedComposite) == "Decoupled prox and communication with drift correction, with a server."


def test_fields_of_base_classes_are_explained() -> None:
    assert field_docs(L1) == {"weight": "lambda >= 0."}


def test_fields_are_found_wherever_a_class_is_defined() -> None:
    class Local:
        """It has no module of its own to be looked up in."""

        one: int
        """The first,
        in two lines."""
        two: tuple[int, ...] = (
            1,
            2,
        )
        """Spread."""
        three: int = 3  # behind it
        four: int = 4

    assert field_docs(Local) == {"one": "The first,\n    in two lines.", "two": "Spread.", "three": "behind it"}
