"""Neural networks as problems: gradients against plain autograd, client by client, and the laws around them."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.checkpoint import checkpoint

from proxfed import FedAvg, Federated, InputError, keyed_random, run
from proxfed.engine.measures import Measures
from proxfed.engine.network import Stacked
from proxfed.problems.neural import batched
from proxfed.problems.neural import network_clients as clients
from proxfed.problems.neural.architectures import MODELS, Make
from proxfed.problems.neural.batched import Batched
from proxfed.problems.neural.loop import Loop
from proxfed.problems.neural.neural import Neural
from proxfed.regularisers import L1, OnBlocks

from support.image_data import CLASSES, RAGGED, close, images, normed, point

SIDES = {
    "dfedadmm_cnn": 16,
    "fednag_cnn": 16,
    "vgg16": 32,
    "vgg16_eighth": 32,
    "resnet18": 16,
    "resnet18_group_norm": 16,
}
"""The smallest images that say something; 8 where nothing else is needed."""
DENSE = ("linear", "mlp", "dfedadmm_mlp")
DEEP = ("resnet18", "resnet18_group_norm", "vgg16", "vgg16_eighth")


def plain_gradient(p: Neural, x: Tensor, A: np.ndarray, b: np.ndarray) -> Tensor:
    """What a PyTorch user would write: load the parameters, mean loss, backward."""
    net = MODELS[str(p.model)](A.shape[1], A.shape[2], CLASSES).to(p.dtype)
    vector_to_parameters(x, net.parameters())
    samples = torch.tensor(A).to(p.dtype) * (1 / 255)
    nn.functional.cross_entropy(net(samples), torch.tensor(b)).backward()
    return parameters_to_vector(w.grad for w in net.parameters())


def minibatch(m: int, batch: int, i: int, t: int, draw: int, seed: int) -> np.ndarray:
    """Batch (draw mod nb) of the permutation for this seed, client, round and epoch."""
    nb = int(np.ceil(m / batch))
    words = keyed_random.words(keyed_random.fold(keyed_random.keys(seed, "minibatch", [i], t), draw // nb), m)[0]
    return np.argsort(words)[draw % nb * batch :][:batch]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# ---- gradients -----------------------------------------------------------------------------------------------------


def check_against_autograd(p: Neural, drawn: tuple[int, ...], tolerance: float) -> None:
    x, f = point(p), p.local(3, range(p.n), seed=7)
    for draw in drawn:
        g = f.grad(x, draw)
        for i in range(p.n):
            A, b = p.data.client(i)
            rows = minibatch(len(b), 5, i, 3, draw, 7)
            assert close(g[i], plain_gradient(p, x[i], A[rows], b[rows]), tolerance), (draw, i)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_autograd_in_double_precision(name: str) -> None:
    sizes, drawn = (
        ((9, 15), (1,)) if name in DEEP else ((9, 15, 15, 7), (1, 2))
    )  # the first client's batch 1 is partial
    check_against_autograd(
        Neural(images(sizes, 3, SIDES.get(name, 8)), name, batch=5, dtype=torch.float64), drawn, 1e-10
    )


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_autograd_in_single_precision(name: str) -> None:
    """Deep networks in the same layout: in another one a rounding error that crosses a kink is seen at the end."""
    sizes, drawn = ((9, 15), (1,)) if name in DEEP else ((9, 15, 15, 7), (1, 2))
    p = Neural(images(sizes, 3, SIDES.get(name, 8)), name, batch=5, channels_last=name not in DEEP)
    check_against_autograd(p, drawn, 1e-5)


@pytest.mark.parametrize("name", ["mlp", "depositum_cnn"])
def test_full_gradient_and_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, wd = images(), 0.3
    p = Neural(data, name, batch=4, l2=wd, dtype=torch.float64)
    x, f = point(p), p.local(0, range(p.n))
    g, v = f.full_grad(x), f.value(x)
    for i in range(p.n):
        leaf = x[i].clone().requires_grad_()
        A, b = data.client(i)
        assert close(g[i], plain_gradient(p, leaf, A, b) + wd * x[i], 1e-10)
        net = MODELS[name](1, 8, CLASSES).double()
        vector_to_parameters(x[i], net.parameters())
        loss = nn.functional.cross_entropy(net(torch.tensor(A).double() / 255), torch.tensor(b))
        assert torch.isclose(v[i], loss + wd / 2 * x[i].square().sum(), rtol=1e-12)
    monkeypatch.setattr(clients, "CHUNK", 3)
    assert close(f.full_grad(x), g, 1e-12)
    assert torch.allclose(f.value(x), v, rtol=1e-12)
    assert torch.equal(Neural(data, name, l2=wd, dtype=p.dtype).local(0, range(p.n)).grad(x, 0), f.full_grad(x))


@pytest.mark.parametrize("model", ["mlp", "depositum_cnn", normed])
@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_and_order_of_clients_do_not_matter(model: str | Make, threads: int, two_threads: None) -> None:
    torch.set_num_threads(threads)
    p = Neural(images(), model, batch=5, augment="crop_flip", dtype=torch.float64)
    x = point(p)
    whole = p.local(2, range(p.n)).grad(x, 1)
    for ids in ([0], [1, 2], np.array([3, 0, 2, 1]), range(1, 4)):
        assert close(p.local(2, ids).grad(x[torch.tensor(ids)], 1), whole[torch.tensor(ids)], 1e-10)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("model", ["mlp", "depositum_cnn"])
def test_it_can_be_given_to_another_process_after_it_was_used(model: str) -> None:
    p = Neural(images(), model, batch=5)
    x = point(p)
    there = pickle.loads(pickle.dumps((p, p.local(2, range(p.n)).grad(x, 1))))
    assert torch.equal(there[0].local(2, range(p.n)).grad(x, 1), there[1])


def test_a_shared_point_is_every_clients_row() -> None:
    p = Neural(images(), "mlp", batch=5)
    f, x = p.local(1, range(p.n)), p.initial(0)
    assert f.spread(x).shape == (p.n, p.d)
    for at_shared, at_rows in ((f.grad(x, 0), f.grad(x.repeat(p.n, 1), 0)), (f.value(x), f.value(x.repeat(p.n, 1)))):
        assert torch.allclose(at_shared, at_rows, rtol=1e-5, atol=1e-7)


def test_a_row_need_not_be_contiguous() -> None:
    p = Neural(images(), "mlp", batch=5, dtype=torch.float64)
    x, f = point(p), p.local(1, range(p.n))
    assert close(f.grad(x.T.contiguous().T, 0), f.grad(x, 0), 1e-12)


def test_a_block_may_be_empty() -> None:
    p = Neural(images(), "depositum_cnn", batch=5)
    f = p.local(1, [])
    assert f.grad(p.initial(0), 0).shape == (0, p.d)
    assert f.value(p.initial(0)).shape == (0,)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
def test_both_mechanisms_give_the_same(name: str, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = images((7, 12, 12, 12, 12, 5))
    options: dict[str, Any] = {"batch": 5, "l2": 0.1, "augment": "crop_flip", "dtype": torch.float64}
    one = Neural(data, name, loss, mechanism="loop", **options)
    assert isinstance(one.net.engine, Loop)
    x = point(one)
    f = one.local(1, range(one.n))
    for cache_size in (1 << 20, 3 * one.d, one.d - 1):  # all at once, three at a time, one at a time
        monkeypatch.setattr(batched, "CACHE", cache_size)
        two = Neural(data, name, loss, **options)
        assert isinstance(two.net.engine, Batched)
        g = two.local(1, range(one.n))
        for draw in (0, 1, 2):
            assert close(g.grad(x, draw), f.grad(x, draw), 1e-10)
        assert close(g.full_grad(x), f.full_grad(x), 1e-10)
        assert torch.allclose(g.value(x), f.value(x), rtol=1e-12)


def test_only_dense_networks_are_batched() -> None:
    shared, tied = nn.Linear(64, 64), [nn.Linear(64, 64) for _ in range(2)]
    tied[1].weight = tied[0].weight
    plain = [nn.Flatten(), nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, CLASSES)]
    frozen = [nn.Flatten(), nn.Linear(64, 64).requires_grad_(False), nn.ReLU(), nn.Linear(64, CLASSES)]
    networks = {
        "without some biases": (True, plain),
        "another activation": (False, [nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, CLASSES)]),
        "no activation": (False, [nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, CLASSES)]),
        "ends in an activation": (False, [nn.Flatten(), nn.Linear(64, CLASSES), nn.ReLU()]),
        "a layer twice": (False, [nn.Flatten(), shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(64, CLASSES)]),
        "weights of two layers": (
            False,
            [nn.Flatten(), tied[0], nn.ReLU(), tied[1], nn.ReLU(), nn.Linear(64, CLASSES)],
        ),
        "a layer that is not trained": (False, frozen),
    }
    for what, (dense, layers) in networks.items():
        make = lambda c, s, k, layers=layers: nn.Sequential(*layers)
        p = Neural(images(), make, batch=5, dtype=torch.float64)
        assert isinstance(p.net.engine, Batched) == dense, what
        x = point(p)
        one = Neural(images(), make, batch=5, dtype=torch.float64, mechanism="loop").local(1, range(p.n)).grad(x, 0)
        assert close(p.local(1, range(p.n)).grad(x, 0), one, 1e-10), what
        if not dense:
            with pytest.raises(InputError, match="not a dense network"):
                Neural(images(), make, mechanism="batched")


def test_a_parameter_of_two_layers_gets_the_gradient_of_both() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, CLASSES)
            self.outer.weight = self.inner.weight

        def forward(self, A: Tensor) -> Tensor:
            return self.last(self.outer(self.inner(A.flatten(1)).tanh()).tanh())

    p = Neural(images((7,)), lambda c, s, k: Tied(), dtype=torch.float64)
    x = point(p)
    net = Tied().double()
    vector_to_parameters(x[0], net.parameters())
    A, b = p.samples(np.arange(7)[None])
    cross_entropy(net(A), b[0]).backward()
    expected = torch.cat([w.grad.reshape(-1) for w in net.parameters() if w.grad is not None])
    assert close(p.local(1, [0]).full_grad(x)[0], expected, 1e-10)


def test_rows_need_no_flattening_to_be_batched() -> None:
    data = Federated(images().features.reshape(-1, 64), images().labels, images().sizes, classes=CLASSES)
    make = lambda c, s, k: nn.Sequential(nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    one, two = (Neural(data, make, batch=5, dtype=torch.float64, mechanism=how) for how in ("loop", "auto"))
    assert isinstance(two.net.engine, Batched)
    x = point(one)
    assert close(two.local(1, range(two.n)).grad(x, 0), one.local(1, range(one.n)).grad(x, 0), 1e-10)


# ---- what belongs to f ---------------------------------------------------------------------------------------------


def test_weight_decay_and_clipping() -> None:
    data = images()
    options: dict[str, Any] = {"batch": 5, "dtype": torch.float64}
    bare = Neural(data, "mlp", **options)
    x = point(bare)

    def grad(**more: Any) -> Tensor:
        return Neural(data, "mlp", **options, **more).local(1, range(bare.n)).grad(x, 0)

    g = grad()
    norms = g.norm(dim=1)
    assert close(grad(l2=0.3), g + 0.3 * x, 1e-12)
    c = float(norms.median())
    clipped = grad(clip=c)
    expected = g * torch.where(norms > c, c / norms, torch.ones(()))[:, None]
    assert (norms > c).any()
    assert (norms <= c).any()
    assert close(clipped, expected, 1e-12)
    assert close(grad(clip=c, l2=0.3), expected + 0.3 * x, 1e-12)
    full = Neural(data, "mlp", clip=c, dtype=torch.float64).local(1, range(bare.n))
    assert not close(full.grad(x, 0), full.full_grad(x), 1e-12)  # a measure sees the gradient itself


def test_squared_loss_on_one_hot_classes() -> None:
    data = images()
    p = Neural(data, "linear", "squared", dtype=torch.float64)
    x = point(p)
    f = p.local(0, range(p.n))
    for i in range(p.n):
        A, b = data.client(i)
        W, intercept = x[i, :-CLASSES].reshape(CLASSES, 64).numpy(), x[i, -CLASSES:].numpy()
        residual = A.reshape(len(b), 64) / 255 @ W.T + intercept - np.eye(CLASSES)[b]
        assert np.isclose(float(f.value(x)[i]), np.square(residual).sum(1).mean() / 2)
        dW = residual.T @ A.reshape(len(b), 64) / 255 / len(b)
        expected = np.concatenate([dW.ravel(), residual.mean(0)])
        assert close(f.full_grad(x)[i], torch.tensor(expected), 1e-10)


@pytest.mark.parametrize("mechanism", ["batched", "loop"])
def test_mse_is_torchs(mechanism: str) -> None:
    p = Neural(images(), "mlp", "mse", dtype=torch.float64, mechanism=mechanism)
    x = point(p)[0]
    f, module = p.local(0, range(1)), p.module(x)
    A, b = p.samples(np.arange(p.sizes[0])[None])
    loss = torch.nn.MSELoss()(module(A), torch.eye(CLASSES, dtype=torch.float64)[b[0]])
    loss.backward()
    expected = torch.cat([q.grad.reshape(-1) for q in module.parameters()])
    assert float(f.value(x)[0]) == pytest.approx(float(loss.detach()), rel=1e-12)
    assert close(f.full_grad(x)[0], expected, 1e-12)


def test_labels_of_two_signs_are_two_classes() -> None:
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(20, 123)), np.where(rng.random(20) > 0.5, 1.0, -1.0)
    signs = Neural(Federated(A, b, [12, 8], (A, b)), "mlp")
    classes = Neural(Federated(A, (b > 0).astype(int), [12, 8], (A, (b > 0).astype(int)), 2), "mlp")
    assert signs.d == 24_258
    x = signs.initial(0)
    assert torch.equal(signs.local(0, range(2)).value(x), classes.local(0, range(2)).value(x))
    assert signs.evaluate(x) == classes.evaluate(x)


def test_numbers_are_regressed_upon() -> None:
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(20, 3)), rng.normal(size=20)
    p = Neural(Federated(A, b, [12, 8], (A, b)), "linear", "squared", dtype=torch.float64)
    x = point(p)
    residual = A[:12] @ x[0, :3].numpy() + float(x[0, 3]) - b[:12]
    assert np.isclose(float(p.local(0, range(2)).value(x)[0]), np.square(residual).mean() / 2)
    assert set(p.evaluate(x[0])) == {"test_loss"}
    with pytest.raises(InputError, match="numbers"):
        Neural(Federated(A, b, [12, 8]), "linear")


# ---- the start and the blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "depositum_cnn"])
def test_start_depends_on_the_seed_alone(name: str) -> None:
    p = Neural(images(), name)
    before = torch.get_rng_state()
    x = p.initial(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    assert torch.equal(p.initial(3), x)
    assert not torch.equal(p.initial(4), x)
    assert torch.equal(Neural(images(), name, dtype=torch.float64).initial(3), x.double())
    assert torch.equal(Neural(images((3, 3)), name, batch=2).initial(3), x)


@pytest.mark.parametrize("name", MODELS)
def test_blocks_are_the_named_parameters(name: str) -> None:
    side = SIDES.get(name, 8)
    p = Neural(images(RAGGED, 1, side), name)
    with torch.device("meta"):
        named = list(MODELS[name](1, side, CLASSES).named_parameters())
    assert [(b.name, b.shape) for b in p.blocks] == [(k, tuple(v.shape)) for k, v in named]
    assert [b.start for b in p.blocks] == [0, *(b.stop for b in p.blocks[:-1])]
    assert p.d == sum(v.numel() for _, v in named) == len(p.initial(0))


def test_a_regulariser_finds_its_blocks() -> None:
    p = Neural(images(), "mlp")
    h = OnBlocks.named(p.blocks, {"fc1.weight": L1(1.0)})
    x = p.initial(0)
    assert torch.isclose(h.value(x), x[: 64 * 128].abs().sum())


# ---- running -------------------------------------------------------------------------------------------------------


def learnable(n: int = 4, m: int = 30) -> Federated:
    """Images whose bright quarter tells the class."""
    rng = np.random.default_rng(1)
    b = rng.integers(0, CLASSES, n * m + 40)
    A = rng.integers(0, 80, (len(b), 1, 8, 8))
    for k, label in enumerate(b):
        A[k, 0, 4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 150
    A = A.astype(np.uint8)
    return Federated(A[:-40], b[:-40], [m] * n, (A[-40:], b[-40:]), CLASSES)


@pytest.mark.parametrize("name", ["mlp", "depositum_cnn"])
def test_federated_averaging_learns(name: str) -> None:
    p = Neural(learnable(), name, batch=10)
    rows = run(p, FedAvg(0.3, 6), 6, seed=1).rows
    assert rows[-1]["accuracy"] > 0.9
    assert "objective" not in rows[-1]
    assert "stationarity" not in rows[-1]


def test_measures_of_the_training_data_on_demand() -> None:
    p = Neural(learnable(), "linear", batch=10, train_measures=True, dtype=torch.float64) + L1(0.01)
    result = run(p, FedAvg(0.3, 6), 3)
    values = p.f.local(0, range(p.f.n)).value(result.model)
    assert np.isclose(result.rows[-1]["objective"], float(values.mean()) + 0.01 * float(result.model.abs().sum()))
    assert "stationarity" not in result.rows[-1]
    with pytest.raises(InputError, match="smoothness"):
        p.f.smoothness()
    x, step = result.model, 0.1
    gradient = p.f.local(0, range(p.f.n)).full_grad(x).mean(0)
    expected = ((x - p.h.prox(x - step * gradient, step)) / step).square().sum()
    found = Measures(p, Stacked(p.f.n, p.f.d), step=step)(x)["stationarity"]
    assert np.isclose(found, float(expected), rtol=1e-10)


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "mlpp"}, "did you mean 'mlp'"),
        ({"batch": 0}, "batch = 0 must be a whole number >= 1"),
        ({"batch": 2.5}, "batch = 2.5"),
        ({"device": "cuda:7"}, "device = 'cuda:7' is not available"),
        ({"device": "nowhere"}, "device = 'nowhere' is not available"),
        (
            {"loss": "hinge"},
            "loss = 'hinge' is not a loss; known: cox, cross_entropy, huber, logistic, mse, one_hot, poisson, squared",
        ),
        ({"weighting": "odd"}, "'uniform', 'size'"),
        ({"normalise": "twice"}, "'unit', 'half', 'standard'"),
        ({"augment": "rotate"}, "'crop_flip'"),
        ({"augment": "crop_flip"}, "give a batch"),
        ({"clip": 0.0}, "clip = 0.0 must be > 0"),
        ({"l2": -1.0}, "l2 = -1.0 must be >= 0"),
        ({"model": lambda c, s, k: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))}, r"\(3,\).*needs \(4,\)"),
        ({"model": lambda c, s, k: nn.Sequential(nn.Flatten(), nn.Linear(65, 4))}, r"shape \(1, 8, 8\)"),
        ({"model": lambda c, s, k: nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(4))}, "no parameters"),
    ],
)
def test_bad_input_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as refusal:
        Neural(images(), **({"model": "mlp"} | options))
    assert "\n" not in str(refusal.value)


class Drawing(nn.Module):
    """A network whose forward calls `draw` on the samples."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw, self.linear = draw, nn.Linear(64, 4)

    def forward(self, A: Tensor) -> Tensor:
        return self.linear(self.draw(self, A.flatten(1)))


