"""The papers' theorems in numbers: what is measured lies below what they allow, in every round, and values by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from proxfed import Depositum, DFedADMM, FedCEF, Federated, FedNAG
from proxfed.algorithms.depositum import State
from proxfed.compressors import Identity, TopK
from proxfed.errors import InputError
from proxfed.papers.bounds import dfedadmm, fedcef, fednag
from proxfed.papers.bounds.depositum import Analysis, Terms, accumulated, corollary, terms
from proxfed.regularisers import L1, MCP, Zero
from proxfed.schedules import ExponentialDecay
from proxfed.topologies import Complete, Every, Ring, StarGraph
from proxfed.types import Constants, Smoothness

from support import numpy_references as ref
from support import toy_problems as toy

N = toy.N
ONE = Constants(Smoothness(L=1.0, L_f=1.0, mu=0.0), n=2, d=3, rounds=1, weak_convexity=0.0, psi=0.0)


def mean_gradient(p, x):
    return p.f.local(0, range(p.f.n)).full_grad(x).mean(0)


def squared(x):
    return float(x.square().sum())


# ---- DEPOSITUM -------------------------------------------------------------------------------------------------------


def every_iteration(p, a, graph, how_many):
    """The states of the iterations 0, 1, 2, ...: one a round, on a graph that talks in every T0-th."""
    run = toy.begin(p, replace(a, T0=1), Every(graph, a.T0))
    nothing = torch.zeros_like(run.state.x)
    yield State(nothing + p.start(0), nothing, nothing, nothing)
    yield run.state
    for t in range(1, how_many - 1):
        run.round(t)
        yield run.state


@pytest.mark.parametrize("option", ["polyak", "nesterov"])
@pytest.mark.parametrize("T0", [1, 3])
@pytest.mark.parametrize("graph", [Ring, Complete, StarGraph])
@pytest.mark.parametrize("h", [L1(toy.LAMBDA), MCP(0.02, 9.0)])
def test_depositum_keeps_to_all_its_bounds(h, graph, T0, option):
    p, graph = toy.problem(h=h), graph(N)
    c = toy.constants(p, 100, graph)
    a = Depositum.theory(c._replace(n=1), gamma=0.5, T0=T0, option=option)  # the conditions that are proved for all n
    bounds, found = Analysis(a, c), [terms(a, p, state) for state in every_iteration(p, a, graph, 40)]
    gap = toy.objective(p, p.start(0))  # phi* >= 0
    gradient, start = squared(mean_gradient(p, p.start(0))), found[1].y
    assert start > 1e-3  # very different clients
    for T in range(1, len(found) - 1):
        sums = accumulated(found[: T + 2])
        assert 0 < sums.s <= bounds.proposition_1(sums, gap)
        assert sums.x <= bounds.consensus_x(sums) + 1e-15
        assert 0 < sums.y <= bounds.consensus_y(sums, T, start)
        assert sums.y <= bounds.consensus_y_alone(sums, T, start)
        assert 0 < sums.nu <= bounds.consensus_nu(sums)
        assert 0 < sums.estimation <= bounds.estimation(sums, T, gradient)
        assert sums.s / N / (T + 1) <= bounds.theorem(T, gap, gradient, start)


def test_depositum_terms_are_those_of_the_definitions():
    p, a = toy.problem(), Depositum(0.4, 0.5, T0=1)
    *_, state = every_iteration(p, a, Ring(N), 5)
    grad, mean, prox = toy.gradient(p), toy.mean_gradient(p), ref.prox_l1(toy.LAMBDA)
    x, y, nu, alpha = state.x.numpy(), state.y.numpy() / 0.5, state.m.numpy() / 0.5, 0.2
    G = [(x[i] - prox(x[i] - alpha * mean(x[i]), alpha)) / alpha for i in range(N)]
    near = [(x[i] - prox(x[i] - alpha * nu[i], alpha)) / alpha for i in range(N)]
    estimation = np.sum((np.mean([grad(i, x[i]) for i in range(N)], 0) - nu.mean(0)) ** 2)
    apart = [np.sum((rows - rows.mean(0)) ** 2) for rows in (x, y, nu)]
    s = np.sum(np.square(G)) + p.f.smoothness().L ** 2 * apart[0] + N * estimation
    assert terms(a, p, state) == pytest.approx((s, np.sum(np.square(near)), estimation, *apart), rel=1e-9)


def test_depositum_consensus_of_y_as_printed_leaves_out_the_first_gradients():
    """E00.11: without `start`, (15) fails from the first iteration on, even with the larger term of G."""
    p, graph = toy.problem(), Ring(N)
    c = toy.constants(p, 100, graph)
    a = Depositum.theory(c._replace(n=1))
    found = [terms(a, p, state) for state in every_iteration(p, a, graph, 30)]
    for T in range(1, 29):
        sums = accumulated(found[: T + 2])
        assert sums.y > Analysis(a, c).consensus_y(sums, T, start=0.0)


def test_depositum_equal_clients_contradict_the_lemma_as_printed():
    """E00.10: their x moves by alpha^2 |G|^2, which (29) bounds by 3/n of that."""
    p = toy.problem()
    A, b = p.f.data.client(0)
    p = replace(p, f=p.f.over_rows(Federated.from_clients([(A, b)] * 5)))
    a = Depositum(0.5)
    *_, before, state = every_iteration(p, a, Complete(5), 6)
    moved = squared(state.x - before.x)
    assert moved == pytest.approx(a.alpha**2 * terms(a, p, before).G, rel=1e-9)
    assert terms(a, p, before).x < 1e-25
    assert terms(a, p, state).x < 1e-25


def test_depositum_by_hand():
    bounds = Analysis(Depositum(1 / 16, 0.5, 0.5), ONE)  # alpha beta = 1/32, delta1 = delta2 = 1/4
    sums = Terms(s=0.0, G=1.0, estimation=2.0, x=3.0, y=5.0, nu=7.0)
    assert bounds.proposition_1(sums, 1.0) == pytest.approx(-1 + 512 + 568 + 18432 + 77)
    assert bounds.consensus_x(sums) == pytest.approx(4 * 7 / 1024)
    assert bounds.consensus_y(sums, 9, 2.0, 0.5) == pytest.approx(4 * (3 / 1024 + 18 + 2 + 18))
    assert bounds.consensus_nu(sums) == 5.0
    assert bounds.consensus_y_alone(sums, 9, 2.0) == pytest.approx(0.25 * (3 / 1024 + 2) / (1 / 16 - 6 / 1024))
    assert bounds.estimation(sums, 9, 4.0, 0.5) == pytest.approx((3 / 1024 + 18) / 2 + 8 + 0.5 * 10 * 0.5 / 2)
    local = 0.25 * (11 + 359 / 12) / (1 / 16 - 6 / 1024)
    assert bounds.theorem(9, 1.0, 4.0, 2.0) == pytest.approx((256 + 1136 + local) / 10)
    assert bounds.theorem(9, 0.0, 0.0, 0.0, 1.0) == pytest.approx(142 * 0.5 / 2 + 2 * local)
    assert replace(bounds, a=replace(bounds.a, option="nesterov")).consensus_nu(sums) == pytest.approx(25.0)
    assert corollary("polyak", 4, 24, 9, 2.0, 1.0, 1.0, 0.0) == pytest.approx(526 / 10)
    assert corollary("nesterov", 4, 24, 9, 2.0, 0.0, 0.0, 3.0) == pytest.approx(400 * 3 * 3 / 9 / 10 + 426 * 3 / 20)


@pytest.mark.parametrize(
    ("a", "says"),
    [
        (Depositum(1 / 16, 0.5, prox_step="alpha"), "prox_step"),
        (Depositum(1 / 16, tracking=False), "tracking"),
        (Depositum(1.0), "alpha beta <= 0.0625"),
    ],
)
def test_depositum_refuses_what_is_not_proved(a, says):
    with pytest.raises(InputError, match=says):
        Analysis(a, ONE)


def test_depositum_refuses_steps_that_the_theorem_does_not_allow():
    with pytest.raises(InputError, match="1 - gamma"):
        Analysis(Depositum(1 / 16, gamma=0.9), ONE).theorem(1, 1.0, 1.0, 1.0)
    with pytest.raises(InputError, match="shorter step"):
        Analysis(Depositum(1 / 16, gamma=0.1), ONE._replace(psi=0.9)).theorem(1, 1.0, 1.0, 1.0)


# ---- FedCEF ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressor", [Identity(), TopK(0.5), TopK(0.1)])
@pytest.mark.parametrize("eta", [1.0, 0.3])
@pytest.mark.parametrize("K", [1, 4])
def test_fedcef_keeps_to_its_theorem(K, eta, compressor):
    p = toy.problem()
    c, best = toy.constants(p, 60), toy.objective(p, toy.solution(p))
    a = FedCEF.theory(c, K, eta, compressor)
    run, L, B_h = toy.begin(p, a), c.smoothness.L, toy.LAMBDA * np.sqrt(p.f.d)
    q = np.sqrt(compressor.contraction(p.f.d))
    before = z = run.model()
    first = psi = fedcef.lyapunov(a, p, run.state.clients, z, before, best)
    bias, total = 18.4 * (16 + 161 * eta**2 / (1 - q) ** 2) * L**2 * a.beta**3 * B_h**2 / a.eta_g**2, 0.0
    for t in range(1, c.rounds + 1):
        G = squared((z - p.h.prox(z - a.beta * mean_gradient(p, z), a.beta)) / a.beta)
        total += G
        assert 0 < total / t <= fedcef.theorem(a, c._replace(rounds=t), first, 0.0, B_h)
        run.round(t)
        new = run.model()
        psi, old = fedcef.lyapunov(a, p, run.state.clients, new, z, best), psi
        came = a.beta * L**2 * (27 / eta**2 + 168 / (1 - q) ** 2) * squared(z - before)
        went = (L / 2 - 1 / (2 * a.beta)) * squared(new - z)
        assert psi - old <= came + went - 0.15 * a.beta * G + bias  # (44), which the theorem sums up
        before, z = z, new


@pytest.mark.parametrize("compressor", [Identity(), TopK(0.3)])
def test_fedcef_inside_a_round(compressor):
    """U and Delta against a loop of its own, and U below Lemma 5 with the steps of the theorem."""
    p = toy.problem(batch=6)
    a, prox, grad = FedCEF(0.4, 3, 1.5, 0.7, compressor), ref.prox_l1(toy.LAMBDA), toy.gradient(p)
    run = toy.begin(p, a)
    for t in range(1, 5):
        own, server = run.state
        c, v, zt = own.c.numpy().copy(), own.v.numpy().copy(), server.zt.numpy()
        mean, z = (own.z.numpy() - zt) / a.beta, prox(zt, a.beta)
        U, sent = fedcef.inside(a, p, own, server, t)
        moved = 0.0
        for i in range(N):
            w = x = z
            for k in range(3):
                w = w - 0.4 * (grad(i, x, t, k) + mean[i] - c[i])
                x = prox(w, (k + 1) * 0.4)
                moved += np.sum((x - z) ** 2) / (3 * N)
        assert moved == pytest.approx(U, rel=1e-9)
        assert toy.gap(run.state.clients.v.numpy(), v) == 0  # nothing was changed by looking
        run.round(t)
        assert sent == pytest.approx(np.sum((run.state.clients.c.numpy() - c) ** 2) / N, rel=1e-9)


@pytest.mark.parametrize("K", [1, 4])
def test_fedcef_drift_keeps_to_lemma_5(K):
    p = toy.problem()
    c = toy.constants(p, 60)
    a = FedCEF.theory(c, K, 0.5, TopK(0.5))
    run, f, L, B_h = toy.begin(p, a), p.f.local(0, range(N)), c.smoothness.L, toy.LAMBDA * np.sqrt(p.f.d)
    before = z = run.model()
    for t in range(1, 30):
        own = run.state.clients
        G = squared((z - p.h.prox(z - a.beta * mean_gradient(p, z), a.beta)) / a.beta)
        errors = squared(own.c - own.v) / N + squared(own.v - f.full_grad(before)) / N + L**2 * squared(z - before)
        allowed = (a.alpha * K) ** 2 * (13.8 * errors + 18.4 * B_h**2 + 4.6 * G)
        assert 0 < fedcef.inside(a, p, *run.state, t).U <= allowed
        run.round(t)
        before, z = z, run.model()


@pytest.mark.parametrize("K", [1, 4])
@pytest.mark.parametrize("compressor", [Identity(), TopK(0.5)])
def test_fedcef_keeps_to_lemmas_1_to_4(K, compressor):
    p = toy.problem()
    c = toy.constants(p, 60)
    a = FedCEF.theory(c, K, 0.5, compressor)
    run, f, L, q = toy.begin(p, a), p.f.local(0, range(N)), c.smoothness.L, np.sqrt(compressor.contraction(p.f.d))

    def errors(own, before, z, U):
        g = f.full_grad(before)
        mean = squared(own.v.mean(0) - g.mean(0))
        return fedcef.Errors(squared(z - before), mean, squared(own.v - g) / N, squared(own.v - own.c) / N, U)

    before = z = run.model()
    for t in range(1, 30):
        e = errors(run.state.clients, before, z, fedcef.inside(a, p, *run.state, t).U)
        G = squared((z - p.h.prox(z - a.beta * mean_gradient(p, z), a.beta)) / a.beta)
        run.round(t)
        before, z = z, run.model()
        now = errors(run.state.clients, before, z, 0.0)
        assert toy.objective(p, z) <= fedcef.lemma_1(a, L, e, toy.objective(p, before), now.step, G)
        bounds = fedcef.lemma_2(a, L, e), fedcef.lemma_3(a, L, e), fedcef.lemma_4(a, L, e, q)
        for value, bound in zip((now.local, now.mean, now.unsent), bounds, strict=True):
            assert value <= bound * (1 + 1e-9) + 1e-24


def test_fedcef_by_hand():
    assert fedcef.C_stoc(0.5, 0.5, 10) == pytest.approx(6.7 * (0.85 + 7 + 70))
    assert fedcef.C_approx(0.5, 0.5) == pytest.approx(21712.0)
    a = FedCEF(0.002, 2, eta_g=10.0)  # q = 0, beta = 0.04
    assert fedcef.theorem(a, ONE._replace(rounds=5), 3.0, 1.0, 0.0) == pytest.approx(
        3 / (0.15 * 0.04 * 5) + 6.7 * (8.5 + 14 + 140) / 2
    )
    assert fedcef.theorem(a, ONE._replace(rounds=5), 0.0, 0.0, 2.0) == pytest.approx(18.4 / 0.15 * 177 * 0.008**2)
    with pytest.raises(InputError, match="the theorem is for beta"):
        fedcef.theorem(FedCEF(1.0, 2), ONE, 1.0, 0.0, 0.0)


# ---- DFedADMM --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sam", [False, True])
@pytest.mark.parametrize("K", [1, 5])
@pytest.mark.parametrize("graph", [Ring(N), Complete(N)])
def test_dfedadmm_keeps_to_its_theorem(graph, K, sam):
    p = toy.problem(h=Zero(), l2=0.0)  # rows of norm 1: |grad f_i| <= 1
    c = toy.constants(p, 60, graph)
    a = DFedADMM.theory(c, K, sam=sam)
    run = toy.begin(p, a, graph)
    before = mean = run.state.x.mean(0)
    gap, total = toy.objective(p, mean), 0.0  # f* >= 0
    for t in range(1, c.rounds + 1):
        total += squared(mean_gradient(p, dfedadmm.auxiliary(a, mean, before)))
        assert 0 < total / t <= dfedadmm.theorem(a, c._replace(rounds=t), gap, B=1.0, sigma_g=1.0)
        run.round(t)
        before, mean = mean, run.state.x.mean(0)


def test_dfedadmm_auxiliary_sequence_takes_gradient_steps():
    p, graph = toy.problem(h=Zero()), Ring(N)
    a = DFedADMM(0.05, 4, lam=0.3)
    g = 1 - (1 - 0.05 / 0.3) ** 4
    run = toy.begin(p, a, graph)
    means, duals = [run.state.x.mean(0)], [run.state.g.mean(0)]
    for t in range(1, 8):
        run.round(t)
        means.append(run.state.x.mean(0))
        duals.append(run.state.g.mean(0))
    w = [dfedadmm.auxiliary(a, x, before) for before, x in zip([means[0], *means], means, strict=False)]
    for t in range(7):
        step = a.length * (duals[t + 1] - (1 - g) * duals[t]) / g  # the mean gradient of the round
        assert toy.gap(w[t + 1].numpy(), (w[t] - step).numpy()) < 1e-13


def test_dfedadmm_by_hand():
    a, c = DFedADMM(1 / 96, 1, lam=1 / 96), ONE._replace(rounds=96)  # (L eta_l K)^2 = 1/9216, kappa = 3/8
    parts = 1 + 1 / 96 + 3 / 9216 * 25 / 24 + 1 / 192 + 49 / 48 / 24 + 6 / 9216 * 49 / 48
    assert dfedadmm.theorem(a, c, gap=1.0, B=1.0, sigma_g=0.0) == pytest.approx(parts * 8 / 3, rel=1e-12)
    more = dfedadmm.theorem(replace(a, rho=0.5), c, 1.0, 1.0, 0.0) - dfedadmm.theorem(a, c, 1.0, 1.0, 0.0)
    assert more == pytest.approx(6 * 0.25 / 96 * 8 / 3)
    with pytest.raises(InputError, match="old dual"):
        dfedadmm.theorem(replace(a, dual="new"), c, 1.0, 1.0, 0.0)
    with pytest.raises(InputError, match="a step that is a number"):
        dfedadmm.theorem(DFedADMM(ExponentialDecay(0.01, 0.9), 1, lam=0.1), c, 1.0, 1.0, 0.0)


# ---- FedNAG ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gamma", "part"), [(0.3, 1.0), (0.3, 0.5), (0.5, 0.5)])
@pytest.mark.parametrize("tau", [1, 2, 5])
def test_fednag_keeps_to_its_theorem(tau, gamma, part):
    p = toy.problem(h=Zero(), sizes=toy.RAGGED, weighting="size")
    x = torch.tensor(toy.solution(p, ref.prox_zero))
    a = FedNAG(part / (p.f.smoothness().L * (1 + gamma)), gamma, tau)
    run, best, lowest = toy.begin(p, a), toy.objective(p, x), np.inf
    states = [run.state.server]
    for k in range(1, 16):
        run.round(k)
        states.append(run.state.server)
        lowest = min(lowest, toy.objective(p, run.state.server.w) - best)
        c = fednag.observed(a, p, states, x)
        assert lowest <= fednag.f_1(a.eta, gamma, tau, k * tau, c) < np.inf


@pytest.mark.parametrize("gamma", [0.3, 0.9])
@pytest.mark.parametrize("part", [0.2, 1.0])
def test_fednag_gaps_keep_to_lemmas_2_and_3(gamma, part):
    p = toy.problem(h=Zero(), sizes=toy.RAGGED, weighting="size")
    L, weights, f = p.f.smoothness().L, p.f.weights, p.f.local(0, range(N))
    a = FedNAG(part / (L * (1 + gamma)), gamma, 6)
    run = toy.begin(p, a)
    for k in range(1, 5):
        s = run.state.server
        w, v, delta_i = s.w.expand(N, -1), s.v.expand(N, -1), torch.zeros(N).double()
        virtual = [(s.w, s.v), *fednag.virtual(a, p, s, a.tau)]
        for one, _ in virtual:
            own = f.full_grad(one)
            delta_i = delta_i.maximum((own - weights @ own).norm(dim=1))
        for x, (one, momentum) in enumerate(virtual):
            allowed = torch.tensor([fednag.f_i(a.eta, gamma, x, L, float(d)) for d in delta_i], dtype=torch.float64)
            assert ((w - one).norm(dim=1) <= allowed + 1e-12).all()
            gap = fednag.momentum_gap(a.eta, gamma, x, L, float(weights @ delta_i))
            assert float((weights @ v - momentum).norm()) <= gap + 1e-12
            g = f.grad(w, x) if x < a.tau else torch.zeros_like(w)
            v = gamma * v - a.eta * g
            w = w + gamma * v - a.eta * g
        run.round(k)


def test_fednag_keeps_to_theorem_2_where_its_conditions_hold():
    p, gamma, tau = toy.problem(h=Zero(), sizes=toy.RAGGED, weighting="size"), 0.3, 1
    x = torch.tensor(toy.solution(p, ref.prox_zero))
    a = FedNAG(1 / (p.f.smoothness().L * (1 + gamma)), gamma, tau)
    run, best = toy.begin(p, a), toy.objective(p, x)
    states, virtual = [run.state.server], []
    for k in range(1, 16):
        virtual += [toy.objective(p, w) - best for w, _ in fednag.virtual(a, p, states[-1], tau)]
        run.round(k)
        states.append(run.state.server)
        gap = toy.objective(p, run.state.server.w) - best
        c = fednag.observed(a, p, states, x)
        assert gap <= fednag.theorem_2(a.eta, gamma, tau, k * tau, c, min(gap, *virtual)) < np.inf
    assert fednag.theorem_2(a.eta, gamma, 5, 10, c, 1e-9) == np.inf, "condition 2: the gap of five steps is too large"


def test_fednag_theorem_says_nothing_of_the_momentum_of_its_experiments():
    """E03.3: alpha < 0 with gamma = 0.9 here, and for short steps always."""
    p = toy.problem(h=Zero())
    a = FedNAG(1 / (1.9 * p.f.smoothness().L), 0.9, 2)
    run = toy.begin(p, a)
    states = [run.state.server]
    for k in range(1, 6):
        run.round(k)
        states.append(run.state.server)
    c = fednag.observed(a, p, states, torch.tensor(toy.solution(p, ref.prox_zero)))
    assert fednag.f_1(a.eta, 0.9, 2, 10, c) == np.inf
    assert fednag.eta_bar(0.9, 2, 10, c) is None
    assert fednag.alpha(1e-9, 0.9, c.L, c.p) == pytest.approx(-0.5)


def test_fednag_by_hand():
    c = fednag.Observed(L=0.5, delta=0.1, rho=2.0, omega=2.0, p=1.0)
    assert fednag.alpha(1.0, 0.5, 0.5, 1.0) == pytest.approx(0.71875)
    assert fednag.f_1(1.0, 0.5, 1, 10, c) == pytest.approx(1 / (20 * 0.71875), rel=1e-9)  # h(1) = 0
    assert fednag.h_of_fedavg(1.0, 2, 0.5, 0.1) == pytest.approx(0.05)
    assert fednag.f_2(1.0, 2, 10, c) == pytest.approx(1 / 30 + np.sqrt(1 / 900 + 1 / 30) + 0.1)
    with pytest.raises(InputError, match=r"L eta \(1 \+ gamma\) <= 1"):
        fednag.f_1(2.0, 0.5, 1, 10, c)


def test_fednag_threshold_is_where_the_bounds_cross():
    """f_1 < f_2 between two steps: not from 0 on, as Theorem 4 has it."""
    gamma, tau, T = 0.5, 2, 10
    c = fednag.Observed(L=0.1, delta=1e-4, rho=1.0, omega=1.0, p=0.5)

    def difference(eta):
        return fednag.f_1(eta, gamma, tau, T, c) - fednag.f_2(eta, tau, T, c)

    largest = 1 / (c.L * (1 + gamma))
    found = fednag.eta_bar(gamma, tau, T, c)
    assert 0 < found < largest
    assert found == pytest.approx(brentq(difference, 0.9 * found, largest), rel=1e-5)
    assert difference(0.9 * found) < 0 < difference(0.01 * found)
    assert fednag.eta_bar(gamma, 1, T, c) == pytest.approx(largest)  # h(1) = 0
