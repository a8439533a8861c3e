"""The results in Markdown: a summary of what holds, which is committed, and a page with figures for each experiment.

`summary` is docs/results.md; `write_pages` builds the others, docs/results/PAPER/EXPERIMENT.md, for the docs site.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from proxfed.files import write
from proxfed.papers.experiment_page import figures_by_form, page
from proxfed.papers.results_store import notes
from proxfed.papers.verdicts import Counts, Reproduction, total
from proxfed.report.markdown import from_to, plain_text, table
from proxfed.report.plots import write_figures

Found = Mapping[str, list[Reproduction]]
"""The experiments of each paper."""

COUNTED = ("main", "hold", "reading", "scale", "settings", "unknown", "not run", "minor", "ours")
"""What `counted` counts."""

INTRODUCTION = """\
# Results

What holds of the papers' claims when their experiments are run again. `proxfed results show PAPER` prints the same on a
terminal. The page of an experiment names the command that makes its numbers again, form by form: `proxfed reproduce
PAPER/EXPERIMENT`, with `--quick` or `--full` and `--variant NAME`; `proxfed results keep runs/reproduce` keeps them in
`results/`, and `make results` writes this page from what is kept. `proxfed results check` sees settings of a file that
have changed since. On the same kind of processor numbers come out to the bit. On another one sums round differently,
which stays rounding where gradients are full, and becomes some per cent of a curve, or some rounds to a target, with
minibatches of a network or with compressors that pick entries.

A claim is confirmed, it **holds**, by medians over three seeds or more (one, where nothing is drawn), in every case
that was run with as many. The full form, at the paper's scale, decides where it was run and went far enough, and the
quick form where it did not. One that does not hold has one of four causes, with its evidence on the page of the
experiment:

- **reading**: it holds, in the same cases and with as many seeds, under a reading that the paper leaves open;
- **scale**: what was run is smaller than the paper's, and that decides it;
- **settings**: the paper's number cannot be had with the paper's settings; an independent loop agrees;
- **unknown**: none of these could be shown.

