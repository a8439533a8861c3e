"""Differential privacy at the holder: clipping, noise, the accountant, and which algorithms can have them."""

from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed.algorithms import ALGORITHMS, EF21, FedAvg, FedCEF, FedComposite, FedPAQ, ProxNewton, Scaffold
from proxfed.compressors import Identity, TopK
from proxfed.data.synthetic import synthetic_binary
from proxfed.engine.compatibility import why_not_private
from proxfed.engine.halves import Clients, Oracle, Work
from proxfed.engine.messages import dense, leaves
from proxfed.engine.network import Stacked
from proxfed.engine.noise import GRID, NoRows, drowned, epsilon
from proxfed.engine.noise import privatise as privatise_with
from proxfed.engine.start import run_of
from proxfed.engine.states import flatten
from proxfed.errors import InputError
from proxfed.harness.build import build_study
from proxfed.harness.compare import run_study
from proxfed.harness.experiment import parse
from proxfed.harness.protection import Privacy, Protection
from proxfed.harness.remarks import beforehand
from proxfed.problems import Linear, Logistic
from proxfed.regularisers import L1, Zero
from proxfed.silos.protection.eligibility import check_protection, why_no_masks
from proxfed.silos.protection.privacy import gaussian
from proxfed.types import Graph, Star

from support.algorithm_settings import SETTINGS

SECRET = bytes(range(32))


def privatise(u: list[torch.Tensor], r: list[torch.Tensor], privacy: Privacy, secret: bytes) -> list[torch.Tensor]:
    return privatise_with(u, r, privacy, gaussian(secret, sum(x.numel() for x in u))[None])


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


