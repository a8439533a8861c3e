"""A fit over organisations that keep their tables is the fit with all tables in one place, whoever is killed on the
way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxfed.errors import InputError
from proxfed.fit import fit
from proxfed.fit.baselines import alone_of
from proxfed.fit.cross_validate import choose
from proxfed.fit.held_out import held_out_scores
from proxfed.fit.here import Here
from proxfed.fit.inference import glm
from proxfed.fit.inference.survival import baseline_hazard
from proxfed.fit.judge import judge
from proxfed.fit.model_file import read_model
from proxfed.fit.objective import Objective, Shape
from proxfed.fit.own_rows import OwnRows
from proxfed.fit.settings import solver_of
from proxfed.silos.coordinator.fit import finish, fit_between
from proxfed.silos.coordinator.fit_agreement import FitAgreement
from proxfed.silos.coordinator.fitted import FittedBetween
from proxfed.silos.coordinator.glm import glm_between
from proxfed.silos.coordinator.judged import area
from proxfed.silos.protection.signatures import signed_by
from proxfed.silos.site.site_fit import SiteFit

from support.fit_sites import SITES, TARGETS, Hospitals

SOME: dict[str, Any] = {"limits": {"rows": 10}, "fit": {"rows_per_coefficient": 1.0, "measures": True}}
QUICK: dict[str, Any] = {"weights": 6, "alone": False, "repetitions": 80}


def between(h: Hospitals, carrier: Any = None, **settings: Any) -> FittedBetween:
    said = QUICK | {"loss": h.loss, "say": lambda sentence: None} | settings
    return fit_between(h.folder / "tables.toml", carrier or h, h.folder / "fit", **said)


def together(h: Hospitals, fitted: FittedBetween) -> tuple[float, torch.Tensor]:
    """(weight, x) of the same questions to all rows in one place, in the folds that the sites have drawn."""
    own = own_rows(h).values()
    f, asked = fitted.problem.f, fitted.settings
    q, p = f.blocks[0].shape
    weights = asked.class_weights if isinstance(asked.class_weights, str) else None
    objective = Objective.of(
        Here(tuple(own), h.names), f.criterion, Shape(q, p, f.intercept), class_weights=weights,
        names=fitted.model.features,
    )  # fmt: skip
    given = asked.weights if asked.weight is None else [asked.weight]
    cv = choose(objective, fitted.problem.h, given, 1e-3, solver_of(asked, asked.cv_tolerance), asked.cv_tolerance)
    begin = cv.fits[cv.place(asked.rule)]
    chosen = fitted.problem.with_h(fitted.problem.h.with_weight(float(begin.weight or 0)))
    return float(begin.weight or 0), solver_of(asked, asked.tolerance).after(objective, chosen, begin).x


def own_rows(h: Hospitals) -> dict[str, OwnRows]:
    """Those of each site, in the folds that it has drawn."""
    job = FitAgreement.read(h.folder / "fit" / "agreement.json").job
    found = {}
    for name in h.names:
        run = h.holders[name]._runs[job.digest]
        assert isinstance(run, SiteFit)
        found[name] = run.rows.own
    return found


def must_be(fitted: FittedBetween, weight: float, x: torch.Tensor) -> None:
    """The same weight, the same support, and coefficients to 1e-9 of the largest."""
    assert fitted.model.weight == pytest.approx(weight, rel=1e-9)
    assert torch.equal(fitted.fit.x != 0, x != 0)
    assert float((fitted.fit.x - x).abs().max()) <= 1e-9 * float(x.abs().max())


@pytest.mark.parametrize("loss", TARGETS)
def test_deployed_is_stacked(loss: str, tmp_path: Path) -> None:
    h = Hospitals(tmp_path, loss, site=SOME)
    fitted = between(h, rule="best")  # folds are secret, and one standard error may end at the empty model
    must_be(fitted, *together(h, fitted))
    assert fitted.model.nonzeros > 0


@pytest.mark.parametrize("settings", [
    {"class_weights": "balanced"},
    {"penalty": "group_lasso"},
    {"penalty": {"name": "elastic_net", "l2": 0.05}},
    {"penalty": "zero"},
    {"weight": 0.02},
    {"rule": "best", "intercept": False},
], ids=str)  # fmt: skip
def test_deployed_is_stacked_with_other_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    fitted = between(h, **settings)
    asked = fitted.settings
    if asked.penalty == "zero":
        fitted_again = fitted.settings.model_copy(update={"weight": 0.0})
        object.__setattr__(fitted, "settings", fitted_again)
    must_be(fitted, *together(h, fitted))


def test_without_hessians_it_is_the_same_model_by_gradients(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site={"limits": {"rows": 10}, "fit": {"rows_per_coefficient": 1000.0}})
    fitted = between(h, weight=0.02)
    x = together(h, fitted)[1]
    assert float((fitted.fit.x - x).abs().max()) <= 1e-8 * float(x.abs().max())
    orders = [q for _, question, _ in h.letters if (q := _asked(question))]
    assert max(order for asked in orders for order in asked) == 1


def _asked(question: bytes) -> list[int]:
    from proxfed.silos.wire.message import Letter

    return [each[3] for each in Letter.decode(question).head.get("asked", [])]


@pytest.mark.parametrize("loss", ["logistic", "squared", "cox"])
def test_with_a_given_weight_it_is_the_model_of_the_command_in_one_place(loss: str, tmp_path: Path) -> None:
    """Prepared from the same files, by another run: also the coefficients in the units of the columns."""
    h = Hospitals(tmp_path, loss, site=SOME)
    one = between(h, weight=0.05).model
    other = fit(h.folder / "tables.toml", loss=loss, weight=0.05, alone=False, repetitions=0).model
    assert one.preparation == other.preparation
    for name in ("prepared", "original"):
        a, b = np.array(getattr(one, name).coef), np.array(getattr(other, name).coef)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())
    for name in ("features", "classes", "loss", "weight"):
        assert getattr(one, name) == getattr(other, name)


def test_one_organisation_left_out_at_a_time_needs_every_site_to_allow_it(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    with pytest.raises(InputError, match=r"lyon refuses: .*fit\.apart"):
        between(h, cv="organisation")
    h.write({**SOME, "fit": SOME["fit"] | {"apart": True}})
    h.start()
    fitted = between(h, cv="organisation")
    must_be(fitted, *together(h, fitted))
    assert fitted.cv is not None
    assert len(fitted.cv.held_out) == 3


# ---- intervals and intercepts ----------------------------------------------------------------------------------------


SEPARATE = ["logistic", "squared", "huber", "poisson"]


@pytest.mark.parametrize(
    ("loss", "own"), [*((loss, own) for loss in SEPARATE for own in (False, True)), ("cox", False)]
)
def test_intervals_and_own_intercepts_are_those_of_tables_in_one_place(loss: str, own: bool, tmp_path: Path) -> None:
    """Debiased estimates, errors, p-values; the model whose sites keep an intercept each; the baseline of survival."""
    h = Hospitals(tmp_path, loss, site=SOME)
    settings: dict[str, Any] = {"weight": 0.05, "site_intercepts": own}
    one = between(h, **settings)
    other = fit(h.folder / "tables.toml", loss=loss, alone=False, repetitions=0, **settings)
    np.testing.assert_allclose(one.model.prepared.coef, other.model.prepared.coef, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(one.model.prepared.intercept, other.model.prepared.intercept, rtol=1e-8, atol=1e-9)
    assert one.inference.names == other.inference.names
    for a, b in zip(one.inference.coefficients, other.inference.coefficients, strict=True):
        np.testing.assert_allclose([a.estimate, a.error, a.p], [b.estimate, b.error, b.p], rtol=1e-7, atol=1e-9)
    if loss == "cox":
        together = Here(tuple(own_rows(h).values()), h.names)
        found = baseline_hazard(together, one.fit.x.numpy(), 5)
        assert one.model.baseline is not None
        np.testing.assert_allclose(one.model.baseline.times, found.times)
        np.testing.assert_allclose(one.model.baseline.hazard, found.hazard, rtol=1e-8)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("loss", "errors"), [("logistic", "model"), ("squared", "robust"), ("poisson", "organisation")]
)
def test_estimates_without_a_penalty_are_those_of_tables_in_one_place(
    loss: str, errors: Any, own: bool, tmp_path: Path
) -> None:
    """Estimates, errors, tests of terms and of intercepts, heterogeneity and forest plot."""
    h = Hospitals(tmp_path, loss, site={**SOME, "fit": SOME["fit"] | {"apart": True, "estimates": True}})
    options: dict[str, Any] = {"loss": loss, "site_intercepts": own, "errors": errors}
    one = glm_between(h.folder / "tables.toml", h, h.folder / "glm", say=lambda said: None, **options)
    other = glm(h.folder / "tables.toml", **options)
    for a, b in (
        (one.coefficients, other.coefficients),
        (one.terms, other.terms),
        (one.agreement, other.agreement),
        ([one.sites], [other.sites]),
    ):
        assert len(a) == len(b) > 0
        for x, y in zip(a, b, strict=True):
            for key, value in asdict(y).items():
                told = asdict(x)[key]
                assert told == (pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value), key
    assert one.deviance == pytest.approx(other.deviance, rel=1e-9)
    for told, exact in zip(one.forest, other.forest, strict=True):  # rounded to a hundredth of the error
        error = (exact.high - exact.low) / 3.9
        assert (told.name, told.organisation) == (exact.name, exact.organisation)
        assert [told.estimate, told.low, told.high] == pytest.approx(
            [exact.estimate, exact.low, exact.high], abs=0.02 * error
        )
    assert one.own_intercepts == {}  # they stay at the sites
    assert len(other.own_intercepts) == (3 if own else 0)


def test_a_site_that_tells_no_sums_for_intervals(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site={**SOME, "fit": SOME["fit"] | {"inference": False}})
    with pytest.raises(InputError, match=r"fit\.inference = false"):
        between(h, weight=0.05).inference  # noqa: B018


# ---- what comes out --------------------------------------------------------------------------------------------------


def test_the_model_is_signed_and_every_site_keeps_a_copy(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    fitted = between(h)
    fitted.save(tmp_path / "out")
    model = read_model(tmp_path / "out")
    assert tuple(signed_by(model)) == SITES
    for name in SITES:
        (copy,) = (tmp_path / name / "state" / "models").glob("*.json")
        assert read_model(copy).content() == model.content()
    changed = model.model_copy(update={"weight": model.weight * 2})
    with pytest.raises(InputError, match="the signature of lyon is not under this model"):
        signed_by(changed)
    finish(tmp_path / "fit", h)
    assert not (tmp_path / "fit").exists()
    assert [*(tmp_path / "lyon" / "state" / "models").glob("*.json")]
    for file in ("coefficients.csv", "report.html", "model_card.md"):
        assert (tmp_path / "out" / file).stat().st_size > 100


def test_a_model_of_another_fit_is_not_signed(tmp_path: Path) -> None:
    from proxfed.silos.wire.message import Letter

    h = Hospitals(tmp_path, site=SOME)
    model = between(h).model
    job = FitAgreement.read(tmp_path / "fit" / "agreement.json").job
    for change in ({"organisations": ["lyon", "oslo"]}, {"weight": 1.0}, {"original": model.prepared}):
        content = model.model_copy(update={"signatures": {}, **change}).content()
        answer = Letter.decode(h.holders["lyon"].answer(Letter("model", job.digest, body=content).encode()))
        assert answer.kind == "refused", change
    assert len([*(tmp_path / "lyon" / "state" / "models").glob("*.json")]) == 1


def test_measures_are_those_that_the_sites_tell(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    fitted = between(h)
    assert set(fitted.federated) == {*SITES, "all"}
    values = [fitted.federated[name]["auc"].value for name in SITES]
    assert abs(np.mean(values) - fitted.federated["all"]["auc"].value) < 0.1
    assert all(abs(v * 48 - round(v * 48)) < 1e-6 for v in values)  # rounded to what five of 240 rows make
    assert sum(b.samples for b in fitted.calibration) == 720
    for name in SITES:
        value, low, high = fitted.federated[name]["auc"]
        assert 0.5 < low <= value <= high < 1
    h.write({**SOME, "fit": {"rows_per_coefficient": 1.0}})
    h.start()
    assert set(between(h).federated) == {"all"}


def test_models_of_each_site_alone_are_judged_there(tmp_path: Path) -> None:
    """As the same site would judge it where its table lies: chosen and judged in its own folds, then rounded."""
    h = Hospitals(tmp_path, site=SOME)
    fitted = between(h, alone=True)
    assert set(fitted.alone) == set(fitted.alone_nonzeros) == set(SITES)
    for k, (name, own) in enumerate(own_rows(h).items()):
        here = Here((own,), (name,))
        cv = alone_of(here, fitted.problem.h, fitted.settings)
        place = cv.place(fitted.settings.rule)
        scores = held_out_scores(here, cv.models[:, place])
        row = judge(own.loss, scores, own.labels, [len(scores)], [name], repetitions=80, first=k)[name]
        for part in range(3):
            told, exact = fitted.alone[name]["auc"][part], row["auc"][part]
            assert abs(told - exact) <= 0.5 * max(0.01, 5 / 240) + 1e-12


def test_the_area_of_a_histogram_is_that_of_its_pairs() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(1)
    counts = rng.integers(0, 9, (2, 30))
    scores = np.concatenate([np.repeat(np.arange(30), row) for row in counts])
    labels = np.repeat([0, 1], counts.sum(1))
    assert area(counts.astype(float)) == pytest.approx(roc_auc_score(labels, scores), rel=1e-12)


# ---- kills -----------------------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


class Deadly:
    """A carrier on which the coordinator dies, or a site begins anew, before or after its answers to a letter."""

    def __init__(self, h: Hospitals, at: int, what: str) -> None:
        self.h, self.at, self.what, self.count = h, at, what, 0
        self.sites = h.sites

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        self.count += 1
        if self.count == self.at and self.what == "before":
            raise Killed
        answers = self.h.ask(questions, deadline)
        if self.count == self.at:
            if self.what == "after":
                raise Killed
            name = SITES[self.at % 3]
            self.h.holders[name] = self.h.holder(name)  # its answer is lost, and it is asked again
            answers |= self.h.ask({name: questions[name]})
        return answers


def same(one: FittedBetween, other: FittedBetween) -> None:
    assert torch.equal(one.fit.x, other.fit.x)
    assert one.model.weight == other.model.weight
    assert one.model.sent == other.model.sent


@pytest.mark.slow
@pytest.mark.parametrize("what", ["before", "after", "site"])
def test_killed_at_every_step_it_is_the_same_model(what: str, tmp_path: Path) -> None:
    settings = {"weight": 0.05, "loss": "logistic"}
    h = Hospitals(tmp_path / "unbroken", "logistic", 240, SOME)
    counted = Deadly(h, 0, "")
    whole = between(h, counted, **settings)
    assert counted.count >= 8
    for at in range(1, counted.count + 1):
        for name in SITES:  # the same keys, and so the same folds
            for left in ("state", "audit.jsonl", "audit.jsonl.last"):
                _remove(h.folder / name / left)
            (h.folder / name / "site.key.spent").unlink()
        _begin_anew(h)
        deadly = Deadly(h, at, what)
        if what == "site":
            broken = between(h, deadly, **settings)
        else:
            with pytest.raises(Killed):
                between(h, deadly, **settings)
            broken = between(h, h, resume=True, **settings)
        same(whole, broken)


def _remove(path: Path) -> None:
    import shutil

    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _begin_anew(h: Hospitals) -> None:
    """Sites that have told nothing yet."""
    from proxfed.silos.protection.keyring import SiteKey
    from proxfed.silos.protection.ledger import Head

    _remove(h.folder / "fit")
    for name in h.names:
        path = h.folder / name / "site.key"
        SiteKey.read(path).ledger(path).write(Head())
    h.start()


def test_what_was_asked_before_a_kill_is_not_asked_again(tmp_path: Path) -> None:
    """Neither sums nor what sites say of themselves: the coordinator dies while the model is signed."""
    from proxfed.silos.wire.message import Letter

    def kinds() -> list[tuple[str, str]]:
        letters = [Letter.decode(question) for _, question, _ in h.letters]
        return [(letter.kind, letter.digest) for letter in letters if letter.kind == "query"]

    class DeadlyLast(Deadly):
        def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
            if any(Letter.decode(question).kind == "model" for question in questions.values()):
                raise Killed
            return super().ask(questions, deadline)

    h = Hospitals(tmp_path, site=SOME)
    with pytest.raises(Killed):
        between(h, DeadlyLast(h, 0, ""), alone=True, weight=0.05)
    assert len(kinds()) > 15
    h.letters.clear()
    sent = between(h, resume=True, alone=True, weight=0.05).model.sent
    assert kinds() == []
    assert all(step.bytes_up > 0 for step in sent)


def test_going_on_with_other_settings_or_sites_is_refused(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    with pytest.raises(Killed):
        between(h, Deadly(h, 8, "before"))
    with pytest.raises(InputError, match="other settings"):
        between(h, resume=True, penalty="group_lasso")
    kept = tmp_path / "fit" / "agreement.json"
    plain = json.loads(kept.read_text())
    plain["life"] = 7
    kept.write_text(json.dumps(plain))
    with pytest.raises(InputError, match="damaged"):
        between(h, resume=True)


def test_a_site_with_another_schema_is_named(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    file = tmp_path / "oslo" / "schema.toml"
    file.write_text(file.read_text().replace("[0, 120]", "[0, 130]").replace("120", "130"))
    h.start()
    with pytest.raises(InputError, match="oslo: its schema is not"):
        between(h)
