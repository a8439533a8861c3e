"""A coordinator, or a site, that deviates from the protocol: what it is refused, and what it gets all the same.

The coordinator is played with hand-made letters against sites whose guard is in force. Each test says what the attack
yields; docs/explanation/threat-model.md has the same as a table.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxfed.engine.noise import epsilon
from proxfed.errors import InputError
from proxfed.harness.experiment import Experiment, parse
from proxfed.silos.coordinator.coordinator import Coordinator
from proxfed.silos.coordinator.deploy import deploy, handshake
from proxfed.silos.protection.keyring import Keyring, SiteKey, fingerprint
from proxfed.silos.protection.masks import add_up, pads, to_values
from proxfed.silos.protection.privacy import noises
from proxfed.silos.protection.site_guard import SiteGuard
from proxfed.silos.site.config import parse_site
from proxfed.silos.site.from_config import holder
from proxfed.silos.site.holder import Holder
from proxfed.silos.wire.carrier import Direct
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Letter, pack, unpack

SITES = ("cleveland", "hungarian", "va")
COLUMNS = ("age", "sex", "pressure", "rate")
D = len(COLUMNS) + 1
"""With an intercept."""
PLAIN: dict[str, Any] = {"limits": {"rows": 50}}
MASKED: dict[str, Any] = {"limits": {"rows": 50}, "require": {"secure_aggregation": True, "sites": 3}}
PRIVATE = {"noise": 8.0, "epsilon": 50.0, "delta": 1e-5}


def patients(site: str, rows: int = 150) -> np.ndarray:
    """age, sex, pressure, rate and whether they are ill; some are alone in their year of age."""
    rng = np.random.default_rng(SITES.index(site))
    age = np.clip(np.round(rng.normal(55, 9, rows)), 29, 79)
    table = np.column_stack([age, rng.integers(0, 2, rows), rng.integers(90, 190, rows), rng.integers(70, 200, rows)])
    ill = np.where(age - table[:, 3] / 4 + rng.normal(0, 6, rows) > 20, 1, -1)
    return np.column_stack([table, ill]).astype(float)


class Lab:
    """Three hospitals with files, keys and pinned partners."""

    def __init__(self, folder: Path, tables: dict[str, Any], data: dict[str, Any] | None = None, **more: Any) -> None:
        self.folder, self.tables, self.data = folder, tables, data or {}
        for site in SITES:
            (folder / site).mkdir(parents=True, exist_ok=True)
            self.write(site, patients(site))
            if not (folder / site / "site.key").exists():
                SiteKey.create(folder / site / "site.key")
        self.keys = {site: SiteKey.read(folder / site / "site.key") for site in SITES}
        self.start()

    def write(self, site: str, table: np.ndarray) -> None:
        lines = [",".join(map(str, row)) for row in table.tolist()]
        (self.folder / site / "p.csv").write_text("\n".join([",".join([*COLUMNS, "ill"]), *lines]) + "\n")

    def start(self) -> None:
        """Anew from what is on the disk."""
        self.holders = {site: self._holder(site) for site in SITES}

    def _holder(self, site: str) -> Holder:
        pinned = {o: fingerprint(key.public) for o, key in self.keys.items() if o != site}
        table = {"name": site, "data": {"path": "p.csv", "label": "ill", **self.data}, "partners": pinned}
        return holder(parse_site(json.loads(json.dumps(table | self.tables)), "site.toml", self.folder / site))

    @property
    def carrier(self) -> Direct:
        return Direct({site: here.answer for site, here in self.holders.items()})

    def job(self, e: Experiment | None = None) -> Job:
        """As an honest coordinator has it after the handshake, with the first algorithm."""
        e = e or experiment()
        table = {"label": "it", "participation": {"name": "full"}} | e.algorithms[0]
        return handshake(e, self.carrier, say=lambda line: None).job.of(table, "it", 0)

    def ask(self, site: str, letter: Letter) -> Letter:
        return Letter.decode(self.holders[site].answer(letter.encode()))

    def tell(self, job: Job, *sites: str) -> dict[str, Letter]:
        return {site: self.ask(site, Letter("job", job.digest, body=job.encode())) for site in sites or SITES}

    def point(self, job: Job, site: str, x: Any, *parts: str, **more: Any) -> Letter:
        form, body = pack((torch.as_tensor(x, dtype=torch.float64),), ())
        head = {"what": "point", "parts": list(parts or ["gradient"]), "form": form}
        return self.ask(site, Letter("query", job.digest, 0, 0, head, body, **more))

    def round(self, job: Job, site: str, t: int, x: Any, **more: Any) -> Letter:
        """FedAvg's message at a model of the coordinator's choosing; with eta = 1, K = 1 it is x - gradient."""
        if t == 1:
            assert self.ask(site, Letter("round", job.digest, 0, 0, {"after": -1})).kind == "answer"
        form, body = pack(torch.as_tensor(x, dtype=torch.float64), ())
        head = {"form": form, "cohort": list(job.sites), "ids": [job.sites.index(site)], "after": t - 1} | more
        return self.ask(site, Letter("round", job.digest, t, 0, head, body))


def experiment(**over: Any) -> Experiment:
    table = {
        "name": "x",
        "rounds": 5,
        "data": {"name": "synthetic_binary"},
        "problem": {"name": "logistic", "intercept": True, "weighting": "uniform"},
        "algorithms": [{"name": "fedavg", "eta": 1.0, "K": 1}],
    }
    return parse(table | over, "x")


MASKS = experiment(protection={"secure_aggregation": True})


def refused(letter: Letter, why: str) -> None:
    assert letter.kind == "refused", (letter.kind, letter.head)
    assert why in letter.head["why"]


def number(letter: Letter) -> np.ndarray:
    assert letter.kind == "answer", letter.head
    found = unpack(letter.head["form"], letter.body, (), 0, 0)
    return (found[0] if isinstance(found, tuple) else found).flatten().numpy()


def gradient(site: str, x: Any) -> np.ndarray:
    """As nobody but the site itself can compute it."""
    table = patients(site)
    A, y = np.column_stack([table[:, :-1], np.ones(len(table))]), table[:, -1]
    return -(A * (y / (1 + np.exp(y * (A @ np.asarray(x)))))[:, None]).mean(0)


# ---- a1 to a10 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 49])
def test_a1_batches_of_a_row_are_refused(batch: int, tmp_path: Path) -> None:
    """Each round gave a patient, exactly. Yields nothing."""
    e = experiment(problem={"name": "logistic", "intercept": True, "batch": batch, "weighting": "uniform"})
    lab = Lab(tmp_path, PLAIN | {"allow": {"minibatches": True}})
    for letter in lab.tell(lab.job(e)).values():
        refused(letter, f"problem.batch = {batch} is less than limits.rows = 50")
    closed = Lab(tmp_path / "closed", PLAIN)
    for letter in closed.tell(closed.job(e)).values():
        refused(letter, "gradients of some rows only are not told (allow.minibatches = false)")


def test_a2_weights_that_leave_one_site_in_the_sum_are_refused(tmp_path: Path) -> None:
    """The sum was a hospital's gradient to 3e-13. Yields nothing."""
    lab = Lab(tmp_path, MASKED)
    job = replace(lab.job(MASKS), weights=(1.0 - 2e-14, 1e-14, 1e-14))
    for letter in lab.tell(job).values():
        refused(letter, "the job's weights differ, and problem.weighting = 'uniform'")
    counted = Lab(tmp_path / "counted", MASKED | {"allow": {"counts": True}})
    sized = experiment(
        protection={"secure_aggregation": True}, problem={"name": "logistic", "intercept": True, "weighting": "size"}
    )
    for letter in counted.tell(replace(counted.job(sized), weights=job.weights)).values():
        refused(letter, "weighs more than 10 times as much as another (limits.weights)")


