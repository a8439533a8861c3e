"""The page of one experiment: its figures, our numbers beside the paper's, and each claim in each form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from proxfed.harness.experiment import shipped
from proxfed.harness.results import Results
from proxfed.harness.settings_diff import flat
from proxfed.papers.comparisons import compare
from proxfed.papers.open_settings import open_settings
from proxfed.papers.paper_schema import Diverges, Figure, Reported
from proxfed.papers.reproduce import compare_all
from proxfed.papers.verdicts import Form, Reproduction
from proxfed.report.columns import show
from proxfed.report.markdown import from_to, plain_text, table
from proxfed.report.plots import make_panels
from proxfed.report.targets import NEVER


def page(entry: Reproduction) -> str:
    """The whole page of one experiment."""
    experiment = entry.file.whole
    parts = [
        f"# {entry.name}: {entry.file.paper.figure}\n",
        f"{plain_text(entry.file.paper.title)} ([all results](../../results.md))\n",
    ]
    if experiment.description:
        parts.append(f"{plain_text(experiment.description)}\n")
    if not entry.forms:
        parts.append(f"Not run; `proxfed reproduce {entry.name}` runs it, where its data are.\n")
        lines = [["not run", plain_text(c.says), plain_text(entry.file.where(c))] for c in entry.file.claims]
        parts.append(table(["", "the paper says", "where"], lines))
    for name, figures in figures_by_form(entry).items():
        which = f"In the {name} form:\n\n" if name != entry.forms[0].name else ""
        parts.append(which + "".join(f"![{figure.name}]({figure.name}.svg)\n" for figure in figures))  # in a row
    if entry.notes:
        parts.append(f"{entry.notes}\n")
    for form in [*entry.forms, *entry.variants]:
        body = [f"{_about(entry, form)}\n", _numbers(form), _claims(form)]
        parts += body if form in entry.forms[:1] else _folded(form, body)
    if explained := entry.explained():
        lines = [[became, "<br>".join(map(plain_text, c)), plain_text(why)] for (became, why), c in explained.items()]
        parts += ["Why claims are not confirmed:\n", table(["cause", "the paper says", "evidence"], lines)]
    if chosen := open_settings(entry.file.table, shipped()[entry.name].read_text(encoding="utf-8")):
        parts.append("What we chose where the paper leaves a setting open, or where we could not follow it:\n")
        parts.append("".join(f"- `{key} = {value}`: {plain_text(why)}\n" for key, value, why in chosen))
    return "\n".join(part for part in parts if part)


def figures_by_form(entry: Reproduction) -> dict[str, list[Figure]]:
    """For each form, the figures that no earlier form has, with the names of their files."""
    found: dict[str, list[Figure]] = {}
    for figure in entry.file.paper.figures:
        drawn = (form for form in entry.forms if any(panel.lines for panel in make_panels(figure, form.results)))
        if form := next(drawn, None):
            named = figure.model_copy(update={"name": f"{entry.name.partition('/')[2]}-{figure.name}"})
            found.setdefault(form.name, []).append(named)
    return found


def _folded(form: Form, body: list[str]) -> list[str]:
    """Under a line that opens it."""
    counts = Counter(v.status for v in form.judged)
    claims = ", ".join(f"{n} {status}" for status in ("confirmed", "not confirmed", "not run") if (n := counts[status]))
    shape = form.name.partition("+")[0]
    name = f"{_kind(form)}, {form.variant}, {shape} form" if form.variant else f"{shape.capitalize()} form"
    return [f"<details>\n<summary>{name}: {claims}</summary>\n", *body, "</details>\n"]


def _kind(form: Form) -> str:
    return "Against the paper's setting" if form.departs else "Another choice"


# ---- one form -------------------------------------------------------------------------------------------------------


def _about(entry: Reproduction, form: Form) -> str:
    """The run: its differences from the paper, its time, its machine, and the command."""
    if form.variant:
        settings = ", ".join(_settings(entry, entry.file.paper.variants[form.variant]))
        scale = f"**{_kind(form)}, `{form.variant}`**, in the {form.name.partition('+')[0]} form: {settings}."
    elif not form.quick:
        scale = "**Full form**, at the paper's scale."
    else:
        less = _settings(entry, entry.file.paper.quick)
        if entry.file.paper.quick_cases:
            less.append(f"{len(entry.file.paper.quick_cases)} of the {len(entry.file.whole.cases)} cases")
        scale = f"**Quick form**: {', '.join(less)}." if less else "**Quick form**, which is the whole experiment."
    return f"{scale} {_how(form)} Run it again: `{entry.command(form)}`."


def _settings(entry: Reproduction, changes: Mapping[str, Any]) -> list[str]:
    """Each change beside the file's value, then the changes of single cases."""
    changes = {k: v for k, v in changes.items() if k != "cases"} | {
        f"{key} ({case})": value for case, own in changes.get("cases", {}).items() for key, value in own.items()
    }
    full = flat(entry.file.table, called="name") | flat(entry.file.table)
    instead = {key: f" instead of `{_value(full[key])}`" for key in changes if key in full}
    return [f"`{key} = {_value(value)}`{instead.get(key, '')}" for key, value in changes.items()]


