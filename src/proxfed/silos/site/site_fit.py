"""One fit at one site: its answers to the questions of the coordinator (wire/fit_job.py), and the model that comes out.

There is no state: an answer follows from the question and the rows, and a repeated question gets the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proxfed import files
from proxfed.errors import RunError, require
from proxfed.files import private_folder
from proxfed.fit.model_file import Model
from proxfed.silos.protection.guard import Wanted
from proxfed.silos.site import fit_inference, fit_measures, fit_sums
from proxfed.silos.site.fit_rows import FitRows
from proxfed.silos.site.site_run import REMEMBERED
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Head, Letter, canonical

if TYPE_CHECKING:
    from proxfed.silos.site.holder import Holder


EXTERNAL = ("counts", "sums", "judged", "histogram")
"""Questions of a validation: the model was fitted elsewhere."""

ANSWERS = fit_sums.ANSWERS | fit_inference.ANSWERS | fit_measures.ANSWERS


class SiteFit:
    """What a site keeps of a fit between two questions."""

    def __init__(self, holder: Holder, job: Job) -> None:
        self.holder, self.job = holder, job
        self.rows = FitRows(holder, job)
        self.told: dict[bytes, bytes] = {}
        """The last questions with their answers: a repeated question gets the same bytes."""

    def begins(self) -> Head:
        """The answer at the start: the length of x, and whether the site sends Hessians and Gram matrices."""
        if self.rows.fit.private is not None:
            return {"d": self.rows.own.d, "n": len(self.job.sites)}
        wanted = {order: Wanted(self.rows.parts, self.rows.own.d, order) for order in ("hessian", "gram")}
        told = {f"{order}s": self.holder.guard.may_tell(each) for order, each in wanted.items()}
        return {"d": self.rows.own.d, "n": len(self.job.sites), **told}

    def answer(self, letter: Letter) -> bytes:
        if (told := self.told.get(key := letter.digest.encode())) is not None:
            return told
        what = letter.word("what")
        if what == "there":
            return self.holder.seal(letter, "answer", {}).encode()
        told_of = ("judged",) if self.job.measures_only else EXTERNAL
        fits = (what == "private") == (self.rows.fit.private is not None)
        if what not in ANSWERS or not fits or (self.rows.fit.external and what not in told_of):
            raise RunError(f"a fit has no query {what!r:.40}")
        head, body, asked = ANSWERS[what](self.rows, letter)
        data = self.holder.leave(asked, self.holder.seal(letter, "answer", head, body))
        self.told[key] = data
        if len(self.told) > REMEMBERED:
            del self.told[next(iter(self.told))]
        return data

    def keep(self, content: bytes, path: Path) -> None:
        """Keep a copy of the model, if it is of this fit; each fit has only one model."""
        try:
            model = Model.model_validate_json(content)
            written = model.content() == content and not model.signatures
        except ValueError:
            raise RunError("what was sent is no model") from None
        require(written, "the model is not written as it is signed")
        same = canonical(model.preparation) == canonical(self.job.schema["preparation"])
        same = same and tuple(model.organisations) == self.job.sites
        same = same and model.loss.get("name") == self.rows.fit.loss.name
        require(same, "the model is not of this fit: its organisations, its preparation or its loss are others")
        coef, at = model.prepare.original_scale(np.array(model.prepared.coef), np.array(model.prepared.intercept))
        told = [*np.ravel(model.original.coef), *model.original.intercept]
        require(np.allclose([*np.ravel(coef), *np.atleast_1d(at)], told, rtol=1e-9), "the model has two contents")
        new = not path.exists()
        text = model.text().encode()
        require(new or path.read_bytes() == text, "another model came of this fit before")
        if new:
            private_folder(path.parent)
            files.replace(path, text)
