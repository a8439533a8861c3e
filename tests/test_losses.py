"""Losses beside least squares and classification: values by plain loops, slopes by differences, bounds by Hessians."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed import Federated, Linear, Neural, read_study
from proxfed.data.survival import survival_labels, time_and_event
from proxfed.errors import InputError
from proxfed.problems.linear.cox import Cox
from proxfed.problems.losses import Huber, Poisson

LOSSES = {"huber": Huber(0.7), "poisson": Poisson(), "cox": Cox(), "efron": Cox("efron")}
SIZES = (9, 14, 9)
P = 3


def labels(loss: str, rng: np.random.Generator, m: int) -> np.ndarray:
    if loss == "huber":
        return rng.normal(size=m) * 3
    if loss == "poisson":
        return rng.poisson(1.5, m).astype(float)
    events = rng.integers(0, 2, m)
    events[0] = 1
    return survival_labels(rng.integers(0, 6, m).astype(float), events)  # with ties, and at time 0


def data(loss: str, weighted: bool, sizes=SIZES, seed: int = 0) -> Federated:
    rng = np.random.default_rng(seed)
    N = sum(sizes)
    b = np.concatenate([labels(loss, rng, m) for m in sizes])
    weights = rng.integers(0, 4, N) + (np.arange(N) % 3 == 0) if weighted else None
    return Federated(rng.normal(size=(N, P)), b, sizes, sample_weights=weights)


def client_value(loss: str, s: np.ndarray, b: np.ndarray, w: np.ndarray) -> float:
    """f_i by the formulas of a textbook, sample by sample."""
    if loss == "huber":
        r = np.abs(s - b)
        return float(w @ np.where(r <= 0.7, r**2 / 2, 0.7 * (r - 0.35)) / w.sum())
    if loss == "poisson":
        return float(w @ (np.exp(s) - b * s) / w.sum())
    times, events = time_and_event(b)
    total = 0.0
    for t in set(times[events]):
        tied = np.flatnonzero((times == t) & events)
        S, D = w[times >= t] @ np.exp(s[times >= t]), w[tied] @ np.exp(s[tied])
        total -= w[tied] @ s[tied]
        for k in range(len(tied)):
            gone = k / len(tied) if loss == "efron" else 0.0
            mean = w[tied].mean()
            total += mean * np.log(S - gone * D) if mean else 0.0
    return float(total / w.sum())


def value(p: Linear, loss: str, i: int, x: np.ndarray) -> float:
    A, b = p.data.client(i)
    start, stop = p.data.offsets[i : i + 2]
    w = np.ones(len(b)) if p.data.sample_weights is None else p.data.sample_weights[start:stop]
    w = w / w.mean()
    s = A @ x[:P] + (x[P] if p.intercept else 0.0)
    return client_value(loss, s, b, w) + p.l2 / 2 * float(x @ x)


def problem(loss: str, weighted: bool, **options) -> Linear:
    return Linear(data(loss, weighted), LOSSES[loss], l2=0.1, intercept=LOSSES[loss].separate, **options)


every = pytest.mark.parametrize("loss", LOSSES)
weights = pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])


@every
@weights
def test_values_and_gradients_are_those_of_the_formulas(loss, weighted) -> None:
    p = problem(loss, weighted)
    X = np.random.default_rng(1).normal(size=(p.n, p.d))
    f, x = p.local(0, range(p.n)), torch.tensor(X)
    assert f.value(x).numpy() == pytest.approx([value(p, loss, i, X[i]) for i in range(p.n)], rel=1e-12)
    for i in range(p.n):
        steps = 1e-6 * np.eye(p.d)
        slopes = [(value(p, loss, i, X[i] + e) - value(p, loss, i, X[i] - e)) / 2e-6 for e in steps]
        assert f.full_grad(x)[i].numpy() == pytest.approx(slopes, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "efron"])
def test_whole_numbers_as_weights_are_repeated_rows(loss) -> None:
    """But for Efron's Cox: repeated rows are ties, which it counts as such."""
    d = data(loss, True)
    times = d.sample_weights.astype(int)
    sizes = [int(times[a:b].sum()) for a, b in zip(d.offsets, d.offsets[1:], strict=False)]
    repeated = Federated(np.repeat(d.features, times, 0), np.repeat(d.labels, times), sizes)
    x, y = torch.tensor(np.random.default_rng(2).normal(size=(2, P)))
    one, other = (Linear(v, LOSSES[loss], weighting="size") for v in (d, repeated))
    assert torch.allclose(one.weights, other.weights)
    f, g = (p.local(0, range(p.n)) for p in (one, other))
    assert torch.allclose(f.value(x) - f.value(y), g.value(x) - g.value(y), rtol=1e-12)  # Cox's differ by a constant
    assert torch.allclose(f.full_grad(x), g.full_grad(x), rtol=1e-12)


