"""The tables of docs/explanation/arena-details.md: rounds, bytes and simulated seconds to targets.

They come from what is kept in results/arena.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median_low
from typing import Any

from proxfed.harness.finished import with_seconds
from proxfed.harness.results import Results
from proxfed.papers import results_store
from proxfed.report.columns import Row, show
from proxfed.report.markdown import table
from proxfed.report.targets import NEVER, first_reached
from proxfed.simulate.timing import Timing

PROFILES = ("lan", "wan", "phones_4g")
WAYS = {"compressor": ("up", "edge"), "compressor_up": ("up",), "compressor_down": ("down",), "down": ("down",)}
PART = {"error_bounded": 1.0, "qsgd": 1.0, "top_k": 8 / 12}
"""Of what travels in float64, with numbers of four bytes. QSGD's only one, its norm, stays at eight."""
QUANTISED = ("mosaic",)
"""Methods whose messages hold no numbers of the run's dtype at all."""
HEAD = ["method", "rounds", "bytes", *PROFILES]


def narrow(row: Row, label: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """With `bytes_narrow`: what would have travelled with numbers of four bytes.

    Quantised messages hold none of the run's dtype; top-k has an index of four bytes beside each value.
    """
    if dtype != "float64" or label["name"] in QUANTISED:
        return {**row, "bytes_narrow": row["bytes_best"]}
    part = dict.fromkeys(("up", "down", "edge"), 0.5)
    for key, its in WAYS.items():
        if key in label:
            part |= dict.fromkeys(its, PART.get(label[key]["name"], 0.5))
    if label.get("topology", {}).get("name") == "spanning_tree" and label["name"] != "pledge":
        part["up"] = 0.5  # sums of messages are dense
    return {**row, "bytes_narrow": sum(part[way] * (row[f"bytes_{way}"] or 0) for way in part)}


def spread(values: Iterable[float], kind: str) -> str:
    """The median, and the range if they differ."""
    found = sorted(values)
    middle, low, high = median_low(found), found[0], found[-1]
    if math.isinf(middle):
        return "-" if low == high else f"- (best {show(low, kind)})"
    if show(low, kind) == show(high, kind):
        return show(middle, kind)
    return f"{show(middle, kind)} ({show(low, kind)} .. {'-' if math.isinf(high) else show(high, kind)})"


def section(title: str, runs: list[Results], measure: str, target: float) -> str:
    """One table: every method, over draws and seeds, the fewest bytes first."""
    cells: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        labels = {entry["label"]: entry for entry in run.settings["algorithms"]}
        for profile in PROFILES:
            timed = with_seconds(run, Timing.read({"profile": profile}))
            for label in timed.labels():
                for seed, history in timed.histories(label).items():
                    rows = [narrow(row, labels[label], run.settings["dtype"]) for row in history]
                    diverged = seed in timed.diverged(label)
                    axes = {profile: "sim_seconds"}
                    axes |= {"rounds": "round", "bytes": "bytes_narrow"} if profile == PROFILES[0] else {}
                    for name, axis in axes.items():
                        there = NEVER if diverged else first_reached(rows, measure, target, axis)
                        cells.setdefault(label, {}).setdefault(name, []).append(NEVER if there is None else there)
    kinds = {"rounds": "count", "bytes": "bytes"} | dict.fromkeys(PROFILES, "seconds")
    order = sorted(cells, key=lambda label: (median_low(cells[label]["bytes"]), median_low(cells[label]["rounds"])))
    lines = [[label, *(spread(cells[label][name], kinds[name]) for name in HEAD[1:])] for label in order]
    return f"**{title}**\n\n{table(HEAD, lines)}"


def read(name: str, form: str) -> dict[str, Results]:
    """What is kept of one form of an experiment of the arena, by case."""
    kept = results_store.read(Path("results"), f"arena/{name}")
    return {
        place.case: replace(run.results, settings=nested(run.settings))
        for place, run in kept.items()
        if (place.form, place.variant) == (form, "")
    }


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Kept settings, which have dotted keys, as tables again: those of all, and a list of the algorithms."""
    tables = []
    for label in settings["algorithms"]:
        table: dict[str, Any] = {}
        for key, value in settings.items():
            if key.startswith(own := f"algorithms.{label}."):
                *path, last = key.removeprefix(own).split(".")
                inner = table
                for part in path:
                    inner = inner.setdefault(part, {})
                inner[last] = value
        tables.append(table)
    return {**settings, "algorithms": tables}
