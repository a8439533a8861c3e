"""Steps that are found on the way: what a race costs and finds, how it goes on, and what a run says of its steps."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from proxfed import (
    Depositum,
    Entry,
    FedAvg,
    FedComposite,
    Federated,
    FedNAG,
    InputError,
    Linear,
    Logistic,
    compare,
    run,
)
from proxfed.algorithms import (
    ALGORITHMS,
    BEER,
    EF21,
    FISTA,
    CompressedDownlink,
    DFedADMM,
    FastFedDA,
    FedADMM,
    FedDualAvg,
    FedOpt,
    FedSpeed,
    FedSplit,
    NaiveComposite,
    Scaffold,
)
from proxfed.compressors import ErrorBoundedQuantiser, TopK
from proxfed.engine import race
from proxfed.engine.network import Stacked
from proxfed.engine.race import BOLD, GUESSES, KEPT, LANES, RATIO, TIMID, Race
from proxfed.participation import UniformSampling
from proxfed.problems.neural.neural import Neural
from proxfed.regularisers import L1, MCP, Zero
from proxfed.report.columns import show
from proxfed.schedules import at
from proxfed.testing import runs
from proxfed.testing.algorithms import with_step
from proxfed.topologies import Ring, SpanningTree
from proxfed.types import AUTO, Algorithm, Graph, Problem, Star

from support import toy_problems as toy
from support.algorithm_settings import SETTINGS
from support.cli import proxfed, refused
from support.resumed import same
from support.small_experiment import Crash, execute, small, write


def unchosen(algorithm: Algorithm) -> Algorithm:
    """The same with every step to be found."""
    return replace(algorithm, **dict.fromkeys(algorithm.steps_for(1.0), AUTO))


def start(problem: Problem[Linear], algorithm: Any) -> Race:
    return Race(problem, algorithm, Stacked(problem.f.n, problem.f.d))


# ---- before it is found ------------------------------------------------------------------------------------------


def test_an_algorithm_with_steps_to_find_is_its_own_class() -> None:
    a = FedAvg(eta="auto", K=5)
    assert type(a) is FedAvg
    assert (a.K, a.eta, a.to_find) == (5, "auto", ("eta",))
    assert a.resolve(eta=0.3) == FedAvg(0.3, 5)
    assert FedAvg(0.3, 5).to_find == ()
    b = FedADMM("auto", "auto", 4)
    assert b.to_find == ("eta_l", "eta")
    assert b.with_local_steps(0.5) == FedADMM(0.5, 1 / 2, 4)
    assert b.resolve(eta=3.0).to_find == ("eta_l",)
    down = CompressedDownlink(FedComposite("auto", 3), TopK(k=2))
    assert down.to_find == ("eta",)
    assert down.resolve(eta=1.0) == CompressedDownlink(FedComposite(1.0, 3), TopK(k=2))
    with pytest.raises(InputError, match="FedAvg: K cannot be resolved: it is not 'auto'"):
        a.resolve(K=3)


def test_nothing_but_a_race_runs_steps_that_are_to_be_found() -> None:
    p = toy.problem()
    with pytest.raises(InputError, match="FedADMM: eta_l = 'auto' and eta = 'auto': only a `Race` finds steps"):
        runs.begun(FedADMM("auto", "auto", 3), p)
    with pytest.raises(InputError, match="a step that is 'auto' has to be found first"):
        at("auto", 1)


@pytest.mark.parametrize("value", ["0.1", "Auto", True, 0, -1.0, float("nan"), float("inf"), None, float])
def test_steps_are_numbers_schedules_or_auto(value: Any) -> None:
    with pytest.raises(InputError, match=r"^FedAvg: eta = .* must be a finite number > 0, a schedule .* or 'auto'$"):
        FedAvg(value, 2)
    with pytest.raises(InputError, match=r"^FedComposite: eta = .* must be a finite number > 0, or 'auto'$"):
        FedComposite(value, 2)


def test_numbers_of_numpy_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for a in (FedAvg(0.5, 2.0), FedAvg(np.float32(0.5), np.int64(2)), FedAvg(np.float64(0.5), np.float32(2))):
        assert a == FedAvg(0.5, 2)
        assert (type(a.eta), type(a.K)) == (float, int)
    for K in (2.5, True, "2"):
        with pytest.raises(InputError, match=r"FedAvg: K = .* must be a whole number >= 1"):
            FedAvg(0.5, K)
    file = write(tmp_path / "a.toml", small(seeds=[0], algorithms=[{"name": "fedavg", "eta": 0.5, "K": 2.0}]))
    assert proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"))[0] == 0
    assert "K = 2\n" in (tmp_path / "run" / "config.toml").read_text()


def test_where_a_penalty_is_given_longer_steps_are_not_tried() -> None:
    p = toy.problem(h=Zero())
    going = start(p, FedSpeed("auto", 3, lam=0.1 / p.f.smoothness().L))
    assert 0 < len(going.lanes) < len(LANES)
    assert all(lane.run.algorithm.eta <= lane.run.algorithm.lam for lane in going.lanes)


# ---- what it finds -----------------------------------------------------------------------------------------------


def test_the_winner_has_lost_no_round() -> None:
    """Its iterates are those of the algorithm that was given the step."""
    p = toy.problem()
    found = run(p, FedComposite(eta="auto", tau=3), 16)
    given = run(p, found.algorithm, 16)
    assert found.algorithm.tau == 3
    assert torch.equal(found.model, given.model)
    assert found.message.startswith(f"found eta = {found.algorithm.eta:.4g}; the search sent ")


def test_bytes_and_gradients_of_all_lanes_are_counted() -> None:
    """Those of every lane in every round, and of the looks after which lanes drop out."""
    p = toy.problem()
    single = run(p, FedComposite(eta=1.0, tau=3), 16).rows[-1]
    going, lane_rounds, judged = start(p, FedComposite("auto", 3)), 0, 0
    assert len(going.lanes) == len(LANES)
    for t in range(1, 17):
        lane_rounds += len(going.lanes)
        judged += len(going.lanes) if t in KEPT else 0
        going.round(t)
        assert t not in KEPT or len(going.lanes) <= KEPT[t] + 4  # the timid and the bold ones, and a challenger
    spent, size = going.counters(), p.f.weights.element_size()
    assert spent["bytes_up"] == single["bytes_up"] // 16 * lane_rounds + judged * p.f.n * size
    assert spent["bytes_down"] == single["bytes_down"] // 16 * lane_rounds + judged * p.f.n * p.f.d * size
    assert spent["gradients"] == single["gradients"] // 16 * lane_rounds + judged * p.f.n


@pytest.mark.parametrize(
    ("algorithm", "topology"),
    [(FedComposite("auto", 3), None), (FedComposite("auto", 3), SpanningTree(Ring(5))), (Depositum("auto"), Ring(5))],
    ids=["server", "tree", "peers"],
)
def test_the_end_says_what_the_search_cost(algorithm: Algorithm, topology: Any) -> None:
    """What it sent beyond the plain run with the steps that were found, and what to write to do without it."""
    p, ways = toy.problem(), ("bytes_up", "bytes_down", "bytes_edge")
    assert p.f.n == 5
    found = run(p, algorithm, 16, topology=topology)
    plain = run(p, found.algorithm, 16, topology=topology)
    together, alone = (sum(result.rows[-1][way] for way in ways) for result in (found, plain))
    (name,) = algorithm.to_find
    step = f"{name} = {getattr(found.algorithm, name):.4g}"
    more, less = (show(size, "bytes") for size in (together - alone, alone))
    assert found.message == (
        f"found {step}; the search sent {more} more than the {less} of a run with known steps, as much as "
        f"{(together - alone) / alone * 16:,.0f} further rounds: write {step} to do without it next time"
    )
    assert found.rows[-1]["bytes_best"] == together, "nothing here is compressed"
    going = Race(p, algorithm, Stacked(p.f.n, p.f.d, topology))
    for t in range(1, 17):
        going.round(t)
    again = Race(p, algorithm, Stacked(p.f.n, p.f.d, topology))
    again.load(going.dump(), going.counters() | {"wall_seconds": 0.0})
    assert again.sent() == going.sent() == (together, alone)


@pytest.mark.parametrize("algorithm", [FedComposite("auto", 3), Depositum("auto")], ids=["server", "peers"])
def test_features_that_are_all_zero(algorithm: Algorithm) -> None:
    """Their losses have no curvature, L = 0: every step is as good as any other."""
    p = toy.problem()
    flat = Linear(replace(p.f.data, features=0 * p.f.data.features), p.f.loss) + L1(0.01)
    assert flat.f.smoothness().L == 0
    topology = Ring(p.f.n) if isinstance(algorithm, Graph) else None
    assert run(flat, algorithm, 5, topology=topology).status == "finished"
    assert run(flat, algorithm.resolve(**algorithm.steps_for(0.1)), 5, topology=topology).status == "finished"


def test_a_bold_step_may_go_up_at_first_and_win() -> None:
    """Samples that can be separated: the longer the step, the lower the loss in the end, however high it was before."""
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((40, 60)) + 1, np.where(rng.random(40) < 0.5, 1.0, -1.0)
    p = Linear(Federated.from_clients([(A[:20], b[:20]), (A[20:], b[20:])]), Logistic())
    going = start(p + Zero(), FedAvg("auto", 5))
    going.round(1)
    (bold,) = (lane for lane in going.lanes if lane.k == BOLD[-1])
    assert bold.value > going.first
    assert bold.value == max(lane.value for lane in going.lanes)
    for t in range(2, 65):
        going.round(t)
    assert going.lanes[0].k >= BOLD[0]


def test_timid_steps_stay_up_to_round_32() -> None:
    """However far behind they are; the other short ones are gone in the first rounds."""
    going = start(toy.problem(), FedComposite("auto", 3))
    for t in range(1, 32):
        going.round(t)
        assert {*TIMID} <= {lane.k for lane in going.lanes}
    assert not any(lane.k < -3 for lane in going.lanes if lane.k not in TIMID)
    assert BOLD[-1] not in [lane.k for lane in going.lanes], "it went up, and up again"
    going.round(32)
    assert not {*TIMID} & {lane.k for lane in going.lanes}


def test_a_duel_is_not_won_at_the_bottom_of_a_swing(monkeypatch: pytest.MonkeyPatch) -> None:
    going = start(toy.problem(), FedComposite("auto", 3))
    going.lanes, going.first = going._lanes([-3, 0, 3]), 10.0
    seen = {72: {-3: 3.0, 0: 2.0, 3: 9.0}, 80: {-3: 2.5, 0: 2.0, 3: 1.0}}
    for t in range(65, 81):
        order = iter([lane.k for lane in going.lanes])
        monkeypatch.setattr(going, "_objective", lambda x, t=t, order=order: seen[t][next(order)])
        going._referee(t)
    assert [lane.k for lane in going.lanes] == [0]


def test_the_result_is_the_best_state_that_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last round one more look, whenever that is; before it, the lane that led last does."""
    p = toy.problem()
    going = Race(p, FedComposite("auto", 3), Stacked(p.f.n, p.f.d), rounds=22)
    for t in range(1, 22):
        going.round(t)
    best, looks = going.best, going.counters()["bytes_up"]
    assert best is not None
    assert best.value == going.lanes[0].value < going.first, "it fell from look to look"
    lanes = len(going.lanes)
    monkeypatch.setattr(going, "_objective", lambda x: going.first)
    going.round(22)
    assert going.counters()["bytes_up"] > looks
    assert [lane.k for lane in going.lanes] == [best.k]
    assert lanes > 1
    assert torch.equal(going.model(), best.run.model())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_with_steps_that_it_finds(name: str) -> None:
    """As far as it gets with the steps that were chosen for it by hand, or nearly."""
    given = SETTINGS[name]
    p = toy.problem(h=toy.SPARSE if given.needs.composite else Zero())
    topology = Ring(p.f.n) if isinstance(given, Graph) else None
    best = float(race.Measures(p, Stacked(p.f.n, p.f.d, None)).objective(p.solve()))
    by_hand, found = (run(p, a, 40, topology=topology, every=40) for a in (given, unchosen(given)))
    first, hand, ours = by_hand.rows[0]["objective"], by_hand.rows[-1]["objective"], found.rows[-1]["objective"]
    assert found.status == "finished"
    assert ours - best <= 1.5 * (hand - best) + 0.02 * (first - best)


