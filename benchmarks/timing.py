"""Side by side in one process: the median or the least of several turns, taken in turn so that noise hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from statistics import median

from proxfed.engine.run import Run


def rounds_of(run: Run) -> Callable[[], None]:
    """Rounds 1, 2, ... of a run, one at each call."""
    numbers = count(1)
    return lambda: run.round(next(numbers))


def side_by_side(
    contenders: dict[str, Callable[[], object]], turns: int = 7, of: Callable[[list[float]], float] = median
) -> dict[str, float]:
    """Median seconds of each contender, or what `of` makes of its turns; one turn each to warm up."""
    for run in contenders.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: of(times) for name, times in seconds.items()}
