"""A fit in few words and as plain data, for the terminal, the page and the card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from proxfed.fit.costs import total
from proxfed.fit.inference.of_fit import reason_for_none
from proxfed.fit.judge import ALL, LOSS, Measured, plain
from proxfed.report.columns import show

if TYPE_CHECKING:
    from proxfed.fit.shown import Shown


SCALES = "On the prepared scale, numbers are per standard deviation; categories and yes or no are as they are, 0 or 1."
"""Why coefficients of that scale are no ranking of all features."""


def main_measure(fitted: Shown) -> str:
    """The measure that tells most about such models."""
    known = fitted.federated[ALL]
    return next(name for name in ("auc", "concordance", "r2", "accuracy", "deviance", LOSS) if name in known)


def sentences(fitted: Shown) -> list[str]:
    """What was fitted, how its weight was chosen, and how it compares with pooled rows."""
    model, asked = fitted.model, fitted.settings
    p, k = len(model.features), len(model.prepared.coef)
    lines = [
        f"{model.name}: {len(model.organisations)} organisations, {fitted.rows:,} rows, {p:,} features; "
        f"{model.loss['name']}, {model.penalty['name']} with weight {model.weight:.4g}: "
        f"{model.nonzeros:,} of {p * k:,} coefficients are not zero."
    ]
    if asked.weight is None and fitted.cv is not None:
        how = (
            "one organisation left out at a time" if asked.cv == "organisation" else f"{len(fitted.cv.held_out)} folds"
        )
        rule = {"one_se": "the largest within one standard error of the best", "best": "the best"}[asked.rule]
        lines.append(f"The weight was chosen by cross-validation ({how}): {rule} of {len(fitted.cv.weights)}.")
    if model.nonzeros == 0:
        lines.append(_empty(fitted))
    if fitted.validation.nested:
        chosen = ", ".join(f"{w:.3g}" for w in fitted.validation.nested)
        lines.append(f"The measures are of a nested choice: without each fold, the weights chosen were {chosen}.")
    if fitted.off_pooled is not None:
        lines.append(
            f"Coefficients differ from those of pooled rows by {fitted.off_pooled:.1e} at most (a simulation: nobody "
            "has the rows in one place)."
        )
    return lines


def _empty(fitted: Shown) -> str:
    """A model that says the same of all rows, and what the weight with the least loss would keep."""
    said = "The model is empty: no feature is in it, and it predicts the same for all rows"
    cv = fitted.cv
    if cv is None or len(cv.weights) < 2:
        return f"{said}; try a smaller weight."
    kept = int((cv.fits[cv.best].x[: fitted.block.stop] != 0).sum())
    if kept == 0:
        return f"{said}. None of the weights that were tried has a smaller held-out loss."
    place = cv.place(fitted.settings.rule)
    return (
        f"{said}. rule = 'best' would take the weight {cv.weights[cv.best]:.4g} with {kept:,} coefficients, and a "
        f"held-out loss of {cv.mean[cv.best]:.4g} instead of {cv.mean[place]:.4g}, which is within one standard error "
        f"({cv.standard_error[cv.best]:.2g})."
    )


def contrast(fitted: Shown) -> str:
    """What to know of measures over all: '' where they compare rows within organisations only."""
    over_all = fitted.federated[ALL]
    if fitted.model.loss["name"] == "cox" or len(fitted.model.organisations) < 2:
        return ""
    said = "Over all, rows of different organisations are compared with each other, so that what differs between "
    said += "organisations counts as well"
    within = {name: m for name, m in over_all.items() if name.endswith("_within")}
    parts = [f"{name.removesuffix('_within')} is {interval(m)}" for name, m in within.items()]
    return f"{said}; within organisations, {' and '.join(parts)}." if parts else f"{said}."


Cells = tuple[list[str], list[list[str]]]
"""A table: its headings and its lines."""


def measure_cells(fitted: Shown) -> Cells:
    """Every measure with its interval: of each organisation, of its model alone, and of the model of pooled rows."""
    names = [name for name in fitted.federated[ALL] if not name.endswith("_within")]
    across = contrast(fitted) != ""
    lines = [
        [f"{label}, across organisations" if across and label == ALL else label, *(interval(row.get(n)) for n in names)]
        for label, row in _judged(fitted)
    ]
    return ["", *(name.replace("_", " ") for name in names)], lines


def _judged(fitted: Shown) -> Iterator[tuple[str, dict[str, Measured]]]:
    for name, row in fitted.federated.items():
        yield name, row
        if name in fitted.alone and name != ALL:
            yield f"{name}, alone", fitted.alone[name]
        if name in fitted.pooled:
            yield f"{name}, pooled rows", fitted.pooled[name]


def interval(m: Measured | None) -> str:
    """0.881 (0.850, 0.910); a dash where there is no number."""
    if m is None or m.value != m.value:
        return "–"
    return f"{m.value:.3f}" + (f" ({m.low:.3f}, {m.high:.3f})" if m.low == m.low else "")


def sent_cells(fitted: Shown) -> Cells:
    """What was sent, step by step and together."""
    lines = [
        [s.step, f"{s.rounds:,}", show(s.bytes_up, "bytes"), show(s.bytes_down, "bytes"), show(s.seconds, "seconds")]
        for s in (*fitted.sent, total(fitted.sent))
    ]
    return ["sent for", "rounds", "up", "down", f"on {fitted.settings.profile}"], lines


def summary(fitted: Shown) -> dict[str, Any]:
    """As JSON has it."""
    model = fitted.model
    cv = fitted.cv
    return {
        "model": model.model_dump(mode="json", exclude={"preparation"}),
        "nonzeros": model.nonzeros,
        "residual": fitted.fit.residual,
        "path": None
        if cv is None
        else {
            "weights": cv.weights.tolist(),
            "loss": cv.mean.tolist(),
            "standard_error": cv.standard_error.tolist(),
            "nonzeros": [int((fit.x[: fitted.block.stop] != 0).sum()) for fit in cv.fits],
        },
        "inference": reason_for_none(fitted) or fitted.inference.plain(),
        "own_intercepts": fitted.own_intercepts,
        "validation": {
            "decisions": [d._asdict() for d in fitted.validation.decisions],
            "calibration": {n: [b._asdict() for b in bins] for n, bins in fitted.validation.by_organisation.items()},
            "nested_weights": fitted.validation.nested,
            "optimism": {name: o._asdict() for name, o in fitted.validation.optimism.items()},
            "chosen_in": None if fitted.validation.stability is None else fitted.validation.stability.share.tolist(),
        },
        "alone": plain(fitted.alone),
        "alone_nonzeros": fitted.alone_nonzeros,
        "pooled": plain(fitted.pooled),
        "off_pooled": fitted.off_pooled,
        "together": total(model.sent).model_dump(mode="json"),
    }
