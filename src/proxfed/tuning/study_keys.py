"""Settings of a study, beside those of its algorithms, by dotted keys: problem.l2, data.partition.alpha, rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from proxfed.errors import InputError, nearest, require
from proxfed.harness.experiment import Experiment
from proxfed.harness.study import Study
from proxfed.tuning.keys import set_field
from proxfed.types import Problem

NUMBERS = ("rounds", "every", "stationarity_step")
PARTS = ("problem", "regulariser", "topology", "participation")
"""Settings that can be changed in a study made from objects: these numbers, and settings of these parts."""

FIXED = (
    "name",
    "description",
    "seeds",
    "case",
    "cases",
    "paper",
    "reported",
    "claims",
    "targets",
    "measures",
    "better",
)
"""Keys that cannot be swept."""


def check_key(study: Study, key: str, where: str) -> None:
    """Refuse an unknown key."""
    first = key.partition(".")[0]
    known = [name for name in Experiment.model_fields if name not in (*FIXED, "algorithms")]
    require(first not in FIXED, f"{where}: {first!r} cannot be swept; known: {', '.join(known)}")
    labels = list(study.entries)
    require(
        first in known,
        f"{where}: there is neither a setting nor an algorithm {first!r}; {nearest(first, [*known, *labels])}",
    )
    if study.again is not None:
        same = study.again({}).settings == study.settings
        require(
            same, f"{where}: the study was changed after it was read from its file; change the file's settings instead"
        )
    else:
        fits = key in NUMBERS or (first in PARTS and "." in key)
        can = f"{', '.join(NUMBERS)}, and settings of {', '.join(PARTS)}"
        require(
            fits,
            f"{where}: in a study that was made of objects these can be swept: {can}; read it from a file for others",
        )


def with_settings(study: Study, values: Mapping[str, Any], case: str) -> Study:
    """The study with other values of these settings."""
    if study.again is not None:
        before = (study.written or {}).get("case", "")
        return study.again({**values, "case": f"{before}: {case}" if before else case})
    for key, value in values.items():
        study = _with_object(study, key, value)
    return study


def _with_object(study: Study, key: str, value: Any) -> Study:
    """The same for a study made from objects."""
    first, _, rest = key.partition(".")
    if key in NUMBERS:
        own = [label for label, e in study.entries.items() if key == "rounds" and e.rounds is not None]
        require(not own, f"{key}: {', '.join(own)} has its own")
        return replace(study, **{key: value})
    if first in ("problem", "regulariser"):
        problem = _problem(study.problem, first, rest, value, key)
        entries = {
            label: e if e.problem is None else replace(e, problem=_problem(e.problem, first, rest, value, key))
            for label, e in study.entries.items()
        }
        return replace(study, problem=problem, entries=entries)
    whole = getattr(study, first)
    if whole is None or any(getattr(e, first) is not None for e in study.entries.values()):
        raise InputError(f"{key}: the algorithms have their own {first}; sweep algorithms.LABEL.{key}, or * for LABEL")
    return replace(study, **{first: set_field(whole, rest, value, key)})


def _problem(problem: Problem, first: str, rest: str, value: Any, key: str) -> Problem:
    if first == "regulariser":
        return problem.with_h(set_field(problem.h, rest, value, key))
    return replace(problem, f=set_field(problem.f, rest, value, key))
