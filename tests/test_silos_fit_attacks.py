"""Attacks on fits by a coordinator that deviates: what it is refused, and what it gets all the same.

The sites have tables of words and gaps, masks are on, and the guards are in force. docs/explanation/threat-model.md
lists these attacks with their outcomes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import floor, log10
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from proxfed.errors import InputError, RunError
from proxfed.fit.dominance import dominance
from proxfed.fit.here import Here
from proxfed.fit.inference.subject import Subject
from proxfed.fit.inference.survival import WIDE, even_steps
from proxfed.fit.oracle import Question
from proxfed.fit.own_rows import OwnRows
from proxfed.fit.settings import read_settings
from proxfed.silos.coordinator.elsewhere import Elsewhere, Kept
from proxfed.silos.coordinator.fit_agreement import agree_on_fit, announce
from proxfed.silos.protection.policy import fewest_of_feature
from proxfed.silos.protection.site_guard import SiteGuard
from proxfed.silos.site.config import Data, Limits, Site
from proxfed.silos.site.site_fit import SiteFit
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.fit_questions import (
    PLAIN,
    Bootstrap,
    Counts,
    write,
    write_alone,
    write_models,
    write_points,
    write_sums,
)
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Letter
from proxfed.tables import read_schema
from proxfed.tables.preparation import Preparation

from support.fit_sites import SITES, Hospitals

SOME: dict[str, Any] = {"limits": {"rows": 10}, "fit": {"rows_per_coefficient": 1.0}}
PATIENT = 17
"""The row of oslo that the attacks are after."""


@pytest.fixture(autouse=True)
def _no_flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def lab(folder: Path, loss: str, cells: Callable[[list[str], bool], None] | None = None, **limits: Any) -> Hospitals:
    """Three hospitals; `cells` changes the cells of each row, and is told whether it is the patient."""
    h = Hospitals(folder, loss, site={**SOME, "limits": SOME["limits"] | limits})
    for name in SITES if cells else ():
        path = folder / name / f"{name}.csv"
        head, *rows = [line.split(",") for line in path.read_text().splitlines()]
        for k, row in enumerate(rows):
            assert cells is not None
            cells(row, (name, k) == ("oslo", PATIENT))
        path.write_text("".join(",".join(row) + "\n" for row in [head, *rows]))
    h.start()
    return h


def patient(h: Hospitals) -> list[str]:
    return (h.folder / "oslo" / "oslo.csv").read_text().splitlines()[1 + PATIENT].split(",")


def agreed(h: Hospitals) -> Job:
    schema, masked = read_schema(h.folder / "tables.toml"), {"secure_aggregation": True}
    return agree_on_fit(schema, read_settings({"loss": h.loss}), h, masked, lambda said: None).job


def between(h: Hospitals, job: Job | None = None) -> Elsewhere:
    job, exchange = job or agreed(h), Exchange(h)
    told = announce(job, exchange)
    return Elsewhere(job, exchange, told.d, Kept(None, job.digest), told.hessians, told.grams)


def products(h: Hospitals, job: Job) -> Tensor:
    """Of columns, over all rows of all hospitals: what the coordinator reads under masks."""
    return torch.stack([gram.matrix for gram in between(h, job).grams()]).sum(0)


def in_units(job: Job, row: Tensor) -> dict[str, float]:
    """The features of a row, in the units of the table."""
    of, names = job.schema["preparation"]["parameters"], job.schema["columns"]
    known = [of.get(name, {"scale": 1.0, "centre": 0.0}) for name in names]
    return {n: float(v) * k["scale"] + k["centre"] for n, v, k in zip(names, row, known, strict=False)}


def with_impute(job: Job, age: float) -> Job:
    prepared = json.loads(json.dumps(job.schema["preparation"]))
    prepared["parameters"]["age"]["impute"] = age
    return replace(job, schema=job.schema | {"preparation": prepared})


def _one_gap(row: list[str], patient: bool) -> None:
    row[0] = "" if patient else row[0] or "50"


def _many_gaps(row: list[str], patient: bool) -> None:
    row[0] = "" if int(row[4]) % 2 else row[0] or "50"


def test_d1_two_jobs_that_fill_one_gap_differently_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their sums differ by the one row whose age is missing: the difference of two Gram matrices is that row."""
    h = lab(tmp_path, "squared", _one_gap)
    job = agreed(h)
    products(h, with_impute(job, 50.0))
    with pytest.raises(InputError, match="begins nothing new now"):
        products(h, with_impute(job, 51.0))
    assert "other values than in an earlier job in fewer rows than limits.change" in caplog.text
    products(h, with_impute(job, 50.0))  # the same values again


