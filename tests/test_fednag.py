"""FedNAG against its specification: the recursion itself, what it reduces to, how far it strays between rounds."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from proxfed import FedAvg, Federated, FedNAG, Linear
from proxfed.algorithms import FedNAGPeers
from proxfed.engine.halves import Oracle, Work
from proxfed.errors import InputError
from proxfed.papers.bounds.fednag import h, virtual
from proxfed.regularisers import L1, Zero
from proxfed.schedules import ExponentialDecay
from proxfed.topologies import Complete, Every
from proxfed.types import Problem

from support import numpy_references as ref
from support import toy_problems as toy

N = toy.N
WEIGHTS = np.array(toy.RAGGED) / np.sum(toy.RAGGED)


def smooth(**options):
    return toy.problem(h=Zero(), **options)


def ragged(**options):
    return smooth(sizes=toy.RAGGED, weighting="size", **options)


def rounds(p, algorithm, how_many):
    """Server states after rounds 1, 2, ..."""
    return (state.server for t, state in toy.trajectory(p, algorithm, how_many) if t > 0)


@pytest.mark.parametrize("batch", [None, 6])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("tau", [1, 2, 5])
def test_is_the_recursion_of_the_paper(tau, gamma, batch):
    p = ragged(batch=batch)
    expected = ref.fednag(toy.gradient(p), N, toy.start(p), eta=0.6, gamma=gamma, tau=tau, p=WEIGHTS)
    for state, reference in zip(rounds(p, FedNAG(0.6, gamma, tau), 25), expected, strict=False):
        assert toy.gap(state.w, reference.w) < 1e-14
        assert toy.gap(state.v, reference.v) < 1e-14


def test_the_step_may_change_with_the_rounds():
    """What is averaged is v, which has the step inside, not torch's buffer -v/eta."""
    p, eta = smooth(), ExponentialDecay(0.6, 0.9)
    expected = ref.fednag(toy.gradient(p), N, toy.start(p), eta=lambda t: 0.6 * 0.9 ** (t - 1), gamma=0.8, tau=3)
    for state, reference in zip(rounds(p, FedNAG(eta, 0.8, 3), 25), expected, strict=False):
        assert toy.gap(state.w, reference.w) < 1e-14


def test_h_enters_through_its_subgradient():
    p = toy.problem(h=L1(0.02))
    plain = toy.gradient(p)
    grad = lambda i, x, t, k: plain(i, x, t, k) + 0.02 * np.sign(x)
    expected = ref.fednag(grad, N, toy.start(p), eta=0.6, gamma=0.8, tau=3)
    for state, reference in zip(rounds(p, FedNAG(0.6, 0.8, 3), 10), expected, strict=False):
        assert toy.gap(state.w, reference.w) < 1e-14


@pytest.mark.parametrize("gamma", [0.5, 0.9])
@pytest.mark.parametrize("make", [smooth, ragged])
def test_T03a_one_local_step_is_one_machine(make, gamma):
    p = make()
    one = ref.nesterov(toy.mean_gradient(p), toy.start(p), eta=0.6, gamma=gamma)
    for state, reference in zip(rounds(p, FedNAG(0.6, gamma, 1), 80), one, strict=False):
        assert toy.gap(state.w, reference.w) < 1e-14
        assert toy.gap(state.v, reference.v) < 1e-14


