"""Differential privacy at the holder: clipping, noise, the accountant, and which algorithms can have them."""

from math import inf, log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed.algorithms import ALGORITHMS, EF21, FedAvg, FedCEF, FedComposite, FedPAQ, ProxNewton
from proxfed.compressors import Identity, TopK
from proxfed.engine.halves import Oracle, Work
from proxfed.engine.messages import dense, leaves
from proxfed.errors import InputError
from proxfed.harness.protection import Privacy, Protection
from proxfed.regularisers import L1, Zero
from proxfed.silos.privacy import GRID, NoRows, epsilon, gaussian, privatise
from proxfed.silos.protection import check_protection, why_no_masks, why_not_private
from proxfed.types import Graph
from test_conformance import SETTINGS

SECRET = bytes(range(32))
QUIET = 1e-9
"""Noise that is hardly there, to look at the clipping."""


@given(seed=st.integers(0, 2**32 - 1), size=st.floats(1e-3, 1e3), clip=st.floats(1e-2, 1e2))
def test_clipping(seed: int, size: float, clip: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    r = [torch.randn(1, 6, generator=rng).double(), torch.randn(1, 2, generator=rng).double()]
    moved = [size * torch.randn(m.shape, generator=rng).double() for m in r]
    sent = privatise([a + b for a, b in zip(r, moved, strict=True)], r, Privacy(clip=clip, noise=QUIET), SECRET)
    got, asked = (torch.cat(list(m), 1) for m in ([a - b for a, b in zip(sent, r, strict=True)], moved))
    norm = float(asked.norm())
    assert float(got.norm()) <= clip * (1 + 1e-6)
    assert torch.allclose(got, asked * min(1, clip / norm), atol=clip * 1e-6 + size * 1e-12)


def test_what_is_not_finite_counts_as_no_rows() -> None:
    r = [torch.ones(1, 3).double()]
    for bad in (inf, float("nan")):
        sent = privatise([torch.full((1, 3), bad).double()], r, Privacy(clip=1.0, noise=QUIET), SECRET)
        assert torch.allclose(sent[0], r[0], atol=1e-7)


def test_the_noise_is_standard_normal() -> None:
    from scipy import stats

    g = gaussian(SECRET, 200_001)
    assert len(g) == 200_001
    assert stats.kstest(g, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(g[:-1], g[1:])[0, 1]) < 5 / sqrt(len(g))
    assert abs(np.corrcoef(g[:100_000], g[100_001:])[0, 1]) < 5 / sqrt(1e5)
    assert np.isfinite(g).all()


def test_the_noise_has_the_size_that_was_asked_for_and_lies_on_a_grid() -> None:
    u = [torch.zeros(1, 100_000).double()]
    (sent,) = privatise(u, u, Privacy(clip=0.5, noise=3.0), SECRET)
    assert float(sent.std()) == pytest.approx(1.5, rel=0.02)
    assert float(sent.mean()) == pytest.approx(0.0, abs=5 * 1.5 / sqrt(1e5))
    grid = GRID  # of a deviation between 1 and 2
    assert (torch.frac(sent / grid) == 0).all()
    assert (torch.frac(sent / (2 * grid)) != 0).any()


def test_the_same_secret_gives_the_same_bytes_and_another_one_others() -> None:
    u, privacy = [torch.ones(1, 50).double()], Privacy(clip=1.0, noise=1.0)
    first, again = (privatise(u, u, privacy, SECRET)[0] for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.isclose(first, privatise(u, u, privacy, bytes(32))[0]).any()


def test_single_precision_stays_single() -> None:
    u = [torch.ones(1, 5)]
    assert privatise(u, u, Privacy(clip=1.0, noise=1.0), SECRET)[0].dtype == torch.float32


def renyi(noise: float, T: int, delta: float) -> float:
    """epsilon of T Gaussian mechanisms by hand: T alpha/(2 s^2) at every order, and the conversion of Canonne,
    Kamath and Steinke (2020), Proposition 12; s = sigma/2 because two tables are up to 2 C apart."""
    s = noise / 2
    orders = np.concatenate([1 + np.logspace(-3, 1, 4000), np.arange(11, 2000)])
    found = T * orders / (2 * s**2) + np.log1p(-1 / orders) - (log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(found.min()))


@pytest.mark.parametrize("noise", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("T", [1, 10, 300])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_epsilon_is_that_of_an_independent_computation(noise: float, T: int, delta: float) -> None:
    ours, theirs = epsilon({noise: T}, delta), renyi(noise, T, delta)
    assert theirs * (1 - 1e-5) <= ours <= theirs * 1.02 + 1e-3  # both try some orders, the library fewer


def test_epsilon_is_above_the_exact_one_of_a_gaussian_mechanism() -> None:
    """delta(epsilon) of T mechanisms is that of one with sqrt(T) times the sensitivity (Balle and Wang 2018)."""
    from scipy.stats import norm

    noise, T, delta = 8.0, 25, 1e-5
    mu, e = sqrt(T) * 2 / noise, epsilon({noise: T}, delta)
    exact = norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu)
    assert delta / 50 < exact <= delta


def test_epsilon_of_several_noises_and_of_none() -> None:
    assert epsilon({}, 1e-5) == 0.0
    assert epsilon({2.0: 0}, 1e-5) == 0.0
    assert epsilon({0.0: 1}, 1e-5) == inf
    assert epsilon({2.0: 3, 4.0: 5}, 1e-5) > max(epsilon({2.0: 3}, 1e-5), epsilon({4.0: 5}, 1e-5))


# ---- which algorithms ----------------------------------------------------------------------------------------------

PRIVATE = [name for name, a in SETTINGS.items() if not why_not_private(a, 10)]


def test_who_can_be_private() -> None:
    assert {"fedavg", "fedprox", "feddualavg", "fedopt", "fedmid", "mime", "proximal_gradient"} <= set(PRIVATE)
    assert not {"scaffold", "fedcomposite", "ef21", "fedcef", "fedpaq", "depositum", "prox_newton"} & set(PRIVATE)


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("h", [Zero(), L1(0.1)])
def test_what_a_client_without_rows_sends_is_known_to_all(name: str, h: object) -> None:
    """It follows from the broadcast, is finite, and is the same for every client."""
    a, x0 = SETTINGS[name], torch.linspace(-1, 1, 10).double()
    composite = a.needs.composite
    inside, seen = (None, h) if composite or isinstance(h, Zero) else (h, Zero())
    f = Oracle(NoRows(1, range(3), 0), Work(), None, inside)
    own, server = a.init(x0, f, seen)
    _, down = a.down(server, None)
    _, up = a.client(own, down, f, seen)
    for leaf in leaves(up):
        rows = dense(leaf)
        assert torch.isfinite(rows).all()
        assert (rows == rows[:1]).all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_everybody_else_is_refused_with_the_reason(name: str) -> None:
    a = SETTINGS[name]
    for asked, why in (
        (Protection(secure_aggregation=True), why_no_masks(a)),
        (Protection(privacy=Privacy(clip=1.0, noise=1.0)), why_not_private(a, 10)),
    ):
        if why:
            with pytest.raises(InputError, match=type(a).__name__):
                check_protection(asked, a, 10)
        else:
            check_protection(asked, a, 10)
    check_protection(Protection(), a, 10)
    assert not isinstance(a, Graph) or why_not_private(a, 10)


def test_the_reasons() -> None:
    assert why_no_masks(SETTINGS["dsgt"]) == ""  # what its peers send is sealed, and its model is a mean
    assert "has no server" in why_not_private(SETTINGS["dsgt"], 10)
    assert "masks fill every number" in why_no_masks(FedCEF(0.1, 2, compressor=TopK(0.1)))
    assert why_no_masks(FedCEF(0.1, 2, compressor=Identity())) == ""
    assert why_no_masks(FedComposite(0.1, 2)) == ""
    assert why_not_private(FedAvg(0.1, 2), 10) == why_not_private(FedPAQ(0.1, 2), 10) == ""
    assert "keep a state" in why_not_private(FedComposite(0.1, 2), 10)
    assert "keep a state" in why_not_private(EF21(0.1, Identity()), 10)
    assert "single number" in why_not_private(ProxNewton(), 10)
