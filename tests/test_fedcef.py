"""FedCEF against its specification: the recursion itself, what it keeps, what it reduces to, where it stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proxfed import FedCEF, FedComposite
from proxfed.algorithms.fedcef import Client, Server
from proxfed.compressors import Identity, RandK, ScaledSign, TopK
from proxfed.engine.halves import Oracle, Work
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.errors import InputError
from proxfed.keyed_random import keys
from proxfed.regularisers import L1, MCP, Zero

from support import numpy_references as ref
from support import toy_problems as toy

N = toy.N
COMPRESSORS = {
    "identity": (Identity(), ref.identity),
    "top1": (TopK(k=1), ref.top_k(1)),
    "top4": (TopK(fraction=0.4), ref.top_k(4)),
    "sign": (ScaledSign(), ref.scaled_sign),
}


def expected(p, algorithm, compress, prox=None):
    """The reference from the library's start: its z0 is the prox point of x0."""
    a, prox = algorithm, prox or ref.prox_l1(toy.LAMBDA)
    z0 = prox(toy.start(p), a.eta_g * a.alpha * a.K)
    return ref.fedcef(
        toy.gradient(p),
        prox,
        compress,
        p.f.n,
        z0,
        alpha=a.alpha,
        K=a.K,
        eta_g=a.eta_g,
        eta=a.eta,
        p=p.f.weights.numpy(),
    )


def rounds(p, algorithm, how_many):
    """(state after the round, model) for rounds 1, 2, ..."""
    run = toy.begin(p, algorithm)
    for t in range(1, how_many + 1):
        run.round(t)
        yield toy.numpy(run.state), run.model().numpy()


@pytest.mark.parametrize(("K", "eta_g", "batch"), [(1, 0.7, None), (4, 1.0, 6), (4, 1.6, None)])
@pytest.mark.parametrize("eta", [1.0, 0.3])
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_is_the_recursion_of_the_paper(compressor, eta, K, eta_g, batch):
    C, compress = COMPRESSORS[compressor]
    p, algorithm = toy.problem(batch=batch), FedCEF(0.6, K, eta_g, eta, C)
    for (s, z), reference in zip(rounds(p, algorithm, 20), expected(p, algorithm, compress), strict=False):
        assert toy.gap(z, reference.z) < 1e-13
        assert toy.gap(s.server.zt, reference.zt) < 1e-13
        assert toy.gap(s.server.c, reference.c) < 1e-13
        assert toy.gap(s.clients.c, reference.own_c) < 1e-13
        assert toy.gap(s.clients.v, reference.v) < 1e-13


def test_weighs_the_clients():
    p, algorithm = toy.problem(sizes=toy.RAGGED, weighting="size"), FedCEF(0.6, 3, 1.0, 0.7, TopK(k=2))
    for (s, z), reference in zip(rounds(p, algorithm, 20), expected(p, algorithm, ref.top_k(2)), strict=False):
        assert toy.gap(z, reference.z) < 1e-13
        assert toy.gap(s.server.c, p.f.weights.numpy() @ s.clients.c) < 1e-14


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("eta", [1.0, 0.3])
@pytest.mark.parametrize("compressor", [*(C for C, _ in COMPRESSORS.values()), RandK(k=3)], ids=repr)
def test_T01a_c_is_the_mean_of_the_clients(compressor, eta, batch):
    for s, _ in rounds(toy.problem(batch=batch), FedCEF(0.6, 3, 1.0, eta, compressor), 25):
        assert toy.gap(s.server.c, s.clients.c.mean(0)) < 1e-15


