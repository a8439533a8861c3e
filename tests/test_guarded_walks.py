"""PLEDGE's guard: which walks are cut and by how much, which never are, and what it saves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from proxfed import Federated, Linear, Squared
from proxfed.algorithms import Pledge, PledgePeers
from proxfed.algorithms.local_steps import walk
from proxfed.compressors import Identity
from proxfed.regularisers import Zero
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
