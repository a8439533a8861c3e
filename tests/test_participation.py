"""Who takes part: the right number, everybody equally often, and the same answer whenever it is asked."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from proxfed import FedAvg, FedCEF, FedComposite, Scaffold, participation
from proxfed.algorithms import FISTA
from proxfed.compressors import TopK
from proxfed.engine.compatibility import check_combination
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.errors import InputError
from proxfed.keyed_random import uniforms
from proxfed.participation import PARTICIPATIONS, BernoulliSampling, Dropouts, Full, UniformSampling, arrived
from proxfed.registry import build, describe
from proxfed.regularisers import SquaredL2

from support import toy_problems as toy

EXAMPLES = {
    "full": Full(),
    "uniform": UniformSampling(3),
    "bernoulli": BernoulliSampling(0.4),
    "dropouts": Dropouts(0.3, UniformSampling(3)),
}
CHANGING = [EXAMPLES["uniform"], EXAMPLES["bernoulli"]]


def test_every_participation_has_an_example():
    assert {name: type(example) for name, example in EXAMPLES.items()} == PARTICIPATIONS


@pytest.mark.parametrize("name", PARTICIPATIONS)
@given(t=st.integers(0, 10**6), n=st.integers(3, 60), seed=st.integers(0, 2**63))
def test_ids_are_sorted_clients_without_repetition(name, t, n, seed):
    ids = np.asarray(EXAMPLES[name](t, n, seed))
    assert ids.dtype == np.int64
    assert set(ids.tolist()) <= set(range(n))
    assert (np.diff(ids) > 0).all()


@given(t=st.integers(0, 1000), n=st.integers(1, 40), data=st.data())
def test_uniform_draws_exactly_m(t, n, data):
    m = data.draw(st.integers(1, n))
    assert len(UniformSampling(m)(t, n, 0)) == m


def test_full_and_the_extremes_are_all_clients():
    for everybody in (Full(), UniformSampling(7), BernoulliSampling(1.0)):
        np.testing.assert_array_equal(everybody(5, 7, 1), np.arange(7))


@pytest.mark.parametrize("who", CHANGING, ids=repr)
def test_a_round_is_a_function_of_the_seed_and_t(who):
    forwards = [who(t, 50, 3).tolist() for t in range(20)]
    backwards = [who(t, 50, 3).tolist() for t in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert len(set(map(tuple, forwards))) == 20
    assert forwards != [who(t, 50, 4).tolist() for t in range(20)]


@pytest.mark.parametrize(("who", "p"), [(UniformSampling(3), 0.3), (BernoulliSampling(0.3), 0.3)], ids=repr)
def test_clients_take_part_equally_often_and_as_often_together_as_they_should(who, p):
    n, rounds = 10, 2000
    there = np.zeros((rounds, n))
    for t in range(rounds):
        there[t, who(t, n, 0)] = 1
    together = there.T @ there / rounds
    pair = 3 * 2 / (10 * 9) if isinstance(who, UniformSampling) else p**2
    expected = np.where(np.eye(n, dtype=bool), p, pair)
    assert (np.abs(together - expected) < 5 * np.sqrt(expected * (1 - expected) / rounds)).all()


@pytest.mark.parametrize(("m", "n"), [(2, 6), (4, 6), (3, 6), (1, 20), (19, 20)])
def test_every_cohort_of_m_is_equally_likely(m, n):
    rounds = 200 * math.comb(n, m)
    drawn = Counter(tuple(UniformSampling(m)(t, n, 5).tolist()) for t in range(rounds))
    assert len(drawn) == math.comb(n, m)
    assert chisquare(list(drawn.values())).pvalue > 1e-3


@pytest.mark.parametrize("who", [UniformSampling(1000), BernoulliSampling(0.001)], ids=repr)
def test_a_cohort_of_a_million_is_spread_evenly(who):
    n, rounds = 10**6, 50
    ids = np.concatenate([who(t, n, 1) for t in range(rounds)])
    assert chisquare(np.bincount(ids * 64 // n, minlength=64)).pvalue > 1e-3
    assert chisquare(np.bincount(ids % 64, minlength=64)).pvalue > 1e-3


def test_the_clients_between_two_that_take_part_are_geometric():
    p = 0.2
    ids = BernoulliSampling(p)(0, 200_000, 0)
    gaps = np.bincount(np.minimum(np.diff(ids) - 1, 20), minlength=21)
    expected = np.append(p * (1 - p) ** np.arange(20), (1 - p) ** 20)
    assert chisquare(gaps, expected * gaps.sum()).pvalue > 1e-3


@given(n=st.integers(2, 300), t=st.integers(0, 50), data=st.data())
def test_draws_that_were_too_few_at_first_give_the_same_cohort(n, t, data):
    m, p = data.draw(st.integers(1, n - 1)), data.draw(st.floats(0.01, 0.99))
    for who in (UniformSampling(m), BernoulliSampling(p)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(participation, "_enough", lambda expected: 1)
            in_pieces = who(t, n, 0)
        np.testing.assert_array_equal(in_pieces, who(t, n, 0))


def test_the_work_of_a_draw_follows_the_cohort(monkeypatch):
    drawn = []
    monkeypatch.setattr(participation, "uniforms", lambda key, count: drawn.append(count) or uniforms(key, count))
    for n in (10**4, 10**6, 10**8):
        UniformSampling(1000)(3, n, 0)
        BernoulliSampling(1000 / n)(3, n, 0)
    assert max(drawn) < 1500


def test_bernoulli_may_leave_a_round_empty():
    sizes = [len(BernoulliSampling(0.1)(t, 5, 0)) for t in range(100)]
    assert 0 in sizes
    assert max(sizes) > 0


def test_a_hundred_thousand_clients():
    n = 100_000
    assert len(Full()(0, n, 0)) == n
    ids = UniformSampling(1000)(0, n, 0)
    assert len(ids) == 1000
    assert abs(ids.mean() / n - 0.5) < 5 / math.sqrt(12 * 1000)
    assert abs(len(BernoulliSampling(0.01)(0, n, 0)) - 1000) < 5 * math.sqrt(990)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: UniformSampling(0), r"UniformSampling: m = 0 must be a whole number >= 1"),
        (lambda: UniformSampling(2.5), r"UniformSampling: m = 2.5 must be a whole number"),
        (lambda: UniformSampling(11)(0, 10, 0), r"UniformSampling: m = 11 is more than the n = 10 clients"),
        (lambda: BernoulliSampling(0.0), r"BernoulliSampling: p = 0.0 must be > 0"),
        (lambda: BernoulliSampling(-0.1), r"BernoulliSampling: p = -0.1 must be > 0"),
        (lambda: BernoulliSampling(1.1), r"BernoulliSampling: p = 1.1 must be <= 1"),
        (lambda: Dropouts(1.0), r"Dropouts: p = 1.0 must be in \[0, 1\)"),
        (lambda: Dropouts(0.1, UniformSampling(11))(0, 10, 0), r"UniformSampling: m = 11 is more than the n = 10"),
        (lambda: BernoulliSampling(math.nan), r"BernoulliSampling: p = nan is not a finite number"),
    ],
)
def test_bad_settings_are_refused(bad, sentence):
    with pytest.raises(InputError, match=sentence):
        bad()


# ---- lost in the middle of a round ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Survivors:
    """The clients of a `Dropouts` that arrive, as if the others had never been asked."""

    of: Dropouts

    def __call__(self, t, n, seed):
        return np.asarray(arrived(self.of, t, self.of(t, n, seed), seed)[0])


LOSSY = Dropouts(0.4, UniformSampling(3))


def after(algorithm, who, rounds=12, seed=5):
    p = toy.problem(toy.name_of(toy.problem()), batch=4, sizes=toy.RAGGED, weighting="size")
    run = run_of(p, algorithm, Stacked(p.f.n, p.f.d), who, seed)
    for t in range(1, rounds + 1):
        run.round(t)
    return run


@given(t=st.integers(0, 1000), seed=st.integers(0, 2**63), p=st.floats(0, 0.99))
def test_the_lost_are_of_the_cohort_and_the_same_whenever_it_is_asked(t, seed, p):
    who = Dropouts(p, UniformSampling(8))
    ids = who(t, 20, seed)
    np.testing.assert_array_equal(ids, UniformSampling(8)(t, 20, seed))
    there, go_on = arrived(who, t, ids, seed)
    assert set(there) <= set(ids)
    np.testing.assert_array_equal(there, arrived(who, t, ids, seed)[0])
    np.testing.assert_array_equal(there, go_on)
    np.testing.assert_array_equal(arrived(replace(who, rollback=False), t, ids, seed)[1], ids)


def test_as_many_are_lost_as_should_be():
    rates = [len(arrived(Dropouts(0.3), t, range(100), 0)[0]) / 100 for t in range(200)]
    assert np.mean(rates) == pytest.approx(0.7, abs=5 * math.sqrt(0.21 / 20_000))


ALGORITHMS = [
    Scaffold(0.5, 3),
    FedComposite(0.5, 3, partial=True),
    FedCEF(0.5, 3, compressor=TopK(k=3), partial=True),
    FedAvg(0.5, 3),
]


@pytest.mark.parametrize("a", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_a_lost_client_counts_in_work_and_bytes_only(a):
    lossy, plain = after(a, LOSSY), after(a, Survivors(LOSSY))
    for key, x in lossy.dump().items():
        torch.testing.assert_close(x, plain.dump()[key], rtol=0, atol=1e-14)
    asked = [LOSSY(t, 5, 5) for t in range(1, 13)]
    there = sum(len(arrived(LOSSY, t, ids, 5)[0]) for t, ids in enumerate(asked, 1))
    assert 12 < there < 36
    for name in ("gradients", "bytes_up", "bytes_down"):
        assert lossy.counters()[name] * there == plain.counters()[name] * 36


@pytest.mark.parametrize("a", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_if_no_client_is_lost_nothing_changes(a):
    lossless, plain = after(a, Dropouts(0.0, UniformSampling(3))), after(a, UniformSampling(3))
    assert all(torch.equal(x, plain.dump()[key]) for key, x in lossless.dump().items())
    assert lossless.counters() == plain.counters()


def test_a_round_in_which_all_are_lost_changes_nothing_but_the_counters():
    a, gone = FedComposite(0.5, 3, partial=True), Dropouts(0.999, UniformSampling(2))
    run = after(a, gone)
    start = after(a, gone, rounds=0)
    assert all(torch.equal(x, start.dump()[key]) for key, x in run.dump().items())
    assert run.counters()["bytes_up"] == 12 * 2 * 8 * toy.D


@pytest.mark.parametrize("a", [Scaffold(1.0, 3), FedComposite(1.0, 3, partial=True)], ids=lambda a: type(a).__name__)
def test_without_rollback_states_disagree_and_the_limit_is_wrong(a):
    h = toy.SPARSE if a.needs.composite else SquaredL2(0.02)
    p = toy.problem(h=h)
    x = p.solve().numpy()
    errors = []
    for rollback in (True, False):
        run = run_of(p, a, Stacked(p.f.n, p.f.d), Dropouts(0.3, UniformSampling(3), rollback))
        for t in range(1, 601):
            run.round(t)
        errors.append(toy.error(run.model().numpy(), x))
    assert errors[0] < 1e-7
    assert errors[1] > 1e-3


def test_a_file_can_say_it():
    table = {"name": "dropouts", "p": 0.2, "among": {"name": "uniform", "m": 3}}
    who = build(PARTICIPATIONS, table, "participation")
    assert who == Dropouts(0.2, UniformSampling(3))
    assert describe(who, PARTICIPATIONS) == table | {"rollback": True}


def test_a_method_that_needs_all_clients_refuses_it():
    with pytest.raises(InputError, match="FISTA needs every client in every round, not Dropouts"):
        check_combination(toy.problem(), FISTA(1.0), None, Dropouts(0.1))
