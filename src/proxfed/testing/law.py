"""Laws, the outcome of testing them for an object, and the report of failures.

A law is a function of the object. It returns if it holds, perhaps with a remark, and raises Broken with a sentence if
it does not. Any other exception comes from the object itself, and is reported with its line.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from proxfed.errors import ProxfedError
from proxfed.machine import threads


class Broken(AssertionError):
    """Raised if a law does not hold, with the numbers."""


class DoesNotApply(Exception):
    """Raised if a law does not apply to the object, with the reason."""


def must(condition: bool, sentence: str) -> None:
    """Raise Broken(sentence) unless the condition holds."""
    if not condition:
        raise Broken(sentence)


@dataclass(frozen=True)
class Law:
    """One property of every object of a kind; `variants` are the conditions under which it is tested."""

    check: Callable[..., str | None]
    of: type = object
    """The type that the law applies to."""
    variants: tuple[dict[str, Any], ...] = ({},)

    @property
    def name(self) -> str:
        return self.check.__name__.replace("_", " ")

    @property
    def about(self) -> str:
        """What must hold."""
        return " ".join((inspect.getdoc(self.check) or "").partition("\n\n")[0].split())

    def __call__(self, subject: Any, **variant: Any) -> str | None:
        return self.check(subject, **variant)


def collect(laws: list[Law]) -> Callable[..., Callable[[Callable[..., str | None]], Law]]:
    """A decorator that makes a function a law and adds it to a list."""

    def law(of: type = object, **choices: Sequence[Any]) -> Callable[[Callable[..., str | None]], Law]:
        variants = tuple(dict(zip(choices, chosen, strict=True)) for chosen in product(*choices.values()))

        def add(check: Callable[..., str | None]) -> Law:
            laws.append(Law(check, of, variants))
            return laws[-1]

        return add

    return law


class Status(StrEnum):
    holds = "holds"
    broken = "does not hold"
    idle = "does not apply"


class Outcome(NamedTuple):
    """The outcome of one law."""

    law: str
    """Its name."""
    status: Status
    """Whether it holds."""
    says: str
    """The reason why it does not hold or apply; or a remark, or nothing, if it holds."""
    about: str
    """What must hold."""


@dataclass(frozen=True)
class Report:
    """The outcomes of all laws. It is true if no law is broken: `assert check_algorithm(Mine(0.5))`."""

    subject: str
    """The name of the checked object."""
    kind: str
    """Algorithm, regulariser, compressor or topology."""
    outcomes: tuple[Outcome, ...]
    """One outcome per law."""

    @property
    def broken(self) -> dict[str, str]:
        """The laws that do not hold, and why."""
        return {o.law: o.says for o in self.outcomes if o.status is Status.broken}

    @property
    def holds(self) -> bool:
        return not self.broken

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        """'12 laws hold, 1 does not, 2 do not apply'."""
        good, bad, idle = (sum(o.status is status for o in self.outcomes) for status in Status)
        parts = [(good, "hold", "holds"), (bad, "do not", "does not"), (idle, "do not apply", "does not apply")]
        said = [f"{n} {one if n == 1 else many}" for n, many, one in parts if n]
        first, _, rest = said[0].partition(" ")
        return ", ".join([f"{first} law{'s' * (first != '1')} {rest}", *said[1:]])

    def __repr__(self) -> str:
        return "\n".join([f"{self.subject}: {self}", *(f"  {law}: {why}" for law, why in self.broken.items())])


def check_laws(subject: Any, kind: str, laws: Sequence[Law]) -> Report:
    """Test every law for an object."""
    with threads(1):  # the arrays are small, and two runs are compared bit for bit
        return Report(repr(subject), kind, tuple(_outcome(subject, law) for law in laws))


def _outcome(subject: Any, law: Law) -> Outcome:
    if not isinstance(subject, law.of):
        return Outcome(law.name, Status.idle, f"it is no {law.of.__name__}", law.about)
    try:
        remarks = [law(subject, **variant) for variant in law.variants]
    except DoesNotApply as e:
        return Outcome(law.name, Status.idle, str(e), law.about)
    except Broken as e:
        return Outcome(law.name, Status.broken, str(e), law.about)
    except Exception as e:
        return Outcome(law.name, Status.broken, told(e, subject), law.about)
    return Outcome(law.name, Status.holds, next(filter(None, remarks), ""), law.about)


def told(e: Exception, subject: Any) -> str:
    """An exception in one sentence, with the line of the object's own file where it happened."""
    said = " ".join(str(e).split())
    if isinstance(e, ProxfedError):
        return said
    said = f"{type(e).__name__}: {said}" if said else type(e).__name__
    frames = traceback.extract_tb(e.__traceback__)
    own = [frame for frame in frames if frame.filename == _file(subject)]
    if own:
        said += f" ({Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name})"
    if frames and Path(frames[-1].filename).name == "states.py":
        said += "; states must be NamedTuples, or tuples, of tensors, and of the same form after every round"
    return said


def _file(subject: Any) -> str | None:
    try:
        return inspect.getsourcefile(subject if isinstance(subject, type) else type(subject))
    except TypeError:
        return None
