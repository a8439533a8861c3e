"""A model at sites that it was not fitted to: measures are those of the same rows in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed.errors import InputError
from proxfed.fit import fit
from proxfed.fit.external import validate
from proxfed.fit.judge import LOSS
from proxfed.fit.model_file import Model
from proxfed.silos.coordinator.validate import validate_between
from proxfed.silos.wire.message import Letter

from support.fit_sites import Hospitals

NEW = ("ghent", "porto")
SOME: dict[str, Any] = {"limits": {"rows": 10}, "fit": {"rows_per_coefficient": 1.0, "measures": True}}


def fitted(folder: Path, loss: str = "logistic") -> Model:
    """Of three hospitals, in one place."""
    h = Hospitals(folder, loss)
    return fit(h.folder / "tables.toml", loss=loss, weight=0.02, alone=False, repetitions=0).model


@pytest.mark.parametrize("loss", ["logistic", "cross_entropy", "squared", "poisson", "cox"])
def test_a_model_is_validated_where_it_was_not_fitted(loss: str, tmp_path: Path) -> None:
    model = fitted(tmp_path / "old", loss)
    new = Hospitals(tmp_path / "new", loss, 150, SOME, NEW)
    found = validate_between(model, new, repetitions=80)
    here = validate(model, new.folder / "tables.toml", repetitions=80)
    assert set(found.measures) == {*NEW, "all"}
    assert found.silent == ()
    for name in NEW:
        for key, told in found.measures[name].items():
            exact = here[name][key]
            step = max(0.01, 5 / 150) * 10.0 ** max(0, np.floor(np.log10(abs(exact.value) or 1)))
            assert abs(told.value - exact.value) <= 0.5 * step + 1e-9, (name, key)
    mean = found.measures["all"][LOSS].value
    if loss == "logistic":
        assert mean == pytest.approx(here["all"]["log_loss"].value, rel=1e-9)
        assert found.measures["all"]["auc"].value == pytest.approx(here["all"]["auc"].value, abs=0.02)
        assert sum(b.samples for b in found.calibration) == 300
    if loss == "squared":
        assert 2 * mean == pytest.approx(here["all"]["deviance"].value, rel=1e-9)
    assert not [*tmp_path.glob("new/*/state/models/*")]


def test_one_site_that_joins_tells_its_own_measures_and_no_sum(tmp_path: Path) -> None:
    model = fitted(tmp_path / "old")
    quiet = {**SOME, "fit": SOME["fit"] | {"measures": False}}
    with pytest.raises(InputError, match=r"fit\.measures"):
        validate_between(model, Hospitals(tmp_path / "quiet", "logistic", 150, quiet, ("ghent",)))
    new = Hospitals(tmp_path / "new", "logistic", 150, SOME, ("ghent",))
    found = validate_between(model, new, repetitions=80)
    assert set(found.measures) == {"ghent"}
    low, high = found.measures["ghent"]["auc"][1:]
    assert low < high
    asked = {Letter.decode(question).head.get("what") for _, question, _ in new.letters}
    assert not asked & {"sums", "histogram", "counts"}
    job = next(letter for _, q, _ in new.letters if (letter := Letter.decode(q)).kind == "job")
    new.holders["ghent"].answer(Letter("job", job.run, body=job.body).encode())
    question = Letter("query", job.run, head={"what": "counts", "factors": None, "own": False})
    assert Letter.decode(new.holders["ghent"].answer(question.encode())).kind == "failed"


def test_sites_that_tell_no_measures_are_named(tmp_path: Path) -> None:
    model = fitted(tmp_path / "old")
    quiet = {**SOME, "fit": SOME["fit"] | {"measures": False}}
    found = validate_between(model, Hospitals(tmp_path / "new", "logistic", 150, quiet, NEW))
    assert found.silent == NEW
    assert set(found.measures) == {"all"}


def test_rows_that_the_model_was_fitted_to_and_other_questions_are_refused(tmp_path: Path) -> None:
    model = fitted(tmp_path / "old")
    with pytest.raises(InputError, match="lyon, oslo, turin: the model was fitted to the rows"):
        validate_between(model, Hospitals(tmp_path / "same", "logistic", 150, SOME))
    new = Hospitals(tmp_path / "new", "logistic", 150, SOME, NEW)
    validate_between(model, new, repetitions=0)
    job = next(letter for _, q, _ in new.letters if (letter := Letter.decode(q)).kind == "job")
    again = Letter("job", job.run, body=job.body)
    new.holders["ghent"].answer(again.encode())
    for what in ("size", "grams", "alone", "estimates"):
        question = Letter("query", job.run, head={"what": what, "factors": None, "own": False})
        answer = Letter.decode(new.holders["ghent"].answer(question.encode()))
        assert answer.kind == "failed", what
    other = Hospitals(tmp_path / "other", "squared", 150, SOME, NEW)
    with pytest.raises(InputError, match="its schema is not the one"):
        validate_between(model, other)