def test_a3_partners_that_the_coordinator_made_up_are_refused(tmp_path: Path) -> None:
    """With keys of its own for two ghosts it took off the masks. Yields nothing."""
    lab = Lab(tmp_path, MASKED)
    honest = lab.job(MASKS)
    ghosts = {name: SiteKey.create(tmp_path / f"{name}.key") for name in ("ghost1", "ghost2")}
    said = {name: key.introduction().hex() for name, key in ghosts.items()}
    job = replace(honest, sites=("cleveland", *ghosts), introductions=honest.introductions | said)
    refused(lab.tell(job, "cleveland")["cleveland"], "ghost1, ghost2: not among its [partners]")
    named = replace(honest, introductions=honest.introductions | {"va": said["ghost1"]})
    refused(lab.tell(named, "cleveland")["cleveland"], "audit file of va is was not signed with the key of va")
    named = replace(named, audits={})
    lab.tell(named, "cleveland")
    refused(lab.point(named, "cleveland", np.zeros(D)), "va came with the key")


def test_a4_measures_on_test_rows_are_coarse_and_give_no_count_and_no_row(tmp_path: Path) -> None:
    """88 questions gave a row. Threshold models are refused; near zero, measures have two digits and 5/m steps.

    In a job with privacy they are off. Yields accuracy to within five rows, at models within limits.norm.
    """
    lab = Lab(tmp_path, PLAIN | {"limits": {"rows": 20}}, {"held_out": 0.2})
    job = lab.job()
    lab.tell(job)
    refused(lab.point(job, "va", [1e6, 0, 0, 0, -5e7], "test"), "limits.norm = 100")
    told = lab.point(job, "va", np.zeros(D), "test")
    assert told.head["rows"] == 0  # how many there are is not told
    m = 30
    step = 5 / m
    for k in range(20):
        x = [0.01 * k, 0, 0, 0, -0.5 * k]
        values = lab.point(job, "va", x, "test").head["test"]
        assert abs(values["accuracy"] / step - round(values["accuracy"] / step)) < 1e-9
        nudged = lab.point(job, "va", np.add(x, 1e-6), "test").head["test"]
        assert nudged["test_loss"] == values["test_loss"]  # no derivative to be had
    few = Lab(tmp_path / "few", PLAIN, {"held_out": 0.2})
    job = few.job()
    few.tell(job)
    refused(few.point(job, "va", np.zeros(D), "test"), "it has fewer test rows than limits.rows = 50")
    private = Lab(tmp_path / "private", {"limits": {"rows": 20}, "require": {"privacy": PRIVATE}}, {"held_out": 0.2})
    job = private.job(experiment(protection={"privacy": {"clip": 1.0, "noise": 8.0}}))
    private.tell(job)
    refused(private.point(job, "va", np.zeros(D), "test"), "'test' would be told without noise")


