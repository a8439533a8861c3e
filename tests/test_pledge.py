"""PLEDGE with a server: the recursion, what it keeps, what it reduces to, where it stays, where it ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from proxfed import Neural, load
from proxfed.algorithms import FedCEF, FedComposite, FedNAG, Nesterov, Pledge
from proxfed.algorithms.pledge import LARGEST_Q2, Client, Server
from proxfed.compressors import ErrorBoundedQuantiser, Identity, NaturalCompressor, RandK, TopK
from proxfed.data.partitions import DirichletByClient
from proxfed.engine.compatibility import check_combination
from proxfed.engine.halves import Oracle, Work
from proxfed.errors import InputError
from proxfed.keyed_random import keys
from proxfed.participation import Full, UniformSampling
from proxfed.regularisers import L1, MCP, Zero

from support import numpy_references as ref
from support import toy_problems as toy

N, D = toy.N, toy.D
QUANTISER, DENSE = ErrorBoundedQuantiser(0.1), Identity()
PLAIN = {"restart": False, "theta": 0.0, "guard": False, "compressor_up": DENSE, "compressor_down": DENSE}
TOP8 = ref.top_k(8)


def rounds(p, algorithm, how_many, topology=None):
    """(state, model) after rounds 1, 2, ..."""
    run = toy.begin(p, algorithm, topology)
    for t in range(1, how_many + 1):
        run.round(t)
        yield toy.numpy(run.state), run.model().numpy()


def in_numpy(p, eta, tau, theta, restart, beta, a, guard, up, down, how_many):
    """The recursion as the head of the file has it, a client at a time: (c, u, z, y, model) after each round."""
    grad, prox = toy.gradient(p), ref.prox_l1(toy.LAMBDA)
    steps = [eta * sum(beta**j for j in range(k + 1)) for k in range(tau)]  # of a constant gradient of 1
    S = sum(steps)
    z = y = zt = toy.start(p)
    c = (prox(z, S) - z) / S
    v = u = np.tile(c, (N, 1))
    k = 0
    for t in range(1, how_many + 1):
        q = down(zt - y)
        new, public_c = y + q, (prox(y, S) - y - q) / S
        k = 0 if q @ (new - z) < 0 else k + 1
        weight = min(theta, k / (k + 3)) if restart else theta
        z, y = new, new + weight * (new - z)
        x, G = prox(y, S), np.zeros((N, D))
        for i in range(N):
            shift, way, velocity, g = public_c - v[i], np.zeros(D), np.zeros(D), []
            for j in range(tau):
                b = sum(steps[:j]) + beta * (steps[j - 1] if j else 0.0)
                g.append(grad(i, x if j == 0 else prox(x - way - beta * velocity - b * shift, b), t, j))
                velocity = beta * velocity + eta * g[j]
                way = way + velocity
            G[i] = ref.guarded(way / S, g[0], shift, x, y, S, steps[-1] / S, prox) if guard else way / S
        v = (1 - a) * v + a * G
        u = u + np.stack([up(r) for r in v - u])
        c = u.mean(0)
        zt = x - S * c
        yield c, u, z, y, prox(zt, S)


@pytest.mark.parametrize("batch", [None, 6])
@pytest.mark.parametrize(
    ("tau", "theta", "restart", "beta", "a"),
    [(1, 0.0, False, 0.0, 1.0), (4, 0.6, False, 0.0, 0.7), (3, 0.7, True, 0.0, 1.0), (3, 1.0, True, 0.6, 0.5)],
)
@pytest.mark.parametrize("compressors", ["dense", "both"])
@pytest.mark.parametrize("guard", [False, True])
def test_is_its_recursion(guard, compressors, tau, theta, restart, beta, a, batch):
    C, compress = (TopK(k=8), TOP8) if compressors == "both" else (DENSE, ref.identity)
    p = toy.problem(batch=batch)
    algorithm = Pledge(1.2, tau, theta, restart, beta, a, guard=guard, compressor_up=C, compressor_down=C)
    expected = in_numpy(p, 1.2, tau, theta, restart, beta, a, guard, compress, compress, 25)
    for (s, model), (c, u, z, y, x) in zip(rounds(p, algorithm, 25), expected, strict=True):
        for mine, theirs in ((s.server.c, c), (s.clients.u, u), (s.server.z, z), (s.server.y, y), (model, x)):
            assert toy.gap(mine, theirs) < 1e-12


# ---- what it keeps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("compressor", [DENSE, QUANTISER, TopK(k=8), RandK(k=9), NaturalCompressor(True)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_T05a_public_is_equal_to_the_bit_and_c_is_the_mean_of_u(compressor, batch, dtype):
    p = toy.problem(batch=batch, dtype=dtype, sizes=toy.RAGGED, weighting="size")
    eps = torch.finfo(dtype).eps
    for s, _ in rounds(p, Pledge(1.0, 3, compressor_up=compressor, compressor_down=compressor), 40):
        for name in ("z", "y"):
            public = getattr(s.server, name)
            assert np.array_equal(getattr(s.clients, name), np.tile(public, (N, 1)))
        assert toy.gap(s.server.c, p.f.weights.numpy() @ s.clients.u) < 20 * eps


def test_T05b_without_compressors_corrections_add_up_to_zero_and_nothing_lags_behind():
    p, algorithm = toy.problem(), Pledge(1.0, 4, compressor_up=DENSE, compressor_down=DENSE)
    before = None
    for s, _ in rounds(p, algorithm, 30):
        assert toy.gap(s.clients.u, s.clients.v) < 1e-15
        if before is not None:  # the server's message of this round said where z should be, and all went there
            assert toy.gap(s.server.z, before.server.zt) < 1e-15
            read = (ref.prox_l1(toy.LAMBDA)(before.server.y, algorithm.S) - s.server.z) / algorithm.S
            assert np.abs((read - before.clients.v).sum(0)).max() < 1e-13
            assert np.abs(read - before.clients.v).max() > 1e-2
        before = s


@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize("tau", [1, 2, 6])
def test_T05c_the_walk_is_as_long_for_a_constant_gradient_as_it_says(tau, beta):
    """With gradients 1 the walk goes S, and it is no longer than its largest prox step."""
    from proxfed.algorithms.local_steps import walk, walk_length

    class Ones:
        def grad(self, x, draw):
            return torch.ones_like(x)

    x = torch.zeros(2, 3, dtype=torch.float64)
    G = walk(Ones(), Zero(), x, 0 * x, 0.3, tau, beta)
    assert torch.allclose(G, torch.ones_like(x), atol=1e-15)
    assert Pledge(0.3, tau, beta=beta).S == walk_length(0.3, tau, beta) >= 0.3 * tau * (1 - 1e-12)


# ---- what it reduces to ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("h", ["l1", "mcp", "zero"])
@pytest.mark.parametrize("tau", [1, 5])
def test_T05d_dense_without_extrapolation_it_is_FedComposite(tau, h, batch):
    p = toy.problem(h={"l1": L1(0.02), "mcp": MCP(0.02, 9.0), "zero": Zero()}[h], batch=batch)
    one, two = rounds(p, Pledge(0.8, tau, **PLAIN), 25), rounds(p, FedComposite(0.8, tau), 25)
    for (a, x), (b, y) in zip(one, two, strict=True):
        assert toy.gap(x, y) < 2e-14
        assert toy.gap(a.server.zt, b.server.x) < 2e-14


class CorrectsByWhatWasSent(Pledge):
    """As FedCEF does: by u, which the server knows, where PLEDGE takes v, which is fresher."""

    def client(self, own, down, f, h):
        new, _ = super().client(own._replace(v=own.u), down, f, h)
        v = new.v + (1 - self.a) * (own.v - own.u)
        return new._replace(v=v), v


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("eta", [1.0, 0.4])
@pytest.mark.parametrize("C", [TopK(k=2), QUANTISER], ids=repr)
def test_T05e_with_a_dense_downlink_it_is_FedCEF(C, eta, batch):
    """From 0, where FedCEF's zero control variates are PLEDGE's first ones; FedCEF corrects by c_i, which is u_i."""
    p = toy.problem(batch=batch, x0=(0.0,) * D)
    ours = CorrectsByWhatWasSent(0.7, 4, a=eta, **PLAIN | {"compressor_up": C})
    for (a, x), (b, y) in zip(rounds(p, ours, 25), rounds(p, FedCEF(0.7, 4, 1.0, eta, C), 25), strict=True):
        assert toy.gap(x, y) < 1e-13
        assert toy.gap(a.clients.u, b.clients.c) < 1e-13
        assert toy.gap(a.clients.v, b.clients.v) < 1e-13


@pytest.mark.parametrize("C", [TopK(k=2), QUANTISER], ids=repr)
def test_T05e_with_one_local_step_nothing_is_corrected_and_it_is_FedCEF_as_it_stands(C):
    p = toy.problem(x0=(0.0,) * D)
    ours = Pledge(2.0, 1, **PLAIN | {"compressor_up": C})
    for (_, x), (_, y) in zip(rounds(p, ours, 25), rounds(p, FedCEF(2.0, 1, compressor=C), 25), strict=True):
        assert toy.gap(x, y) < 1e-13


@pytest.mark.parametrize("theta", [0.0, 0.5, 0.9])
def test_T05f_smooth_dense_with_one_local_step_it_is_Nesterov_on_all_data(theta):
    """And FedNAG with tau = 1, whose w is our extrapolated y; torch's SGD is held against FedNAG elsewhere (T03b)."""
    p = toy.problem(h=Zero())
    ours, pooled, local = Pledge(2.0, 1, **PLAIN | {"theta": theta}), Nesterov(2.0, theta), FedNAG(2.0, theta, 1)
    for (s, _), (one, _), (two, _) in zip(*(rounds(p, a, 40) for a in (ours, pooled, local)), strict=True):
        z = s.server.zt  # the next z, dense
        y = z + theta * (z - s.server.z)
        assert toy.gap(y, one.server.x) < 1e-13
        assert toy.gap(y, two.server.w) < 1e-13


