"""Run a paper's experiments and hold its claims against what came out."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from proxfed.claims import Verdict, judge
from proxfed.config import Experiment, read, shipped
from proxfed.errors import nearest, require
from proxfed.record import RunFolder


class Part(NamedTuple):
    """One experiment of a paper."""

    name: str  # composite_fl/fig1_full
    experiment: Experiment
    folder: Path


def papers() -> dict[str, list[str]]:
    """The experiments of each paper."""
    found: dict[str, list[str]] = {}
    for name in shipped():
        paper, slash, _ = name.partition("/")
        if slash:
            found.setdefault(paper, []).append(name)
    return found


def select(what: str, quick: bool, seeds: int | None, out: Path) -> list[Part]:
    """The experiments of PAPER or PAPER/EXPERIMENT, in the form and with the number of seeds that were asked for."""
    known = papers()
    paper, slash, _ = what.partition("/")
    require(paper in known, f"there are no experiments of a paper {paper!r}; {nearest(paper, known)}")
    names = [what] if slash else known[paper]
    require(not slash or what in known[paper], f"there is no experiment {what!r}; {nearest(what, known[paper])}")
    return [_part(name, quick, seeds, out) for name in names]


def _part(name: str, quick: bool, seeds: int | None, out: Path) -> Part:
    changes = []
    paper = read(name).paper
    if quick and paper is not None:
        changes += [f"{key}={value!r}" for key, value in paper.quick.items()]
    if seeds is not None:
        changes.append(f"seeds={list(range(seeds))}")
    return Part(name, read(name, changes), out / name.replace("/", "-") / ("quick" if quick else "full"))


def verdicts(part: Part, quick: bool) -> list[Verdict]:
    """What became of each claim, from the rows in the part's folder."""
    folder = RunFolder(part.folder)
    rows = folder.rows() if folder.exists() else []
    return [judge(claim, rows, quick) for claim in part.experiment.claims]