def test_a5_gradients_at_threshold_models_are_refused_and_answers_are_counted(tmp_path: Path) -> None:
    """52 gradients gave every patient who was alone in a year of age. Hard thresholds are refused, in queries and in
    rounds; answers of all kinds count. What soft thresholds within the limits yield is in the test below."""
    lab = Lab(tmp_path, PLAIN | {"limits": {"rows": 50, "answers": 6}})
    job = lab.job()
    lab.tell(job)
    for age in (40.5, 41.5):
        refused(lab.point(job, "va", [1e4, 0, 0, 0, -1e4 * age]), "limits.norm = 100")
        refused(lab.round(job, "va", 1, [1e4, 0, 0, 0, -1e4 * age]), "limits.norm = 100")
    refused(lab.point(job, "va", [0, 0, 0, 0, 50.0]), "50 away from all those before it, and limits.step = 10")
    before = sum(letter.kind == "answer" for letter in [lab.point(job, "va", [0, 0, 0, 0, 0.1 * k]) for k in range(9)])
    assert before == 5  # the beginning of the rounds has counted
    lab.start()
    refused(lab.point(job, "va", np.zeros(D)), "limits.answers = 6 of this job have been given")
    other = lab.job()
    lab.tell(other)
    assert lab.point(other, "va", np.zeros(D)).kind == "answer"


def test_a5_the_budget_over_all_jobs_outlives_jobs_and_restarts(tmp_path: Path) -> None:
    lab = Lab(tmp_path, PLAIN | {"limits": {"rows": 50, "total": 5}})
    given = 0
    for _ in range(4):
        job = lab.job()
        lab.tell(job)
        letters = [lab.point(job, "va", [0, 0, 0, 0, 0.1 * k]) for k in range(2)]
        given += sum(letter.kind == "answer" for letter in letters)
        lab.start()
    assert given == 5
    refused(letters[-1], "limits.total = 5 answers have been given, over all jobs")


