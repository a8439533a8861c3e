"""Laws of partitions: nobody is given a sample twice, nobody goes empty, and each rule does what it says."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed.data import load
from proxfed.data.partitions import (
    IID,
    PARTITIONS,
    ClassesPerClient,
    DirichletByClass,
    DirichletByClient,
    NaturalPartition,
    Shards,
    Sizes,
)
from proxfed.errors import InputError

ALL = [
    IID(7),
    DirichletByClass(7, 0.5, min_partition_size=2),
    DirichletByClient(7, 0.5),
    ClassesPerClient(7, 3),
    ClassesPerClient(7, 3, class_assignment_mode="random"),
    Shards(7, 2),
    Sizes((10, 20, 30, 1, 2, 3, 4)),
    NaturalPartition(),
]


def some_labels(N: int = 400, C: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, C, N)


@pytest.mark.parametrize("partition", ALL, ids=lambda p: type(p).__name__)
def test_parts_are_disjoint_sorted_and_repeatable(partition) -> None:
    labels, groups = some_labels(), some_labels(C=7, seed=1)
    parts = partition(labels, groups)
    assert len(parts) == 7
    for part in parts:
        assert len(part) > 0
        assert (np.diff(part) > 0).all()
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    if not isinstance(partition, (Sizes, DirichletByClient)):
        assert len(together) == len(labels)
    for one, two in zip(parts, partition(labels, groups), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("partition", ALL[:-1], ids=lambda p: type(p).__name__)
def test_another_seed_is_another_partition(partition) -> None:
    import dataclasses

    labels = some_labels()
    other = dataclasses.replace(partition, seed=1)(labels)
    assert any(set(one) != set(two) for one, two in zip(partition(labels), other, strict=True))


@pytest.mark.parametrize("partition", ALL, ids=lambda p: type(p).__name__)
def test_labels_need_not_be_numbered_from_zero(partition) -> None:
    """-1/+1, or letters numbered 1..26: only which labels are equal counts."""
    labels, groups = some_labels(C=5), some_labels(C=7, seed=1)
    for one, two in zip(partition(labels, groups), partition(3.0 * labels - 8, groups), strict=True):
        np.testing.assert_array_equal(one, two)


@given(st.integers(1, 20), st.integers(20, 60), st.integers(0, 5))
def test_iid_shares_differ_by_at_most_one(n: int, N: int, seed: int) -> None:
    sizes = [len(part) for part in IID(n, seed)(np.zeros(N))]
    assert sum(sizes) == N
    assert max(sizes) - min(sizes) <= 1


def test_iid_gives_all_clients_the_same_mixture() -> None:
    labels = np.repeat(np.arange(4), 5000)
    for part in IID(10)(labels):
        share = np.bincount(labels[part], minlength=4) / len(part)
        assert abs(share - 0.25).max() < 0.05  # five standard deviations


@given(st.integers(1, 12), st.floats(0.05, 100), st.integers(0, 5))
def test_dirichlet_by_class_keeps_the_smallest_size(n: int, alpha: float, seed: int) -> None:
    parts = DirichletByClass(n, alpha, min_partition_size=3, seed=seed)(some_labels(N=600))
    assert min(len(part) for part in parts) >= 3
    assert sum(len(part) for part in parts) == 600


def test_dirichlet_by_class_has_the_moments_of_the_distribution() -> None:
    """A client's share of a class: mean 1/n, variance (1/n)(1 - 1/n)/(n alpha + 1)."""
    n, alpha, labels = 5, 0.8, np.repeat(np.arange(200), 500)
    parts = DirichletByClass(n, alpha, seed=1)(labels)
    shares = np.stack([np.bincount(labels[part], minlength=200) / 500 for part in parts])
    variance = (1 / n) * (1 - 1 / n) / (n * alpha + 1)
    np.testing.assert_allclose(shares.mean(1), 1 / n, atol=5 * np.sqrt(variance / 200))
    np.testing.assert_allclose(shares.var(), variance, rtol=0.2)