@pytest.mark.parametrize(
    "algorithm",
    [FedComposite("auto", 3), FedADMM("auto", "auto", 3), EF21("auto", TopK(k=3)), FISTA("auto"), Depositum("auto")],
)
def test_exact_methods_reach_the_solution(algorithm: Algorithm) -> None:
    p = toy.problem()
    x = p.solve()
    topology = Ring(p.f.n) if isinstance(algorithm, Graph) else None
    result = run(p, algorithm, 500, topology=topology, reference=x, every=500)
    assert result.rows[-1]["error"] < 1e-6


def test_with_a_compressed_downlink() -> None:
    p = toy.problem()
    found = run(p, CompressedDownlink(FedComposite("auto", 3), ErrorBoundedQuantiser(0.1)), 16)
    assert found.message.startswith(f"found eta = {found.algorithm.star.eta:.4g}; ")
    given = run(p, CompressedDownlink(FedComposite(found.algorithm.star.eta, 3), ErrorBoundedQuantiser(0.1)), 16)
    assert torch.equal(found.model, given.model)
    with pytest.raises(InputError, match=r"star = .* must be an algorithm with a server"):
        CompressedDownlink(Depositum("auto"), ErrorBoundedQuantiser(0.1))


def test_partial_participation() -> None:
    p = toy.problem()
    result = run(p, Scaffold("auto", 3), 200, participation=UniformSampling(2), every=200)
    assert result.rows[-1]["objective"] < result.rows[0]["objective"]


