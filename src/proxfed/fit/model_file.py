"""A fitted model as plain data: `model.json`, which any program can read, and what is predicted with it.

    original.coef @ features + original.intercept                 features in the units of the columns, gaps imputed
    prepared.coef @ (features - centre) / scale + prepared.intercept        the same

are the linear scores: log-odds of the second class, a score for each class, a number, the logarithm of a mean, or of
the hazard. `features` names the columns of both; `preparation` has the schema of the tables and the parameters.
"""

from __future__ import annotations

import csv
import io
import json
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, Field, ValidationError, model_validator

from proxfed import files
from proxfed.errors import InputError, require
from proxfed.explained import explain
from proxfed.files import SHA256, checked, with_checksum
from proxfed.fit.inference.survival import Baseline
from proxfed.fit.metrics import probabilities, probability
from proxfed.report.columns import cell
from proxfed.tables.column_kinds import Real
from proxfed.tables.preparation import Preparation
from proxfed.tables.table import Table, read_frame, transformed
from proxfed.validation import STRICT, refuse_unless

__all__ = ["Model", "Scale", "Sent", "Signature", "parse_model", "read_model"]

FORM = "proxfed model 1"
LARGEST_FILE = 1 << 28

LossName = Literal["logistic", "cross_entropy", "one_hot", "squared", "huber", "poisson", "cox"]


class Scale(BaseModel):
    """Coefficients on one of the two scales."""

    model_config = STRICT

    coef: list[list[Real]]
    """(outputs, features)"""
    intercept: list[Real]
    """(outputs,)"""


class BaselineHazard(BaseModel):
    """Of a survival model: the cumulative hazard of a row with score 0, over all organisations."""

    model_config = STRICT

    times: list[Real]
    """Ends of intervals, in the unit of the target; no interval says anything of fewer than `fewest` rows."""
    hazard: list[Real]
    """Cumulative, at these times."""


class Sent(BaseModel):
    """What a step of the fit sent, over all organisations."""

    model_config = STRICT

    step: str
    rounds: int = Field(ge=0)
    bytes_up: int = Field(ge=0)
    bytes_down: int = Field(ge=0)
    seconds: float = Field(ge=0, allow_inf_nan=False)
    """On the devices and links of `settings.profile`."""


class Signature(BaseModel):
    """Of a site that took part, under everything else in the file (`Model.content`): Ed25519, in hexadecimal."""

    model_config = STRICT

    key: str = Field(pattern="^[0-9a-f]{128}$")
    """The public halves of the site's key, of which its fingerprint is made."""
    signature: str = Field(pattern="^[0-9a-f]{128}$")