@given(st.integers(1, 12), st.sampled_from([1e-3, 0.1, 1.0, 100.0]), st.integers(0, 5))
def test_dirichlet_by_client_has_equal_sizes(n: int, alpha: float, seed: int) -> None:
    parts = DirichletByClient(n, alpha, seed)(some_labels(N=601))
    assert [len(part) for part in parts] == [601 // n] * n


def test_dirichlet_by_client_has_the_moments_of_the_distribution() -> None:
    """Shares are Dir_C(alpha) but for the few drawn after a class is used up: variance (1/C)(1 - 1/C)/(C alpha + 1)."""
    n, alpha, C = 400, 0.5, 5
    labels = np.repeat(np.arange(C), 40_000)
    parts = DirichletByClient(n, alpha, seed=2)(labels)
    shares = np.stack([np.bincount(labels[part], minlength=C) / len(part) for part in parts])
    variance = (1 / C) * (1 - 1 / C) / (C * alpha + 1)
    np.testing.assert_allclose(shares.mean(0), 1 / C)  # all samples are handed out
    np.testing.assert_allclose(shares.var(), variance, rtol=0.2)


def one_by_one(priors, stock, size, rng):
    """The process as it is told: a random client that is not full draws a label, again if that class is used up."""
    n, C = priors.shape
    stock, counts = stock.copy(), np.zeros((n, C), int)
    while counts.sum() < n * size:
        i = rng.integers(n)
        if counts[i].sum() == size:
            continue
        k = np.searchsorted(priors[i].cumsum(), rng.random())
        while stock[k] == 0:
            k = np.searchsorted(priors[i].cumsum(), rng.random())
        stock[k] -= 1
        counts[i, k] += 1
    return counts


def test_drawing_all_at_once_is_drawing_one_by_one() -> None:
    """Same mean counts, in a case in which two classes are used up on the way."""
    from proxfed.data.partitions import _draw_until_used_up

    rng = np.random.default_rng(0)
    priors = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.5, 0.2, 0.3]])
    stock, size, runs = np.array([3, 4, 9]), 5, 1500
    slow = np.mean([one_by_one(priors, stock, size, rng) for _ in range(runs)], axis=0)
    fast = np.zeros_like(slow)
    for _ in range(runs):
        clients = rng.exponential(size=(3, size)).cumsum(1).ravel().argsort() // size
        drawn = _draw_until_used_up(priors, clients, stock, rng)
        np.add.at(fast, (clients, drawn), 1 / runs)
    # a count of at most 5 has standard deviation below 1.5 here, so this is five of the difference of two means
    np.testing.assert_allclose(fast, slow, atol=5 * 1.5 * np.sqrt(2 / runs))
    np.testing.assert_allclose(fast.sum(1), size)


