"""The results in Markdown: a committed summary of verdicts, and a page with figures for each experiment.

`summary` is docs/results.md; `write_pages` builds the others, docs/results/PAPER/EXPERIMENT.md, for the docs site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from proxfed.files import write
from proxfed.papers.causes import MEANING as CAUSES
from proxfed.papers.experiment_page import figures_by_form, page
from proxfed.papers.results_store import notes
from proxfed.papers.verdicts import Counts, Reproduction, count
from proxfed.report.markdown import from_to, plain_text, table
from proxfed.report.plots import write_figures

Found = Mapping[str, list[Reproduction]]
"""The experiments of each paper."""

BECAME = {"hold": "confirmed", **{kind: kind for kind in CAUSES}, "not run": "not run"}
"""The columns of the main claims' verdicts."""
COLUMNS = ("main", *BECAME, "minor", "ours")
SCALES = ("full", "smaller", "own")
FIRST_SCREEN = 5
"""The most lines of a paper's notes on the first screen."""

INTRODUCTION = """\
# Results

Which of the papers' claims hold in our own runs? This page begins with what you may believe of each paper, in five
lines. A table with all counts follows, then [how claims are judged](#how-claims-are-judged), then the experiments of
each paper. A count such as 31+16+5 means: 31 claims by runs at the paper's scale, 16 by smaller runs, 5 on a problem of
ours.

    proxfed results show fedcef      # one paper's claims with their causes
"""

RULES = """\
## How claims are judged

A claim **holds** if the median over at least three seeds (one, if nothing is random) confirms it in every case that was
run with so many seeds. The full form, at the paper's scale, decides if it was run and went far enough. Otherwise a
smaller form decides; such claims are counted separately. So are statements for which the paper has no experiment and
which we show on a small problem of ours. Three things decide nothing: runs on another data set or with another model,
runs with settings that contradict the paper, and being ahead of a method that diverged.

A claim that does not hold has one of four causes, with its evidence on the page of the experiment:

- **reading**: it holds under another reading that the paper allows, in the same form and cases with as many seeds.
  One reading is chosen per experiment: the one with which most claims hold;
- **scale**: our run is smaller than the paper's, and that decides it;
- **settings**: the paper's settings do not give the paper's number, in a run at the paper's scale;
- **unknown**: none of these could be shown.

**Not run** means that no run with three seeds went far enough; the page of the experiment says what it would take.
**Minor** claims follow from the settings, or nearly. Claims of **ours** add to the paper's. For both, the table says
how many hold. A claim that compares two experiments is judged only on runs with the same data and as many rounds. In
the kept rows all seeds share one partition of the data, so their spread does not include that of partitions; the
variant `own_partitions` of DEPOSITUM's Table III, the only table with a printed spread, draws one for each seed.

The page of an experiment names the command for its numbers: `proxfed reproduce PAPER/EXPERIMENT` with `--quick` or
`--full` and `--variant NAME`. `proxfed results keep runs/reproduce` keeps them in `results/`, `make results` writes
this page, and `proxfed results check` finds settings that have changed since. Library versions, threads and machine are
kept with every run, and the model of the processor with newer ones. Other processors and libraries round sums
differently. With full gradients the difference stays at rounding level. With minibatches of a network, or with
compressors that select entries, it can grow to a few per cent of a curve, or a few rounds to a target.
"""


# ---- the summary ----------------------------------------------------------------------------------------------------


def summary(found: Found, results: Path) -> str:
    """docs/results.md: the conclusions, the counts, how claims are judged, and then paper by paper."""
    said = {paper: notes(results, paper).partition("\n\n") for paper in found}
    lines = [[f"[{paper}](#{paper})", *counted(entries)] for paper, entries in found.items()]
    lines.append(["all", *counted([entry for entries in found.values() for entry in entries])])
    parts = [INTRODUCTION, *(f"**[{paper}](#{paper})** {text}\n" for paper, (text, *_) in said.items() if text)]
    parts += [table(["paper", *COLUMNS], lines), RULES]
    for paper, entries in found.items():
        parts += [f"## {paper}\n", f"{plain_text(entries[0].file.paper.title)}\n"]
        parts += [f"{text}\n" for text in (said[paper][2], what_holds(entries)) if text]
        rows = [[_link(e), plain_text(e.file.paper.figure), _runs(e), *counted([e])] for e in entries]
        parts.append(table(["experiment", "in the paper", "form (seeds)", *COLUMNS], rows))
    return "\n".join(parts)