# ---- where it stays and ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"beta": 0.5, "a": 0.4}, {"theta": 0.6, "restart": False}], ids=str)
@pytest.mark.parametrize("C", [DENSE, QUANTISER, TopK(k=8)], ids=repr)
def test_T05g_solutions_are_fixed_points(C, settings):
    p, algorithm = toy.problem(), Pledge(0.7, 5, compressor_up=C, compressor_down=C, **settings)
    x, grad = toy.solution(p), toy.gradient(p)
    own = toy.rows(*[grad(i, x) for i in range(N)])
    z = torch.tensor(x) - algorithm.S * own.mean(0)
    clients = start = Client(own, own, z.repeat(N, 1), z.repeat(N, 1))
    server = begin = Server(own.mean(0), z, z, z, torch.zeros(1, dtype=torch.uint8))
    for t in range(1, 9):
        server, (q, *k) = algorithm.down(server, keys(0, "server message", [0], t))
        f = Oracle(p.f.local(t, range(N)), Work())
        clients, v = algorithm.client(clients, (q.dense[0], *k), f, p.h)
        clients, D_i = algorithm.relay(clients, v, 0.0, f.key)
        server = algorithm.server(server, D_i.dense.mean(0), p.h, 1.0)
        for now, then in zip((*clients, *server[:4]), (*start, *begin[:4]), strict=True):
            assert toy.gap(now, then) < 2e-14
        assert toy.gap(algorithm.model(server, p.h), x) < 2e-14