def test_T03b_is_the_SGD_of_torch_with_nesterov_momentum():
    """torch's buffer is -v/eta."""
    p, eta, gamma = smooth(), 0.6, 0.9
    clients = [tuple(map(torch.tensor, p.f.data.client(i))) for i in range(N)]
    x = torch.nn.Parameter(p.start(0))
    optimiser = torch.optim.SGD([x], lr=eta, momentum=gamma, nesterov=True, dampening=0)
    for state in rounds(p, FedNAG(eta, gamma, 1), 80):
        optimiser.zero_grad()
        losses = [torch.nn.functional.softplus(-b * (A @ x)).mean() for A, b in clients]
        (sum(losses) / N + p.f.l2 / 2 * x.square().sum()).backward()
        optimiser.step()
        assert toy.gap(state.w, x.detach().numpy()) < 1e-14
        assert toy.gap(-state.v / eta, optimiser.state[x]["momentum_buffer"].numpy()) < 1e-14


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("tau", [1, 4])
def test_T03c_without_momentum_it_is_FedAvg(tau, batch):
    p = ragged(batch=batch)
    expected = ref.fedavg(toy.gradient(p), ref.prox_zero, N, toy.start(p), eta=0.8, K=tau, p=WEIGHTS)
    ours, theirs = rounds(p, FedNAG(0.8, 0.0, tau), 30), rounds(p, FedAvg(0.8, tau), 30)
    for a, b, reference in zip(ours, theirs, expected, strict=False):
        assert toy.gap(a.w, reference.x) < 1e-14
        assert toy.gap(b.x, reference.x) < 1e-14


@pytest.mark.parametrize("copies", [1, 4])
@pytest.mark.parametrize("tau", [1, 2, 7])
def test_T03d_one_client_or_identical_ones_are_one_machine(tau, copies):
    p = smooth()
    p = Problem(Linear(Federated.from_clients([p.f.data.client(0)] * copies), p.f.loss, l2=p.f.l2), p.h, p.x0)
    one = islice(ref.nesterov(toy.mean_gradient(p), toy.start(p), eta=0.6, gamma=0.9), tau - 1, None, tau)
    for state, reference in zip(rounds(p, FedNAG(0.6, 0.9, tau), 20), one, strict=False):
        assert toy.gap(state.w, reference.w) < 1e-14
        assert toy.gap(state.v, reference.v) < 1e-14


@pytest.mark.parametrize(("eta", "gamma"), [(0.2, 0.9), (1.0, 0.5), (2.0, 0.8)])
def test_T03e_strays_from_one_machine_by_no_more_than_the_bound(eta, gamma):
    p, L, tau = ragged(), ragged().f.smoothness().L, 8
    assert L * eta * (1 + gamma) <= 1
    for x in (0, 1):
        assert abs(h(eta, gamma, x, L, 1.0)) < 1e-12 / (eta * L)
    run, grad, mean = toy.begin(p, FedNAG(eta, gamma, tau)), toy.gradient(p), toy.mean_gradient(p)
    for t in range(1, 9):
        w, v = run.state.server.w, run.state.server.v
        one = [state.w for state in islice(ref.nesterov(mean, w.numpy(), eta=eta, gamma=gamma, v0=v.numpy()), tau)]
        path = [w.numpy(), *one]
        for (machine, _), reference in zip(virtual(run.algorithm, p, run.state.server, tau), one, strict=True):
            assert toy.gap(machine.numpy(), reference) < 1e-14
        for x in range(1, tau + 1):
            f = Oracle(p.f.local(t, range(N)), Work())
            _, (ws, _) = FedNAG(eta, gamma, x).client((), (w, v), f, Zero())
            far = np.linalg.norm(WEIGHTS @ ws.numpy() - one[x - 1])
            own = [max(np.linalg.norm(grad(i, y) - mean(y)) for y in path[:x]) for i in range(N)]
            allowed = h(eta, gamma, x, L, float(WEIGHTS @ np.array(own)))
            assert far <= allowed + 1e-14
            assert x == 1 or far > 1e-6 * allowed > 0
        run.round(t)