def soft_thresholds(lab: Lab, job: Job, ask: Any) -> np.ndarray:
    """(ages, columns) sums of the rows of each year of age, as far as gradients of small models tell them.

    gradient(t) = mean_i sigma(b (age_i - t)) a_i - c is a histogram by age that is smoothed, and numbers that are exact
    to 16 digits undo the smoothing.
    """
    slope, ages = 1.2, np.arange(28, 81)
    first = slope * np.array([1, 0, 0, 0, -float(ages[0])])
    for share in np.linspace(0, 1, 12):  # there in steps that are short enough
        ask(share * first)
    told = np.array([ask(slope * np.array([1, 0, 0, 0, -float(t)])) for t in ages])
    every = ages[1:-1]
    kernel = 1 / (1 + np.exp(-slope * (every[None] - ages[:, None])))
    return np.linalg.lstsq(np.column_stack([kernel, -np.ones(len(ages))]), told, rcond=None)[0][:-1]


def read_alone(sums: np.ndarray, table: np.ndarray) -> tuple[int, int]:
    """(how many patients who are alone in their year of age come out to within half a unit, how many there are)."""
    ages, counts = np.unique(table[:, 0], return_counts=True)
    rows = [table[table[:, 0] == age][0, :-1] for age in ages[counts == 1]]
    found = [sums[int(row[0]) - 29] for row in rows]
    return sum(np.abs(f[:-1] / f[-1] - r).max() < 0.5 for f, r in zip(found, rows, strict=True)), len(rows)


def test_open_soft_thresholds_within_the_limits_give_rows_where_there_is_no_noise(tmp_path: Path) -> None:
    """OPEN. 64 exact gradients at models within limits.norm and limits.step give patients who are alone in their year
    of age. Limits make that slow and leave it in the audit file; only noise closes it."""
    lab = Lab(tmp_path, PLAIN)
    job = lab.job()
    lab.tell(job)
    sums = soft_thresholds(lab, job, lambda x: number(lab.point(job, "va", x)))
    found, alone = read_alone(sums, patients("va"))
    assert found == alone > 3
    assert lab.holders["va"].guard.history.answers[job.digest] == 64  # type: ignore[attr-defined]


def test_open_under_masks_the_same_gives_rows_but_not_whose(tmp_path: Path) -> None:
    """OPEN. Of the sum it gives patients who are alone in their year of age over all sites together."""
    lab = Lab(tmp_path, MASKED)
    job = lab.job(MASKS)
    lab.tell(job)

    def ask(x: Any) -> np.ndarray:
        letters = [lab.point(job, site, x) for site in SITES]
        words = [unpack(letter.head["form"], letter.body, (), 0, 0)[0].flatten() for letter in letters]
        return add_up(torch.stack(words), 40).numpy()

    found, alone = read_alone(soft_thresholds(lab, job, ask), np.concatenate([patients(site) for site in SITES]))
    assert found == alone > 0


def test_with_noise_soft_thresholds_give_no_row(tmp_path: Path) -> None:
    """Through rounds, as gradients are not told in such a job. Yields what epsilon allows."""
    lab = Lab(tmp_path, {"limits": {"rows": 50}, "require": {"privacy": PRIVATE}})
    job = lab.job(experiment(protection={"privacy": {"clip": 1.0, "noise": 8.0}}))
    lab.tell(job)
    refused(lab.point(job, "va", np.zeros(D)), "'gradient' would be told without noise")
    t = iter(range(1, 100))
    sums = soft_thresholds(lab, job, lambda x: x - number(lab.round(job, "va", next(t), x)))
    assert read_alone(sums, patients("va"))[0] == 0


def test_a6_a_refusal_carries_no_number_of_the_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It told a site's loss to three digits. Yields that a number was too large, which counts as an answer."""
    lab = Lab(tmp_path, MASKED)
    fine = experiment(protection={"secure_aggregation": True, "fraction_bits": 52})
    for letter in lab.tell(lab.job(fine)).values():
        refused(letter, "protection.fraction_bits = 52, and require.fraction_bits = 40")
    wide = Lab(tmp_path / "wide", MASKED | {"limits": {"rows": 50, "norm": 1e9, "step": 1e9}})
    job = wide.job(MASKS)
    wide.tell(job)
    x = np.zeros(D)
    x[3] = 1e6
    for site in SITES:
        said = wide.point(job, site, x, "value", "gradient")
        assert (said.kind, said.head["why"]) == ("failed", "a query failed; the log of the site says why")
        assert wide.holders[site].guard.history.answers[job.digest] == 1  # type: ignore[attr-defined]
    assert "does not fit the range" in caplog.text


