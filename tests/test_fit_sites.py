"""What a site answers to a fit: sums as they would be in one place, and nothing beyond what its site.toml allows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from proxfed.errors import InputError, RunError
from proxfed.fit.here import Here
from proxfed.fit.inference.subject import Subject
from proxfed.fit.inference.survival import even_steps
from proxfed.fit.oracle import ALL, Part, Question
from proxfed.fit.own_rows import OwnRows
from proxfed.fit.settings import read_settings
from proxfed.silos.coordinator.elsewhere import Elsewhere, Kept
from proxfed.silos.coordinator.fit_agreement import agree_on_fit, announce
from proxfed.silos.protection.folds import folds
from proxfed.silos.protection.masks import COARSE
from proxfed.silos.site.fit_measures import merged
from proxfed.silos.site.site_fit import SiteFit
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.fit_questions import write, write_models, write_points, write_sums
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Letter, canonical
from proxfed.tables import read_schema
from proxfed.tables.preparation import Preparation

from support.fit_sites import SITES, TARGETS, Hospitals

MASKED = {"secure_aggregation": True}
SOME: dict[str, Any] = {"limits": {"rows": 10}, "fit": {"rows_per_coefficient": 1.0}}
"""What hospitals of 240 rows need for all losses, of which one has three classes."""


def agreed(h: Hospitals, protection: dict[str, Any] = MASKED, **settings: Any) -> Job:
    asked = read_settings({"loss": h.loss} | settings)
    return agree_on_fit(read_schema(h.folder / "tables.toml"), asked, h, dict(protection), lambda said: None).job


def elsewhere(h: Hospitals, job: Job | None = None, log: Path | None = None, **settings: Any) -> Elsewhere:
    job, exchange = job or agreed(h, **settings), Exchange(h)
    told = announce(job, exchange)
    return Elsewhere(job, exchange, told.d, Kept(log, job.digest), told.hessians, told.grams)


def here(h: Hospitals, job: Job) -> Here:
    """The same organisations with all rows in one place, in the folds that the sites have drawn."""
    return Here(tuple(own(h, name, job) for name in h.names), h.names)


def own(h: Hospitals, name: str, job: Job) -> OwnRows:
    run = h.holders[name]._runs[job.digest]
    assert isinstance(run, SiteFit)
    return run.rows.own


def points(d: int, count: int, seed: int = 0) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(0.3 * rng.standard_normal(d)) for _ in range(count)]


def preferred(there: Elsewhere, own: bool = False) -> list[int]:
    """The coefficients of the whole model, as they are estimated."""
    prepared = Preparation.from_plain(there.job.schema["preparation"])
    return Subject(there, there.loss, prepared).preferred("own" if own else "shared")


def close(one: Any, other: Any, tolerance: float = 1e-12) -> None:
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    assert float((one - other).abs().max()) <= tolerance * max(1e-3, float(other.abs().max()))


# ---- stacked = deployed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", TARGETS)
def test_masked_sums_are_those_of_all_rows_in_one_place(loss: str, tmp_path: Path) -> None:
    h = Hospitals(tmp_path, loss, site=SOME)
    there = elsewhere(h)
    together = here(h, there.job)
    asked = [Question(x, part, order) for x, part, order in zip(
        points(there.d, 5), (ALL, Part(0), Part(3), Part(2, True), ALL), (2, 1, 2, 0, 0), strict=True)]  # fmt: skip
    for one, other in zip(there.ask(asked), together.ask(asked), strict=True):
        close(one.value, other.value)
        for a, b in ((one.gradient, other.gradient), (one.hessian, other.hessian)):
            assert (a is None) == (b is None)
            if a is not None:
                close(a, b)
    close(there.counts(), together.counts())


def test_hessians_of_some_columns_are_parts_of_the_whole(tmp_path: Path) -> None:
    there = elsewhere(Hospitals(tmp_path, site=SOME))
    (x,), some = points(there.d, 1), torch.tensor([1, 4, 5])
    one, other = there.ask([Question(x, ALL, 2, some), Question(x, ALL, 2)])
    assert one.hessian is not None
    assert other.hessian is not None
    close(one.hessian, other.hessian[some][:, some])


def test_gram_matrices_are_those_of_all_rows(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, "squared", site=SOME)
    there = elsewhere(h)
    for one, other in zip(there.grams(), here(h, there.job).grams(), strict=True):
        for a, b in zip(one, other, strict=True):
            close(a, b)


def test_class_weights_travel_with_the_questions(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    there, factors = elsewhere(h), torch.tensor([0.5, 3.0], dtype=torch.float64)
    asked = [Question(points(there.d, 1)[0])]
    (one,), (other,) = there.weighing(factors).ask(asked), here(h, there.job).weighing(factors).ask(asked)
    close(one.value, other.value)
    (plain,) = there.ask(asked)
    assert abs(plain.value - one.value) > 1


def test_large_sums_keep_their_digits_under_masks(tmp_path: Path) -> None:
    """Of 10^7 and of 10^-7 in one answer: sums over rows have no scale that all of them share."""
    h = Hospitals(tmp_path, "squared", site={**SOME, "limits": {"rows": 10, "norm": 1e9, "step": 1e9}})
    there = elsewhere(h)
    x = torch.full((there.d,), 1e4, dtype=torch.float64)
    asked = [Question(x), Question(torch.zeros(there.d, dtype=torch.float64))]
    for one, other in zip(there.ask(asked), here(h, there.job).ask(asked), strict=True):
        close(one.value, other.value, 1e-14)
        close(one.gradient, other.gradient, 1e-13)
    assert there.ask(asked)[0].value > 2.0 ** (COARSE + 20)


# ---- what the coordinator reads --------------------------------------------------------------------------------------


def test_what_one_site_sends_is_noise_to_who_asks(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    there = elsewhere(h)
    h.letters.clear()
    there.ask([Question(x, ALL, 2) for x in points(there.d, 40)])
    for _, _, answer in h.letters:
        counts = np.bincount(np.frombuffer(Letter.decode(answer).body[12:], np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 6 * np.sqrt(2 * 255)


def test_the_same_question_gets_the_same_bytes_also_after_a_restart_and_from_another_life(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    there = elsewhere(h)
    question = write_sums(there.job.digest, [Question(points(there.d, 1)[0], ALL, 2)])
    first = {name: h.holders[name].answer(question.encode()) for name in SITES}
    h.start()
    again = {name: h.holders[name].answer(replace(question, life=3).encode()) for name in SITES}
    assert first == again


# ---- folds -----------------------------------------------------------------------------------------------------------


def test_folds_follow_from_the_rows_and_the_site_and_not_from_the_job(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    first, second = ((job := elsewhere(h).job, own(h, "lyon", job).fold) for _ in range(2))
    assert first[0].digest != second[0].digest
    drawn = first[1]
    assert drawn is not None
    np.testing.assert_array_equal(drawn, second[1])
    counts = np.bincount(drawn)
    assert counts.max() - counts.min() <= 2  # each class goes round the folds


def with_units(h: Hospitals, rule: str) -> None:
    """All schemas say which rows are held out together."""
    for path in (h.folder / "tables.toml", *(h.folder / name / "schema.toml" for name in h.names)):
        plain = path.read_text().partition("[folds]")[0]
        path.write_text(f"{plain}\n[folds]\n{rule}\n")
    h.start()


def test_rows_of_a_unit_are_in_one_fold_and_other_units_are_refused_later(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    with_units(h, 'block = "rate"\nlength = 5')
    job = elsewhere(h).job
    for name in h.names:
        fold, units = own(h, name, job).fold, h.holders[name].rows.units
        assert fold is not None
        assert units is not None
        assert len(set(zip(units, fold, strict=True))) == len(set(units)) > 10
        assert len(set(fold)) == 5
    with_units(h, 'group = "rate"')
    assert "another [folds], once and for all" in refused(h, job_letter(agreed(h)))


def test_the_place_of_a_row_in_the_table_says_nothing_about_its_fold() -> None:
    rng = np.random.default_rng(0)
    lines, strata = rng.integers(0, 256, (90, 16)).astype(np.uint8), rng.integers(2, size=90)
    order = rng.permutation(90)
    one, other = folds(lines, strata, 5, b"key"), folds(lines[order], strata[order], 5, b"key")
    np.testing.assert_array_equal(one[order], other)
    assert (one != folds(lines, strata, 5, b"another")).mean() > 0.5


# ---- attacks ---------------------------------------------------------------------------------------------------------


def refused(h: Hospitals, letter: Letter, name: str = "lyon") -> str:
    """What a site answers that does not take part."""
    answer = Letter.decode(h.holders[name].answer(letter.encode()))
    assert answer.kind in ("refused", "failed"), answer
    assert not answer.body
    return str(answer.head["why"])


def job_letter(job: Job) -> Letter:
    return Letter("job", job.digest, body=job.encode())


@pytest.mark.parametrize(("change", "said"), [
    ({"folds": 4}, "in 5 folds"),
    ({"folds": 64}, "in 5 folds"),
    ({"folds": 65}, "fit"),
    ({"seed": 1}, "fit"),
    ({"loss": {"name": "logistic", "delta": 1e9}}, "delta"),
    ({"loss": {"name": "os:system"}}, "brings no code"),
    ({"by": "organisation", "folds": 3}, "fit.apart"),
    ({"by": "organisation"}, "3 sites"),
])  # fmt: skip
def test_a_job_that_wants_other_folds_or_more_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    job = agreed(h)
    assert job.fit is not None
    why = refused(h, job_letter(replace(job, fit=job.fit | change)))
    assert said in why, why


@pytest.mark.parametrize(("more", "said"), [
    ({"experiment": {"protection": MASKED, "problem": {"name": "logistic"}}}, "stay with who asks"),
    ({"experiment": {}}, "masks"),
    ({"experiment": {"protection": MASKED | {"fraction_bits": 52}}}, "fraction_bits"),
    ({"experiment": {"protection": MASKED | {"privacy": {"clip": 1.0, "noise": 1.0}}}}, "noise"),
    ({"weights": (1 - 2e-14, 1e-14, 1e-14)}, "weights"),
    ({"seed": 5}, "stay with who asks"),
    ({"x0": (1.0,) * 9}, "stay with who asks"),
    ({"sites": ("lyon", "ghost", "other")}, "ghost"),
])  # fmt: skip
def test_a_job_brings_nothing_but_its_loss_and_its_sites(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    why = refused(h, job_letter(replace(agreed(h), **more)))
    assert said in why, why


def test_the_number_of_folds_does_not_change_after_the_first_fit(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    elsewhere(h)
    h.write({**SOME, "fit": {"folds": 4}})
    h.start()
    assert "5 folds, once and for all" in refused(h, job_letter(agreed(h, folds=4)))


def test_folds_of_too_few_rows_are_not_told_of(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, rows=60, site={"limits": {"rows": 20}})
    why = refused(h, job_letter(agreed(h)))
    assert "limits.rows = 20" in why
    assert "12" not in why  # how many there are


def test_hessians_need_ten_rows_for_every_coefficient(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, "cross_entropy", site={"limits": {"rows": 10}})
    there = elsewhere(h)
    assert not there.hessians
    assert not there.tells_grams
    question = write_sums(there.job.digest, [Question(points(there.d, 1)[0], ALL, 2)])
    assert "rows_per_coefficient" in refused(h, question)
    there.ask([Question(points(there.d, 1)[0])])  # gradients are told


def crafted(there: Elsewhere, **head: Any) -> Letter:
    good = write_sums(there.job.digest, [Question(points(there.d, 1)[0])])
    return replace(good, head=good.head | head)


@pytest.mark.parametrize(("head", "said"), [
    ({"asked": [[0, 5, 0, 1, -1, 0]]}, "none of the 5"),
    ({"asked": [[0, -2, 0, 1, -1, 0]]}, "no question"),
    ({"asked": [[0, 0, 1, 1, -1, 0]]}, "the loss alone"),
    ({"asked": [[0, -1, 1, 0, -1, 0]]}, "the loss alone"),
    ({"asked": [[0, -1, 0, 3, -1, 0]]}, "no question"),
    ({"asked": [[1, -1, 0, 1, -1, 0]]}, "no question"),
    ({"asked": [[0, -1, 0, True, -1, 0]]}, "no list"),
    ({"asked": []}, "no list"),
    ({"asked": [[0, -1, 0, 0, -1, 0]] * 5000}, "no list"),
    ({"rows": [3]}, "unknown key"),
    ({"seed": 1}, "unknown key"),
    ({"factors": [1.0, 1e6]}, "not between"),
    ({"factors": [0.0, 1.0]}, "not between"),
    ({"factors": [1.0, 1.0, 1.0]}, "no 2 numbers"),
    ({"asked": [[0, -1, 0, 2, 0, 0]]}, "no question"),
    ({"asked": [[0, -1, 0, 1, -1, 1]]}, "no question"),
    ({"asked": [[0, 1, 0, 2, -1, 1]]}, "no question"),
    ({"asked": [[0, -1, 0, 2, -1, 4]]}, "no question"),
    ({"own": 1}, "own is neither"),
    ({"own": True}, "no rows of 8 numbers"),
    ({"form": "(.)"}, "not two tensors"),
])  # fmt: skip
def test_questions_that_are_not_understood_to_the_last_key_tell_nothing(
    head: dict[str, Any], said: str, tmp_path: Path
) -> None:
    h = Hospitals(tmp_path, site=SOME)
    why = refused(h, crafted(elsewhere(h), **head))
    assert said in why, why


def test_points_that_no_path_leads_to_are_refused(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    there = elsewhere(h)

    def asked(x: Tensor) -> Letter:
        return write_sums(there.job.digest, [Question(x)])

    far = torch.zeros(there.d, dtype=torch.float64)
    far[0] = 50.0
    assert "limits.step" in refused(h, asked(far))
    far[0] = 1e6
    assert "limits.norm" in refused(h, asked(far))
    far[0] = float("nan")
    assert "finite" in refused(h, asked(far))
    assert "numbers" in refused(h, asked(torch.zeros(there.d + 1, dtype=torch.float64)))


def test_a_class_of_few_rows_is_not_weighed(tmp_path: Path) -> None:
    """Sums with two different class weights differ by the rows of a class."""
    h = Hospitals(tmp_path, site={"limits": {"rows": 40}})
    assert "a class has fewer rows" in refused(h, crafted(elsewhere(h), factors=[1.0, 2.0]))


def test_every_point_counts_in_the_budget_of_a_job_and_of_all_jobs(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site={**SOME, "limits": {"rows": 10, "answers": 12, "total": 20}})
    there = elsewhere(h)
    there.ask([Question(x) for x in points(there.d, 10)])
    with pytest.raises(InputError, match=r"limits\.answers = 12"):
        there.ask([Question(x) for x in points(there.d, 3, seed=1)])
    h.start()  # a restart does not make it forget
    with pytest.raises(InputError, match=r"limits\.answers = 12"):
        there.ask([Question(x) for x in points(there.d, 3, seed=2)])
    again = elsewhere(h)  # nor does another job
    with pytest.raises(InputError, match=r"limits\.total = 20"):
        again.ask([Question(x) for x in points(there.d, 9, seed=3)])


def test_the_audit_file_has_every_answer_with_the_number_of_its_points(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    there = elsewhere(h)
    there.ask([Question(x) for x in points(there.d, 7)])
    lines = [json.loads(line) for line in (tmp_path / "oslo" / "audit.jsonl").read_text().splitlines()]
    (line,) = [line for line in lines if line["what"] == "query sums"]
    assert (line["answers"], line["cohort"]) == (7, sorted(SITES))


def test_fits_are_refused_where_algorithms_are_listed_without_them(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site={**SOME, "allow": {"algorithms": ["fedavg"]}})
    assert "'fit' is not among its allow.algorithms" in refused(h, job_letter(agreed(h)))


def test_measures_of_held_out_rows_are_told_only_if_the_site_says_so(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    there = elsewhere(h)
    letter = write_models(
        there.job.digest, "judged", torch.zeros(5, there.d, dtype=torch.float64), bootstrap=[80, 0.9, 0]
    )
    assert "fit.measures" in refused(h, letter)
    h.write({**SOME, "fit": {"rows_per_coefficient": 1.0, "measures": True}})
    h.start()
    told = Letter.decode(h.holders["lyon"].answer(letter.encode()))
    assert told.head["measures"]["auc"] == [0.5, None, None]  # zeros tell nothing apart, in all draws


def test_few_rows_of_a_histogram_go_to_their_neighbours() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        counts = rng.poisson(0.7, 100)
        out = merged(counts, 5)
        assert out.sum() == counts.sum()
        assert ((out == 0) | (out >= 5)).all()
    assert not merged(np.array([2, 1, 0, 1]), 5).any()


def test_a_site_that_changes_its_rows_on_the_way_is_refused(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    there = elsewhere(h)
    file = tmp_path / "lyon" / "lyon.csv"
    file.write_text("\n".join(file.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises((InputError, RunError), match="rows"):
        there.ask([Question(points(there.d, 1)[0])])


# ---- the journal -----------------------------------------------------------------------------------------------------


def test_answers_are_kept_and_not_asked_for_again(tmp_path: Path) -> None:
    h = Hospitals(tmp_path / "sites", site=SOME)
    there = elsewhere(h, log=tmp_path / "log")
    asked = [[Question(x)] for x in points(there.d, 3)]
    first = [there.ask(each)[0] for each in asked]
    h.letters.clear()
    again = Elsewhere(there.job, Exchange(h, 2), there.d, Kept(tmp_path / "log", there.job.digest))
    for one, other in zip(first, (again.ask(each)[0] for each in asked), strict=True):
        assert one.value == other.value
        assert one.gradient is not None
        assert other.gradient is not None
        assert torch.equal(one.gradient, other.gradient)
    assert not h.letters
    assert again.traffic == there.traffic


def test_a_torn_or_foreign_journal_is_asked_for_again(tmp_path: Path) -> None:
    h = Hospitals(tmp_path / "sites", site=SOME)
    log = tmp_path / "log"
    there = elsewhere(h, log=log)
    asked = [[Question(x)] for x in points(there.d, 2)]
    first = [there.ask(each)[0].value for each in asked]
    log.write_bytes(log.read_bytes()[:-5])
    h.letters.clear()
    again = Elsewhere(there.job, Exchange(h, 2), there.d, Kept(log, there.job.digest))
    assert [again.ask(each)[0].value for each in asked] == first
    assert len(h.letters) == len(SITES)
    assert len(Kept(log, there.job.digest).known) == 2
    assert not Kept(log, "another run").known


def test_a_job_is_written_in_one_way(tmp_path: Path) -> None:
    job = agreed(Hospitals(tmp_path, site=SOME))
    assert Job.decode(job.encode()) == job
    assert canonical(json.loads(job.encode())) == job.encode()


# ---- standard errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
def test_what_standard_errors_need_is_that_of_all_rows(own: bool, tmp_path: Path) -> None:
    h = Hospitals(tmp_path, site=SOME)
    there = elsewhere(h)
    together = here(h, there.job)
    both = (there.adding_intercepts(), together.adding_intercepts()) if own else (there, together)
    x = points(both[0].d, 1)[0]
    (one,), (other,) = (each.ask([Question(x, order=2, products="row")]) for each in both)
    assert one.products is not None
    assert other.products is not None
    close(one.hessian, other.hessian)
    close(one.products, other.products)
    for a, b in zip(*(each.size() for each in both), strict=True):
        close(a, b)
    close(*(each.agreement(preferred(there, own)) for each in both), 1e-9)
    if own:
        close(there.adding_intercepts().intercept(x), together.adding_intercepts().intercept(x))


def test_what_a_site_does_not_tell_for_standard_errors(tmp_path: Path) -> None:
    """Clusters of a whole organisation, clusters that are few, estimates of its own rows, and none of it."""
    h = Hospitals(tmp_path, site=SOME)
    there = elsewhere(h)
    x = points(there.d, 1)[0]
    for products, said in (("organisation", "fit.apart = false"), ("cluster", "needs target.cluster")):
        assert said in refused(h, write_sums(there.job.digest, [Question(x, order=2, products=products)]))
    assert there.estimates(preferred(there)) == {}
    assert "fit.estimates = false" in refused(h, write(there.job.digest, "estimates", order=preferred(there)))
    assert "the whole model" in refused(h, write(there.job.digest, "estimates", order=[0, 1]))
    for order in ([], [0, 0], [there.d], [-1], "all"):
        assert "no choice" in refused(h, write(there.job.digest, "agreement", order=order))
    assert "an intercept is asked for" in refused(h, write_points(there.job.digest, "intercept", [x[:-1]]))
    assert "survival" in refused(h, write_points(there.job.digest, "risks", [torch.ones(1).double(), x]))
    h.write({**SOME, "fit": SOME["fit"] | {"inference": False}})
    h.start()
    for letter in (write(there.job.digest, "size"), write_sums(there.job.digest, [Question(x, ALL, 2, None, "row")])):
        assert "fit.inference = false" in refused(h, letter)
    h.write({**SOME, "fit": SOME["fit"] | {"estimates": True}})
    h.start()
    told = elsewhere(h).estimates(preferred(there))
    assert set(told) == set(SITES)


def test_no_interval_of_time_tells_of_few_rows(tmp_path: Path) -> None:
    h = Hospitals(tmp_path, "cox", site=SOME)
    there = elsewhere(h)
    grid = torch.from_numpy(even_steps(8.0))
    sums = []
    for name in SITES:
        alone = Here((own(h, name, there.job),), (name,)).risks(grid, torch.zeros(there.d).double())
        events, leaving = alone[:2]
        fewest = h.holders[name].guard.fewest
        assert fewest > 1
        assert bool(((leaving == 0) | (leaving >= fewest)).all())
        assert bool(((events == 0) | (events >= fewest)).all())
        sums.append(alone)
    close(there.risks(grid, torch.zeros(there.d).double()), sum(sums))