@pytest.mark.parametrize("tau", [1, 3, 6])
@pytest.mark.parametrize("q2", [0.02, 0.1, 0.2, LARGEST_Q2])
def test_reaches_the_solution_with_one_setting(q2, tau):
    """eta = 1/L and all else by default, with messages as coarse as it takes them."""
    p, C = toy.problem(), ErrorBoundedQuantiser(q2)
    algorithm = Pledge(1 / p.f.smoothness().L, tau, compressor_up=C, compressor_down=C)
    assert toy.reaches(p, algorithm, 1e-10, 250)


@pytest.mark.parametrize("settings", [{"beta": 0.5}, {"a": 0.5}, {"theta": 0.5, "restart": False}], ids=str)
def test_reaches_the_solution_with_options(settings):
    p = toy.problem(sizes=toy.RAGGED, weighting="size")
    assert toy.reaches(p, Pledge(0.5 / p.f.smoothness().L, 3, **settings), 1e-10, 300)


def test_needs_its_error_feedback():
    """The same messages without memory, u = 0 and y = 0, stop far away."""
    p, C = toy.problem(), ErrorBoundedQuantiser(0.1)
    key, grad, prox, x = keys(0, "test", [0], 0), toy.gradient(p), ref.prox_l1(toy.LAMBDA), toy.start(p)
    for _ in range(80):
        c = ref.average([C(torch.tensor(grad(i, x))[None], key).dense[0].numpy() for i in range(N)])
        x = prox(x - 4.0 * c, 4.0)
    assert toy.error(x, toy.solution(p)) > 1e-3


def test_finds_a_stationary_point_of_a_weakly_convex_problem():
    p = toy.problem(h=MCP(0.02, 20.0))
    algorithm = Pledge(1.5, 3)
    assert algorithm.S * p.h.weak_convexity < 1
    x = toy.final(p, algorithm, 400)
    step, grad = 1.0, toy.mean_gradient(p)
    residual = x - ref.prox_mcp(0.02, 20.0)(x - step * grad(x), step)
    assert np.linalg.norm(residual) < 1e-11
    assert 0 < np.count_nonzero(x) < D


def test_a_larger_radius_is_sharper_aware_and_zero_is_plain():
    p = toy.problem()
    plain, sharp = (toy.final(p, Pledge(1.0, 2, rho=rho), 5) for rho in (0.0, 0.3))
    assert toy.gap(plain, toy.final(p, Pledge(1.0, 2), 5)) == 0
    assert toy.gap(plain, sharp) > 1e-3


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [("eta", 0.0), ("tau", 0), ("theta", -0.1), ("theta", 1.5), ("beta", 1.0), ("a", 0.0), ("rho", -1.0)],
)
def test_refuses_what_makes_no_sense(field, value):
    with pytest.raises(InputError, match=field):
        Pledge(**({"eta": 1.0} | {field: value}))
    with pytest.raises(InputError, match="theta = 1 needs restart"):
        Pledge(1.0, theta=1.0, restart=False)


