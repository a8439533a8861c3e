"""One self-contained page from run folders: no request leaves it, and it opens offline.

Everything that comes from a run is escaped on its way into the page, and the page's own policy lets no script run but
the one whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import tomli_w

import proxfed
from proxfed.data.client_stats import ClientStats
from proxfed.errors import RunError, require
from proxfed.harness.run_folder import Row, RunFolder
from proxfed.report.client_stats import pictures, section_html
from proxfed.report.columns import LOGARITHMIC, Column, with_total, worth_showing
from proxfed.report.curves import Curve, make_curve, points_for
from proxfed.report.sparsity import images
from proxfed.report.summary import result_table
from proxfed.report.tables import costs_html, hyper_parameters_html, pairs_html, results_html, targets_html
from proxfed.report.targets import Results

HERE = Path(__file__).parent
SCRIPTS = ("draw.js", "chart.js", "patterns.js", "holdings.js", "page.js")


@dataclass(frozen=True)
class Run:
    """What one folder holds; `labels` are the names of its algorithms on the page."""

    name: str
    config: Mapping[str, Any]
    versions: Mapping[str, Any]
    status: Sequence[Mapping[str, Any]]
    rows: Sequence[Row]
    models: Mapping[str, np.ndarray]
    blocks: Sequence[Sequence[Any]]
    labels: Mapping[str, str]
    holdings: ClientStats | None = None

    @property
    def clients(self) -> int | None:
        """The number of clients, None if the folder does not say."""
        return None if self.holdings is None else len(self.holdings)

    @property
    def results(self) -> Results:
        return Results(self.rows, self.status, self.clients, self.config.get("seeds", ()))


def write_report(folders: Sequence[Path], out: Path, figures: Sequence[Path] = ()) -> None:
    """Write the page about all these run folders to `out`, with these SVG files as its figures."""
    require(len(folders) > 0, "a report needs at least one run folder, but none was given")
    text = render(read_runs([Path(folder) for folder in folders]), figures)
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as e:
        raise RunError(f"cannot write the report to {out}: {e.strerror}") from e


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """All folders; if an algorithm's name occurs in two of them, the folders' names go in front."""
    folders = [RunFolder(path) for path in paths]
    rows = [[with_total(row) for row in folder.rows()] for folder in folders]
    status = [folder.status() for folder in folders]
    algorithms = [
        list(dict.fromkeys(line["algorithm"] for line in (*r, *s))) for r, s in zip(rows, status, strict=True)
    ]
    ambiguous = any(count > 1 for count in Counter(name for names in algorithms for name in names).values())
    runs = []
    for i, (folder, name) in enumerate(zip(folders, _distinct([path.resolve().name for path in paths]), strict=True)):
        labels = {algorithm: f"{name}: {algorithm}" if ambiguous else algorithm for algorithm in algorithms[i]}
        about = folder.config(), folder.versions()
        runs.append(Run(name, *about, status[i], rows[i], *folder.models(), labels, folder.clients()))
    return runs


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, numbered where they repeat."""
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]


def render(runs: Sequence[Run], figures: Sequence[Path] = ()) -> str:
    """The whole page."""
    progress, measures = worth_showing([row for run in runs for row in run.rows])
    labels = [label for run in runs for label in run.labels.values()]
    colours = {label: i for i, label in enumerate(labels)}
    curves = make_curves(runs, progress, measures)
    table = [
        {**entry, "algorithm": run.labels[entry["algorithm"]]}
        for run in runs
        for entry in result_table(run.results, run.config.get("targets"))
    ]
    holdings = pictures((run.name, run.holdings) for run in runs)
    data = {
        "progress": [column._asdict() for column in progress],
        "measures": [{**column._asdict(), "log": column.name in LOGARITHMIC} for column in measures],
        "curves": [{**asdict(curve), "colour": colours[curve.label]} for curve in curves],
        "models": [{**model, "colour": colours[model["label"]]} for model in make_patterns(runs)],
        "holdings": [picture.data() for picture in holdings],
    }
    script = '"use strict";\n{\n' + "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS) + "}\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    several = len(runs) > 1
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        title=escape(" and ".join(dict.fromkeys(title(run) for run in runs))),
        about="".join(about_html(run, several) for run in runs),
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=script,
        results=results_html(table, progress, measures, colours) + targets_html(table, colours),
        costs=costs_html(table, progress, colours),
        holdings=section_html(holdings, several),
        curves_note=escape(curves_note(curves)),
        figures=figures_html(figures),
        settings="".join(settings_html(run, several) for run in runs),
        version=escape(proxfed.__version__),
        # Written as escapes, '<' cannot end the script element and '&' cannot start an entity.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026"),
    )


