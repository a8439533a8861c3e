"""The centralised references: gradient descent, heavy ball, Nesterov, proximal gradient, FISTA."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from proxfed import FedAvg, FedComposite, FedNAG
from proxfed.algorithms import (
    FISTA,
    GradientDescent,
    HeavyBall,
    Nesterov,
    ProximalGradient,
)
from proxfed.problems.fista import fista
from proxfed.regularisers import L1, MCP, Zero

from support import numpy_references as ref
from support import toy_problems as toy

N, D = toy.N, toy.D


CENTRAL = {
    "Nesterov = FedNAG(tau=1)": (Nesterov(0.7, 0.8), FedNAG(0.7, 0.8, 1), Zero()),
    "heavy ball without momentum = gradient descent": (HeavyBall(0.7, 0.0), GradientDescent(0.7), Zero()),
    "Nesterov without momentum = gradient descent": (Nesterov(0.7, 0.0), GradientDescent(0.7), Zero()),
    "gradient descent = FedAvg(K=1)": (GradientDescent(0.7), FedAvg(0.7, 1), Zero()),
    "proximal gradient without h = gradient descent": (ProximalGradient(0.7), GradientDescent(0.7), Zero()),
    "proximal gradient = FedComposite(tau=1)": (ProximalGradient(0.7), FedComposite(0.7, 1), L1(toy.LAMBDA)),
}


@pytest.mark.parametrize("name", CENTRAL)
def test_centralised_reductions(name):
    one, other, h = CENTRAL[name]
    # FedComposite begins with a prox step of its start, which at 0 is 0
    p = toy.problem(h=h, x0=(0.0,) * D, sizes=toy.RAGGED, weighting="size", batch=5)
    toy.assert_same(islice(toy.models(p, one), 25), islice(toy.models(p, other), 25))


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (GradientDescent(0.7), {}),
        (HeavyBall(0.7, 0.8), {"momentum": 0.8}),
        (Nesterov(0.7, 0.8), {"momentum": 0.8, "nesterov": True}),
    ],
)
def test_is_the_optimiser_of_torch_on_the_pooled_data(algorithm, settings):
    p = toy.problem(h=Zero(), sizes=toy.RAGGED, weighting="size")
    gradient = toy.mean_gradient(p)
    x = torch.nn.Parameter(p.start(0))
    optimiser = torch.optim.SGD([x], lr=0.7, **settings)
    for found in islice(toy.models(p, algorithm), 30):
        x.grad = torch.tensor(gradient(x.detach().numpy()))
        optimiser.step()
        assert toy.gap(found, x.detach().numpy()) <= 1e-13


@pytest.mark.parametrize("restart", [True, False])
def test_fista_is_the_recursion_of_the_paper(restart):
    p = toy.problem()
    gradient, prox, eta = toy.mean_gradient(p), ref.prox_l1(toy.LAMBDA), 1 / p.f.smoothness().L_f
    x = y = toy.start(p)
    t, restarts = 1.0, 0
    for found in islice(toy.models(p, FISTA(eta, restart)), 60):
        new = prox(y - eta * gradient(y), eta)
        if restart and (y - new) @ (new - x) > 0:
            t, restarts = 1.0, restarts + 1
        following = (1 + np.sqrt(1 + 4 * t**2)) / 2
        y = new + (t - 1) / following * (new - x)
        x, t = new, following
        assert toy.gap(found, x) <= 1e-12
    assert (restarts > 0) == restart


@pytest.mark.parametrize("loss", ["logistic", "least_squares", "softmax"])
def test_fista_reaches_the_solution(loss):
    p = toy.problem(loss, sizes=toy.RAGGED, weighting="size")
    assert toy.error(toy.final(p, FISTA.theory(toy.constants(p, 1)), 300), p.solve(1e-13).numpy()) <= 1e-10


def test_fista_takes_the_steps_of_the_solver():
    """The reference minimiser and the algorithm are written apart."""
    p = toy.problem()
    f, eta = p.f.local(0, range(p.f.n)), 1 / p.f.smoothness().L_f
    solver = fista(lambda x: p.f.weights @ f.full_grad(x), p.h, 1 / eta, p.start(0), 1e-12)
    assert toy.error(toy.final(p, FISTA(eta), 300), solver.numpy()) <= 1e-10


@pytest.mark.parametrize("make", [GradientDescent, HeavyBall, Nesterov, ProximalGradient])
def test_steps_of_the_theory_converge(make):
    p = toy.problem(h=L1(toy.LAMBDA) if make.needs.composite else Zero())
    assert toy.error(toy.final(p, make.theory(toy.constants(p, 1)), 150), p.solve(1e-13).numpy()) <= 1e-9


def test_acceleration_accelerates():
    """On an ill-conditioned quadratic: rates 1 - O(sqrt(mu/L)) against 1 - O(mu/L)."""
    p = toy.problem("least_squares", h=Zero(), l2=1e-3)
    constants, solution = toy.constants(p, 1), p.solve(1e-14).numpy()
    methods = (make.theory(constants) for make in (GradientDescent, Nesterov, HeavyBall))
    plain, nesterov, heavy_ball = (toy.error(toy.final(p, method, 150), solution) for method in methods)
    assert nesterov < 1e-3 * plain
    assert heavy_ball < max(nesterov, 1e-12)  # both may be at the rounding error of the solution


def test_proximal_gradient_of_the_theory_respects_a_weakly_convex_h():
    p = toy.problem(h=MCP(0.02, 2.0))
    assert ProximalGradient.theory(toy.constants(p, 1)).eta == pytest.approx(1.0)