@pytest.mark.parametrize("loss", ["logistic", "least_squares", "softmax"])
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_scale_of_the_data_does_not_matter(loss: str, scale: float) -> None:
    """Features times c make L times c^2, and steps as many times shorter."""
    p = toy.problem(loss, Zero(), l2=0.0)
    other = Problem(Linear(replace(p.f.data, features=p.f.data.features * scale), p.f.loss), Zero(), p.x0 / scale)
    here, there = (run(q, FedAvg("auto", 3), 16) for q in (p, other))
    assert there.algorithm.eta * scale**2 == pytest.approx(here.algorithm.eta)
    assert there.rows[-1]["objective"] == pytest.approx(here.rows[-1]["objective"], rel=1e-6)


def test_steps_that_h_does_not_allow_are_not_tried() -> None:
    """MCP is weakly convex: prox steps must be below theta."""
    p = toy.problem(h=MCP(0.01, theta=2.0))
    going = start(p, FedComposite("auto", 3))
    assert 0 < len(going.lanes) < len(LANES)
    assert all(lane.run.algorithm.largest_prox_step() * p.h.weak_convexity < 1 for lane in going.lanes)


def test_where_h_allows_only_much_shorter_steps() -> None:
    """Features are so small that 1/L is far beyond theta."""
    p = toy.problem(h=Zero())
    tiny = Linear(replace(p.f.data, features=p.f.data.features * 1e-4), p.f.loss) + MCP(0.01, theta=2.0)
    going = start(tiny, FedComposite("auto", 3))
    assert going.unit > 1e6
    assert all(lane.run.algorithm.largest_prox_step() < 2.0 for lane in going.lanes)
    for t in range(1, 65):
        going.round(t)
    assert going.lanes[0].value <= going.first