@pytest.mark.parametrize("loss", ["huber", "cox", "efron", "logistic", "squared", "cross_entropy"])
@weights
@pytest.mark.parametrize("wide", [False, True], ids=["tall", "wide"])
def test_smoothness_bounds_every_hessian(loss, weighted, wide) -> None:
    rng = np.random.default_rng(3)
    N, p = sum(SIZES), 40 if wide else 4
    b = np.concatenate([labels(loss if loss in LOSSES else "huber", rng, m) for m in SIZES])
    classes = 3 if loss == "cross_entropy" else None
    b = {"logistic": np.sign(rng.normal(size=N)), "cross_entropy": rng.integers(0, 3, N)}.get(loss, b)
    d = Federated(
        rng.normal(size=(N, p)) + 2, b, SIZES, classes=classes, sample_weights=rng.random(N) if weighted else None
    )
    problem = Linear(d, LOSSES.get(loss, loss), l2=0.01, weighting="size", intercept=loss not in ("cox", "efron"))
    L, L_f, mu, mu_min = problem.smoothness()
    assert problem.client_smoothness.shape == (3,)
    assert float(problem.client_smoothness.max()) == pytest.approx(L, rel=1e-12)
    assert L_f <= float(problem.weights @ problem.client_smoothness) * (1 + 1e-12)
    f = problem.local(0, range(3))
    for scale in (0.0, 0.3, 3.0):
        x = scale * torch.tensor(rng.normal(size=problem.d))
        J = torch.stack([(f.full_grad(x + e) - f.full_grad(x - e)) / 2e-5 for e in 1e-5 * torch.eye(problem.d)])
        H = J.transpose(0, 1).mT  # (client, d, d)
        each = torch.linalg.eigvalsh((H + H.mT) / 2)
        whole = torch.linalg.eigvalsh(torch.einsum("i,ijk->jk", problem.weights, (H + H.mT) / 2))
        assert bool((each[:, -1] <= problem.client_smoothness + 1e-4).all())
        assert float(whole[-1]) <= L_f + 1e-4
        assert float(whole[0]) >= mu - 1e-4
        assert float(each[:, 0].min()) >= mu_min - 1e-4
        if loss == "squared":
            assert float(whole[-1]) == pytest.approx(L_f, abs=1e-3)
            assert float(whole[0]) == pytest.approx(mu, abs=1e-3)


@given(st.floats(1e2, 1e6), st.integers(0, 100))
def test_cox_does_not_overflow(size, seed) -> None:
    p = Linear(data("cox", True, seed=seed), Cox())
    x = size * torch.tensor(np.random.default_rng(seed).normal(size=P))
    f = p.local(0, range(p.n))
    assert bool(f.value(x).isfinite().all())
    assert bool(f.full_grad(x).isfinite().all())
    assert float(f.full_grad(x).abs().max()) <= float(p.A.abs().max()) * 2


def test_the_order_of_the_rows_does_not_matter_to_cox() -> None:
    d, rng = data("efron", True), np.random.default_rng(4)
    order = np.concatenate([a + rng.permutation(b - a) for a, b in zip(d.offsets, d.offsets[1:], strict=False)])
    other = Federated(d.features[order], d.labels[order], d.sizes, sample_weights=d.sample_weights[order])
    x = torch.tensor(rng.normal(size=P))
    one, two = (Linear(v, Cox("efron")).local(0, range(3)) for v in (d, other))
    assert torch.allclose(one.value(x), two.value(x), rtol=1e-13)
    assert torch.allclose(one.full_grad(x), two.full_grad(x), atol=1e-14)


