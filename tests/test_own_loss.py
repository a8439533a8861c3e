"""Losses of one's own: functions and modules of torch, per sample, in both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from proxfed import FedAvg, Federated, Linear, Neural, compare, run
from proxfed.errors import InputError
from proxfed.problems.own_loss import OwnLoss

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 4)), RNG.integers(0, 3, 30)
CLASSES = Federated(X, Y, [10, 12, 8], (X[:9], Y[:9]), 3, name="mine")
NUMBERS = Federated(X, X.sum(1), [10, 12, 8], (X[:9], X[:9].sum(1)), name="numbers")
WEIGHT = torch.tensor([1.0, 5.0, 0.5])


def network(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs))


@pytest.mark.parametrize("mechanism", ["batched", "loop"])
@pytest.mark.parametrize("own", [nn.CrossEntropyLoss(), F.cross_entropy, nn.CrossEntropyLoss(reduction="sum")])
def test_torchs_cross_entropy_is_ours(mechanism: str, own: Any) -> None:
    net = network()
    one, two = (
        run(Neural(CLASSES, net, loss, batch=4, mechanism=mechanism, dtype=torch.float64), FedAvg(0.2, 3), rounds=4,
            progress=False)
        for loss in (own, "cross_entropy")
    )  # fmt: skip
    torch.testing.assert_close(one.model, two.model, rtol=1e-10, atol=1e-12)
    assert one.rows[-1]["accuracy"] == two.rows[-1]["accuracy"]
    assert one.rows[-1]["test_loss"] == pytest.approx(two.rows[-1]["test_loss"])


@pytest.mark.parametrize("mechanism", ["batched", "loop"])
def test_class_weights(mechanism: str) -> None:
    """Each sample counts by the weight of its class; the mean is over samples."""
    f = Neural(CLASSES, network(), nn.CrossEntropyLoss(weight=WEIGHT), mechanism=mechanism, dtype=torch.float64)
    x = f.initial(0)
    module, (A, b) = f.module(x), map(torch.from_numpy, CLASSES.client(0))
    value = (WEIGHT.double()[b] * F.cross_entropy(module(A), b, reduction="none")).mean()
    assert float(f.local(0, [0]).value(x)) == pytest.approx(value.item(), rel=1e-12)
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, list(module.parameters()))])
    torch.testing.assert_close(f.local(0, [0]).full_grad(x)[0], expected)


def test_a_function_of_scores_and_labels() -> None:
    def focal(s: Tensor, b: Tensor) -> Tensor:
        log = -F.cross_entropy(s, b, reduction="none")
        return -((1 - log.exp()) ** 2) * log

    assert run(Neural(CLASSES, network(), focal), FedAvg(0.1, 2), rounds=3, progress=False).status == "finished"


def test_of_numbers_scores_are_one_number_each() -> None:
    one, two = (Neural(NUMBERS, network(1), loss, dtype=torch.float64) for loss in (nn.MSELoss(), "squared"))
    x = one.initial(0)
    torch.testing.assert_close(one.local(0, range(3)).full_grad(x), 2 * two.local(0, range(3)).full_grad(x))
    two_scores = OwnLoss(lambda s, b: F.gaussian_nll_loss(s[:, 0], b, s[:, 1].exp(), reduction="none"), width=2)
    assert torch.isfinite(Neural(NUMBERS, network(2), two_scores).local(0, range(3)).value(torch.zeros(44))).all()


def test_a_run_folder_takes_it(tmp_path: Any) -> None:
    f = Neural(CLASSES, network(), nn.CrossEntropyLoss(weight=WEIGHT), batch=4)
    results = compare(f, {"FedAvg": FedAvg(0.1, 2)}, rounds=2, out=tmp_path / "run", progress=False)
    assert results.rows[-1]["round"] == 2


def test_own_measures_and_the_confusion_matrix() -> None:
    def recall(labels: np.ndarray, predicted: np.ndarray) -> float:
        return float((predicted == labels)[labels == 1].mean())

    data = Federated.of({"a": (X, Y), "b": (X[:8], Y[:8])}, test={"a": (X[8:], Y[8:]), "b": (X[:8], Y[:8])})
    f = Neural(data, network(), own_measures={"recall_1": (recall, "higher")})
    result = run(f, FedAvg(0.3, 5), rounds=5, progress=False)
    found, predicted = result.rows[-1], f.predict(result.model, data.test[0])
    table = np.zeros((3, 3), int)
    for truth, said in zip(data.test[1], predicted, strict=True):
        table[truth, said] += 1
    assert np.array_equal(f.confusion(result.model), table)
    assert found["recall_1"] == pytest.approx(table[1, 1] / table[1].sum())
    each = [float((predicted[data.test_clients == i] == data.test[1][data.test_clients == i]).mean()) for i in (0, 1)]
    assert [found["accuracy"] for found in f.by_client(result.model).values()] == pytest.approx(each)
    assert found["accuracy_worst_client"] == pytest.approx(min(each))
    assert found["accuracy_spread"] == pytest.approx(np.std(each))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Neural(CLASSES, network(), nn.CrossEntropyLoss), "is a class: give an object, CrossEntropyLoss()"),
        (lambda: Neural(CLASSES, network(), lambda s, b: s.sum()).local(0, [0]).value(torch.zeros(51)), "each of 10"),
        (lambda: Linear(CLASSES, F.cross_entropy), "only networks take functions"),
        (lambda: Neural(CLASSES, network(), own_measures={"f1": max}), "must be a function and a direction"),
        (lambda: Neural(CLASSES, network(), own_measures={"f1": (max, "up")}), "must be 'lower', 'higher'"),
        (lambda: Neural(CLASSES, network()).by_client(torch.zeros(51)), "its test samples do not belong to clients"),
        (lambda: Neural(NUMBERS, network(1), "squared").confusion(torch.zeros(37)), "numbers as labels"),
    ],
)
def test_refusals_are_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        make()
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
