"""FedComposite against its specification: the recursion itself, what it keeps, what it reduces to, where it stays."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from proxfed import FedComposite, Federated
from proxfed.algorithms import NaiveComposite
from proxfed.algorithms.fedcomposite import Client, Server
from proxfed.engine.halves import Oracle, Work
from proxfed.errors import InputError
from proxfed.keyed_random import keys
from proxfed.papers.bounds.fedcomposite import lyapunov, theorem
from proxfed.regularisers import L1, MCP, Zero

from support import numpy_references as ref
from support import toy_problems as toy

N = toy.N
L1_PROX = ref.prox_l1(toy.LAMBDA)


def rounds(p, algorithm, how_many):
    """(pre-prox model, corrections c_i, model) after rounds 1, 2, ..."""
    run = toy.begin(p, algorithm)
    for t in range(1, how_many + 1):
        run.round(t)
        s = toy.numpy(run.state)
        yield s.server.x, s.clients.a - s.server.x / algorithm.S, run.model().numpy()


@pytest.mark.parametrize("batch", [None, 6])
@pytest.mark.parametrize(("tau", "eta", "eta_g"), [(1, 2.0, 0.8), (5, 0.9, 1.0), (4, 0.5, 1.7)])
@pytest.mark.parametrize("h", ["l1", "mcp", "zero"])
def test_is_the_recursion_of_the_paper(h, tau, eta, eta_g, batch):
    p = toy.problem(h={"l1": L1(0.02), "mcp": MCP(0.02, 9.0), "zero": Zero()}[h], batch=batch)
    prox = {"l1": ref.prox_l1(0.02), "mcp": ref.prox_mcp(0.02, 9.0), "zero": ref.prox_zero}[h]
    expected = ref.fedcomposite(toy.gradient(p), prox, N, toy.start(p), eta=eta, eta_g=eta_g, tau=tau)
    for (x, c, z), reference in zip(rounds(p, FedComposite(eta, tau, eta_g), 25), expected, strict=False):
        assert toy.gap(x, reference.x) < 1e-13
        assert toy.gap(c, reference.c) < 1e-13
        assert toy.gap(z, reference.z) < 1e-13


def test_weighs_the_clients():
    p = toy.problem(sizes=toy.RAGGED, weighting="size")
    weights = toy.RAGGED / np.sum(toy.RAGGED)
    expected = ref.fedcomposite(toy.gradient(p), L1_PROX, N, toy.start(p), eta=0.9, eta_g=1.2, tau=3, p=weights)
    for (_, c, z), reference in zip(rounds(p, FedComposite(0.9, 3, 1.2), 25), expected, strict=False):
        assert toy.gap(z, reference.z) < 1e-13
        assert np.abs(weights @ c).max() < 1e-14


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize(("tau", "eta_g"), [(1, 1.0), (5, 1.0), (4, 1.7)])
def test_T04a_the_corrections_add_up_to_zero(tau, eta_g, batch):
    p = toy.problem(batch=batch)
    for _, c, _ in rounds(p, FedComposite(0.8, tau, eta_g), 40):
        assert np.abs(c.sum(0)).max() < 4e-14
        assert np.abs(c).max() > 1e-2


def test_T04b_one_local_step_is_proximal_gradient():
    p, S = toy.problem(), 1.5 * 0.9
    descent = ref.proximal_gradient(toy.mean_gradient(p), L1_PROX, L1_PROX(toy.start(p), S), step=S)
    for (_, _, z), x in zip(rounds(p, FedComposite(1.5, 1, 0.9), 60), descent, strict=False):
        assert toy.gap(z, x) < 1e-14


def at_rest(p, x, S):
    """x pre-prox and a_i such that the model is x and c_i = grad f(x) - grad f_i(x)."""
    grad = toy.gradient(p)
    own = toy.rows(*[grad(i, x) for i in range(p.f.n)])
    pre = torch.tensor(x) - S * own.mean(0)
    return Client(own.mean(0) - own + pre / S), Server(pre, own.mean(0))


def stays(p, algorithm, how_often=8):
    x = toy.solution(p)
    clients, server = start, begin = at_rest(p, x, algorithm.S)
    for t in range(1, how_often + 1):
        server, down = algorithm.down(server, keys(0, "server message", [0], t))
        clients, w = algorithm.client(clients, down, Oracle(p.f.local(t, range(p.f.n)), Work()), p.h)
        server = algorithm.server(server, w.mean(0), p.h, 1.0)
        assert toy.gap(clients.a, start.a) < 1e-14
        assert toy.gap(server.x, begin.x) < 1e-14
        assert toy.gap(algorithm.model(server, p.h), x) < 1e-14


def test_T04c_a_single_client_needs_no_correction_and_stays_at_the_solution():
    p, algorithm = toy.problem(sizes=(60,)), FedComposite(1.0, 4)
    for _, c, _ in rounds(p, algorithm, 40):
        assert np.abs(c).max() < 1e-14
    stays(p, algorithm)


@pytest.mark.parametrize(("tau", "eta_g"), [(1, 1.0), (5, 1.0), (5, 2.2), (12, 0.5)])
def test_T04d_solutions_are_fixed_points(tau, eta_g):
    stays(toy.problem(), FedComposite(4.0 / tau, tau, eta_g))


def test_T04d_converges_to_the_solution():
    p = toy.problem()
    assert toy.reaches(p, FedComposite(1.0, 5), 1e-8, 100)
    assert toy.reaches(p, FedComposite(1.0, 5), 1e-13, 300)


def test_T04d_rounding_errors_do_not_build_up():
    """In float32 the model stays as near to the solution as it has come, however long the run goes on."""
    p, x = toy.problem(dtype=torch.float32), toy.solution(toy.problem())
    assert toy.error(toy.final(p, FedComposite(1.0, 5), 600), x) < 5e-6


def floor(p, eta, local_step):
    """The error of a wrong variant: another prox step after local step t."""
    grad, tau = toy.gradient(p), 5
    variant = ref.fedcomposite(grad, L1_PROX, N, toy.start(p), eta=eta, eta_g=1.0, tau=tau, local_step=local_step)
    last = next(islice(variant, int(60 / eta) - 1, None))
    return toy.error(last.z, toy.solution(p))


def test_T04e_the_growing_prox_step_is_essential():
    p = toy.problem()
    assert floor(p, 1.0, lambda t: 1.0) > 1e-2
    skipped = [floor(p, eta, lambda t: 0.0) for eta in (1.0, 0.3, 0.1)]
    assert skipped[0] > 1e-2
    assert skipped[1] / skipped[0] == pytest.approx(0.3, rel=0.3)  # a bias in proportion to eta
    assert skipped[2] / skipped[1] == pytest.approx(1 / 3, rel=0.3)
    assert toy.error(toy.final(p, FedComposite(1.0, 5), 200), toy.solution(p)) < 1e-10


def test_a_constant_local_prox_step_is_that_of_the_reference():
    p, grad = toy.problem(batch=6), toy.gradient(toy.problem(batch=6))
    run = toy.begin(p, NaiveComposite(0.8, 4, 1.3, local_prox="constant"))
    expected = ref.fedcomposite(grad, L1_PROX, N, toy.start(p), eta=0.8, eta_g=1.3, tau=4, local_step=lambda t: 0.8)
    for t, reference in enumerate(islice(expected, 15), 1):
        run.round(t)
        assert toy.gap(run.model().numpy(), reference.z) < 1e-13


def test_the_coupled_scheme_is_the_naive_one_of_section_2():
    """z_{t+1} = P_{(t+1) eta}(z_t - eta (g + c_i)), z_tau is sent, and the prox that it has seen leaves a bias."""
    p, eta, eta_g, tau = toy.problem(), 0.5, 1.2, 4
    grad, S = toy.gradient(p), eta * eta_g * tau
    run = toy.begin(p, NaiveComposite(eta, tau, eta_g, local_prox="coupled"))
    x, c = toy.start(p), [np.zeros(p.f.d)] * N
    for r in range(1, 16):
        z0, sent, G = L1_PROX(x, S), [], []
        for i in range(N):
            z, total = z0, 0
            for t in range(tau):
                g = grad(i, z)
                total = total + g / tau
                z = L1_PROX(z - eta * (g + c[i]), (t + 1) * eta)
            sent.append(z)
            G.append(total)
        x = z0 + eta_g * (sum(sent) / N - z0)
        c = [(z0 - x) / S - G[i] for i in range(N)]
        run.round(r)
        assert toy.gap(run.model().numpy(), L1_PROX(x, S)) < 1e-13
    biased = toy.error(toy.final(p, NaiveComposite(eta, tau), 400), toy.solution(p))
    assert biased > 1e-2 > 1e-8 > toy.error(toy.final(p, FedComposite(eta, tau), 400), toy.solution(p))
    with pytest.raises(InputError, match="local_prox = 'growing' is not one of 'constant', 'coupled'"):
        NaiveComposite(eta, tau, local_prox="growing")


def test_the_lyapunov_function_keeps_to_the_bound_of_the_theorem():
    p, tau = toy.problem("least_squares", l2=0.5), 3
    x, rounds = toy.solution(p), 400
    algorithm = FedComposite.theory(toy.constants(p, rounds), tau)
    run, grad, prox = toy.begin(p, algorithm), toy.gradient(p), ref.prox_l1(toy.LAMBDA)
    B_g = toy.LAMBDA * np.sqrt(p.f.d)  # a subgradient of l1
    x_, c = toy.start(p), [np.zeros(p.f.d)] * N
    first = None
    for r in range(1, rounds + 1):
        z = prox(x_, algorithm.S)
        Lambda = np.array([algorithm.eta * tau * (grad(i, z) + c[i]) for i in range(N)])
        expected = np.sum((z - x) ** 2) + np.sum((Lambda - Lambda.mean(0)) ** 2) / N
        found = lyapunov(algorithm, p, *run.state, torch.tensor(x))
        assert found == pytest.approx(expected, rel=1e-9)
        first = first or found
        allowed = theorem(algorithm, toy.constants(p, r - 1), first, 0.0, B_g)
        assert found <= allowed
        means = []
        for i in range(N):
            w = y = z
            total = 0
            for t in range(tau):
                total = total + grad(i, y) / tau
                w = w - algorithm.eta * (grad(i, y) + c[i])
                y = prox(w, (t + 1) * algorithm.eta)
            means.append(total)
        x_ = z - algorithm.S * sum(means) / N
        c = [sum(means) / N - means[i] for i in range(N)]
        run.round(r)
    assert found < 0.9 * first
    step = algorithm.eta * algorithm.eta_g
    mu = p.f.smoothness().mu_min
    noisy = theorem(algorithm, toy.constants(p, 10**9), first, 0.2, B_g)  # the first term is gone
    assert noisy == pytest.approx((30 * 0.2 + 21 * tau * B_g**2) * step / (mu * N), rel=1e-12)
    with pytest.raises(InputError, match="the theorem is for eta_g"):
        theorem(FedComposite(1.0, 3), toy.constants(p, 1), 1.0, 0.0, 0.0)


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize(("tau", "eta", "eta_g"), [(1, 3.0, 1.0), (5, 0.8, 1.0), (3, 0.8, 1.7)])
def test_T04f_smooth_it_is_SCAFFOLD(tau, eta, eta_g, batch):
    p = toy.problem(h=Zero(), batch=batch)
    scaffold = ref.scaffold(toy.gradient(p), N, toy.start(p), eta=eta, eta_g=eta_g, K=tau)
    for (_, c, z), reference in zip(rounds(p, FedComposite(eta, tau, eta_g), 15), scaffold, strict=False):
        assert toy.gap(z, reference.x) < 2e-14
        assert toy.gap(c, reference.c - np.array(reference.own_c)) < 2e-14


# ---- step sizes of the theory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["logistic", "least_squares"])
@pytest.mark.parametrize("tau", [1, 10])
def test_theory_keeps_to_the_inequalities_of_the_theorem(tau, loss):
    p = toy.problem(loss)
    a, (L, _, _, mu) = FedComposite.theory(toy.constants(p, 100), tau), p.f.smoothness()
    assert a.tau == tau
    assert a.eta_g == pytest.approx(np.sqrt(N), rel=1e-15)
    assert 0 < a.eta * a.eta_g * tau <= mu / (150 * L**2) * (1 + 1e-12)


def test_theory_needs_strong_convexity():
    with pytest.raises(InputError, match="strongly convex"):
        FedComposite.theory(toy.constants(toy.problem(l2=0.0), 100), 5)


def test_theory_needs_every_client_strongly_convex():
    """Six samples of ten features: f is strongly convex, no f_i is."""
    p = toy.problem("least_squares", sizes=(6,) * N, l2=0.0)
    assert p.f.smoothness().mu > 1e-4
    with pytest.raises(InputError, match="strongly convex"):
        FedComposite.theory(toy.constants(p, 100), 5)


def test_theory_descends():
    p = toy.problem()
    a = FedComposite.theory(toy.constants(p, 100), 4)
    values = [toy.objective(p, a.model(Server(p.start(0), p.start(0)), p.h))]
    values += [toy.objective(p, z) for _, _, z in rounds(p, a, 100)]
    best = toy.objective(p, toy.solution(p))
    assert max(np.diff(values)) <= 0
    assert values[-1] < values[0] - 1e-3 * (values[0] - best)
    assert min(values) >= best


def test_identical_clients_need_no_correction():
    A, b = toy.data("logistic", (30,)).client(0)
    p = toy.problem()
    p = replace(p, f=p.f.over_rows(Federated.from_clients([(A, b)] * 3)))
    for _, c, _ in rounds(p, FedComposite(1.0, 4), 20):
        assert np.abs(c).max() < 1e-14


@pytest.mark.parametrize(("field", "value"), [("eta", 0.0), ("eta_g", -1.0), ("tau", 0)])
def test_refuses_what_makes_no_sense(field, value):
    with pytest.raises(InputError, match=field):
        FedComposite(**({"eta": 1.0, "tau": 2} | {field: value}))
