"""The parts between algorithm and network: mixing, means, counting, measures, states, components."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from proxfed import Depositum, FedAvg, FedCEF, Federated, FedNAG, InputError, Linear, Squared
from proxfed.algorithms import Extra, FedDualAvg
from proxfed.compressors import COMPRESSORS, Identity, TopK
from proxfed.engine.halves import Oracle, Work, counted
from proxfed.engine.measures import Measures
from proxfed.engine.messages import WeightedSum, received
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.engine.states import flatten, put, restore, room, take
from proxfed.harness.compare import Diverged, run
from proxfed.participation import BernoulliSampling, UniformSampling
from proxfed.registry import build, describe
from proxfed.regularisers import L1, MCP, Box, Zero
from proxfed.schedules import ExponentialDecay, at
from proxfed.topologies import (
    TOPOLOGIES,
    Complete,
    ExponentialGraph,
    OnePeerExponentialGraph,
    RandomMatching,
    Ring,
    dense,
)
from proxfed.types import Facts, Graph, Local, Mean, Mix, Needs, Packed, Problem, Regulariser, Sends

from support.nested_state import Inner, Outer


@pytest.fixture
def problem() -> Problem[Linear]:
    rng = np.random.default_rng(0)
    sizes = [3, 8, 5, 8, 4, 9]
    clients = [(rng.normal(size=(m, 4)) + i, rng.normal(size=m) - i) for i, m in enumerate(sizes)]
    return Linear(Federated.from_clients(clients), Squared(), l2=0.1) + L1(0.1)


# ---- mixing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [Complete, Ring, ExponentialGraph, OnePeerExponentialGraph, RandomMatching])
def test_mix_is_the_product_with_W(make: type, n: int, dtype: torch.dtype) -> None:
    """Whether W is applied as a dense product, as gathered rows or as a mean."""
    topology = make(n)
    x = torch.randn(n, 7, dtype=dtype, generator=torch.Generator().manual_seed(n))
    network = Stacked(n, 7, topology)
    for t in range(5):
        expected = torch.tensor(dense(topology.W(t)), dtype=dtype) @ x
        torch.testing.assert_close(network.mix(x, t), expected)


@pytest.mark.parametrize(("graph", "megabytes"), [(Complete, 193.2), (Ring, 42.9)])
def test_traffic_of_depositum(graph: type, megabytes: float) -> None:
    """Ten clients exchange two vectors of the CNN of 268,362 parameters in float32."""
    network = Stacked(10, 268_362, graph(10))
    for _ in range(2):
        network.mix(torch.zeros(10, 268_362), 1)
    assert round(network.traffic.edge / 1e6, 1) == megabytes


def test_an_edge_carries_a_row_each_time() -> None:
    for dtype, size in ((torch.float32, 4), (torch.float64, 8)):
        network = Stacked(6, 11, Ring(6))
        for t in (1, 2):
            network.mix(torch.zeros(6, 11, dtype=dtype), t)
        assert network.traffic.edge == 2 * 6 * 2 * 11 * size


def tally(*messages: tuple) -> WeightedSum:
    total = WeightedSum()
    for message, w in messages:
        total.add(message, w)
    return total


def test_the_mean_is_weighted_and_keeps_the_form_of_the_message() -> None:
    network = Stacked(3, 2)
    w = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    x, y = torch.arange(6.0, dtype=torch.float64).view(3, 2), torch.arange(3.0, dtype=torch.float64).view(3, 1)
    mean, (single,) = network.mean(
        [tally(((x[:1], (y[:1],)), w[:1]), ((x[1:2], (y[1:2],)), w[1:2])), tally(((x[2:], (y[2:],)), w[2:]))]
    )
    torch.testing.assert_close(mean, w @ x / 6)
    torch.testing.assert_close(single, w @ y / 6)
    assert network.traffic.up == 9 * 8


def test_a_named_message_keeps_its_names_on_both_ways() -> None:
    class Named(NamedTuple):
        a: Tensor
        b: Tensor

    packed = TopK(k=3)(torch.randn(1, 10), np.zeros(1, np.uint64))
    down = received(Named(torch.ones(4), packed))
    assert torch.equal(down.b, packed.dense[0])
    assert down.a.shape == (4,)
    up = Stacked(2, 4).mean([tally((Named(torch.ones(2, 4), torch.zeros(2, 1)), torch.ones(2)))])
    assert torch.equal(up.a, torch.ones(4))


def test_a_packed_message_counts_its_own_bytes_and_reads_as_its_dense_value() -> None:
    network = Stacked(2, 10)
    v = torch.randn(2, 10, dtype=torch.float32)
    packed = TopK(k=3)(v, np.zeros(2, np.uint64))
    assert isinstance(packed, Packed)
    mean = network.mean([tally((packed, torch.ones(2)))])
    torch.testing.assert_close(mean, packed.dense.mean(0))
    assert network.traffic.up == 2 * 3 * 8
    assert 0 < network.traffic.best <= network.traffic.up


# ---- counting --------------------------------------------------------------------------------------------------------


def test_work_and_bytes_of_a_star_run(problem: Problem[Linear]) -> None:
    rows = run(problem, FedAvg(0.01, 3), 5, participation=UniformSampling(2)).rows
    assert rows[-1]["gradients"] == 5 * 2 * 3
    assert rows[-1]["proxes"] == 5 * 2 * 3
    assert rows[-1]["bytes_up"] == rows[-1]["bytes_down"] == 5 * 2 * problem.f.d * 8


def test_work_and_bytes_of_a_graph_run(problem: Problem[Linear]) -> None:
    rows = run(problem, Depositum(0.01, T0=3), 5, topology=Ring(6)).rows
    assert rows[-1]["gradients"] == (5 * 3 + 1) * 6
    assert rows[-1]["bytes_edge"] == 5 * 2 * 12 * problem.f.d * 8
    assert rows[-1]["bytes_up"] == rows[-1]["bytes_down"] == 0


def test_the_server_and_every_client_count_a_shared_prox(problem: Problem[Linear]) -> None:
    """FedCEF: each client computes prox(zt) and K - 1 local ones; the server one."""
    rows = run(problem, FedCEF(0.01, 3, compressor=Identity()), 4).rows
    assert rows[-1]["proxes"] == 4 * (6 * (1 + 2) + 1)


def test_rounds_without_participants_change_nothing() -> None:
    data = Federated.from_clients([(np.ones((2, 1)), [1.0, 2.0])] * 3)
    problem = Linear(data, Squared())
    rows = run(problem, FedAvg(0.1, 1), 30, participation=BernoulliSampling(0.05), seed=1).rows
    idle = [a["objective"] == b["objective"] for a, b in pairwise(rows)]
    assert any(idle)
    assert not all(idle)


# ---- what an algorithm sees ------------------------------------------------------------------------------------------


def test_size_weights_on_a_graph_scale_the_losses(problem: Problem[Linear]) -> None:
    weighted = Linear(problem.f.data, Squared(), weighting="size")
    run = run_of(weighted + Zero(), Depositum(0.01), Stacked(6, weighted.d, Ring(6)))
    x = torch.randn(weighted.d, dtype=torch.float64)
    seen = run.clients.oracle(1, range(6), Work()).full_grad(x).mean(0)
    torch.testing.assert_close(seen, weighted.weights @ weighted.local(1, range(6)).full_grad(x))


def test_h_enters_a_smooth_method_through_its_subgradient(problem: Problem[Linear]) -> None:
    run = run_of(problem, FedNAG(0.01, 0.5, 2), Stacked(6, problem.f.d))
    x = torch.randn(6, problem.f.d, dtype=torch.float64)
    torch.testing.assert_close(
        run.clients.oracle(1, range(6), Work()).grad(x, 0), problem.f.local(1, range(6)).grad(x, 0) + 0.1 * x.sign()
    )
    assert isinstance(run.clients.h, Zero)


def test_counting_does_not_change_what_is_counted(problem: Problem[Linear]) -> None:
    work = Work()
    f, x = problem.f.local(1, range(6)), torch.randn(6, problem.f.d, dtype=torch.float64)
    assert torch.equal(Oracle(f, work).grad(x, 0), f.grad(x, 0))
    assert torch.equal(counted(problem.h, work, 6).prox(x, 0.3), problem.h.prox(x, 0.3))
    assert (work.gradients, work.proxes) == (6, 6)


def test_without_a_regulariser_there_are_no_proximal_steps_to_count(problem: Problem[Linear]) -> None:
    run = run_of(replace(problem, h=Zero()), FedAvg(0.01, 3), Stacked(6, problem.f.d))
    run.round(1)
    assert (run.work.gradients, run.work.proxes) == (18, 0)


# ---- measures --------------------------------------------------------------------------------------------------------


def test_measures_are_what_they_say(problem: Problem[Linear]) -> None:
    network, x = Stacked(6, problem.f.d), torch.tensor([0.5, 0.0, -1.0, 2.0], dtype=torch.float64)
    best = problem.solve()
    rows = torch.randn(6, 4, dtype=torch.float64)
    m = Measures(problem, network, best)(x, {"x": rows})
    A, b = problem.f.A.numpy(), problem.f.b.numpy()
    phi, gradient = 0.1 * np.abs(x.numpy()).sum() + 0.05 * (x.numpy() ** 2).sum(), 0.1 * x.numpy()
    r = A @ x.numpy() - b
    phi += (r**2).mean() / 2
    gradient = gradient + A.T @ r / len(r)
    assert m["objective"] == pytest.approx(phi, rel=1e-13)
    assert m["nonzeros"] == 3
    s = 1 / problem.f.smoothness().L_f
    v = x.numpy() - s * gradient
    map_ = (x.numpy() - np.sign(v) * np.maximum(np.abs(v) - 0.1 * s, 0)) / s
    assert m["stationarity"] == pytest.approx((map_**2).sum(), rel=1e-12)
    assert m["consensus"] == pytest.approx(float((rows - rows.mean(0)).square().sum() / 6), rel=1e-12)
    at_best = Measures(problem, network, best)(best)
    assert at_best["gap"] == 0
    assert at_best["error"] == 0
    assert at_best["stationarity"] < 1e-20


# ---- states ----------------------------------------------------------------------------------------------------------


def test_rows_of_a_nested_state() -> None:
    x = torch.arange(12.0).view(4, 3)
    state = Outer(x.clone(), Inner(x + 1, (x + 2, ())))
    part = take(state, slice(1, 3))
    put(state, slice(1, 3), Outer(part.x * 0, Inner(part.inner.a, (part.inner.b[0] + 1, ()))))
    assert state.x[1:3].sum() == 0
    assert torch.equal(state.inner.b[0][1:3], x[1:3] + 3)
    assert torch.equal(state.inner.b[0][[0, 3]], x[[0, 3]] + 2)


def test_a_state_is_flattened_and_restored() -> None:
    x = torch.arange(6.0).view(2, 3)
    state = Outer(x, Inner(x + 1, (x + 2, ())))
    named = flatten(state)
    assert set(named) == {"state.x", "state.inner.a", "state.inner.b.0"}
    again = restore(room(state, 2), named)
    assert isinstance(again.inner, Inner)
    for a, b in zip(flatten(again).values(), named.values(), strict=True):
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()


# ---- components ------------------------------------------------------------------------------------------------------


def test_a_described_component_builds_itself() -> None:
    for registry, table in [
        (COMPRESSORS, {"name": "top_k", "k": 3}),
        (TOPOLOGIES, {"name": "torus", "n": 12, "rows": 3, "cols": 4}),
    ]:
        made = build(registry, table, "here")
        assert build(registry, describe(made, registry), "there") == made


def test_a_schedule_is_a_step_size(problem: Problem[Linear]) -> None:
    """A constant schedule changes nothing; a decaying one is the step of its round."""
    constant = run(problem, FedAvg(ExponentialDecay(0.01, 1.0), 2), 5).model
    assert torch.equal(constant, run(problem, FedAvg(0.01, 2), 5).model)
    assert at(ExponentialDecay(0.5, 0.9), 3) == pytest.approx(0.5 * 0.81)
    assert not torch.equal(constant, run(problem, FedAvg(ExponentialDecay(0.01, 0.9), 2), 5).model)


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_refusals_before_anything_is_computed(problem: Problem[Linear]) -> None:
    def with_h(h: object) -> Problem[Linear]:
        return Linear(problem.f.data, Squared()) + h  # type: ignore[operator]

    with pytest.raises(InputError, match="works on a graph: give a topology"):
        run(problem, Depositum(0.1), 1)
    with pytest.raises(InputError, match="the topology has 5 nodes, but the problem 6 clients"):
        run(problem, Depositum(0.1), 1, topology=Ring(5))
    with pytest.raises(InputError, match="prox steps up to 3, but MCP allows only steps < 2"):
        run(with_h(MCP(0.1, 2.0)), Depositum(3.0), 1, topology=Ring(6))
    with pytest.raises(InputError, match="FedDualAvg needs a convex regulariser, which MCP is not"):
        run(with_h(MCP(0.1, 2.0)), FedDualAvg(0.1, 2), 1)
    with pytest.raises(InputError, match="Extra needs the same graph in every round"):
        run(with_h(Zero()), Extra(0.1), 1, topology=RandomMatching(6))
    with pytest.raises(InputError, match="but W must be symmetric"):
        run(with_h(Zero()), Extra(0.1), 1, topology=ExponentialGraph(6))
    with pytest.raises(InputError, match="cannot keep to the constraint Box"):
        run(with_h(Box(0.0, 1.0)), FedNAG(0.1, 0.5, 1), 1)


def test_share_is_the_weight_of_the_cohort(problem: Problem[Linear]) -> None:
    """So that share times the mean of their messages is their part of the sum over all clients."""
    seen: list[float] = []

    class Spy(FedAvg):
        def server(self, s: tuple, y: Tensor, h: Regulariser, share: float) -> tuple:
            seen.append(share)
            return FedAvg.server(self, s, y, h, share)

    weighted = Linear(problem.f.data, Squared(), weighting="size")
    run = run_of(weighted + Zero(), Spy(0.01, 1), Stacked(6, weighted.d), UniformSampling(2), seed=3)
    for t in range(1, 6):
        run.round(t)
    expected = [float(weighted.weights[UniformSampling(2)(t, 6, 3)].sum()) for t in range(1, 6)]
    assert seen == pytest.approx(expected)
    assert len(set(seen)) > 1


def test_a_participation_may_return_a_range_of_some(problem: Problem[Linear]) -> None:
    few = replace(problem, h=Zero())
    by_range = run(few, FedAvg(0.01, 2), 3, participation=lambda t, n, seed: range(2))
    by_array = run(few, FedAvg(0.01, 2), 3, participation=lambda t, n, seed: np.arange(2))
    assert by_range.rows[-1]["gradients"] == by_array.rows[-1]["gradients"] == 3 * 2 * 2
    assert torch.equal(by_range.model, by_array.model)


# ---- divergence ------------------------------------------------------------------------------------------------------


class Apart(NamedTuple):
    x: Tensor


class Quarrel(Graph):
    """Clients that run from each other, while their mean stays where it is."""

    needs = Needs(composite=False)
    facts = Facts(Sends(edge=1), exact=False)

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> Apart:
        g = f.grad(f.spread(x0), 0)
        return Apart(x0 + g - mix(g))

    def step(self, s: Apart, f: Local, h: Regulariser, mix: Mix) -> Apart:
        return Apart(s.x + 10 * (s.x - mix(s.x)))

    def model(self, s: Apart, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)


def test_clients_that_diverge_are_noticed_though_their_mean_does_not(problem: Problem[Linear]) -> None:
    quiet = replace(problem, h=Zero())
    rows = run(quiet, Quarrel(), 10, topology=Complete(quiet.f.n)).rows
    assert rows[-1]["consensus"] > 1e15
    assert rows[-1]["objective"] == pytest.approx(rows[0]["objective"], rel=0.01)
    lost = run(quiet, Quarrel(), 50, topology=Complete(quiet.f.n))
    assert lost.status == "diverged"
    assert "from their mean in round 1" in lost.message
    assert 11 <= len(lost.rows) < 51
    with pytest.raises(Diverged, match="from their mean in round 1") as diverged:
        run(quiet, Quarrel(), 50, topology=Complete(quiet.f.n), throw=True)
    assert len(diverged.value.result.rows) == len(lost.rows)
