"""DEPOSITUM against its specification: the recursion itself, what it keeps, what it reduces to, where it stays."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from proxfed import Depositum
from proxfed.algorithms.depositum import State
from proxfed.engine.halves import Oracle, Work
from proxfed.errors import InputError
from proxfed.regularisers import L1, MCP, Zero
from proxfed.topologies import Every, dense

from support import numpy_references as ref
from support import toy_problems as toy

N = toy.N
OPTIONS = ("polyak", "nesterov")
GRAPHS = tuple(toy.GRAPHS)


def iterations(p, algorithm, graph, prox):
    """The reference's iterations, with the minibatches of the rounds that they belong to."""
    a, T0, grad = algorithm, algorithm.T0, toy.gradient(p)

    def in_iteration(i, x, t):
        if a.mix_offset == 1:
            return grad(i, x, t // T0 + 1, t % T0)
        return grad(i, x, (t - 1) // T0 + 1, (t - 1) % T0) if t > 0 else grad(i, x, 0, 0)

    s = a.alpha if a.prox_step == "alpha" else a.alpha * a.beta
    return ref.depositum(
        in_iteration, prox, ref.mixing(graph, p.f.n), p.f.n, toy.start(p),
        alpha=a.alpha, beta=a.beta, gamma=a.gamma, T0=T0,
        option=a.option, s=s, mix_offset=a.mix_offset,
    )  # fmt: skip


def rounds_of(algorithm, iterates):
    """The reference's states at the ends of rounds 1, 2, ..., which are the iterations that mix."""
    return (state for state in iterates if state.mix)


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_matrices_of_the_tests_are_those_of_the_library(graph):
    topology, W = toy.GRAPHS[graph](N), ref.mixing(graph, N)
    for t in range(1, 8):
        np.testing.assert_allclose(dense(topology.W(t)), W(t), rtol=0, atol=1e-15)


@pytest.mark.parametrize(("T0", "mix_offset"), [(1, 0), (3, 0), (3, 1)])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_is_the_recursion_of_the_paper(graph, option, T0, mix_offset):
    p = toy.problem(batch=6)
    algorithm = Depositum(2.0, 0.7, 0.6, T0, option, mix_offset=mix_offset)
    expected = rounds_of(algorithm, iterations(p, algorithm, graph, ref.prox_l1(toy.LAMBDA)))
    run = toy.trajectory(p, algorithm, 12, toy.GRAPHS[graph](N))
    next(run)
    for (_, state), reference in zip(run, expected, strict=False):
        for name in ("x", "y", "g"):
            assert toy.gap(getattr(state, name), getattr(reference, name)) < 1e-13
        m, y = np.array(reference.m), np.array(reference.y)
        assert toy.gap(state.m, 0.6 * m + 0.4 * y) < 1e-13  # with which the paper begins its next iteration


@pytest.mark.parametrize("option", OPTIONS)
def test_a_round_for_every_iteration_has_the_same_iterates(option):
    """With a graph over which clients talk in every T0-th round; bit for bit, and with the same bytes."""
    p, T0 = toy.problem(), 4
    rounds = toy.begin(p, Depositum(0.5, 0.8, 0.6, T0, option), toy.GRAPHS["ring"](N))
    steps = toy.begin(p, Depositum(0.5, 0.8, 0.6, 1, option), Every(toy.GRAPHS["ring"](N), T0))
    expected = iterations(p, rounds.algorithm, "ring", ref.prox_l1(toy.LAMBDA))
    next(expected)
    for t in range(1, 5 * T0 + 1):
        steps.round(t)
        assert toy.gap(steps.state.x.numpy(), next(expected).x) < 1e-13
        if t % T0 == 0:
            rounds.round(t // T0)
            assert all(torch.equal(a, b) for a, b in zip(steps.state, rounds.state, strict=True))
            assert steps.counters() == rounds.counters()


@pytest.mark.parametrize("option", OPTIONS)
def test_without_tracking_it_is_the_ablation_of_the_paper(option):
    """nu has the momentum of the own gradients g, and y is not there: section IV-A."""
    p, alpha, gamma, T0 = toy.problem(batch=6), 0.8, 0.6, 3
    grad, prox, W = toy.gradient(p), ref.prox_l1(toy.LAMBDA), ref.mixing("ring", N)
    run = toy.trajectory(p, Depositum(alpha, 1.0, gamma, T0, option, tracking=False), 8, toy.GRAPHS["ring"](N))
    _, state = next(run)
    x, g, mu = np.array([toy.start(p)] * N), np.zeros((N, p.f.d)), np.zeros((N, p.f.d))
    for t in range(8 * T0 + 1):
        mu = gamma * mu + (1 - gamma) * g
        nu = mu if option == "polyak" else gamma * mu + (1 - gamma) * g
        x = prox(x - alpha * nu, alpha)
        if t > 0 and t % T0 == 0:
            x = W(1) @ x
        where = ((t - 1) // T0 + 1, (t - 1) % T0) if t > 0 else (0, 0)
        g = np.array([grad(i, x[i], *where) for i in range(N)])
        if t % T0 == 0:
            assert toy.gap(state.x, x) < 1e-13
            assert toy.gap(state.g, g) < 1e-13
            _, state = next(run, (0, None))
    assert state is None


def test_T00j_without_tracking_different_data_leave_a_bias_and_half_the_bytes():
    p, ring = toy.problem(), toy.GRAPHS["ring"](N)
    runs = {tracking: toy.begin(p, Depositum(0.5, T0=4, tracking=tracking), ring) for tracking in (True, False)}
    for t in range(1, 801):
        for run in runs.values():
            run.round(t)
    far = {tracking: toy.error(run.model().numpy(), toy.solution(p)) for tracking, run in runs.items()}
    assert far[True] < 1e-8 < 1e-3 < far[False]
    bytes_edge = {tracking: run.counters()["bytes_edge"] for tracking, run in runs.items()}
    assert bytes_edge[True] == 2 * bytes_edge[False]
    assert [run.algorithm.sends().edge for run in runs.values()] == [2, 1]


@pytest.mark.parametrize("h", ["l1", "mcp"])
@pytest.mark.parametrize("prox_step", ["alpha", "alpha_beta"])
def test_takes_the_prox_step_that_it_is_told(prox_step, h):
    weight, theta = 0.05, 4.0
    p = toy.problem(h=L1(weight) if h == "l1" else MCP(weight, theta))
    prox = ref.prox_l1(weight) if h == "l1" else ref.prox_mcp(weight, theta)
    algorithm = Depositum(2.0, 0.5, 0.3, 2, prox_step=prox_step)
    expected = rounds_of(algorithm, iterations(p, algorithm, "ring", prox))
    run = toy.trajectory(p, algorithm, 20, toy.GRAPHS["ring"](N))
    next(run)
    for (_, state), reference in zip(run, expected, strict=False):
        assert toy.gap(state.x, reference.x) < 1e-13


@pytest.mark.parametrize("option", OPTIONS)
def test_the_model_is_the_next_prox_step_of_the_averages(option):
    """If all clients agree, it is what each of them computes next."""
    p, algorithm = toy.problem(), Depositum(2.0, 0.7, 0.6, 1, option)
    run = toy.begin(p, algorithm, toy.GRAPHS["ring"](N))
    for t in range(1, 6):
        run.round(t)
    x, y, _, m = (part.mean(0).numpy() for part in run.state)
    v = m if option == "polyak" else 0.6 * m + 0.4 * y
    assert toy.gap(run.model(), ref.soft(x - 2.0 * v, 1.4 * toy.LAMBDA)) < 1e-15


@pytest.mark.parametrize(("T0", "mix_offset", "batch"), [(1, 0, None), (1, 1, 3), (3, 0, 3), (3, 1, None)])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_T00a_tracking_keeps_the_mean_gradient(graph, option, T0, mix_offset, batch):
    p = toy.problem(batch=batch)
    algorithm = Depositum(1.5, 0.7, 0.6, T0, option, mix_offset=mix_offset)
    for _, s in toy.trajectory(p, algorithm, 25, toy.GRAPHS[graph](N)):
        assert toy.gap(s.y.mean(0), 0.7 * s.g.mean(0)) < 1e-14


@pytest.mark.parametrize("prox_step", ["alpha", "alpha_beta"])
@pytest.mark.parametrize("option", OPTIONS)
def test_T00b_the_first_iteration_is_a_prox_step_of_the_start(option, prox_step):
    x0 = np.linspace(-1, 1, toy.D)
    for seed in (1, 2):  # whatever the data
        p = toy.problem(seed=seed, x0=tuple(x0))
        algorithm = Depositum(3.0, 0.5, 0.6, 5, option, prox_step)
        _, first = next(toy.trajectory(p, algorithm, 0, toy.GRAPHS["ring"](N)))
        s = 3.0 if prox_step == "alpha" else 1.5
        expected = ref.soft(x0, s * toy.LAMBDA)
        np.testing.assert_array_equal(first.x, np.tile(expected, (N, 1)))
        assert toy.gap(first.m, 0.4 * first.y) < 1e-15  # the momentum of this iteration was zero


@pytest.mark.parametrize("graph", GRAPHS)
def test_T00c_without_momentum_both_options_are_proximal_gradient_tracking(graph):
    p, topology = toy.problem(), toy.GRAPHS[graph](N)
    one, two = (toy.trajectory(p, Depositum(2.0, 0.7, 0.0, 3, option), 30, topology) for option in OPTIONS)
    for (_, a), (_, b) in zip(one, two, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("graph", GRAPHS)
def test_T00c_smooth_and_without_momentum_it_is_DSGT(graph, batch):
    p, topology = toy.problem(h=Zero(), batch=batch), toy.GRAPHS[graph](N)
    dsgt = ref.atc_dsgt(toy.gradient(p), ref.mixing(graph, N), N, toy.start(p), step=1.5)
    run = toy.trajectory(p, Depositum(1.5, 1.0, 0.0), 50, topology)
    next(run)
    for (_, s), reference in zip(run, dsgt, strict=False):
        assert toy.gap(s.x, reference.x) < 1e-14
        assert toy.gap(s.y, reference.y) < 1e-14


@pytest.mark.parametrize("option", OPTIONS)
def test_T00d_smooth_on_the_complete_graph_the_mean_is_one_machine_with_momentum(option):
    p = toy.problem(h=Zero())
    one = ref.ema_momentum(toy.mean_gradient(p), ref.prox_zero, toy.start(p), alpha=2.0, gamma=0.8, option=option)
    run = toy.trajectory(p, Depositum(2.0, 1.0, 0.8, 1, option), 60, toy.GRAPHS["complete"](N))
    next(run)
    for (_, s), x in zip(run, one, strict=False):
        assert toy.gap(s.x.mean(0), x) < 1e-14


@pytest.mark.parametrize("option", OPTIONS)
def test_T00e_with_h_the_mean_is_one_machine_if_the_first_iteration_mixes_too(option):
    p, gamma, alpha, beta = toy.problem(), 0.8, 4.0, 0.5
    begin = ref.soft(toy.start(p), alpha * beta * toy.LAMBDA)
    one = ref.ema_momentum(
        toy.mean_gradient(p), ref.prox_l1(toy.LAMBDA), begin, alpha=alpha * beta, gamma=gamma, option=option
    )
    x_of_one = [begin, *islice(one, 59)]
    apart, spread = [], []
    for mix_offset in (1, 0):
        algorithm = Depositum(alpha, beta, gamma, 1, option, mix_offset=mix_offset)
        run = list(toy.trajectory(p, algorithm, 60, toy.GRAPHS["complete"](N)))[1 - (1 - mix_offset) :]
        means = [s.x.mean(0) for _, s in run]
        apart.append([toy.gap(x, y) for x, y in zip(means, x_of_one, strict=False)])
        spread.append([s.m - s.m.mean(0) for _, s in run])
    assert max(apart[0]) < 1e-14
    assert max(apart[1]) > 1e-6  # the paper's rule: the first gradient step is taken with each client's own y,
    for k in range(2, 20):  # which the momenta forget at rate gamma
        assert toy.gap(spread[1][k + 1], gamma * spread[1][k]) < 1e-15
        assert np.abs(spread[1][k]).max() > 0


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("h", [Zero(), L1(toy.LAMBDA)], ids=repr)
def test_T00f_only_the_product_of_alpha_and_beta_matters(h, option):
    p, topology = toy.problem(h=h), toy.GRAPHS["ring"](N)
    one, two = (toy.trajectory(p, Depositum(alpha, 1.8 / alpha, 0.6, 3, option), 40, topology) for alpha in (0.3, 7.0))
    for (_, a), (_, b) in zip(one, two, strict=True):
        assert toy.gap(a.x, b.x) < 1e-14
        assert toy.gap(a.y * 0.3, b.y * 7.0) < 1e-14


def test_T00f_is_false_for_the_prox_step_of_the_paper():
    p, topology = toy.problem(), toy.GRAPHS["ring"](N)
    a, b = (
        toy.final(p, Depositum(alpha, 1.8 / alpha, 0.6, 1, prox_step="alpha"), 40, topology) for alpha in (0.9, 1.8)
    )
    assert toy.gap(a, b) > 1e-2


def at_rest(p, x, beta, weight):
    """The state in which all clients stand at x and know the mean gradient there."""
    grad = toy.gradient(p)
    own = [grad(i, x) for i in range(N)]
    track = beta * ref.average(own)
    return State(toy.rows(*[x] * N), toy.rows(*[track] * N), toy.rows(*own), toy.rows(*[track] * N))


@pytest.mark.parametrize("T0", [1, 5])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(("beta", "prox_step"), [(1.0, "alpha"), (0.5, "alpha_beta"), (0.5, "alpha"), (2.0, "alpha")])
def test_T00g_solutions_are_fixed_points(beta, prox_step, graph, option, T0):
    """Of f + h, or with the prox step of the paper of f + h/beta."""
    p, topology = toy.problem(), toy.GRAPHS[graph](N)
    weight = toy.LAMBDA / beta if prox_step == "alpha" else toy.LAMBDA
    x = toy.solution(p, ref.prox_l1(weight))
    start = state = at_rest(p, x, beta, weight)
    algorithm = Depositum(2.0, beta, 0.6, T0, option, prox_step)
    network = toy.begin(p, algorithm, topology).network
    for t in range(1, 6):
        f = Oracle(p.f.local(t, range(N)), Work())
        state = algorithm.step(algorithm.before_mix(state, f, p.h), f, p.h, lambda v, t=t: network.mix(v, t))
        for now, then in zip(state, start, strict=True):
            assert toy.gap(now, then) < 1e-14


def test_T00g_the_prox_step_of_the_paper_leaves_the_solution_of_f_plus_h():
    p = toy.problem()
    algorithm = Depositum(2.0, 0.5, 0.6, prox_step="alpha")
    start = at_rest(p, toy.solution(p), 0.5, toy.LAMBDA)
    network = toy.begin(p, algorithm, toy.GRAPHS["complete"](N)).network
    state = algorithm.step(start, Oracle(p.f.local(1, range(N)), Work()), p.h, lambda v: network.mix(v, 1))
    assert toy.gap(state.x, start.x) > 1e-3


@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_T00g_the_prox_step_of_the_paper_converges_to_another_problem(beta):
    p = toy.problem()
    x = toy.final(p, Depositum(4.0 / beta, beta, 0.5, prox_step="alpha"), 400, toy.GRAPHS["complete"](N))
    assert toy.error(x, toy.solution(p, ref.prox_l1(toy.LAMBDA / beta))) < 1e-13
    assert toy.error(x, toy.solution(p)) > 0.05


def torch_sgd(p, lr, momentum, nesterov, steps):
    """The iterates of torch's own optimiser on f, with autograd's gradients."""
    x = torch.nn.Parameter(p.start(0))
    optimiser = torch.optim.SGD([x], lr=lr, momentum=momentum, nesterov=nesterov)
    pairs = [p.f.data.client(i) for i in range(p.f.n)]
    clients = [(torch.tensor(A), torch.tensor(b)) for A, b in pairs]
    for _ in range(steps):
        optimiser.zero_grad()
        losses = [torch.nn.functional.softplus(-b * (A @ x)).mean() for A, b in clients]
        (sum(losses) / len(losses) + p.f.l2 / 2 * x.square().sum()).backward()
        optimiser.step()
        yield x.detach().numpy().copy()


@pytest.mark.parametrize("option", OPTIONS)
def test_T00h_is_the_SGD_of_torch_with_momentum(option):
    p, alpha, gamma = toy.problem(h=Zero()), 2.0, 0.8
    expected = torch_sgd(p, alpha * (1 - gamma), gamma, option == "nesterov", 60)
    run = toy.trajectory(p, Depositum(alpha, 1.0, gamma, 1, option), 60, toy.GRAPHS["complete"](N))
    next(run)
    for (_, s), x in zip(run, expected, strict=True):
        assert toy.gap(s.x.mean(0), x) < 1e-14


def test_T00h_the_running_average_is_the_heavy_ball_of_Polyak():
    p, alpha, gamma = toy.problem(h=Zero()), 2.0, 0.8
    expected = ref.heavy_ball(toy.mean_gradient(p), toy.start(p), alpha=alpha, gamma=gamma)
    run = toy.trajectory(p, Depositum(alpha, 1.0, gamma), 60, toy.GRAPHS["complete"](N))
    next(run)
    for (_, s), x in zip(run, expected, strict=False):
        assert toy.gap(s.x.mean(0), x) < 1e-14


@pytest.mark.parametrize(("n", "option"), [(5, "polyak"), (8, "nesterov")])
def test_T00i_works_on_graphs_that_change(n, option):
    p = toy.problem(sizes=(20,) * n)
    assert toy.reaches(p, Depositum(3.0, 1.0, 0.5, 1, option), 1e-10, 1500, toy.GRAPHS["one_peer"](n))


@pytest.mark.parametrize("graph", ["ring", "one_peer"])
def test_T00i_works_with_mcp(graph):
    """A weakly convex h has stationary points in place of a minimiser: where the prox-gradient map is 0."""
    weight, theta, s = 0.03, 8.0, 1.0
    p, prox = toy.problem(h=MCP(weight, theta)), ref.prox_mcp(weight, theta)
    gradient = toy.mean_gradient(p)
    stationarity = lambda x: np.linalg.norm(x - prox(x - s * gradient(x), s)) / s
    assert toy.reaches(p, Depositum(2.0, 1.0, 0.5), 1e-10, 1500, toy.GRAPHS[graph](N), stationarity)


# ---- step sizes of the theory ------------------------------------------------------------------------------------


def bounds(L, rho, n, lam, gamma, T0, option, alpha):
    """(largest alpha, largest beta) of the theorem; beta's bound depends on alpha."""
    pull = gamma if option == "polyak" else gamma**2
    largest = min(
        1 / (16 * L), np.inf if pull == 0 else (1 - gamma) / (24 * pull * L), np.inf if rho == 0 else 1 / (48 * rho)
    )
    if lam == 0:
        delta2 = T0**T0 / (1 + T0) ** (T0 + 1)
        delta1 = T0**T0 * (1 - alpha * rho) ** (2 * T0 + 2) / (1 + T0) ** (T0 + 1)
    else:
        delta2 = lam * (1 - lam) * (1 - lam ** (1 / T0))
        delta1 = lam * (1 - lam) * ((1 - alpha * rho) ** 2 - lam ** (1 / T0))
    omega = 1 if option == "polyak" else (1 + 3 * gamma) / (1 - gamma)
    beta2 = 8 * delta1 * delta2 * (96 * n - 71) / (9 * T0 * (11 * delta1 + 6 * T0 + 2 * n * T0)) / omega
    return largest, np.sqrt(beta2), delta1, delta2


@pytest.mark.parametrize("graph", ["ring", "star", "complete"])
@pytest.mark.parametrize("h", [Zero(), L1(0.02), MCP(0.02, 30.0), MCP(0.02, 1.0)], ids=repr)
@pytest.mark.parametrize("T0", [1, 10])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("option", OPTIONS)
def test_theory_keeps_to_the_inequalities_of_the_theorem(option, gamma, T0, h, graph):
    p, topology = toy.problem(h=h), toy.GRAPHS[graph](N)
    c = toy.constants(p, 100, topology)
    lam = np.linalg.norm(ref.mixing(graph, N)(0) - 1 / N, 2) if graph != "complete" else 0.0
    rho = 0 if not isinstance(h, MCP) else 1 / h.theta
    a = Depositum.theory(c, gamma, T0, option)
    assert (a.gamma, a.T0, a.option, a.prox_step) == (gamma, T0, option, "alpha_beta")
    alpha, beta, delta1, _ = bounds(p.f.smoothness().L, rho, N, lam, gamma, T0, option, a.alpha)
    assert 0 < a.alpha <= alpha * (1 + 1e-12)
    assert 0 < a.beta <= beta * (1 + 1e-12)
    assert a.alpha * rho < 1 - lam ** (1 / (2 * T0))
    assert delta1 > 0
    if rho == 0:  # nothing is given away
        assert (a.alpha, a.beta) == pytest.approx((alpha, beta), rel=1e-12)


@pytest.mark.parametrize("h", [L1(0.02), MCP(0.02, 30.0), MCP(0.02, 1.0)], ids=repr)
@pytest.mark.parametrize("T0", [1, 5])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_the_speed_up_schedule_is_the_corollary(graph, option, T0, h):
    p, T = toy.problem(h=h), 400 * T0 + 1  # iterations, T + 1 in the paper
    c = toy.constants(p, 400, toy.GRAPHS[graph](N))
    L, rho, lam = p.f.smoothness().L, c.weak_convexity, c.psi
    a = Depositum.theory(c, T0=T0, option=option, schedule="speed_up")
    assert a.gamma == pytest.approx(1 - np.sqrt(N / T), rel=1e-12)
    assert a.alpha == pytest.approx(np.sqrt(N) / (24 * L * np.sqrt(T)), rel=1e-12)
    largest, _, delta1, delta2 = bounds(L, rho, N, lam, a.gamma, T0, option, a.alpha)
    assert a.alpha <= largest
    assert a.alpha * rho < 1 - lam ** (1 / (2 * T0))
    omega = 1 if option == "polyak" else (1 + 3 * a.gamma) / (1 - a.gamma)
    beta2 = 3200 * delta1 * delta2 / ((1584 * delta1 + 1077 * T0) * np.sqrt(T0 * T) + 75 * T0**2) / omega
    assert a.beta == pytest.approx(np.sqrt(beta2), rel=1e-12)


def test_the_speed_up_schedule_needs_enough_iterations_for_a_weakly_convex_h():
    """T + 1 >= 4 n rho^2 / L^2, which is alpha <= 1/(48 rho)."""
    p = toy.problem(h=MCP(0.02, 1.0))
    with pytest.raises(InputError, match="iterations"):
        Depositum.theory(toy.constants(p, 10, toy.GRAPHS["complete"](N)), schedule="speed_up")


def test_the_speed_up_schedule_needs_as_many_iterations_as_clients():
    with pytest.raises(InputError, match="at least 5 iterations, not 4"):
        Depositum.theory(toy.constants(toy.problem(), 3, toy.GRAPHS["ring"](N)), schedule="speed_up")
    with pytest.raises(InputError, match="'fast'"):
        Depositum.theory(toy.constants(toy.problem(), 3, toy.GRAPHS["ring"](N)), schedule="fast")


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("graph", ["ring", "star", "complete"])
def test_theory_descends(graph, option):
    p, topology = toy.problem(), toy.GRAPHS[graph](N)
    run = toy.begin(p, Depositum.theory(toy.constants(p, 60, topology), T0=3, option=option), topology)
    values = [toy.objective(p, run.model())]
    for t in range(1, 61):
        run.round(t)
        values.append(toy.objective(p, run.model()))
    best = toy.objective(p, toy.solution(p))
    assert max(np.diff(values)) <= 1e-3 * (values[0] - best)
    assert values[-1] < values[0] - 1e-3 * (values[0] - best)
    assert min(values) >= best - 1e-14


@pytest.mark.parametrize(
    ("field", "value"),
    [("alpha", 0.0), ("beta", -1.0), ("gamma", 1.0), ("gamma", -0.1), ("T0", 0), ("option", "heavy"),
     ("prox_step", "beta"), ("mix_offset", 2)],
)  # fmt: skip
def test_refuses_what_makes_no_sense(field, value):
    with pytest.raises(InputError, match=field):
        Depositum(**({"alpha": 1.0} | {field: value}))
