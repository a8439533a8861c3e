"""Weights of samples and classes: they travel with the samples, and count as repeated rows would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from proxfed import Federated, Linear, Neural, read_study
from proxfed.data import PARTITIONS
from proxfed.data.federated import Dataset, rows
from proxfed.data.limits import limited
from proxfed.errors import InputError
from proxfed.regularisers import GroupLasso, OnBlocks
from proxfed.report.client_stats import ClientStats
from proxfed.types import Problem

from support import toy_problems as toy
from support.image_data import images

SIZES = (7, 4, 9)
LOSSES = {"squared": "least_squares", "logistic": "logistic", "cross_entropy": "softmax"}


def weighted(loss: str, seed: int = 0, **options) -> Federated:
    d = toy.data(LOSSES[loss], SIZES)
    weights = np.random.default_rng(seed).integers(1, 4, len(d.labels))
    return Federated(d.features, d.labels, d.sizes, classes=d.classes, sample_weights=weights, **options)


def test_they_go_where_their_samples_go() -> None:
    N = 40
    mark = np.arange(N, dtype=float)
    pile = Dataset(np.stack([mark, mark], 1), mark, sample_weights=mark + 0.5, groups=np.arange(N) % 3)
    data = Federated.split(pile, PARTITIONS["iid"](4)(pile.labels))
    assert np.array_equal(data.sample_weights, data.labels + 0.5)
    for fewer in (limited(pile, 20, None), limited(data, 20, None), data.keep(np.arange(5, 30)), rows(data)):
        assert np.array_equal(fewer.sample_weights, fewer.labels + 0.5)
    assert limited(pile, 20, None).groups.shape == (20,)
    parts = [data.client(i) for i in range(4)]
    again = Federated.from_clients(parts, sample_weights=[b + 0.5 for _, b in parts])
    assert np.array_equal(again.sample_weights, data.sample_weights)
    assert data.weight_sums == pytest.approx([(b + 0.5).sum() for _, b in parts])


def test_the_file_of_the_clients_has_them() -> None:
    one, other = weighted("logistic", 0), weighted("logistic", 1)
    stats = ClientStats.of(one)
    assert stats.table()["weights"] == one.weight_sums.tolist()
    assert ClientStats.from_table(stats.table(), "clients.json").same(stats)
    assert not stats.same(ClientStats.of(other))
    assert "weights" not in ClientStats.of(toy.data("logistic", SIZES)).table()
    with pytest.raises(InputError, match=r"^clients.json is damaged"):
        ClientStats.from_table(stats.table() | {"weights": [1.0]}, "clients.json")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_they_count_as_repeated_rows(loss, intercept) -> None:
    d = weighted(loss)
    times = d.sample_weights.astype(int)
    repeated = Federated(
        np.repeat(d.features, times, 0), np.repeat(d.labels, times), d.weight_sums.astype(int), classes=d.classes
    )
    one, other = (Linear(v, loss, l2=0.1, intercept=intercept, weighting="size") for v in (d, repeated))
    assert torch.allclose(one.weights, other.weights)
    assert one.smoothness() == pytest.approx(other.smoothness(), rel=1e-10)
    x = torch.tensor(np.random.default_rng(1).normal(size=one.d))
    for ids in (range(3), np.array([2, 0])):
        f, g = one.local(0, ids), other.local(0, ids)
        assert torch.allclose(f.value(x), g.value(x), rtol=1e-12)
        assert torch.allclose(f.full_grad(x), g.full_grad(x), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
def test_minibatches_are_right_in_the_mean(loss) -> None:
    p = Linear(weighted(loss), loss, batch=2, intercept=True)
    x = torch.tensor(np.random.default_rng(2).normal(size=p.d))
    drawn = torch.stack([p.local(t, range(3)).grad(x, 0) for t in range(4000)])
    error = (drawn.mean(0) - p.local(0, range(3)).full_grad(x)).abs()
    assert bool((error <= 5 * drawn.std(0) / 4000**0.5 + 1e-12).all())


def test_equal_weights_change_nothing() -> None:
    d = toy.data("logistic", SIZES)
    same = Federated(d.features, d.labels, d.sizes, sample_weights=np.full(20, 2.5))
    one, other = (Linear(v, "logistic", weighting="size") for v in (d, same))
    x = torch.ones(one.d, dtype=torch.float64)
    assert torch.allclose(one.local(0, range(3)).full_grad(x), other.local(0, range(3)).full_grad(x), rtol=1e-14)
    assert torch.allclose(one.weights, other.weights)
    assert one.v is None


@pytest.mark.parametrize("loss", ["logistic", "cross_entropy"])
@pytest.mark.parametrize("given", [False, True], ids=["alone", "times sample weights"])
def test_balanced_classes_are_those_of_scikit_learn_over_all_clients(loss, given) -> None:
    d = weighted(loss) if given else toy.data(LOSSES[loss], SIZES)
    p = Linear(d, loss, class_weights="balanced", weighting="size")
    classes = np.unique(d.labels)
    each = compute_class_weight("balanced", classes=classes, y=d.labels, sample_weight=d.sample_weights)
    own = np.ones(20) if d.sample_weights is None else d.sample_weights
    expected = own * each[np.searchsorted(classes, d.labels)]
    x = torch.tensor(np.random.default_rng(3).normal(size=p.d))
    same = Linear(
        Federated(d.features, d.labels, d.sizes, classes=d.classes, sample_weights=expected), loss, weighting="size"
    )
    assert torch.allclose(p.weights, same.weights)
    assert torch.allclose(p.local(0, range(3)).full_grad(x), same.local(0, range(3)).full_grad(x), rtol=1e-12)
    twice = p.with_l2(0.1).with_l2(0.0)  # they are not multiplied again
    assert torch.equal(twice.local(0, range(3)).full_grad(x), p.local(0, range(3)).full_grad(x))


TOML = """
name = "groups"
rounds = 2
[data]
name = "synthetic_binary"
alpha = 1.0
beta = 1.0
clients = 3
samples = 20
features = 5
[problem]
name = "logistic"
intercept = true
class_weights = {{ "1" = 2.0 }}
[regulariser]
name = "group_lasso"
weight = 0.1
{groups}
[[algorithms]]
name = "prox_newton"
theory = true
"""


def study(tmp_path: Path, groups: str) -> Problem[Linear]:
    (tmp_path / "e.toml").write_text(TOML.format(groups=groups))
    problem = read_study(tmp_path / "e.toml").problem
    assert isinstance(problem.f, Linear)
    return problem  # type: ignore[return-value]


@pytest.mark.parametrize(
    "groups", ['groups = {first = ["x0", "x3"], second = ["x1"]}', 'groups = {x0 = "a", x3 = "a"}']
)
def test_groups_and_class_weights_in_an_experiment_file(tmp_path, groups) -> None:
    p = study(tmp_path, groups)
    assert p.h == OnBlocks(((p.f.blocks[0], GroupLasso(0.1, labels=(0, 1, 2, 0, 3))),))
    labels = p.f.data.labels
    assert p.f.sample_weights == pytest.approx(np.where(labels > 0, 2.0, 1.0))


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ('groups = {a = ["x9"]}', "groups: there is no feature 'x9'; did you mean"),
        ('groups = {a = ["x0"]}\nsize = 2', "regulariser: groups and size exclude each other"),
        ("groups = {a = [1]}", "groups: 'a' = [1] must be a list of features, or the group of this feature"),
        ("groups = {}", "groups = {} must be a table of groups"),
    ],
)
def test_groups_that_make_no_sense(tmp_path, groups, sentence) -> None:
    with pytest.raises(InputError) as e:
        study(tmp_path, groups)
    assert str(e.value).startswith(sentence)


def federated(weights) -> Federated:
    return Federated(np.eye(3), np.array([1.0, -1.0, 1.0]), [2, 1], sample_weights=weights)


REFUSED = {
    "data: sample_weights must be 3 numbers, one a sample, not int64 of shape (2,)": lambda: federated([1, 2]),
    "data: row 1 of client 0 has the weight -1.0; it must be >= 0": lambda: federated([1, -1, 1]),
    "data: all samples of client 1 have weight 0": lambda: federated([1, 1, 0]),
    "data: sample_weights must be an array for each client, with a number for each sample": lambda: (
        Federated.from_clients([(np.eye(2), np.ones(2))], sample_weights=[np.ones(3)])
    ),
    "class_weights = {'2': 1.0}: data has no label '2', only -1, 1": lambda: Linear(
        federated(None), "logistic", class_weights={"2": 1.0}
    ),
    "class_weights = {'1': -1.0}: -1.0 must be a finite number >= 0": lambda: Linear(
        federated(None), "logistic", class_weights={"1": -1.0}
    ),
    "class_weights = 'equal' must be 'balanced', or a number for each label, such as {'1': 5.0}": lambda: Linear(
        federated(None), "logistic", class_weights="equal"
    ),
    "class_weights = 'balanced': labels of data are numbers, not classes": lambda: Linear(
        Federated(np.eye(2), np.array([0.5, 2.0]), [1, 1]), "squared", class_weights="balanced"
    ),
    "data: all samples of client 0 have weight 0": lambda: Linear(
        Federated(np.eye(2), np.array([-1.0, 1.0]), [1, 1]), "logistic", class_weights={"-1": 0.0}
    ),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_refusals(sentence) -> None:
    with pytest.raises(InputError) as e:
        REFUSED[sentence]()
    assert str(e.value) == sentence


def test_networks_take_none() -> None:
    d = images()
    heavy = Federated(d.features, d.labels, d.sizes, classes=d.classes, sample_weights=np.ones(len(d.labels)))
    with pytest.raises(InputError, match=r"has sample weights, which only linear models take$"):
        Neural(heavy, "linear")
