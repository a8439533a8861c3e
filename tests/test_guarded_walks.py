"""PLEDGE's guard: which walks are cut and by how much, which never are, and what it saves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from proxfed import Federated, Linear, Squared
from proxfed.algorithms import Pledge, PledgePeers
from proxfed.algorithms.local_steps import walk, walk_length
from proxfed.compressors import Identity
from proxfed.regularisers import L1, MCP, Box, GroupLasso, Zero
from proxfed.topologies import Complete, Ring, SpanningTree

from support import toy_problems as toy

DENSE = Identity()


class Slopes:
    """Clients with gradients slope(x), a row each."""

    def __init__(self, slope):
        self.slope = slope

    def grad(self, x, draw):
        return self.slope(x)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cascade(seed):
    """500 clients with sums of log cosh of four linear functions each, of smoothness L, and a shift."""
    A, b = 2 * normal(500, 4, 3, seed=seed), 3 * normal(500, 4, seed=seed + 1)
    L = torch.linalg.matrix_norm(A, 2)[:, None] ** 2

    def slope(x):
        return torch.einsum("imd,im->id", A, torch.tanh(torch.einsum("imd,id->im", A, x) + b)) / L

    return Slopes(slope), 5 * normal(500, 3, seed=seed + 2), normal(500, 3, seed=seed + 3)


def test_of_a_quadratic_those_walks_are_cut_that_turn_the_gradient_round_or_more_than_double_it():
    """Ten steps of length 1 on h/2 |x|^2 multiply the corrected gradient by k = (1 - (1 - h)^10)/(10 h), and where that
    is below 0 or above 2 by a tenth: what the first step alone makes of it.
    """
    h = torch.tensor([0.5, 1.9, 2.0, 2.3, 2.5, 4.0, -0.1, -0.3], dtype=torch.float64)[:, None]
    x, shift = normal(len(h), 3), normal(len(h), 3, seed=1)
    k = (1 - (1 - h) ** 10) / (10 * h)
    kept = torch.where((k < 0) | (k > 2), 0.1, k)
    assert [*(kept != k)[:, 0]] == [False, False, False, True, True, True, False, True]
    for guard, factor in ((False, k), (True, kept)):
        found = walk(Slopes(lambda x: h * x), Zero(), x, shift, 1.0, 10, guard=guard)
        assert torch.allclose(found, factor * (h * x + shift) - shift, rtol=1e-9)


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_what_a_guarded_walk_is_beyond_its_first_gradient_is_no_longer_than_the_first_corrected_one(beta):
    """So v - g cannot grow by itself. Whatever the function is, and however long the steps are."""
    x, shift = 3 * normal(500, 4), normal(500, 4, seed=1)
    f = Slopes(lambda x: 5 * torch.sin(3 * x))
    g = f.grad(x, 0)
    plain, guarded = (walk(f, Zero(), x, shift, 1.0, 10, beta, guard=guard) for guard in (False, True))
    beyond, most = ((guarded - g).norm(dim=1), (g + shift).norm(dim=1))
    assert bool((beyond <= most).all())
    cut = (plain - g).norm(dim=1) > most
    assert 0 < int(cut.sum()) < 500
    assert torch.equal(plain[~cut], guarded[~cut])
    share = (1 - beta**10) / sum(1 - beta**j for j in range(1, 11))  # of the first gradient in the whole
    assert torch.allclose(beyond[cut], (1 - share) * most[cut])
    assert torch.allclose((guarded + shift)[cut], share * (g + shift)[cut])


@pytest.mark.parametrize("tau", [2, 3, 10, 40])
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_T05p_no_walk_on_a_convex_function_is_cut_for_steps_up_to_1_over_L(tau, seed):
    """There <u, m> >= |m|^2 for u, the first corrected gradient, and m, the mean of the others."""
    f, x, shift = cascade(seed)
    plain, guarded = (walk(f, Zero(), x, shift, 1.0, tau, guard=guard) for guard in (False, True))
    assert torch.equal(plain, guarded)
    u = f.grad(x, 0) + shift
    m = (tau * (plain + shift) - u) / (tau - 1)
    assert bool(((u * m).sum(1) >= (m * m).sum(1) - 1e-12).all())


# ---- with a regulariser ----------------------------------------------------------------------------------------------


def uneven_lasso(seed):
    """Six clients of 30 rows, ten features of different scales, a strong l1: convex, condition number some tens."""
    rng = np.random.default_rng(seed)
    scales = rng.normal(size=(6, 30, 10)), rng.uniform(0.2, 1.5, 10)
    A = scales[0] * scales[1] + 0.3 * rng.normal(size=(6, 1, 10))
    b = A @ (2 * rng.normal(size=10)) + 0.3 * rng.normal(size=(6, 30))
    b = b + (seed % 2 == 0) * rng.normal(size=(6, 1))
    slope = np.einsum("nmd,nm->nd", A, b).mean(0) / 30
    weight = np.abs(slope).max() * rng.uniform(0.05, 0.6)
    return Linear(Federated.from_clients(list(zip(A, b, strict=True))), Squared(), l2=0.02) + L1(weight)


@pytest.mark.parametrize(
    ("seed", "tau", "graph", "settings"),
    [
        (13, 6, None, {"compressor_up": DENSE, "compressor_down": DENSE}),
        (201, 11, None, {}),
        (238, 8, None, {}),
        (238, 11, None, {}),
        (13, 6, SpanningTree(Ring(6)), {"compressor_up": DENSE, "compressor_down": DENSE}),
    ],
)
def test_of_composite_problems_nothing_is_cut_that_needs_its_steps(seed, tau, graph, settings):
    """Held against |g + shift| alone, most walks of these were cut in every other round, and the error stayed at 1."""
    p = uneven_lasso(seed)
    algorithm = Pledge(1 / p.f.smoothness().L, tau, **settings)
    solution = p.solve(1e-13).numpy()
    plain, guarded = (toy.final(p, replace(algorithm, guard=on), 150, graph) for on in (False, True))
    assert np.array_equal(plain, guarded)
    assert toy.error(guarded, solution) < 1e-6


def starts(y, S, h):
    """Where walks begin and what h pushes with there: x = prox_{S h}(y) and xi = (y - x)/S."""
    x = h.prox(y, S)
    return x, (y - x) / S


@pytest.mark.parametrize("h", [L1(0.3), MCP(0.3, 30.0), Box(-2.0, 2.5), Zero()], ids=repr)
@pytest.mark.parametrize("beta", [0.0, 0.8])
def test_with_h_a_walk_is_cut_by_its_speed_to_its_first_step(beta, h):
    S, shift = walk_length(0.2, 10, beta), normal(500, 4, seed=1)
    x, xi = starts(3 * normal(500, 4), S, h)
    f = Slopes(lambda x: 5 * torch.sin(3 * x))
    u = f.grad(x, 0) + shift + xi
    plain, guarded = (walk(f, h, x, shift, 0.2, 10, beta, guard=on, xi=xi) for on in (False, True))
    speed = (x - h.prox(x - S * (plain + shift), S)) / S
    cut = (speed - u).norm(dim=1) > u.norm(dim=1)
    assert 0 < int(cut.sum()) < 500
    assert torch.equal(plain[~cut], guarded[~cut])
    share = (1 - beta**10) / sum(1 - beta**j for j in range(1, 11))
    assert torch.allclose((guarded + shift + xi)[cut], share * u[cut])


HS = [L1(0.02), L1(0.5), Box(-0.5, 1.0), GroupLasso(0.3, size=3), Zero()]


@pytest.mark.parametrize("h", HS, ids=repr)
@pytest.mark.parametrize("tau", [2, 6, 25])
def test_T05q_no_walk_on_convex_functions_is_cut_whatever_convex_h_is(tau, h):
    """<u, r> >= |r|^2/2, because F = f_i + <shift, .> + h falls from x to the end of the walk by S |r|^2/2."""
    f, y, shift = cascade(3)
    x, xi = starts(y, float(tau), h)
    plain, guarded = (walk(f, h, x, shift, 1.0, tau, guard=on, xi=xi) for on in (False, True))
    assert torch.equal(plain, guarded)
    r, u = (x - h.prox(x - tau * (plain + shift), float(tau))) / tau, f.grad(x, 0) + shift + xi
    assert bool(((u * r).sum(1) >= (r * r).sum(1) / 2 - 1e-12).all())


@pytest.mark.parametrize("tau", [3, 8, 20])
def test_T05r_values_fall_along_a_convex_walk(tau):
    """At every step, and from x to the end of tau steps by |x - y|^2/(2 S) at least, for steps of 1/L."""
    A, b, shift, x = normal(40, 5, 6), normal(40, 5, seed=1), normal(40, 6, seed=2), normal(40, 6, seed=3)
    A = A / torch.linalg.matrix_norm(A, 2)[:, None, None]
    h = L1(0.3)

    def F(y):
        squares = (torch.einsum("imd,id->im", A, y) - b).square().sum(1) / 2
        return squares + (shift * y).sum(1) + h.value(y)

    f = Slopes(lambda y: torch.einsum("imd,im->id", A, torch.einsum("imd,id->im", A, y) - b))
    ends = [x]
    for k in range(1, tau + 1):
        ends.append(h.prox(x - k * (walk(f, h, x, shift, 1.0, k) + shift), float(k)))
    for before, after in pairwise(ends):
        assert bool((F(after) <= F(before) - (after - before).square().sum(1) / 2 + 1e-12).all())
    assert bool((F(ends[-1]) + (ends[-1] - x).square().sum(1) / (2 * tau) <= F(x) + 1e-12).all())


def test_gradients_alone_would_not_tell_a_long_convex_walk_from_one_that_runs_away():
    """h keeps y on a line along which f_i is flat, but across which its gradient changes: |G - g| exceeds |u|."""
    t = 0.2
    e = torch.tensor([[np.cos(t), np.sin(t)]], dtype=torch.float64)  # the line; f_i = y_2^2/2
    f = Slopes(lambda y: y * torch.tensor([0.0, 1.0], dtype=torch.float64))
    x, shift = torch.zeros(1, 2, dtype=torch.float64), e.clone()

    class OnALine(L1):
        def prox(self, v, step):
            return (v @ e.T) * e

    h = OnALine(1.0)
    plain, guarded = (walk(f, h, x, shift, 1.0, 100, guard=on, xi=0 * x) for on in (False, True))
    assert torch.equal(plain, guarded)
    assert float(plain.norm()) > 1.5 * float(shift.norm())


def test_with_steps_that_suit_all_clients_it_changes_nothing():
    p = toy.problem()
    plain, guarded = (toy.final(p, Pledge(1 / p.f.smoothness().L, 5, guard=guard), 60) for guard in (False, True))
    assert np.array_equal(plain, guarded)
    assert toy.error(guarded, toy.solution(p)) < 1e-3


@pytest.mark.parametrize("curvature", [2.3, 4.0])
@pytest.mark.parametrize(
    ("algorithm", "graph"),
    [
        (Pledge(1.0, 10, 0.0, False, compressor_up=DENSE, compressor_down=DENSE), None),
        (Pledge(1.0, 10, 0.0, False, a=0.5, compressor_up=DENSE, compressor_down=DENSE), None),
        (Pledge(1.0, 10, 0.0, False), None),
        (Pledge(1.0, 10), None),
        (Pledge(1.0, 10, 0.0, False), SpanningTree(Ring(20))),
        (PledgePeers(1.0, 10, 1.0, 0.0, compressor=DENSE), Complete(20)),
    ],
    ids=["dense", "averaged", "quantised", "restarted", "tree", "peers"],
)
def test_one_client_that_runs_away_takes_all_along_unless_it_is_guarded(algorithm, graph, curvature):
    """19 clients of curvature 0.01 and one of more than 2/eta: its memory of its gradient grows, or else forgets at
    least a twentieth of its error a round.
    """
    flat = [(np.sqrt([[0.01]]), np.array([0.1 * i])) for i in range(19)]
    p = Linear(Federated.from_clients([*flat, (np.sqrt([[curvature]]), np.array([1.0]))]), Squared())
    solution = (p + Zero()).solve().numpy()
    left = toy.error(toy.final(p + Zero(), replace(algorithm, guard=False), 20, graph), solution)
    kept = toy.error(toy.final(p + Zero(), algorithm, 300, graph), solution)
    assert kept < 1e-9 < 1e3 < left
