"""A fitted model as files: the model, its tables, a script in R, a report and a model card."""

from __future__ import annotations

import json
from pathlib import Path

from proxfed.errors import InputError
from proxfed.files import write_together
from proxfed.fit.inference.of_fit import reason_for_none
from proxfed.fit.shown import Shown

FILES = ("model.json", "coefficients.csv", "model.R", "report.html", "model_card.md")
"""Every model is saved as these files; the others describe the first."""
INTERVALS = ("intervals.csv", "intervals.tex", "intervals.json")
"""Written as well if the fit has intervals."""


def save(fitted: Shown, folder: str | Path) -> None:
    """Write all FILES, and INTERVALS if the fit has intervals, together."""
    from proxfed.fit.card import card
    from proxfed.fit.page import page
    from proxfed.fit.r_script import r_script

    try:
        script = r_script(fitted.model)
    except InputError as e:
        script = f"stop({json.dumps(f'{e}; proxfed predict reads it')})\n"
    texts = [fitted.model.text(), fitted.model.csv(), script, page(fitted), card(fitted)]
    named = dict(zip(FILES, texts, strict=True))
    if not reason_for_none(fitted):
        found = fitted.inference
        named |= zip(INTERVALS, (found.csv(), found.latex(), found.json()), strict=True)
    write_together(Path(folder), named)
