"""From x back to the user: modules, state dicts, predictions, coefficients, and the models of a run folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from proxfed import FedAvg, Federated, Linear, Neural, run
from proxfed.data import load
from proxfed.data.limits import limited
from proxfed.errors import InputError
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.problems.named_losses import LOSSES
from proxfed.problems.neural.inputs import standard
from proxfed.problems.saved import load_model, model_name

from support import toy_problems as toy
from support.image_data import images
from support.small_experiment import execute, small


def normed(channels: int, side: int, classes: int) -> nn.Module:
    size = channels * side**2
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes))


def random(f: Linear | Neural) -> torch.Tensor:
    return torch.randn(f.d, generator=torch.Generator().manual_seed(1), dtype=f.dtype)


@pytest.mark.parametrize("model", ["mlp", "depositum_cnn", normed], ids=["mlp", "cnn", "batch norm"])
def test_the_module_is_the_one_that_is_evaluated(model) -> None:
    p = Neural(images(test=30), model, batch=4, normalise="standard", dtype=torch.float64)
    x = random(p)
    module, before = p.module(x), p.net.template.state_dict()
    assert not module.training
    assert torch.equal(torch.cat([v.detach().reshape(-1) for v in module.parameters()]), x)
    features, labels = p.data.test
    scale, shift = standard(p.data.features)
    scores = module(torch.tensor(features) * scale + shift)
    assert torch.allclose(p.scores(x, torch.tensor(features)), scores, atol=1e-10)
    assert p.evaluate(x)["accuracy"] == (scores.argmax(1).numpy() == labels).mean()
    assert np.array_equal(p.predict(x, features), scores.argmax(1).numpy())
    with torch.no_grad():
        for v in module.parameters():
            v.zero_()  # a copy: neither x nor the problem's own module is touched
    assert x.all()
    assert all(torch.equal(v, before[k]) for k, v in p.net.template.state_dict().items())


def test_the_state_dict_rebuilds_the_module_with_its_statistics() -> None:
    p = Neural(images(test=30), normed, batch=4)
    x = random(p)
    fresh = normed(*p.shape[:2], p.outputs).eval()
    fresh.load_state_dict(p.state_dict(x))
    samples = p.A(torch.arange(5))
    assert torch.equal(fresh(samples), p.module(x)(samples))
    assert fresh[2].running_mean.any()
    assert p.module(x)[2].momentum == 0.1


@pytest.mark.parametrize("intercept", [False, True], ids=["through 0", "intercept"])
@pytest.mark.parametrize("loss", list(toy.LOSSES))
def test_a_linear_model_is_a_layer(loss, intercept) -> None:
    p = toy.problem(loss, intercept=intercept)
    x, A = random(p.f), p.f.data.features
    layer = p.f.module(x)
    assert isinstance(layer, nn.Linear)
    assert list(p.f.state_dict(x)) == [b.name for b in p.f.blocks]
    s = p.f.scores(x, A)
    W = x[: p.f.blocks[0].stop].reshape(p.f.blocks[0].shape).numpy()
    assert np.allclose(s, A @ W.T + (x[p.f.blocks[0].stop :].numpy() if intercept else 0), atol=1e-12)
    expected = {"logistic": np.where(s[:, 0] > 0, 1, -1), "least_squares": s[:, 0], "softmax": s.argmax(1)}[loss]
    assert np.array_equal(p.f.predict(x, A), expected)
    assert torch.equal(p.f.predict(x, torch.tensor(A)), torch.tensor(p.f.predict(x, A)))


def test_images_are_scaled_inside() -> None:
    data = images(test=10)
    p, raw = Linear(data, "cross_entropy"), data.test[0]
    assert np.allclose(p.scores(random(p), raw), p.scores(random(p), raw.reshape(10, -1) / np.float32(255)))
    assert raw.dtype == np.uint8
    assert p.evaluate(random(p))["accuracy"] == (p.predict(random(p), raw) == data.test[1]).mean()


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic", "squared"])
def test_labels_come_back_as_the_data_have_them(loss) -> None:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(40, 3))
    b = np.where(A[:, 0] > 0, 1.0, -1.0)
    p = Neural(Federated(A, b, [25, 15], (A, b)), nn.Linear(3, 1 if loss == "logistic" else 2), loss)
    found = p.predict(random(p), A)
    assert set(found.tolist()) <= {-1, 1}
    assert p.evaluate(random(p))["accuracy"] == (found == b).mean()


def test_samples_of_another_shape_are_refused() -> None:
    p = toy.problem("logistic")
    for X in (np.zeros((4, 3)), np.zeros(toy.D)):
        with pytest.raises(InputError, match=r"X has shape .* but samples of data have shape \(10,\)"):
            p.f.predict(p.start(0), X)


# ---- modules of one's own ------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


def table(feature_names: tuple[str, ...] | None = None) -> Federated:
    rng = np.random.default_rng(3)
    A = rng.normal(size=(30, 4))
    return Federated(A, A[:, :3].argmax(1), [10, 12, 8], (A, A[:, :3].argmax(1)), 3, feature_names=feature_names)


def test_a_class_is_made_anew_for_every_seed_and_an_instance_begins_where_it_is() -> None:
    by_class, one = Neural(table(), Net, batch=4), Net()
    assert torch.equal(by_class.initial(1), by_class.initial(1))
    assert not torch.equal(by_class.initial(1), by_class.initial(2))
    p = Neural(table(), one, batch=4, dtype=torch.float64)
    held = torch.cat([v.detach().reshape(-1) for v in one.parameters()])
    assert torch.equal(p.initial(1), held.double())
    assert torch.equal(p.initial(2), held.double())
    with torch.no_grad():
        one.a.weight.zero_()  # a copy was taken
    assert torch.equal(p.initial(1), held.double())
    assert one.a.weight.dtype == torch.float32
    assert p.blocks == by_class.blocks


@pytest.mark.parametrize("model", [Net, Net(), lambda *_: Net()], ids=["class", "instance", "function"])
def test_a_module_over_a_table_learns(model) -> None:
    p = Neural(table(), model, batch=5, l2=1e-3)
    rows = run(p, FedAvg(0.3, 10), 30).rows
    assert rows[-1]["test_loss"] < 0.6 * rows[0]["test_loss"]


# ---- names of features ---------------------------------------------------------------------------------------------


def test_coefficients_by_the_names_of_the_features() -> None:
    names = ("age", "income", "height", "weight")
    p = Linear(table(names), "cross_entropy", intercept=True)
    x = torch.arange(15.0, dtype=torch.float64)
    found = p.coefficients(x)
    assert found.weights[1] == {"age": 4.0, "income": 5.0, "height": 6.0, "weight": 7.0}
    assert found.intercept == {0: 12.0, 1: 13.0, 2: 14.0}
    assert p.coefficients(x, nonzero=True).weights[0] == {"income": 1.0, "height": 2.0, "weight": 3.0}
    one = toy.problem("logistic")
    assert list(one.f.coefficients(one.start(0)).weights) == [f"x{j}" for j in range(toy.D)]
    assert one.f.coefficients(one.start(0)).intercept is None


def test_names_go_with_the_data(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "age,label,income,who\n" + "".join(f"{k},{k % 2},{2 * k},c{k % 3}\n" for k in range(12))
    )
    data = load("own", path=str(tmp_path / "t.csv"), client="who", classes=2, limit=9)
    assert data.feature_names == data.names == ("age", "income")
    assert limited(data, 8, None).names == ("age", "income")
    with pytest.raises(InputError, match=r"3 feature_names do not fit samples of shape \(2,\)"):
        Federated(data.features, data.labels, data.sizes, feature_names=("a", "b", "c"))
    with pytest.raises(InputError, match="two features are called 'a'"):
        Federated(data.features, data.labels, data.sizes, feature_names=("a", "a"))


# ---- kept models ---------------------------------------------------------------------------------------------------


def test_the_models_of_a_run_folder_by_layer(tmp_path: Path) -> None:
    problem = {"name": "network", "model": "mlp", "batch": 5}
    data = {"name": "digits", "limit": 60, "partition": {"name": "iid", "num_partitions": 3}}
    fedavg = {"name": "fedavg", "label": "F", "eta": 0.1, "K": 2}
    other = {"reference": False, "rounds": 2, "seeds": [0, 1], "regulariser": {"name": "zero"}, "dtype": "float32"}
    execute(tmp_path / "run", small(data=data, problem=problem, algorithms=[fedavg], **other))
    vectors, _ = RunFolder(tmp_path / "run").models()
    for seed in (0, 1):
        layers = load_model(tmp_path / "run", "F", seed)
        assert list(layers)[:2] == ["fc1.weight", "fc1.bias"]
        assert np.array_equal(torch.cat([v.reshape(-1) for v in layers.values()]).numpy(), vectors[f"F/{seed}"])
    module = Neural(load("digits", [np.arange(60)]), "mlp").net.template
    assert module.load_state_dict(layers, strict=False).unexpected_keys == []
    assert load_model(tmp_path / "run" / model_name("F", 0), "F").keys() == layers.keys()
    with pytest.raises(InputError, match=r"has no model of 'G' with seed 0, only F/0, F/1"):
        load_model(tmp_path / "run", "G")
    with pytest.raises(InputError, match=r"has no model of 'F' with seed 7"):
        load_model(tmp_path / "run", "F", 7)
    with pytest.raises(InputError, match="has no model of 'F' with seed 0, only none yet"):
        load_model(tmp_path, "F")
    (tmp_path / "no.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="is damaged, or not the model of a run"):
        load_model(tmp_path / "no.safetensors", "F")


def test_a_loss_may_be_named_or_given() -> None:
    for name, loss in LOSSES.items():
        data = toy.data({"squared": "least_squares", "logistic": "logistic"}.get(name, "softmax"), (20, 15))
        one, two = Linear(data, name), Linear(data, loss)
        x = random(one)
        assert torch.equal(one.local(0, range(2)).full_grad(x), two.local(0, range(2)).full_grad(x))
    both = [Neural(images(), "mlp", loss) for loss in ("cross_entropy", LOSSES["cross_entropy"])]
    x = both[0].initial(0)
    assert torch.equal(*(p.local(0, range(p.n)).full_grad(x) for p in both))