**Not run**: no run with three seeds has reached far enough to tell. All of these count the main claims. Minor claims
follow from the settings, or nearly, and ours are what we say beside the paper: of both, how many are confirmed.
Variants that contradict what a paper states are shown on the pages of the experiments and counted nowhere. All seeds
have the same partition of the data.
"""


# ---- the summary ----------------------------------------------------------------------------------------------------


def summary(found: Found, results: Path) -> str:
    """docs/results.md: what holds, paper by paper, after what is said about a paper in `results`."""
    lines = [[f"[{paper}](#{paper})", *counted(entries)] for paper, entries in found.items()]
    lines.append(["all", *counted([entry for entries in found.values() for entry in entries])])
    parts = [INTRODUCTION, table(["paper", *COUNTED], lines)]
    for paper, entries in found.items():
        parts += [f"## {paper}\n", f"{plain_text(entries[0].about.title)}\n"]
        parts += [f"{text}\n" for text in (notes(results, paper), what_holds(entries)) if text]
        rows = [[_link(entry), plain_text(entry.about.figure), _runs(entry), *counted([entry])] for entry in entries]
        parts.append(table(["experiment", "in the paper", "form (seeds)", *COUNTED], rows))
    return "\n".join(parts)


def counted(entries: Iterable[Reproduction]) -> list[str]:
    """The main claims by what became of them; of the minor ones and of ours, how many are confirmed."""
    entries = list(entries)
    main, *others = (total(entry.counts(rank) for entry in entries) for rank in ("main", "minor", "ours"))
    aside = [f"{c.confirmed}/{c.claims}" if c.claims else "" for c in others]
    return [*(str(number or "") for number in (main.claims, *main)), *aside]


def what_holds(entries: Iterable[Reproduction]) -> str:
    """A line about a paper: how many main claims hold, and where all of them do; of ours, if it has no others."""
    entries = list(entries)
    ours = not total(entry.counts("main") for entry in entries).claims
    counts = [(entry.about.figure, entry.counts("ours" if ours else "main")) for entry in entries]
    c = total(some for _, some in counts)
    parts = [f"**{c.confirmed} of {c.claims} {'claims of ours' if ours else 'main claims'} hold**"]
    parts += [f"{c.not_confirmed} {'does' if c.not_confirmed == 1 else 'do'} not"] if c.not_confirmed else []
    parts += [f"{c.not_run} {'was' if c.not_run == 1 else 'were'} not run"] if c.not_run else []
    where: dict[str, list[str]] = {}
    for figure, some in counts:
        if some.claims:
            where.setdefault(_how_many_hold(some), []).append(_of_all(figure, some))
    words = ("All hold", "Some hold", "None hold", "Not run")
    places = [f"{word}: {'; '.join(where[word])}." for word in words if word in where]
    return " ".join([f"{', '.join(parts)}.", *places])


def _how_many_hold(counts: Counts) -> str:
    if counts.not_run == counts.claims:
        return "Not run"
    return "All hold" if counts.confirmed == counts.claims else "Some hold" if counts.confirmed else "None hold"


def _of_all(figure: str, c: Counts) -> str:
    """The figure, and how many of its claims hold if it is some of them."""
    shown = plain_text(figure)
    return f"{shown} ({c.confirmed} of {c.claims})" if 0 < c.confirmed < c.claims else shown


def _link(entry: Reproduction) -> str:
    return f"[{entry.name.partition('/')[2]}](results/{entry.name}.md)"


def _runs(entry: Reproduction) -> str:
    """The forms that are kept, with how many seeds their cases have, at least and at most."""
    seeds = {form.name: from_to(len(run.seeds) for run in form.runs.values()) for form in entry.forms}
    return ", ".join(f"{name} ({some})" for name, some in seeds.items()) or "not run"


# ---- files ----------------------------------------------------------------------------------------------------------


def write_summary(found: Found, results: Path, path: Path) -> None:
    """docs/results.md."""
    write(path, summary(found, results), folders=True)


def write_pages(found: Found, folder: Path) -> list[Path]:
    """FOLDER/PAPER/EXPERIMENT.md and its figures, for every experiment; others that are there are removed."""
    written: list[Path] = []
    for entry in (entry for entries in found.values() for entry in entries):
        path = folder / f"{entry.name}.md"
        write(path, page(entry), folders=True)
        written.append(path)
        figures, results = figures_by_form(entry), {form.name: form.results for form in entry.forms}
        for name, some in figures.items():
            written += write_figures(some, results[name], path.parent, formats=("svg",))
    for old in {path for ending in ("md", "svg") for path in folder.glob(f"*/*.{ending}")} - {*written}:
        old.unlink()
    return written


def problems(found: Found, results: Path, path: Path) -> Iterator[str]:
    """What is wrong with the summary at `path` and with what is kept, in sentences."""
    if not path.exists() or path.read_text(encoding="utf-8") != summary(found, results):
        yield f"{path} is not up to date: run `make results`"
    for entry in (entry for entries in found.values() for entry in entries):
        for place in entry.unknown:
            yield f"{entry.name}: results are kept of {place}, which its file does not have"
        for form in [*entry.forms, *entry.variants]:
            for case in form.runs:
                where = f"{entry.name} ({', '.join(filter(None, (form.name, case)))})"
                for key, (then, now) in form.changed(case).items():
                    yield f"{where}: rows are kept of {key} = {then!r}, and the file now has {now!r}: run it again"
        for cause in entry.idle_causes():
            yield f"{entry.name}: a cause is written down of {cause.claims}, which no claim needs"
        failed = [(form, v) for form in [*entry.forms, *entry.variants] for v in form.judged]
        for form, v in failed if not entry.notes else []:
            if v.status == "not confirmed":
                where = f"results/{entry.name}.md must say why"
                yield f"{entry.name} ({form.name}): the claim {v.claim.says!r} is not confirmed; {where}"