def test_a_single_lane_that_is_as_long_as_the_bold_one_goes_on() -> None:
    going = start(toy.problem(), FedComposite("auto", 3))
    going.lanes = going._lanes(BOLD[-1:])
    going.lanes[0].value = -inf  # so that it seems to have risen
    going._judge(8, 5)
    assert [lane.k for lane in going.lanes] == [BOLD[-1]]


def small_network() -> Problem[Neural]:
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(40, 6)).astype(np.float32) for _ in range(4)]
    data = Federated.from_clients([(A, (A @ np.eye(6, 3)).argmax(1)) for A in clients], classes=3)
    make = lambda channels, side, classes: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return Neural(data, make, batch=8, train_measures=True) + Zero()


def test_networks_train_while_they_measure_their_curvature() -> None:
    """The first round is taken with guesses; every lane goes on from the one next below it."""
    p = small_network()
    going = Race(p, FedNAG("auto", 0.9, 5), Stacked(p.f.n, p.f.d))
    guesses = {RATIO**k: run(p, FedNAG(RATIO**k, 0.9, 5), 1) for k in GUESSES}
    going.round(1)
    assert 0.02 < going.unit < 50
    assert len(going.lanes) >= KEPT[1]
    for lane in going.lanes:
        below = max(eta for eta in guesses if eta <= lane.run.algorithm.eta)
        assert torch.equal(lane.run.model(), guesses[below].model)
    size, one, looks = p.f.weights.element_size(), guesses[1.0].rows[-1], len(LANES)
    assert going.counters()["bytes_up"] == len(GUESSES) * one["bytes_up"] + (1 + looks) * p.f.n * size
    assert going.counters()["bytes_down"] == len(GUESSES) * one["bytes_down"] + (1 + looks) * p.f.n * p.f.d * size
    assert going.counters()["gradients"] == len(GUESSES) * one["gradients"] + (2 + looks) * p.f.n * 40 // 8
    assert going.lanes[0].value < going.first
    result = run(p, FedNAG("auto", 0.9, 5), 40)
    assert result.rows[-1]["objective"] < 0.5 * result.rows[0]["objective"]


