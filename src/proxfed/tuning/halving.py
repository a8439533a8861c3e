"""Successive halving: many configurations run for a few rounds, the best third for three times as many, and so on.

All algorithms have the same rungs. A promoted configuration resumes from its checkpoint, so that no round is computed
twice.

Reference: K. Jamieson, A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016, arXiv:1502.07943.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from proxfed.errors import InputError

FACTOR = 3
RUNGS = 3
"""The maximum: a shorter first rung favours configurations that are only fast at the beginning."""
LEAST = 5
"""The fewest rounds of the first of several rungs: after fewer, configurations cannot be told apart."""


class Rung(NamedTuple):
    """A number of configurations, and the round that they are run to."""

    configurations: int
    round: int


class Ladder(NamedTuple):
    """The rungs of one algorithm; all algorithms have the same."""

    rungs: tuple[Rung, ...]
    seeds: int = 1

    @property
    def configurations(self) -> int:
        """The number of configurations on the first rung."""
        return self.rungs[0].configurations

    def cost(self) -> int:
        """Rounds of one algorithm, with all seeds."""
        rounds = [0, *(rung.round for rung in self.rungs)]
        gains = [after - before for before, after in pairwise(rounds)]
        return self.seeds * sum(rung.configurations * gain for rung, gain in zip(self.rungs, gains, strict=True))

    def until(self, rung: Rung) -> Ladder:
        """The rungs up to this one."""
        return Ladder(self.rungs[: self.rungs.index(rung) + 1], self.seeds)

    def __str__(self) -> str:
        return ", ".join(f"{rung.configurations} to round {rung.round}" for rung in self.rungs)


def ladder(budget: int, rounds: int, seeds: int = 1, most: int | None = None) -> Ladder:
    """The rungs with the most configurations that the budget allows.

    most    the number of existing configurations; they all run as far as the budget allows, on as few rungs as needed
    """
    possible = [steps for steps in reversed(range(RUNGS)) if steps == 0 or rounds // FACTOR**steps >= LEAST]
    for steps in reversed(possible):
        if most is not None and _fewest(steps) <= most <= _most(budget, rounds, seeds, steps):
            return _ladder(most, rounds, seeds, steps)
    for steps in possible:
        count = _most(budget, rounds, seeds, steps)
        if count >= _fewest(steps):
            return _ladder(count, rounds, seeds, steps)
    needed = min(_ladder(_fewest(steps), rounds, seeds, steps).cost() for steps in possible)
    enough = f"two or more configurations of {rounds} rounds need at least {needed}"
    raise InputError(f"budget = {budget} rounds per algorithm is too little: {enough}")


def _fewest(steps: int) -> int:
    """The fewest configurations that leave a choice on the first rung and one at the end."""
    return max(FACTOR**steps, 2)


def _most(budget: int, rounds: int, seeds: int, steps: int) -> int:
    """The most configurations that the budget allows with this many steps."""
    low, high = 0, budget + 1  # a configuration costs at least one round
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _ladder(middle, rounds, seeds, steps).cost() <= budget else (low, middle)
    return low


def _ladder(configurations: int, rounds: int, seeds: int, steps: int) -> Ladder:
    places = range(steps + 1)
    return Ladder(tuple(Rung(configurations // FACTOR**k, rounds // FACTOR ** (steps - k)) for k in places), seeds)
