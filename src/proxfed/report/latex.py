"""The table of results for a paper, a notebook and a spreadsheet, with informative columns only."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from proxfed.errors import nearest, require
from proxfed.report.columns import KNOWN, Column, cell, show
from proxfed.report.summary import (
    STATS,
    goal_cells,
    own_columns,
    reached_columns,
    swept_columns,
    tuning_column,
    with_spread,
)

Table = Sequence[Mapping[str, Any]]

SHOWN = ("rounds", "objective", "gap", "error", "stationarity", "nonzeros", "accuracy")


def chosen_columns(table: Table, names: Sequence[str] = ()) -> list[Column]:
    """The measures and the costs; or the columns with these names."""
    own = own_columns(table)
    known = {c.name: c for c in (*KNOWN.values(), *own) if any(c.name in entry for entry in table)}
    for name in names:
        require(name in known, f"columns: there is no column {name!r}; {nearest(name, known)}")
    if names:
        return [known[name] for name in names]
    usual = [*(KNOWN[n] for n in SHOWN), *own, *(KNOWN[n] for n in ("bytes_total", "sim_seconds", "seeds"))]
    return [c for c in usual if any(entry.get(c.name) for entry in table)]


def cells(table: Table, columns: Sequence[Column], stat: str = "median") -> tuple[list[str], list[list[str]]]:
    """(head, lines), as text."""
    require(stat in STATS, f"stat = {stat!r} is not one of {', '.join(map(repr, STATS))}")
    several = any(entry["status"] != "finished" for entry in table)
    texts = {"algorithm": [e["algorithm"] for e in table]} | swept_columns(table)
    texts |= {"status": [e["status"] for e in table]} if several else {}
    texts |= {"tuning": tuning} if (tuning := tuning_column(table)) else {}
    head = [*texts, *(c.label for c in columns)]
    lines = [
        [*(words[k] for words in texts.values()), *(with_spread(e, c, stat) for c in columns)]
        for k, e in enumerate(table)
    ]
    return head, lines


def latex_table(
    table: Table, columns: Sequence[str] = (), stat: str = "median", targets: bool = False, caption: str = ""
) -> str:
    """A tabular in the style of booktabs, with the best number of each column in bold."""
    chosen = chosen_columns(table, columns)
    head, lines = cells(table, chosen, stat)
    lines = [[_tex(text) for text in line] for line in lines]
    for k, column in enumerate(chosen, start=len(head) - len(chosen)):
        for j in _best(table, column):
            lines[j][k] = rf"\textbf{{{lines[j][k]}}}"
    parts = [_tabular([_tex(text) for text in head], lines)]
    if targets:
        require(any(entry.get("reached") for entry in table), "targets = True: the study has no targets")
        parts.append(_tabular(*_target_lines(table)))
    text = "\n\n".join(parts)
    if not caption:
        return text
    return "\n".join([r"\begin{table}", r"\centering", rf"\caption{{{_tex(caption)}}}", text, r"\end{table}"])


def _best(table: Table, column: Column) -> list[int]:
    """The lines with the best displayed number of a measure; none if there is nothing to compare."""
    values = {k: e[column.name] for k, e in enumerate(table) if not e["diverged"] and e.get(column.name) is not None}
    spent = column.kind in ("bytes", "seconds") or column.name in ("rounds", "seeds")
    if len(values) < 2 or not column.better or spent:
        return []
    best = show((max if column.better == "higher" else min)(values.values()), column.kind)
    return [k for k, value in values.items() if show(value, column.kind) == best]


def _target_lines(table: Table) -> tuple[list[str], list[list[str]]]:
    columns = reached_columns(table)
    lines = [
        [f"{goal['measure']} {goal['target']:g}", entry["algorithm"], *goal_cells(goal, columns)]
        for place in range(len(table[0]["reached"]))
        for entry in table
        for goal in [entry["reached"][place]]
    ]
    return [_tex(t) for t in ("target", "algorithm", *(c.label for c in columns))], [list(map(_tex, l)) for l in lines]


def _tabular(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [" & ".join(line) + r" \\" for line in [head, *lines]]
    top = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
    return "\n".join([top, r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule", r"\end{tabular}"])


def csv_table(table: Table) -> str:
    """One line per algorithm with every number to the last bit; for several seeds, with columns of their spread."""
    names = [
        name for name in dict.fromkeys(key for entry in table for key in entry) if name in KNOWN or _plain(table, name)
    ]
    spread = dict.fromkeys(name for entry in table for name in entry.get("spread", ()))
    head = [*names, *(f"{name} {stat}" for name in spread for stat in ("min", "max", "mean", "sd"))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for entry in table:
        found = [entry.get("spread", {}).get(name, {}) for name in spread]
        seeds = [each.get(stat) for each in found for stat in ("min", "max", "mean", "sd")]
        writer.writerow(map(cell, [*(entry.get(name) for name in names), *seeds]))
    return out.getvalue()


def _plain(table: Table, name: str) -> bool:
    return all(not isinstance(entry.get(name), (Mapping, list, tuple)) for entry in table)


def html_table(table: Table) -> str:
    """A plain table, as notebooks style it."""
    head, lines = cells(table, chosen_columns(table))
    top = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in line) + "</tr>" for line in lines)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _tex(text: str) -> str:
    """Escape LaTeX's special characters, and typeset powers of ten."""
    text = re.sub(r"([&%$#_{}])", r"\\\1", text.replace("\\", r"\textbackslash "))
    text = text.replace("~", r"\textasciitilde ").replace("^", r"\textasciicircum ")
    text = "{}" + text if text.startswith(("[", "*")) else text  # else they would be an argument of the \\\\ before
    text = text.replace("±", r"$\pm$")
    return re.sub(r"(-?\d\.\d+)e([+-]\d+)", lambda m: rf"${m[1]}\cdot 10^{{{int(m[2])}}}$", text)