def test_a7_every_noisy_message_counts_for_the_holder(tmp_path: Path) -> None:
    """Ten clients at a site and three rounds counted as three messages. They are thirty."""
    lab = Lab(tmp_path, {"limits": {"rows": 10}, "require": {"privacy": PRIVATE}}, {"client": "ward"})
    for site in SITES:
        table = patients(site)
        ward = np.arange(len(table)) % 10
        lines = [",".join(map(str, [*row, w])) for row, w in zip(table.tolist(), ward, strict=True)]
        text = "\n".join([",".join([*COLUMNS, "ill", "ward"]), *lines]) + "\n"
        (tmp_path / site / "p.csv").write_text(text)
    lab.start()
    e = experiment(rounds=3, protection={"privacy": {"clip": 1.0, "noise": 8.0}})
    results = deploy(e, lab.carrier, tmp_path / "run", progress=False, say=lambda line: None)
    told = epsilon({8.0: 30}, 1e-5)
    assert results.rows[-1]["epsilon"] == pytest.approx(told)
    lines = lab.holders["va"].guard.history.audit.read().lines  # type: ignore[attr-defined]
    assert noises(lines) == {8.0: 30}
    strict = {"limits": {"rows": 10}, "require": {"privacy": PRIVATE | {"epsilon": told * 0.99}}}
    again = Lab.__new__(Lab)
    again.__dict__ |= lab.__dict__ | {"folder": tmp_path, "tables": strict}
    again.start()
    with pytest.raises(InputError, match="with one more message epsilon would be"):
        deploy(e, again.carrier, tmp_path / "more", progress=False, say=lambda line: None)


def test_a8_is_in_test_silos_bad_sites() -> None:
    """NaN, infinities and 1e5: named and left out, or the round refused."""
    import test_silos_bad_sites as bad

    assert bad.test_a_message_that_cannot_be_meant_is_left_out_and_its_site_named


def test_a9_a_table_that_grew_by_one_patient_begins_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The difference of two jobs was that patient. Yields that something changed."""
    lab = Lab(tmp_path, PLAIN)
    lab.tell(lab.job())
    new = np.array([[79.0, 1, 150, 100, 1]])
    lab.write("va", np.concatenate([patients("va"), new]))
    job = lab.job()
    refused(lab.tell(job, "va")["va"], "it begins nothing new now; the log of the site says why")
    assert "differ from those of an earlier job in fewer rows than limits.change" in caplog.text
    lab.start()  # nor after a restart, nor with one patient less
    refused(lab.tell(job, "va")["va"], "it begins nothing new now")
    lab.write("va", patients("va")[1:])
    refused(lab.tell(lab.job(), "va")["va"], "it begins nothing new now")
    lab.write("va", np.concatenate([patients("va"), *[new - [k, 0, 0, 0, 0] for k in range(20)]]))
    assert lab.tell(lab.job(), "va")["va"].kind == "answer"
    lab.write("va", patients("va"))  # the first one again tells nothing new
    assert lab.tell(lab.job(), "va")["va"].kind == "answer"


def test_a10_a_second_job_without_one_site_is_refused(tmp_path: Path) -> None:
    """The difference of two sums was the missing site's. Yields nothing."""
    lab = Lab(tmp_path, MASKED | {"require": {"secure_aggregation": True, "sites": 2}})
    whole = lab.job(MASKS)
    lab.tell(whole)
    assert all(lab.point(whole, site, np.zeros(D)).kind == "answer" for site in SITES)
    two = Direct({site: lab.holders[site].answer for site in SITES[:2]})
    for again in range(2):
        job = handshake(MASKS, two, say=lambda line: None).job
        for letter in lab.tell(job, *SITES[:2]).values():
            refused(letter, "an earlier job differs by va only, and limits.partners = 2")
        if not again:
            lab.start()
            two = Direct({site: lab.holders[site].answer for site in SITES[:2]})


def test_a10_replays_smaller_cohorts_and_sums_of_one_fail(tmp_path: Path) -> None:
    """Yields the same bytes, or nothing."""
    lab = Lab(tmp_path, MASKED | {"require": {"secure_aggregation": True, "sites": 2}})
    job = lab.job(MASKS)
    lab.tell(job)
    first = lab.round(job, "va", 1, np.zeros(D))
    assert lab.round(job, "va", 1, np.zeros(D)) == first
    assert lab.round(job, "va", 1, np.zeros(D), cohort=["hungarian", "va"]).kind == "late"
    refused(lab.round(job, "va", 2, np.zeros(D), cohort=["va"]), "a sum of 1 sites")


