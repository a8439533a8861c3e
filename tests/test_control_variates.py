"""Control variates: averaged ones against their recursion, their fixed points, and the remark when they grow."""

from __future__ import annotations

from itertools import count, islice

import numpy as np
import pytest
import torch

from proxfed import run
from proxfed.algorithms import FedCEF, FedComposite, Pledge, Scaffold
from proxfed.regularisers import Zero

from support import numpy_references as ref
from support import toy_problems as toy

N = toy.N


def _averaged(grad, n, x0, *, eta, K, a):
    """SCAFFOLD with c_i <- (1 - a) c_i + a (mean of the K gradients)."""
    x, own = x0, [0 * x0] * n
    for t in count(1):
        c, ys, means = sum(own) / n, [], []
        for i in range(n):
            y, total = x, 0 * x
            for k in range(K):
                g = grad(i, y, t, k)
                total = total + g
                y = y - eta * (g + c - own[i])
            ys.append(y)
            means.append(total / K)
        x = sum(ys) / n
        own = [(1 - a) * own[i] + a * means[i] for i in range(n)]
        yield x, own


@pytest.mark.parametrize("batch", [None, 6])
@pytest.mark.parametrize("averaging", [0.1, 0.5, 1.0])
def test_averaged_control_variates_are_the_recursion(averaging, batch):
    p = toy.problem(h=Zero(), batch=batch)
    run = toy.begin(p, Scaffold(0.5, 3, averaging=averaging))
    for t, (x, own) in enumerate(islice(_averaged(toy.gradient(p), N, toy.start(p), eta=0.5, K=3, a=averaging), 20), 1):
        run.round(t)
        assert toy.gap(run.model().numpy(), x) < 1e-13
        assert toy.gap(run.state.clients.c.numpy(), np.array(own)) < 1e-13
        assert toy.gap(run.state.server.c.numpy(), sum(own) / N) < 1e-13


@pytest.mark.parametrize("averaging", [0.2, 1.0])
def test_the_solution_stays_the_fixed_point(averaging):
    p = toy.problem(h=Zero())
    x = toy.solution(p, lambda v, s: v)
    run = toy.begin(p, Scaffold(0.5, 4, averaging=averaging))
    grad = toy.gradient(p)
    c = torch.tensor(np.array([grad(i, x) for i in range(N)]))
    state = run.state
    run.state = state._replace(
        clients=state.clients._replace(c=c), server=state.server._replace(x=torch.tensor(x), c=c.mean(0))
    )
    run.round(1)
    assert toy.gap(run.model().numpy(), x) < 1e-13
    assert toy.gap(run.state.clients.c.numpy(), c.numpy()) < 1e-13
    assert toy.reaches(p, Scaffold(0.5, 4, averaging=averaging), 1e-9, 3000, far=lambda y: toy.error(y, x))


def test_averaging_takes_noise_out_of_control_variates():
    """An average with weights a (1 - a)^k has a/(2 - a) of the variance, if all else stays: a 19th for a = 0.1."""
    full, p = toy.problem(h=Zero()), toy.problem(h=Zero(), batch=1)
    x = toy.solution(full, lambda v, s: v)
    c = np.array([toy.gradient(full)(i, x) for i in range(N)])
    noise = []
    for averaging in (1.0, 0.1):
        run = toy.begin(p, Scaffold(0.02, 2, averaging=averaging))
        clients, server = run.state
        run.state = type(run.state)(clients._replace(c=torch.tensor(c)), server._replace(x=torch.tensor(x)))
        off = []
        for t in range(1, 201):
            run.round(t)
            off.append(((run.state.clients.c.numpy() - c) ** 2).sum(1).mean())
        noise.append(np.mean(off[20:]))
    assert noise[1] < 0.15 * noise[0]


def test_fedcomposite_with_averages_is_fedcef_without_compression():
    """So it needs no averaging of its own: x follows the averaged G_i, and the limit is the same."""
    p = toy.problem()
    assert toy.reaches(p, FedCEF(0.3, 3, eta=0.3), 1e-9, 3000)
    one, other = toy.begin(p, FedCEF(0.3, 3)), toy.begin(p, FedComposite(0.3, 3))
    for t in range(1, 6):
        one.round(t)
        other.round(t)
        assert toy.gap(one.model().numpy(), other.model().numpy()) < 1e-13


def test_fedcef_begins_at_any_prox_point():
    """T01g: from x0 + beta u, u a subgradient of h at x0, it begins at x0, as the paper does."""
    p, algorithm = toy.problem(), FedCEF(0.3, 3)
    x0 = toy.start(p)
    assert (x0 != 0).all()
    shifted = p.starting_at(torch.tensor(x0 + algorithm.beta * toy.LAMBDA * np.sign(x0)))
    assert toy.gap(toy.begin(shifted, algorithm).model().numpy(), x0) < 1e-15
    run, grad, prox = toy.begin(shifted, algorithm), toy.gradient(p), ref.prox_l1(toy.LAMBDA)
    run.round(1)
    u = []
    for i in range(N):
        w = x = x0
        total = 0 * x0
        for k in range(3):
            g = grad(i, x)
            total = total + g / 3
            w = w - 0.3 * g
            x = prox(w, (k + 1) * 0.3)
        u.append(total)
    assert toy.gap(run.model().numpy(), prox(x0 - algorithm.beta * sum(u) / N, algorithm.beta)) < 1e-14


def test_growing_control_variates_are_noticed():
    p = toy.problem("least_squares", h=Zero())
    L = p.f.smoothness().L
    said = run(p, Scaffold(2.5 / L, 5), rounds=60, every=1, progress=False).message
    assert "its control variates grew" in said
    assert "averaging (averaging < 1)" in said
    assert "grew" not in run(p, Scaffold(0.5 / L, 5), rounds=60, every=1, progress=False).message
    assert "averaging (eta < 1)" in run(p, FedCEF(2.5 / L, 5), rounds=60, every=1, progress=False).message
    grew = "averaging (a < 1) or a guard (guard = true)"
    plain = Pledge(2.5 / L, 5, 0.0, False, guard=False)
    assert grew in run(p, plain, rounds=60, every=1, progress=False).message


@pytest.mark.parametrize("averaging", [0.05, 0.3])
def test_averages_that_come_from_zero_do_not_grow(averaging):
    """After the first round they are `averaging` times a gradient, and then become gradients."""
    p = toy.problem("least_squares", h=Zero())
    L = p.f.smoothness().L
    for algorithm in (
        Scaffold(0.5 / L, 5, averaging=averaging),
        FedCEF(0.5 / L, 5, eta=averaging),
        Pledge(0.5 / L, 5, a=averaging),
    ):
        assert "grew" not in run(p, algorithm, rounds=60, every=1, progress=False).message
