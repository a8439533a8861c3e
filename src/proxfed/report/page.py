"""One self-contained page from run folders: it makes no requests, and opens offline.

Everything from a run is escaped on the page, and the page's content security policy allows only the one script whose
hash it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from proxfed._version import __version__
from proxfed.errors import require
from proxfed.files import write
from proxfed.report.client_stats import section
from proxfed.report.columns import Column, Row, agreed, with_total, worth_showing
from proxfed.report.curves import Curve, Line, make_curves
from proxfed.report.html_tables import costs_html, results_html, settings_html
from proxfed.report.sparsity import images

if TYPE_CHECKING:
    from torch import Tensor

    from proxfed.harness.results import Results
    from proxfed.types import Block

HERE = Path(__file__).parent
SCRIPTS = ("draw.js", "chart.js", "save.js", "patterns.js", "client_stats.js", "page.js")


@dataclass(frozen=True)
class Shown:
    """The results of one run on the page: the run's name there, and its algorithms."""

    name: str
    results: Results
    labels: Mapping[str, str]
    rows: Sequence[Row]
    """The rows, with the total of bytes."""
    models: Mapping[tuple[str, int], Tensor]
    """The models, by algorithm and seed."""
    blocks: Sequence[Block]
    """The named parts of a model."""


def write_report(
    runs: Sequence[Results],
    out: Path,
    figures: Sequence[Path] = (),
    refresh: int | None = None,
    notice: str = "",
    command: str = "",
) -> None:
    """Write the page about all these runs to `out`, with these SVG files as its figures.

    refresh     for unfinished runs: seconds after which a browser reloads the page
    notice      a line at the top
    command     the command line that writes the page, shown at its end
    """
    require(len(runs) > 0, "a report needs at least one run, but none was given")
    inside = out.parent.resolve() in [run.folder.resolve() for run in runs if run.folder is not None]
    html = render(runs, figures, refresh, notice, command)
    write(out, html, "the report to ", follow=not inside)  # another user's folder may contain links


def shown(runs: Sequence[Results]) -> list[Shown]:
    """All runs; if an algorithm's name occurs in two of them, the runs' names go in front."""
    algorithms = [list(dict.fromkeys(line["algorithm"] for line in (*r.rows, *r.status))) for r in runs]
    ambiguous = any(count > 1 for count in Counter(name for names in algorithms for name in names).values())
    out = []
    for results, name, known in zip(runs, _distinct([run.name for run in runs]), algorithms, strict=True):
        labels = {algorithm: f"{name}: {algorithm}" if ambiguous else algorithm for algorithm in known}
        out.append(Shown(name, results, labels, [with_total(row) for row in results.rows], *results.models.load()))
    return out


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, numbered if they repeat."""
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]


def render(
    results: Sequence[Results],
    figures: Sequence[Path] = (),
    refresh: int | None = None,
    notice: str = "",
    command: str = "",
) -> str:
    """The whole page."""
    runs = shown(results)
    own = agreed(run.directions for run in results)
    progress, measures = worth_showing([row for run in runs for row in run.rows], own)
    labels = [label for run in runs for label in run.labels.values()]
    colours = {label: i for i, label in enumerate(labels)}
    curves = make_curves([line for run in runs for line in lines_of(run)], progress, measures)
    table = [{**entry, "algorithm": run.labels[entry["algorithm"]]} for run in runs for entry in run.results.table()]
    several = len(runs) > 1
    holders, drawn = section([(run.name, run.results.client_stats) for run in runs], several)
    data = {
        "progress": [_column(column) for column in progress],
        "measures": [_column(column) for column in measures],
        "curves": [{**asdict(curve), "colour": colours[curve.label]} for curve in curves],
        "models": [{**model, "colour": colours[model["label"]]} for model in make_patterns(runs)],
        "client_stats": drawn,
        "tables": [_tables(run) for run in runs if run.rows],
    }
    script = '"use strict";\n{\n' + "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS) + "}\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        refresh="" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">\n',
        notice=f'<p class="notice">{escape(notice)}</p>\n' if notice else "",
        title=escape(" and ".join(dict.fromkeys(title(run) for run in runs))),
        about="".join(about_html(run, several) for run in runs),
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=script,
        results=results_html(table, progress, measures, colours) + messages_html(runs),
        costs=costs_html(table, progress, colours),
        client_stats=holders,
        curves_note=escape(curves_note(curves)),
        figures=figures_html(figures),
        settings="".join(about_settings(run, several) for run in runs),
        made=made_html(runs, command),
        # Written as escapes, '<' cannot end the script element and '&' cannot start an entity.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026"),
    )


def _column(column: Column) -> dict[str, Any]:
    """The column as data for the page's script."""
    return {"name": column.name, "label": column.label, "kind": column.kind, "log": column.log}


def _tables(run: Shown) -> dict[str, str]:
    """The table of results as files to download."""
    latex = run.results.to_latex(targets=bool(run.results.targets))
    return {"name": run.name or "results", "csv": run.results.to_csv(), "latex": latex + "\n"}


