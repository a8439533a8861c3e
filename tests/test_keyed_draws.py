"""Dropout and its like: a client's random numbers are those of its key, whoever else is computed beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from proxfed import FedAvg, Federated, Neural, run
from proxfed.algorithms import FedSAM
from proxfed.data import OnDemand
from proxfed.errors import InputError
from proxfed.keyed_random import fold, keys
from proxfed.problems.neural.keyed_draws import KeyedDraws

SIZES = (12, 7, 12, 9)
LONG, WORDS = 6, 20


class Text(nn.Module):
    """An embedding and a stock encoder."""

    def __init__(self, words: int = WORDS, dropout: float = 0.3) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.embedding, self.encoder = nn.Embedding(words, 8), nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.encoder(self.embedding(tokens)).mean(1))


class Rows(nn.Module):
    """A module over the tokens as rows of floats."""

    def __init__(self, inside: Callable[[Rows, Tensor], Tensor]) -> None:
        super().__init__()
        self.inside, self.out = inside, nn.Linear(LONG, 3)

    def forward(self, A: Tensor) -> Tensor:
        return self.out(self.inside(self, A / WORDS))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, 5, 2, batch_first=True, dropout=0.4), nn.Linear(5, 3)

    def forward(self, A: Tensor) -> Tensor:
        return self.out(self.lstm(A[..., None] / WORDS)[0][:, -1])


def noisy(m: Rows, A: Tensor) -> Tensor:
    return A + torch.randn_like(A) * torch.rand(()) if m.training else A


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "transformer": Text,
    "nn.Dropout": lambda: nn.Sequential(nn.Linear(LONG, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3)),
    "F.dropout": lambda: Rows(lambda m, A: nn.functional.dropout(A, 0.5, m.training)),
    "torch's noise": lambda: Rows(noisy),
    "alpha dropout": lambda: nn.Sequential(nn.Linear(LONG, 8), nn.AlphaDropout(0.5), nn.Linear(8, 3)),
    "lstm": Recurrent,
}


def data() -> Federated:
    rng = np.random.default_rng(0)
    return Federated(
        rng.integers(0, WORDS, (sum(SIZES), LONG)),
        rng.integers(0, 3, sum(SIZES)),
        SIZES,
        classes=3,
        name="texts",
    )


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("batch", [4, None])
def test_a_gradient_is_a_function_of_seed_client_round_and_draw(make: Callable[[], nn.Module], batch: int) -> None:
    f = Neural(data(), make(), batch=batch)
    x, before = f.initial(0), torch.get_rng_state()
    together = f.local(2, range(4), 5).grad(x, 3)
    for i in (3, 0, 2, 1):
        assert torch.equal(f.local(2, [i], 5).grad(x, 3)[0], together[i])
    for other in (f.local(2, range(4), 6), f.local(3, range(4), 5)):
        assert not torch.equal(other.grad(x, 3), together)
    assert not torch.equal(f.local(2, range(4), 5).grad(x, 4), together)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_values_and_full_gradients_draw_nothing(make: Callable[[], nn.Module]) -> None:
    """They are those of the module in eval mode, by torch alone."""
    f = Neural(data(), make(), dtype=torch.float64)
    x, local = f.initial(0), f.local(1, range(4), 9)
    module, start = f.module(x), 0
    for i, m in enumerate(SIZES):
        A, b = torch.from_numpy(f.data.features[start : start + m]), torch.from_numpy(f.data.labels[start : start + m])
        loss = nn.functional.cross_entropy(module(A.to(f.net.takes)), b)
        assert local.value(x)[i] == pytest.approx(loss.item(), rel=1e-12)
        expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
        torch.testing.assert_close(local.full_grad(x)[i], expected, rtol=1e-9, atol=1e-12)
        start += m


def test_steps_without_a_written_gradient_draw_the_same() -> None:
    f = Neural(data(), Text(), batch=4)
    y = f.initial(0).expand(4, -1).clone()
    steps, local = y.clone(), f.local(1, range(4), 2)
    local.descend(y, range(3), 0.1)
    for draw in range(3):
        steps.sub_(local.grad(steps, draw), alpha=0.1)
    torch.testing.assert_close(y, steps, rtol=1e-5, atol=1e-6)


def test_a_key_gives_the_masks_of_dropout() -> None:
    """A gradient is that of torch's own forward pass with the generator that the key begins."""
    f = Neural(data(), NETWORKS["nn.Dropout"](), dtype=torch.float64)
    x, module = f.initial(0), f.module(f.initial(0)).train()
    A, b = torch.from_numpy(f.data.features[:12]), torch.from_numpy(f.data.labels[:12])
    masks = set()
    for draw in range(3):
        (key,) = keys(4, "forward", [0], 7)
        with KeyedDraws(fold(fold(np.array([key]), draw), 0)):
            loss = nn.functional.cross_entropy(module(A.double()), b)
        expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
        found = f.local(7, [0], 4).grad(x, draw)[0]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
        masks.add(loss.item())
    assert len(masks) == 3


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_mean_over_draws_is_the_layer_without_dropout(p: float) -> None:
    A = torch.ones(1000)
    drawn = []
    for k in keys(0, "forward", range(100), 1):
        with KeyedDraws(np.array([k])):
            drawn.append(nn.functional.dropout(A, p))
    found = torch.stack(drawn)
    assert float(found.mean()) == pytest.approx(1, abs=5 * (p / (1 - p) / found.numel()) ** 0.5)
    assert found.unique().tolist() == pytest.approx([0, 1 / (1 - p)])


