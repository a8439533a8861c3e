"""Write docs/results.md and its figures from what is kept in results/: every experiment and claim of the papers.

python tools/make_results.py            write them
python tools/make_results.py --check    fail if they are not up to date, or a claim that does not hold is not explained

A paragraph about an experiment, in words, stands in results/PAPER-EXPERIMENT/notes.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kept import Entry, Form, gather, left_open

from proxfed.errors import ProxfedError
from proxfed.harness.schema import Reported, read_table, shipped
from proxfed.harness.settings_diff import changed, flat
from proxfed.papers.claims import compare
from proxfed.papers.figures import write_figures
from proxfed.papers.reproduce import as_recorded, comparisons
from proxfed.report.columns import show
from proxfed.report.targets import NEVER, Results

ROOT = Path(__file__).parents[1]

STATUSES = ("confirmed", "not run", "not confirmed")
HOLD_ELSEWHERE = "of these, confirmed with another choice"
EARLY = "of these, early to say"
COLUMNS = (*STATUSES, HOLD_ELSEWHERE, EARLY)

INTRODUCTION = """\
# Results

What came of every experiment and every claim of the papers. `make results` writes this page from the rows that are kept
in `results/`; `proxfed reproduce PAPER/EXPERIMENT` runs an experiment again. Numbers are medians over the seeds, with
the smallest and the largest seed behind them (all seeds have the same partition of the data); `> 300` means that a
target was not reached in 300. The summary counts a claim by the full form if that was run and can tell, and else by the
quick form. Of the claims that are not confirmed, its last columns say how many hold, in all the same cases and with
three seeds, when a setting that the paper leaves open is chosen differently, and for how many it is early to say: fewer
than three seeds speak against them, or no such setting has been varied yet. Variants that change what the paper states
are marked as such and count nowhere. CIFAR-10 is 20,000 of its 50,000 training images here. Lines that begin with a
triangle open on a click: the quick form where there is a full one, and other choices.
"""


# ---- the page -------------------------------------------------------------------------------------------------------


def page(found: Mapping[str, list[Entry]]) -> str:
    parts = [INTRODUCTION, _summary([entry for entries in found.values() for entry in entries])]
    for entries in found.values():
        parts.append(f"## {_text(entries[0].about.title)}\n")
        parts += [_section(entry) for entry in entries]
    return "\n".join(parts)


def _summary(entries: Iterable[Entry]) -> str:
    lines, total = [], Counter[str]()
    for entry in entries:
        counts = Counter(verdict.status for verdict in entry.verdicts())
        counts.update({HOLD_ELSEWHERE: entry.elsewhere(), EARLY: len(list(entry.early()))})
        total += counts
        forms = ", ".join(f"{form.name} ({_how_many(form)})" for form in entry.forms) or "not run"
        link = f"[`{entry.name}`](#{_anchor(_heading(entry))})"
        lines.append([link, _text(entry.about.figure), forms, *(str(counts[column] or "") for column in COLUMNS)])
    lines.append(["all", "", "", *(str(total[column]) for column in COLUMNS)])
    head = [*(f"claims {s}" for s in STATUSES), HOLD_ELSEWHERE, EARLY]
    return _table(["experiment", "in the paper", "form (seeds)", *head], lines)


def _how_many(form: Form) -> str:
    """How many seeds its cases have, at least and at most."""
    return _range(len(seeds) for seeds in form.seeds.values())


def _range(numbers: Iterable[int]) -> str:
    found = {*numbers}
    return " to ".join(f"{number:,}" for number in sorted({min(found), max(found)}))


def _heading(entry: Entry) -> str:
    return f"{entry.name}: {entry.about.figure}"


def _anchor(heading: str) -> str:
    """As the sites that show Markdown make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _section(entry: Entry) -> str:
    parts = [f"### {_heading(entry)}\n"]
    if entry.experiment.description:
        parts.append(f"{_text(entry.experiment.description)}\n")
    if not entry.forms:
        parts.append(f"Not run; `proxfed reproduce {entry.name}` does it, where its data are.\n")
        parts.append(_table(["", "the paper says"], [["not run", _text(c.says)] for c in entry.experiment.claims]))
    for name, figures in entry.figures.items():
        less = f"In the {name} form:\n\n" if name != entry.forms[0].name else ""
        parts.append(less + "".join(f"![{figure.name}](results/{figure.name}.svg)\n" for figure in figures))  # in a row
    if entry.notes:
        parts.append(f"{entry.notes}\n")
    for form in [*entry.forms, *entry.variants]:
        body = [f"{_about(entry, form)}\n", _numbers(form), _claims(form)]
        parts += body if form is entry.forms[0] else _folded(form, body)
    if early := [f"- {_text(says)}: {_text(why)}\n" for says, why in entry.early()]:
        parts.append(f"Early to call not confirmed:\n\n{''.join(early)}")
    open_ = left_open(read_table(entry.name)[0], shipped()[entry.name].read_text())
    if open_:
        parts.append("Ours, where the paper leaves it open or we could not follow it:\n")
        parts.append("".join(f"- `{key} = {value}`: {_text(why)}\n" for key, value, why in open_))
    return "\n".join(part for part in parts if part)


