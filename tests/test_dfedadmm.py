"""DFedADMM(-SAM) against its specification: the recursion itself, what the duals are, what it reduces to, its bias."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from proxfed import DFedADMM, Federated, Linear, Squared
from proxfed.algorithms.dfedadmm import State
from proxfed.engine.halves import Oracle, Work
from proxfed.errors import InputError
from proxfed.regularisers import L1, Zero
from proxfed.schedules import ExponentialDecay
from proxfed.types import Problem

from support import numpy_references as ref
from support import toy_problems as toy

N = toy.N
DUALS = ("old", "new")
GRAPHS = tuple(toy.GRAPHS)


def smooth(**options):
    return toy.problem(h=Zero(), **options)


def expected(p, a, graph, grad=None):
    return ref.dfedadmm(
        grad or toy.gradient(p), ref.mixing(graph, N), N, toy.start(p),
        eta_l=a.eta_l, lam=a.lam, K=a.K, rho=a.rho, dual=a.dual,
    )  # fmt: skip


def rounds(p, algorithm, graph, how_many):
    """States after rounds 1, 2, ..."""
    run = toy.trajectory(p, algorithm, how_many, toy.GRAPHS[graph](N))
    return (state for t, state in run if t > 0)


def forgetting(a):
    """gamma = 1 - (1 - eta_l/lam)^K, and the weights gamma_k/gamma of the K local gradients."""
    shrink = 1 - a.eta_l / a.lam
    gamma = 1 - shrink**a.K
    return gamma, [a.eta_l / a.lam * shrink ** (a.K - 1 - k) / gamma for k in range(a.K)]


def blends(reference, weights):
    """The weighted mean of each client's local gradients."""
    return np.array([sum(w * g for w, g in zip(weights, seen, strict=True)) for seen in reference.seen])