def test_a_fused_dropout_is_the_plain_one() -> None:
    """What accelerators call in one piece: the same mask, and its gradient."""
    x = torch.arange(1.0, 31, requires_grad=True)
    key = np.array([77], np.uint64)
    with KeyedDraws(key) as draws:
        fused, mask = torch.native_dropout(x, 0.4, True)
    with KeyedDraws(key):
        plain = nn.functional.dropout(x, 0.4)
    assert draws.count == 1
    torch.testing.assert_close(fused, plain)
    assert torch.equal(mask, plain != 0)
    (g,) = torch.autograd.grad(fused.sum(), x)
    torch.testing.assert_close(g, mask / 0.6)


@pytest.mark.usefixtures("two_threads")
def test_threads_change_nothing() -> None:
    """Nor do rows of other clients, which their threads change meanwhile, disturb a backward pass."""
    network = Text()
    two = run(Neural(data(), network, batch=4), FedAvg(0.1, 6), rounds=8, progress=False).model
    torch.set_num_threads(1)
    one = run(Neural(data(), network, batch=4), FedAvg(0.1, 6), rounds=8, progress=False).model
    assert torch.equal(one, two)


def test_samples_that_are_read_on_demand_draw_the_same() -> None:
    whole, network = data(), Text()
    read = OnDemand(whole.client, SIZES, classes=3, name="texts")
    one, two = (run(Neural(d, network, batch=4), FedAvg(0.1, 2), rounds=3, progress=False).model for d in (whole, read))
    assert torch.equal(one, two)


def test_a_second_gradient_of_the_same_draw_has_the_same_masks() -> None:
    """Which is what sharpness-aware methods count on: with rho -> 0 they are plain ones."""
    f = Neural(data(), Text(), batch=4, dtype=torch.float64)
    plain, sharp = (run(f, a, rounds=3, progress=False).model for a in (FedAvg(0.1, 2), FedSAM(0.1, 2, rho=1e-9)))
    torch.testing.assert_close(sharp, plain, rtol=1e-6, atol=1e-7)


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_tokens_stay_whole_numbers_where_the_network_takes_them() -> None:
    assert Neural(data(), Text()).samples(np.array([[0, 1]]))[0].dtype == torch.int64
    assert Neural(data(), nn.Linear(LONG, 3)).samples(np.array([[0, 1]]))[0].dtype == torch.float32
    standard = Neural(data(), nn.Linear(LONG, 3), normalise="standard")
    assert standard.samples(np.array([[0, 1]]))[0].dtype == torch.float32


def test_predictions_take_tokens() -> None:
    f = Neural(data(), Text())
    x, tokens = f.initial(0), data().features[:5]
    assert np.array_equal(f.predict(x, tokens), f.module(x)(torch.from_numpy(tokens)).argmax(1).numpy())


def test_a_token_beyond_the_embedding_is_refused_before_round_1() -> None:
    with pytest.raises(InputError, match=r"does not fit: samples of texts have shape \(6,\) \(index out of range"):
        Neural(data(), Text(words=WORDS - 1))


def test_a_network_that_takes_neither_says_why_it_does_not_take_tokens() -> None:
    wrong = nn.Sequential(nn.Embedding(WORDS, 4), nn.Flatten(), nn.Linear(5, 3))
    with pytest.raises(InputError, match="cannot be multiplied"):
        Neural(data(), wrong)
