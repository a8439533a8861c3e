"""The tables of the page, as HTML; every text from a run is escaped here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from proxfed.report.columns import Column, higher_is_better, show

Entry = Mapping[str, Any]

ROUNDS = Column("rounds", "rounds", "count")
PER_CLIENT = Column("gradients_per_client", "gradients per client", "count")
SEEDS = Column("seeds", "seeds", "count")


def results_html(
    table: Sequence[Entry], progress: Sequence[Column], measures: Sequence[Column], colours: Mapping[str, int]
) -> str:
    """What each algorithm reached, after how many rounds and bytes."""
    columns = _filled(table, [ROUNDS, *measures, *(c for c in progress if c.name == "bytes_total"), SEEDS])
    best = {column.name: _best(table, column) for column in measures if column.name != "nonzeros"}
    return _sortable(table, columns, colours, best, status=True)


def costs_html(table: Sequence[Entry], progress: Sequence[Column], colours: Mapping[str, int]) -> str:
    """What each algorithm spent."""
    columns = [ROUNDS if column.name == "round" else column for column in progress]
    columns.insert(1, PER_CLIENT)
    return _sortable(table, _filled(table, columns), colours, {}, status=False)


def _filled(table: Sequence[Entry], columns: Iterable[Column]) -> list[Column]:
    return [column for column in columns if any(entry.get(column.name) is not None for entry in table)]


def _best(table: Iterable[Entry], column: Column) -> str:
    """The best value, as shown, of the algorithms of which no seed diverged; empty if there is nothing to compare."""
    values = [entry[column.name] for entry in table if not entry["diverged"] and entry.get(column.name) is not None]
    return show((max if higher_is_better(column.name) else min)(values), column.kind) if len(values) > 1 else ""


def _sortable(
    table: Iterable[Entry],
    columns: Sequence[Column],
    colours: Mapping[str, int],
    best: Mapping[str, str],
    status: bool,
) -> str:
    headings = ["algorithm", *(["status"] if status else []), *(column.label for column in columns)]
    head = "".join(f'<th scope="col"><button type="button">{escape(text)}</button></th>' for text in headings)
    lines = []
    for entry in table:
        name = escape(entry["algorithm"])
        cells = [f'<th scope="row"><i class="swatch" data-colour="{colours[entry["algorithm"]]}"></i>{name}</th>']
        if status:
            cells.append(f'<td class="{"bad" if entry["diverged"] else "text"}">{escape(entry["status"])}</td>')
        cells += [_number(entry.get(c.name), c.kind, best.get(c.name, "")) for c in columns]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    kind = "results" if status else "results costs"
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _number(value: float | None, kind: str, best: str) -> str:
    if value is None:
        return "<td>–</td>"
    text = show(value, kind)
    mark = ' class="best"' if text == best else ""
    return f'<td{mark} data-value="{float(value)!r}">{escape(text)}</td>'


def hyper_parameters_html(algorithms: Sequence[Mapping[str, Any]]) -> str:
    """One line per algorithm, one column per hyper-parameter that any of them has; label and name in front."""
    lines = [dict(flat(algorithm)) for algorithm in algorithms]
    names = list(dict.fromkeys(name for line in lines for name in line))
    names.sort(key=lambda name: ["label", "name"].index(name) if name in ("label", "name") else 2)
    head = "".join(f'<th scope="col" class="text">{escape(name)}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f'<td class="text">{escape(line.get(name, "–"))}</td>' for name in names) + "</tr>"
        for line in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def pairs_html(part: Mapping[str, Any]) -> str:
    """A nested table of settings as two columns."""
    lines = (f'<tr><th scope="row">{escape(k)}</th><td class="text">{escape(v)}</td></tr>' for k, v in flat(part))
    return f'<table class="pairs"><tbody>{"".join(lines)}</tbody></table>'


def flat(part: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested tables as dotted keys, values as text."""
    pairs: list[tuple[str, str]] = []
    for key, value in part.items():
        if isinstance(value, Mapping):
            pairs += flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
            pairs.append((f"{prefix}{key}", text))
    return pairs
