"""Runs between sites are the stacked ones, bit for bit, whatever carriers do and whoever is killed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxfed import algorithms as alg
from proxfed.algorithms import ALGORITHMS
from proxfed.compressors import QSGD, TopK
from proxfed.engine.network import Stacked
from proxfed.engine.run import Run
from proxfed.engine.start import run_of
from proxfed.errors import InputError, RunError
from proxfed.files import slots
from proxfed.machine import numba_is_used
from proxfed.participation import Dropouts, Full
from proxfed.silos.coordinator.coordinator import Coordinator
from proxfed.silos.protection.guard import Asked, Guard, Link, Refused
from proxfed.silos.site import store
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import LEAF, ROW, Letter
from proxfed.testing.runs import regulariser, ring
from proxfed.topologies import Complete, StarGraph
from proxfed.types import Algorithm

from support import toy_problems as toy
from support.algorithm_settings import algorithm
from support.silos import SEED, Anew, both, job_of, must_equal, partly, toy_problem

# ---- equal to the stacked run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_site_for_every_client_is_the_stacked_run(name: str, tmp_path: Path) -> None:
    a = algorithm(name)
    stacked, over_sites, carrier = both(a, toy_problem(a, small=False), tmp_path)
    for t in (1, 2, 3):
        stacked.round(t)
        over_sites.round(t)
        must_equal(stacked, over_sites, carrier)
    must_count_alike(stacked, over_sites)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_sites_of_several_clients_with_minibatches_and_weights_are_too(name: str, tmp_path: Path) -> None:
    a = algorithm(name)
    stacked, over_sites, carrier = both(a, toy_problem(a, small=True), tmp_path, partly(a), (2, 1, 2))
    for t in (1, 2, 3):
        stacked.round(t)
        over_sites.round(t)
        must_equal(stacked, over_sites, carrier)
    must_count_alike(stacked, over_sites)


@pytest.mark.skipif(not numba_is_used(), reason="torch's exp depends on where a number stands in an array")
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("name", ["fedcomposite", "scaffold", "fedcef", "depositum"])
def test_losses_with_exponentials_are_too_where_loops_are_compiled(name: str, loss: str, tmp_path: Path) -> None:
    a = algorithm(name)
    p = toy.problem(loss, regulariser(a), toy.RAGGED, batch=8, weighting="size")
    stacked, over_sites, carrier = both(a, p, tmp_path, partly(a), (2, 1, 2))
    for t in (1, 2, 3):
        stacked.round(t)
        over_sites.round(t)
        must_equal(stacked, over_sites, carrier)


def test_nobody_plays_at_being_lost(tmp_path: Path) -> None:
    a = algorithm("fedavg")
    with pytest.raises(InputError, match="'dropouts' are simulated losses"):
        both(a, toy_problem(a, small=True), tmp_path, Dropouts(0.5), (2, 1, 2))


def must_count_alike(stacked: Run, over_sites: Coordinator) -> None:
    counted = over_sites.counters()
    assert {key: counted[key] for key in stacked.counters()} == stacked.counters()
    assert counted["wire_bytes"] > counted["bytes_best"]


@pytest.mark.parametrize("name", ["scaffold", "depositum"])
def test_only_begin_and_rounds_ask_the_sites_for_a_row(name: str, tmp_path: Path) -> None:
    """What looks like a property asks no network: counters, fields, dump, changes, found and variates."""
    a = algorithm(name)
    _, run, carrier = both(a, toy_problem(a, small=False), tmp_path)

    def look() -> None:
        before = carrier.messages
        run.counters(), run.fields(), run.dump(), run.changes(), run.found(), run.variates(), run.state
        assert carrier.messages == before

    look()
    assert carrier.messages == 0
    run.begin()
    begun = carrier.messages
    assert begun >= len(carrier.sites)
    run.begin()
    assert carrier.messages == begun  # it is over
    look()
    run.round(1)
    assert carrier.messages > begun
    look()


@pytest.mark.parametrize("graph", [Complete(5), StarGraph(5)], ids=str)
def test_graphs_on_which_some_hear_everybody(graph: Any, tmp_path: Path) -> None:
    a = algorithm("depositum")
    p = toy_problem(a, small=True)
    job, rows = job_of(a, p, topology=graph)
    carrier = Anew(rows, tmp_path)
    stacked, over_sites = run_of(p, a, Stacked(5, p.f.d, graph), Full(), SEED), Coordinator(job, Exchange(carrier))
    for t in (1, 2, 3):
        stacked.round(t)
        over_sites.round(t)
        must_equal(stacked, over_sites, carrier)


def test_sites_that_stay_do_not_compute_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step waits at `mix` in a process that lives on; in one that is made anew it is computed again."""
    a = algorithm("depositum")
    gradients = {}
    for stays in (True, False):
        stacked, over_sites, carrier = both(a, toy_problem(a, small=True), tmp_path / str(stays))
        if stays:
            living = {site: carrier.holder(site) for site in carrier.sites}
            monkeypatch.setattr(carrier, "holder", living.__getitem__)
        asked = 0
        real = type(stacked.problem.f.local(0, range(1))).grad

        def counting(local: Any, x: torch.Tensor, draw: int, real: Any = real) -> torch.Tensor:
            nonlocal asked
            asked += 1
            return real(local, x, draw)

        with monkeypatch.context() as patch:
            patch.setattr(type(stacked.problem.f.local(0, range(1))), "grad", counting)
            over_sites.round(1)
            over_sites.round(2)
        gradients[stays] = asked
        stacked.round(1)
        stacked.round(2)
        must_equal(stacked, over_sites, carrier)
        must_count_alike(stacked, over_sites)
    assert gradients[True] < gradients[False]