@pytest.mark.parametrize("K", [1, 2, 7])
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_T01b_u_is_the_mean_local_gradient(compressor, K):
    """Without momentum v_i = u_i, which the paper reads off the client's displacement."""
    C, compress = COMPRESSORS[compressor]
    p, algorithm = toy.problem(), FedCEF(0.4, K, 1.2, 1.0, C)
    for (s, _), reference in zip(rounds(p, algorithm, 15), expected(p, algorithm, compress), strict=False):
        assert toy.gap(reference.u, reference.means) < 1e-14
        assert toy.gap(s.clients.v, reference.means) < 1e-14
        assert toy.gap(s.clients.v, reference.u) < 1e-14


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("h", ["l1", "mcp", "zero"])
@pytest.mark.parametrize(("alpha", "K", "eta_g"), [(3.0, 1, 1.0), (0.8, 5, 1.0), (0.8, 3, 1.7)])
def test_T01c_dense_and_without_momentum_it_is_FedComposite(alpha, K, eta_g, h, batch):
    p = toy.problem(h={"l1": L1(0.02), "mcp": MCP(0.02, 9.0), "zero": Zero()}[h], batch=batch)
    prox = {"l1": ref.prox_l1(0.02), "mcp": ref.prox_mcp(0.02, 9.0), "zero": ref.prox_zero}[h]
    zhj = ref.fedcomposite(toy.gradient(p), prox, N, toy.start(p), eta=alpha, eta_g=eta_g, tau=K)
    one, two = rounds(p, FedCEF(alpha, K, eta_g), 15), rounds(p, FedComposite(alpha, K, eta_g), 15)
    for (a, z), (b, model), reference in zip(one, two, zhj, strict=False):
        assert toy.gap(z, reference.z) < 2e-14
        assert toy.gap(model, reference.z) < 2e-14
        assert toy.gap(a.server.zt, reference.x) < 2e-14
        assert toy.gap(b.server.x, reference.x) < 2e-14
        assert toy.gap(a.clients.c, a.clients.v) < 1e-15


@pytest.mark.parametrize("other", [{"eta": 0.5}, {"compressor": TopK(k=5)}], ids=str)
def test_T01c_otherwise_it_is_not(other):
    p = toy.problem()
    ours, theirs = toy.final(p, FedCEF(0.8, 5, **other), 3), toy.final(p, FedComposite(0.8, 5), 3)
    assert toy.gap(ours, theirs) > 1e-3


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize(("K", "eta_g"), [(1, 1.0), (5, 1.0), (3, 1.7)])
def test_T01d_smooth_dense_and_without_momentum_it_is_SCAFFOLD(K, eta_g, batch):
    p = toy.problem(h=Zero(), batch=batch)
    scaffold = ref.scaffold(toy.gradient(p), N, toy.start(p), eta=0.8, eta_g=eta_g, K=K)
    for (s, z), reference in zip(rounds(p, FedCEF(0.8, K, eta_g), 40), scaffold, strict=False):
        assert toy.gap(z, reference.x) < 1e-14
        assert toy.gap(s.clients.c, reference.own_c) < 1e-14
        assert toy.gap(s.server.c, reference.c) < 1e-14


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("eta", [1.0, 0.4])
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_T01e_smooth_with_one_local_step_it_is_EF21_with_momentum(compressor, eta, batch):
    """And EF21 itself for eta = 1."""
    C, compress = COMPRESSORS[compressor]
    p = toy.problem(h=Zero(), batch=batch)
    ef21 = ref.ef21_sgdm(toy.gradient(p), compress, N, toy.start(p), step=0.9 * 1.5, eta=eta)
    for (s, z), reference in zip(rounds(p, FedCEF(0.9, 1, 1.5, eta, C), 40), ef21, strict=False):
        assert toy.gap(z, reference.x) < 1e-14
        assert toy.gap(s.clients.c, reference.c) < 1e-14
        assert toy.gap(s.clients.v, reference.v) < 1e-14


def test_T01e_dense_with_one_local_step_it_is_proximal_gradient():
    p, beta = toy.problem(), 1.4
    prox = ref.prox_l1(toy.LAMBDA)
    descent = ref.proximal_gradient(toy.mean_gradient(p), prox, prox(toy.start(p), beta), step=beta)
    for (_, z), x in zip(rounds(p, FedCEF(0.7, 1, 2.0), 60), descent, strict=False):
        assert toy.gap(z, x) < 1e-14


@pytest.mark.parametrize("K", [1, 6])
@pytest.mark.parametrize("eta", [1.0, 0.3])
@pytest.mark.parametrize("compressor", [*(C for C, _ in COMPRESSORS.values()), RandK(k=3)], ids=repr)
def test_T01f_solutions_are_fixed_points(compressor, eta, K):
    p, algorithm = toy.problem(), FedCEF(3.0 / K, K, 1.3, eta, compressor)
    x, grad = toy.solution(p), toy.gradient(p)
    own = toy.rows(*[grad(i, x) for i in range(N)])
    mean, here = own.mean(0), torch.tensor(x)
    clients = start = Client(own, own, toy.rows(*[x] * N))
    server = begin = Server(here - algorithm.beta * mean, mean)
    for t in range(1, 9):
        server, zt = algorithm.down(server, keys(0, "server message", [0], t))
        clients, D = algorithm.client(clients, zt, Oracle(p.f.local(t, range(N)), Work()), p.h)
        server = algorithm.server(server, D.dense.mean(0), p.h, 1.0)
        assert D.dense.abs().max() < 1e-14
        for now, then in zip((*clients, *server), (*start, *begin), strict=True):
            assert toy.gap(now, then) < 1e-14
        assert toy.gap(algorithm.model(server, p.h), x) < 1e-14