@pytest.mark.parametrize("noise", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("T", [1, 10, 300])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_epsilon_is_the_smallest_one_by_an_independent_computation(noise: float, T: int, delta: float) -> None:
    """Of T Gaussian mechanisms as one with sqrt(T) times the sensitivity, by the integral of its privacy loss."""
    mu, e = sqrt(T) * 2 / noise, epsilon({noise: T}, delta)
    assert by_integral(mu, e) <= delta * (1 + 1e-6)
    assert by_integral(mu, e * (1 - 1e-6)) >= delta * (1 - 1e-6)


def by_integral(mu: float, e: float) -> float:
    """E[max(0, 1 - exp(e - L))], L = mu g + mu^2/2 with g standard normal: what delta is by definition."""
    from scipy import integrate, stats

    def inside(g: float) -> float:
        return -np.expm1(e - (mu * g + mu * mu / 2)) * stats.norm.pdf(g)

    start = (e - mu * mu / 2) / mu
    return float(integrate.quad(inside, start, start + 40, epsabs=0, epsrel=1e-10, limit=500)[0])


def test_epsilon_of_the_example() -> None:
    """Noise 8 and 100 rounds: by Renyi divergences it was 14.13."""
    assert epsilon({8.0: 100}, 1e-5) == pytest.approx(13.21, abs=0.005)


def test_epsilon_of_several_noises_and_of_none() -> None:
    assert epsilon({}, 1e-5) == 0.0
    assert epsilon({2.0: 0}, 1e-5) == 0.0
    assert epsilon({0.0: 1}, 1e-5) == inf
    assert epsilon({2.0: 3, 4.0: 5}, 1e-5) > max(epsilon({2.0: 3}, 1e-5), epsilon({4.0: 5}, 1e-5))
    assert epsilon({2.0: 1}, 1e-5) == pytest.approx(epsilon({4.0: 4}, 1e-5))  # twice the noise, half the sensitivity


@given(noise=st.floats(0.1, 100), times=st.integers(1, 1000))
def test_more_noise_or_fewer_messages_are_never_less_private(noise: float, times: int) -> None:
    assert epsilon({noise * 1.1: times}, 1e-5) <= epsilon({noise: times}, 1e-5) <= epsilon({noise: times + 1}, 1e-5)


def test_a_setting_that_cannot_work_is_said_to_be_one() -> None:
    privacy, equal = Privacy(clip=1.0, noise=8.0), (1 / 3, 1 / 3, 1 / 3)
    said = drowned(privacy, equal, 20, 100)
    assert "moves the model 20.7 times as far in a round as all rows together can, and 2.07 times as far in 100" in said
    assert drowned(privacy, equal, 20, 1000) == ""
    assert drowned(privacy, (0.001,) * 1000, 20, 100) == ""


def test_a_model_of_noise_is_what_the_example_gives() -> None:
    """The bound is not idle: rows that all pull one way, and noise, after so many rounds."""
    rng, d, T = np.random.default_rng(0), 20, 100
    pull, noise = T * 1.0, np.linalg.norm(rng.normal(size=(T, 3, d)).mean(1).sum(0)) * 8.0
    assert noise > 1.5 * pull


# ---- which algorithms ----------------------------------------------------------------------------------------------

PRIVATE = [name for name, a in SETTINGS.items() if not why_not_private(a, 10)]


def test_who_can_be_private() -> None:
    assert {"fedavg", "fedprox", "feddualavg", "fedopt", "fedmid", "mime", "proximal_gradient"} <= set(PRIVATE)
    assert {"scaffold", "fedcomposite", "fedcanon", "feddyn"} <= set(PRIVATE)
    assert not {"ef21", "fedcef", "fedpaq", "depositum", "prox_newton"} & set(PRIVATE)


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
    assert "whose state must agree" in why_not_private(SETTINGS["fedadmm"], 10)
    assert "whose state must agree" in why_not_private(EF21(0.1, Identity()), 10)
    assert "single number" in why_not_private(ProxNewton(), 10)


# ---- in a simulation -----------------------------------------------------------------------------------------------


def simulated(**privacy: float) -> Any:
    table: dict[str, Any] = {
        "name": "private", "rounds": 3, "data": {"name": "synthetic_binary", "clients": 5, "features": 30},
        "problem": {"name": "logistic", "l2": 0.01}, "regulariser": {"name": "l1", "weight": 0.001},
        "algorithms": [{"name": "fedavg", "eta": 0.1, "K": 3}, {"name": "proximal_gradient", "eta": 0.1}],
    }  # fmt: skip
    return parse(table | ({"protection": {"privacy": privacy}} if privacy else {}), "private.toml")


def test_the_same_noise_can_be_had_in_a_simulation() -> None:
    plain, quiet = (run_study(build_study(e), progress=False) for e in (simulated(), simulated(clip=1e3, noise=1e-13)))
    for key, x in plain.models.items():
        assert torch.allclose(quiet.models[key], x, rtol=0, atol=1e-8)
        assert not torch.equal(quiet.models[key], x)
    loud = [run_study(build_study(simulated(clip=1.0, noise=4.0)), progress=False) for _ in range(2)]
    for key, x in loud[0].models.items():
        assert torch.equal(loud[1].models[key], x)  # it follows from the seed
    moved = loud[0].models["fedavg", 0] - plain.models["fedavg", 0]
    assert float(moved.std()) == pytest.approx(4.0 * sqrt(3 / 5), rel=0.4)  # three rounds, five clients


def test_a_simulation_says_what_noise_costs_and_refuses_what_cannot_have_it() -> None:
    said = beforehand(build_study(simulated(clip=1.0, noise=8.0)))
    assert f"the noise follows from the seed; fedavg: epsilon = {epsilon({8.0: 3}, 1e-5):.3g}" in said[1]
    assert "fedavg: protection.privacy: noise = 8 over 5 clients" in said[2]
    e = simulated(clip=1.0, noise=8.0)
    bad = e.model_copy(update={"algorithms": [{"name": "fedadmm", "eta": 1.0, "K": 2, "eta_l": 0.1}]})
    with pytest.raises(
        InputError, match=r"algorithms\.fedadmm: protection\.privacy: FedADMM has clients whose state must agree"
    ):
        build_study(bad).check()


# ---- clients that keep what follows from their messages ------------------------------------------------------------

STATEFUL = [name for name in PRIVATE if type(SETTINGS[name]).after is not Star.after]
VARIED = [SETTINGS[name] for name in STATEFUL] + [
    FedComposite(0.1, 3, partial=True),
    Scaffold(0.1, 2, averaging=0.3),
]


@pytest.mark.parametrize("a", VARIED, ids=str)
@pytest.mark.parametrize("h", [Zero(), L1(0.1)])
def test_the_state_follows_from_the_message(a: Any, h: Any) -> None:
    """What `after` says of the exact message is the state that the client has; its first one knows no rows."""
    problem = Linear(synthetic_binary(clients=4, samples=30, features=6, seed=1), Logistic()) + h
    clients, work = Clients(problem, a, 0), Work()
    own, server = clients.begin(a, range(4), work)
    empty, _ = a.init(clients.x0, NoRows(0, range(4), 0), clients.h)
    for mine, theirs in zip(flatten(own).values(), flatten(empty).values(), strict=True):
        assert torch.equal(mine, theirs)
    for t in range(1, 5):
        server, down = a.down(server, None)
        new, up = clients.client(a, own, down, t, range(4), work)
        known = a.after(own, down, up, clients.h)
        for mine, theirs in zip(flatten(new).values(), flatten(known).values(), strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-13)
            assert mine.abs().max() > 0
        own = new
        mean = up.mean(0) if isinstance(up, torch.Tensor) else tuple(part.mean(0) for part in up)
        server = a.server(server, mean, clients.h, 1.0)


def test_it_is_asked_of_those_who_keep_a_state() -> None:
    assert {*STATEFUL} == {"fedcomposite", "scaffold", "feddyn", "fedcanon"}


@pytest.mark.parametrize("a", VARIED, ids=str)
def test_rows_move_a_message_by_two_clips_given_what_was_sent_before(a: Any) -> None:
    """Without noise, whatever the rows are and whatever was sent before, it is within C of what is known."""
    privacy = Privacy(clip=0.01, noise=QUIET)
    worlds = [synthetic_binary(clients=3, samples=30, features=6, seed=seed) for seed in (1, 2)]
    runs = [Clients(Linear(data, Logistic()) + Zero(), a, 0, privacy) for data in worlds]
    own, server = runs[0].begin(a, range(3), Work())
    for t in range(1, 5):
        server, down = a.down(server, None)
        (new, one), (_, two) = (run.answer(a, own, down, t, range(3), Work()) for run in runs)
        apart = torch.cat([(dense(x) - dense(y)).flatten(1) for x, y in zip(leaves(one), leaves(two), strict=True)], 1)
        assert (apart.norm(dim=1) <= 2 * privacy.clip * (1 + 1e-6)).all()
        assert (apart.norm(dim=1) > 0).all()
        own = new  # of the first world: the second is asked what it would send after the same messages
        mean = one.mean(0) if isinstance(one, torch.Tensor) else tuple(part.mean(0) for part in one)
        server = a.server(server, mean, runs[0].h, 1.0)


def test_control_variates_agree_with_the_server_under_noise() -> None:
    """SCAFFOLD's c is the mean of all c_i, however much was clipped and however loud the noise is."""
    a = Scaffold(0.1, 3)
    problem = Linear(synthetic_binary(clients=5, samples=30, features=8, seed=1), Logistic()) + Zero()
    run = run_of(problem, a, Stacked(5, problem.f.d), privacy=Privacy(clip=0.1, noise=2.0))
    for t in range(1, 6):
        run.round(t)
    state = run.dump()
    c_i, c = (
        next(x for key, x in state.items() if key.startswith(who) and key.endswith("c"))
        for who in ("clients", "server")
    )
    assert torch.allclose(c_i.mean(0), c, rtol=0, atol=1e-12)
    assert float(c_i.std()) > 0.1
