"""Sites that drop out after the count: the sum of the others can be read, and nothing else."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from proxfed.errors import InputError, RunError
from proxfed.silos.coordinator.coordinator import Coordinator
from proxfed.silos.protection import recovery
from proxfed.silos.protection.keyring import Keyring, SiteKey
from proxfed.silos.protection.masks import Words, reveal, to_words
from proxfed.silos.protection.recovery import Box, Round, Told, deal, majority, pads, tell, unbox, undo
from proxfed.silos.wire.message import Letter

from support.guarded_sites import FEDAVG, SITES, Sites, algorithm

NAMES = ["berlin", "lyon", "oslo", "porto", "turin"]
KEYS = {name: SiteKey(X25519PrivateKey.generate()) for name in NAMES}
SAID = {name: key.introduction() for name, key in KEYS.items()}
RINGS = {name: Keyring.of(key, name, "job", SAID) for name, key in KEYS.items()}
HERE = Round.of(3, NAMES)
RECOVERED = {"secure_aggregation": True, "recovery": True}


# ---- the masks themselves --------------------------------------------------------------------------------------------


class Circle:
    """Five sites that have dealt, of which a cohort sends."""

    def __init__(self, cohort: list[str], threshold: int = majority(5), here: Round = HERE) -> None:
        self.here, self.cohort = here, cohort
        dealt = {name: deal(RINGS[name], here, threshold) for name in NAMES}
        self.boxes: dict[str, dict[str, Box]] = {
            name: {
                other: dealt[other].own if other == name else unbox(RINGS[name], here, other, dealt[other].sealed[name])
                for other in cohort
            }
            for name in NAMES
        }
        self.publics = {name: d.own.public for name, d in dealt.items()}
        seeds = {name: d.commitment for name, d in dealt.items()}
        self.told = Told(here, cohort, self.publics, seeds, dict.fromkeys(NAMES, threshold), b"x")
        self.values = {name: np.arange(4.0) + 10 * k for k, name in enumerate(NAMES)}

    def sent(self, name: str) -> Words:
        publics = {other: box.public for other, box in self.boxes[name].items()}
        words = to_words(self.values[name], len(self.cohort), 40)
        return words + pads(RINGS[name], self.here, self.cohort, publics, b"x", len(words))

    def shares(self, tellers: list[str], survivors: list[str]) -> dict[str, dict[str, bytes]]:
        return {name: tell(self.here, survivors, self.boxes[name]) for name in tellers}

    def sum(self, survivors: list[str], tellers: list[str]) -> np.ndarray:
        words = sum((self.sent(name) for name in survivors), np.zeros(4, np.uint64))
        return reveal([words - undo(self.told, survivors, self.shares(tellers, survivors), 4)], 40)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_the_sum_of_those_who_are_left(gone: int) -> None:
    """Whoever drops out, and whichever majority tells its shares."""
    for cohort in (NAMES, NAMES[:4]):
        circle = Circle(cohort)
        for dropped in itertools.combinations(cohort, gone):
            survivors = [name for name in cohort if name not in dropped]
            for tellers in itertools.combinations(survivors, 3):
                exact = np.sum([circle.values[name] for name in survivors], axis=0)
                assert (circle.sum(survivors, list(tellers)) == exact).all()


def test_fewer_than_the_threshold_undo_nothing() -> None:
    circle = Circle(NAMES, threshold=4)
    with pytest.raises(RunError, match="3 sites have told their shares of berlin, and it takes 4"):
        circle.sum(NAMES[:4], NAMES[:3])
    assert (circle.sum(NAMES[:4], NAMES[:4]) == np.sum([circle.values[n] for n in NAMES[:4]], axis=0)).all()


def test_a_message_needs_both_secrets() -> None:
    """Without the pads of all pairs a message still looks uniform, and so it does without that of the seed."""
    d = 20_000
    here, cohort = HERE, NAMES
    circle = Circle(cohort)
    publics = {other: box.public for other, box in circle.boxes["oslo"].items()}
    whole = pads(RINGS["oslo"], here, cohort, publics, b"x", d)
    seed = recovery.stream(
        recovery.derive(recovery._secret(RINGS["oslo"], here, b"seed"), *recovery._about(here, cohort, b"x")), d
    )
    for rest in (seed, whole - seed, whole):
        counts = np.bincount(np.frombuffer(rest.tobytes(), np.uint8), minlength=256)
        expected = 8 * d / 256
        assert abs((((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(510)) < 5


@pytest.mark.parametrize("n", range(2, 9))
def test_no_coordinator_gets_enough_shares_of_both_kinds(n: int) -> None:
    """It tells each site that i is there or that it is not. i itself knows that it is there. Over all it could say."""
    k = majority(n)
    for said in itertools.product([True, False], repeat=n - 1):
        of_seed, of_key = 1 + sum(said), sum(not each for each in said)
        assert of_seed < k or of_key < k
    colluding = [c for c in range(n) if 2 * k > n + c]
    for c in colluding:  # these tell both
        for said in itertools.product([True, False], repeat=n - 1 - c):
            assert 1 + c + sum(said) < k or c + sum(not each for each in said) < k


def test_shares_of_another_round_or_between_others_are_refused() -> None:
    sealed = deal(RINGS["oslo"], HERE, 3).sealed["lyon"]
    assert unbox(RINGS["lyon"], HERE, "oslo", sealed) is not None
    with pytest.raises(InputError, match="is not what 'oslo' sealed"):
        unbox(RINGS["lyon"], Round.of(4, NAMES), "oslo", sealed)
    with pytest.raises(InputError, match="of another round, or between other sites"):
        unbox(RINGS["lyon"], Round.of(3, NAMES[:4]), "oslo", sealed)
    with pytest.raises(InputError, match="is not what 'oslo' sealed"):
        unbox(RINGS["lyon"], HERE, "oslo", sealed[:-1] + bytes([sealed[-1] ^ 1]))


def test_shares_that_a_lying_site_tells_are_noticed() -> None:
    circle = Circle(NAMES)
    survivors = NAMES[:4]
    shares = circle.shares(survivors[:3], survivors)
    for of in ("turin", "oslo"):  # of a key, and of a seed
        true = shares["lyon"][of]
        wrong = shares | {"lyon": shares["lyon"] | {of: true[:5] + bytes([true[5] ^ 1]) + true[6:]}}
        with pytest.raises(RunError, match=r"do not fit each other|not shares of one secret"):
            undo(circle.told, survivors, wrong, 4)
    assert undo(circle.told, survivors, shares, 4) is not None


# ---- runs ------------------------------------------------------------------------------------------------------------


class Dropping:
    """A carrier over which questions get lost, by site and letter."""

    sites = SITES

    def __init__(self, sites: Sites, away: Any) -> None:
        self.holders, self.away = sites, away

    def ask(self, questions: Mapping[str, bytes], deadline: float | None) -> dict[str, bytes]:
        there = {s: q for s, q in questions.items() if not self.away(s, Letter.decode(q))}
        if len(there) < len(questions) and deadline is not None:
            time.sleep(deadline)
        return {name: self.holders._answer(name)(question) for name, question in there.items()}


def open_sites(folder: Path, **require: Any) -> Sites:
    return Sites(folder, {"require": {"same_cohort": False} | require})


@pytest.mark.parametrize("table", [FEDAVG, algorithm("scaffold", eta=0.1, K=2)], ids=lambda a: a["name"])
def test_a_run_goes_on_without_a_site_that_drops_out_after_the_count(table: Mapping[str, Any], tmp_path: Path) -> None:
    """As the plain run does whose sum is over the same sites."""
    sites, plain = open_sites(tmp_path / "masked"), Sites(tmp_path / "plain", guarded=False)
    c, d = sites.coordinator(table, RECOVERED, deadline=0.05), plain.coordinator(table, deadline=0.05)
    away = lambda name, q: name == "turin" and (q.kind, q.round) == ("round", 2)
    c.exchange.carrier, d.exchange.carrier = Dropping(sites, away), Dropping(plain, away)
    for t in range(1, 4):
        c.round(t)
        d.round(t)
    assert c.absent == d.absent == 1
    assert torch.allclose(c.model(), d.model(), rtol=0, atol=1e-10)
    told = [Letter.decode(q) for n, q, _ in sites.seen if n == "lyon" and Letter.decode(q).head.get("what") == "unmask"]
    assert [letter.head["survivors"] for letter in told] == [[*SITES], ["lyon", "oslo"], [*SITES]]
    assert told[1].head["cohort"] == [*SITES]


def test_one_more_may_drop_out_while_shares_are_told(tmp_path: Path) -> None:
    """turin does not answer the round; then oslo is waited for, because two shares are needed of three."""
    sites, said = open_sites(tmp_path), []
    c = sites.coordinator(FEDAVG, RECOVERED, deadline=0.05, say=said.append)
    tried = []

    def away(name: str, q: Letter) -> bool:
        unmask = q.head.get("what") == "unmask"
        if unmask and name == "oslo":
            tried.append(name)
        return (name == "turin" and q.kind == "round" and q.round == 1) or (
            unmask and name == "oslo" and len(tried) < 3
        )

    c.exchange.carrier = Dropping(sites, away)
    c.round(1)
    assert any("it waits for" in line for line in said)
    assert float(c.model().norm()) > 0


def test_a_site_that_comes_back_goes_on(tmp_path: Path) -> None:
    """Its late message was never part of a sum; in the next round it is."""
    sites = open_sites(tmp_path)
    c = sites.coordinator(FEDAVG, RECOVERED, deadline=0.05)
    c.exchange.carrier = Dropping(sites, lambda name, q: name == "turin" and (q.kind, q.round) == ("round", 2))
    for t in (1, 2, 3):
        c.round(t)
    assert c.after == dict.fromkeys(SITES, 3)


@pytest.mark.parametrize("when", ["round", "unmask", "after"])
def test_a_coordinator_that_is_killed_within_a_round_finishes_it_with_the_same_sites(when: str, tmp_path: Path) -> None:
    """turin drops out of round 2, and is back when the coordinator is: it counts from round 3 on, as without a kill."""
    sites, same = open_sites(tmp_path / "killed"), open_sites(tmp_path / "same")
    gone, note = (lambda name, q: name == "turin" and (q.kind, q.round) == ("round", 2)), tmp_path / "note.json"
    expected = same.coordinator(FEDAVG, RECOVERED, deadline=0.05)
    expected.exchange.carrier = Dropping(same, gone)
    c = sites.coordinator(FEDAVG, RECOVERED, deadline=0.05, note=note)
    c.exchange.carrier = Dropping(sites, gone)
    c.round(1)
    kept, counters = c.dump(), c.counters() | {"wall_seconds": 0.0}
    c.exchange.carrier = Dying(sites, gone, when)
    with pytest.raises(KeyboardInterrupt):
        c.round(2)
    again = Coordinator(c.job, sites.exchange(), deadline=0.05, note=note)
    again.exchange.life = 2
    if when == "round":  # nobody has told shares yet: it may be without turin, or with it
        again.exchange.carrier = Dropping(sites, gone)
    again.load(kept, counters)
    for t in (2, 3):
        again.round(t)
    for t in (1, 2, 3):
        expected.round(t)
    assert torch.equal(again.model(), expected.model())


class Dying(Dropping):
    """The coordinator is killed when messages of a round are there, when shares are asked for, or when they came."""

    def __init__(self, sites: Sites, away: Any, when: str) -> None:
        super().__init__(sites, away)
        self.when = when

    def ask(self, questions: Mapping[str, bytes], deadline: float | None) -> dict[str, bytes]:
        letter = Letter.decode(next(iter(questions.values())))
        unmask = letter.head.get("what") == "unmask"
        if unmask and self.when == "unmask":
            super().ask(dict([*questions.items()][:1]), None)  # one site has told its shares
            raise KeyboardInterrupt
        answers = super().ask(questions, deadline)
        if (unmask and self.when == "after") or (letter.kind == "round" and self.when == "round"):
            raise KeyboardInterrupt
        return answers


def lab(tmp_path: Path, **require: Any) -> tuple[Sites, dict[str, Letter], Any]:
    """After round 1: the questions for shares that an honest coordinator asked, by site, and how to ask."""
    sites = open_sites(tmp_path, **require)
    c = sites.coordinator(FEDAVG, RECOVERED, deadline=0.05)
    # The coordinator stops when messages of the round are there, before it asks for shares.
    c.exchange.carrier = Dropping(sites, lambda name, q: q.head.get("what") == "unmask")
    c.answers = _stop_at_unmask(c.answers)
    with pytest.raises(KeyboardInterrupt):
        c.round(1)
    return sites, c.answers.questions, lambda name, letter: Letter.decode(sites.holders[name].answer(letter.encode()))


class _stop_at_unmask:
    def __init__(self, ask: Any) -> None:
        self.ask, self.questions = ask, dict[str, Letter]()

    def __call__(self, alg: Any, t: int, questions: Mapping[str, Letter], fewest: int = 1) -> dict[str, Letter]:
        if any(q.head.get("what") == "unmask" for q in questions.values()):
            self.questions = dict(questions)
            raise KeyboardInterrupt
        return self.ask(alg, t, questions, fewest)


def saying(letter: Letter, **head: Any) -> Letter:
    return replace(letter, head=letter.head | head)


def test_a_coordinator_that_lies_about_who_dropped_out_gets_shares_of_one_kind(tmp_path: Path) -> None:
    """oslo is there. To lyon it says that oslo dropped out, to oslo that it is there. Yields noise."""
    sites, questions, ask = lab(tmp_path)
    without = saying(questions["lyon"], survivors=["lyon", "turin"])
    answered = ask("lyon", without)
    assert answered.kind == "answer"
    for question in (questions["lyon"], saying(questions["lyon"], survivors=["lyon", "oslo"])):
        refused = ask("lyon", question)
        assert refused.kind == "refused"
        assert "shares were told for other survivors before" in refused.head["why"]
    sites.start()  # it is not forgotten either
    assert ask("lyon", questions["lyon"]).kind == "refused"
    assert ask("lyon", without).body == answered.body
    assert ask("oslo", questions["oslo"]).kind == "answer"
    # of oslo's seed there is oslo's own share, and of its key lyon's: one of each, where two are needed
    seed, key = ask("oslo", questions["oslo"]), answered
    kinds = dict(zip(key.head["of_sites"], key.head["shares"], strict=True))["oslo"]
    assert kinds != dict(zip(seed.head["of_sites"], seed.head["shares"], strict=True))["oslo"]


def test_what_else_a_lying_coordinator_could_ask(tmp_path: Path) -> None:
    _, questions, ask = lab(tmp_path, sites=2)
    here = questions["lyon"]
    for letter, why in (
        (saying(here, survivors=["lyon"]), "a sum of 1 sites, and require.sites = 2"),
        (saying(here, survivors=["oslo", "turin"]), "are not survivors of it"),
        (saying(here, survivors=["lyon", "oslo", "rome"]), "are not survivors of it"),
        (saying(here, survivors=["lyon", "lyon"]), "are not survivors of it"),
        (saying(here, cohort=["lyon", "oslo"], survivors=["lyon", "oslo"]), "was not answered here for the sum"),
        (saying(here, among=["lyon", "oslo"], survivors=["lyon", "oslo"]), "was not answered here for the sum"),
        (saying(here, dealers=["oslo"], boxes=here.head["boxes"][:1]), "the shares of turin are missing"),
        (replace(here, round=2), "round 2 was not answered here"),
    ):
        refused = ask("lyon", letter)
        assert refused.kind == "refused", letter.head
        assert why in refused.head["why"]
    swapped = saying(here, boxes=here.head["boxes"][::-1])
    assert "is not what" in ask("lyon", swapped).head["why"]
    assert ask("lyon", here).kind == "answer"


def test_where_all_rounds_must_be_over_the_same_sites_nothing_is_told_of_fewer(tmp_path: Path) -> None:
    """What differs between sums over nearly the same sites is a message."""
    sites = Sites(tmp_path)
    c = sites.coordinator(FEDAVG, RECOVERED, deadline=0.05)
    c.round(1)
    c.exchange.carrier = Dropping(sites, lambda name, q: name == "turin" and (q.kind, q.round) == ("round", 2))
    with pytest.raises(InputError, match=r"require.same_cohort = true"):
        c.round(2)


def test_a_site_may_want_more_to_agree(tmp_path: Path) -> None:
    """All three: then nobody may drop out, and whoever is late is waited for."""
    sites, said = open_sites(tmp_path, recovery=3), []
    c = sites.coordinator(FEDAVG, RECOVERED, deadline=0.05, say=said.append)
    lost = iter([True, True, False])
    c.exchange.carrier = Dropping(
        sites, lambda name, q: name == "turin" and q.kind == "round" and q.round == 1 and next(lost)
    )
    c.round(1)
    assert any("it waits for turin" in line for line in said)
    assert c.absent == 0


def test_shares_count_as_no_answer_because_they_say_nothing_of_rows(tmp_path: Path) -> None:
    sites = Sites(tmp_path, {"require": {"same_cohort": False}, "limits": {"answers": 3}})
    c = sites.coordinator(FEDAVG, RECOVERED)
    c.round(1)
    c.round(2)  # with round 0, three answers
    with pytest.raises(InputError, match=r"limits.answers = 3"):
        c.round(3)


def test_shares_are_dealt_only_where_the_job_has_recovery(tmp_path: Path) -> None:
    sites = open_sites(tmp_path)
    c = sites.coordinator(FEDAVG, {"secure_aggregation": True})
    c.round(1)
    question = Letter("query", c.job.digest, 1, 0, {"what": "shares", "among": [*SITES]})
    assert "no protection.recovery" in Letter.decode(sites.holders["lyon"].answer(question.encode())).head["why"]


def test_after_a_crash_of_a_site_the_same_bytes(tmp_path: Path) -> None:
    sites = open_sites(tmp_path)
    c = sites.coordinator(FEDAVG, RECOVERED, deadline=1.0)
    c.round(1)
    seen = list(sites.seen)
    sites.start()
    for name, question, answer in seen:
        if Letter.decode(question).round == 1:
            assert sites.holders[name].answer(question) == answer
