"""Local Adam is torch's Adam or AdamW at every client, and the mean of what they reach."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from proxfed import run
from proxfed.algorithms import LocalAdam
from proxfed.errors import InputError
from proxfed.regularisers import Zero

from support import toy_problems as toy


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_it_is_torchs_optimiser_at_every_client(decay: float) -> None:
    problem, eta, K = toy.problem(h=Zero()), 0.05, 4
    f, rounds = problem.f, 3
    found = run(problem, LocalAdam(eta, K, 0.7, 0.8, 0.95, 1e-6, decay), rounds=rounds, progress=False).model
    x = problem.start(0)
    for t in range(1, rounds + 1):
        ends = []
        for i in range(f.n):
            y = nn.Parameter(x.clone())
            optimiser = torch.optim.AdamW([y], eta, (0.8, 0.95), 1e-6, decay)
            for k in range(K):
                y.grad = f.local(t, [i]).grad(y.detach(), k)[0]
                optimiser.step()
            ends.append(y.detach())
        x = x + 0.7 * (f.weights @ torch.stack(ends) - x)
    torch.testing.assert_close(found, x, rtol=1e-12, atol=1e-14)


def test_without_memory_and_with_a_large_epsilon_it_is_fedavg() -> None:
    from proxfed import FedAvg

    problem, epsilon = toy.problem(h=Zero()), 1e9
    adam = LocalAdam(0.5 * epsilon, 3, beta1=0.0, beta2=0.0, epsilon=epsilon)
    one, two = (run(problem, a, rounds=5, progress=False).model for a in (adam, FedAvg(0.5, 3)))
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("wrong", "name"), [({"beta2": 1.0}, "beta2"), ({"decay": -1.0}, "decay"), ({"K": 0}, "K")])
def test_refusals(wrong: dict[str, float], name: str) -> None:
    with pytest.raises(InputError, match=name):
        LocalAdam(**({"eta": 0.1, "K": 2} | wrong))
