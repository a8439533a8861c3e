"""PLEDGE's guard: which walks count with their first gradient only, which never do, and what it saves."""

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
from proxfed.topologies import Complete

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


def test_of_a_quadratic_those_walks_are_cut_that_change_the_gradient_by_more_than_twice_what_it_is():
    """Ten steps of length 1 on h/2 |x|^2 multiply the corrected gradient by k = (1 - (1 - h)^10)/(10 h)."""
    bends = {0.5: False, 1.9: False, 2.3: False, 2.5: True, -0.1: False, -0.3: True}
    h = torch.tensor(list(bends), dtype=torch.float64)[:, None]
    x, shift = normal(len(bends), 3), normal(len(bends), 3, seed=1)
    k = (1 - (1 - h) ** 10) / (10 * h)
    first, whole = h * x, k * (h * x + shift) - shift
    assert torch.allclose(walk(Slopes(lambda x: h * x), Zero(), x, shift, 1.0, 10), whole, rtol=1e-9)
    guarded = walk(Slopes(lambda x: h * x), Zero(), x, shift, 1.0, 10, guard=True)
    cut = torch.tensor(list(bends.values()))[:, None]
    assert torch.allclose(guarded, torch.where(cut, first, whole), rtol=1e-9)


@pytest.mark.parametrize("tau", [2, 3, 10])
def test_T05p_no_walk_on_a_convex_function_is_cut_up_to_the_longest_step_that_descends(tau):
    """log cosh has L = 1, and with eta = 2/L gradients do not grow."""
    x, shift = 3 * normal(500, 4), 0.9 * normal(500, 4, seed=1).tanh()
    plain, guarded = (walk(Slopes(torch.tanh), Zero(), x, shift, 2.0, tau, guard=guard) for guard in (False, True))
    assert torch.equal(plain, guarded)


def test_with_steps_that_suit_all_clients_it_changes_nothing():
    p = toy.problem()
    plain, guarded = (toy.final(p, Pledge(1 / p.smoothness().L, 5, guard=guard), 60) for guard in (False, True))
    assert np.array_equal(plain, guarded)
    assert toy.error(guarded, toy.solution(p)) < 1e-3


@pytest.mark.parametrize(
    ("algorithm", "graph"),
    [
        (Pledge(1.0, 10, 0.0, False, compressor_up=DENSE, compressor_down=DENSE), None),
        (Pledge(1.0, 10, 0.0, False, a=0.5, compressor_up=DENSE, compressor_down=DENSE), None),
        (PledgePeers(1.0, 10, 1.0, 0.0, compressor=DENSE), Complete(20)),
    ],
    ids=["server", "averaged", "peers"],
)
def test_one_client_that_runs_away_takes_all_along_unless_it_is_guarded(algorithm, graph):
    """19 clients of curvature 0.01 and one of 2.5, which is more than 2/eta: its memory of its gradient grows."""
    clients = [(np.sqrt([[0.01]]), np.array([0.1 * i])) for i in range(19)] + [(np.sqrt([[2.5]]), np.array([1.0]))]
    p = Linear(Federated.from_clients(clients), Squared())
    solution = p.solve().numpy()
    left, kept = (
        toy.error(toy.final(p, replace(algorithm, guard=guard), 60, graph), solution) for guard in (False, True)
    )
    assert kept < 1e-6 < 1e3 < left
