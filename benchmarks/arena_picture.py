"""The picture of docs/arena.md: bytes against rounds to an error of 1e-6, from what is kept in results/arena.

    python benchmarks/arena_picture.py        # writes docs/assets/arena.svg, and prints what it shows as a table

The problem of Composite FL's Fig. 1; one mark for each method, the median over three draws. The line is the bound of J.
Korhonen and D. Alistarh, "Towards Tight Communication Lower Bounds for Distributed Optimisation", NeurIPS 2021,
arXiv:2010.08222, without its constant: n d log2(1/eps) bits each way.
"""

from __future__ import annotations

from math import isfinite, log2
from pathlib import Path
from statistics import median_low

import matplotlib
from arena_table import narrow, read

matplotlib.use("svg")
import matplotlib.pyplot as plt

from proxfed.report.markdown import table
from proxfed.report.targets import NEVER, first_reached

ROOT = Path(__file__).parents[1]
TARGET, LIMIT = 1e-6, 2 * 30 * 60 * log2(1e6) / 8e3
PROBLEMS = {"composite": ("quick", "30 clients, d = 60, one class a client")}
KINDS = {
    "second order, compressed": ("#e15759", ("Mosaic",)),
    "second order, dense": ("#f28e2b", ("ProxNewton", "FedNL")),
    "first order, compressed both ways": (
        "#4e79a7",
        ("PLEDGE", "EF21-P + DIANA", "EF21-BC", "FedCEF, quantised both ways", "EF21, quantised both ways",
         "EControl, quantised both ways"),
    ),
    "first order, compressed up": ("#76b7b2", ("FedCEF", "EF21", "LoCoDL", "SCAFCOM")),
}  # fmt: skip
BESIDE = {
    "PLEDGE": (-30, -9), "FedDR": (4, -9), "EF21-BC": (-30, 5), "FedCEF": (0, 6), "LoCoDL": (4, -8),
    "FedADMM, small penalty": (-20, 7),
}  # fmt: skip
"""Where labels stand that would hide others, in points."""
DENSE = ("first order, dense", "#999999")


def reached(name: str, form: str) -> dict[str, tuple[float, float, float]]:
    """Medians of rounds, kilobytes, and kilobytes where a message down counts once, of every method."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for run in read(name, form).values():
        labels, n = {entry["label"]: entry for entry in run.settings["algorithms"]}, 30
        for label in run.labels():
            for history in run.histories(label).values():
                own = labels[label]
                rows = [narrow(row, own, run.settings["dtype"]) for row in history]
                up = [
                    narrow({**row, "bytes_down": 0, "bytes_best": row["bytes_up"]}, own, "float64") for row in history
                ]
                for row, single in zip(rows, up, strict=True):
                    row["broadcast"] = single["bytes_narrow"] + (row["bytes_narrow"] - single["bytes_narrow"]) / n
                there = (first_reached(rows, "error", TARGET, axis) for axis in ("round", "bytes_narrow", "broadcast"))
                t, unicast, broadcast = (NEVER if value is None else value for value in there)
                found.setdefault(label, []).append((t, unicast / 1e3, broadcast / 1e3))
    return {label: tuple(map(median_low, zip(*each, strict=True))) for label, each in found.items()}


def main() -> None:
    plt.rcParams.update(
        {"font.size": 9, "svg.hashsalt": "proxfed", "axes.spines.top": False, "axes.spines.right": False}
    )
    figure, ((*axes,),) = plt.subplots(1, len(PROBLEMS), figsize=(9, 5), sharey=True, squeeze=False)
    for ax, (name, (form, title)) in zip(axes, PROBLEMS.items(), strict=True):
        found = {label: at for label, at in reached(name, form).items() if isfinite(at[1])}
        for label, (rounds, kilobytes, _) in found.items():
            colour = next((c for c, labels in KINDS.values() if label in labels), DENSE[1])
            ax.scatter(rounds, kilobytes, color=colour, s=26, zorder=3)
            short = label.replace(", quantised both ways", " (both ways)")
            at = BESIDE.get(label, (4, 3))
            ax.annotate(short, (rounds, kilobytes), at, textcoords="offset points", fontsize=7, color=colour)
        ax.axhline(LIMIT, color="black", lw=0.9, ls="--")
        ax.annotate("no algorithm below, up to a constant", (0.99, LIMIT), (0, -10), fontsize=7.5, ha="right",
                    xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
        ax.set(xscale="log", yscale="log", xlabel=f"rounds to an error of {TARGET:g}", title=title)
        lines = [
            [label, f"{t:g}", f"{kb:.1f}", f"{once:.1f}", f"{kb / LIMIT:.1f}"]
            for label, (t, kb, once) in sorted(found.items(), key=lambda item: item[1][1])
        ]
        print(f"**{title}**\n\n{table(['method', 'rounds', 'kB', 'kB, broadcast', 'times the limit'], lines)}")
    axes[0].set_ylabel("kB sent, all clients, both ways")
    kinds = [(kind, colour) for kind, (colour, _) in KINDS.items()] + [DENSE]
    marks = [plt.Line2D([], [], color=colour, marker="o", ls="", ms=5) for _, colour in kinds]
    figure.legend(marks, [kind for kind, _ in kinds], loc="upper center", ncols=3, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.91))
    figure.savefig(ROOT / "docs" / "assets" / "arena.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
