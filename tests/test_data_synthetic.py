"""Synthetic(alpha, beta) against the generator of its authors, restated draw by draw."""

from __future__ import annotations

import random

import numpy as np
import pytest

from proxfed import Linear, Logistic
from proxfed.data.synthetic import synthetic, synthetic_binary, synthetic_shifted
from proxfed.errors import InputError
from proxfed.regularisers import Zero


def reference(alpha: float, beta: float, seed: int, iid: bool, n: int = 30, d: int = 60, C: int = 10):
    """(train, test) of each client, by the global generators and the general normal distribution."""
    np.random.seed(seed)
    random.seed(seed)
    sizes = np.random.lognormal(4, 2, n).astype(int) + 50
    cov = np.diag([float(j) ** -1.2 for j in range(1, d + 1)])
    if iid:
        W, b, means = np.random.normal(0, 1, (d, C)), np.random.normal(0, 1, C), np.zeros((n, d))
    else:
        u = np.random.normal(0, alpha, n)
        B = np.random.normal(0, beta, n)
        means = np.array([np.random.normal(B[i], 1, d) for i in range(n)])
    samples = []
    for i in range(n):
        if not iid:
            W, b = np.random.normal(u[i], 1, (d, C)), np.random.normal(u[i], 1, C)
        x = np.random.multivariate_normal(means[i], cov, sizes[i])
        samples.append([(row, int(np.argmax(row @ W + b))) for row in x])
    train, test = [], []
    for pairs in samples:
        random.shuffle(pairs)
        kept = int(0.9 * len(pairs))
        train.append(pairs[:kept])
        test.append(pairs[kept:])
    return train, test


@pytest.mark.parametrize(("alpha", "beta", "seed", "iid"), [(1, 1, 0, False), (0, 0.5, 7, False), (0, 0, 0, True)])
def test_synthetic_draws_what_the_authors_draw(alpha: float, beta: float, seed: int, iid: bool) -> None:
    state = np.random.get_state(), random.getstate()
    train, test = reference(alpha, beta, seed, iid)
    np.random.set_state(state[0])
    random.setstate(state[1])
    data = synthetic(alpha, beta, seed=seed, iid=iid)
    assert data.sizes.tolist() == [len(pairs) for pairs in train]
    for i, pairs in enumerate(train):
        features, labels = data.client(i)
        np.testing.assert_allclose(features, np.stack([x for x, _ in pairs]), rtol=1e-12, atol=1e-12)
        assert labels.tolist() == [y for _, y in pairs]
    assert data.test is not None
    held_out = [pair for pairs in test for pair in pairs]
    np.testing.assert_allclose(data.test[0], np.stack([x for x, _ in held_out]), rtol=1e-12, atol=1e-12)
    assert data.test[1].tolist() == [y for _, y in held_out]
    assert data.classes == 10


def test_alpha_leaves_the_classes_alone() -> None:
    """u_i moves all logits of a sample alike."""
    calm, wild = synthetic(0.0, 1.0, clients=8, seed=2), synthetic(5.0, 1.0, clients=8, seed=2)
    assert (calm.labels == wild.labels).mean() > 0.999  # up to ties broken by rounding
    np.testing.assert_array_equal(calm.features, wild.features)


def test_beta_spreads_the_means_of_the_features() -> None:
    def spread(beta: float) -> float:
        data = synthetic(0.0, beta, clients=40, seed=1)
        return float(np.std([data.client(i)[0].mean() for i in range(40)]))

    assert 0.05 < spread(0.0) < 0.25  # the mean of 60 standard normals: 0.13
    assert 7 < spread(10.0) < 13


def test_drawing_leaves_the_global_generator_alone() -> None:
    np.random.seed(5)
    before = np.random.get_state()[1].copy()
    synthetic(clients=2)
    synthetic_binary(clients=2, samples=5)
    np.testing.assert_array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize("labels", ["sign", "argmax"])
def test_binary_data_have_unit_rows_equal_sizes_and_signs(labels) -> None:
    data = synthetic_binary(1.0, 1.0, clients=5, samples=40, features=7, labels=labels, seed=3)
    assert data.sizes.tolist() == [40] * 5
    assert data.features.shape == (200, 7)
    np.testing.assert_allclose(np.linalg.norm(data.features, axis=1), 1, rtol=1e-12)
    assert set(data.labels) == {-1.0, 1.0}
    assert data.classes is None


