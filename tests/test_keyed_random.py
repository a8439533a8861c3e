"""Keyed randomness: a function of its key and of nothing else, and random enough."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from proxfed import keyed_random


@given(
    st.integers(0, 2**70), st.integers(0, 10**6), st.lists(st.integers(0, 10**6), min_size=1, max_size=8, unique=True)
)
def test_a_client_draws_the_same_alone_and_in_company(seed: int, t: int, ids: list[int]) -> None:
    together = keyed_random.uniforms(keyed_random.keys(seed, "test", ids, t), 5)
    for row, i in zip(together, ids, strict=True):
        assert (keyed_random.uniforms(keyed_random.keys(seed, "test", [i], t), 5)[0] == row).all()


def test_a_longer_draw_begins_like_a_shorter_one() -> None:
    key = keyed_random.keys(1, "test", range(3), 2)
    assert (keyed_random.words(key, 100)[:, :7] == keyed_random.words(key, 7)).all()


def test_every_part_of_the_key_matters() -> None:
    base = keyed_random.keys(0, "a", [5], 3)
    others = [
        keyed_random.keys(1, "a", [5], 3),
        keyed_random.keys(0, "b", [5], 3),
        keyed_random.keys(0, "a", [6], 3),
        keyed_random.keys(0, "a", [5], 4),
        keyed_random.fold(base, 0),
        keyed_random.fold(base, 1),
    ]
    assert len({int(k[0]) for k in [base, *others]}) == 7


def test_no_two_of_many_keys_are_equal() -> None:
    many = [keyed_random.keys(s, "test", range(1000), t) for s in range(10) for t in range(30)]
    assert len(np.unique(np.concatenate(many))) == 300_000


def test_uniforms_are_uniform_over_clients_rounds_and_places() -> None:
    """Means, variances and correlations of neighbours along each direction of the key, within 5 standard deviations."""
    u = np.stack([keyed_random.uniforms(keyed_random.keys(7, "test", range(200), t), 50) for t in range(40)])
    assert u.min() >= 0
    assert u.max() < 1
    n = u.size
    assert abs(u.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n)
    assert abs(u.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / n)
    z = (u - 0.5) * np.sqrt(12)
    for axis in range(3):
        a, b = np.delete(z, 0, axis), np.delete(z, -1, axis)
        assert abs((a * b).mean()) < 5 / np.sqrt(a.size)
    counts = np.histogram(u, 64, (0, 1))[0]
    assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 64 + 5 * np.sqrt(2 * 64)


def test_integers_stay_below_each_clients_own_bound_and_reach_all_of_it() -> None:
    high = np.array([1, 2, 3, 1000])
    values = keyed_random.integers(keyed_random.keys(3, "test", range(4), 0), 20_000, high)
    assert (values >= 0).all()
    assert (values < high[:, None]).all()
    assert (values.max(1) == high - 1).all()
    counts = np.bincount(values[2], minlength=3)
    assert (abs(counts - 20_000 / 3) < 5 * np.sqrt(20_000 * 2 / 9)).all()


def test_generators_differ_by_seed_purpose_and_number() -> None:
    first = [keyed_random.generator(*key).random() for key in [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a")]]
    assert len(set(first)) == 4
    assert first[0] == first[-1]