def _how(form: Form) -> str:
    held = [run.sizes for run in form.runs.values() if run.sizes]
    versions = dict.fromkeys(_versions(run.versions) for run in form.runs.values())
    changed = [line for case in form.runs for line in form.changed(case).items()]
    others = sorted({f"`{key} = {_value(then)}`" for key, (then, _) in changed})
    missing = [case for case in form.file.whole.cases if case not in form.runs]
    parts = [
        f"{_seeds(form)};",
        f"{from_to(map(len, held))} clients with {from_to(map(sum, held))} samples in all;" if held else "",
        f"{_computing(form)};",
        f"{'; '.join(versions)}.",
        f"Run with settings that the file no longer has: {', '.join(others)}." if others else "",
        f"Cases that were not run: {plain_text(', '.join(missing))}." if missing else "",
    ]
    return " ".join(part for part in parts if part)


def _computing(form: Form) -> str:
    changes = form.file.paper.variants[form.variant] if form.variant else {}
    if changes and all(key.partition(".")[0] == "time" for key in changes):
        return "the same training, with other times"
    last = {
        (case, row["algorithm"], row["seed"]): row.get("wall_seconds") or 0.0
        for case, results in form.results.items()
        for row in results.rows
    }
    return f"{show(sum(last.values()), 'seconds')} of computing without evaluations"


def _seeds(form: Form) -> str:
    """The seeds of most cases, then the cases with other seeds."""
    by_case = {case: tuple(run.seeds) for case, run in form.runs.items()}
    most, *others = Counter(by_case.values()).most_common()
    text = f"{'Seeds' if len(most[0]) > 1 else 'Seed'} {', '.join(map(str, most[0]))}"
    for seeds, _ in others:
        cases = [case for case, has in by_case.items() if has == seeds]
        text += f", but {', '.join(map(str, seeds))} of {plain_text(', '.join(cases))}"
    return text


def _versions(versions: Mapping[str, Any]) -> str:
    names = [f"{name} {versions[name]}" for name in ("proxfed", "python", "torch", "numpy") if name in versions]
    threads = versions.get("threads")
    return ", ".join(
        [
            *names,
            f"{threads} thread{'' if threads == 1 else 's'}",
            str(versions.get("processor") or f"{versions.get('machine', 'machine')}, processor not recorded"),
        ]
    )


def _numbers(form: Form) -> str:
    """Our numbers at the end and at the targets, beside the paper's."""
    paper = {(c.case, c.measure, c.label): c.printed for c in compare_all(form.file, form.results)}
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
    several = len(form.file.whole.cases) > 0
    reported = [measure for measure in ours if any(m == measure for _, m, _ in paper)]
    head = ["case"] * several + ["algorithm"]
    for measure in ours:
        head += [f"{plain_text(measure)}, ours", "the paper's"] if measure in reported else [plain_text(measure)]
    lines = []
    for case, label in ((case, label) for case, line in labels.items() for label in line):
        line = [plain_text(case)] * several + [plain_text(label) + _diverged(form.results[case], label)]
        for measure, cells in ours.items():
            line.append(cells.get((case, label), ""))
            if measure in reported:
                line.append(plain_text(paper.get((case, measure, label), "")))
        lines.append(line)
    never = f"\nTargets that no algorithm reached here: {plain_text(', '.join(missed))}.\n" if missed else ""
    return table(head, lines) + never


def _asked(form: Form) -> Iterator[Reported]:
    """The paper's measures, each once: last and best, and the cost of reaching a target of the form."""
    file = form.file
    claims = [c for c in file.claims if not isinstance(c, Diverges) and c.place is None]
    targets = [(m, target) for case in form.cases.values() for m, line in case.targets.items() for target in line]
    asked = [(q.measure, q.target, q.axis, q.best) for q in (*file.reported, *claims)]
    asked += [(f.y, None, "round", False) for f in file.paper.figures]
    asked += [(measure, target, "round", False) for measure, target in targets]
    ends = [(measure, None, "round", best) for measure, target, _, best in asked if target is None]
    ways = sorted(a for a in asked if a[1] is not None)
    for measure, target, axis, best in dict.fromkeys([*ends, *ways]):
        yield Reported(measure=measure, target=target, axis=axis, best=best, values={})


def _diverged(results: Results, label: str) -> str:
    lost, seeds = len(results.diverged(label)), len(results.histories(label))
    return "" if not lost else " (diverged)" if lost == seeds else f" ({lost} of {seeds} seeds diverged)"


def _claims(form: Form) -> str:
    marked = {"not confirmed": "**not confirmed**"}
    lines = [
        [marked.get(v.status, v.status), *map(plain_text, (v.claim.says, form.file.where(v.claim), v.found))]
        for v in form.judged
    ]
    return table(["", "the paper says", "where", "ours"], lines)


def _value(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
