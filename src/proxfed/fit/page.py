"""The page of a fit: self-contained, no script, everything from tables and files escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from proxfed.fit import pictures
from proxfed.fit.costs import total
from proxfed.fit.judge import ALL, Measured
from proxfed.fit.measures import calibration_curve
from proxfed.fit.summary import main_measure, sentences
from proxfed.report.columns import show
from proxfed.tables.holdings import holdings

if TYPE_CHECKING:
    from proxfed.fit.consortium import Fitted

MOST = 30
"""Coefficients that are drawn and listed at most; coefficients.csv has all."""


def page(fitted: Fitted) -> str:
    """The whole page."""
    model = fitted.model
    style = (files("proxfed.report") / "page.css").read_text(encoding="utf-8")
    lead = "".join(f"<p{' class=lead' * (k == 0)}>{escape(line)}</p>" for k, line in enumerate(sentences(fitted)))
    parts = [
        ("The model", _chosen(fitted)),
        ("How its weight was chosen", _choice(fitted)),
        ("How good it is", _measures(fitted)),
        ("Who holds what", _held(fitted)),
        ("What was sent", _sent(fitted)),
        (
            "Notes",
            "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in model.notes) + "</ul>" if model.notes else "",
        ),
    ]
    body = "".join(f"<section><h2>{name}</h2>{html}</section>" for name, html in parts if html)
    title = escape(f"{model.name}: a model of {len(model.organisations)} organisations")
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{title}</title><link rel="icon" href="data:,"><style>{style}</style></head>'
        f"<body><header><h1>{title}</h1>{lead}</header><main>{body}</main>"
        f"<footer><p>Made by proxfed {escape(str(model.versions['proxfed']))}. This page loads nothing from anywhere."
        "</p></footer></body></html>\n"
    )


def _chosen(fitted: Fitted) -> str:
    model, html = fitted.model, ""
    outputs = model.classes if len(model.prepared.coef) > 1 else model.classes[-1:] or [""]
    for k, output in enumerate(outputs):
        one, other = np.array(model.prepared.coef[k]), np.array(model.original.coef[k])
        order = [int(j) for j in np.argsort(-np.abs(one), kind="stable") if one[j]]
        shown = order[:MOST]
        names = [model.features[j] for j in shown]
        html += f"<h3>{escape(f'Score of {output!r}' if output else 'Score')}</h3>"
        if shown:
            drawn = (
                pictures.bars(names, one[shown].tolist(), "standardised: per standard deviation"),
                pictures.bars(names, other[shown].tolist(), "in units of the column"),
            )
            html += f'<div class="columns">{"".join(f"<div>{each}</div>" for each in drawn)}</div>'
        rows = [["(intercept)", f"{model.prepared.intercept[k]:.6g}", f"{model.original.intercept[k]:.6g}"]]
        rows += [[name, f"{one[j]:.6g}", f"{other[j]:.6g}"] for name, j in zip(names, shown, strict=True)]
        html += _table(["feature", "standardised", "in its own units"], rows)
        zeros = len(one) - len(order)
        html += f'<p class="note">{zeros:,} of {len(one):,} coefficients are zero'
        html += f"; {len(order) - MOST:,} more are in coefficients.csv.</p>" if len(order) > MOST else ".</p>"
    return html


def _choice(fitted: Fitted) -> str:
    cv = fitted.cv
    if cv is None or len(cv.weights) < 2:
        return f"<p>The weight was given: {fitted.model.weight:.4g}.</p>"
    weights, block = cv.weights.tolist(), fitted.problem.blocks[0]
    q, p = block.shape
    models = np.stack([fit.x[: block.stop].numpy().reshape(q, p) for fit in cv.fits])
    used = np.flatnonzero((models != 0).any((0, 1)))[:200]
    curve = pictures.curve(weights, cv.mean.tolist(), cv.standard_error.tolist(), fitted.model.weight, weights[cv.best])
    names = [fitted.model.features[j] for j in used]
    paths = "".join(
        f"<div>{pictures.path(weights, models[:, k][:, used], names, fitted.model.weight)}</div>"
        for k in range(min(q, 4))
    )
    note = (
        "Bars are one standard error of the mean over the folds. The line is the weight that was chosen, dashed the "
        "one with the least loss. Measures below are of rows that the fold's model has not seen; the weight was chosen "
        "with them, which flatters them slightly."
    )
    return f'<div class="columns"><div>{curve}</div>{paths}</div><p class="note">{note}</p>'


def _measures(fitted: Fitted) -> str:
    measure, judged = main_measure(fitted), fitted.federated
    series = [pictures.Lines("federated", {who: row[measure] for who, row in judged.items()})]
    if fitted.alone:
        alone = {who: row[measure] for who, row in fitted.alone.items() if who != ALL}
        series.append(pictures.Lines("each alone", alone))
    html = f"<div>{pictures.forest(list(judged), series, measure)}</div>"
    loss = fitted.model.loss["name"]
    if loss == "logistic":
        bins = calibration_curve(fitted.scores[:, 0], fitted.held.labels)
        html += f"<div>{pictures.calibration(bins, fitted.model.classes[1])}</div>"
    names = list(judged[ALL])
    rows = [[f"{who}{label}", *(_number(row.get(name)) for name in names)] for who, label, row in _lines(fitted)]
    pooled = " Pooled rows are a simulation: nobody has them in one place." if fitted.pooled else ""
    across = "" if loss == "cox" else " Over all, rows of different organisations are compared with each other."
    note = (
        f"Judged on {fitted.model.held_out}. In brackets the interval of {100 * fitted.settings.level:g} % by "
        f"bootstrap within organisations.{across}{pooled}"
    )
    head = ["", *(name.replace("_", " ") for name in names)]
    return f'<div class="columns">{html}</div>{_table(head, rows)}<p class="note">{escape(note)}</p>'


def _lines(fitted: Fitted) -> Iterable[tuple[str, str, dict[str, Measured]]]:
    for who, row in fitted.federated.items():
        yield who, "", row
        for label, other in ((", alone", fitted.alone), (", pooled rows", fitted.pooled)):
            if who in other and not (who == ALL and label == ", alone"):
                yield who, label, other[who]


def _number(m: Measured | None) -> str:
    if m is None or m.value != m.value:
        return "–"
    return f"{m.value:.3f}" + (f" ({m.low:.3f}, {m.high:.3f})" if m.low == m.low else "")


def _held(fitted: Fitted) -> str:
    held = holdings(fitted.design.tables)
    gaps = {name: counts for name, counts in held.missing.items() if any(c != 0 for c in counts.values())}
    shown = dict(list(gaps.items())[:12])
    head = ["", "rows", *held.outcomes, *(f"{name} missing" for name in shown)]
    rows = [
        [who, *(_count(c[who]) for c in (held.rows, *held.outcomes.values(), *shown.values()))] for who in held.rows
    ]
    note = f"-: withheld, for it is below {held.fewest} or would tell such a count."
    more = f" {len(gaps) - len(shown)} more columns have missing values." if len(gaps) > len(shown) else ""
    return _table(head, rows) + f'<p class="note">{note}{more}</p>'


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _sent(fitted: Fitted) -> str:
    steps = (*fitted.sent, total(fitted.sent))
    rows = [
        [s.step, f"{s.rounds:,}", show(s.bytes_up, "bytes"), show(s.bytes_down, "bytes"), show(s.seconds, "seconds")]
        for s in steps
    ]
    note = (
        f"Bytes are those of all {len(fitted.model.organisations)} organisations together. Summaries go up and the "
        "preparation comes down once; a fit sends a gradient and a number up and a model down in every round, and "
        f"begins with a smoothness constant of each. Seconds are simulated, on the profile {fitted.settings.profile!r}."
    )
    head = ["for", "rounds", "sent up", "sent down", f"seconds on {fitted.settings.profile}"]
    return _table(head, rows) + f'<p class="note">{escape(note)}</p>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    lines = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'