def test_coarse_messages_with_extrapolation_are_refused_and_that_is_why():
    p, C = toy.problem(), ErrorBoundedQuantiser(0.5)
    coarse = Pledge(1 / p.f.smoothness().L, 4, theta=1.0, compressor_up=C, compressor_down=C)
    with pytest.raises(
        InputError, match=r"^Pledge with these settings needs a compressor with q\^2 <= 0.25, but that of"
    ):
        check_combination(p, coarse, None, Full())
    assert toy.error(toy.final(p, coarse, 120), toy.solution(p)) > 1e-3
    without = replace(coarse, theta=0.0)
    check_combination(p, without, None, Full())
    assert toy.reaches(p, without, 1e-10, 300)


def test_some_of_the_clients_are_refused():
    """Who misses a round misses a message that changes what is public."""
    with pytest.raises(InputError, match="Pledge needs every client in every round, not UniformSampling"):
        check_combination(toy.problem(), Pledge(1.0), None, UniformSampling(3))


def test_bytes_are_counted_and_few():
    p = toy.problem(p=200)
    run = toy.begin(p, Pledge(1.0))
    for t in range(1, 6):
        run.round(t)
    traffic = run.network.traffic
    assert traffic.up + traffic.down < 2 * 5 * N * 200 * 8 / 15
    assert traffic.best <= traffic.up + traffic.down
    plain = toy.begin(p, Pledge(1.0, **PLAIN))
    plain.round(1)
    assert (plain.network.traffic.up, plain.network.traffic.down) == (N * 200 * 8, N * 200 * 8)  # and no byte for k


def test_nesterov_with_restart_is_no_slower_than_a_fixed_one():
    """Without compressors, on the pooled problem: the restart finds the momentum that theory would choose."""
    p = toy.problem(h=Zero(), l2=0.002)
    L, mu = p.f.smoothness().L_f, p.f.smoothness().mu
    x = toy.solution(p, ref.prox_zero)
    best = (1 - np.sqrt(mu / L)) / (1 + np.sqrt(mu / L))

    def needed(algorithm):
        run = toy.begin(p, algorithm)
        for t in range(1, 400):
            run.round(t)
            if toy.error(run.model().numpy(), x) < 1e-8:
                return t
        return 400

    ours = needed(Pledge(1 / L, 1, 1.0, compressor_up=DENSE, compressor_down=DENSE))
    assert ours < 1.3 * needed(Nesterov(1 / L, best))


def test_its_rule_reaches_the_solution_whatever_the_condition_number_is():
    """With 3/4 sqrt(L/mu) local steps, rounded up, and at most 5."""
    for l2 in (0.3, 0.05, 0.005):
        p = toy.problem(l2=l2)
        algorithm = Pledge.theory(toy.constants(p, 1))
        L, mu = p.f.smoothness().L, p.f.smoothness().mu
        assert algorithm.tau == min(5, np.ceil(0.75 * np.sqrt(L / mu)))
        assert algorithm.eta == pytest.approx(1 / p.f.smoothness().L)
        slow = np.sqrt(1 - (1 - mu / L) ** algorithm.tau)
        assert algorithm.theta == pytest.approx(max(0.7, (1 - slow) / (1 + slow)))
        assert toy.reaches(p, algorithm, 1e-9, 500)


def test_its_rule_keeps_to_what_a_weakly_convex_regulariser_allows():
    p = toy.problem(h=MCP(0.02, 3.0), l2=0.005)
    for proved in (True, False):
        algorithm = Pledge.theory(toy.constants(p, 1), proved=proved)
        assert algorithm.largest_prox_step() * p.h.weak_convexity <= 0.5 * (1 + 1e-12)
        check_combination(p, algorithm, None, Full())


def small_network(channels: int, side: int, classes: int) -> torch.nn.Module:
    layers = torch.nn.Linear(channels * side**2, 32), torch.nn.ReLU(), torch.nn.Linear(32, classes)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def test_a_small_network_learns():
    """Digits of 8 x 8 pixels, five clients that see different shares of the classes."""
    p = Neural(load("digits", DirichletByClient(5, 0.5)), small_network, batch=16) + L1(1e-5)
    run = toy.begin(p, Pledge(0.1, 10, 0.5, False, 0.5, 0.5))
    first = p.f.evaluate(run.x0)["accuracy"]
    for t in range(1, 21):
        run.round(t)
    assert p.f.evaluate(run.model())["accuracy"] > 0.85 > 0.3 > first
    sent = run.network.traffic.up + run.network.traffic.down
    assert sent * 8 / (2 * 20 * 5 * p.f.d) < 2.5