def test_networks_whose_steps_are_below_all_guesses_begin_after_the_first_round() -> None:
    """Features are so large that 1/L is far below the shortest guess."""
    p = small_network()
    p = replace(p, f=p.f.over_rows(replace(p.f.data, features=p.f.data.features * 1e8)))
    going = Race(p, FedAvg("auto", 5), Stacked(p.f.n, p.f.d))
    going.round(1)
    assert going.unit * RATIO ** LANES[-1] < RATIO ** GUESSES[0]
    assert torch.equal(going.model(), p.start(0))
    for t in range(2, 9):
        going.round(t)
    assert going.lanes[0].value < going.first


def test_a_network_goes_on_after_the_first_round() -> None:
    p = small_network()
    whole, cut, again = (Race(p, FedNAG("auto", 0.9, 5), Stacked(p.f.n, p.f.d)) for _ in range(3))
    for t in range(1, 6):
        whole.round(t)
    cut.round(1)
    again.load(cut.dump(), cut.counters() | {"wall_seconds": 0.0})
    for t in range(2, 6):
        again.round(t)
    assert torch.equal(whole.model(), again.model())
    assert whole.counters() == again.counters()


# ---- from one step to another ------------------------------------------------------------------------------------


STEPLESS = {"fednl", "mosaic", "pledge", "prox_newton"}


def stars() -> list[str]:
    """But for PLEDGE, whose model is a step ahead of what everybody knows, and those that have no step."""
    return [name for name in ALGORITHMS.keys() - STEPLESS if issubclass(ALGORITHMS[name], Star)]


@pytest.mark.parametrize("name", sorted(stars()))
def test_another_step_does_not_move_the_model(name: str) -> None:
    given = SETTINGS[name]
    run = runs.after(runs.begun(given, runs.problem(given)), 5)
    other = run.fork(with_step(given, 0.3))
    assert toy.error(other.model(), run.model()) < 1e-12
    runs.after(other, 6, 5)
    assert toy.error(other.model(), run.model()) > 1e-6, "it goes on, and leaves the other run alone"


@pytest.mark.parametrize("local_prox", ["constant", "coupled"])
def test_naive_composite_keeps_its_corrections(local_prox: str) -> None:
    """Without h the mean of the corrections never changes again: one that is wrong once would be for ever."""
    p = toy.problem(h=Zero())
    run = runs.after(runs.begun(NaiveComposite(0.5, 3, local_prox=local_prox), p), 5)
    other = run.fork(NaiveComposite(2.0, 3, local_prox=local_prox))
    c, now = (r.state.clients.a - r.state.server.x / r.algorithm.S for r in (run, other))
    assert torch.allclose(c, now, atol=1e-12)
    assert toy.error(runs.after(other, 400, 5).model(), p.solve()) < 1e-8


def test_clients_that_come_late_begin_with_the_step_of_today() -> None:
    """The server counts on what they would have sent at the start."""
    p = toy.problem(h=Zero())
    run = runs.after(runs.begun(FedSplit(8.0, 2.0, 3, partial=True), p, UniformSampling(1)), 2)
    assert run.rows.met < p.f.n
    other = run.fork(FedSplit(4.0, 1.0, 3, partial=True))
    assert torch.allclose(other.state.clients.z.mean(0), other.model(), atol=1e-12)


# ---- back-off ----------------------------------------------------------------------------------------------------