@pytest.mark.parametrize("labels", ["sign", "argmax"])
def test_a_linear_model_of_its_own_explains_each_client(labels) -> None:
    """The perceptron with a bias separates raw samples that a linear model labelled."""
    data = synthetic_binary(0.0, 0.0, clients=3, samples=60, features=5, unit_rows=False, labels=labels, seed=4)
    for i in range(3):
        A, b = data.client(i)
        A = np.hstack([A, np.ones((60, 1))])
        w = np.zeros(6)
        for _ in range(20_000):
            wrong = np.flatnonzero(b * (A @ w) <= 0)
            if len(wrong) == 0:
                break
            w += b[wrong[0]] * A[wrong[0]]
        assert (b * (A @ w) > 0).all()


def test_unit_rows_only_scales() -> None:
    raw, unit = (synthetic_binary(clients=3, samples=20, unit_rows=on, seed=6) for on in (False, True))
    np.testing.assert_array_equal(raw.labels, unit.labels)
    lengths = np.linalg.norm(raw.features, axis=1, keepdims=True)
    np.testing.assert_allclose(unit.features * lengths, raw.features, rtol=1e-12)


# ---- shifted clients -------------------------------------------------------------------------------------------------


def shares(data) -> np.ndarray:
    """Of the class +1 at each client."""
    return np.array([(data.client(i)[1] > 0).mean() for i in range(len(data.sizes))])


def gradients_at_the_solution(data) -> float:
    """The mean norm of grad f_i where grad f is 0: nothing if clients agree."""
    p = Linear(data, Logistic(), l2=1e-2)
    return float(p.local(0, range(p.n)).full_grad((p + Zero()).solve()).norm(dim=1).mean())


def test_a_client_of_the_papers_data_holds_one_class_only() -> None:
    assert set(shares(synthetic_binary())) == {0.0, 1.0}


def test_a_shifted_client_holds_both_classes_in_a_mix_of_its_own() -> None:
    share = shares(synthetic_shifted())
    assert ((share > 0.1) & (share < 0.9)).all()
    assert share.std() > 3 * 0.5 / np.sqrt(300)  # far more than chance
    for seed in range(5):
        few = shares(synthetic_shifted(samples=2, model_shift=5.0, unit_rows=False, seed=seed))
        assert (few == 0.5).all()


def test_shifts_are_what_makes_clients_differ() -> None:
    """Each of them alone is more than the chance of the samples, which is what is left without any."""
    none = {"feature_shift": 0.0, "scale_shift": 0.0, "model_shift": 0.0}
    alike = gradients_at_the_solution(synthetic_shifted(clients=10, samples=2000, features=20, **none))
    assert alike < 0.01
    for shift in ("feature_shift", "model_shift"):
        assert (
            gradients_at_the_solution(synthetic_shifted(clients=10, samples=2000, features=20, **none | {shift: 1.0}))
            > 3 * alike
        )
    together = gradients_at_the_solution(synthetic_shifted(clients=10, samples=2000, features=20))
    assert together > 3 * alike


def test_shifted_features_are_what_they_say() -> None:
    """Means and deviations over a client's samples, and labels as likely as the client's own margin says."""
    data = synthetic_shifted(clients=40, samples=2000, features=6, unit_rows=False, scale_shift=0.0, seed=1)
    x = np.stack([data.client(i)[0] for i in range(40)])
    s = np.arange(1, 7) ** -0.4
    np.testing.assert_allclose(x.std(1).mean(0), s, rtol=0.02)
    np.testing.assert_allclose(x.mean(1).std(0), 0.4 * s, rtol=0.35)  # 40 clients
    unit = synthetic_shifted(clients=40, samples=2000, features=6, scale_shift=0.0, seed=1)
    np.testing.assert_array_equal(unit.labels, data.labels)
    np.testing.assert_allclose(np.linalg.norm(unit.features, axis=1), 1, rtol=1e-12)


def test_a_shifted_client_is_the_same_among_few_and_many() -> None:
    few, many, other = (synthetic_shifted(clients=n, seed=s) for n, s in ((3, 0), (7, 0), (3, 1)))
    for a, b in zip(few.client(2), many.client(2), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(few.features, other.features)


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (synthetic, {"alpha": -1.0}, "alpha = -1.0 must be"),
        (synthetic, {"beta": float("nan")}, "beta = nan must be"),
        (synthetic, {"seed": -1}, "seed = -1 must be"),
        (synthetic, {"clients": 0}, "clients = 0 must be"),
        (synthetic_binary, {"samples": 1.5}, "samples = 1.5 must be"),
        (synthetic_binary, {"labels": "signs"}, "labels = 'signs' is not one of"),
        (synthetic_shifted, {"model_shift": -0.1}, "model_shift = -0.1 must be"),
        (synthetic_shifted, {"informative": 0.0}, "informative = 0.0 must be in"),
        (synthetic_shifted, {"samples": 1}, "samples = 1 must be at least 2"),
        (synthetic_shifted, {"features": 0}, "features = 0 must be"),
    ],
)
def test_bad_settings_are_refused(make, options, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make(**options)