def test_T01f_one_entry_of_ten_converges_and_its_feedback_vanishes():
    p = toy.problem()
    algorithm, C = FedCEF(0.8, 3, compressor=TopK(k=1)), ref.top_k(1)
    *_, (state, z) = rounds(p, algorithm, 400)
    assert toy.error(z, toy.solution(p)) < 2e-14
    assert np.abs(state.clients.v - state.clients.c).max() < 1e-13

    grad, prox, x = toy.gradient(p), ref.prox_l1(toy.LAMBDA), toy.start(p)  # without feedback it goes nowhere near
    for _ in range(400):
        x = prox(x - algorithm.beta * ref.average([C(grad(i, x)) for i in range(N)]), algorithm.beta)
    assert toy.error(x, toy.solution(p)) > 0.1


# ---- step sizes of the theory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [1, 10])
@pytest.mark.parametrize("eta", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("compressor", [Identity(), TopK(k=1), TopK(fraction=0.5), ScaledSign()], ids=repr)
def test_theory_keeps_to_the_inequalities_of_the_theorem(compressor, eta, K):
    p = toy.problem()
    a, L = FedCEF.theory(toy.constants(p, 100), K, eta, compressor), p.f.smoothness().L
    kept = {Identity(): 10, TopK(k=1): 1, TopK(fraction=0.5): 5, ScaledSign(): 1}[compressor]
    q = np.sqrt(1 - kept / toy.D)
    beta = a.eta_g * a.alpha * K
    assert (a.K, a.eta, a.compressor) == (K, eta, compressor)
    assert 0 < beta <= min(eta**2, (1 - q) ** 2) / (25 * L) * (1 + 1e-12)
    assert a.eta_g >= np.sqrt(16 * (1 - q) ** 2 + 161 * eta**2) / (5 * eta * (1 - q)) * (1 - 1e-12)
    assert a.eta_g >= 2.66
    assert a.alpha <= 1 / (8 * K * L)


@pytest.mark.parametrize("compressor", [Identity(), TopK(fraction=0.5)], ids=repr)
def test_theory_descends(compressor):
    p = toy.problem()
    run = toy.begin(p, FedCEF.theory(toy.constants(p, 100), 4, 1.0, compressor))
    values = [toy.objective(p, run.model())]
    for t in range(1, 101):
        run.round(t)
        values.append(toy.objective(p, run.model()))
    best = toy.objective(p, toy.solution(p))
    assert max(np.diff(values)) <= 1e-6 * (values[0] - best)
    assert values[-1] < values[0] - 1e-3 * (values[0] - best)
    assert min(values) >= best


@pytest.mark.parametrize(
    ("field", "value"), [("alpha", 0.0), ("eta_g", -1.0), ("eta", 0.0), ("eta", 1.5), ("K", 0)]
)  # fmt: skip
def test_refuses_what_makes_no_sense(field, value):
    with pytest.raises(InputError, match=field):
        FedCEF(**({"alpha": 1.0, "K": 2} | {field: value}))


@pytest.mark.parametrize("beta", [1.0, 0.01])
def test_both_sides_compute_the_same_model_in_single_precision(beta):
    """z is the same to the bit for server and clients; what clients read as c is off by rounding that does not grow."""
    p = toy.problem(dtype=torch.float32)
    alg = FedCEF(beta / 3, 3, compressor=TopK(k=2))
    run = run_of(p, alg, Stacked(p.f.n, p.f.d))
    off = []
    for t in range(1, 401):
        _, sent = alg.down(run.state.server, keys(0, "server message", [0], t))
        before, c = alg.model(run.state.server, p.h), run.state.server.c
        read = (run.state.clients.z - sent) / alg.beta
        off.append(float((read - c).abs().max()) / max(1e-30, float(sent.abs().max())) * beta)
        run.round(t)
        assert torch.equal(run.state.clients.z, before.expand(p.f.n, -1))
    eps = torch.finfo(torch.float32).eps
    assert max(off[1:200]) < 8 * eps
    assert max(off[200:]) < 8 * eps