# ---- what was run ---------------------------------------------------------------------------------------------------


def title(run: Run) -> str:
    name = str(run.config.get("name") or run.name)
    return f"{name}: {run.config['case']}" if run.config.get("case") else name


def about_html(run: Run, several: bool) -> str:
    """What was run, in a sentence, and the experiment's own description."""
    seeds = {line["seed"] for line in (*run.rows, *run.status)}
    parts = [_count(len(run.labels), "algorithm")]
    if n := run.clients:
        parts.append(f"over {_count(n, 'client')}")
    if run.blocks:
        parts.append(f"with {_count(max(block[2] for block in run.blocks), 'parameter')}")
    rounds = max((row["round"] for row in run.rows), default=0)
    parts.append(f"for {_count(rounds, 'round')} and {_count(len(seeds), 'seed')}")
    sentence = (f"{run.name}: " if several else "") + " ".join(parts) + "."
    description = str(run.config.get("description", "")).strip()
    return f'<p class="lead">{escape(sentence)}</p>' + (f"<p>{escape(description)}</p>" if description else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# ---- curves and patterns --------------------------------------------------------------------------------------------


def make_curves(runs: Sequence[Run], progress: Sequence[Column], measures: Sequence[Column]) -> list[Curve]:
    """The curves of all algorithms that have rows."""
    points = points_for(sum(len(run.labels) for run in runs), len(progress) + 3 * len(measures))
    curves = []
    for run in runs:
        for algorithm, label in run.labels.items():
            rows = [row for row in run.rows if row["algorithm"] == algorithm]
            states = [state for state in run.status if state["algorithm"] == algorithm]
            if rows:
                curves.append(make_curve(label, rows, states, progress, measures, points))
    return curves


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


def make_patterns(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The final model of the first seed of each algorithm, as images."""
    patterns = []
    for run in runs:
        seeds: dict[str, list[int]] = {}
        for key in run.models:
            algorithm, seed = key.rsplit("/", 1)
            seeds.setdefault(algorithm, []).append(int(seed))
        for algorithm in (name for name in run.labels if name in seeds):
            first = min(seeds[algorithm])
            model = run.models[f"{algorithm}/{first}"]
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


def settings_html(run: Run, several: bool) -> str:
    """Hyper-parameters of each algorithm, the other settings, the versions, and the whole resolved configuration."""
    algorithms = run.config.get("algorithms", [])
    other = {key: value for key, value in run.config.items() if key not in ("algorithms", "description")}
    heading = f"<h3>{escape(run.name)}</h3>" if several else ""
    hyper = f'<h4>Hyper-parameters</h4><div class="scroll">{hyper_parameters_html(algorithms)}</div>'
    return (
        f"{heading}{hyper if algorithms else ''}"
        f'<div class="columns"><div><h4>Experiment</h4>{pairs_html(other)}</div>'
        f"<div><h4>Versions</h4>{pairs_html(run.versions)}</div></div>"
        f"<details><summary>config.toml, fully resolved</summary>"
        f"<pre>{escape(tomli_w.dumps(run.config))}</pre></details>"
    )
