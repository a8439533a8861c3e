"""Our algorithms between functions of NVIDIA FLARE's Collab API: the iterates of `proxfed.run`, and lost messages.

Here the sites are in this process; test_nvflare_processes.py has its simulator.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from proxfed import RunError, run
from proxfed.algorithms import FedAvg, FedCEF, FedComposite, FedNAG, Pledge, Scaffold
from proxfed.compressors import TopK
from proxfed.nvflare import ClientHalf, Training, serve
from proxfed.participation import Dropouts
from proxfed.testing import toy as laws

P, N, D = laws.problem(), laws.N, laws.D


def module(x: torch.Tensor) -> nn.Module:
    layer = nn.Linear(D, 1, bias=False, dtype=torch.float64)
    layer.weight.data[:] = x
    return layer


def training(site: str) -> Training:
    A, b = map(torch.tensor, P.f.data.client(int(site[-1])))
    rows = DataLoader(TensorDataset(A, b), len(b))
    return Training(module(torch.zeros(D)), lambda s, b: nn.functional.softplus(-b * s[:, 0]).mean(), rows, l2=laws.L2)


class Replies(list):
    failures: dict[str, Exception]


class Sites:
    """As collab.clients is called; `lost`: (round, site) whose answer does not arrive."""

    def __init__(self, a: Any, lost: frozenset[tuple[int, int]] = frozenset()) -> None:
        self.lost, self.t = lost, 0
        self.halves = {f"site-{k}": ClientHalf(a, P.h, training) for k in range(N)}

    def __iter__(self) -> Any:
        return iter([SimpleNamespace(name=name) for name in reversed(self.halves)])

    def __call__(self, timeout: float) -> Sites:
        return self

    def answer(self, question: bytes) -> Replies:
        self.t += 1
        replies = Replies()
        replies.failures = {}
        for name, half in self.halves.items():
            reply = half.answer(name, question)
            if (self.t, int(name[-1])) in self.lost:
                replies.failures[name] = TimeoutError("no answer")
            else:
                replies.append((name, reply))
        return replies


def model(a: Any, rounds: int, sites: Sites) -> np.ndarray:
    return serve(a, P.h, module(P.start(0)), rounds, clients=sites)["weight"].numpy()[0]


ALGORITHMS = [
    FedComposite(1.5, 3),
    FedCEF(0.6, 3, compressor=TopK(k=3)),
    Pledge(2.5, 3),
    Scaffold(1.5, 3),
    FedNAG(0.3, 0.5, 3),
    FedAvg(0.5, 3),
]


@pytest.mark.parametrize("a", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_model_is_that_of_run(a: Any) -> None:
    ours = run(P, a, 4, progress=False).model.numpy()
    assert np.abs(model(a, 4, Sites(a)) - ours).max() <= 1e-12


def test_a_site_whose_answer_was_lost_goes_back() -> None:
    a, participation = Scaffold(1.5, 3), Dropouts(0.3)
    heard = {t: participation.arrived(t, range(N), 0) for t in range(1, 7)}
    lost = frozenset((t, k) for t in heard for k in range(N) if k not in heard[t])
    assert len(lost) > 3
    ours = run(P, a, 6, participation=participation, progress=False).model.numpy()
    assert np.abs(model(a, 6, Sites(a, lost)) - ours).max() <= 1e-12


def test_who_needs_everybody_stops() -> None:
    a = Pledge(2.5, 3)
    with pytest.raises(RunError, match="1 of 5 sites did not answer in round 2: no answer"):
        model(a, 4, Sites(a, frozenset({(2, 3)})))


def test_a_job_that_began_anew_says_so() -> None:
    a = Scaffold(1.5, 3)
    said: dict[str, Any] = {}
    with pytest.raises(RunError, match="site-1 has no state of round 2"):
        serve(a, P.h, module(P.start(0)), 4, clients=_Forgetful(a), watch=lambda t, counted: said.update(counted))
    assert said["clients"] == N


class _Forgetful(Sites):
    def answer(self, question: bytes) -> Replies:
        if self.t == 2:
            self.halves["site-1"] = ClientHalf(self.halves["site-1"].algorithm, P.h, training)
        return super().answer(question)