@pytest.mark.parametrize("batch", [None, 6])
@pytest.mark.parametrize("rho", [0.0, 0.3])
@pytest.mark.parametrize("dual", DUALS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_is_the_recursion_of_the_paper(graph, dual, rho, batch):
    p, a = smooth(batch=batch), DFedADMM(0.7, 4, lam=3.0, rho=rho, dual=dual)
    for state, reference in zip(rounds(p, a, graph, 15), expected(p, a, graph), strict=False):
        assert toy.gap(state.x, reference.x) < 1e-14
        assert toy.gap(state.g, reference.g) < 1e-14


def test_the_step_may_change_with_the_rounds():
    p, a = smooth(), DFedADMM(ExponentialDecay(0.7, 0.9), 3, lam=3.0)
    for state, reference in zip(rounds(p, a, "ring", 15), expected(p, a, "ring"), strict=False):
        assert toy.gap(state.x, reference.x) < 1e-14


def test_the_penalty_may_be_given_inverted():
    p = smooth()
    one, two = (
        toy.final(p, DFedADMM(0.7, 3, **kw), 10, toy.GRAPHS["ring"](N))
        for kw in ({"lam": 4.0}, {"inverse_penalty": 0.25})
    )
    np.testing.assert_array_equal(one, two)


def test_h_enters_through_its_subgradient():
    p, a = toy.problem(h=L1(0.02)), DFedADMM(0.7, 3, lam=3.0)
    plain = toy.gradient(p)
    grad = lambda i, x, t, k: plain(i, x, t, k) + 0.02 * np.sign(x)
    for state, reference in zip(rounds(p, a, "ring", 10), expected(p, a, "ring", grad), strict=False):
        assert toy.gap(state.x, reference.x) < 1e-14


@pytest.mark.parametrize("dual", DUALS)
@pytest.mark.parametrize("eta_l", [0.5, 3.0])
@pytest.mark.parametrize("K", [1, 5])
def test_T02a_T02b_the_dual_is_a_running_average_of_local_gradients(K, eta_l, dual):
    p, a = smooth(batch=5), DFedADMM(eta_l, K, lam=3.0, dual=dual)
    gamma, weights = forgetting(a)
    assert sum(weights) == pytest.approx(1, abs=1e-14)
    before = np.zeros((N, p.f.d))
    for state, reference in zip(rounds(p, a, "ring", 20), expected(p, a, "ring"), strict=False):
        G = blends(reference, weights)
        moves = 3.0 * (before - state.g)  # y_K - x_i, which is what changes the dual
        assert toy.gap(moves, -3.0 * gamma * G + 3.0 * gamma * before) < 2e-14
        assert toy.gap(moves, reference.moves) < 2e-14
        assert toy.gap(state.g, (1 - gamma) * before + gamma * G) < 1e-14
        before = state.g


@pytest.mark.parametrize("graph", GRAPHS)
def test_T02c_with_the_old_dual_it_is_momentum_over_the_graph(graph):
    p, a, W = smooth(batch=5), DFedADMM(0.5, 4, lam=3.0), ref.mixing(graph, N)
    x = np.tile(toy.start(p), (N, 1))
    for t, state in enumerate(rounds(p, a, graph, 20), 1):
        assert toy.gap(state.x, W(t) @ (x - 3.0 * state.g)) < 1e-14
        x = state.x


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("dual", DUALS)
def test_T02d_a_combination_of_the_means_takes_plain_gradient_steps(dual, graph):
    """w = x + (1 - gamma)/gamma (x - x_before) moves by -lam mean(G): with the old dual, and only with it."""
    p, a = smooth(), DFedADMM(0.5, 4, lam=3.0, dual=dual)
    gamma, weights = forgetting(a)
    x = before = toy.start(p)
    far = []
    for state, reference in zip(rounds(p, a, graph, 20), expected(p, a, graph), strict=False):
        w = x + (1 - gamma) / gamma * (x - before)
        before, x = x, state.x.mean(0)
        far.append(toy.gap(x + (1 - gamma) / gamma * (x - before), w - 3.0 * blends(reference, weights).mean(0)))
    assert max(far) < 3e-14 if dual == "old" else max(far) > 1e-3


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("graph", GRAPHS)
def test_T02e_one_full_local_step_is_decentralised_SGD(graph, batch):
    p = smooth(batch=batch)
    dpsgd = ref.atc_dpsgd(toy.gradient(p), ref.mixing(graph, N), N, toy.start(p), step=1.5)
    for state, reference in zip(rounds(p, DFedADMM(1.5, 1, lam=1.5), graph, 50), dpsgd, strict=False):
        assert toy.gap(state.x, reference.x) < 1e-14


def test_T02e_with_the_new_dual_it_extrapolates():
    p, W, grad = smooth(), ref.mixing("ring", N)(0), toy.gradient(smooth())
    x, before = np.tile(toy.start(p), (N, 1)), np.zeros((N, p.f.d))
    for state in rounds(p, DFedADMM(1.5, 1, lam=1.5, dual="new"), "ring", 50):
        G = np.array([grad(i, x[i]) for i in range(N)])
        x, before = W @ (x - 1.5 * (2 * G - before)), G
        assert toy.gap(state.x, x) < 1e-14


@pytest.mark.parametrize("K", [2, 5])
def test_T02f_with_the_longest_local_step_only_the_last_gradient_counts(K):
    p, a, W = smooth(), DFedADMM(2.0, K, lam=2.0), ref.mixing("ring", N)(0)
    x = np.tile(toy.start(p), (N, 1))
    for state, reference in zip(rounds(p, a, "ring", 30), expected(p, a, "ring"), strict=False):
        last = np.array([seen[-1] for seen in reference.seen])
        assert toy.gap(state.g, last) < 1e-14
        assert toy.gap(state.x, W @ (x - 2.0 * last)) < 1e-14
        x = state.x


def test_T02g_sharpness_awareness_fades_with_its_radius():
    p, topology = smooth(), toy.GRAPHS["ring"](N)
    plain = toy.final(p, DFedADMM(0.5, 4, lam=3.0), 20, topology)
    far = [toy.gap(toy.final(p, DFedADMM(0.5, 4, lam=3.0, rho=rho), 20, topology), plain) for rho in (1e-2, 1e-3, 1e-4)]
    assert far[0] > 1e-4
    for wide, narrow in pairwise(far):
        assert narrow / wide == pytest.approx(0.1, rel=0.1)
    np.testing.assert_array_equal(plain, toy.final(p, DFedADMM(0.5, 4, lam=3.0, rho=0.0), 20, topology))


def test_T02g_sharpness_awareness_stands_still_where_the_gradient_is_zero():
    """The direction grad/|grad| is then taken as 0, not as 0/0."""
    p = toy.problem("least_squares", h=Zero(), l2=0.0, x0=(0.0,) * toy.D)
    data = type(p.f.data).from_clients([(A, 0 * b) for A, b in map(p.f.data.client, range(N))])
    p = replace(p, f=p.f.over_rows(data))
    assert not toy.final(p, DFedADMM(0.5, 4, lam=3.0, rho=0.3), 3, toy.GRAPHS["ring"](N)).any()


@pytest.mark.parametrize("dual", DUALS)
def test_T02g_the_complete_graph_agrees_after_every_round(dual):
    for state in rounds(smooth(batch=4), DFedADMM(0.5, 4, lam=3.0, dual=dual), "complete", 20):
        assert (state.x == state.x[0]).all()


def rest(p, lam, graph="ring"):
    """X = W (X - lam grad f(X)), by Newton's method: where decentralised gradient descent with step lam rests."""
    W, grad, d = ref.mixing(graph, N)(0), toy.gradient(p), p.f.d
    samples = [p.f.data.client(i)[0] for i in range(N)]
    X = np.tile(toy.solution(p, ref.prox_zero), (N, 1))
    residual = lambda X: X - W @ (X - lam * np.array([grad(i, X[i]) for i in range(N)]))
    for _ in range(30):
        hessian = np.zeros((N, d, N, d))
        for j in range(N):
            curvature = np.eye(d) - lam * (ref.logistic_hessian(samples[j], X[j]) + p.f.l2 * np.eye(d))
            hessian[:, :, j, :] = -W[:, j, None, None] * curvature
            hessian[j, :, j, :] += np.eye(d)
        X = X - np.linalg.solve(hessian.reshape(N * d, N * d), residual(X).ravel()).reshape(N, d)
    assert np.abs(residual(X)).max() < 1e-14
    return X


@pytest.mark.parametrize("dual", DUALS)
@pytest.mark.parametrize("K", [1, 4])
@pytest.mark.parametrize("lam", [0.1, 1.0, 5.0])
def test_T02h_rests_where_decentralised_gradient_descent_does(lam, K, dual):
    p, algorithm, grad = smooth(), DFedADMM(lam / 2, K, lam=lam, dual=dual), toy.gradient(smooth())
    X = rest(p, lam)
    network = toy.begin(p, algorithm, toy.GRAPHS["ring"](N)).network
    start = state = State(toy.rows(*X), toy.rows(*[grad(i, X[i]) for i in range(N)]))
    assert start.g.sum(0).abs().max() < 1e-12 / lam
    for t in range(1, 6):
        f = Oracle(p.f.local(t, range(N)), Work())
        state = algorithm.step(algorithm.before_mix(state, f, p.h), f, p.h, lambda v, t=t: network.mix(v, t))
        assert toy.gap(state.x, start.x) < 2e-14
        assert toy.gap(state.g, start.g) < 2e-14 / min(lam, 1.0)


@pytest.mark.parametrize("dual", DUALS)
def test_T02h_converges_there(dual):
    p, lam, W, grad = smooth(), 5.0, ref.mixing("ring", N)(0), toy.gradient(smooth())
    *_, state = rounds(p, DFedADMM(1.0, 3, lam=lam, dual=dual), "ring", 400)
    G = np.array([grad(i, state.x[i]) for i in range(N)])
    assert toy.gap(state.x, W @ (state.x - lam * G)) < 1e-12
    assert toy.gap(state.g, G) < 1e-12
    assert np.abs(state.g.sum(0)).max() < 1e-12
    assert toy.gap(state.x, rest(p, lam)) < 1e-12


def test_T02h_is_exact_on_the_complete_graph_only():
    p = smooth()
    x = toy.solution(p, ref.prox_zero)
    complete = toy.final(p, DFedADMM(1.0, 3, lam=5.0), 400, toy.GRAPHS["complete"](N))
    assert toy.error(complete, x) < 1e-12
    bias = [toy.error(rest(p, lam).mean(0), x) for lam in (0.1, 1.0, 5.0)]
    assert 1e-4 < bias[0] < bias[1] < bias[2] < 1
    assert bias[1] / bias[0] == pytest.approx(10, rel=0.2)  # in proportion to a small lam
    assert toy.error(toy.final(p, DFedADMM(1.0, 3, lam=5.0), 400, toy.GRAPHS["ring"](N)), x) == pytest.approx(bias[2])


# ---- how fast, on the simplest problem -----------------------------------------------------------------------------


def contraction(a: DFedADMM) -> float:
    """The spectral radius of a round on f_i(x) = x^2/2: of the map from (x, dual) to the next, found from three states.

    All clients are alike, so that the graph does not matter.
    """
    data = Federated.from_clients([(np.ones((1, 1)), np.zeros(1))] * 2)
    p = Problem(Linear(data, Squared()), Zero(), torch.ones(1))
    states = [(s.x[0, 0], a.lam * s.g[0, 0]) for _, s in toy.trajectory(p, a, 2, toy.GRAPHS["complete"](2))]
    first, second, third = np.array(states)
    step = np.column_stack([second, third]) @ np.linalg.inv(np.column_stack([first, second]))
    return float(abs(np.linalg.eigvals(step)).max())


@pytest.mark.parametrize("a", [0.5, 1.0, 4.0, 20.0])
def test_rates_with_exact_local_solutions(a):
    """a = lam L: sqrt(a/(1 + a)) with the old dual in the message, for a > 1/3, and 1/(1 + a) with the new one."""
    solved = {dual: DFedADMM(a / (1 + a), 1, lam=a, dual=dual) for dual in DUALS}  # one step is enough
    assert contraction(solved["old"]) == pytest.approx(np.sqrt(a / (1 + a)), rel=1e-9)
    assert contraction(solved["new"]) == pytest.approx(1 / (1 + a), rel=1e-9)


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0])
def test_with_one_local_step_the_new_dual_allows_a_third_of_the_penalty(gamma):
    """gamma = eta_l/lam: stable for lam gamma L < 4 - 2 gamma with the old dual, for a third of that with the new."""
    for dual, bound in (("old", 4 - 2 * gamma), ("new", (4 - 2 * gamma) / 3)):
        within, beyond = (DFedADMM(c * bound, 1, lam=c * bound / gamma, dual=dual) for c in (0.99, 1.01))
        assert contraction(within) < 1 < contraction(beyond)


