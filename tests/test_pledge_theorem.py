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

    def __init__(self, S, L, Lt, mu, q_u, q_d, rate, rho=0.0):
        p = sqrt(rate)
        self.S, self.rate = S, rate
        self.holds = p * q_u < 1 and p * q_d < 1
        if not self.holds:
            return
        g_B, m, n = p * q_u * S * Lt / (1 - p * q_u), 1 + (1 + q_u) * S * Lt, 1 + q_u
        g_D = p * (m + n * g_B) / (1 - p * q_d)
        gain, w = g_B + q_d * g_D, (rate - 1) / (2 * mu * S)
        self.holds = S * (L + rho) / 2 + gain + w * (1 + gain) ** 2 <= 1
        omega = 0.5 + w * (1 + gain)
        self.beta = omega * q_d / (g_D * (1 - p * q_d))
        self.alpha = omega * (1 + p * q_d * n / (1 - p * q_d)) / (g_B * (1 - p * q_u)) if q_u > 0 else 0.0

    def value(self, gap, b, delta):
        return gap + (self.alpha * (self.S * b) ** 2 + self.beta * delta**2) / self.S


def best_rate(*args, **more):
    """The largest rate that the theorem allows, by bisection."""
    low, high = 1.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if Proof(*args, middle, **more).holds else (low, middle)
    return low


def levels(p, algorithm, proof, best, rounds):
    """The Lyapunov function of rounds 1, 2, ...: x of the round, u and zt after it."""
    run = toy.begin(p, algorithm)
    f, weights = p.f.local(0, range(p.f.n)), p.f.weights
    for t in range(1, rounds + 1):
        run.round(t)
        s = run.state.server
        x = p.h.prox(s.y, algorithm.S)
        off = (run.state.clients.u - f.full_grad(x)).square().sum(1)
        gap = float(weights @ f.value(x) + p.h.value(x)) - best
        yield proof.value(gap, sqrt(float(weights @ off)), float((s.zt - s.z).norm()))


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


@pytest.mark.parametrize("kind", [Worst, Shrinks])
@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), q_u=SHARE, q_d=SHARE, part=st.floats(0.1, 0.95))
def test_the_lyapunov_function_falls_at_the_proved_rate(kind, seed, q_u, q_d, part):
    p, q_d = random_problem(seed), q_d / 2
    L, Lt, mu, largest = exact_constants(p)
    c = Constants(Smoothness(largest, L, mu), p.f.n, p.f.d, 1, 0.0, 0.0)
    S = part * largest_proved_step(c, q_u, q_d)
    rate = best_rate(S, L, Lt, mu, q_u, q_d)
    assert rate > 1
    proof = Proof(S, L, Lt, mu, q_u, q_d, rate)
    algorithm = Pledge(S, 1, 0.0, False, compressor_up=kind(q_u, seed), compressor_down=kind(q_d, seed + 1))
    best = toy.objective(p, p.solve())
    values = list(levels(p, algorithm, proof, best, 25))
    floor = 1e-11 * (1 + abs(best))
    for before, after in pairwise(values):
        assert after <= before / rate + floor
    assert min(values) > -floor


@pytest.mark.parametrize("q2", [0.0, 0.1, 0.2])
def test_steps_of_the_theorem_converge_on_logistic_regression(q2):
    """With messages of 2 bits a number, and no worse than the rate."""
    C = ErrorBoundedQuantiser(q2) if q2 else Identity()
    p = toy.problem()
    algorithm = Pledge.theory(toy.constants(p, 1), proved=True, compressor_up=C, compressor_down=C)
    assert (algorithm.tau, algorithm.theta, algorithm.restart) == (1, 0.0, False)
    s = p.f.smoothness()
    rate = best_rate(algorithm.S, s.L_f, s.L, s.mu, sqrt(q2), sqrt(q2))
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


def test_the_largest_step_is_where_the_condition_ends():
    for q_u, q_d in ((0.0, 0.0), (0.3, 0.3), (0.9, 0.1), (0.0, 0.49)):
        c = Constants(Smoothness(3.0, 2.0, 0.1), 5, 10, 1, 0.7, 0.0)
        most = largest_proved_step(c, q_u, q_d)
        assert Proof(0.999 * most, 2.0, 3.0, 0.1, q_u, q_d, 1.0, 0.7).holds
        assert not Proof(1.001 * most, 2.0, 3.0, 0.1, q_u, q_d, 1.0, 0.7).holds


def test_what_the_theorem_does_not_cover_is_refused():
    c = toy.constants(toy.problem(), 1)
    with pytest.raises(InputError, match=r"the theorem needs a downlink with q\^2 < 0.25, not 0.3"):
        Pledge.theory(c, proved=True, compressor_down=ErrorBoundedQuantiser(0.3))
    with pytest.raises(InputError, match="the theorem has tau = 1, not 4"):
        Pledge.theory(c, 4, proved=True)
    assert Pledge.theory(c, proved=True, compressor_up=TopK(k=1)).eta > 0
