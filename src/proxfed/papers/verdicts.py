"""The claims of every experiment, judged on its stored results: form by form, and all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from shlex import join
from typing import Any, NamedTuple

from proxfed.harness.experiment import Experiment
from proxfed.harness.results import Results
from proxfed.harness.settings_diff import by_key, other_values
from proxfed.papers import results_store
from proxfed.papers.beside import comparable
from proxfed.papers.causes import MEANING, Cause, Written
from proxfed.papers.claims import Verdict
from proxfed.papers.paper_file import PaperFile
from proxfed.papers.reproduce import as_recorded, form_name, judge_all, papers
from proxfed.papers.results_format import KeptRun, Place

SEEDS = 3
"""The number of seeds with which a case decides about a claim."""


@dataclass
class Form:
    """An experiment in a stored form."""

    file: PaperFile
    name: str  # full, quick, quick+variant
    runs: dict[str, KeptRun]
    """By case, in the order of the file."""
    beside: Mapping[str, Mapping[str, KeptRun]] = field(default_factory=dict)
    """Other experiments in the same form, by case, for comparison in claims."""

    @property
    def quick(self) -> bool:
        """Whether it is smaller than the paper's scale."""
        return self.name.startswith("quick")

    @property
    def variant(self) -> str:
        """Another choice for settings that the paper leaves open; empty: none."""
        return self.name.partition("+")[2]

    @property
    def departs(self) -> bool:
        """Whether it changes settings that the paper states."""
        return bool(self.file.paper.departs) or self.variant in self.file.paper.departures

    @property
    def scale(self) -> str:
        """The scale of its evidence: 'full', the paper's scale; 'smaller'; or 'own', a problem of ours."""
        paper = self.file.paper
        less = self.quick and (paper.quick or paper.quick_cases)
        return "own" if paper.own_problem else "smaller" if less else "full"

    @cached_property
    def cases(self) -> dict[str, Experiment]:
        """The stored cases, with the current settings."""
        only = [case for case in self.runs if case]
        return self.file.form(quick=self.quick, variant=self.variant or None, only=only)

    @cached_property
    def results(self) -> dict[str, Results]:
        """By case."""
        return {case: run.results for case, run in self.runs.items()}

    @cached_property
    def judged(self) -> list[Verdict]:
        """A verdict on each claim of the file, from all stored results."""
        return judge_all(self.file, self.results, self.quick, self._beside(1))

    @cached_property
    def decisive(self) -> list[Verdict]:
        """The same from cases with enough seeds; for the paper's claims, with its own data, model and settings."""
        enough = {case: self.results[case] for case, run in self.runs.items() if len(run.seeds) >= self._needed(case)}
        left_out = {*enough} if self.departs else self.file.other_problems if self.quick else set()
        papers = {case: results for case, results in enough.items() if case not in left_out}
        why = self.file.paper.departs or "run on another data set or model only"
        found = []
        judged = (judge_all(self.file, some, self.quick, self._beside(SEEDS)) for some in (enough, papers))
        for ours, theirs in zip(*judged, strict=True):
            if ours.claim.rank == "ours":
                found.append(ours)
            else:
                for_that = theirs.status == "not run" != ours.status
                found.append(theirs._replace(found=why) if for_that else theirs)
        return found

    def changed(self, case: str) -> dict[str, tuple[Any, Any]]:
        """Settings (then, now) that changed in the file since a case was run, so that its command now gives other rows.

        Running fewer algorithms changes no row.
        """
        then, now = self.runs[case].settings, by_key(as_recorded(self.cases[case]))
        fewer = {*then["algorithms"]} <= {*now["algorithms"]}
        return {key: values for key, values in other_values(then, now).items() if key != "algorithms" or not fewer}

    def _beside(self, seeds: int) -> dict[str, dict[str, Results]]:
        """The runs of other experiments with the same data and rounds, and as many seeds."""
        return {
            other: {
                case: run.results
                for case, run in runs.items()
                if case in self.runs and len(run.seeds) >= seeds and comparable(self.runs[case].settings, run.settings)
            }
            for other, runs in self.beside.items()
        }

    def _needed(self, case: str) -> int:
        """The seeds needed to decide: fewer only if the file has fewer, because nothing is random."""
        return min(SEEDS, len(self.cases[case].seeds))

    def confirms(self, k: int, other: Verdict) -> bool:
        """Whether it confirms claim k, with enough seeds, in all cases of another verdict on it."""
        verdict = self.decisive[k]
        return verdict.status == "confirmed" and {j.case for j in verdict.cases} >= {j.case for j in other.cases}


