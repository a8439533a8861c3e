"""Successive halving over rounds: many configurations for a few rounds, the best third of them for three times as many.

Every algorithm goes through the same rungs. A configuration that is promoted goes on from where it stands, so that no
round is computed twice.

Reference: K. Jamieson, A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016, arXiv:1502.07943.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from proxfed.errors import InputError

FACTOR = 3
RUNGS = 3
"""At most: the fewer rounds the first rung has, the more it favours what is only fast at the beginning."""
LEAST = 5
"""Rounds of the first rung, if there are several: after fewer, they look alike."""


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
        """How many begin."""
        return self.rungs[0].configurations

    def cost(self) -> int:
        """Rounds of one algorithm, with all seeds."""
        rounds = [0, *(rung.round for rung in self.rungs)]
        gains = [after - before for before, after in pairwise(rounds)]
        return self.seeds * sum(rung.configurations * gain for rung, gain in zip(self.rungs, gains, strict=True))

    def until(self, rung: Rung) -> Ladder:
        """Its rungs up to this one."""
        return Ladder(self.rungs[: self.rungs.index(rung) + 1], self.seeds)

    def __str__(self) -> str:
        return ", ".join(f"{rung.configurations} to round {rung.round}" for rung in self.rungs)


def ladder(budget: int, rounds: int, seeds: int = 1, most: int | None = None) -> Ladder:
    """As many configurations as the budget allows, on as many rungs as can tell them apart.

    most    there are no more than these: they go as far as the budget takes all of them, on as few rungs as that needs
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
    """Configurations of which one is left at the end, and between which there is a choice."""
    return max(FACTOR**steps, 2)


def _most(budget: int, rounds: int, seeds: int, steps: int) -> int:
    """How many configurations the budget allows on so many steps."""
    low, high = 0, budget + 1  # a configuration costs at least one round
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _ladder(middle, rounds, seeds, steps).cost() <= budget else (low, middle)
    return low


def _ladder(configurations: int, rounds: int, seeds: int, steps: int) -> Ladder:
    places = range(steps + 1)
    return Ladder(tuple(Rung(configurations // FACTOR**k, rounds // FACTOR ** (steps - k)) for k in places), seeds)
