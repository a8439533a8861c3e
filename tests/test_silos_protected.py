"""Runs between sites that protect themselves: masks, seals, noise, refusals and the audit file, end to end."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxfed.engine.measures import Measures
from proxfed.engine.running import COUNTERS
from proxfed.errors import InputError, RunError
from proxfed.harness.experiment import parse
from proxfed.silos.coordinator.coordinator import Coordinator
from proxfed.silos.coordinator.deploy import deploy
from proxfed.silos.coordinator.remote import Remote
from proxfed.silos.protection.keyring import SiteKey, fingerprint
from proxfed.silos.protection.masks import rounding
from proxfed.silos.protection.site_guard import SiteGuard
from proxfed.silos.site.from_config import holder
from proxfed.silos.site.store import Store
from proxfed.silos.wire.carrier import Direct
from proxfed.silos.wire.message import LEAF, Letter
from proxfed.tables import first_look
from proxfed.types import Problem

from support.guarded_sites import FEDAVG, SITES, Sites, after, algorithm, rows, site, states

MASKED = {"secure_aggregation": True}
NOISY = {"privacy": {"clip": 1.0, "noise": 4.0, "delta": 1e-5}}
STARS = [
    FEDAVG,
    algorithm("fedcomposite", eta=0.1, tau=3),
    algorithm("scaffold", eta=0.1, K=2),
    algorithm("mimelite", eta=0.1, K=2),
    algorithm("prox_newton"),
    algorithm("fedcef", alpha=0.1, K=2, compressor={"name": "identity"}),
]
ADMM = algorithm("fedadmm", eta=1.0, K=2, eta_l=0.1)
DSGT = algorithm("dsgt", alpha=0.1, topology={"name": "ring"})


def remote_of(c: Coordinator) -> Problem:
    """The problem as the coordinator has it, without rows."""
    return Problem(Remote(c.asking, c.problem.f), c.problem.h)


def server(c: Any) -> list[torch.Tensor]:
    return [x for x in c.dump().values() if x.is_floating_point()]


def chi_squared(data: bytes) -> float:
    """Of bytes, in standard deviations from what uniform ones have."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    expected = len(data) / 256
    return float((((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(2 * 255))


# ---- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", STARS, ids=lambda a: a["name"])
def test_a_run_with_masks_is_the_plain_one_to_the_stated_rounding(table: Mapping[str, Any], tmp_path: Path) -> None:
    plain, masked = Sites(tmp_path / "plain", guarded=False), Sites(tmp_path / "masked")
    a, b = plain.coordinator(table), masked.coordinator(table, MASKED)
    means = []
    for c in (a, b):
        collect = c.collect.mean
        c.collect.mean = lambda *given, collect=collect: means.append(collect(*given)) or means[-1]
        after(c, 1)
    one, two = (np.concatenate([np.ravel(x) for x in (m if isinstance(m, tuple) else (m,))]) for m in means)
    assert np.abs(one - two).max() <= rounding(3, 40) + 1e-15
    assert (one != two).any()
    for t in range(2, 6):
        a.round(t)
        b.round(t)
    for x, y in zip(server(a), server(b), strict=True):
        assert torch.allclose(x, y, rtol=0, atol=1e-9)


def test_fewer_bits_round_more_coarsely_and_as_stated(tmp_path: Path) -> None:
    exact = after(Sites(tmp_path / "plain", guarded=False).coordinator(), 1).model()
    for bits in (10, 20):
        protection, tables = MASKED | {"fraction_bits": bits}, {"require": {"fraction_bits": bits}}
        sites = Sites(tmp_path / f"{bits}", tables)
        error = (after(sites.coordinator(FEDAVG, protection), 1).model() - exact).abs().max()
        assert rounding(3, bits) / 100 < error <= rounding(3, bits)


def test_what_the_coordinator_receives_looks_uniform_and_is_no_upload(tmp_path: Path) -> None:
    d = 4000
    plain, masked = Sites(tmp_path / "plain", guarded=False, d=d), Sites(tmp_path / "masked", d=d)
    after(plain.coordinator(), 1)
    after(masked.coordinator(FEDAVG, MASKED), 1)
    for name in SITES:
        open_, hidden = plain.bodies(1)[name][LEAF:], masked.bodies(1)[name][LEAF:]
        assert chi_squared(open_) > 50
        assert abs(chi_squared(hidden)) < 5
        upload, words = np.frombuffer(open_), np.frombuffer(hidden, "<i8").astype(float)
        assert abs(np.corrcoef(upload, words)[0, 1]) < 5 / np.sqrt(d)
    two = sum(np.frombuffer(masked.bodies(1)[name][LEAF:], "<u8") for name in SITES[:2])
    assert abs(chi_squared(np.asarray(two).tobytes())) < 5


def test_who_holds_what_does_not_show(tmp_path: Path) -> None:
    """With the rows of two sites exchanged, everything that can be read is the same, though their uploads differ."""
    swapped = {"lyon": 1, "oslo": 0, "turin": 2}
    one, two = Sites(tmp_path / "one"), Sites(tmp_path / "two", hold=swapped)
    a, b = (after(sites.coordinator(FEDAVG, MASKED), 3) for sites in (one, two))
    assert torch.allclose(a.model(), b.model(), rtol=0, atol=1e-10)
    bare = [Sites(tmp_path / name, guarded=False, hold=hold) for name, hold in (("three", None), ("four", swapped))]
    for sites in bare:
        after(sites.coordinator(), 1)
    assert bare[0].bodies(1)["lyon"] != bare[1].bodies(1)["lyon"]


def test_measures_of_training_rows_are_sums_as_well(tmp_path: Path) -> None:
    plain, masked = Sites(tmp_path / "plain", guarded=False), Sites(tmp_path / "masked")
    a, b = plain.coordinator(), masked.coordinator(FEDAVG, MASKED)
    after(a, 1)
    after(b, 1)
    x = a.model()
    one, two = (Measures(remote_of(c), c.network)(x) for c in (a, b))
    assert one == pytest.approx(two, abs=1e-10)
    assert {"objective", "stationarity"} <= one.keys()
    told = [Letter.decode(answer) for _, question, answer in masked.seen if Letter.decode(question).kind == "query"]
    points = [letter for letter in told if len(letter.body) == 2 * LEAF + 8 * (1 + 6)]  # a value and a gradient
    assert len(points) == 3
    for letter in points:
        value, gradient = letter.body[LEAF : LEAF + 8], letter.body[2 * LEAF + 8 :]
        assert abs(float(np.frombuffer(value)[0]) - one["objective"]) > 0.1 or not np.isfinite(np.frombuffer(value))
        assert (np.abs(np.frombuffer(gradient, "<i8")) > 2.0**50).any()  # no gradient in fixed point


def test_a_number_that_does_not_fit_is_refused_where_it_is_and_told_to_the_site_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    protection = MASKED | {"fraction_bits": 52}
    sites = Sites(tmp_path, {"require": {"fraction_bits": 52}, "ranges": {"eta": [0, 1e9]}})
    with pytest.raises(RunError, match=r"^lyon failed: round 1 failed; the log of the site says why$"):
        after(sites.coordinator(algorithm("fedavg", eta=1e6, K=1), protection), 2)
    assert "does not fit the range" in caplog.text


def test_after_a_crash_the_same_bytes_and_the_same_model(tmp_path: Path) -> None:
    whole = after(Sites(tmp_path / "whole").coordinator(FEDAVG, MASKED), 5).model()
    sites = Sites(tmp_path / "crash")
    c = sites.coordinator(FEDAVG, MASKED)
    for t in range(1, 6):
        c.round(t)
        name, question, answer = sites.seen[-1]
        sites.start()
        assert sites.holders[name].answer(question) == answer
    assert torch.allclose(c.model(), whole, rtol=0, atol=1e-10)  # other keys, so other rounding


@pytest.mark.parametrize("protection", [MASKED, NOISY, {**MASKED, **NOISY}], ids=["masks", "noise", "both"])
def test_killed_between_the_audit_file_and_the_state_it_answers_the_same(
    protection: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is written and the state is not: the round is computed again, to the same bytes."""
    sites = Sites(tmp_path)
    c = after(sites.coordinator(FEDAVG, protection), 1)
    whole = Store.save

    def killed(self: Store, slot: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        c.round(2)
    monkeypatch.setattr(Store, "save", whole)
    line = site(tmp_path, "lyon").audit.read().lines[-1]
    assert line["t"] == 2
    sites.start()
    c.round(2)
    answer = next(answer for name, _, answer in sites.seen if name == "lyon" and Letter.decode(answer).round == 2)
    assert hashlib.sha256(answer).hexdigest() == line["sha256"]


class Missing:
    """A carrier over which one site answers nothing for some questions."""

    def __init__(self, sites: Sites, away: Any) -> None:
        self.holders, self.away = sites, away

    sites = SITES

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        there = {s: q for s, q in questions.items() if not self.away(s, Letter.decode(q))}
        if len(there) < len(questions) and deadline is not None:
            time.sleep(deadline)
        return {name: self.holders._answer(name)(question) for name, question in there.items()}


def test_with_a_deadline_the_sum_is_of_those_who_are_there(tmp_path: Path) -> None:
    sites = Sites(tmp_path, {"require": {"same_cohort": False}})
    c = sites.coordinator(FEDAVG, MASKED, deadline=0.05)
    c.round(1)
    c.exchange.carrier = Missing(sites, lambda name, q: name == "turin" and q.round == 2)
    c.round(2)
    assert c.absent == 1
    assert Letter.decode([q for n, q, _ in sites.seen if n == "lyon"][-1]).head["cohort"] == ["lyon", "oslo"]
    plain = Sites(tmp_path / "plain", guarded=False)
    d = plain.coordinator(FEDAVG, deadline=0.05)
    d.round(1)
    d.exchange.carrier = Missing(plain, lambda name, q: name == "turin" and q.round == 2)
    d.round(2)
    assert torch.allclose(c.model(), d.model(), rtol=0, atol=1e-10)


def test_of_a_round_one_sum_is_given_and_no_other(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    c = sites.coordinator(FEDAVG, MASKED)
    c.round(1)
    question = next(question for name, question, _ in reversed(sites.seen) if name == "lyon")
    letter = Letter.decode(question)
    fewer = Letter("round", letter.run, 1, 1, letter.head | {"cohort": ["lyon", "oslo"]}, letter.body, letter.life + 1)
    for _ in range(2):
        refused = Letter.decode(sites.holders["lyon"].answer(fewer.encode()))
        assert refused.kind == "refused"
        assert "round 1 was answered for the sum of lyon, oslo, turin" in refused.head["why"]
        sites.start()  # it is not forgotten either
    alone = Letter("round", letter.run, 2, 0, letter.head | {"cohort": ["lyon"], "after": 1}, letter.body, 9)
    assert "a sum of 1 sites" in Letter.decode(sites.holders["lyon"].answer(alone.encode())).head["why"]


# ---- seals -----------------------------------------------------------------------------------------------------------


def test_a_sealed_run_is_the_plain_one_bit_for_bit_and_the_relay_reads_nothing(tmp_path: Path) -> None:
    d = 4000
    plain, sealed = Sites(tmp_path / "plain", guarded=False, d=d), Sites(tmp_path / "sealed", d=d)
    a, b = plain.coordinator(DSGT), sealed.coordinator(DSGT)
    after(a, 3)
    after(b, 3)
    for key, value in states(plain, a.job.digest, 3).items():
        assert torch.equal(value, states(sealed, b.job.digest, 3)[key]), key
    spoken = [Letter.decode(answer).body for _, _, answer in plain.seen if Letter.decode(answer).head.get("to")]
    passed, open_ = (b"".join(question + answer for _, question, answer in s.seen) for s in (sealed, plain))
    vectors = [body.partition(b"\n")[2][LEAF:] for body in spoken]
    vectors = [vector for vector in vectors if any(vector)]  # the start is zero
    assert len(vectors) > 6
    for vector in vectors:
        assert len(vector) == 8 * d
        assert not any(vector[k : k + 16] in passed for k in range(0, len(vector), 800))
        assert vector in open_
    boxes = [Letter.decode(answer) for _, _, answer in sealed.seen if Letter.decode(answer).head.get("to")]
    assert all(set(box.head["to"]) == {*SITES} - {box.head["site"]} for box in boxes)
    assert all(abs(chi_squared(box.body)) < 5 for box in boxes)
    assert torch.equal(a.model(), b.model())


def test_the_model_of_a_graph_can_be_told_as_a_sum(tmp_path: Path) -> None:
    plain, masked = Sites(tmp_path / "plain", guarded=False), Sites(tmp_path / "masked")
    a, b = after(plain.coordinator(DSGT), 3), after(masked.coordinator(DSGT, MASKED), 3)
    assert torch.allclose(a.model(), b.model(), rtol=0, atol=2 * rounding(3, 40))
    assert a.network.consensus(a.fields()["x"]) == pytest.approx(b.network.consensus(b.fields()["x"]), abs=1e-10)
    for key, value in states(plain, a.job.digest, 3).items():
        assert torch.equal(value, states(masked, b.job.digest, 3)[key]), key


def test_a_changed_message_of_a_neighbour_is_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    after(sites.coordinator(DSGT), 1)
    name, question, _ = next(s for s in reversed(sites.seen) if Letter.decode(s[1]).head.get("from"))
    letter = Letter.decode(question)
    other = Letter("round", letter.run, 1, letter.step, letter.head, bytes([letter.body[0] ^ 1]) + letter.body[1:], 7)
    said = Letter.decode(sites.holders[name].answer(other.encode()))
    assert said.kind in ("refused", "failed")
    assert "is not what" in said.head["why"]


# ---- noise -----------------------------------------------------------------------------------------------------------


def test_with_hardly_any_noise_and_clipping_it_is_the_plain_run(tmp_path: Path) -> None:
    plain = after(Sites(tmp_path / "plain", guarded=False).coordinator(), 3)
    quiet = {"privacy": {"clip": 1e3, "noise": 1e-13}}
    private = after(Sites(tmp_path / "quiet").coordinator(FEDAVG, quiet), 3)
    assert torch.allclose(plain.model(), private.model(), rtol=0, atol=1e-8)


def test_a_message_is_clipped(tmp_path: Path) -> None:
    """The upload of fedavg is a point: what a site may move it by is bounded."""
    clipped = {"privacy": {"clip": 1e-3, "noise": 1e-9}}
    c = after(Sites(tmp_path).coordinator(algorithm("fedavg", eta=0.5, K=3), clipped), 1)
    assert 0 < float(c.model().norm()) <= 1e-3 * (1 + 1e-6)


def test_the_noise_is_there_and_secret_and_the_same_when_asked_again(tmp_path: Path) -> None:
    d = 2000
    runs = [Sites(tmp_path / name, d=d) for name in ("one", "two")]
    models = [after(sites.coordinator(FEDAVG, NOISY), 1).model() for sites in runs]
    deviation = 4.0 / np.sqrt(3)  # of the mean of three
    for model in models:
        assert float(model.std()) == pytest.approx(deviation, rel=0.1)
    assert abs(float(torch.corrcoef(torch.stack(models))[0, 1])) < 5 / np.sqrt(d)
    name, question, answer = runs[0].seen[-1]
    runs[0].start()
    assert runs[0].holders[name].answer(question) == answer


@pytest.mark.parametrize("hidden", [{}, MASKED], ids=["open", "masked"])
@pytest.mark.parametrize(
    "table", [algorithm("scaffold", eta=0.1, K=2), algorithm("fedcomposite", eta=0.1, tau=3)], ids=lambda a: a["name"]
)
def test_control_variates_follow_from_the_noisy_messages(
    table: Mapping[str, Any], hidden: dict[str, Any], tmp_path: Path
) -> None:
    """Their mean is what the server has, and the model is the plain one where there is hardly any noise."""
    sites = Sites(tmp_path / "loud")
    c = after(sites.coordinator(table, {**NOISY, **hidden}), 3)
    kept = torch.stack(list(states(sites, c.job.digest, 3).values()))
    server_has = c.state.c if table["name"] == "scaffold" else c.state.x / c.star.S  # c_i = a_i - x/S add up to 0
    assert torch.allclose(kept.mean(0), server_has.expand_as(kept.mean(0)), rtol=0, atol=1e-9)
    assert float(kept.std()) > 0.5
    quiet = {"privacy": {"clip": 1e3, "noise": 1e-13}, **hidden}
    a = after(Sites(tmp_path / "plain", guarded=False).coordinator(table), 3)
    b = after(Sites(tmp_path / "quiet").coordinator(table, quiet), 3)
    assert torch.allclose(a.model(), b.model(), rtol=0, atol=1e-8)


def by_hand(noise: float, T: int, delta: float) -> float:
    from scipy import optimize, stats

    mu = 2 * np.sqrt(T) / noise
    gap = lambda e: stats.norm.cdf(mu / 2 - e / mu) - np.exp(e) * stats.norm.cdf(-mu / 2 - e / mu) - delta
    return float(optimize.brentq(gap, 0, 100))


def test_epsilon_in_the_rows_is_that_of_an_independent_computation(tmp_path: Path) -> None:
    c = Sites(tmp_path).coordinator(FEDAVG, NOISY)
    for t in range(1, 5):
        c.round(t)
        assert c.counters()["epsilon"] == pytest.approx(by_hand(4.0, t, 1e-5), rel=1e-6)
    again = Sites(tmp_path / "again").coordinator(FEDAVG, NOISY)
    again.load(c.dump(), dict.fromkeys(COUNTERS, 0) | {"wall_seconds": 0.0})
    assert again.counters()["epsilon"] == c.counters()["epsilon"]
    assert "epsilon" not in Sites(tmp_path / "plain").coordinator().counters()


def test_a_site_stops_where_its_budget_ends_over_all_jobs(tmp_path: Path) -> None:
    budget = by_hand(4.0, 5, 1e-5) * 1.03
    tables = {"require": {"privacy": {"noise": 2.0, "epsilon": budget}}}
    sites = Sites(tmp_path, tables)
    after(sites.coordinator(FEDAVG, NOISY), 3)
    sites.start()
    c = sites.coordinator(algorithm("fedprox", eta=0.1, K=2, mu=0.1), NOISY)
    after(c, 2)
    with pytest.raises(InputError, match=r"refuses: with one more message epsilon would be .*, and require.privacy"):
        c.round(3)


def test_noise_and_masks_together(tmp_path: Path) -> None:
    both = {**MASKED, "privacy": {"clip": 1e3, "noise": 1e-13}}
    plain = after(Sites(tmp_path / "plain", guarded=False).coordinator(), 3)
    assert torch.allclose(
        plain.model(), after(Sites(tmp_path / "both").coordinator(FEDAVG, both), 3).model(), atol=1e-8
    )


def test_nothing_is_told_of_training_rows_without_noise(tmp_path: Path) -> None:
    c = after(Sites(tmp_path).coordinator(FEDAVG, NOISY), 1)
    remote = remote_of(c).f
    assert Measures(remote_of(c), c.network)(c.model()).keys() == {"nonzeros"}
    for ask in (remote.smoothness, lambda: remote.gradient(c.model())):
        with pytest.raises(InputError, match=r"would be told without noise, in a job with protection.privacy"):
            ask()


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "given", "said"),
    [
        ({"allow": {"algorithms": ["fedprox"]}}, {}, "'fedavg' is not among its allow.algorithms"),
        ({"limits": {"rows": 41}}, {}, "it has fewer rows than limits.rows = 41"),
        ({"limits": {"rounds": 2}}, {}, "3 rounds are asked for, and limits.rounds = 2"),
        ({"limits": {"bytes": 900}}, {}, "with this answer more than limits.bytes = 900 would leave for this job"),
        ({"require": {"sites": 4}}, {}, "the job has 3 sites, and require.sites = 4"),
        ({"require": {"secure_aggregation": True}}, {}, "the job has no protection.secure_aggregation = true"),
        ({"require": {"privacy": {"noise": 9.0, "epsilon": 1.0}}}, {"protection": NOISY}, "requires at least 9"),
        ({}, {"algorithm": ADMM, "protection": NOISY}, "FedADMM has clients whose state must agree"),
        ({}, {"algorithm": DSGT, "protection": NOISY}, "DSGT has no server, and noise"),
    ],
)
def test_a_site_refuses_in_one_sentence(
    tables: dict[str, Any], given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    sites = Sites(tmp_path)  # with rules that let them say hello

    def run() -> None:
        c = sites.coordinator(**given)
        sites.tables = tables
        sites.start()
        after(c, 5)

    with pytest.raises(InputError) as e:
        run()
    assert said in str(e.value)
    assert "\n" not in str(e.value)
    if tables:
        assert str(e.value).startswith("lyon refuses: ")


@pytest.mark.parametrize("name", ["os:system", "./mine.py:Mine", "test_silos_protected:FEDAVG"])
def test_code_in_a_job_is_refused_and_not_run(name: str, tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    job = sites.job(algorithm(name, eta=0.1))
    with pytest.raises(InputError, match=r"lyon refuses: .*brings no code of its own"):
        sites.exchange().ask(job, {"lyon": Letter("job", job.digest, body=job.encode())})


def test_a_measure_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path, {"allow": {"measures": ["value", "test"]}})
    c = after(sites.coordinator(), 1)
    with pytest.raises(InputError, match=r"lyon refuses: 'gradient' is not among its allow.measures"):
        remote_of(c).f.gradient(c.model())
    with pytest.raises(InputError, match=r"lyon refuses: 'smoothness' is not among its allow.measures"):
        remote_of(c).f.smoothness()


def test_counts_are_told_only_where_they_may_be(tmp_path: Path) -> None:
    hello = Letter("hello", "", head={"weights": True}).encode()
    said = Letter.decode(Sites(tmp_path).holders["lyon"].answer(hello))
    assert (said.kind, "counts of its rows are not told" in said.head["why"]) == ("refused", True)
    open_ = Sites(tmp_path / "open", {"allow": {"counts": True}})
    assert json.loads(Letter.decode(open_.holders["lyon"].answer(hello)).body)["weights"] == [40.0]


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_a_partner_with_another_key_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    right = fingerprint(SiteKey.read(tmp_path / "oslo" / "site.key").public)
    known = site(tmp_path, "lyon").partners
    assert known["oslo"] == right
    after(sites.coordinator(), 1)
    wrong = fingerprint(b"another key")
    sites.holders["lyon"].guard = SiteGuard(site(tmp_path, "lyon", {"partners": known | {"oslo": wrong}}))
    with pytest.raises(InputError, match=rf"oslo came with the key {right}, and partners.oslo = '{wrong}'"):
        after(sites.coordinator(), 1)


def test_the_first_key_of_a_partner_is_noted_and_another_one_later_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path, {"partners": {}})
    after(sites.coordinator(), 1)
    first = fingerprint(SiteKey.read(tmp_path / "oslo" / "site.key").public)
    noted = [line for line in site(tmp_path, "lyon").audit.read().lines if "partner" in line]
    assert {line["partner"]: line["key"] for line in noted}["oslo"] == first
    (tmp_path / "oslo" / "site.key").unlink()
    sites.start()
    with pytest.raises(InputError, match=rf"oslo came with the key .*, and before with {first}"):
        after(sites.coordinator(), 1)


# ---- the audit file --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"protection": MASKED}, {"protection": NOISY}, {"algorithm": DSGT}], ids=str)
def test_everything_that_left_is_in_the_audit_file(given: dict[str, Any], tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    after(sites.coordinator(**given), 2)
    sites._answer("lyon")(b"nonsense")
    for name in SITES:
        trail = site(tmp_path, name).audit.read()
        assert trail.broken == ""
        written = {line["sha256"]: line for line in trail.lines if "sha256" in line}
        answers = [answer for who, _, answer in sites.seen if who == name]
        assert len(answers) >= 3
        for answer in answers:
            assert written[hashlib.sha256(answer).hexdigest()]["bytes"] == len(answer)


def test_what_cannot_be_written_down_does_not_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Sites(tmp_path)
    c = after(sites.coordinator(), 1)
    monkeypatch.setattr("proxfed.silos.protection.audit.os.fsync", _full)
    with pytest.raises(Exception, match="No space left") as e:
        c.round(2)
    assert "nothing leaves" in str(e.value)


def _full(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_with_a_changed_audit_file_nothing_is_answered(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    after(sites.coordinator(), 1)
    file = tmp_path / "lyon" / "audit.jsonl"
    file.write_text(file.read_text().replace('"t": 1', '"t": 2', 1))
    with pytest.raises(InputError, match=r"nothing is answered: .* is not as it was written"):
        sites.start()


# ---- from site.toml to results ---------------------------------------------------------------------------------------


def experiment(protection: dict[str, Any], *algorithms: dict[str, Any]) -> Any:
    table = {
        "name": "trial",
        "rounds": 3,
        "data": {"name": "synthetic_binary"},  # the rows of the sites take its place
        "problem": {"name": "logistic", "l2": 0.01, "weighting": "uniform"},
        "regulariser": {"name": "l1", "weight": 0.01},
        "protection": protection,
        "algorithms": [{k: v for k, v in a.items() if k != "participation"} for a in algorithms or (FEDAVG,)],
    }
    return parse(table, "trial.toml")


@pytest.fixture
def carrier(tmp_path: Path) -> Direct:
    """Three sites whose rows are in files."""
    for k, name in enumerate(SITES):
        where = site(tmp_path, name).folder
        held = rows(k)
        lines = [
            ",".join(map(repr, [*map(float, a), float(y)])) for a, y in zip(held.features, held.labels, strict=True)
        ]
        (where / "rows.csv").write_text("\n".join(["a,b,c,d,e,f,y", *lines]) + "\n")
    return Direct({name: holder(site(tmp_path, name)).answer for name in SITES})


def test_rows_have_epsilon_and_no_measure_of_training_rows(carrier: Direct, tmp_path: Path) -> None:
    results = deploy(experiment(NOISY), carrier, tmp_path / "run", progress=False, say=lambda line: None)
    spent = [row["epsilon"] for row in results.rows]
    assert spent[0] == 0.0
    assert spent[1:] == pytest.approx([by_hand(4.0, t, 1e-5) for t in (1, 2, 3)], rel=1e-6)
    assert all(row.get("objective") is None for row in results.rows)


def test_a_deployed_run_with_masks(carrier: Direct, tmp_path: Path) -> None:
    plain = deploy(experiment({}, FEDAVG, DSGT), carrier, tmp_path / "plain", progress=False, say=lambda line: None)
    asked = experiment(MASKED, FEDAVG, DSGT)
    masked = deploy(asked, carrier, tmp_path / "masked", progress=False, say=lambda line: None)
    for a, b in zip(plain.rows, masked.rows, strict=True):
        assert a["objective"] == pytest.approx(b["objective"], abs=1e-10)
        assert a["bytes_up"] == b["bytes_up"]


def test_an_algorithm_that_cannot_have_it_is_refused_before_the_first_round(carrier: Direct, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"algorithms.fedadmm: protection.privacy: FedADMM has clients whose state must agree"
    ):
        deploy(experiment(NOISY, FEDAVG, ADMM), carrier, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def tables(folder: Path, counts: bool = True) -> Direct:
    """Three sites with words and gaps in their tables."""
    rng, sites = np.random.default_rng(0), {}
    for name in SITES:
        where = site(folder, name).folder
        lines = ["age,sex,outcome"]
        for _ in range(60):
            age, sex = rng.normal(50, 10 + len(lines) % 3), rng.choice(["f", "m"])
            ill = age + 8 * (sex == "m") + rng.normal(0, 8) > 54
            lines.append(f"{'' if rng.random() < 0.1 else f'{age:.1f}'},{sex},{'ill' if ill else 'well'}")
        (where / "rows.csv").write_text("\n".join(lines) + "\n")
        text = first_look([where / "rows.csv"], "outcome", beside=where)
        (where / "schema.toml").write_text(re.sub(r'\nname = "[^"]*"', '\nname = "clinics"', text))
        rules = {"data": {"schema": "schema.toml"}, "allow": {"counts": counts}, "limits": {"rows": 20}}
        sites[name] = holder(site(folder, name, rules)).answer
    return Direct(sites)


def test_tables_with_words_and_gaps_are_prepared_as_if_they_were_together(tmp_path: Path) -> None:
    from proxfed.harness.build import build_study
    from proxfed.tables import load_tables

    carrier = tables(tmp_path)
    e = experiment(MASKED)
    results = deploy(e, carrier, tmp_path / "run", progress=False, say=lambda line: None)
    files = {name: str(tmp_path / name / "rows.csv") for name in SITES}
    text = (tmp_path / "lyon" / "schema.toml").read_text()
    together = re.sub(
        r"files = .*", f"files = {{ {', '.join(f'{k} = {json.dumps(v)}' for k, v in files.items())} }}", text
    )
    (tmp_path / "together.toml").write_text(together)
    study = build_study(e, data=load_tables(tmp_path / "together.toml"))
    from proxfed.harness.compare import compare

    plain = compare(study.problem, {"fedavg": study.entries["fedavg"].algorithm}, 3)
    for a, b in zip(plain.rows, results.rows, strict=True):
        assert a["objective"] == pytest.approx(b["objective"], abs=1e-9)


def test_a_summary_tells_counts_and_is_refused_where_these_are_not_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lyon refuses: counts of its rows are not told"):
        deploy(experiment({}), tables(tmp_path, counts=False), tmp_path / "run", progress=False)


def test_sites_with_different_schemas_are_told_so(tmp_path: Path) -> None:
    carrier = tables(tmp_path)
    file = tmp_path / "oslo" / "schema.toml"
    file.write_text(file.read_text().replace('"f", "m"', '"f", "m", "x"'))
    said = r"""oslo: its schema is not that of lyon \(.*\):
  columns\.sex\.categories = \["f", "m", "x"\], not \["f", "m"\]$"""
    with pytest.raises(InputError, match=said):
        deploy(experiment({}), carrier, tmp_path / "run", progress=False)