Counts = Counter[tuple[str, str]]
"""Numbers of claims by verdict and scale: (confirmed, not run, or a cause; full, smaller, own or '')."""


def count(counts: Counts, *became: str, scale: str | None = None) -> int:
    """The number of all claims, or of those with these verdicts, at one scale or any."""
    return sum(n for (what, by), n in counts.items() if (not became or what in became) and scale in (None, by))


class Reading(NamedTuple):
    """The effect of a variant on the main claims, judged in the same form."""

    won: list[int]
    """Claims that hold only with it, in the same cases and with enough seeds."""
    lost: list[int]
    """Claims that hold only without it."""


@dataclass
class Reproduction:
    """An experiment of a paper with its stored results."""

    name: str  # composite_fl/fig1_full
    file: PaperFile
    forms: list[Form]
    """Without variants; the full form first."""
    variants: list[Form]
    notes: str
    causes: list[Written]
    """The causes that somebody wrote down."""
    unknown: list[Place]
    """Stored results of forms, variants and cases that the file does not have."""

    @property
    def verdicts(self) -> list[Verdict]:
        """The final verdict on each claim."""
        return [verdict for verdict, _ in self._decided]

    @cached_property
    def _decided(self) -> list[tuple[Verdict, Form | None]]:
        """The verdict of the first form that can decide, from cases with enough seeds; and that form."""
        found: list[tuple[Verdict, Form | None]] = []
        for k, claim in enumerate(self.file.claims):
            can_tell = (form for form in self.forms if form.decisive[k].status != "not run")
            if form := next(can_tell, None):
                found.append((form.decisive[k], form))
            else:
                found.append((self.forms[0].decisive[k] if self.forms else Verdict(claim, "not run", ""), None))
        return found

    def where(self, k: int) -> str:
        """The place of claim k in the paper: its section, and its table or figure; '' for a claim of ours."""
        return self.file.where(self.file.claims[k])

    def scale(self, k: int) -> str:
        """The scale at which claim k was judged: full, smaller, own; '' if it was not."""
        form = self._decided[k][1]
        return "" if form is None else form.scale

    def choices(self) -> list[Form]:
        """The variants of settings that the paper leaves open."""
        return [form for form in self.variants if not form.departs]

    @cached_property
    def readings(self) -> dict[str, Reading]:
        """The effect on the main claims of each variant of settings that the paper leaves open, the best one first."""
        found = {name: self._reading(name) for name in dict.fromkeys(form.variant for form in self.choices())}
        return dict(sorted(found.items(), key=lambda item: (len(item[1].lost) - len(item[1].won), len(item[1].lost))))

    def _reading(self, variant: str) -> Reading:
        won, lost = [], []
        for k, (verdict, form) in enumerate(self._decided):
            other = next((o for o in self.choices() if form and o.name == f"{form.name}+{variant}"), None)
            if other is None or verdict.claim.rank != "main":
                continue
            if verdict.status == "not confirmed" and other.confirms(k, verdict):
                won.append(k)
            if verdict.status == "confirmed" and other.decisive[k].status == "not confirmed":
                lost.append(k)
        return Reading(won, lost)

    @property
    def reading(self) -> str:
        """The one reading of the experiment: the variant with which most claims hold more than without it."""
        return next((name for name, found in self.readings.items() if found.won), "")

    def cause(self, k: int) -> Cause:
        """The cause why claim k is not confirmed."""
        if self.reading and k in self.readings[self.reading].won:
            won, lost = map(len, self.readings[self.reading])
            price = f", and {lost} fewer of those that hold without it" if lost else ""
            return Cause("reading", f"with `{self.reading}` {won} more of the experiment's main claims hold{price}")
        written = self._written(k)
        return Cause("unknown", self._tried(k)) if written is None else Cause(written.kind, written.evidence)

    def _written(self, k: int) -> Written | None:
        return next((cause for cause in self.causes if cause.of(self.verdicts[k].claim.says)), None)

    def became(self, k: int) -> str:
        """The same in words."""
        return MEANING.get(self.kind(k), self.kind(k))

    def explained(self) -> dict[tuple[str, str], list[str]]:
        """The texts of claims that do not hold, by verdict and cause, with explained claims that were not run."""
        found: dict[tuple[str, str], list[str]] = {}
        for k, v in enumerate(self.verdicts):
            why = self.cause(k).evidence if v.status == "not confirmed" else self.why_not_run(k)
            if why:
                found.setdefault((self.became(k), " ".join(why.split())), []).append(v.claim.says)
        return found

    def why_not_run(self, k: int) -> str:
        """The recorded explanation of claim k, if it was not run."""
        written = self._written(k) if self.verdicts[k].status == "not run" else None
        return written.evidence if written else ""

    def _tried(self, k: int) -> str:
        varied = [form.variant for form in self.choices() if form.judged[k].status != "not run"]
        return f"varied: {', '.join(f'`{name}`' for name in dict.fromkeys(varied))}" if varied else "nothing varied"

    def idle_causes(self) -> list[Written]:
        """Recorded causes that match no claim that needs one."""
        lacking = [v.claim.says for v in self.verdicts if v.status != "confirmed"]
        return [cause for cause in self.causes if not any(map(cause.of, lacking))]

    def command(self, form: Form) -> str:
        """The command that repeats the stored runs of a form."""
        shape = ["--quick" if form.quick else "--full", *(["--variant", form.variant] if form.variant else [])]
        every = form.file.form(quick=form.quick, variant=form.variant or None)
        cases = [part for case in form.runs for part in ("--case", case)] if {*form.runs} != {*every} else []
        known = {label for case in form.runs for label in form.file.labels()[case]}
        labels = dict.fromkeys(label for results in form.results.values() for label in results.labels())
        only = [part for label in labels for part in ("--only", label)] if {*labels} < known else []
        most = max(len(run.seeds) for run in form.runs.values())
        seeds = ["--seeds", str(most)] if most != max(len(case.seeds) for case in form.cases.values()) else []
        return join(["proxfed", "reproduce", self.name, *shape, *cases, *only, *seeds])

    def counts(self, *ranks: str) -> Counts:
        """Counts of the claims of these ranks; without ranks, of all claims."""
        asked = [k for k, verdict in enumerate(self.verdicts) if not ranks or verdict.claim.rank in ranks]
        return Counter((self.kind(k), self.scale(k)) for k in asked)

    def kind(self, k: int) -> str:
        """The outcome of claim k in a word: confirmed, not run, or its cause."""
        status = self.verdicts[k].status
        return self.cause(k).kind if status == "not confirmed" else status


def gather(results: Path) -> dict[str, list[Reproduction]]:
    """The experiments of each paper."""
    return {paper: [reproduction(results, name) for name in names] for paper, names in papers().items()}


def reproduction(results: Path, name: str) -> Reproduction:
    """One experiment with its stored results."""
    file, kept = PaperFile(name), results_store.read(results, name)
    known = [*file.whole.cases] or [""]
    others = {other: results_store.read(results, f"{name.rpartition('/')[0]}/{other}") for other in file.labels_beside}
    found = {}
    for variant in [None, *file.paper.variants]:
        for quick in (False, True):
            called = form_name(quick, variant)
            runs = {case: kept[place] for case in known if (place := Place.of(called, case)) in kept}
            if runs:
                beside = {
                    other: {place.case: run for place, run in theirs.items() if place.form_name == called}
                    for other, theirs in others.items()
                }
                found[called] = Form(file, called, runs, beside)
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