# ---- step sizes of the theory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds_", [10, 100_000])
@pytest.mark.parametrize("sam", [False, True])
@pytest.mark.parametrize("K", [1, 5, 20])
def test_theory_keeps_to_the_inequalities_of_the_theorem(K, sam, rounds_):
    p = smooth()
    a, L = DFedADMM.theory(toy.constants(p, rounds_, toy.GRAPHS["ring"](N)), K, sam), p.f.smoothness().L
    assert (a.K, a.dual) == (K, "old")
    assert 0 < a.eta_l <= min(1 / (96 * K * L), a.lam) * (1 + 1e-12)
    assert a.lam / a.eta_l <= K * (1 + 1e-12)
    assert a.rho == (pytest.approx(1 / np.sqrt(rounds_)) if sam else 0)


def test_theory_follows_the_schedule_of_the_corollary():
    """eta_l in proportion to 1/(L K sqrt T), lam to 1/(L sqrt(K T)), once T is large."""
    c = toy.constants(smooth(), 10**5, toy.GRAPHS["ring"](N))
    few, many = (DFedADMM.theory(c._replace(rounds=T), 4) for T in (10**5, 4 * 10**5))
    assert few.eta_l / many.eta_l == pytest.approx(2)
    assert few.lam / many.lam == pytest.approx(2)
    short, long = (DFedADMM.theory(c, K) for K in (4, 16))
    assert short.eta_l / long.eta_l == pytest.approx(4)
    assert short.lam / long.lam == pytest.approx(2)