FOREIGN, ALWAYS = "in NumPy, Python or a backward pass", "in eval mode"

REFUSED = {
    "F.dropout, always": (lambda m, A: nn.functional.dropout(A, 0.5), ALWAYS),
    "a layer left out at times": (lambda m, A: A if torch.rand(()) < 0.999 else A * 0, ALWAYS),
    "numpy": (lambda m, A: A + np.random.rand(), FOREIGN),
    "random": (lambda m, A: A + random.random(), FOREIGN),
    "a checkpoint": (
        lambda m, A: checkpoint(
            lambda z: nn.functional.dropout(z * m.linear.weight.sum(), 0.5, m.training), A, use_reentrant=False
        ),
        FOREIGN,
    ),
}


@pytest.mark.parametrize(("draw", "why"), REFUSED.values(), ids=REFUSED)
def test_randomness_that_cannot_be_keyed_is_refused(draw: Any, why: str) -> None:
    network, before = Drawing(draw), torch.get_rng_state()
    with pytest.raises(InputError, match=f"draws random numbers {why}") as refusal:
        Neural(images(), network)
    assert "\n" not in str(refusal.value)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_that_remembers_what_it_saw_is_refused() -> None:
    def count(m: Drawing, A: Tensor) -> Tensor:
        m.calls = getattr(m, "calls", 0) + 1
        return A + m.calls

    with pytest.raises(InputError, match="gives different scores for the same samples"):
        Neural(images(), Drawing(count))


def test_a_network_without_a_value_at_zero_is_fine() -> None:
    assert Neural(images(), Drawing(lambda m, A: A / A.norm(dim=1, keepdim=True))).d > 0


@pytest.mark.parametrize("loss", ["mse", "cross_entropy", "one_hot"])
def test_a_loss_of_classes_names_the_one_for_numbers(loss: str) -> None:
    data = Federated(np.ones((4, 3)), np.linspace(0, 1, 4), [2, 2], name="mine")
    with pytest.raises(
        InputError, match=f"^loss = '{loss}' takes classes, but mine has numbers: 'squared' fits those$"
    ):
        Neural(data, nn.Linear(3, 1), loss=loss)
    assert Neural(data, nn.Linear(3, 1), loss="squared").outputs == 1


def test_augmentation_takes_images() -> None:
    data = Federated(np.ones((4, 3)), np.arange(4) % 2, [2, 2], classes=2)
    with pytest.raises(InputError, match="takes images"):
        Neural(data, "mlp", batch=2, augment="crop_flip")


def test_no_test_data_no_measures() -> None:
    p = Neural(images(test=0), "mlp")
    assert p.evaluate(p.initial(0)) == {}
