"""The loop over rounds, shared by all runs."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any, NamedTuple

from torch import Tensor

from proxfed.engine.measures import Measures
from proxfed.engine.running import Running

FAR = 1e15
"""A run has diverged when the norm of its model reaches this."""

Row = dict[str, Any]


class Step(NamedTuple):
    """The state of the run after a round."""

    t: int
    row: Row | None = None
    """The measures, if this round is evaluated."""
    x: Tensor | None = None
    """The model, (d,)."""
    diverged: str = ""
    """One sentence if the run has diverged, which ends it."""


def rounds(run: Running, last: int, measures: Measures | None = None, every: int = 1, done: int = -1) -> Iterator[Step]:
    """From round `done` (-1: before the start) to round `last`; one step after each round.

    The model is measured every `every` rounds and at both ends; without `measures` there are no rows.
    """
    run.begin()
    if done < 0:
        yield Step(0) if measures is None else Step(0, _row(run, 0, run.x0, measures), run.x0)
    for t in range(max(done, 0) + 1, last + 1):
        run.round(t)
        if measures is None or (t % every and t != last):
            yield Step(t)
            continue
        x = run.model()
        row = _row(run, t, x, measures)
        size, spread = float(x.norm()), sqrt(row.get("consensus", 0.0))  # clients' errors may cancel in the mean
        if not (size < FAR and spread < FAR):
            where = f"the clients are {spread:g} from their mean" if size < FAR else f"the model has norm {size:g}"
            yield Step(t, row, x, f"diverged: {where} in round {t}; try smaller steps")
            return
        yield Step(t, row, x)


def _row(run: Running, t: int, x: Tensor, measures: Measures) -> Row:
    return {"round": t, "wall_seconds": run.seconds} | run.counters() | measures(x, run.fields(measures.fields))
