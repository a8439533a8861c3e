"""An algorithm whose steps are found while it runs: what `FedAvg(eta="auto", K=5)` is until then."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proxfed.errors import require, whole

if TYPE_CHECKING:
    from proxfed.types import Algorithm, Method

AUTO = "auto"

LOCAL_STEPS = ("K", "tau", "T0")
"""What algorithms call the number of local steps of a round."""


@dataclass(frozen=True)
class Auto:
    """A class of algorithms, with some of its hyper-parameters; engine/race.py finds the others."""

    make: type[Method]
    given: dict[str, Any]
    """The hyper-parameters that are fixed."""
    found: tuple[str, ...]
    """Those that are not."""
    around: Callable[[Any], Any] = copy.copy
    """What is built around the algorithm, such as a compressed downlink."""

    @classmethod
    def of(cls, make: type[Method], arguments: Mapping[str, Any]) -> Auto:
        found = tuple(name for name, value in arguments.items() if isinstance(value, str) and value == AUTO)
        auto = cls(make, {name: value for name, value in arguments.items() if name not in found}, found)
        known = auto.steps(1.0)
        for name in found:
            steps = f"only {' and '.join(known)} can be found on the way; `proxfed tune` chooses others"
            why = steps if known else "it does not say what its step is (facts.step)"
            require(name in known, f"{make.__name__}: {name} = {AUTO!r}, but {why}")
        auto.example  # noqa: B018  the fixed ones must fit
        return auto

    def steps(self, s: float) -> dict[str, float]:
        """All that can be found, where a local step has length s."""
        step, K = self.make.facts.step, next((self.given[name] for name in LOCAL_STEPS if name in self.given), 1)
        has = step in inspect.signature(self.make).parameters
        return ({step: s} if has else {}) | self.make.tied(s, K if whole(K) and K >= 1 else 1)

    def at(self, s: float) -> Algorithm:
        """The algorithm whose local steps have length s."""
        steps = self.steps(s)
        made: Algorithm = self.around(self.make(**self.given, **{name: steps[name] for name in self.found}))
        return made

    @property
    def example(self) -> Algorithm:
        """With steps so short that every regulariser allows them, to ask what it needs and sends."""
        return self.at(1e-9)


def example(algorithm: Algorithm | Auto) -> Algorithm:
    """An algorithm that can be asked what it needs and sends, also where steps are to be found."""
    return algorithm.example if isinstance(algorithm, Auto) else algorithm
