"""The rows of another experiment of the same paper, for claims that compare two experiments case by case.

A table of a paper may have a model per block, and each block is an experiment here: that a CNN outperforms an MLP is a
claim about two of them. Two runs are compared only if they have the same data, clients and number of rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from proxfed.harness.results import Results
from proxfed.registry import Table

Beside = Mapping[str, Mapping[str, Results]]
"""The results of other experiments, by name and case."""


def named(experiment: str, label: str) -> str:
    """The name of an algorithm of another experiment in a claim; labels have no '/'."""
    return f"{experiment}/{label}"


def comparable(own: Table, other: Table) -> bool:
    """Whether two runs have the same data, clients and rounds, by their settings by dotted key."""
    same = {key for key in {*own, *other} if key.startswith("data.")} | {"rounds"}
    return all(own.get(key) == other.get(key) for key in same)


def joined(own: Mapping[str, Results], other: Mapping[str, Results], experiment: str) -> dict[str, Results]:
    """The cases that both experiments have, with the algorithms of both."""
    return {case: _both(results, other[case], experiment) for case, results in own.items() if case in other}


def _both(own: Results, other: Results, experiment: str) -> Results:
    rows, status = (
        [*mine, *(dict(line) | {"algorithm": named(experiment, line["algorithm"])} for line in theirs)]
        for mine, theirs in ((own.rows, other.rows), (own.status, other.status))
    )
    return replace(own, rows=rows, status=status)