# ---- more of them ----------------------------------------------------------------------------------------------------


def test_b1_cohorts_of_one_job_that_differ_by_a_site_are_refused(tmp_path: Path) -> None:
    """Differencing over rounds: the same model for all three sites, then for two. Yields nothing."""
    lab = Lab(tmp_path, MASKED | {"require": {"secure_aggregation": True, "sites": 2}})
    job = lab.job(MASKS)
    lab.tell(job)
    for site in SITES:
        assert lab.round(job, site, 1, np.zeros(D)).kind == "answer"
    for site in SITES[:2]:
        refused(lab.round(job, site, 2, np.zeros(D), cohort=list(SITES[:2])), "require.same_cohort = true")


def test_b2_the_same_sites_with_other_weights_are_refused(tmp_path: Path) -> None:
    """Differencing over weights: as many weightings as sites give every message. Yields nothing after the first."""
    tables = MASKED | {"allow": {"counts": True}}
    lab = Lab(tmp_path, tables)
    sized = experiment(
        protection={"secure_aggregation": True}, problem={"name": "logistic", "intercept": True, "weighting": "size"}
    )
    first = replace(lab.job(sized), weights=(0.5, 0.25, 0.25))
    assert all(letter.kind == "answer" for letter in lab.tell(first).values())
    for letter in lab.tell(replace(lab.job(sized), weights=(0.25, 0.5, 0.25))).values():
        refused(letter, "an earlier job between the same sites had other weights")


def test_b3_known_minibatches_give_all_rows_so_they_are_off(tmp_path: Path) -> None:
    """Which rows a batch has follows from the seed, which the coordinator chose. With a step of 1e-9 the model stands
    still, and as many rounds as rows give every row by linear algebra. Refused twice; allowed it yields every row."""
    e = experiment(
        problem={"name": "logistic", "intercept": True, "batch": 60, "weighting": "uniform"},
        algorithms=[{"name": "fedavg", "eta": 1e-9, "K": 1}],
    )
    lab = Lab(tmp_path, PLAIN)
    refused(lab.tell(lab.job(e), "va")["va"], "allow.minibatches = false")
    open_ = Lab(tmp_path / "open", PLAIN | {"allow": {"minibatches": True}})
    refused(open_.tell(open_.job(e), "va")["va"], "algorithm.eta = 1e-09 is not between")


@pytest.mark.parametrize("weight", [1e6, 1e-6, 0.0])
def test_b4_class_weights_that_single_out_a_class_are_refused(weight: float, tmp_path: Path) -> None:
    """Label inference: with one class weighed down to nothing, a gradient is that of the other class's rows alone."""
    lab = Lab(tmp_path, PLAIN)
    problem = {"name": "logistic", "intercept": True, "class_weights": {"1": weight}, "weighting": "uniform"}
    refused(lab.tell(lab.job(experiment(problem=problem)), "va")["va"], "problem.class_weights.1 = ")


def test_b5_open_the_share_of_a_class_follows_from_one_gradient(tmp_path: Path) -> None:
    """OPEN, label inference: at zero the gradient of the intercept is (share of -1 - share of +1)/2, exactly."""
    lab = Lab(tmp_path, PLAIN)
    job = lab.job()
    lab.tell(job)
    share = 0.5 - number(lab.point(job, "va", np.zeros(D)))[-1]
    assert share == pytest.approx((patients("va")[:, -1] == 1).mean(), abs=1e-12)


def test_b6_membership_by_two_tables_is_the_same_as_a9(tmp_path: Path) -> None:
    """Was this patient among them? A table with one row replaced begins nothing, whoever is in it."""
    lab = Lab(tmp_path, PLAIN)
    lab.tell(lab.job())
    table = patients("va")
    table[7] = [79, 1, 150, 100, 1]
    lab.write("va", table)
    refused(lab.tell(lab.job(), "va")["va"], "it begins nothing new now")


