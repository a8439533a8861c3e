"""The table of results for a paper and for a notebook: the columns that say something, as LaTeX and as HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from proxfed.report.columns import KNOWN, Column, show
from proxfed.report.summary import own_columns, swept_columns, tuning_column

Table = Sequence[Mapping[str, Any]]

SHOWN = ("rounds", "objective", "gap", "error", "stationarity", "nonzeros", "accuracy")


def chosen_columns(table: Table) -> list[Column]:
    """What was measured, and what it cost."""
    columns = [
        *(KNOWN[n] for n in SHOWN),
        *own_columns(table),
        KNOWN["bytes_total"],
        KNOWN["sim_seconds"],
        KNOWN["seeds"],
    ]
    return [c for c in columns if any(entry.get(c.name) for entry in table)]


def cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """(head, lines), as text."""
    columns = chosen_columns(table)
    several = any(entry["status"] != "finished" for entry in table)
    texts = {"algorithm": [e["algorithm"] for e in table]} | swept_columns(table)
    texts |= {"status": [e["status"] for e in table]} if several else {}
    texts |= {"tuning": tuning} if (tuning := tuning_column(table)) else {}
    head = [*texts, *(c.label for c in columns)]
    lines = [
        [*(words[k] for words in texts.values()), *(show(e.get(c.name), c.kind) for c in columns)]
        for k, e in enumerate(table)
    ]
    return head, lines


def latex_table(table: Table) -> str:
    """A tabular in the style of booktabs."""
    head, lines = cells(table)
    rows = [" & ".join(map(_tex, line)) + r" \\" for line in [head, *lines]]
    form = "l" + "r" * (len(head) - 1)
    top = rf"\begin{{tabular}}{{{form}}}"
    return "\n".join([top, r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule", r"\end{tabular}"])


def html_table(table: Table) -> str:
    """A plain table, as notebooks style it."""
    head, lines = cells(table)
    top = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in line) + "</tr>" for line in lines)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _tex(text: str) -> str:
    """Signs that LaTeX would read, and powers of ten as such."""
    text = re.sub(r"([&%$#_{}])", r"\\\1", text.replace("\\", r"\textbackslash "))
    text = text.replace("~", r"\textasciitilde ").replace("^", r"\textasciicircum ")
    text = "{}" + text if text.startswith(("[", "*")) else text  # which would belong to the \\\\ of the line before
    return re.sub(r"(-?\d\.\d+)e([+-]\d+)", lambda m: rf"${m[1]}\cdot 10^{{{int(m[2])}}}$", text)
