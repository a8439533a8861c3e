"""Why a claim is not confirmed: one of four causes, each with its evidence.

    reading     it holds under a reading that the paper leaves open: a variant shows it, with three seeds
    scale       our run is smaller than the paper's, which decides it: the scale that would be needed
    settings    the paper's settings do not give the paper's number: an independent implementation agrees with ours
    unknown     none of these could be shown: the attempts

Readings are found in the stored results. The other causes are written by hand, in results/PAPER/EXPERIMENT.causes.toml:

    [[causes]]
    kind = "scale"
    claims = ["rho = 0.1 is the optimal value*"]      what they say; * stands for anything
    evidence = "..."
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from proxfed.errors import InputError
from proxfed.papers.paper_schema import Strict
from proxfed.registry import read_toml
from proxfed.validation import sentence

Kind = Literal["reading", "scale", "settings", "unknown"]

MEANING: dict[str, str] = {
    "reading": "holds under another reading",
    "scale": "needs the paper's scale",
    "settings": "cannot be had with the paper's settings",
    "unknown": "unknown",
}


class Written(Strict):
    """[[causes]]: a cause that somebody found for some claims."""

    kind: Literal["scale", "settings", "unknown"]
    claims: list[str] = Field(min_length=1)
    """The texts of the claims, as patterns with * as a wildcard."""
    evidence: str = Field(min_length=1)
    """The investigation and its result."""

    def of(self, says: str) -> bool:
        """Whether it is the cause of the claim with this text."""
        return any(fnmatchcase(says, pattern.replace("[", "[[]")) for pattern in self.claims)


class _File(Strict):
    causes: list[Written] = Field(default_factory=list)


class Cause(NamedTuple):
    """The cause of one claim that is not confirmed."""

    kind: Kind
    evidence: str


def read(path: Path) -> list[Written]:
    """The causes in an experiment's file; none if there is no such file."""
    if not path.exists():
        return []
    table = read_toml(path)
    try:
        return _File.model_validate(table).causes
    except ValidationError as e:
        raise InputError(f"{path}: {sentence(e, table, _known)}") from e


def _known(keys: Sequence[str]) -> Iterable[str]:
    return Written.model_fields if keys else _File.model_fields
