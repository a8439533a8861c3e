"""Run a paper's experiments, compare its numbers with ours and judge its claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from proxfed.errors import nearest, require
from proxfed.harness.experiment import Experiment, shipped, slug
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.results import Results
from proxfed.harness.settings_diff import by_key, changed, settings_mismatch
from proxfed.papers.beside import Beside, comparable, joined, named
from proxfed.papers.claims import Verdict, judge
from proxfed.papers.comparisons import Comparison, compare
from proxfed.papers.paper_file import PaperFile
from proxfed.registry import Table
from proxfed.report.columns import RunStatus
from proxfed.report.plots import available, write_figures


@dataclass
class Part:
    """One experiment of a paper, in the requested form."""

    name: str  # composite_fl/fig1_full
    file: PaperFile
    quick: bool
    cases: dict[str, Experiment]
    """The requested cases."""
    folder: Path
    """The folder of the form; each case has its own folder inside."""
    others: dict[str, Experiment]
    """The other cases that have begun, with the current settings."""
    ran: dict[str, Results] = field(default_factory=dict, init=False)
    """The results of the cases just run."""

    @cached_property
    def folders(self) -> dict[str, RunFolder]:
        """The run folder of each case; without cases it is the folder of the form itself."""
        return {case: RunFolder(self.folder / slug(case)) for case in self.file.whole.cases or self.cases}

    def check(self) -> None:
        """Refuse to judge rows that were made with other settings."""
        for case, experiment in (self.others | self.cases).items():
            folder = self.folders[case]
            recorded = folder.config() if folder.exists() else None
            for key, (then, now) in changed(recorded, as_recorded(experiment)).items() if recorded else ():
                raise settings_mismatch(folder.path, f"{key} was {then!r}, now {now!r}")

    @cached_property
    def results(self) -> dict[str, Results]:
        """The results of all cases that have begun: read once, so only after the runs."""
        begun = {case: folder for case, folder in self.folders.items() if folder.exists()}
        return {case: self.ran.get(case) or Results.read(folder) for case, folder in begun.items()}

    def diverged(self) -> list[dict[str, Any]]:
        """The seeds that diverged, in every case."""
        return [
            {"case": case} | dict(state)
            for case, results in self.results.items()
            for state in results.status
            if state["status"] == RunStatus.DIVERGED
        ]

    def verdicts(self) -> list[Verdict]:
        """The verdict on each claim."""
        return judge_all(self.file, self.results, self.quick, self.beside())

    def beside(self) -> Beside:
        """Runs of other experiments for comparison in claims: in the same form, below the same folder."""
        found: dict[str, dict[str, Results]] = {}
        for other in self.file.labels_beside:
            form = self.folder.parents[1] / stem(f"{self.name.partition('/')[0]}/{other}") / self.folder.name
            folders = {case: RunFolder(form / slug(case)) for case in self.results}
            runs = {case: Results.read(folder) for case, folder in folders.items() if folder.exists()}
            own = {case: by_key(dict(self.results[case].settings)) for case in runs}
            found[other] = {
                case: run for case, run in runs.items() if comparable(own[case], by_key(dict(run.settings)))
            }
        return found

    def comparisons(self) -> list[Comparison]:
        """Our numbers beside the paper's."""
        return compare_all(self.file, self.results)

    def draw(self) -> list[Path]:
        """The paper's figures, with all cases that were run: the SVG files, none without matplotlib."""
        return write_figures(self.file.paper.figures, self.results, self.folder) if available() else []


def judge_all(
    file: PaperFile, results: Mapping[str, Results], quick: bool, beside: Beside | None = None
) -> list[Verdict]:
    """The verdict on each claim of an experiment; some compare it with others."""
    labels, found = file.labels(), []
    for claim in file.claims:
        if not (other := claim.beside):
            found.append(judge(claim, results, quick, labels))
            continue
        theirs = file.labels_beside[other]
        both = {
            case: [*labels[case], *(named(other, label) for label in theirs[case])] for case in labels if case in theirs
        }
        with_theirs = joined(results, (beside or {}).get(other, {}), other)
        needs = f"needs {other} with the same data and as many rounds"
        found.append(judge(claim, with_theirs, quick, both) if with_theirs else Verdict(claim, "not run", needs))
    return found


def compare_all(file: PaperFile, results: Mapping[str, Results]) -> list[Comparison]:
    """Our numbers beside those reported by the paper of an experiment."""
    return [line for reported in file.reported for line in compare(reported, results)]


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


def experiments_of(what: str) -> list[str]:
    """The names of all experiments of PAPER, or of PAPER/EXPERIMENT alone."""
    known = papers()
    paper, slash, _ = what.partition("/")
    require(paper in known, f"there are no experiments of a paper {paper!r}; {nearest(paper, known)}")
    require(not slash or what in known[paper], f"there is no experiment {what!r}; {nearest(what, known[paper])}")
    return [what] if slash else known[paper]


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
    """The requested experiments of PAPER, PAPER/EXPERIMENT or FILE.toml.

    With a whole paper, a variant or a case selects the experiments that have it.
    """
    changes = [*([] if seeds is None else [f"seeds={list(range(seeds))}"]), *changes]
    parts = []
    for name, file in _files(what, variant, cases).items():
        chosen = file.form(changes, quick=quick, variant=variant, only=cases)
        path = out / (stem(name) if name in shipped() else file.whole.name) / form_name(quick, variant)
        begun = [case for case in file.whole.cases if case not in chosen and RunFolder(path / slug(case)).exists()]
        others = file.form(changes, quick=quick, variant=variant, only=begun) if begun else {}
        parts.append(Part(name, file, quick, chosen, path, others))
    return parts


def as_recorded(experiment: Experiment) -> Table:
    """The settings of an experiment under their keys in a run folder, without defaults."""
    e = experiment.model_dump(exclude_none=True, exclude={"seeds"})
    common = {key: e[key] for key in ("rounds", "participation", "topology") if key in e}
    return e | {"algorithms": [common | algorithm for algorithm in e["algorithms"]]}


def _files(what: str, variant: str | None, cases: Sequence[str]) -> dict[str, PaperFile]:
    """The selected experiments, each read once."""
    if what.endswith(".toml"):
        return {what: PaperFile(what)}
    files = {name: PaperFile(name) for name in experiments_of(what)}
    if "/" in what:
        return files
    chosen = {name: file for name, file in files.items() if _has(file, variant, cases)}
    require(bool(chosen), f"no experiment of {what} has {_wanted([*files.values()], variant, cases)}")
    return chosen


def _has(file: PaperFile, variant: str | None, cases: Sequence[str]) -> bool:
    known = variant is None or variant in file.paper.variants
    return known and {*map(slug, cases)} <= {*map(slug, file.whole.cases)}


def _wanted(files: Sequence[PaperFile], variant: str | None, cases: Sequence[str]) -> str:
    """The requested variant and cases, and the nearest existing names."""
    wanted = [*([] if variant is None else [f"the variant {variant!r}"]), *(f"the case {case!r}" for case in cases)]
    there = {v for file in files for v in file.paper.variants} if variant else set()
    there |= {case for file in files for case in file.whole.cases} if cases else set()
    word = variant or next(iter(cases), "")
    return f"{' and '.join(wanted)}; {nearest(word, sorted(there)) if there else 'they have none'}"