def _folded(form: Form, body: list[str]) -> list[str]:
    """Under a line that opens it."""
    counts = Counter(v.status for v in form.judged)
    claims = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    shape = form.name.partition("+")[0]
    name = f"{_kind(form)}, {form.variant}, {shape} form" if form.variant else f"{shape.capitalize()} form"
    return [f"<details>\n<summary>{name}: {claims}</summary>\n", *body, "</details>\n"]


def _kind(form: Form) -> str:
    return "Against the paper's setting" if form.departs else "Another choice"


# ---- one form -------------------------------------------------------------------------------------------------------


def _about(entry: Entry, form: Form) -> str:
    """What was run, in which way it is less than the paper or another choice, how long it took and on what."""
    if form.variant:
        settings = ", ".join(_settings(entry, entry.about.variants[form.variant]))
        scale = f"**{_kind(form)}, `{form.variant}`**, in the {form.name.partition('+')[0]} form: {settings}."
    elif not form.quick:
        scale = "**Full form**, at the paper's scale."
    else:
        less = _settings(entry, entry.about.quick)
        if entry.about.quick_cases:
            less.append(f"{len(entry.about.quick_cases)} of the {len(entry.experiment.cases)} cases")
        scale = f"**Quick form**: {', '.join(less)}." if less else "**Quick form**, which is all of it."
    return f"{scale} {_how(form)}"


def _settings(entry: Entry, changes: Mapping[str, Any]) -> list[str]:
    """Each change beside what the file has."""
    table, _ = read_table(entry.name)
    full = flat(table, called="name") | flat(table)
    instead = {key: f" instead of `{_value(full[key])}`" for key in changes if key in full}
    return [f"`{key} = {_value(value)}`{instead.get(key, '')}" for key, value in changes.items()]


def _how(form: Form) -> str:
    held = [holdings for folder in form.folders().values() if (holdings := folder.clients()) is not None]
    versions = dict.fromkeys(_versions(folder.versions()) for folder in form.folders().values())
    others = sorted({text for case in form.results for text in _changed(form, case)})
    missing = [case for case in form.part.experiment.cases if case not in form.results]
    said = [
        f"{_seeds(form)};",
        f"{_range(len(h.sizes) for h in held)} clients with {_range(sum(h.sizes) for h in held)} samples in all;",
        f"{_computing(form)};",
        f"{'; '.join(versions)}.",
        f"Not as the file has it now: {', '.join(others)}." if others else "",
        f"Cases that were not run: {_text(', '.join(missing))}." if missing else "",
    ]
    return " ".join(part for part in said if part)


