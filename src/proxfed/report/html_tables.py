"""The tables of the page, as HTML; every text from a run is escaped here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from proxfed.report.columns import KNOWN, Column, RunStatus, show
from proxfed.report.summary import fairness, goal_cells, reached_columns, tuning_column, with_spread

Entry = Mapping[str, Any]


def results_html(
    table: Sequence[Entry], progress: Sequence[Column], measures: Sequence[Column], colours: Mapping[str, int]
) -> str:
    """The measures that each algorithm reached, after how many rounds and bytes, and its costs to the targets."""
    spent = [c for c in progress if c.name == "bytes_total"]
    columns = _filled(table, [*measures, *spent, KNOWN["rounds"], KNOWN["seeds"]])
    columns.sort(key=lambda column: column.rank)  # a phone shows only the first ones
    status = any(entry["status"] != RunStatus.FINISHED for entry in table)
    best = {column.name: _best(table, column) for column in measures if column.better}
    tuning = tuning_column(table)
    note = f'<p class="note">{escape(said)}</p>' if (said := fairness(table)) else ""
    return _sortable(table, columns, colours, best, status, tuning) + note + _targets(table, colours)


def _targets(table: Sequence[Entry], colours: Mapping[str, int]) -> str:
    """Each algorithm's costs until it reached the targets; empty if there are none."""
    goals = [(entry, goal) for entry in table for goal in entry.get("reached", ())]
    if not goals:
        return ""
    columns = reached_columns(table)
    head = _head("algorithm") + _head("target", ' class="text"') + "".join(_head(column.label) for column in columns)
    lines = []
    for entry, goal in goals:
        cells = [f'<td class="text">{escape(goal["measure"].replace("_", " "))} {goal["target"]:g}</td>']
        for text, column in zip(goal_cells(goal, columns), columns, strict=True):
            value = goal[column.name]
            cells.append(f"<td>{text}</td>" if value is None else _number(value, column.kind, ""))
        lines.append(f"<tr>{_name(entry, colours)}{''.join(cells)}</tr>")
    return (
        '<h3>Until a target was reached</h3><table class="results">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def costs_html(table: Sequence[Entry], progress: Sequence[Column], colours: Mapping[str, int]) -> str:
    """The costs of each algorithm."""
    columns = [KNOWN["rounds"] if column.name == "round" else column for column in progress]
    columns[1:1] = [KNOWN[name] for name in ("gradients_per_client", "sent_per_client", "received_per_client")]
    return _sortable(table, _filled(table, columns), colours, {}, status=False, kind="results costs")


def _filled(table: Sequence[Entry], columns: Iterable[Column]) -> list[Column]:
    return [column for column in columns if any(entry.get(column.name) is not None for entry in table)]


def _best(table: Iterable[Entry], column: Column) -> str:
    """The best displayed value among algorithms without a diverged seed; empty if there is nothing to compare."""
    values = [entry[column.name] for entry in table if not entry["diverged"] and entry.get(column.name) is not None]
    return show((max if column.better == "higher" else min)(values), column.kind) if len(values) > 1 else ""


def _sortable(
    table: Iterable[Entry],
    columns: Sequence[Column],
    colours: Mapping[str, int],
    best: Mapping[str, str],
    status: bool,
    tuning: Sequence[str] = (),
    kind: str = "results",
) -> str:
    texts = [*(["status"] if status else []), *(["tuning"] if tuning else [])]
    head = _head("algorithm") + "".join(_head(text, ' class="text"') for text in texts)
    head += "".join(_head(column.label) for column in columns)
    lines = []
    for k, entry in enumerate(table):
        cells = [_name(entry, colours)]
        if status:
            cells.append(f'<td class="{"bad" if entry["diverged"] else "text"}">{escape(entry["status"])}</td>')
        cells += [f'<td class="text">{escape(tuning[k])}</td>'] if tuning else []
        cells += [_number(entry.get(c.name), c.kind, best.get(c.name, ""), with_spread(entry, c)) for c in columns]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _head(text: str, attributes: str = "") -> str:
    """The head of a column, which sorts the table."""
    return f'<th scope="col"{attributes}><button type="button">{escape(text)}</button></th>'


def _name(entry: Entry, colours: Mapping[str, int]) -> str:
    swatch = f'<i class="swatch" data-colour="{colours[entry["algorithm"]]}"></i>'
    return f'<th scope="row">{swatch}{escape(entry["algorithm"])}</th>'


def _number(value: float | None, kind: str, best: str, text: str = "") -> str:
    """The cell of a number; text: with its spread."""
    if value is None:
        return "<td>–</td>"
    alone = show(value, kind)
    mark = ' class="best"' if alone == best else ""
    return f'<td{mark} data-value="{float(value)!r}">{escape(text or alone)}</td>'


def settings_html(settings: Mapping[str, Any], versions: Mapping[str, Any]) -> str:
    """Hyperparameters of each algorithm, the other settings, and the versions."""
    algorithms = settings.get("algorithms", [])
    other = {key: value for key, value in settings.items() if key not in ("algorithms", "description")}
    hyper = f'<h4>Hyper-parameters</h4><div class="scroll">{_hyper_parameters(algorithms)}</div>' if algorithms else ""
    return (
        f'{hyper}<div class="columns"><div><h4>Experiment</h4>{pairs_html(other)}</div>'
        f"<div><h4>Versions</h4>{pairs_html(versions)}</div></div>"
    )


def _hyper_parameters(algorithms: Sequence[Mapping[str, Any]]) -> str:
    """One line per algorithm; methods share few hyperparameters, so all are in one cell."""
    lines = []
    for table in algorithms:
        rest = {key: value for key, value in table.items() if key not in ("label", "name", "tuned")}
        cells = (str(table.get("label", "")), str(table.get("name", "")), _listed(rest))
        lines.append("<tr>" + "".join(f'<td class="text">{escape(cell)}</td>' for cell in cells) + "</tr>")
    head = "".join(f'<th scope="col" class="text">{text}</th>' for text in ("algorithm", "method", "hyper-parameters"))
    return f'<table class="listed"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _listed(table: Mapping[str, Any]) -> str:
    """key = value, ...; a component such as a compressor as its name with its own keys in brackets."""
    parts = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner = _listed({k: v for k, v in value.items() if k != "name"})
            text = f"{value.get('name', '')} ({inner})" if inner else str(value.get("name", ""))
        else:
            text = _plain(value)
        parts.append(f"{key} = {text}")
    return ", ".join(parts)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def pairs_html(part: Mapping[str, Any]) -> str:
    """A nested table of settings as two columns."""
    lines = (f'<tr><th scope="row">{escape(k)}</th><td class="text">{escape(v)}</td></tr>' for k, v in _flat(part))
    return f'<table class="pairs"><tbody>{"".join(lines)}</tbody></table>'


def _flat(part: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested tables as dotted keys, lists of tables as a line each, values as text; empty entries are left out."""
    pairs: list[tuple[str, str]] = []
    for key, value in part.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
            pairs += [(f"{prefix}{key}[{k}]", _listed(each)) for k, each in enumerate(value)]
        elif value not in ("", []):
            pairs.append((f"{prefix}{key}", _plain(value)))
    return pairs
