"""From tables to a model: what is chosen, fitted and judged is what pooled rows give; costs add up; bad requests."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from proxfed.errors import InputError
from proxfed.fit import fit
from proxfed.fit.costs import costs, total
from proxfed.fit.solve import Traffic
from proxfed.tables import parse_schema, read_frame, read_tables

from support.fitted import QUICK, clinics, clinics_plain
from support.tables import CLINICS


def pooled_rows() -> tuple[np.ndarray, np.ndarray]:
    data = clinics().problem.f.data
    return data.features, data.labels


def logistic(weight: float, A: np.ndarray, y: np.ndarray, l2: float = 0.0) -> np.ndarray:
    """scikit-learn's coefficients and intercept of pooled rows."""
    ratio = weight / (weight + l2)
    model = LogisticRegression(
        C=1 / (len(y) * (weight + l2)), l1_ratio=ratio, solver="saga", tol=1e-12, max_iter=200_000, random_state=0
    )
    found = model.fit(A, y)
    return np.append(found.coef_[0], found.intercept_)


def ours(fitted: Any) -> np.ndarray:
    return np.append(fitted.model.prepared.coef[0], fitted.model.prepared.intercept)


def test_the_model_is_that_of_scikit_learn_on_pooled_rows() -> None:
    found = clinics()
    theirs = logistic(found.model.weight, *pooled_rows())
    assert ours(found) == pytest.approx(theirs, abs=1e-6)
    assert np.array_equal(ours(found) != 0, np.abs(theirs) > 1e-9)
    assert found.off_pooled < 1e-6
    assert 0 < found.model.nonzeros < len(found.model.features)


def test_compressed_messages_and_elastic_net_give_the_same_model_as_pooled_rows() -> None:
    once = {"weight": 0.03, "folds": 2, "repetitions": 0, "alone": False}
    compress, penalty = {"name": "top_k", "fraction": 0.3}, {"name": "elastic_net", "l2": 0.05}
    found = fit(CLINICS / "tables.toml", penalty=penalty, compress=compress, **once)
    assert found.sent[-2].bytes_up < found.sent[-2].bytes_down
    theirs = logistic(0.03, *pooled_rows(), l2=0.05)
    assert ours(found) == pytest.approx(theirs, abs=1e-6)
    assert np.array_equal(ours(found) != 0, np.abs(theirs) > 1e-9)


def test_held_out_scores_are_those_of_models_that_have_not_seen_the_row() -> None:
    found = clinics()
    A, y = pooled_rows()
    assert (found.cv.rows.sum(0) == 1).all()
    held = found.cv.rows[1]
    x = logistic(found.model.weight, A[~held], y[~held])
    assert found.scores[held, 0] == pytest.approx(A[held] @ x[:-1] + x[-1], abs=2e-3)  # paths are less exact


def test_measures_are_those_of_scikit_learn() -> None:
    found = clinics()
    y, p = found.held.labels, 1 / (1 + np.exp(-found.scores[:, 0]))
    rows = {**found.held.parts, "all": slice(None)}
    for who, part in rows.items():
        judged = found.federated[who]
        assert judged["auc"].value == pytest.approx(roc_auc_score(y[part], p[part]))
        assert judged["brier"].value == pytest.approx(brier_score_loss(y[part] > 0, p[part]))
        assert judged["log_loss"].value == pytest.approx(log_loss(y[part], p[part]))
        assert judged["auc"].low <= judged["auc"].value <= judged["auc"].high
        assert found.pooled[who]["auc"].value == pytest.approx(judged["auc"].value, abs=0.01)
    assert found.alone.keys() == rows.keys()


def test_group_lasso_keeps_or_drops_whole_columns() -> None:
    found = clinics_plain(penalty="group_lasso", weight=0.04)
    made = found.design.preparation
    kept: dict[str, set[bool]] = {}
    for feature, weight in zip(made.features, found.model.prepared.coef[0], strict=True):
        kept.setdefault(feature.column, set()).add(weight != 0)
    assert all(len(states) == 1 for states in kept.values())
    assert {True} in kept.values()
    assert {False} in kept.values()