def _computing(form: Form) -> str:
    about = form.part.experiment.paper
    changes = about.variants[form.variant] if about is not None and form.variant else {}
    if changes and all(key.partition(".")[0] == "time" for key in changes):
        return "the same training, with other times"
    last = {
        (case, row["algorithm"], row["seed"]): row.get("wall_seconds") or 0.0
        for case, results in form.results.items()
        for row in results.rows
    }
    return f"{show(sum(last.values()), 'seconds')} of computing, evaluations apart"


def _seeds(form: Form) -> str:
    """Those of most cases, and then the cases that have others."""
    most, *others = Counter(tuple(seeds) for seeds in form.seeds.values()).most_common()
    text = f"{'Seeds' if len(most[0]) > 1 else 'Seed'} {', '.join(map(str, most[0]))}"
    for seeds, _ in others:
        cases = [case for case, has in form.seeds.items() if tuple(has) == seeds]
        text += f", but {', '.join(map(str, seeds))} of {_text(', '.join(cases))}"
    return text


def _versions(versions: Mapping[str, Any]) -> str:
    names = [f"{name} {versions[name]}" for name in ("proxfed", "python", "torch", "numpy") if name in versions]
    threads = versions.get("threads")
    return ", ".join([*names, f"{threads} thread{'' if threads == 1 else 's'}", str(versions.get("machine", ""))])


def _changed(form: Form, case: str) -> Iterator[str]:
    """Settings that the kept run had otherwise."""
    for key, (then, _) in changed(form.folders()[case].config(), as_recorded(form.part.cases[case])).items():
        yield f"`{key} = {_value(then)}`"


def _numbers(form: Form) -> str:
    """Ours at the end and at the targets, beside what the paper reports."""
    paper = {(c.case, c.measure, c.label): c.printed for c in comparisons(form.part)}
    labels = {case: results.labels() for case, results in form.results.items()}
    for case, _, label in paper:
        if case in labels and label not in labels[case]:
            labels[case].append(label)
    known = dict.fromkeys(label for line in labels.values() for label in line)
    ours: dict[str, dict[tuple[str, str], str]] = {}
    missed = []
    for asked in _asked(form):
        every = compare(asked.model_copy(update={"values": dict.fromkeys(known, "")}), form.results)
        found = [c for c in every if c.ours]
        if form.quick and all(value == NEVER for c in found for value in c.ours):
            missed += [c.measure for c in found[:1]]
        else:
            for c in found:
                ours.setdefault(c.measure, {})[c.case, c.label] = c.found
    if not ours:
        return ""
    several = len(form.part.experiment.cases) > 0
    reported = [measure for measure in ours if any(m == measure for _, m, _ in paper)]
    head = ["case"] * several + ["algorithm"]
    for measure in ours:
        head += [f"{_text(measure)}, ours", "the paper's"] if measure in reported else [_text(measure)]
    lines = []
    for case, label in ((case, label) for case, line in labels.items() for label in line):
        line = [_text(case)] * several + [_text(label) + _diverged(form.results[case], label)]
        for measure, cells in ours.items():
            line.append(cells.get((case, label), ""))
            if measure in reported:
                line.append(_text(paper.get((case, measure, label), "")))
        lines.append(line)
    nobody = f"\nNot reached by anybody here: {_text(', '.join(missed))}.\n" if missed else ""
    return _table(head, lines) + nobody


def _asked(form: Form) -> Iterator[Reported]:
    """The measures that the paper speaks of, each once: at the end, and where they reach a target of the form."""
    experiment = form.part.experiment
    figures = experiment.paper.figures if experiment.paper else []
    claims = [c.in_form(form.quick) for c in experiment.claims if c.round is None and c.diverges is None]
    targets = [(m, target) for case in form.part.cases.values() for m, line in case.targets.items() for target in line]
    asked = [(r.measure, r.target, r.axis) for r in experiment.reported]
    asked += [(f.y, None, "round") for f in figures]
    asked += [(c.measure, c.target, c.axis) for c in claims]
    asked += [(measure, target, "round") for measure, target in targets]
    ends = [(measure, None, "round") for measure, target, _ in asked if target is None]
    ways = sorted(a for a in asked if a[1] is not None)
    for measure, target, axis in dict.fromkeys([*ends, *ways]):
        yield Reported(measure=measure, target=target, axis=axis, values={})