def test_a_lane_that_rises_goes_back_with_a_shorter_step() -> None:
    p = toy.problem(h=Zero())
    going = start(p, FedAvg("auto", 3))
    for t in range(1, 17):
        going.round(t)
    best, k = going.best, going.lanes[0].k
    assert best is not None
    going.lanes = [going._fork(going.lanes[0], k)]
    going.lanes[0].run.state.server.x.add_(100.0)
    going._judge(64, 1)
    (lane,) = going.lanes
    assert lane.k < k
    assert torch.equal(lane.run.model(), best.run.model())


def test_if_all_lanes_are_too_long_much_shorter_ones_begin_anew() -> None:
    p = toy.problem(h=Zero())
    going = start(p, FedAvg("auto", 3))
    going.unit *= RATIO**4000**0.5 * 1e30
    going.lanes = going._lanes(LANES)
    for t in range(1, 65):
        going.round(t)
    assert torch.isfinite(going.model()).all()


def test_where_all_lanes_rise_from_the_start_much_shorter_ones_begin_anew() -> None:
    """The start is the solution, of which h's subgradients know nothing; clients leave it on both sides."""
    A, b = np.array([[1e-3], [2e-3]]), np.array([1.0, 1.0])
    p = Linear(Federated.from_clients([(A, b), (A, -b), (2 * A, b), (2 * A, -b)]), Logistic()) + L1(0.05)
    result = run(p, BEER("auto", 0.5), 40, topology=Ring(4))
    first, *_, last = (row["objective"] for row in result.rows)
    assert last <= 1.05 * first


def test_where_all_lanes_have_risen_above_the_start_the_race_goes_back() -> None:
    going = start(toy.problem(h=Zero()), FedAvg("auto", 3))
    for t in range(1, 5):
        going.round(t)
    best = going.best
    assert best is not None
    assert len(going.lanes) > 1
    for lane in going.lanes:
        lane.run.state.server.x.add_(100.0)
    going._judge(8, KEPT[8])
    (lane,) = going.lanes
    assert torch.equal(lane.run.model(), best.run.model())


def random_problem(seed: int) -> Problem[Linear]:
    rng = np.random.default_rng(seed)
    n, p, loss = int(rng.integers(2, 7)), int(rng.integers(1, 12)), str(rng.choice(["logistic", "squared"]))
    spread = 10 ** rng.uniform(-3, 3, p)
    clients = []
    for _ in range(n):
        A = (rng.normal(size=(int(rng.integers(2, 15)), p)) + rng.normal(size=p)) * spread * 10 ** rng.uniform(-1, 1)
        s = A @ (rng.normal(size=p) / spread)
        clients.append((A, np.where(s > 0, 1.0, -1.0) if loss == "logistic" else s + rng.normal(size=len(s))))
    batch = None if rng.random() < 0.5 else 2
    weight = 10 ** rng.uniform(-6, 0)
    return Linear(Federated.from_clients(clients), loss, l2=float(rng.choice([0, 1e-3])), batch=batch) + L1(weight)


@given(seed=st.integers(0, 10**6), name=st.sampled_from([*ALGORITHMS]))
def test_never_diverges(seed: int, name: str) -> None:
    """Nor in the rounds before the last one, which ends with the best state."""
    p, a = random_problem(seed), SETTINGS[name]
    a = replace(a, **{key: TopK(fraction=0.5) for key, value in vars(a).items() if isinstance(value, TopK)})
    a = replace(a, mu=p.f.smoothness().mu or 1e-3) if name == "fast_fedda" else a
    result = run(p, unchosen(a), 41, topology=Ring(p.f.n) if isinstance(a, Graph) else None, every=1)
    assert result.status == "finished", result.message
    first, late, last = (result.rows[k]["objective"] for k in (0, 40, 41))
    slack = 0.05 * abs(first)  # noise and subgradients may swing around a start that is the solution
    assert max(late, last) <= first + slack