@pytest.mark.parametrize("sam", [False, True])
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_theory_descends(graph, sam):
    p, topology = smooth(), toy.GRAPHS[graph](N)
    run = toy.begin(p, DFedADMM.theory(toy.constants(p, 80, topology), 4, sam), topology)
    values = [toy.objective(p, run.model())]
    for t in range(1, 81):
        run.round(t)
        values.append(toy.objective(p, run.model()))
    best = toy.objective(p, toy.solution(p, ref.prox_zero))
    assert max(np.diff(values)) <= 0
    assert values[-1] < values[0] - 1e-2 * (values[0] - best)
    assert min(values) >= best


@pytest.mark.parametrize(
    ("field", "value"), [("eta_l", 0.0), ("eta_l", 2.0), ("K", 0), ("rho", -0.1), ("dual", "newer"), ("lam", -1.0)]
)
def test_refuses_what_makes_no_sense(field, value):
    with pytest.raises(InputError, match=field):
        DFedADMM(**({"eta_l": 0.5, "K": 2, "lam": 1.0} | {field: value}))


@pytest.mark.parametrize("lengths", [{}, {"lam": 1.0, "inverse_penalty": 1.0}], ids=str)
def test_the_penalty_is_given_once(lengths):
    with pytest.raises(InputError, match="exactly one"):
        DFedADMM(0.5, 2, **lengths)