def counted(entries: Iterable[Reproduction]) -> list[str]:
    """The main claims by verdict; the number of confirmed minor claims and claims of ours."""
    entries = list(entries)
    main, *others = (_total(entries, rank) for rank in ("main", "minor", "ours"))
    aside = [f"{count(c, 'confirmed')}/{count(c)}" if c else "" for c in others]
    return [str(count(main) or ""), *(_by_scale(main, kind) for kind in BECAME.values()), *aside]


def _by_scale(counts: Counts, became: str) -> str:
    """'31+16+5': at the paper's scale, at a smaller one, on a problem of ours; trailing zeros are left out."""
    parts = [count(counts, became, scale=scale) for scale in SCALES]
    some = max((place for place, number in enumerate(parts, 1) if number), default=0)
    return "+".join(map(str, parts[:some])) or str(count(counts, became) or "")


def _total(entries: Iterable[Reproduction], rank: str) -> Counts:
    return sum((entry.counts(rank) for entry in entries), Counter())


def what_holds(entries: Iterable[Reproduction]) -> str:
    """A line about a paper: how many main claims hold, and where all do; or claims of ours, if it has no others."""
    entries = list(entries)
    rank = "main" if _total(entries, "main") else "ours"
    counts = [(entry.file.paper.figure, entry.counts(rank)) for entry in entries]
    c = _total(entries, rank)
    kinds = {"at the paper's scale": "full", "in a smaller form": "smaller", "on a problem of ours": "own"}
    by = [f"{n} {words}" for words, scale in kinds.items() if (n := count(c, "confirmed", scale=scale))]
    parts = [f"**{count(c, 'confirmed')} of {count(c)} {'main claims' if rank == 'main' else 'claims of ours'} hold**"]
    parts[0] += f" ({', '.join(by)})" if rank == "main" and by else ""
    against, not_run = count(c, *CAUSES), count(c, "not run")
    parts += [f"{against} {'does' if against == 1 else 'do'} not"] if against else []
    parts += [f"{not_run} {'was' if not_run == 1 else 'were'} not run"] if not_run else []
    where: dict[str, list[str]] = {}
    for figure, some in counts:
        if some:
            where.setdefault(_how_many_hold(some), []).append(_of_all(figure, some))
    words = ("All hold", "Some hold", "None hold", "Not run")
    places = [f"{word}: {'; '.join(where[word])}." for word in words if word in where]
    return " ".join([f"{', '.join(parts)}.", *places])


def _how_many_hold(counts: Counts) -> str:
    hold, all_of_them = count(counts, "confirmed"), count(counts)
    if count(counts, "not run") == all_of_them:
        return "Not run"
    return "All hold" if hold == all_of_them else "Some hold" if hold else "None hold"


def _of_all(figure: str, c: Counts) -> str:
    """The figure, with the number of its claims that hold if only some do."""
    hold, shown = count(c, "confirmed"), plain_text(figure)
    return f"{shown} ({hold} of {count(c)})" if 0 < hold < count(c) else shown


def _link(entry: Reproduction) -> str:
    return f"[{entry.name.partition('/')[2]}](../src/proxfed/papers/experiments/{entry.name}.toml)"


def _runs(entry: Reproduction) -> str:
    """The stored forms, with the smallest and largest number of seeds of their cases."""
    seeds = {form.name: from_to(len(run.seeds) for run in form.runs.values()) for form in entry.forms}
    return ", ".join(f"{name} ({some})" for name, some in seeds.items()) or "not run"


# ---- files ----------------------------------------------------------------------------------------------------------


def write_summary(found: Found, results: Path, path: Path) -> None:
    """docs/results.md."""
    write(path, summary(found, results), folders=True)


def write_pages(found: Found, folder: Path) -> list[Path]:
    """Writes FOLDER/PAPER/EXPERIMENT.md and its figures for every experiment, and removes other pages."""
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
    """Problems of the summary at `path` and of the stored results, in sentences."""
    for paper in found:
        if len(notes(results, paper).partition("\n\n")[0].splitlines()) > FIRST_SCREEN:
            yield f"results/{paper}.md: its first paragraph, on the first screen, has more than {FIRST_SCREEN} lines"
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
        for k, v in enumerate(entry.verdicts):
            if entry.kind(k) == "settings" and entry.scale(k) != "full":
                yield f"{entry.name}: the cause of {v.claim.says!r} is 'settings', which needs a full form"
            if entry.kind(k) == "not run" and v.claim.rank == "main" and not entry.why_not_run(k):
                yield f"{entry.name}: {v.claim.says!r} was not run, and no cause says what it takes"
        failed = [(form, v) for form in [*entry.forms, *entry.variants] for v in form.judged]
        for form, v in failed if not entry.notes else []:
            if v.status == "not confirmed":
                where = f"results/{entry.name}.md must say why"
                yield f"{entry.name} ({form.name}): the claim {v.claim.says!r} is not confirmed; {where}"