# ---- in a study --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash_after", [3, 6, 20, 23, 37])
def test_resumes_exactly(crash_after: int, tmp_path: Path) -> None:
    """In the race, in a duel, and with the best state of before."""
    auto = [a for a in small()["algorithms"] if a.get("label", "").endswith("auto")]
    table = small(rounds=24, seeds=[0], algorithms=auto)
    assert execute(tmp_path / "whole", table)
    with pytest.raises(Crash):
        execute(tmp_path / "cut", table, crash_after=crash_after)
    assert execute(tmp_path / "cut", table, resume=True)
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_study_says_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.toml", small(seeds=[0], algorithms=[{"name": "fedavg", "eta": "auto", "K": 3}]))
    code, _, said = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    assert code == 0
    assert (line := said.splitlines()[-1]).startswith("fedavg, seed 0: found eta = ")
    assert "; the search sent " in line
    assert escape(line) in (tmp_path / "run" / "report.html").read_text()
    assert 'eta = "auto"' in (tmp_path / "run" / "config.toml").read_text()
    results = compare(toy.problem(), {"a": Entry(FedAvg("auto", 3), rounds=3)}, 5, progress=False)
    assert results.status[0]["message"].startswith("found eta = ")
    assert results.settings["algorithms"][0]["eta"] == "auto"


def test_theory_prints_its_steps_and_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The theorem of DFedADMM asks for steps of 1/(96 K L), that of gradient descent for 1/L."""
    theory = [{"name": "dfedadmm", "theory": True, "K": 3}, {"name": "gradient_descent", "theory": True}]
    table = small(seeds=[0], algorithms=theory, regulariser={"name": "zero"})
    file = write(tmp_path / "a.toml", table)
    _, _, said = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    lines = said.splitlines()
    assert lines[1].startswith("dfedadmm: the theory gives eta_l = ")
    assert "is very short, where 1/L = " in lines[1]
    assert lines[2].startswith("gradient_descent: the theory gives eta = ")
    assert "short" not in lines[2]


# ---- what is said, and refused -----------------------------------------------------------------------------------


def test_a_run_that_got_nowhere_says_so() -> None:
    p = toy.problem()
    result = run(p, FedAvg(1e-9, 3), 5)
    assert result.message.startswith("made no progress: its objective went from ")
    assert "eta = 1e-09 is very short, where 1/L = " in result.message
    assert run(p, FedAvg(0.5, 3), 5).message == ""
    there = p.starting_at(p.solve())
    assert run(there, FedComposite(1.0, 3), 5).message == "", "it began at the solution"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FedAvg(eta=0.1, K="auto"), "FedAvg: K = 'auto' must be a whole number >= 1"),
        (lambda: FedOpt("auto", 5, "auto"), "FedOpt: eta_g = 'auto' is not a finite number"),
        (lambda: FedAvg(eta="auto", K=0), "FedAvg: K = 0 must be"),
        (lambda: FastFedDA("auto", "auto", 5), "FastFedDA: mu = 'auto' is not a finite number"),
        (lambda: FedSplit("auto", "auto", K=0), "FedSplit: K = 0 must be"),
        (lambda: FedSpeed(0.1, 3, "auto"), "FedSpeed: lam = 'auto' follows from eta, so eta = 0.1 must be 'auto', too"),
        (lambda: DFedADMM("auto", 3, inverse_penalty="auto"), "DFedADMM: inverse_penalty = 'auto' is not a finite"),
    ],
)
def test_what_cannot_be_found_is_refused(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_refusals_of_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(**table: Any) -> str:
        file = write(tmp_path / "a.toml", small(algorithms=[table]))
        return refused(capsys, "run", str(file), "--out", str(tmp_path / "run"))

    assert "fedavg.K = 'auto' is not allowed: input should be a valid integer" in said(name="fedavg", eta=1.0, K="auto")
    assert "algorithms.fedavg: unknown key 'et'; did you mean 'eta'?" in said(name="fedavg", et="auto", K=2)
    allowed = "input should be a valid number or 'auto' or a table with a name (exponential, inverse_root)"
    assert f"algorithms.fedavg.eta = 'Auto' is not allowed: {allowed}" in said(name="fedavg", eta="Auto", K=2)
    allowed = "input should be a valid number or 'auto'"
    assert f"algorithms.feddyn.alpha = 'Auto' is not allowed: {allowed}" in said(
        name="feddyn", eta=1, K=2, alpha="Auto"
    )
    with pytest.raises(InputError, match="FedDualAvg needs a convex regulariser, which MCP is not"):
        run(toy.problem(h=MCP(0.01, theta=2.0)), FedDualAvg("auto", 3), 5)
