"""What results/ keeps of the papers' experiments, with the claims judged on it, and what the experiments' files say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from proxfed.cases import across_names, claim_labels, slug
from proxfed.claims import Verdict
from proxfed.config import Experiment, Figure, Paper, read
from proxfed.figures import make_panels
from proxfed.record import RunFolder
from proxfed.reproduce import Part, papers, select, verdicts
from proxfed.targets import Results

FORMS = ("full", "quick")
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
    figures: list[Figure]
    """Those that the first form can show, under the names of their files."""
    notes: str

    @property
    def stem(self) -> str:
        return self.name.replace("/", "-")

    def statuses(self) -> list[str]:
        """What became of each claim: what the first form says that can tell."""
        said = [[v.status for v in form.judged] for form in self.forms]
        found = [[status for status in line if status != "not run"] for line in zip(*said, strict=True)]
        return [line[0] if line else "not run" for line in found] or ["not run"] * len(self.experiment.claims)

    def choices(self) -> list[Form]:
        """The variants of what the paper leaves open."""
        return [form for form in self.variants if not form.departs]

    def elsewhere(self) -> int:
        """How many claims that are not confirmed hold with another choice; it must have all cases of a form."""
        whole = [v for v in self.choices() if any(v.results.keys() >= form.results.keys() for form in self.forms)]
        said = zip(self.statuses(), *([judged.status for judged in v.judged] for v in whole), strict=True)
        return sum(status == "not confirmed" and "confirmed" in others for status, *others in said)

    def early(self) -> Iterator[tuple[str, str]]:
        """The claims that are called not confirmed before that was tried, and what has been tried."""
        for place, (claim, status) in enumerate(zip(self.experiment.claims, self.statuses(), strict=True)):
            if status == "not confirmed":
                seeds = max(form.seeds_against(place) for form in self.forms)
                varied = any(form.judged[place].status != "not run" for form in self.choices())
                if seeds < SEEDS or not varied:
                    yield claim.says, f"{seeds} of {SEEDS} seeds, {'an' if varied else 'no'} open setting varied"


# ---- what there is --------------------------------------------------------------------------------------------------


def gather(kept: Path) -> dict[str, list[Entry]]:
    """The experiments of each paper."""
    return {paper: [_entry(name, kept) for name in names] for paper, names in papers().items()}


def _entry(name: str, kept: Path) -> Entry:
    experiment = read(name)
    about = experiment.paper or Paper(title=name.partition("/")[0], figure="")
    folder = kept / name.replace("/", "-")
    forms = [f for form in FORMS if (f := _form(name, experiment, kept, form))]
    variants = [f for v in about.variants for form in FORMS if (f := _form(name, experiment, kept, form, v))]
    figures = [
        figure.model_copy(update={"name": f"{folder.name}-{figure.name}"})
        for figure in about.figures
        if forms and any(panel.lines for panel in make_panels(figure, forms[0].results))
    ]
    notes = folder / "notes.md"
    text = notes.read_text().strip() if notes.exists() else ""
    return Entry(name, experiment, about, forms, variants, figures, text)


def _form(name: str, experiment: Experiment, kept: Path, form: str, variant: str | None = None) -> Form | None:
    """The form with the cases that are kept; None if there is none."""
    called = form + (f"+{variant}" if variant else "")
    folder = kept / name.replace("/", "-") / called
    cases = [case for case in experiment.cases if RunFolder(folder / slug(case)).exists()]
    if not cases and (experiment.cases or not RunFolder(folder).exists()):
        return None
    (part,) = select(name, kept, quick=form == "quick", variant=variant, cases=cases)
    return Form(called, part, part.results(), verdicts(part, form == "quick"))


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