def made_html(runs: Sequence[Shown], command: str) -> str:
    """The version, and the time and the command of the page."""
    versions = dict.fromkeys(str(run.results.versions.get("proxfed", "")) for run in runs)
    ran = " and ".join(filter(None, versions))
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    by = f" by <code>{escape(command)}</code>" if command else ""
    return f"{f'Run with proxfed {escape(ran)}. ' if ran else ''}Page written {now} with proxfed {__version__}{by}."


# ---- what was run ---------------------------------------------------------------------------------------------------


def title(run: Shown) -> str:
    name = str(run.results.settings.get("name") or run.name)
    return f"{name}: {run.results.settings['case']}" if run.results.settings.get("case") else name


def about_html(run: Shown, several: bool) -> str:
    """A sentence about the run, and the experiment's own description."""
    seeds = {line["seed"] for line in (*run.rows, *run.results.status)}
    parts = [_count(len(run.labels), "algorithm")]
    if n := run.results.clients:
        parts.append(f"over {_count(n, 'client')}")
    if run.blocks:
        parts.append(f"with {_count(max(block[2] for block in run.blocks), 'parameter')}")
    rounds = max((row["round"] for row in run.rows), default=0)
    parts.append(f"for {_count(rounds, 'round')} and {_count(len(seeds), 'seed')}")
    sentence = (f"{run.name}: " if several else "") + " ".join(parts) + "."
    description = str(run.results.settings.get("description", "")).strip()
    clock = run.results.time_origin
    more = [description, f"{clock[:1].upper()}{clock[1:]}." if clock else ""]
    return f'<p class="lead">{escape(sentence)}</p>' + "".join(f"<p>{escape(text)}</p>" for text in more if text)


def messages_html(runs: Sequence[Shown]) -> str:
    """The runs' final messages: step sizes found and their costs, or why a run made no progress."""
    ends = [(run.labels[state["algorithm"]], state) for run in runs for state in run.results.status]
    lines = [f"{label}, seed {state['seed']}: {state['message']}" for label, state in ends if state["message"]]
    return "".join(f'<p class="note">{escape(line)}</p>' for line in lines)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# ---- curves and patterns --------------------------------------------------------------------------------------------


def lines_of(run: Shown) -> list[Line]:
    """Each algorithm by its label on the page, with its rows and the status of its seeds."""
    lines: list[Line] = []
    for algorithm, label in run.labels.items():
        rows = [row for row in run.rows if row["algorithm"] == algorithm]
        states = [state for state in run.results.status if state["algorithm"] == algorithm]
        lines.append((label, rows, states))
    return lines


def curves_note(curves: Sequence[Curve]) -> str:
    """How to read the curves, and whether points were left out."""
    parts = ["Click an algorithm to hide or show it; point at a chart to read values."]
    if any(curve.seeds > 1 for curve in curves):
        parts.append("A line is the median over the seeds, its band reaches from the smallest to the largest seed.")
    if any(curve.crosses for curve in curves):
        parts.append("A cross marks a seed that diverged; a line ends once more than half of its seeds have.")
    thinned = [(len(curve.x["round"]), curve.recorded) for curve in curves if len(curve.x["round"]) < curve.recorded]
    if thinned:
        kept, recorded = max(thinned, key=lambda pair: pair[1])
        parts.append(
            f"To keep the page small, only some recorded rounds are drawn ({kept:,} of {recorded:,} for the longest "
            "curve): evenly spread, with the first, the last and the extremes of every measure. rows.csv has them all."
        )
    return " ".join(parts)


def figures_html(figures: Sequence[Path]) -> str:
    """The paper's figures, drawn from our runs: as images, in which no script can run."""
    if not figures:
        return ""
    drawn = []
    for path in figures:
        data = base64.b64encode(path.read_bytes()).decode()
        name = escape(path.stem)
        drawn.append(
            f'<figure class="drawn"><img alt="{name}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption>{name}</figcaption></figure>"
        )
    return (
        '<section aria-labelledby="figures"><h2 id="figures">In the axes of the paper</h2>'
        f'{"".join(drawn)}<p class="note">Medians over the seeds; a band reaches from the smallest to the largest.</p>'
        "</section>"
    )


def make_patterns(runs: Sequence[Shown]) -> list[dict[str, Any]]:
    """The final model of the first seed of each algorithm, as images."""
    patterns = []
    for run in runs:
        seeds: dict[str, list[int]] = {}
        for algorithm, seed in run.models:
            seeds.setdefault(algorithm, []).append(seed)
        for algorithm in (name for name in run.labels if name in seeds):
            first = min(seeds[algorithm])
            model = run.models[algorithm, first].numpy()
            patterns.append(
                {
                    "label": run.labels[algorithm],
                    "seed": first,
                    "size": int(model.size),
                    "nonzeros": int(np.count_nonzero(model)),
                    "finite": bool(np.isfinite(model).all()),
                    "blocks": [asdict(image) for image in images(model, run.blocks)],
                }
            )
    return patterns


# ---- settings -------------------------------------------------------------------------------------------------------


def about_settings(run: Shown, several: bool) -> str:
    """The settings of a run, and the whole resolved configuration."""
    heading = f"<h3>{escape(run.name)}</h3>" if several else ""
    return (
        f"{heading}{settings_html(run.results.settings, run.results.versions)}"
        f"<details><summary>config.toml, fully resolved</summary>"
        f"<pre>{escape(tomli_w.dumps(run.results.settings))}</pre></details>"
    )
