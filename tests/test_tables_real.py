"""Tables of real organisations, where the data directory has them: what their publishers count is what is read."""

from __future__ import annotations

import numpy as np
import pytest

from proxfed import Linear, Logistic
from proxfed.data.directory import data_directory
from proxfed.regularisers import Zero
from proxfed.tables import Design, design, read_schema, read_tables

from support.tables import EXAMPLES

PLACE = data_directory()


def real(name: str) -> Design:
    path = EXAMPLES / f"{name}.toml"
    if not (PLACE / read_schema(path).source.folder).is_dir():
        pytest.skip(f"there is no folder {name} in the data directory {PLACE}")
    return design(read_tables(path, PLACE))


def sizes(made: Design) -> dict[str, int]:
    return dict(zip(made.organisations, made.federated().sizes.tolist(), strict=True))


def positives(made: Design) -> list[int]:
    return [int(np.sum(table.labels == 1)) for table in made.tables.tables]


def test_four_hospitals_with_heart_patients() -> None:
    made = real("heart-disease")
    assert sizes(made) == {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    assert positives(made) == [139, 106, 115, 149]
    missing = {t.organisation: int(np.isnan(t.columns["chol"]).sum()) for t in made.tables.tables}
    assert missing == {"cleveland": 0, "hungarian": 23, "switzerland": 123, "va": 56}
    values = np.concatenate([t.columns["chol"] for t in made.tables.tables])
    width = (700 - 50) / 64
    assert made.preparation.parameters["chol"].impute == pytest.approx(np.nanmedian(values), abs=width)
    assert "chol missing" in made.preparation.names


def test_a_model_of_the_hospitals_says_the_same_on_the_original_scale() -> None:
    made = real("heart-disease")
    problem = Linear(made.federated(), Logistic(), l2=0.01, intercept=True)
    x = (problem + Zero()).solve()
    found = problem.coefficients(x)
    coef = np.array([found.weights[name] for name in made.preparation.names])
    coef_, intercept_ = made.preparation.original_scale(coef, found.intercept)
    for table in made.tables.tables:
        scaled = made.preparation.apply(table) @ coef + found.intercept
        original = made.preparation.apply(table, scaled=False) @ coef_ + intercept_
        np.testing.assert_allclose(original, scaled, rtol=0, atol=1e-12)
        assert np.mean((scaled > 0) == (table.labels == 1)) > 0.7


def test_banks_and_their_loans() -> None:
    made = real("sba-loans")
    assert len(made.organisations) == 18
    assert sum(sizes(made).values()) == 16_637
    rates = dict(zip(made.organisations, positives(made), strict=True))
    assert rates["BANK OF AMERICA NATL ASSOC"] / 6602 == pytest.approx(0.28, abs=0.005)
    assert any("15 rows are left out, which have no 'Bank'" in note for note in made.tables.notes)
    assert max(message.size for message in made.messages) < 2000


def test_regions_with_intensive_care() -> None:
    made = real("eicu-demo")
    assert sizes(made) == {"Midwest": 718, "Northeast": 138, "South": 666, "West": 458, "unknown": 199}
    assert sum(positives(made)) == 196


def test_regions_with_breast_cancer() -> None:
    made = real("fed-tcga-brca")
    train = {"Northeast": 248, "South": 156, "West": 164, "Midwest": 129, "Europe": 129, "Canada": 40}
    assert sizes(made) == train
    assert len(made.federated().test[1]) == 63 + 40 + 42 + 33 + 33 + 11
    both = {t.organisation: t.events.sum() for t in made.tables.tables}
    for table in made.tables.test:
        both[table.organisation] += table.events.sum()
    assert both == {"Northeast": 59, "South": 39, "West": 22, "Midwest": 19, "Europe": 9, "Canada": 3}
    assert len(made.preparation.features) == 39
    assert any("8 rows are left out" in note for note in made.tables.notes)


def test_sources_with_leukaemia_and_many_genes() -> None:
    made = real("golub-leukemia")
    assert sizes(made) == {"CALGB": 11, "DFCI": 27}
    assert positives(made) == [11, 0]
    assert len(made.preparation.features) + len(made.preparation.left_out) == 7129
    data = made.federated()
    assert len(data.test[1]) == 34
    assert np.isfinite(data.features).all()