def test_b7_held_out_rows_that_move_count_as_a_change(tmp_path: Path) -> None:
    """Differencing over folds: which rows are held out is the site's, and a fold that moves by a row begins nothing."""
    lab = Lab(tmp_path, PLAIN, {"held_out": 0.1})
    lab.tell(lab.job())
    lab.data = {"held_out": 0.1 + 1.5 / 150}
    lab.start()
    refused(lab.tell(lab.job(), "va")["va"], "it begins nothing new now")


def test_b8_open_a_site_that_colludes_takes_the_masks_off_two(tmp_path: Path) -> None:
    """OPEN, collusion: of three sites, two that show the coordinator their pads leave the third one's message bare.
    One of them alone leaves the sum of two, which require.sites = 3 does not forbid. Noise closes it."""
    lab = Lab(tmp_path, MASKED)
    job = lab.job(MASKS)
    lab.tell(job)
    form, body = pack((torch.zeros(D, dtype=torch.float64),), ())
    q = Letter("query", job.digest, 0, 0, {"what": "point", "parts": ["gradient"], "form": form}, body)
    letter = lab.ask("va", q)
    masked = unpack(letter.head["form"], letter.body, (), 0, 0)[0].flatten().numpy().view(np.uint64)
    said = {site: bytes.fromhex(word) for site, word in job.introductions.items()}
    asked = f"{q.digest} {q.life}".encode()
    traitors = [
        pads(Keyring.of(lab.keys[site], site, job.digest, said), list(job.sites), 0, asked, D) for site in SITES[:2]
    ]
    both = to_values(np.sum([masked, *traitors], axis=0, dtype=np.uint64), 40) * 3
    one = to_values(np.sum([masked, traitors[0]], axis=0, dtype=np.uint64), 40) * 3
    np.testing.assert_allclose(both, gradient("va", np.zeros(D)), atol=1e-9)
    assert np.abs(one - gradient("va", np.zeros(D))).max() > 1e3  # still under the other pad


def test_b9_the_same_model_again_is_answered_with_the_same_bytes_and_not_counted(tmp_path: Path) -> None:
    """Replay, and averaging of noise. Yields nothing new."""
    lab = Lab(tmp_path, {"limits": {"rows": 50}, "require": {"privacy": PRIVATE}})
    job = lab.job(experiment(protection={"privacy": {"clip": 1.0, "noise": 8.0}}))
    lab.tell(job)
    first = lab.round(job, "va", 1, np.zeros(D))
    lab.start()
    assert lab.round(job, "va", 1, np.zeros(D)) == first
    plain = Lab(tmp_path / "plain", PLAIN)
    job = plain.job()
    plain.tell(job)
    told = [plain.point(job, "va", np.zeros(D)) for _ in range(5)]
    assert all(letter == told[0] for letter in told)
    assert plain.holders["va"].guard.history.answers[job.digest] == 1  # type: ignore[attr-defined]


def test_b10_a_nonce_that_was_used_before_gives_the_same_job_and_pads(tmp_path: Path) -> None:
    """Nonce reuse: the coordinator cannot get two contents under one pad. With another model the pads are others; with
    other rows the job is refused."""
    lab = Lab(tmp_path, MASKED)
    job = lab.job(MASKS)
    lab.tell(job)
    one = lab.point(job, "va", np.zeros(D))
    other = lab.point(job, "va", np.full(D, 1e-3))
    words = [unpack(a.head["form"], a.body, (), 0, 0)[0].flatten().numpy().view(np.uint64) for a in (one, other)]
    change = to_values(words[1] - words[0], 40)
    assert np.abs(change).max() > 1e3  # no difference of gradients, but of pads
    lab.write("va", patients("hungarian"))
    assert "the rows are not those that the run was begun with" in lab.tell(job, "va")["va"].head["why"]
    assert lab.point(job, "va", np.zeros(D)).kind == "refused"


@pytest.mark.parametrize("columns", [["age"], ["age", "sex", "rate", "name"], [*COLUMNS, "name"]])
def test_b11_a_job_takes_every_column_once_and_no_other(columns: list[str], tmp_path: Path) -> None:
    """Schema probing: models of one column at a time, or a guess at other columns. Yields one sentence for all."""
    lab = Lab(tmp_path, PLAIN)
    job = lab.job()
    schema = job.schema | {"columns": columns, "shape": [len(columns)]}
    refused(lab.tell(replace(job, schema=schema), "va")["va"], "its rows do not fit the job; the log of the site says")