def test_d1_many_gaps_may_be_filled_differently(tmp_path: Path) -> None:
    h = lab(tmp_path, "squared", _many_gaps)
    job = agreed(h)
    for age in (50.0, 51.0):
        products(h, with_impute(job, age))


def _one_in_stage_III(row: list[str], patient: bool) -> None:
    row[3] = "III" if patient else row[3].replace("III", "II")


def test_d2_open_a_rare_category_in_a_gram_matrix_is_a_row_unless_the_site_sets_a_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Under masks it is the sum of the rows of all sites in this category: here there is one."""
    h = lab(tmp_path / "open", "squared", _one_in_stage_III)
    job = agreed(h)
    row = products(h, job)[job.schema["columns"].index("stage=III")]
    told, true = in_units(job, row), patient(h)
    assert (round(told["age"]), round(told["rate"])) == (int(true[0]), int(true[4]))
    closed = lab(tmp_path / "closed", "squared", _one_in_stage_III, feature=5)
    with pytest.raises(InputError, match="its rows do not fit the job; the log of the site says why"):
        products(closed, agreed(closed))
    assert "limits.feature = 5: stage=" in caplog.text


def test_d2_a_rare_category_does_not_leave_where_the_sums_of_one_site_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    h = lab(tmp_path, "squared", _one_in_stage_III)
    h.write({**SOME, "fit": SOME["fit"] | {"masked": False}})
    h.start()
    schema = read_schema(h.folder / "tables.toml")
    job = agree_on_fit(schema, read_settings({"loss": h.loss}), h, {}, lambda said: None).job
    with pytest.raises(InputError, match="its rows do not fit the job; the log of the site says why"):
        between(h, job)
    assert "fewer rows than limits.feature = 5: stage=" in caplog.text


@pytest.mark.parametrize(
    ("fewest", "masked", "sites", "limits"),
    [
        (5, False, SITES, {}),
        (5, True, SITES[:2], {}),
        (1, True, SITES, {}),
        (3, False, SITES, {"rows": 3}),
        (8, True, SITES, {"feature": 8}),
        (1, False, SITES, {"feature": 1}),
    ],
)
def test_d2_how_many_rows_a_feature_needs(fewest: int, masked: bool, sites: tuple[str, ...], limits: Any) -> None:
    site = Site(name="oslo", data=Data(path="a.csv", label="y"), limits=Limits(**limits))
    experiment: dict[str, Any] = {"protection": {"secure_aggregation": masked}}
    n = len(sites)
    assert fewest_of_feature(site, Job(experiment, sites, (1,) * n, (1 / n,) * n, {}, "")) == fewest
    experiment["protection"] = {"privacy": {"clip": 1.0, "noise": 8.0}}
    assert fewest_of_feature(site, Job(experiment, sites, (1,) * n, (1 / n,) * n, {}, "")) == 1


def test_d3_numbers_that_do_not_fit_cannot_be_tried_for_ever(tmp_path: Path) -> None:
    """Whether a number is too large for its word is answered by one site alone: a search by halves would read its sum.

    Twenty such answers are given, over all jobs and restarts.
    """
    h = lab(tmp_path, "squared")

    def ask(exponent: float) -> Letter:
        x = torch.full((there.d,), 10.0**exponent, dtype=torch.float64)
        return Letter.decode(h.holders["oslo"].answer(write_sums(there.job.digest, [Question(x)], PLAIN).encode()))

    there = between(h)
    failed = [ask(12 + k / 8) for k in range(20)]
    assert {letter.kind for letter in failed} == {"failed"}
    assert {letter.head["why"] for letter in failed} == {"a query failed; the log of the site says why"}
    h.start()
    for exponent in (12.1, 0.0):
        last = ask(exponent)
        assert (last.kind, "limits.failures = 20" in last.head["why"]) == ("refused", True)
    with pytest.raises(InputError, match=r"limits\.failures = 20"):
        agreed(h)


def test_d4_open_smoothness_is_told_of_each_site_unless_it_is_not_listed(tmp_path: Path) -> None:
    """Two numbers of each site, that no mask hides: `allow.measures` can leave them out."""
    from test_silos_attacks import MASKED, MASKS, Lab, refused

    for measures, told in (("all", True), (["value", "gradient"], False)):
        lab = Lab(tmp_path / str(told), {**MASKED, "allow": {"measures": measures}})
        job = lab.job(MASKS)
        lab.tell(job)
        answer = lab.ask("va", Letter("query", job.digest, 0, 0, {"what": "smoothness"}))
        if told:
            assert answer.kind == "answer"
        else:
            refused(answer, "'smoothness' is not among its allow.measures")


@pytest.mark.parametrize("loss", ["poisson", "cox"])
def test_d5_a_point_at_which_one_row_is_the_whole_sum_is_not_answered(loss: str, tmp_path: Path) -> None:
    """e^score of the row that is farthest out outgrows all others: the gradient is that row."""
    h = lab(tmp_path, loss)
    there = between(h)
    x = torch.zeros(there.d, dtype=torch.float64)
    x[0], x[5] = 8.8, 4.4
    assert float(x.norm()) < 10  # limits.step lets it pass
    with pytest.raises(RunError, match="a query failed; the log of the site says why"):
        there.ask([Question(x)])


@pytest.mark.parametrize("loss", ["poisson", "squared", "huber", "cox"])
def test_d6_a_loss_of_another_target_is_refused(loss: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    h = lab(tmp_path, "logistic")
    job = agreed(h)
    assert job.fit is not None
    with pytest.raises(InputError, match="do not fit the job"):
        between(h, replace(job, fit=job.fit | {"loss": {"name": loss}}))
    assert f"fit.loss = '{loss}' does not fit the target" in caplog.text


def test_d7_a_start_is_near_zero(tmp_path: Path) -> None:
    """Every job begins a path of its own: a start anywhere would make limits.step void."""
    from test_silos_attacks import PLAIN, D, Lab, refused

    lab = Lab(tmp_path, PLAIN)
    far = replace(lab.job(), x0=(12.0,) + (0.0,) * (D - 1))
    refused(lab.tell(far, "va")["va"], "limits.step = 10")


def test_d8_open_two_histograms_at_chosen_models_count_rows(tmp_path: Path) -> None:
    """Under masks, of all sites together; at each site bins with fewer than limits.rows rows go to their neighbours."""
    h = lab(tmp_path, "logistic")
    there = between(h)
    counts = []
    for cut in (0.0, 0.3):
        models = torch.zeros(5, there.d, dtype=torch.float64)
        models[:, 0], models[:, -1] = 9.0, cut
        counts.append(there.histogram(models).numpy())
    assert all(int(each.sum()) == 240 * len(SITES) for each in counts)
    told = counts[0][counts[0] > 0]
    assert told.min() >= SOME["limits"]["rows"]
    assert (counts[0] != counts[1]).any()  # rows moved from bin to bin: their number, not whose they are


def test_d9_scaling_a_column_by_the_job_tells_nothing_new(tmp_path: Path) -> None:
    """A preparation stretches no column beyond a scale of 100, and products in other units are the same products."""
    h = lab(tmp_path, "squared")
    job = agreed(h)
    prepared = json.loads(json.dumps(job.schema["preparation"]))
    prepared["parameters"]["age"]["scale"] *= 2
    twice = replace(job, schema=job.schema | {"preparation": prepared})
    one, two = products(h, job), products(h, twice)
    np.testing.assert_allclose(two[0, 1:] * 2, one[0, 1:], rtol=1e-9, atol=1e-9)
    prepared["parameters"]["age"]["scale"] *= 1e-6
    with pytest.raises(InputError, match="do not fit the job"):
        between(h, replace(job, schema=job.schema | {"preparation": prepared}))


def test_d10_the_site_reads_its_table_by_its_own_schema_and_no_other(tmp_path: Path) -> None:
    """Knots of splines and ranges, by which single rows could be cut out, are the schema's, which every site has."""
    h = lab(tmp_path, "squared")
    job = agreed(h)
    prepared = json.loads(json.dumps(job.schema["preparation"]))
    plain = json.dumps(prepared["table"])
    assert "[0.0, 120.0]" in plain
    prepared["table"] = json.loads(plain.replace("[0.0, 120.0]", "[0.0, 130.0]"))
    with pytest.raises(InputError, match="do not fit the job"):
        between(h, replace(job, schema=job.schema | {"preparation": prepared}))


