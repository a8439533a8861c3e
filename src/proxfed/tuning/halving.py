"""Successive halving over rounds: many configurations for a few rounds, the best third of them for three times as many.

Every algorithm goes through the same rungs. A configuration that is promoted goes on from where it stands, so that no
round is computed twice.

Reference: K. Jamieson, A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016, arXiv:1502.07943.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from proxfed.errors import require

FACTOR = 3
RUNGS = 3
"""At most: the fewer rounds the first rung has, the more it favours what is only fast at the beginning."""


class Rung(NamedTuple):
    """So many configurations are run to this round."""

    configurations: int
    round: int


class Ladder(NamedTuple):
    """The rungs of one algorithm, the same for all."""

    rungs: tuple[Rung, ...]
    seeds: int = 1

    @property
    def configurations(self) -> int:
        return self.rungs[0].configurations

    def cost(self, available: int | None = None) -> int:
        """Rounds of one algorithm, with all seeds; of one with so few configurations."""
        before = [Rung(0, 0), *self.rungs[:-1]]
        few = [min(rung.configurations, available or rung.configurations) for rung in self.rungs]
        gains = [rung.round - last.round for last, rung in zip(before, self.rungs, strict=True)]
        return self.seeds * sum(n * gain for n, gain in zip(few, gains, strict=True))

    def __str__(self) -> str:
        return ", ".join(f"{rung.configurations} to round {rung.round}" for rung in self.rungs)


def ladder(budget: int, rounds: int, seeds: int = 1, what: str = "budget") -> Ladder:
    """As many configurations as the budget allows, on as many rungs as they can be told apart on."""
    for steps in reversed(range(RUNGS)):
        least = FACTOR**steps
        if (found := _most(budget, rounds, seeds, steps)) is not None and found.configurations >= max(least, 2):
            return found
    needed = min(_ladder(max(FACTOR**k, 2), rounds, seeds, k).cost() for k in range(RUNGS))
    enough = f"two or more configurations of {rounds} rounds need at least {needed}"
    require(False, f"{what} = {budget} rounds per algorithm is too little: {enough}")
    raise AssertionError


def _most(budget: int, rounds: int, seeds: int, steps: int) -> Ladder | None:
    """The longest ladder with so many steps that the budget allows."""
    low, high = 0, budget + 1  # a configuration costs at least one round
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _ladder(middle, rounds, seeds, steps).cost() <= budget else (low, middle)
    return _ladder(low, rounds, seeds, steps) if low else None


def _ladder(configurations: int, rounds: int, seeds: int, steps: int) -> Ladder:
    rungs = []
    for k in range(steps + 1):
        rungs.append(Rung(max(1, configurations // FACTOR**k), max(1, rounds // FACTOR ** (steps - k))))
    apart = [one for one, two in pairwise(rungs) if one.round < two.round]  # of few rounds, some rungs are the same
    return (
        Ladder((*apart, rungs[-1]), seeds) if len(apart) == steps else _ladder(configurations, rounds, seeds, steps - 1)
    )
