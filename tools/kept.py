"""What results/ keeps of the papers' experiments, with the claims judged on it, and what the experiments' files say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from proxfed.harness.cases import across_names, claim_labels, slug
from proxfed.harness.run_folder import RunFolder
from proxfed.harness.schema import Experiment, Figure, Paper, read
from proxfed.papers.claims import Verdict
from proxfed.papers.figures import make_panels
from proxfed.papers.reproduce import Part, form_name, papers, select, stem, verdicts
from proxfed.report.targets import Results

SEEDS = 3
"""So many must speak against a claim, and an open setting must have been varied, before it is not confirmed."""


class Form(NamedTuple):
    """An experiment in a form that was run."""

    name: str  # full, quick, quick+variant
    part: Part
    results: dict[str, Results]
    judged: list[Verdict]

    @property
    def quick(self) -> bool:
        return self.name.startswith("quick")

    @property
    def variant(self) -> str:
        return self.name.partition("+")[2]

    @property
    def departs(self) -> bool:
        """It changes what the paper states."""
        paper = self.part.experiment.paper
        return paper is not None and self.variant in paper.departures

    @property
    def seeds(self) -> dict[str, list[int]]:
        """Of each case."""
        return {case: sorted({row["seed"] for row in results.rows}) for case, results in self.results.items()}

    def seeds_against(self, place: int) -> int:
        """How many seeds a case has that speaks against the claim: the most, or across cases the fewest."""
        verdict, seeds = self.judged[place], {case: len(seeds) for case, seeds in self.seeds.items()}
        against = [judged.case for judged in verdict.cases if not judged.holds]
        if against and verdict.claim.across:
            names = across_names({case: results.labels() for case, results in self.results.items()})
            return min(seeds[names[name][0]] for name in claim_labels(verdict.claim))
        return max((seeds[case] for case in against), default=0)

    def confirms(self, place: int, other: Verdict) -> bool:
        """Whether it confirms the claim in all cases that another verdict on it is about."""
        verdict = self.judged[place]
        cases = {judged.case for judged in verdict.cases} >= {judged.case for judged in other.cases}
        return verdict.status == "confirmed" and cases and min(map(len, self.seeds.values())) >= SEEDS

    def folders(self) -> dict[str, RunFolder]:
        return {case: RunFolder(path) for case, path in self.part.folders().items() if case in self.results}


class Entry(NamedTuple):
    """An experiment of a paper with what is kept of it."""

    name: str  # composite_fl/fig1_full
    experiment: Experiment
    about: Paper
    forms: list[Form]
    """Without variants; the full form first."""
    variants: list[Form]
    figures: dict[str, list[Figure]]
    """By form, the figures that it is the first to have lines for, under the names of their files."""
    notes: str

    @property
    def stem(self) -> str:
        return stem(self.name)

    def verdicts(self) -> list[Verdict]:
        """What became of each claim: what the first form says that can tell."""
        said = zip(*(form.judged for form in self.forms), strict=True)
        found = [next((v for v in line if v.status != "not run"), line[0]) for line in said]
        return found or [Verdict(claim, "not run", "") for claim in self.experiment.claims]

    def choices(self) -> list[Form]:
        """The variants of what the paper leaves open."""
        return [form for form in self.variants if not form.departs]

    def elsewhere(self) -> int:
        """How many claims that are not confirmed hold with another choice: in all their cases, with enough seeds."""
        return sum(
            any(form.confirms(place, verdict) for form in self.choices())
            for place, verdict in enumerate(self.verdicts())
            if verdict.status == "not confirmed"
        )

    def early(self) -> Iterator[tuple[str, str]]:
        """The claims that are called not confirmed before that was tried, and what has been tried."""
        for place, verdict in enumerate(self.verdicts()):
            if verdict.status == "not confirmed":
                seeds = max(form.seeds_against(place) for form in self.forms)
                varied = any(form.judged[place].status != "not run" for form in self.choices())
                if seeds < SEEDS or not varied:
                    yield (
                        verdict.claim.says,
                        f"{seeds} of {SEEDS} seeds, {'an' if varied else 'no'} open setting varied",
                    )


# ---- what there is --------------------------------------------------------------------------------------------------


def gather(kept: Path) -> dict[str, list[Entry]]:
    """The experiments of each paper."""
    return {paper: [_entry(name, kept) for name in names] for paper, names in papers().items()}


def _entry(name: str, kept: Path) -> Entry:
    experiment = read(name)
    about = experiment.paper or Paper(title=name.partition("/")[0], figure="")
    folder = kept / stem(name)
    forms = [f for quick in (False, True) if (f := _form(name, experiment, kept, quick))]
    variants = [f for v in about.variants for quick in (False, True) if (f := _form(name, experiment, kept, quick, v))]
    figures: dict[str, list[Figure]] = {}
    for figure in about.figures:
        drawn = (form for form in forms if any(panel.lines for panel in make_panels(figure, form.results)))
        if form := next(drawn, None):
            named = figure.model_copy(update={"name": f"{folder.name}-{figure.name}"})
            figures.setdefault(form.name, []).append(named)
    notes = folder / "notes.md"
    text = notes.read_text().strip() if notes.exists() else ""
    return Entry(name, experiment, about, forms, variants, figures, text)


def _form(name: str, experiment: Experiment, kept: Path, quick: bool, variant: str | None = None) -> Form | None:
    """The form with the cases that are kept; None if there is none."""
    called = form_name(quick, variant)
    folder = kept / stem(name) / called
    cases = [case for case in experiment.cases if RunFolder(folder / slug(case)).exists()]
    if not cases and (experiment.cases or not RunFolder(folder).exists()):
        return None
    (part,) = select(name, kept, quick=quick, variant=variant, cases=cases)
    return Form(called, part, part.results(), verdicts(part, quick))


# ---- what the file says ---------------------------------------------------------------------------------------------


def left_open(table: Mapping[str, Any], text: str) -> list[tuple[str, str, str]]:
    """(key, value, why) of the settings whose comment in the file begins with 'ours:'."""
    found, inside, seen = [], "", Counter[str]()
    for line in text.splitlines():
        if header := re.match(r"\[\[?([^\[\]]+)\]\]?\s*(#.*)?$", line):
            key = header[1].replace('"', "")
            inside = f"{key}.{_name_of(table, key, seen[key])}." if line.startswith("[[") else f"{key}."
            seen[key] += 1
        if setting := re.match(r"\s*([^=#\"]+?|\"[^\"]+\")\s*=\s*(.+?)\s*#\s*ours:\s*(.+?)\s*$", line):
            found.append((inside + setting[1].replace('"', ""), setting[2], setting[3]))
    return found


def _name_of(table: Mapping[str, Any], key: str, place: int) -> str:
    """How an entry of a list of tables is called: by its label, its name or its place."""
    here: Any = table
    for part in key.split("."):
        here = here[part]
    entry = here[place]
    return str(entry.get("label", entry.get("name", place + 1)))