def test_b12_refusals_do_not_tell_how_many_rows_there_are(tmp_path: Path) -> None:
    """Batches of growing size were a way to count rows. Yields the same answer for every size."""
    lab = Lab(tmp_path, PLAIN | {"allow": {"minibatches": True}})
    said = set()
    for batch in (50, 149, 150, 151, 10_000):
        e = experiment(problem={"name": "logistic", "intercept": True, "batch": batch, "weighting": "uniform"})
        letter = lab.tell(lab.job(e), "va")["va"]
        said.add((letter.kind, str(letter.head.get("why")).replace(str(batch), "")))
    assert len(said) == 1


def test_b13_an_unknown_table_or_key_is_refused(tmp_path: Path) -> None:
    """Smuggling: what a site does not know it does not skip."""
    lab = Lab(tmp_path, PLAIN)
    job = lab.job()
    smuggled = replace(job, experiment=job.experiment | {"data": {"name": "own", "path": "/etc/passwd"}})
    refused(lab.tell(smuggled, "va")["va"], "the job has a table ['data']")
    keyed = replace(job, experiment=job.experiment | {"problem": {"name": "logistic", "rows_of": "bob"}})
    refused(lab.tell(keyed, "va")["va"], "unknown key 'rows_of'")


def test_b14_models_of_nan_are_refused(tmp_path: Path) -> None:
    """Crafted models: a NaN in one coefficient shows in which numbers of an answer it takes part."""
    lab = Lab(tmp_path, PLAIN)
    job = lab.job()
    lab.tell(job)
    for bad in (np.nan, np.inf):
        x = np.zeros(D)
        x[1] = bad
        refused(lab.point(job, "va", x), "a number that was sent is not finite")
        refused(lab.round(job, "va", 1, x), "a number that was sent is not finite")


def test_b15_a_start_far_away_is_refused(tmp_path: Path) -> None:
    """Crafted models: the job's x0 is where the path begins, so that it is bounded as well."""
    lab = Lab(tmp_path, PLAIN)
    job = replace(lab.job(), x0=(1e4, 0.0, 0.0, 0.0, -5e5))
    refused(lab.tell(job, "va")["va"], "limits.norm = 100")


def test_a_site_that_was_restarted_goes_on_from_wherever_the_model_is(tmp_path: Path) -> None:
    """Within limits.norm: where the path was is not on the disk. The coordinator cannot restart a site."""
    lab = Lab(tmp_path, PLAIN)
    job = lab.job()
    lab.tell(job)
    far = np.array([0, 0, 0, 0, 30.0])
    for share in (0.3, 0.6, 0.9):
        assert lab.point(job, "va", share * far).kind == "answer"
    lab.start()
    assert lab.point(job, "va", far).kind == "answer"
    refused(lab.point(job, "va", -far), "limits.step = 10")


def test_an_honest_run_passes_all_of_it(tmp_path: Path) -> None:
    """With masks, as three hospitals with standardised columns would run it."""
    lab = Lab(tmp_path, MASKED)
    for site in SITES:
        table = patients(site)
        scaled = (table[:, :-1] - [55, 0.5, 140, 135]) / [9, 0.5, 29, 38]
        lab.write(site, np.column_stack([scaled, table[:, -1]]))
    lab.start()
    e = experiment(protection={"secure_aggregation": True}, rounds=20)
    results = deploy(e, lab.carrier, tmp_path / "run", progress=False, say=lambda line: None)
    assert results.complete
    assert Coordinator(lab.job(e), Exchange(lab.carrier))


def test_large_local_steps_do_not_carry_a_site_past_limits_norm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The model that is sent is near, those of K large steps from there are not: gradients far out are those of few
    rows. The round fails, and counts as a failure."""
    lab = Lab(tmp_path, PLAIN)
    job = lab.job(experiment(algorithms=[{"name": "fedavg", "eta": 100.0, "K": 5}]))
    lab.tell(job)
    answer = lab.round(job, "va", 1, np.zeros(D))
    assert (answer.kind, answer.head["why"]) == ("failed", "round 1 failed; the log of the site says why")
    assert "a local model has a larger norm than limits.norm = 100" in caplog.text
    guard = lab.holders["va"].guard
    assert isinstance(guard, SiteGuard)
    assert guard.history.failures == 1
