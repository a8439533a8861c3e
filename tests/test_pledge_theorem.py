"""PLEDGE's theorem (docs/theory.md): the Lyapunov function falls at the proved rate, whatever the problem and C are."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxfed import Federated, Linear, Squared
from proxfed.algorithms import Pledge
from proxfed.algorithms.pledge import largest_proved_step
from proxfed.compressors import ErrorBoundedQuantiser, Identity, TopK
from proxfed.errors import InputError
from proxfed.regularisers import L1, MCP
from proxfed.types import Constants, Packed, Problem, Smoothness

from support import toy_problems as toy

SHARE = st.just(0.0) | st.floats(0.05, 0.9)


class Worst:
    """C(v) = v + q |v| e with a unit e that turns: as far off as q allows, and never zero but at 0."""

    unbiased = False

    def __init__(self, q: float, seed: int = 0) -> None:
        self.q, self.rng = q, np.random.default_rng(seed)

    def contraction(self, d):
        return self.q**2

    def __call__(self, v, key):
        e = torch.tensor(self.rng.normal(size=v.shape))
        dense = v + self.q * v.norm(dim=1, keepdim=True) * e / e.norm(dim=1, keepdim=True)
        return Packed({}, dense, 0, 0, self)

    def encode(self, packed):
        raise NotImplementedError

    def decode(self, messages, d, dtype):
        raise NotImplementedError


class Shrinks(Worst):
    """C(v) = (1 - q) v: every message falls short."""

    def __call__(self, v, key):
        return Packed({}, (1 - self.q) * v, 0, 0, self)


class Proof:
    """The constants of the theorem for one problem, step and rate: written down again from docs/theory.md."""

    def __init__(self, S, L, Lt, mu, q_u, q_d, rate, rho=0.0, tau=1, theta=0.0, a=1.0, Lm=None, convex=True):
        Lm, p, share = Lt if Lm is None else Lm, sqrt(rate), 1 - 1 / tau
        self.S, self.holds = S, False
        if share * S * Lm >= 1 or (convex and tau > 1 and S * Lm > 2):
            return
        s, J = share**2 * S * Lm / (1 - share * S * Lm), 1.0 if convex else 1 + S * Lm
        # what a quantity is made of: coefficients of A, B, D, Z and X
        Zb = [0, 0, theta * (1 + q_d), theta**2, 0]  # theta times Z+
        U = [1, 0, Zb[2], Zb[3], J]
        V = [a * (s * U[j] + (1, 0, 0, 0, S * Lt)[j]) for j in range(5)]
        BV = [V[j] + (j == 1) for j in range(5)]
        rows = np.array([
            [(1 - a) * (1, 0, 0, 0, S * Lt)[j] + a * s * U[j] for j in range(5)],
            [q_u * c for c in BV],
            [(j == 4) + (1 + q_u) * BV[j] + q_d * (j == 2) + Zb[j] for j in range(5)],
            [0, 0, 1 + q_d, theta, 0],
        ])  # fmt: skip
        M, m = rows[:, :4], rows[:, 4]
        if p * np.abs(np.linalg.eigvals(M)).max() >= 1:
            return
        K = np.linalg.inv(np.eye(4) - p * M)
        E = np.array([1, 1, q_d + Zb[2], Zb[3]])
        self.g = p * K @ m
        gain, w = E @ self.g, (rate - 1) / (2 * mu * S)
        self.holds = S * (L + rho) / 2 + gain + w * (1 + gain) ** 2 <= 1
        self.b = (0.5 + w * (1 + gain)) * E @ K

    def value(self, gap, e):
        """Where nothing feeds an error there is none."""
        fed = self.g > 0
        assert np.abs(e[~fed]).max(initial=0) < 1e-12
        return gap + float(self.b[fed] @ (e[fed] ** 2 / self.g[fed])) / self.S


def best_rate(**settings):
    """The largest rate that the theorem allows, by bisection."""
    low, high = 1.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if Proof(rate=middle, **settings).holds else (low, middle)
    return low


def levels(p, algorithm, proof, best, rounds):
    """The Lyapunov function of rounds 1, 2, ...: x of the round, u, v and zt after it."""
    run = toy.begin(p, algorithm)
    f, weights = p.f.local(0, range(p.f.n)), p.f.weights
    for t in range(1, rounds + 1):
        before = run.state.server.z
        run.round(t)
        s, own = run.state.server, run.state.clients
        x = p.h.prox(s.y, algorithm.S)
        late, unknown = (float(weights @ r.square().sum(1)) ** 0.5 for r in (own.v - f.full_grad(x), own.u - own.v))
        gap = float(weights @ f.value(x) + p.h.value(x)) - best
        S = algorithm.S
        yield proof.value(
            gap, np.array([S * late, S * unknown, float((s.zt - s.y).norm()), float((s.z - before).norm())])
        )


def random_problem(seed, n=4, d=6):
    """Clients with Hessians and minima of their own; l1 makes some of the solution zero."""
    rng = np.random.default_rng(seed)
    clients = [(rng.normal(size=(9, d)) * rng.uniform(0.2, 2, d), 3 * rng.normal(size=9)) for _ in range(n)]
    x0 = torch.tensor(5 * rng.normal(size=d))
    return Problem(Linear(Federated.from_clients(clients), Squared(), l2=0.05), L1(0.1), x0)


def exact_constants(p):
    """L, Lt and mu of the quadratic f, from its Hessians."""
    hessians = [A.T @ A / len(A) + p.f.l2 * np.eye(p.f.d) for A, _ in (p.f.data.client(i) for i in range(p.f.n))]
    eigenvalues = np.linalg.eigvalsh(sum(hessians) / p.f.n)
    own = [np.linalg.eigvalsh(H)[-1] for H in hessians]
    return eigenvalues[-1], sqrt(np.mean(np.square(own))), eigenvalues[0], max(own)


class AnyExtrapolation(Pledge):
    """theta times a number in [0, 1] that nobody can foresee: whatever a restart rule might choose."""

    def _extrapolate(self, z, old, *k):
        return z + self.theta * torch.sin(1e4 * z[..., :1]).abs() * (z - old)


def largest(**settings):
    """The largest S of the condition for r = 1, by bisection."""
    low, high = 0.0, 2 / settings["L"]
    for _ in range(60):
        S = (low + high) / 2
        low, high = (S, high) if Proof(S, mu=1.0, rate=1.0, **settings).holds else (low, S)
    return low


@pytest.mark.parametrize("kind", [Worst, Shrinks])
@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    q_u=SHARE,
    q_d=SHARE,
    part=st.floats(0.1, 0.95),
    tau=st.integers(1, 12),
    a=st.just(1.0) | st.floats(0.1, 1),
    extrapolated=SHARE,
    rule=st.sampled_from([Pledge, AnyExtrapolation]),
)
def test_the_lyapunov_function_falls_at_the_proved_rate(kind, seed, q_u, q_d, part, tau, a, extrapolated, rule):
    p, q_d = random_problem(seed), q_d / 2
    L, Lt, mu, own = exact_constants(p)
    theta = extrapolated * (0.5 - q_d) / 1.5  # the largest with q_d + (1 + q_d) theta/(1 - theta) < 1/2
    shape = {"L": L, "Lt": Lt, "q_u": q_u, "q_d": q_d, "tau": tau, "theta": theta, "a": a, "Lm": own}
    S = part * largest(**shape)
    assert S > 0
    rate = best_rate(S=S, mu=mu, **shape)
    assert rate > 1
    proof = Proof(S, mu=mu, rate=rate, **shape)
    C = {"compressor_up": kind(q_u, seed), "compressor_down": kind(q_d, seed + 1)}
    best = toy.objective(p, p.solve())
    values = list(levels(p, rule(S / tau, tau, theta, a=a, **C), proof, best, 25))
    floor = 1e-11 * (1 + abs(best))
    for before, after in pairwise(values):
        assert after <= before / rate + floor
    assert min(values) > -floor


@pytest.mark.parametrize(
    ("q_d", "theta"), [(0.0, 0.33), (0.3, 0.13), (0.49, 0.0), (0.0, 0.34), (0.3, 0.14), (0.51, 0.0)]
)
def test_some_step_is_short_enough_just_where_the_theorem_says(q_d, theta):
    possible = q_d + (1 + q_d) * theta / (1 - theta) < 0.5
    for tau, a, q_u in ((1, 1.0, 0.0), (7, 0.2, 0.9)):
        assert Proof(1e-9, 1.0, 1.0, 1.0, q_u, q_d, 1.0, tau=tau, theta=theta, a=a).holds == possible


def test_one_local_step_without_extrapolation_has_an_explicit_condition():
    for q_u, q_d in ((0.0, 0.0), (0.3, 0.3), (0.9, 0.1), (0.0, 0.49)):
        lost = q_d / (1 - q_d)
        explicit = (1 - lost) / (1.35 + 3.0 * (q_u + lost * (1 + q_u)) / (1 - q_u))
        for S in (0.999 * explicit, 1.001 * explicit):
            assert Proof(S, 2.0, 3.0, 0.1, q_u, q_d, 1.0, rho=0.7).holds == (explicit > S)


@pytest.mark.parametrize("q2", [0.0, 0.1, 0.2])
def test_steps_of_the_theorem_converge_on_logistic_regression(q2):
    """With messages of 2 bits a number, and no worse than the rate."""
    C = ErrorBoundedQuantiser(q2) if q2 else Identity()
    p = toy.problem()
    algorithm = Pledge.theory(toy.constants(p, 1), proved=True, compressor_up=C, compressor_down=C)
    assert (algorithm.tau, algorithm.theta, algorithm.restart) == (1, 0.0, False)
    s = p.f.smoothness()
    rate = best_rate(S=algorithm.S, L=s.L_f, Lt=s.L, mu=s.mu, q_u=sqrt(q2), q_d=sqrt(q2))
    proof = Proof(algorithm.S, s.L_f, s.L, s.mu, sqrt(q2), sqrt(q2), rate)
    best = toy.objective(p, p.solve(1e-14))
    values = np.array(list(levels(p, algorithm, proof, best, 60)))
    assert (values[1:] <= values[:-1] / rate + 1e-14).all()
    assert rate > 1


def test_it_falls_without_convexity():
    """With h weakly convex the function still falls, at no stated rate, and the steps of x go to zero."""
    p = toy.problem(h=MCP(0.05, 8.0))
    C = ErrorBoundedQuantiser(0.1)
    algorithm = Pledge.theory(toy.constants(p, 1), proved=True, compressor_up=C, compressor_down=C)
    s = p.f.smoothness()
    proof = Proof(algorithm.S, s.L_f, s.L, 1.0, sqrt(0.1), sqrt(0.1), 1.0, rho=p.h.weak_convexity)
    assert proof.holds
    values = np.array(list(levels(p, algorithm, proof, 0.0, 80)))
    assert (np.diff(values) <= 1e-14).all()
    assert values[0] - values[-1] > 1e-2


@pytest.mark.parametrize(("tau", "theta", "a"), [(1, 0.0, 1.0), (4, 0.0, 1.0), (9, 0.1, 0.4)])
@pytest.mark.parametrize(("q_u", "q_d"), [(0.0, 0.0), (0.3, 0.3), (0.9, 0.1)])
def test_the_largest_step_is_where_the_condition_ends(q_u, q_d, tau, theta, a):
    rho = 0.7 if tau == 1 else 0.0
    c = Constants(Smoothness(3.0, 2.0, 0.1), 5, 10, 1, rho, 0.0)
    most = largest_proved_step(c, q_u, q_d, tau, theta, a)
    for part in (0.999, 1.001):
        proof = Proof(part * most, 2.0, 3.0, 0.1, q_u, q_d, 1.0, rho, tau, theta, a, convex=False)
        assert proof.holds == (part < 1)


def test_what_the_theorem_does_not_cover_is_refused():
    c = toy.constants(toy.problem(), 1)
    with pytest.raises(InputError, match=r"q\^2 < 0.25 without extrapolation, not 0.548 of q\^2 = 0.3"):
        Pledge.theory(c, proved=True, compressor_down=ErrorBoundedQuantiser(0.3))
    with pytest.raises(InputError, match="the theorem with tau = 4 needs a regulariser that is convex"):
        Pledge.theory(c._replace(weak_convexity=0.1), 4, proved=True)
    with pytest.raises(InputError, match=r"not 0\.515 of"):
        largest_proved_step(c, 0.0, 0.0, theta=0.34)
    assert Pledge.theory(c, proved=True, compressor_up=TopK(k=1)).eta > 0
    assert Pledge.theory(c, 4, proved=True).tau == 4