# ---- what standard errors and survival need --------------------------------------------------------------------------


def refused(h: Hospitals, letter: Letter, site: str = "oslo") -> str:
    answer = Letter.decode(h.holders[site].answer(letter.encode()))
    assert answer.kind in ("refused", "failed"), answer.kind
    return str(answer.head["why"])


def preferred(there: Elsewhere) -> list[int]:
    prepared = Preparation.from_plain(there.job.schema["preparation"])
    return Subject(there, there.loss, prepared).preferred("shared")


def own(h: Hospitals, job: Job) -> OwnRows:
    run = h.holders["oslo"]._runs[job.digest]
    assert isinstance(run, SiteFit)
    return run.rows.own


FAILED = "a query failed; the log of the site says why"


@pytest.mark.parametrize("loss", ["poisson", "huber"])
def test_d11_an_intercept_that_one_row_decides_is_not_told(
    loss: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Poisson's is the logarithm of a sum of e^score, Huber's with a small delta a median: both are one row's."""
    h = lab(tmp_path, loss)
    settings = read_settings({"loss": {"name": "huber", "delta": 0.01} if loss == "huber" else loss})
    masked = {"secure_aggregation": True}
    job = agree_on_fit(read_schema(h.folder / "tables.toml"), settings, h, masked, lambda said: None).job
    there = between(h, job).adding_intercepts()
    x = torch.zeros(there.d, dtype=torch.float64)
    if loss == "poisson":
        assert np.isfinite(there.intercept(x))
        x[0], x[5] = 8.8, 4.4
    assert refused(h, write_points(job.digest, "intercept", [x], there.asked)) == FAILED
    assert "fit.dominance = 0.5" in caplog.text


def test_d12_products_square_what_outweighs_others(tmp_path: Path) -> None:
    """A row with two fifths of a sum of e^score is nearly all of the sum of their squares."""
    h = lab(tmp_path, "poisson")
    there = between(h)
    rows, x = own(h, there.job), torch.zeros(there.d, dtype=torch.float64)
    x[0], x[5] = 2.0, 1.0
    while dominance(rows, Question(x)) < 0.3:
        x *= 1.02
    assert dominance(rows, Question(x)) < 0.5 < dominance(rows, Question(x, order=2, products="row"))
    for products in ("", "row"):
        letter = write_sums(there.job.digest, [Question(x, order=2, products=products)])
        if products:
            assert refused(h, letter) == FAILED
        else:
            assert Letter.decode(h.holders["oslo"].answer(letter.encode())).kind == "answer"


def test_d13_who_leaves_is_told_on_one_grid_for_all_jobs(tmp_path: Path) -> None:
    """Two grids differ by those who leave between their times. The wide one tells nothing but the last time."""
    h = lab(tmp_path, "cox")
    there = between(h)
    x = torch.zeros(there.d, dtype=torch.float64)

    def risks(grid: np.ndarray) -> Letter:
        return write_points(there.job.digest, "risks", [torch.from_numpy(grid), x])

    chosen = even_steps(8.0)
    chosen[17] += 1e-3
    for grid in (chosen, even_steps(8.1), np.array([1.0, 2.0])):
        assert "in even steps" in refused(h, risks(grid))
    wide = there.risks(torch.from_numpy(WIDE), x)
    assert int((wide[1] > 0).sum()) <= len(SITES)
    there.risks(torch.from_numpy(even_steps(8.0)), x)
    h.start()
    assert "in even steps to 8, once and for all jobs" in refused(h, risks(even_steps(16.0)))


def test_d14_in_no_interval_is_one_row_the_whole_risk(tmp_path: Path) -> None:
    """Neighbouring risks differ by those who leave between them: limits.rows of them, but unequal ones."""
    h = lab(tmp_path, "cox")
    there = between(h)
    rows, x = own(h, there.job), torch.zeros(there.d, dtype=torch.float64)
    grid = torch.from_numpy(even_steps(8.0))
    x[0], x[5] = 1.0, 0.5
    here = Here((rows,), ("oslo",))
    while here.heaviest_risk(grid, x) < 0.55:
        x *= 1.05
    assert dominance(rows, Question(x)) < 0.5
    assert refused(h, write_points(there.job.digest, "risks", [grid, x])) == FAILED


@pytest.mark.parametrize("what", ["estimates", "agreement"])
def test_d15_estimates_of_own_rows_are_of_one_model(what: str, tmp_path: Path) -> None:
    """Of one category alone they would be the four cells of a table; of many weightings, as many equations."""
    h = lab(tmp_path, "logistic")
    h.write({**SOME, "fit": SOME["fit"] | {"estimates": True}})
    h.start()
    there = between(h)
    order = preferred(there)
    for other in (order[:2], order[::-1], [*range(there.d)]):
        assert "the whole model" in refused(h, write(there.job.digest, what, order=other))
    letter = write(there.job.digest, what, order=order)
    first = h.holders["oslo"].answer(letter.encode())
    if what == "estimates":
        told = Letter.decode(first).head
        for b, error in zip(told["b"], told["error"], strict=True):
            if b is not None and error is not None:
                digits = 2 - floor(log10(error))
                assert (b, error) == pytest.approx((round(b, digits), round(error, digits)), rel=1e-12)
    h.start()
    weighed = Counts(torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert "and there is one" in refused(h, write(there.job.digest, what, weighed, order=order))
    assert Letter.decode(h.holders["oslo"].answer(letter.encode())).head == Letter.decode(first).head


def test_d16_agreement_tells_nothing_of_a_category_that_few_rows_have(tmp_path: Path) -> None:
    """Under masks one site's estimate would be the sum, where no other site has this category."""
    h = lab(tmp_path, "squared", _one_in_stage_III)
    there = between(h)
    sums = there.agreement(preferred(there))
    place = there.job.schema["columns"].index("stage=III")
    assert not sums[:, place].any()
    assert float(sums[0, 0]) == len(SITES)


def _separated(row: list[str], patient: bool) -> None:
    row[2] = "f" if row[5] == "ill" else "m"


def test_d17_why_there_is_no_estimate_says_nothing_of_rows(tmp_path: Path) -> None:
    h = lab(tmp_path, "logistic", _separated)
    h.write({**SOME, "fit": SOME["fit"] | {"estimates": True}})
    h.start()
    there = between(h)
    assert there.estimates(preferred(there)) == dict.fromkeys(SITES, "its rows are too few or too much alike")


def test_d18_draws_that_are_known_do_not_tell_measures_of_subsets(tmp_path: Path) -> None:
    """The coordinator knows which rows a seed draws: an interval of two draws would tell the measures of both."""
    h = lab(tmp_path, "logistic")
    h.write({**SOME, "fit": SOME["fit"] | {"measures": True}})
    h.start()
    there = between(h)
    models = torch.zeros(5, there.d, dtype=torch.float64)
    for drawn in ([2, 0.9, 0], [100, 0.999, 0], [1000, 1 - 1e-9, 0]):
        assert "two of them and more" in refused(h, write_models(there.job.digest, "judged", models, bootstrap=drawn))


def test_d19_a_model_of_own_rows_is_asked_for_in_one_way(tmp_path: Path) -> None:
    """How many coefficients are not zero at a chosen weight is a comparison with the largest sum of one site."""
    h = lab(tmp_path, "logistic")
    h.write({**SOME, "fit": SOME["fit"] | {"measures": True}})
    h.start()
    there = between(h)
    first, second = (
        write_alone(there.job.digest, read_settings({"weight": weight}), PLAIN, Bootstrap(0)) for weight in (0.1, 0.11)
    )
    assert Letter.decode(h.holders["oslo"].answer(first.encode())).kind == "answer"
    assert "and there is one" in refused(h, second)


def _one_man_in_stage_III(row: list[str], patient: bool) -> None:
    row[2], row[3] = ("m", "III") if patient else ("f" if row[3] == "III" else row[2], row[3])


def test_d20_open_products_of_a_squared_loss_tell_the_rows_of_a_cell(tmp_path: Path) -> None:
    """At four models: 2 sum a_j a_k a a' = P(e_j + e_k) - P(e_j) - P(e_k) + P(0). Here one row has both categories.

    No limit on single features sees it; `fit.inference = false` closes it."""
    h = lab(tmp_path, "squared", _one_man_in_stage_III)
    there = between(h)
    names = there.job.schema["columns"]
    j, k = names.index("sex=m"), names.index("stage=III")
    points = torch.zeros(4, there.d, dtype=torch.float64)
    points[0, [j, k]] = points[1, j] = points[2, k] = 1.0
    P = [there.ask([Question(x, order=2, products="row")])[0].products for x in points]
    assert all(each is not None for each in P)
    row = (P[0] - P[1] - P[2] + P[3])[-1] / 2  # type: ignore[operator]
    told, true = in_units(there.job, row), patient(h)
    assert float(row[-1]) == pytest.approx(1)
    assert (round(told["age"]), round(told["rate"])) == (int(true[0]), int(true[4]))
    h.write({**SOME, "fit": SOME["fit"] | {"inference": False}})
    h.start()
    letter = write_sums(there.job.digest, [Question(points[3] + 0.1, order=2, products="row")])
    assert "fit.inference = false" in refused(h, letter)


def test_d21_every_question_counts_and_is_in_the_audit_file(tmp_path: Path) -> None:
    h = lab(tmp_path, "logistic", total=2000)
    there = between(h)
    x = torch.zeros(there.d - 1, dtype=torch.float64)
    guard = h.holders["oslo"].guard
    assert isinstance(guard, SiteGuard)
    for what, ask in {
        "size": there.size,
        "agreement": lambda: there.agreement(preferred(there)),
        "intercept": lambda: there.adding_intercepts().intercept(x),
        "histogram": lambda: there.histogram(torch.zeros(5, there.d, dtype=torch.float64)),
    }.items():
        before = guard.history.answers[there.job.digest]
        ask()
        (*_, line) = guard.history.audit.read().lines
        assert line["what"] == f"query {what}"
        assert guard.history.answers[there.job.digest] - before == (5 if what == "histogram" else 1)
    h.write({**SOME, "limits": SOME["limits"] | {"answers": guard.history.answers[there.job.digest]}})
    h.start()
    assert "limits.answers" in refused(h, write(there.job.digest, "size", Counts(torch.ones(2).double())))
