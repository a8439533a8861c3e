"""The tables of how far a model can be trusted, for the page and the card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxfed.fit.overview import Cells

if TYPE_CHECKING:
    from proxfed.fit.shown import Shown

MOST = 30
"""Features whose stability is listed at most."""
OFTEN = 0.9
"""The share of the halves for which the bound of wrong choices is given."""


def calibration_cells(fitted: Shown) -> Cells:
    """Predicted and observed, of every organisation, with Wilson's intervals."""
    head = ["organisation", "rows", "predicted", "observed", f"{100 * fitted.settings.level:g} % interval"]
    lines = []
    for name, bins in fitted.validation.by_organisation.items():
        for b in bins:
            low, high = b.interval(fitted.settings.level)
            lines.append([name, str(b.samples), f"{b.predicted:.3f}", f"{b.observed:.3f}", f"{low:.3f} to {high:.3f}"])
    return head, lines


def decision_cells(fitted: Shown) -> Cells:
    """The net benefit at every second threshold."""
    head = ["act from a probability of", "net benefit", "if acting on all", "if acting on none"]
    rows = fitted.validation.decisions[1::2]
    return head, [[f"{d.threshold:.2f}", f"{d.model:.3f}", f"{d.everybody:.3f}", "0"] for d in rows]


def optimism_cells(fitted: Shown) -> Cells:
    """What is left of the measures on the model's own rows."""
    head = ["over all", "on its own rows", "optimism", "corrected"]
    found = fitted.validation.optimism.items()
    return head, [
        [name.replace("_", " "), f"{o.apparent:.3f}", f"{o.optimism:+.3f}", f"{o.corrected:.3f}"] for name, o in found
    ]


def stability_cells(fitted: Shown) -> Cells:
    """How often a feature is chosen, beside its coefficient; those that are never chosen are left out."""
    found, model = fitted.validation.stability, fitted.model
    lines: list[tuple[float, list[str]]] = []
    if found is not None:
        for k, output in enumerate(model.outputs):
            for j, name in enumerate(model.features):
                share, coefficient = float(found.share[k, j]), model.prepared.coef[k][j]
                if share > 0 or coefficient:
                    label = f"{name} ({output})" if len(model.outputs) > 1 else name
                    lines.append((share, [label, f"{100 * share:.0f} %", f"{coefficient:.4g}" if coefficient else "0"]))
    lines.sort(key=lambda line: -line[0])
    return ["feature", "chosen in", "coefficient (prepared scale)"], [line for _, line in lines[:MOST]]


def notes(fitted: Shown) -> dict[str, str]:
    """What to know of each of the tables."""
    of = fitted.validation
    said = {
        "calibration": "Of rows with similar predictions, how many were positive (Wilson's interval). A model may be "
        "right over all and wrong at every organisation.",
        "decisions": "Net benefit in true positives per row: a false positive at the threshold t costs t / (1 - t) of "
        "one. The model is worth using where it is above both other columns.",
        "optimism": f"The model was fitted again to {fitted.settings.optimism} draws of the rows, with the same "
        "weight: what it loses from the rows drawn to all rows, in the mean, is its optimism.",
    }
    if of.stability is not None:
        wrong = of.stability.wrong_at_most(OFTEN)
        said["stability"] = (
            f"The model was fitted again to {of.stability.draws} random halves of every organisation's rows, with the "
            f"same weight; a half chooses {of.stability.chosen:.1f} coefficients in the mean. Of those chosen in "
            f"{100 * OFTEN:g} % or more, {wrong:.1f} at most are expected to be wrong, if features without an effect "
            "are exchangeable."
        )
    return said