# ---- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "a",
    [alg.FedAvg(0.5, 3), alg.Mime(1.5, 3, 0.4), alg.FedCEF(0.6, 3, compressor=TopK(k=3)), alg.FedPAQ(0.5, 3, QSGD(4))],
    ids=lambda a: type(a).__name__,
)
def test_bodies_are_the_bytes_that_are_counted_and_a_constant(a: Algorithm, tmp_path: Path) -> None:
    _, over_sites, carrier = both(a, toy_problem(a, small=False), tmp_path)
    bodies = []

    def watched(questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        answers = {site: carrier.one(site, question) for site, question in questions.items()}
        letters = [Letter.decode(data) for data in (*questions.values(), *answers.values())]
        bodies.extend(letter for letter in letters if letter.round == 1 and letter.body)
        return answers

    over_sites.begin()
    over_sites.exchange.carrier = type("", (), {"sites": carrier.sites, "ask": staticmethod(watched)})()
    before = over_sites.counters()["bytes_best"]
    over_sites.round(1)
    constant = sum(LEAF * letter.word("form").count(".") for letter in bodies)
    compressed = sum(_compressed_rows(letter) for letter in bodies)
    counted = over_sites.counters()["bytes_best"] - before
    assert sum(len(letter.body) for letter in bodies) == counted + constant + ROW * compressed > 0


def _compressed_rows(letter: Letter) -> int:
    """Of a body with one leaf, whose first byte says whether it is compressed; more leaves are not in these cases."""
    return letter.body[0] > 0 and int(letter.word("form") == ".")


# ---- whatever carriers do -------------------------------------------------------------------------------------------

SEVERAL = ["scaffold", "fedcef", "ef21", "pledge", "depositum", "beer", "pg_extra"]
"""With states at clients and servers, compressed up and down, and peers with one or two exchanges a round."""


class Chaotic(Anew):
    """Everything that can happen to messages, by a seed."""

    def __init__(self, *given: Any, seed: int = 0) -> None:
        super().__init__(*given)
        self.random = random.Random(seed)
        self.old: dict[str, list[bytes]] = {}
        self.seen: dict[str, list[bytes]] = {}
        self.done = dict.fromkeys(("lost", "damaged question", "damaged answer", "old answer", "late question"), 0)

    def one(self, site: str, question: bytes) -> bytes:
        chance, old, seen = self.random.random(), self.old.setdefault(site, []), self.seen.setdefault(site, [])
        if chance < 0.1:
            self.done["damaged question"] += 1
            return super().one(site, _damaged(question, self.random))
        if old and chance < 0.25:  # a late one comes first, and nobody hears the answer
            self.done["late question"] += 1
            super().one(site, self.random.choice(old))
        answer = super().one(site, question)
        if chance > 0.8:
            answer = super().one(site, question)  # twice
        old.append(question)
        seen.append(answer)
        if 0.4 < chance < 0.5:
            self.done["damaged answer"] += 1
            return _damaged(answer, self.random)
        if 0.5 < chance < 0.6:
            self.done["old answer"] += 1
            return self.random.choice(seen[:-1] or [b""])
        return answer

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        order = list(questions)
        self.random.shuffle(order)
        answers = {site: self.one(site, questions[site]) for site in order}
        lost = [site for site in order if self.random.random() < 0.15]
        self.done["lost"] += len(lost)
        return {site: answer for site, answer in answers.items() if site not in lost}


def _damaged(data: bytes, chance: random.Random) -> bytes:
    kind = chance.randrange(3)
    if kind == 0:
        return data[: chance.randrange(len(data))]
    place = chance.randrange(len(data))
    flipped = bytes([data[place] ^ (1 << chance.randrange(8))])
    return data[:place] + flipped + data[place + 1 :] if kind == 1 else data + b"\0"


@pytest.mark.parametrize("name", SEVERAL)
def test_lost_late_repeated_reordered_and_damaged_messages_change_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxfed.silos.wire.exchange.TRIES", 50)
    a = algorithm(name)
    p, graph = toy_problem(a, small=True), ring(a)
    job, rows = job_of(a, p, partly(a), graph)
    carrier = Chaotic(rows, tmp_path, seed=sum(map(ord, name)))
    stacked, over_sites = run_of(p, a, Stacked(5, p.f.d, graph), partly(a), SEED), Coordinator(job, Exchange(carrier))
    for t in range(1, 5 if graph else 13):
        stacked.round(t)
        over_sites.round(t)
        must_equal(stacked, over_sites, carrier)
    must_count_alike(stacked, over_sites)
    assert all(carrier.done.values()), carrier.done


def test_messages_of_another_run_are_recognised(tmp_path: Path) -> None:
    a = algorithm("scaffold")
    p = toy_problem(a, small=False)
    (one, rows), (other, _) = job_of(a, p, nonce="1"), job_of(a, p, nonce="2")
    assert one.digest != other.digest
    carrier = Anew(rows, tmp_path)
    first, second = Coordinator(one, Exchange(carrier)), Coordinator(other, Exchange(carrier))
    first.round(1)
    second.round(1)  # side by side, in folders of their own
    first.round(2)
    stray = Letter("round", other.digest, 2, 0, {"after": 1}).encode()
    answers: dict[str, bytes] = {site: carrier.one(site, stray) for site in carrier.sites}
    carrier.ask = lambda questions, deadline=None: {site: answers[site] for site in questions}  # type: ignore[method-assign]
    with pytest.raises(RunError, match="5 answers in a row make no sense; the last one: it is the answer to another"):
        first.round(3)


# ---- whoever is killed ----------------------------------------------------------------------------------------------


class Killed(Exception):
    """kill -9."""


class UntilKilled(Anew):
    """The coordinator dies when its k-th message has been answered, before it hears of it."""

    last = -1

    def one(self, site: str, question: bytes) -> bytes:
        answer = super().one(site, question)
        if self.messages == self.last:
            raise Killed
        return answer


@pytest.mark.parametrize("name", ["scaffold", "ef21_bc", "depositum"])
def test_coordinator_killed_between_any_two_messages(name: str, tmp_path: Path) -> None:
    a = algorithm(name)
    p, graph, rounds = toy_problem(a, small=True), ring(a), 2
    stacked = run_of(p, a, Stacked(5, p.f.d, graph), partly(a), SEED)
    for t in range(1, rounds + 1):
        stacked.round(t)
    job, rows = job_of(a, p, partly(a), graph, (3, 2))
    total = _carried_out(job, UntilKilled(rows, tmp_path / "whole"), rounds, ()).exchange.carrier.messages  # type: ignore[attr-defined]
    for k in range(1, total + 1):
        carrier = UntilKilled(rows, tmp_path / str(k))
        over_sites = _carried_out(job, carrier, rounds, (k, k + 3))
        must_equal(stacked, over_sites, carrier)
        counted = over_sites.counters()
        assert {key: counted[key] for key in stacked.counters()} == stacked.counters()


def _carried_out(job: Job, carrier: UntilKilled, rounds: int, deaths: tuple[int, ...]) -> Coordinator:
    """As the harness does it: a checkpoint after every round, from which the next life goes on."""
    saved, life = None, 0
    for death in (*deaths, -1):
        life += 1
        carrier.last = death
        run = Coordinator(job, Exchange(carrier, life))
        done = 0
        if saved is not None:
            done, tensors, counters = saved
            run.load(tensors, counters)
        try:
            for t in range(done + 1, rounds + 1):
                run.round(t)
                tensors = {name: x.clone() for name, x in run.dump().items()}
                saved = t, tensors, run.counters() | {"wall_seconds": 0.0}
        except Killed:
            continue
        return run
    raise AssertionError


@pytest.mark.parametrize("when", ["before", "after", "torn"])
@pytest.mark.parametrize("name", ["scaffold", "depositum"])
def test_holder_killed_at_any_write(name: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it, after it, or in the middle of appending to a log; then the same question comes again."""
    a = algorithm(name)
    p, graph, rounds = toy_problem(a, small=True), ring(a), 2
    stacked = run_of(p, a, Stacked(5, p.f.d, graph), partly(a), SEED)
    for t in range(1, rounds + 1):
        stacked.round(t)
    job, rows = job_of(a, p, partly(a), graph, (2, 3))
    writes, death = 0, -1
    real_replace, real_append = store.replace, store.Store.append

    def replace_(path: Path, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes == death and when == "before":
            raise Killed
        real_replace(path, data)
        if writes == death:
            raise Killed

    def append(self: store.Store, before: list[store.Entry], entry: store.Entry) -> None:
        nonlocal writes
        writes += 1
        if writes == death and when == "before":
            raise Killed
        real_append(self, before, entry)
        if writes == death:
            if when == "torn":
                log = self.folder / "log"
                log.write_bytes(log.read_bytes()[:-7])
            raise Killed

    monkeypatch.setattr(store, "replace", replace_)
    monkeypatch.setattr(slots, "replace", replace_)
    monkeypatch.setattr(store.Store, "append", append)

    class Restarted(Anew):
        """A site that dies is started again, and asked again."""

        def one(self, site: str, question: bytes) -> bytes:
            holder = self.holder(site)
            try:
                return holder._answer(Letter.decode(question))  # without the net that catches errors
            except Killed:
                return self.holder(site).answer(question)
            except Exception:
                return self.holder(site).answer(question)

    def carried_out(folder: Path) -> None:
        carrier = Restarted(rows, folder)
        run = Coordinator(job, Exchange(carrier))
        for t in range(1, rounds + 1):
            run.round(t)
        must_equal(stacked, run, carrier)
        counted = run.counters()
        assert {key: counted[key] for key in stacked.counters()} == stacked.counters()

    carried_out(tmp_path / "whole")
    total, writes = writes, 0
    for death in range(1, total + 1):
        writes = 0
        carried_out(tmp_path / str(death))


def test_checkpoint_a_round_behind_and_a_new_life_overrules_the_old(tmp_path: Path) -> None:
    """Sites are a round ahead of a coordinator whose newer checkpoint was damaged; its old letters are refused."""
    a = algorithm("scaffold")
    p = toy_problem(a, small=True)
    job, rows = job_of(a, p)
    carrier = Anew(rows, tmp_path)
    stacked, old = run_of(p, a, Stacked(5, p.f.d), Full(), SEED), Coordinator(job, Exchange(carrier, 1))
    old.round(1)
    saved = {name: x.clone() for name, x in old.dump().items()}, old.counters() | {"wall_seconds": 0.0}
    old.round(2)
    new = Coordinator(job, Exchange(carrier, 2))
    new.load(*saved)
    stacked.round(1)
    for t in (2, 3, 4, 5):
        new.round(t)
        stacked.round(t)
        must_equal(stacked, new, carrier)
    with pytest.raises(RunError, match="a has been asked by another coordinator since, and is at round 5, step 0"):
        old.round(3)
    must_equal(stacked, new, carrier)


def test_a_state_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    a = algorithm("scaffold")
    job, rows = job_of(a, toy_problem(a, small=True))
    carrier = Anew(rows, tmp_path)
    run = Coordinator(job, Exchange(carrier, 1))
    run.round(1)
    saved = {name: x.clone() for name, x in run.dump().items()}, run.counters() | {"wall_seconds": 0.0}
    for t in (2, 3, 4):
        run.round(t)
    new = Coordinator(job, Exchange(carrier, 2))
    new.load(*saved)
    with pytest.raises(RunError, match=r"a has no state to go on from: it has those after rounds \[3, 4\]"):
        new.round(2)


# ---- who is late, and who refuses -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Without:
    """Everybody but those who were late."""

    late: tuple[tuple[int, int], ...]

    def __call__(self, t: int, n: int, seed: int) -> Any:
        out = [i for round, i in self.late if round == t]
        return np.array([i for i in range(n) if i not in out]) if out else range(n)


class Slow(Anew):
    """Some sites answer after the deadline: they have worked, and their answer comes to nothing."""

    late: tuple[tuple[int, int], ...] = ()

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        answers = super().ask(questions)
        t = Letter.decode(next(iter(questions.values()))).round
        slow = {self.sites[i] for round, i in self.late if round == t} if deadline is not None else ()
        return {site: answer for site, answer in answers.items() if site not in slow}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedcef", "ef21", "feddyn"])
def test_who_misses_the_deadline_is_out_of_the_cohort_and_goes_on_from_its_own_state(name: str, tmp_path: Path) -> None:
    a, late = algorithm(name), ((2, 1), (3, 1), (3, 4), (5, 0))
    p = toy_problem(a, small=True)
    job, rows = job_of(a, p)
    carrier, said = Slow(rows, tmp_path), list[str]()
    carrier.late = late
    everyone = a.requires().everyone
    stacked = run_of(p, a, Stacked(5, p.f.d), Full() if everyone else Without(late), SEED)
    over_sites = Coordinator(job, Exchange(carrier), deadline=0.05, say=said.append)
    for t in range(1, 7):
        stacked.round(t)
        over_sites.round(t)
        assert torch.equal(over_sites.model(), stacked.model()), t
    must_equal(stacked, over_sites, carrier)
    if everyone:
        assert said == []
    else:
        assert said[0] == "round 2 goes on without b: no answer within 0.05 s"
        assert said[1] == "round 3 goes on without b, e: no answer within 0.05 s"
    assert over_sites.counters()["absent"] == (0 if everyone else 4)


class Strict(Guard):
    """Allows no rounds after the second."""

    def gate(self, asked: Asked) -> None:
        if asked.kind == "round" and asked.round > 2:
            raise Refused("two rounds are enough")


def test_a_refusal_travels_back_in_one_sentence(tmp_path: Path) -> None:
    a = algorithm("fedavg")
    job, rows = job_of(a, toy_problem(a, small=False))
    carrier = Anew(rows, tmp_path, lambda name: Strict() if name == "c" else Guard())
    over_sites = Coordinator(job, Exchange(carrier))
    over_sites.round(1)
    over_sites.round(2)
    with pytest.raises(InputError, match=r"^c refuses: two rounds are enough$"):
        over_sites.round(3)


class Sealed(Link):
    """A seal that is none, but that shows whether everything passes through it."""

    sealed = True

    def __init__(self, me: str) -> None:
        self.me = me

    def seal(self, to: str, t: int, k: int, body: bytes) -> bytes:
        return f"{self.me}>{to} {t}.{k}|".encode() + body

    def unseal(self, sender: str, t: int, k: int, body: bytes) -> bytes:
        start = f"{sender}>{self.me} {t}.{k}|".encode()
        if not body.startswith(start):
            raise RunError("not sealed for me")
        return body[len(start) :]


def test_what_goes_to_neighbours_is_sealed_and_what_leaves_is_written_down(tmp_path: Path) -> None:
    a = algorithm("depositum")
    written: list[tuple[str, str, int]] = []

    class Careful(Guard):
        def __init__(self, name: str) -> None:
            self.name = name

        def join(self, job: Job, site: str) -> Link:
            return Sealed(site)

        def leaving(self, asked: Asked, to: str, body: bytes) -> None:
            written.append((self.name, to, len(body)))

    p, graph = toy_problem(a, small=True), ring(a)
    job, rows = job_of(a, p, topology=graph)
    carrier = Anew(rows, tmp_path, Careful)
    stacked, over_sites = run_of(p, a, Stacked(5, p.f.d, graph), Full(), SEED), Coordinator(job, Exchange(carrier))
    for t in (1, 2):
        stacked.round(t)
        over_sites.round(t)
        must_equal(stacked, over_sites, carrier)
    assert {to for _, to, _ in written} == {"neighbours", "coordinator"}
    assert {name for name, _, _ in written} == set(job.sites)


def test_a_job_brings_no_code(tmp_path: Path) -> None:
    a = algorithm("fedavg")
    job, rows = job_of(a, toy_problem(a, small=False))
    bad = replace(job, algorithm={**(job.algorithm or {}), "name": "os:system"})
    carrier = Anew(rows, tmp_path)
    with pytest.raises(InputError, match=r"job\.algorithm\.name = 'os:system': a job may name what is registered here"):
        Exchange(carrier).ask(bad, {"a": Letter("job", bad.digest, body=bad.encode())})


def test_rows_must_stay_as_they_are(tmp_path: Path) -> None:
    a = algorithm("fedavg")
    p = toy_problem(a, small=False)
    job, rows = job_of(a, p)
    Coordinator(job, Exchange(Anew(rows, tmp_path))).round(1)
    other = {site: replace(r, labels=-r.labels) for site, r in rows.items()}
    with pytest.raises(InputError, match="a refuses: the rows are not those that the run was begun with"):
        Exchange(Anew(other, tmp_path)).ask(job, {"a": Letter("job", job.digest, body=job.encode())})