def test_cox_on_held_out_samples_is_that_of_one_more_client() -> None:
    d, test = data("cox", False), data("cox", False, sizes=(20,), seed=5)
    held = Federated(d.features, d.labels, d.sizes, test=(test.features, test.labels))
    x = torch.tensor(np.random.default_rng(6).normal(size=P))
    assert Linear(held, "cox").evaluate(x)["test_loss"] == pytest.approx(
        value(Linear(test, "cox"), "cox", 0, x.numpy())
    )


def test_labels_of_survival_tell_time_and_event() -> None:
    times, events = np.array([0.0, 0.0, 2.5, 3.0]), np.array([True, False, False, True])
    back = time_and_event(survival_labels(times, events))
    assert np.array_equal(back[0], times)
    assert np.array_equal(back[1], events)


def test_a_loss_of_an_experiment_file_may_have_settings(tmp_path) -> None:
    text = """
name = "robust"
rounds = 1
data = { name = "synthetic_binary", alpha = 1.0, beta = 1.0, clients = 3, samples = 20, features = 5 }
problem = { name = "linear", loss = { name = "huber", delta = 2.0 } }
algorithms = [{ name = "prox_newton", theory = true }]
"""
    (tmp_path / "e.toml").write_text(text)
    study = read_study(tmp_path / "e.toml")
    assert study.problem.f.loss == Huber(2.0)
    assert Linear(study.problem.f.data, {"name": "cox", "ties": "efron"}).loss == Cox("efron")
    for table, sentence in {
        '{ name = "hubert" }': "there is no 'hubert'; did you mean 'huber'",
        '{ name = "huber", deltas = 1.0 }': "unknown key 'deltas'; did you mean 'delta'",
        '{ name = "huber", delta = 0.0 }': "delta = 0.0 must be > 0",
    }.items():
        (tmp_path / "bad.toml").write_text(text.replace('{ name = "huber", delta = 2.0 }', table))
        with pytest.raises(InputError, match=sentence):
            read_study(tmp_path / "bad.toml")


MINE = Federated(np.eye(2), np.array([1.0, 2.0]), [1, 1])
SENTENCES = {
    "Huber: delta = 0 must be > 0": lambda: Huber(0),
    "Cox: ties = 'exact' is not one of 'breslow', 'efron'": lambda: Cox("exact"),
    "Poisson regression takes labels >= 0, but data has -1": lambda: Linear(
        Federated(np.eye(2), np.array([1.0, -1.0]), [1, 1]), "poisson"
    ),
    "Poisson: its curvature has no bound, so there is no step size by theory: give numbers": lambda: Linear(
        MINE, "poisson"
    ).smoothness(),
    "Cox: batch = 2, but its loss needs all samples": lambda: Linear(MINE, "cox", batch=2),
    "Cox: intercept = True, but the baseline hazard takes its place": lambda: Linear(MINE, "cox", intercept=True),
    "Cox regression needs events, but all labels of data are censored (below 0)": lambda: Linear(
        Federated(np.eye(2), np.array([-0.0, -2.0]), [1, 1]), "cox"
    ),
    "time = -1.0 of row 1 must be a finite number >= 0": lambda: survival_labels([1, -1], [1, 1]),
    "event = 2 of row 0 must be 1 (observed) or 0 (censored)": lambda: survival_labels([1, 1], [2, 1]),
    "(2,) times do not fit (1,) events": lambda: survival_labels([1, 1], [1]),
    "Neural: loss = Cox(ties='breslow') is for linear models: it needs all samples at once": lambda: Neural(
        MINE, "linear", "cox"
    ),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_what_makes_no_sense_is_refused_in_one_sentence(sentence) -> None:
    with pytest.raises(InputError) as e:
        SENTENCES[sentence]()
    assert str(e.value) == sentence