def _diverged(results: Results, label: str) -> str:
    lost, seeds = len(results.diverged(label)), len(results.histories(label))
    return "" if not lost else " (diverged)" if lost == seeds else f" ({lost} of {seeds} seeds diverged)"


def _claims(form: Form) -> str:
    marked = {"not confirmed": "**not confirmed**"}
    lines = [[marked.get(v.status, v.status), _text(v.claim.says), _text(v.found)] for v in form.judged]
    return _table(["", "the paper says", "ours"], lines)


# ---- Markdown -------------------------------------------------------------------------------------------------------


def _table(head: list[str], lines: list[list[str]]) -> str:
    if not lines:
        return ""
    rule = "|".join(["", *("---" for _ in head), ""])
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(line)} |" for line in lines), ""])


def _text(text: str) -> str:
    """Plain words in a cell, whatever signs they have."""
    return re.sub(r"([|*<\\\[\]])", r"\\\1", " ".join(text.split()))


def _value(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


# ---- files ----------------------------------------------------------------------------------------------------------


def write(found: Mapping[str, list[Entry]], docs: Path) -> None:
    """The page and its figures; figures of other names are removed."""
    (docs / "results").mkdir(parents=True, exist_ok=True)
    for old in set((docs / "results").glob("*.svg")) - _figures(found, docs):
        old.unlink()
    for entry in (entry for entries in found.values() for entry in entries):
        for form in entry.forms:
            write_figures(entry.figures.get(form.name, []), form.results, docs / "results", formats=("svg",))
    (docs / "results.md").write_text(page(found))


def problems(found: Mapping[str, list[Entry]], kept: Path, docs: Path) -> Iterator[str]:
    """What is wrong with what is there. Figures are drawn with the page, so it is enough that they are there."""
    path = docs / "results.md"
    if not path.exists() or path.read_text() != page(found):
        yield "docs/results.md is not up to date, run `make results`"
    there, wanted = set((docs / "results").glob("*.svg")), _figures(found, docs)
    for figure in sorted(there ^ wanted):
        yield f"docs/results/{figure.name} is {'missing' if figure in wanted else 'left over'}, run `make results`"
    forms = [form for entries in found.values() for entry in entries for form in [*entry.forms, *entry.variants]]
    known = {folder.path for form in forms for folder in form.folders().values()}
    for folder in sorted({path.parent for path in kept.rglob("config.toml")} - known):
        where = folder.relative_to(kept).as_posix()
        yield f"results/{where} is not of a form, a variant and cases that its experiment has"
    for entry in (entry for entries in found.values() for entry in entries):
        failed = [(form, v) for form in [*entry.forms, *entry.variants] for v in form.judged]
        for form, v in failed if not entry.notes else []:
            if v.status == "not confirmed":
                yield (
                    f"{entry.name} ({form.name}): the claim {v.claim.says!r} is not confirmed; "
                    f"results/{entry.stem}/notes.md must say why"
                )


def _figures(found: Mapping[str, list[Entry]], docs: Path) -> set[Path]:
    drawn = [entry.figures.values() for entries in found.values() for entry in entries]
    shown = [figure.name for by_form in drawn for figures in by_form for figure in figures]
    return {docs / "results" / f"{name}.svg" for name in shown}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only look")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="what is kept")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the page goes")
    asked = parser.parse_args(arguments)
    try:
        found = gather(asked.results)
        if not asked.check:
            write(found, asked.docs)
    except ProxfedError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    wrong = list(problems(found, asked.results, asked.docs))
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong and asked.check else 0


if __name__ == "__main__":
    sys.exit(main())