def test_more_local_steps_leave_a_larger_bias():
    p = smooth()
    x = toy.solution(p, ref.prox_zero)
    floors = [toy.error(toy.final(p, FedNAG(0.2, 0.9, tau), 600 // tau), x) for tau in (1, 2, 10)]
    assert floors[0] < 1e-12
    assert 1e-4 < floors[1] < floors[2] / 3


@pytest.mark.parametrize("output", ["last", "best"])
def test_the_model_is_the_last_or_the_best_aggregated_point(output):
    """Of w(k tau), k >= 1. f is looked at where a round begins, so the best is of all but the newest."""
    p = ragged()
    run = toy.begin(p, FedNAG(0.9, 0.95, 4, output))  # overshoots: the last point is not the best
    points, values = [], []
    for t in range(1, 31):
        run.round(t)
        points.append(run.state.server.w.numpy().copy())
        values.append(toy.objective(p, points[-1]))
        best = points[int(np.argmin(values[:-1]))] if t > 1 else points[0]
        np.testing.assert_array_equal(run.model().numpy(), points[-1] if output == "last" else best)
    assert 0 < np.argmin(values) < len(values) - 1


def test_the_start_is_not_among_the_outputs():
    p = ragged()
    run = toy.begin(p.starting_at(torch.as_tensor(p.solve())), FedNAG(3.0, 0.9, 4, "best"))
    for t in range(1, 4):
        run.round(t)
        assert toy.objective(p, run.model().numpy()) > toy.objective(p, p.solve().numpy())


# ---- step sizes of the theory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_theory_keeps_to_the_inequality_of_the_theorem(gamma):
    p = smooth()
    a = FedNAG.theory(toy.constants(p, 100), 4, gamma)
    assert (a.tau, a.gamma) == (4, gamma)
    assert 0 < p.f.smoothness().L * a.eta * (1 + gamma) <= 1 + 1e-12


@pytest.mark.parametrize(("gamma", "tau"), [(0.0, 1), (0.5, 1), (0.5, 3)])
def test_theory_descends(gamma, tau):
    p = smooth()
    values = [toy.objective(p, p.start(0))]
    values += [toy.objective(p, s.w) for s in rounds(p, FedNAG.theory(toy.constants(p, 60), tau, gamma), 60)]
    best = toy.objective(p, toy.solution(p, ref.prox_zero))
    assert max(np.diff(values)) <= 1e-2 * (values[0] - best)
    assert values[-1] < values[0] - 0.9 * (values[0] - best)
    assert min(values) >= best - 1e-15


@pytest.mark.parametrize(
    ("field", "value"), [("eta", 0.0), ("gamma", 1.1), ("gamma", -0.1), ("tau", 0), ("output", "first")]
)
def test_refuses_what_makes_no_sense(field, value):
    with pytest.raises(InputError, match=field):
        FedNAG(**({"eta": 0.5, "gamma": 0.9, "tau": 2} | {field: value}))


@pytest.mark.parametrize(("tau", "gamma"), [(1, 0.9), (4, 0.5), (4, 1.0)])
def test_T03f_peers_that_meet_in_every_tau_th_round_are_FedNAG_with_rows_in_between(tau, gamma):
    """At aggregations the same points, and in between w(t), the mean of the workers."""
    p = smooth()
    grad = toy.gradient(p)
    run, star = toy.begin(p, FedNAGPeers(0.6, gamma), Every(Complete(N), tau)), toy.begin(p, FedNAG(0.6, gamma, tau))
    w, v = np.tile(toy.start(p), (N, 1)), np.zeros((N, p.f.d))
    for t in range(1, 6 * tau + 1):
        g = np.array([grad(i, w[i]) for i in range(N)])
        v = gamma * v - 0.6 * g
        w = w + gamma * v - 0.6 * g
        run.round(t)
        assert toy.gap(run.model().numpy(), w.mean(0)) < 1e-13
        if t % tau:
            assert toy.gap(run.state.x.numpy(), w) < 1e-13
            assert run.network.traffic.edge == 8 * p.f.d * 2 * N * (N - 1) * (t // tau)
        else:
            w, v = np.tile(w.mean(0), (N, 1)), np.tile(v.mean(0), (N, 1))
            star.round(t // tau)
            assert toy.gap(run.model().numpy(), star.model().numpy()) < 1e-13
            assert toy.gap(run.state.v.numpy(), star.state.server.v.expand(N, -1).numpy()) < 1e-13