@pytest.mark.parametrize("cv", ["within", "organisation"])
def test_the_weight_is_chosen_by_the_rule(cv: str) -> None:
    settings = QUICK | {"alone": False, "repetitions": 0, "cv": cv, "weights": 4, "tolerance": 1e-4}
    best, simple = (fit(CLINICS / "tables.toml", rule=rule, **settings) for rule in ("best", "one_se"))
    assert best.model.weight == best.cv.weights[best.cv.mean.argmin()]
    assert simple.model.weight >= best.model.weight
    assert len(best.cv.rows) == (4 if cv == "organisation" else 3)


def test_the_same_request_gives_the_same_file() -> None:
    one, other = (fit(frames("number"), weights=3, folds=2, repetitions=3).model.text() for _ in range(2))
    assert one == other


def together_rounds(found: Any) -> int:
    return sum(sent.rounds for sent in found.sent)


def test_costs_add_up_and_say_what_was_sent() -> None:
    found = clinics()
    steps = {sent.step: sent for sent in found.sent}
    assert list(steps) == ["summaries", "cross-validation", "model", "measures"]
    assert steps["summaries"].bytes_up == sum(len(m.encode()) for m in found.design.messages)
    n, d = found.problem.f.n, found.problem.f.d
    rounds = steps["model"].rounds
    assert steps["model"].bytes_down == rounds * n * d * 8
    hessians = (steps["model"].bytes_up - rounds * n * (d + 1) * 8) / (n * 8 * d * (d + 1) // 2)
    assert hessians in range(rounds + 1)  # besides gradients and values
    assert together_rounds(found) <= 40
    assert steps["cross-validation"].rounds == found.cv.traffic.rounds
    together = total(found.sent)
    assert together.rounds == sum(s.rounds for s in found.sent)
    assert together.seconds == pytest.approx(sum(s.seconds for s in found.sent))
    twice = costs({"model": Traffic(200, 2_000, 2_000)}, n, "wan")[0].seconds
    assert twice == pytest.approx(2 * costs({"model": Traffic(100, 1_000, 1_000)}, n, "wan")[0].seconds, rel=0.1)


# ---- other targets ---------------------------------------------------------------------------------------------------


def frames(target: str, seed: int = 0) -> Any:
    """Two organisations with two numbers, a category and some target."""
    rng = np.random.default_rng(seed)
    text = {
        "number": '[target]\ncolumn = "y"\n',
        "count": '[target]\ncolumn = "y"\n',
        "three": '[target]\ncolumn = "y"\nclasses = ["a", "b", "c"]\n',
        "survival": '[target]\ntime = "t"\nevent = "e"\n',
    }[target]
    text += '[source]\norganisation = "who"\n[columns]\nu = {kind = "number"}\nv = {kind = "number"}\n'
    text += 'w = {kind = "category", categories = ["I", "II"], reference = "I"}\n'
    n = 120
    u, v, w = rng.normal(5, 2, n), rng.normal(size=n), rng.integers(0, 2, n)
    s = 0.5 * (u - 5) - 0.7 * v
    y = {
        "number": s + rng.normal(size=n),
        "count": rng.poisson(np.exp(s / 2)),
        "three": np.array(["a", "b", "c"])[np.digitize(s + rng.normal(size=n), [-0.5, 0.5])],
        "survival": None,
    }[target]
    frame = {"who": ["north", "south"] * (n // 2), "u": u, "v": v, "w": [["I", "II"][k] for k in w]}
    if y is None:
        frame |= {"t": rng.exponential(np.exp(-s)), "e": rng.integers(0, 2, n)}
    else:
        frame["y"] = y
    return read_frame(parse_schema(tomllib.loads(text)), frame)


@pytest.mark.parametrize(
    ("target", "loss", "asked", "measure"),
    [
        ("number", "squared", None, "r2"),
        ("number", "huber", "huber", "r2"),
        ("count", "poisson", "poisson", "deviance"),
        ("three", "cross_entropy", "softmax", "auc"),
        ("survival", "cox", None, "concordance"),
    ],
)
def test_every_kind_of_target(target: str, loss: str, asked: str | None, measure: str, tmp_path: Path) -> None:
    tables = frames(target)
    found = fit(tables, loss=asked, weights=4, folds=3, repetitions=5)
    assert found.model.loss["name"] == loss
    assert found.off_pooled < 1e-6
    assert measure in found.federated["all"]
    found.save(tmp_path)
    for table in tables.tables:
        scores = found.model.scores(table)
        again = found.design.preparation.apply(table, scaled=False) @ found.model.coef_.T + found.model.intercept_
        np.testing.assert_allclose(again, scores, rtol=0, atol=1e-12)
        assert len(found.model.predict(table)) == len(table)
    if target == "three":
        assert found.model.predict_proba(tables.tables[0]).sum(1) == pytest.approx(1)


def test_a_penalty_that_is_not_convex_has_no_pooled_model_to_compare_with() -> None:
    found = fit(frames("number"), penalty={"name": "mcp", "theta": 3.0}, weight=0.1, folds=2, repetitions=0)
    assert found.off_pooled is None
    assert found.pooled == {}


# ---- bad requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"penalty": "lasso"}, "there is no 'lasso'"),
        ({"penalty": "box"}, "penalty = 'box' has no weight that could be chosen"),
        ({"penalty": {"name": "l1", "weight": 1.0}}, "the weight stands beside the penalty"),
        ({"penalty": "elastic_net"}, "the key 'l2' is missing"),
        ({"weight": 0.1, "cv": "within"}, "weight = 0.1 and cv = 'within' exclude each other"),
        ({"weight": -1.0}, "weight = -1.0 is not allowed"),
        ({"cv": "loo"}, "cv = 'loo' is not allowed"),
        ({"folds": 1}, "folds = 1 is not allowed"),
        ({"rule": "first"}, "rule = 'first' is not allowed"),
        ({"loss": "cox"}, "loss = 'cox' does not fit the target, which is 2 classes"),
        ({"loss": "hinge"}, "loss = 'hinge' is not a loss"),
        ({"compress": "top"}, "compress: there is no 'top'"),
        ({"wieght": 0.1}, "unknown key 'wieght'; did you mean 'weight'?"),
        ({"profile": "moon"}, "there is no profile 'moon'"),
        ({"class_weights": {"sick": 2.0}}, "class_weights: 'sick' is not a class; they are well, ill"),
        ({"penalty": "squared_l2"}, "SquaredL2 has no weight from which on zero is the solution"),
    ],
)
def test_bad_settings_get_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        fit(CLINICS / "tables.toml", **({"folds": 2, "repetitions": 0, "alone": False} | settings))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_stand_in_the_file_and_are_overruled(tmp_path: Path) -> None:
    text = (CLINICS / "tables.toml").read_text().replace('"*.csv"', f'"{CLINICS}/*.csv"')
    model = '\n[model]\ncv = "within"\npenalty = "group_lasso"\nfolds = 2\nrepetitions = 0\nalone = false\n'
    (tmp_path / "tables.toml").write_text(text + model)
    found = fit(tmp_path / "tables.toml", weight=0.05)
    assert (found.model.penalty, found.model.weight) == ({"name": "group_lasso"}, 0.05)
    assert found.design.tables.schema.digest == read_tables(CLINICS / "tables.toml").schema.digest
    (tmp_path / "tables.toml").write_text(text + "\n[model]\npenalti = 1\n")
    with pytest.raises(InputError, match="unknown key 'penalti'"):
        fit(tmp_path / "tables.toml")
