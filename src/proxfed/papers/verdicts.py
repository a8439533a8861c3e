"""The claims of every experiment, judged on what is kept of it: form by form, and all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import join
from typing import Any, NamedTuple

from proxfed.harness.experiment import Experiment, ExperimentFile
from proxfed.harness.paper_schema import Paper
from proxfed.harness.results import Results
from proxfed.harness.settings_diff import by_key, other_values
from proxfed.papers import results_store
from proxfed.papers.causes import MEANING, Cause, Written
from proxfed.papers.claims import Verdict
from proxfed.papers.reproduce import as_recorded, form_name, judge_all, papers
from proxfed.papers.results_format import KeptRun, Place

SEEDS = 3
"""A case decides about a claim when it was run with so many."""


@dataclass
class Form:
    """An experiment in a form that is kept."""

    file: ExperimentFile
    name: str  # full, quick, quick+variant
    runs: dict[str, KeptRun]
    """By case, in the order of the file."""

    @property
    def quick(self) -> bool:
        """Smaller than the paper's scale."""
        return self.name.startswith("quick")

    @property
    def variant(self) -> str:
        """Another choice for what the paper leaves open; empty: none."""
        return self.name.partition("+")[2]

    @property
    def departs(self) -> bool:
        """It changes what the paper states."""
        paper = self.file.whole.paper
        return paper is not None and self.variant in paper.departures

    @cached_property
    def cases(self) -> dict[str, Experiment]:
        """The cases that are kept, as they would be run now."""
        only = [case for case in self.runs if case]
        return self.file.cases(quick=self.quick, variant=self.variant or None, only=only)

    @cached_property
    def results(self) -> dict[str, Results]:
        """By case."""
        return {case: run.results for case, run in self.runs.items()}

    @cached_property
    def judged(self) -> list[Verdict]:
        """A verdict on each claim of the file, by all that is kept."""
        return judge_all(self.file, self.results, self.quick)

    @cached_property
    def decisive(self) -> list[Verdict]:
        """The same by the cases alone that have enough seeds."""
        enough = {case: self.results[case] for case, run in self.runs.items() if len(run.seeds) >= self._needed(case)}
        return judge_all(self.file, enough, self.quick)

    def changed(self, case: str) -> dict[str, tuple[Any, Any]]:
        """Settings that the file has had otherwise since a case was run, then and now: its command makes other rows.

        That fewer algorithms were run changes no row.
        """
        then, now = self.runs[case].settings, by_key(as_recorded(self.cases[case]))
        fewer = {*then["algorithms"]} <= {*now["algorithms"]}
        return {key: values for key, values in other_values(then, now).items() if key != "algorithms" or not fewer}

    def _needed(self, case: str) -> int:
        """Seeds that decide: fewer only where the file asks for fewer, because nothing is drawn."""
        return min(SEEDS, len(self.cases[case].seeds))

    def confirms(self, k: int, other: Verdict) -> bool:
        """Whether it confirms claim k, with enough seeds, in all cases that another verdict on it is about."""
        verdict = self.decisive[k]
        return verdict.status == "confirmed" and {j.case for j in verdict.cases} >= {j.case for j in other.cases}


class Counts(NamedTuple):
    """How many claims became what; those that are not confirmed, by their cause."""

    confirmed: int = 0
    reading: int = 0
    scale: int = 0
    settings: int = 0
    unknown: int = 0
    not_run: int = 0

    @property
    def claims(self) -> int:
        """All of them."""
        return sum(self)

    @property
    def not_confirmed(self) -> int:
        """Whatever the cause."""
        return self.reading + self.scale + self.settings + self.unknown


def total(counts: Iterable[Counts]) -> Counts:
    """All of them together."""
    return Counts(*map(sum, zip(*counts, strict=True)))


