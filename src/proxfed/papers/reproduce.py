"""Run a paper's experiments and hold its claims and its numbers against what came out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from proxfed.errors import nearest, require
from proxfed.harness.cases import labels_by_case, read_cases, slug
from proxfed.harness.results import Results
from proxfed.harness.run_folder import RunFolder
from proxfed.harness.schema import Experiment, read, shipped
from proxfed.harness.settings_diff import changed, settings_mismatch
from proxfed.papers.claims import Comparison, Verdict, compare, judge
from proxfed.papers.figures import available, write_figures
from proxfed.registry import Table


class Part(NamedTuple):
    """One experiment of a paper."""

    name: str  # composite_fl/fig1_full
    experiment: Experiment
    """As the file has it, with all its cases."""
    cases: dict[str, Experiment]
    """Those that were asked for, in the form that was asked for."""
    folder: Path
    """Of the form; each case has its own one inside."""
    others: dict[str, Experiment]
    """The other cases that have begun, as they would be run now."""

    def folders(self) -> dict[str, Path]:
        """The run folder of each case; without cases it is the folder of the form itself."""
        return {case: self.folder / slug(case) for case in self.cases}

    def results(self) -> dict[str, Results]:
        """What the run folders of the form hold, of all cases that have begun."""
        folders = {case: RunFolder(self.folder / slug(case)) for case in self.experiment.cases or self.cases}
        return {case: Results.read(folder) for case, folder in folders.items() if folder.exists()}

    def check(self) -> None:
        """Refuse to judge rows that were made with other settings."""
        for case, experiment in (self.others | self.cases).items():
            folder = RunFolder(self.folder / slug(case))
            recorded = folder.config() if folder.exists() else None
            for key, (then, now) in changed(recorded, as_recorded(experiment)).items() if recorded else ():
                raise settings_mismatch(folder.path, f"{key} was {then!r}, now {now!r}")

    def diverged(self) -> list[dict[str, Any]]:
        """The seeds that diverged, in every case."""
        return [
            {"case": case} | dict(state)
            for case, results in self.results().items()
            for state in results.status
            if state["status"] == "diverged"
        ]


def stem(name: str) -> str:
    """The folder of a shipped experiment: 'composite_fl/fig1_full' -> 'composite_fl-fig1_full'."""
    return name.replace("/", "-")


def form_name(quick: bool, variant: str | None) -> str:
    """The folder of a form: 'full', 'quick+unit_pixels'."""
    return ("quick" if quick else "full") + (f"+{variant}" if variant else "")


def papers() -> dict[str, list[str]]:
    """The experiments of each paper."""
    found: dict[str, list[str]] = {}
    for name in shipped():
        paper, slash, _ = name.partition("/")
        if slash:
            found.setdefault(paper, []).append(name)
    return found


def select(
    what: str,
    out: Path,
    *,
    quick: bool,
    seeds: int | None = None,
    variant: str | None = None,
    cases: Sequence[str] = (),
    changes: Sequence[str] = (),
) -> list[Part]:
    """The experiments of PAPER, PAPER/EXPERIMENT or FILE.toml as they were asked for.

    Of a whole paper, a variant or a case means the experiments that have it.
    """
    changes = [*([] if seeds is None else [f"seeds={list(range(seeds))}"]), *changes]
    parts = []
    for name in _names(what, variant, cases):
        whole, chosen = read(name), read_cases(name, changes, quick=quick, variant=variant, only=cases)
        path = out / (stem(name) if name in shipped() else whole.name) / form_name(quick, variant)
        begun = [case for case in whole.cases if case not in chosen and RunFolder(path / slug(case)).exists()]
        others = read_cases(name, changes, quick=quick, variant=variant, only=begun) if begun else {}
        parts.append(Part(name, whole, chosen, path, others))
    return parts


def as_recorded(experiment: Experiment) -> Table:
    """The settings of an experiment under the keys that a run folder has for them, without defaults."""
    e = experiment.model_dump(exclude_none=True, exclude={"seeds"})
    common = {key: e[key] for key in ("rounds", "participation", "topology") if key in e}
    return e | {"algorithms": [common | algorithm for algorithm in e["algorithms"]]}


def _names(what: str, variant: str | None, cases: Sequence[str]) -> list[str]:
    if what.endswith(".toml"):
        return [what]
    known = papers()
    paper, slash, _ = what.partition("/")
    require(paper in known, f"there are no experiments of a paper {paper!r}; {nearest(paper, known)}")
    require(not slash or what in known[paper], f"there is no experiment {what!r}; {nearest(what, known[paper])}")
    names = [what] if slash else [name for name in known[paper] if _has(name, variant, cases)]
    if not names:
        wanted = [*([] if variant is None else [f"the variant {variant!r}"]), *(f"the case {case!r}" for case in cases)]
        files = [read(name) for name in known[paper]]
        there = {v for e in files for v in (e.paper.variants if e.paper else ())} if variant else set()
        there |= {case for e in files for case in e.cases} if cases else set()
        close = nearest(variant or cases[0], sorted(there)) if there else "they have none"
        require(False, f"no experiment of {paper} has {' and '.join(wanted)}; {close}")
    return names


def _has(name: str, variant: str | None, cases: Sequence[str]) -> bool:
    experiment = read(name)
    variants = experiment.paper.variants if experiment.paper is not None else {}
    return (variant is None or variant in variants) and {*map(slug, cases)} <= {*map(slug, experiment.cases)}


def verdicts(part: Part, quick: bool) -> list[Verdict]:
    """What became of each claim, from the rows in the part's folders."""
    results, cases = part.results(), labels_by_case(part.name)
    return [judge(claim, results, quick, cases) for claim in part.experiment.claims]


def comparisons(part: Part) -> list[Comparison]:
    """Ours beside every number that the paper reports."""
    results = part.results()
    return [line for reported in part.experiment.reported for line in compare(reported, results)]


def draw(part: Part) -> list[Path]:
    """The paper's figures, of all cases that this form has been run for: the SVG files, none without matplotlib."""
    paper = part.experiment.paper
    if paper is None or not available():
        return []
    return write_figures(paper.figures, part.results(), part.folder)
