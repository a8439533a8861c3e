"""Points that Optuna's tree-structured Parzen estimator proposes, for spaces too large to cover evenly.

Each generation of proposals has its own sampler, seeded by the generation, which is given all earlier results. So it
needs no database: after an interruption the same proposals are made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxfed.errors import InputError
from proxfed.keyed_random import keys
from proxfed.tuning.points import Values
from proxfed.tuning.space import Between, Space
from proxfed.tuning.trials import Trial

MISSING = "search = 'optuna' needs Optuna, which is not installed: pip install 'proxfed[optuna]'"


def available() -> None:
    """Refuse in one sentence if Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as e:
        raise InputError(MISSING) from e


def propose(
    spaces: Mapping[str, Space], known: Sequence[Trial], count: int, seed: int, place: int, generation: int
) -> list[Values]:
    """At most `count` new points for this algorithm, the `place`-th of the study."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    word = int(keys(seed, "optuna", [place], generation)[0] % 2**32)
    sampler = optuna.samplers.TPESampler(seed=word, n_startup_trials=6, multivariate=False, constant_liar=True)
    study = optuna.create_study(sampler=sampler)
    distributions: dict[str, Any] = {key: _distribution(space) for key, space in spaces.items()}
    for rank, trial in enumerate(sorted(known, key=lambda trial: trial.order)):
        params = {key: _to_optuna(spaces[key], value) for key, value in trial.values.items()}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=float(rank)))
    tried = [dict(trial.values) for trial in known]
    found: list[Values] = []
    for _ in range(20 * count):
        asked = study.ask(distributions).params
        point = {key: _from_optuna(spaces[key], asked[key]) for key in spaces}
        if point not in tried:
            tried.append(point)
            found.append(point)
        if len(found) == count:
            break
    return found


def _distribution(space: Space) -> Any:
    """The distribution of a space; a choice is its index, so that neighbours are similar in a sorted list."""
    import optuna

    if isinstance(space, Between):
        return optuna.distributions.FloatDistribution(space.low, space.high, log=space.log)
    numbers = [v for v in space.values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) == space.size and sorted(numbers) == numbers:
        return optuna.distributions.IntDistribution(0, space.size - 1)
    return optuna.distributions.CategoricalDistribution(list(range(space.size)))


def _to_optuna(space: Space, value: Any) -> Any:
    """A value of the space as a value of its distribution."""
    return value if isinstance(space, Between) else space.values.index(value)


def _from_optuna(space: Space, value: Any) -> Any:
    """The inverse of `_to_optuna`; numbers have four digits, as in grids."""
    if isinstance(space, Between):
        return min(max(float(f"{value:.4g}"), space.low), space.high)
    return space.values[value]