@pytest.mark.parametrize("x", [3, 6, 9])
def test_classes_per_client_is_fednags_rule(x: int) -> None:
    labels = np.repeat(np.arange(10), 120)
    parts = ClassesPerClient(4, x)(labels)
    holders = np.zeros(10, int)
    for i, part in enumerate(parts):
        classes = np.unique(labels[part])
        assert set(classes) == {(i * x + j) % 10 for j in range(x)}
        holders[classes] += 1
    assert (holders > 0).all()
    for part in parts:
        count = np.bincount(labels[part], minlength=10)
        np.testing.assert_array_equal(count[count > 0], (120 // holders)[count > 0])


def test_classes_may_be_drawn() -> None:
    """Each client has x classes whatever the seed; over seeds every class is held by x/C of the clients."""
    labels = np.repeat(np.arange(10), 40)
    held = np.zeros(10)
    for seed in range(300):
        for part in ClassesPerClient(4, 3, seed, "random")(labels):
            classes = np.unique(labels[part])
            assert len(classes) == 3
            held[classes] += 1
    np.testing.assert_allclose(held / 1200, 0.3, atol=5 * np.sqrt(0.21 / 1200))


def test_classes_that_nobody_holds_are_left_out() -> None:
    labels = np.repeat(np.arange(10), 6)
    parts = ClassesPerClient(2, 2)(labels)
    assert [np.unique(labels[part]).tolist() for part in parts] == [[0, 1], [2, 3]]


@given(st.integers(1, 10), st.integers(1, 4))
def test_shards_limit_the_classes_of_a_client(n: int, s: int) -> None:
    labels = some_labels(N=400, C=4)
    for part in Shards(n, s)(labels):
        # a shard that is no longer than the smallest class touches at most two classes
        if 400 // (n * s) < np.bincount(labels).min():
            assert len(np.unique(labels[part])) <= 2 * s
        assert abs(len(part) - 400 / n) <= s


def test_sizes_are_the_sizes_asked_for() -> None:
    assert [len(part) for part in Sizes([3, 1, 5])(np.zeros(20))] == [3, 1, 5]  # type: ignore[arg-type]


def test_natural_clients_are_the_ids_in_order() -> None:
    groups = np.array(["b", "a", "b", "c"])
    assert [part.tolist() for part in NaturalPartition()(np.zeros(4), groups)] == [[1], [0, 2], [3]]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: IID(0), "IID: num_partitions = 0"),
        (lambda: DirichletByClass(3, 0.0), "DirichletByClass: alpha = 0.0"),
        (lambda: DirichletByClient(3, -1.0), "DirichletByClient: alpha = -1.0"),
        (lambda: DirichletByClass(3, 1.0, 0), "min_partition_size = 0"),
        (lambda: Sizes((3, 0)), r"partition_sizes\[1\] = 0"),
        (lambda: Sizes(()), "at least one"),
        (lambda: IID(30)(np.zeros(20)), "needs at least 30 samples, but there are 20"),
        (lambda: Shards(10, 3)(np.zeros(20)), "needs at least 30 samples"),
        (lambda: DirichletByClient(30, 1.0)(np.zeros(20)), "needs at least 30 samples"),
        (lambda: DirichletByClass(3, 1.0)(np.zeros(20)), "needs at least 30 samples"),
        (lambda: Sizes((15, 6))(np.zeros(20)), "add up to 21, but there are 20"),
        (lambda: ClassesPerClient(2, 3)(some_labels(C=2)), "num_classes_per_partition = 3 but the data have 2 classes"),
        (lambda: ClassesPerClient(30, 1)(np.arange(10)), "would hold no samples"),
        (
            lambda: ClassesPerClient(3, 1, 0, "any"),
            "class_assignment_mode = 'any' is not one of",
        ),
        (lambda: NaturalPartition()(np.zeros(3)), "no column"),
        (lambda: NaturalPartition()(np.zeros(3), np.zeros(2)), "2 ids for 3 samples"),
    ],
)
def test_bad_settings_are_refused(make, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


def test_a_dirichlet_that_leaves_a_client_too_little_says_which_settings() -> None:
    with pytest.raises(InputError) as error:
        DirichletByClass(50, 0.01, min_partition_size=10)(some_labels(N=520))
    for part in ("alpha = 0.01", "num_partitions = 50", "min_partition_size = 10"):
        assert part in str(error.value)


@pytest.mark.parametrize("name", PARTITIONS)
def test_sixty_thousand_samples_over_a_thousand_clients_are_quick(name: str) -> None:
    options = {"dirichlet_by_class": (1000, 1.0), "dirichlet_by_client": (1000, 0.3), "classes_per_client": (1000, 3)}
    arguments = {"natural": (), "sizes": ((60,) * 1000,)} | options
    partition = PARTITIONS[name](*arguments.get(name, (1000,)))
    labels, groups = some_labels(N=60_000, C=10), np.arange(60_000) % 1000
    start = time.process_time()
    assert len(partition(labels, groups)) == 1000
    assert time.process_time() - start < 1


def test_a_partition_by_its_name() -> None:
    by_name = load("digits", "iid", clients=10)
    same = load("digits", PARTITIONS["iid"](num_partitions=10))
    assert np.array_equal(by_name.sizes, same.sizes)
    assert np.array_equal(by_name.labels, same.labels)
    skewed = load("digits", {"name": "dirichlet_by_class", "alpha": 0.5}, clients=4)
    assert len(skewed) == 4
    assert len(load("synthetic_binary", clients=3)) == 3
    for wrong, said in (
        (("iid", None), "partition = 'iid' needs a number of clients, such as load(..., clients=10)"),
        (("iidd", 3), "partition: there is no 'iidd'; did you mean 'iid'?"),
        (({"name": "iid", "num_partitions": 3}, 3), "clients and partition['num_partitions'] are the same"),
        (("dirichlet_by_class", 3), "partition: the key 'alpha' is missing"),
    ):
        with pytest.raises(InputError, match=re.escape(said)):
            load("digits", wrong[0], clients=wrong[1])