class Model(BaseModel):
    """What model.json holds."""

    model_config = STRICT

    form: str
    name: str
    loss: dict[str, Any]
    penalty: dict[str, Any]
    weight: Real
    classes: list[str]
    """In the order of the labels; of two, the scores are of the second."""
    features: list[str]
    prepared: Scale
    original: Scale
    preparation: dict[str, Any]
    organisations: list[str]
    settings: dict[str, Any]
    sent: list[Sent]
    measures: dict[str, dict[str, list[Real | None]]]
    """On rows that the model was not fitted to, by organisation: value, and the interval from low to high."""
    held_out: str
    """Which rows these are."""
    notes: list[str]
    versions: dict[str, Any]
    baseline: BaselineHazard | None = None
    drop: list[str] = []
    """Columns without whose value rows were left out of the fit; they are left out of an evaluation, too."""
    signatures: dict[str, Signature] = {}
    """Of the organisations, if the tables were at theirs and not in one place."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        known = LossName.__args__  # type: ignore[attr-defined]
        refuse_unless(self.loss.get("name") in known, f"loss.name = {self.loss.get('name')!r} is not one of {known}")
        outputs = len(self.classes) if self.loss["name"] in ("cross_entropy", "one_hot") else 1
        refuse_unless(outputs > 0, "a loss over classes needs classes")
        two = self.loss["name"] != "logistic" or len(self.classes) == 2
        refuse_unless(two, f"a logistic model has two classes, not {len(self.classes)}")
        for name in ("prepared", "original"):
            scale: Scale = getattr(self, name)
            fits = len(scale.coef) == len(scale.intercept) == outputs
            fits = fits and all(len(row) == len(self.features) for row in scale.coef)
            refuse_unless(fits, f"{name} does not fit {outputs} x {len(self.features)} coefficients")
        return self

    # ---- as scikit-learn has it --------------------------------------------------------------------------------------

    @cached_property
    def prepare(self) -> Preparation:
        """What is done to a table before the model sees it."""
        made = Preparation.from_plain(self.preparation, "preparation")
        require(list(made.names) == self.features, "preparation: its features are not those of the model")
        return made

    @property
    def coef_(self) -> np.ndarray:
        """(outputs, features) in the units of the columns."""
        return np.array(self.original.coef)

    @property
    def intercept_(self) -> np.ndarray:
        """(outputs,) that goes with `coef_`."""
        return np.array(self.original.intercept)

    @property
    def classes_(self) -> np.ndarray:
        """Their names; none of numbers and times."""
        return np.array(self.classes, dtype=str)

    def scores(self, table: Any) -> np.ndarray:
        """(N, outputs) of a table: a frame of pandas, polars or Arrow, a dict of columns, or a Table that was read."""
        if not isinstance(table, Table):
            table = self.read(table)
        rows = self.prepare.apply(table)
        return rows @ np.array(self.prepared.coef).T + np.array(self.prepared.intercept)

    def read(self, frame: Any, target: bool = False, name: str = "frame") -> Table:
        """A frame as a Table of this model's schema; `target`: with what is predicted."""
        (table,) = read_frame(self.prepare.schema, frame, name, target, name, besides=False).tables
        return table

    def predict(self, table: Any) -> np.ndarray:
        """(N,) names of classes; numbers, as the table has them; means of counts; of survival, the log hazard."""
        s, name = self.scores(table), self.loss["name"]
        if name == "logistic":
            return self.classes_[(s[:, 0] > 0).astype(int)]
        if self.classes:
            return self.classes_[s.argmax(1)]
        if name == "poisson":
            return np.exp(s[:, 0])
        target = self.prepare.schema.target
        return transformed("none" if target is None else target.transform, s[:, 0], back=True)

    def predict_proba(self, table: Any) -> np.ndarray:
        """(N, classes)."""
        name = self.loss["name"]
        require(name in ("logistic", "cross_entropy"), f"a model with loss {name!r} has no probabilities of classes")
        s = self.scores(table)
        if name == "logistic":
            p = probability(s[:, 0])
            return np.column_stack([1 - p, p])
        return probabilities(s)

    def risk(self, table: Any, time: float) -> np.ndarray:
        """(N,) the probability of an event until this time, of a survival model."""
        known = self.baseline
        require(known is not None, f"a model with loss {self.loss['name']!r} has no baseline hazard, and so no risk")
        assert known is not None
        return Baseline(np.array(known.times), np.array(known.hazard)).risk(self.scores(table)[:, 0], time)

    # ---- files -------------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """The text of model.json."""
        return json.dumps(with_checksum(self.model_dump(mode="json")), indent=1, ensure_ascii=False) + "\n"

    def content(self) -> bytes:
        """What signatures are under: all but these, as JSON with sorted keys and nothing between them."""
        plain = self.model_dump(mode="json", exclude={"signatures"} if self.drop else {"signatures", "drop"})
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    def csv(self) -> str:
        """Both scales, a line for each coefficient."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["output", "feature", "prepared", "original"])
        for k, output in enumerate(self.outputs):
            rows = [("(intercept)", self.prepared.intercept[k], self.original.intercept[k]), *self._coefficients(k)]
            lines.writerows(map(cell, [output, *row]) for row in rows)
        return text.getvalue()

    @property
    def outputs(self) -> list[str]:
        """What each row of coefficients scores: a class, of two the second one; '' where there are no classes."""
        return self.classes if len(self.prepared.coef) > 1 else self.classes[-1:] or [""]

    def largest(self, output: int) -> list[tuple[str, float, float]]:
        """(feature, prepared, original) of an output's coefficients that are not zero, the largest first."""
        return sorted((row for row in self._coefficients(output) if row[1]), key=lambda row: -abs(row[1]))

    def _coefficients(self, output: int) -> list[tuple[str, float, float]]:
        return list(zip(self.features, self.prepared.coef[output], self.original.coef[output], strict=True))

    @property
    def nonzeros(self) -> int:
        """Coefficients that are not zero, without intercepts."""
        return int(np.count_nonzero(self.prepared.coef))


def read_model(path: str | Path) -> Model:
    """The model in a file, or in the folder that `proxfed fit` wrote."""
    path = Path(path).expanduser()
    path = path / "model.json" if path.is_dir() else path
    try:
        text = files.read(path, LARGEST_FILE).decode()
    except OSError as e:
        raise InputError(f"cannot read {path}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: is not a model that `proxfed fit` wrote (not a text)") from e
    return parse_model(text, str(path))


def parse_model(text: str, where: str = "model") -> Model:
    """The same from its text."""
    not_ours = f"{where}: is not a model that `proxfed fit` wrote"
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{not_ours}: the JSON is damaged ({str(e).splitlines()[0]:.80})") from e
    form = plain.get("form") if isinstance(plain, dict) else None
    require(isinstance(form, str), not_ours)
    require(form == FORM, f"{where}: form = {str(form)!r:.60} is of another version; this one reads {FORM!r}")
    if SHA256 in plain:  # models of earlier versions have none
        plain = checked(plain, where)
    try:
        model = Model.model_validate(plain)
        model.prepare  # noqa: B018  the preparation fits as well
    except ValidationError as e:
        first = e.errors()[0]
        place = ".".join(map(str, first["loc"]))[:80]
        raise InputError(f"{where}: is damaged ({place + ': ' if place else ''}{first['msg']:.120})") from e
    except InputError as e:
        raise InputError(f"{where}: is damaged ({e})") from e
    return model


explain(__name__)
