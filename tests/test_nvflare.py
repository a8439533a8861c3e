"""Our algorithms between functions of NVIDIA FLARE's Collab API: the iterates of `proxfed.run`, and lost messages.

Here the sites are in this process; test_nvflare_processes.py has its simulator.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from proxfed import InputError, RunError, run
from proxfed.algorithms import (
    ALGORITHMS as REGISTERED,
)
from proxfed.algorithms import (
    DSGT,
    FedAvg,
    FedCEF,
    FedComposite,
    FedNAG,
    Pledge,
    PledgePeers,
    Scaffold,
)
from proxfed.compressors import TopK
from proxfed.engine.bundle import bundle
from proxfed.nvflare import ClientHalf, PeerHalf, Training, serve, serve_peers
from proxfed.participation import Dropouts
from proxfed.silos.wire.message import canonical, pack
from proxfed.testing import toy as laws
from proxfed.topologies import Complete, LinkFailures, OnePeerExponentialGraph, Ring
from proxfed.types import Graph

from support.algorithm_settings import algorithm

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


# ---- peers -----------------------------------------------------------------------------------------------------------


class Peers:
    """Sites that call each other, each in a thread of its own; `damage` changes what one says to another."""

    def __init__(self, a: Any, topology: Any, damage: Any = lambda who, message: message, timeout: float = 30) -> None:
        self.halves = {f"site-{k}": PeerHalf(a, P.h, topology, training, timeout=timeout) for k in range(N)}
        self.damage = damage

    def __iter__(self) -> Any:
        return iter([SimpleNamespace(name=name) for name in reversed(self.halves)])

    def __call__(self, timeout: float) -> Peers:
        return self

    def walk(self, question: bytes) -> Replies:
        replies = Replies()
        replies.failures = {}
        with ThreadPoolExecutor(N) as pool:
            walks = {name: pool.submit(self._walk, name, question) for name in self.halves}
        for name, walk in walks.items():
            if (e := walk.exception()) is not None:
                replies.failures[name] = e
            else:
                replies.append((name, walk.result()))
        return replies

    def _walk(self, name: str, question: bytes) -> bytes:
        return self.halves[name].walk(name, question, lambda names: _Some(self, name, names))


class _Some:
    """Some of the sites, as one of them calls them."""

    def __init__(self, sites: Peers, caller: str, names: list[str]) -> None:
        self.sites, self.caller, self.names = sites, caller, names

    def __call__(self, timeout: float) -> _Some:
        return self

    def hear(self, message: bytes) -> Replies:
        replies = Replies()
        replies.failures = {}
        for name in self.names:
            if (sent := self.sites.damage(self.caller, message)) is not None:
                self.sites.halves[name].hear(self.caller, sent)
        return replies


def walked(a: Any, rounds: int, topology: Any, **how: Any) -> np.ndarray:
    return serve_peers(a, P.h, module(P.start(0)), topology, rounds, clients=Peers(a, topology, **how))["weight"][
        0
    ].numpy()


@pytest.mark.parametrize("name", [name for name in REGISTERED if issubclass(REGISTERED[name], Graph)])
def test_peers_have_the_model_of_run(name: str) -> None:
    a = algorithm(name)
    ours = run(P, a, 3, topology=Ring(N), progress=False).model.numpy()
    assert np.abs(walked(a, 3, Ring(N)) - ours).max() <= 1e-12


@pytest.mark.parametrize("topology", [Complete(N), LinkFailures(Ring(N), 0.3), OnePeerExponentialGraph(N)], ids=repr)
def test_peers_on_other_graphs(topology: Any) -> None:
    a = DSGT(0.3)
    ours = run(P, a, 5, topology=topology, progress=False).model.numpy()
    assert np.abs(walked(a, 5, topology) - ours).max() <= 1e-12


def test_bytes_of_peers_are_those_of_the_compressor() -> None:
    a, counted = PledgePeers(0.3, compressor=TopK(k=8)), {}
    serve_peers(a, P.h, module(P.start(0)), Ring(N), 4, clients=Peers(a, Ring(N)), watch=counted.update)
    best = run(P, a, 4, topology=Ring(N), progress=False).rows[-1]["bytes_best"]
    messages = 4 * 2 * N
    head = 200  # of a message: the walk's digest, where it belongs, its form
    assert best < counted["bytes"] <= best + head * messages


def _other_model(message: bytes) -> bytes:
    from proxfed.engine.bundle import unbundle

    form, body = pack(torch.zeros(1, D + 1, dtype=torch.float64), [])
    return bundle([unbundle(message)[0], form.encode(), body])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda message: None, "round 1: nothing came from site-3 in 0.2 seconds"),
        (lambda message: message[:-3], "its messages have"),
        (lambda message: bundle([canonical({"walk": "x", "round": 1})]), "site-3 sent no message of ours"),
        (_other_model, "round 1: the message of peer 3 is none of DSGT for this model"),
        (lambda message: message[:-8] + np.array([np.nan]).tobytes(), "peer 3 sent numbers that are not finite"),
    ],
    ids=["silent", "cut", "no message", "other model", "nan"],
)
def test_a_peer_that_says_something_else_ends_the_walk(damage: Any, says: str) -> None:
    peers = Peers(DSGT(0.3), Ring(N), damage=lambda who, m: damage(m) if who == "site-3" else m, timeout=0.2)
    failures: dict[str, Exception] = {}
    peers.walk, walk = lambda question: _noted(failures, walk(question)), peers.walk  # type: ignore[method-assign]
    with pytest.raises(RunError, match="5 of 5 sites did not come to the end: round"):
        serve_peers(DSGT(0.3), P.h, module(P.start(0)), Ring(N), 2, clients=peers)
    assert any(says in str(failure) for failure in failures.values()), failures


def _noted(failures: dict[str, Exception], replies: Replies) -> Replies:
    failures |= replies.failures
    return replies


def test_a_sender_cannot_fill_the_memory() -> None:
    half = PeerHalf(DSGT(0.3), P.h, Ring(N), training)
    message = [bundle([canonical({"walk": "w", "round": t, "step": 0}), b".", b""]) for t in range(65)]
    for t in range(64):
        half.hear("site-1", message[t])
    with pytest.raises(RunError, match="site-1 sent 64 messages that nobody has asked for yet"):
        half.hear("site-1", message[64])
    half.hear("site-2", message[0])


@pytest.mark.parametrize(
    ("a", "topology", "says"),
    [
        (FedAvg(0.5, 3), Ring(N), "FedAvg has a server: peers run algorithms on a graph"),
        (DSGT("auto"), Ring(N), "DSGT: alpha = 'auto': steps are found in a simulation only"),
        (DSGT(0.3), Ring(N + 1), "the topology has 6 nodes, but the problem 5 clients"),
        (PledgePeers(0.3), OnePeerExponentialGraph(N), "PledgePeers needs"),
    ],
)
def test_peers_are_refused_before_anything_is_sent(a: Any, topology: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        walked(a, 1, topology)