@dataclass
class Reproduction:
    """An experiment of a paper with what is kept of it."""

    name: str  # composite_fl/fig1_full
    file: ExperimentFile
    forms: list[Form]
    """Without variants; the full form first."""
    variants: list[Form]
    notes: str
    causes: list[Written]
    """Those that somebody wrote down."""
    unknown: list[Place]
    """What is kept of forms, variants and cases that the file does not have."""

    @property
    def about(self) -> Paper:
        """What its file says of the paper."""
        return self.file.whole.paper or Paper(title=self.name.partition("/")[0], figure="")

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """What became of each claim: what the first form says that can tell, by cases with enough seeds."""
        by_claim = zip(*(form.decisive for form in self.forms), strict=True)
        found = [next((v for v in line if v.status != "not run"), line[0]) for line in by_claim]
        return found or [Verdict(claim, "not run", "") for claim in self.file.whole.claims]

    def choices(self) -> list[Form]:
        """The variants of what the paper leaves open."""
        return [form for form in self.variants if not form.departs]

    def readings(self, k: int) -> list[str]:
        """The variants with which claim k, which is not confirmed, holds in all its cases, with enough seeds."""
        return [form.variant for form in self.choices() if form.confirms(k, self.verdicts[k])]

    def cause(self, k: int) -> Cause:
        """Why claim k is not confirmed."""
        if readings := self.readings(k):
            return Cause("reading", f"it holds with {' and with '.join(f'`{name}`' for name in readings)}")
        written = self._written(k)
        return Cause("unknown", self._tried(k)) if written is None else Cause(written.kind, written.evidence)

    def _written(self, k: int) -> Written | None:
        return next((cause for cause in self.causes if cause.of(self.verdicts[k].claim.says)), None)

    def became(self, k: int) -> str:
        """What became of claim k: confirmed, not run, or the cause for which it is neither."""
        status = self.verdicts[k].status
        return MEANING[self.cause(k).kind] if status == "not confirmed" else status

    def explained(self) -> dict[tuple[str, str], list[str]]:
        """What became of claims that do not hold, and why: what they say. With those not run that somebody explains."""
        found: dict[tuple[str, str], list[str]] = {}
        for k, v in enumerate(self.verdicts):
            written = self._written(k) if v.status == "not run" else None
            why = self.cause(k).evidence if v.status == "not confirmed" else written.evidence if written else ""
            if why:
                found.setdefault((self.became(k), " ".join(why.split())), []).append(v.claim.says)
        return found

    def _tried(self, k: int) -> str:
        varied = [form.variant for form in self.choices() if form.judged[k].status != "not run"]
        return f"varied: {', '.join(f'`{name}`' for name in dict.fromkeys(varied))}" if varied else "nothing varied"

    def idle_causes(self) -> list[Written]:
        """Causes that are written down of no claim that needs one."""
        lacking = [v.claim.says for v in self.verdicts if v.status != "confirmed"]
        return [cause for cause in self.causes if not any(map(cause.of, lacking))]

    def command(self, form: Form) -> str:
        """What runs a form again, as far as it is kept."""
        shape = ["--quick" if form.quick else "--full", *(["--variant", form.variant] if form.variant else [])]
        every = form.file.cases(quick=form.quick, variant=form.variant or None)
        cases = [part for case in form.runs for part in ("--case", case)] if {*form.runs} != {*every} else []
        known = {label for case in form.runs for label in form.file.labels()[case]}
        labels = dict.fromkeys(label for results in form.results.values() for label in results.labels())
        only = [part for label in labels for part in ("--only", label)] if {*labels} < known else []
        most = max(len(run.seeds) for run in form.runs.values())
        seeds = ["--seeds", str(most)] if most != max(len(case.seeds) for case in form.cases.values()) else []
        return join(["proxfed", "reproduce", self.name, *shape, *cases, *only, *seeds])

    def counts(self, *ranks: str) -> Counts:
        """Of the claims of these ranks; of all without one."""
        became: Counter[str] = Counter()
        for k, verdict in enumerate(self.verdicts):
            if not ranks or verdict.claim.rank in ranks:
                against = verdict.status == "not confirmed"
                became[self.cause(k).kind if against else verdict.status.replace(" ", "_")] += 1
        return Counts(**became)


def gather(results: Path) -> dict[str, list[Reproduction]]:
    """The experiments of each paper."""
    return {paper: [reproduction(results, name) for name in names] for paper, names in papers().items()}


def reproduction(results: Path, name: str) -> Reproduction:
    """One experiment with what is kept of it."""
    file, kept = ExperimentFile(name), results_store.read(results, name)
    variants = file.whole.paper.variants if file.whole.paper is not None else {}
    known = [*file.whole.cases] or [""]
    found = {}
    for variant in [None, *variants]:
        for quick in (False, True):
            called = form_name(quick, variant)
            runs = {case: kept[place] for case in known if (place := Place.of(called, case)) in kept}
            if runs:
                found[called] = Form(file, called, runs)
    there = {Place.of(form.name, case) for form in found.values() for case in form.runs}
    return Reproduction(
        name,
        file,
        [form for form in found.values() if not form.variant],
        [form for form in found.values() if form.variant],
        results_store.notes(results, name),
        results_store.causes(results, name),
        [place for place in kept if place not in there],
    )
