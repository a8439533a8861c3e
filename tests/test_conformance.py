"""Every registered algorithm x every property.

A new algorithm needs an entry in SETTINGS, and nothing else: whatever it promises in `needs`, `facts` and
`largest_prox_step` is then put to the test.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from proxfed import algorithms as alg
from proxfed.algorithms import ALGORITHMS
from proxfed.compressors import NaturalCompressor, TopK
from proxfed.engine import tuning
from proxfed.engine.compatibility import check_combination
from proxfed.engine.messages import dense, leaves, received
from proxfed.engine.oracle import Work
from proxfed.engine.run import Run
from proxfed.engine.stacked import Stacked
from proxfed.engine.state_tree import flatten, take
from proxfed.keyed_random import Ids, keys
from proxfed.participation import Full, UniformSampling
from proxfed.problems.linear import Linear
from proxfed.registry import build, describe
from proxfed.regularisers import L1, SquaredL2
from proxfed.topologies import FromMatrix, Ring
from proxfed.topologies import dense as as_matrix
from proxfed.types import (
    Algorithm,
    Facts,
    Graph,
    Local,
    Message,
    Needs,
    Participation,
    Regulariser,
    Sends,
    Star,
    Topology,
)

from support import toy_problems as toy
from support.watchers import AllInOneStep, Spy, WatchedGraph, WatchedStar

C = TopK(k=3)
SETTINGS: dict[str, Algorithm] = {
    "choco_sgd": alg.ChocoSGD(0.5, 0.3, C),
    "depositum": alg.Depositum(2.0, gamma=0.3, T0=2),
    "dfedadmm": alg.DFedADMM(0.5, 3, lam=2.0),
    "dfedavg": alg.DFedAvg(0.5, 3),
    "dfedavgm": alg.DFedAvgM(0.2, 3, 0.5),
    "dfedsam": alg.DFedSAM(0.5, 3, 0.1, Q=2),
    "dpsgd": alg.DPSGD(0.5),
    "dsgt": alg.DSGT(1.0),
    "dsmt": alg.DSMT(1.0, 0.5),
    "ef14": alg.EF14(0.5, C),
    "ef21": alg.EF21(2.0, C),
    "ef21_sgdm": alg.EF21SGDM(2.0, 0.5, C),
    "exact_diffusion": alg.ExactDiffusion(2.0),
    "extra": alg.Extra(2.0),
    "fast_fedda": alg.FastFedDA(0.05, 0.5, 3),
    "fedadmm": alg.FedADMM(0.2, 2.0, 3),
    "fedavg": alg.FedAvg(0.5, 3),
    "fedcanon": alg.FedCanon(0.5, 3),
    "fedcef": alg.FedCEF(0.6, 3, compressor=C),
    "fedcomposite": alg.FedComposite(1.5, 3),
    "feddr": alg.FedDR(5.0, 2.0, 3),
    "feddualavg": alg.FedDualAvg(0.5, 3),
    "feddyn": alg.FedDyn(1.0, 3, 0.1),
    "fedmid": alg.FedMiD(0.5, 3),
    "fedmom": alg.FedMom(0.3, 3, 0.5),
    "fednag": alg.FedNAG(0.3, 0.5, 3),
    "fednova": alg.FedNova(0.5, 4),
    "fedopt": alg.FedOpt(0.5, 3, 0.1, tau=0.1),
    "fedpaq": alg.FedPAQ(0.5, 3, NaturalCompressor()),
    "fedpd": alg.FedPD(8.0, 2.0, 3),
    "fedprox": alg.FedProx(0.5, 3, 0.1),
    "fedsam": alg.FedSAM(0.5, 3),
    "fedspeed": alg.FedSpeed(1.0, 3, 8.0),
    "fedsplit": alg.FedSplit(8.0, 2.0, 3),
    "fista": alg.FISTA(5.0),
    "gradient_descent": alg.GradientDescent(8.0),
    "heavy_ball": alg.HeavyBall(4.0, 0.4),
    "mime": alg.Mime(1.5, 3, 0.4),
    "mimelite": alg.MimeLite(0.5, 3, 0.4),
    "mofedsam": alg.MoFedSAM(0.5, 3, 0.5),
    "nesterov": alg.Nesterov(3.0, 0.5),
    "pg_extra": alg.PGExtra(3.0),
    "proxgt": alg.ProxGT(1.5, Q=2),
    "proximal_gradient": alg.ProximalGradient(8.0),
    "proxskip": alg.ProxSkip(4.0, 0.4),
    "scafcom": alg.Scafcom(0.6, 3, C, beta=0.5),
    "scaffold": alg.Scaffold(1.5, 3),
    "scallion": alg.Scallion(0.6, 3, NaturalCompressor(), alpha=0.5),
    "slowmo": alg.SlowMo(0.3, 3, 0.5),
}
SLOW = {"fast_fedda"}
"""Exact, but with an error that falls like 1/t."""

STARS = [name for name, make in ALGORITHMS.items() if issubclass(make, Star)]
RIDGE = SquaredL2(toy.LAMBDA)


def algorithm(name: str) -> Algorithm:
    if name not in SETTINGS:
        pytest.fail(f"{name!r} is registered but has no settings for the toy problem: add it to SETTINGS in {__file__}")
    return SETTINGS[name]


every = pytest.mark.parametrize("name", ALGORITHMS)
every_star = pytest.mark.parametrize("name", STARS)
every_graph = pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in STARS])


def problem(a: Algorithm, **options: Any) -> Linear:
    """With l1 for those that take prox steps, and a regulariser that has a gradient for those that do not."""
    return toy.problem(h=toy.SPARSE if a.needs.composite else RIDGE, **options)


def ridge(v: np.ndarray, step: float) -> np.ndarray:
    return v / (1 + step * RIDGE.weight)


def solution(a: Algorithm) -> np.ndarray:
    return toy.solution(problem(a)) if a.needs.composite else toy.solution(problem(a), ridge)


def begun(
    a: Algorithm,
    p: Any,
    participation: Participation = Full(),
    seed: int = 0,
    topology: Topology | None = None,
) -> Run:
    graph = (topology or Ring(p.n)) if isinstance(a, Graph) else None
    return Run(p, a, Stacked(p.n, p.d, graph), participation, seed)


def after(run: Run, rounds: int) -> Run:
    for t in range(1, rounds + 1):
        run.round(t)
    return run


def some(a: Algorithm) -> Participation:
    """Two clients a round where that is allowed."""
    return Full() if a.requires().everyone or isinstance(a, Graph) else UniformSampling(2)


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    for key, x in one.items():
        assert torch.equal(x, other[key]), key


# ---- the table and the documentation -----------------------------------------------------------------------------


def test_settings_are_those_of_registered_algorithms() -> None:
    assert sorted(SETTINGS) == sorted(ALGORITHMS) == list(ALGORITHMS)
    for name, a in SETTINGS.items():
        assert type(a) is ALGORITHMS[name]


def test_every_algorithm_is_documented() -> None:
    assert [f"{name}: {lack}" for name in ALGORITHMS for lack in undocumented(algorithm(name))] == []


def undocumented(a: Algorithm) -> Iterator[str]:
    """What an algorithm does not say about itself."""
    if not isinstance(a.needs, Needs):
        yield "needs"
    if not isinstance(a.facts, Facts):
        yield "facts"
    if not re.search(r'^[A-Z].*, "[^"]+".*\b(18|19|20)\d\d\b.*\.$', a.reference()):
        yield "a reference with authors, title and year"
    module = inspect.getmodule(type(a))
    if "What travels:" not in module.__doc__:
        yield "'What travels:' in the docstring"
    source = inspect.getsource(module)
    for f in fields(a):
        if not re.search(rf'^    {f.name}: [^\n]*\n    """[A-Z0-9\'(]', source, re.M):
            yield f"a docstring line below the hyper-parameter {f.name}"


@every
def test_survives_the_configuration_file(name: str) -> None:
    a = algorithm(name)
    assert build(ALGORITHMS, describe(a, ALGORITHMS), "algorithm") == a


# ---- where it ends -----------------------------------------------------------------------------------------------


@every
def test_ends_where_its_facts_say(name: str) -> None:
    """At the solution, to 1e-8, if it is exact; else at a biased point that is far better than the start."""
    a = algorithm(name)
    p, x = problem(a), solution(a)
    check_combination(p, a, Ring(p.n) if isinstance(a, Graph) else None, Full())
    run = after(begun(a, p), 75)
    early = toy.error(run.model().numpy(), x)
    for t in range(76, 301):
        run.round(t)
    model = run.model().numpy()
    late = toy.error(model, x)
    if name in SLOW:
        assert a.facts.exact
        assert late < 0.35 * early
    elif a.facts.exact:
        assert late < 1e-8
    else:
        best = toy.objective(p, x)
        assert toy.objective(p, model) - best < 0.01 * (toy.objective(p, toy.start(p)) - best)
        assert late > 1e-3


# ---- numbers -----------------------------------------------------------------------------------------------------


@every
def test_keeps_shapes_and_dtypes(name: str) -> None:
    a = algorithm(name)
    found = {}
    for dtype in (torch.float32, torch.float64):
        run = begun(a, problem(a, dtype=dtype), some(a))
        before = {key: (x.shape, x.dtype) for key, x in run.dump().items()}
        assert all(d == dtype for _, d in before.values())
        after(run, 4)
        assert {key: (x.shape, x.dtype) for key, x in run.dump().items()} == before
        assert all(len(x) == toy.N for key, x in run.dump().items() if key.startswith("clients"))
        found[dtype] = run.model()
        assert found[dtype].shape == (toy.D,)
        assert found[dtype].dtype == dtype
    assert torch.allclose(found[torch.float32].double(), found[torch.float64], atol=1e-4)


@every
def test_same_seed_same_run(name: str) -> None:
    a = algorithm(name)
    p = problem(a, batch=4)
    one, same, other = (after(begun(a, p, some(a), seed), 4) for seed in (3, 3, 4))
    assert_equal(one.dump(), same.dump())
    assert one.counters() == same.counters()
    assert not torch.allclose(one.model(), other.model(), atol=1e-6)


@dataclass(frozen=True, eq=False)
class Renamed:
    """A problem whose client i is client order[i] of another, with all it has: data, minibatches, randomness."""

    problem: Linear
    order: np.ndarray

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    @property
    def weights(self) -> Tensor:
        return self.problem.weights[torch.from_numpy(self.order)]

    def local(self, t: int, ids: Ids, seed: int = 0) -> Local:
        return self.problem.local(t, self.order[np.asarray(ids)], seed)


@every
def test_renaming_clients_renames_their_states(name: str) -> None:
    a, order = algorithm(name), np.array([3, 0, 4, 2, 1])
    p = problem(a, batch=4, sizes=toy.RAGGED, weighting="size")
    one = after(begun(a, p), 6)
    W = as_matrix(Ring(p.n).W(0))[np.ix_(order, order)]
    other = after(begun(a, Renamed(p, order), topology=FromMatrix(W)), 6)
    assert torch.allclose(one.model(), other.model(), rtol=0, atol=1e-10)
    for key, x in one.dump().items():
        expected = x[torch.from_numpy(order)] if key.startswith("clients") else x
        assert torch.allclose(expected, other.dump()[key], rtol=0, atol=1e-10), key


@every
@pytest.mark.parametrize("batch", [None, 4], ids=["full", "minibatch"])
def test_blocks_of_clients_on_two_cores_do_not_matter(
    name: str, batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = algorithm(name)
    p = problem(a, batch=batch, sizes=toy.RAGGED, weighting="size")
    whole, split = begun(a, p), begun(a, p)
    after(whole, 4)
    monkeypatch.setattr(tuning, "BLOCK", 2 * p.d)
    monkeypatch.setattr(tuning, "PARALLEL_FROM", 0)
    torch.set_num_threads(2)
    try:
        assert len(split.network.blocks(range(p.n))) == 4
        after(split, 4)
    finally:
        torch.set_num_threads(1)
    for key, x in whole.dump().items():
        assert torch.allclose(x, split.dump()[key], rtol=0, atol=1e-12), key
    assert whole.counters() == split.counters()


@every_star
def test_a_process_without_participants(name: str) -> None:
    """It runs a block of no clients, whose message and state have no rows."""
    a = algorithm(name)
    p = problem(a, batch=4)
    run = after(begun(a, p), 1)
    own, (_, down) = take(run.state.clients, slice(0, 0)), a.down(run.state.server, keys(0, "server message", [0], 2))
    new, up = a.client(own, received(down), run.oracle(2, range(0), Work()), p.h)
    for key, x in flatten(new).items():
        assert x.shape == flatten(own)[key].shape
    for m in leaves(up):
        assert len(dense(m)) == 0


# ---- what it touches ---------------------------------------------------------------------------------------------


@every
def test_changes_nothing_in_place(name: str) -> None:
    a = algorithm(name)
    watched = WatchedStar(a) if isinstance(a, Star) else WatchedGraph(a)
    run, plain = (begun(x, problem(a, batch=4), some(a)) for x in (watched, a))
    assert torch.equal(after(run, 4).model(), after(plain, 4).model())


@every
def test_largest_prox_step(name: str) -> None:
    a = algorithm(name)
    spy = Spy(L1(toy.LAMBDA))
    after(begun(a, replace(problem(a), h=spy)), 8).model()
    largest = a.largest_prox_step()
    if not a.needs.composite:
        assert spy.steps == []
        assert largest == 0
    elif np.isinf(largest):
        assert a.needs.convex
        assert max(spy.steps[len(spy.steps) // 2 :]) > 1.5 * max(spy.steps[: len(spy.steps) // 2])
    else:
        assert 0.5 * largest < max(spy.steps) <= largest * (1 + 1e-12)  # a bound, and not a careless one


def test_an_algorithm_that_takes_prox_steps_must_say_the_largest() -> None:
    class Forgetful(WatchedStar):
        largest_prox_step = Star.largest_prox_step

    with pytest.raises(NotImplementedError, match=r"Forgetful takes prox steps, so it needs a largest_prox_step\(\)"):
        Forgetful(algorithm("fedavg")).largest_prox_step()


# ---- what travels ------------------------------------------------------------------------------------------------


def promised(a: Algorithm, dtype: torch.dtype) -> dict[str, int]:
    """Bytes per client (or edge) and round by what the algorithm says that it sends."""
    sends, d = a.sends(), torch.ones(1, toy.D, dtype=dtype)
    assert sends.times == ""  # with its hyper-parameters an algorithm knows how often
    numbers = {"up": sends.numbers_up, "down": sends.numbers_down, "edge": 0}
    found = {}
    for way, vectors in (("up", sends.up), ("down", sends.down), ("edge", sends.edge)):
        one = a.compressor(d, keys(0, "test", [0], 0)).nbytes if way in sends.compressed else d.nbytes
        found[way] = vectors * one + numbers[way] * dtype.itemsize
    return found


def check_bytes(a: Algorithm, dtype: torch.dtype) -> None:
    run, rounds = begun(a, problem(a, dtype=dtype), some(a)), 4
    after(run, rounds)
    promise = promised(a, dtype)
    cohort = toy.N if isinstance(some(a), Full) else 2
    edges = 2 * toy.N  # of a ring
    assert sum(promise.values()) > 0
    assert run.network.traffic.up == rounds * cohort * promise["up"]
    assert run.network.traffic.down == rounds * cohort * promise["down"]
    assert run.network.traffic.edge == rounds * edges * promise["edge"]


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_bytes_are_those_of_its_facts(name: str, dtype: torch.dtype) -> None:
    check_bytes(algorithm(name), dtype)


@pytest.mark.parametrize(
    ("a", "text"),
    [
        (alg.FedNAG(0.3, 0.5, 3, output="best"), "2 up, 2 down, and 1 number up"),
        (alg.DFedSAM(0.5, 3, 0.1, Q=3), "3 per edge"),
        (alg.ProxGT(1.5, Q=3), "6 per edge"),
    ],
    ids=["FedNAG", "DFedSAM", "ProxGT"],
)
def test_bytes_are_those_of_its_settings(a: Algorithm, text: str) -> None:
    assert str(a.sends()) == text
    check_bytes(a, torch.float64)


@pytest.mark.parametrize(
    ("sends", "text"),
    [
        (Sends(up=1, down=2), "1 up, 2 down"),
        (Sends(up=1, down=1, compressed=("up",)), "C(d) up, 1 down"),
        (
            Sends(up=2, down=1, numbers_up=1, numbers_down=3, compressed=("up", "down")),
            "2 C(d) up, C(d) down, and 1 number up, and 3 numbers down",
        ),
        (Sends(up=1, down=2, on_average=True), "1 up, 2 down on average"),
        (Sends(edge=1, times="Q"), "Q per edge"),
        (Sends(edge=2, times="Q", compressed=("edge",)), "2 Q C(d) per edge"),
    ],
    ids=str,
)
def test_what_it_sends_in_words(sends: Sends, text: str) -> None:
    assert str(sends) == text


@every_graph
def test_mixes_as_often_as_it_sends(name: str) -> None:
    """The simulated clock pays a latency for each."""
    counting = AllInOneStep(algorithm(name))
    after(begun(counting, problem(counting)), 3)
    assert counting.calls == 3 * algorithm(name).sends().edge


# ---- before the first mix ----------------------------------------------------------------------------------------


@every_graph
@pytest.mark.parametrize("blocks", [False, True], ids=["whole", "blocks"])
def test_a_step_may_begin_with_what_goes_before_it(name: str, blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round is the same, bit for bit, whether clients put their states away before they mix or not."""
    a = algorithm(name)
    p = problem(a, batch=4, sizes=toy.RAGGED, weighting="size")
    if blocks:
        monkeypatch.setattr(tuning, "BLOCK", 2 * p.d)
    apart, together = after(begun(a, p), 5), after(begun(AllInOneStep(a), p), 5)
    assert len(apart.network.blocks(range(p.n))) == (3 if blocks else 1)
    assert_equal(apart.dump(), together.dump())
    assert torch.equal(apart.model(), together.model())
    assert apart.counters() == together.counters()


@every_graph
def test_what_goes_before_a_mix_leaves_a_state_like_any_other(name: str) -> None:
    a = algorithm(name)
    p = problem(a, batch=4)
    run = after(begun(a, p), 3)
    f = run.oracle(4, range(p.n), Work())
    between, state = flatten(a.before_mix(run.state, f, p.h)), flatten(run.state)
    assert {key: (x.shape, x.dtype) for key, x in between.items()} == {k: (x.shape, x.dtype) for k, x in state.items()}


# ---- interruptions -----------------------------------------------------------------------------------------------


@every
def test_goes_on_bit_for_bit_after_a_dump(name: str) -> None:
    a = algorithm(name)
    p = problem(a, batch=4)
    whole = after(begun(a, p, some(a)), 3)
    saved = {key: x.clone() for key, x in whole.dump().items()}
    counters = whole.counters() | {"wall_seconds": 0.0}
    resumed = begun(a, p, some(a))
    resumed.load(saved, counters)
    for t in range(4, 8):
        whole.round(t)
        resumed.round(t)
    assert_equal(whole.dump(), resumed.dump())
    assert torch.equal(whole.model(), resumed.model())
    assert whole.counters() == resumed.counters()


def test_the_checks_catch_algorithms_that_break_the_rules() -> None:
    """The checks above can fail: an algorithm that writes into its state, or sends it, is caught."""

    class Writes(type(SETTINGS["scaffold"])):  # type: ignore[misc]
        def client(self, own: Any, down: Message, f: Local, h: Regulariser) -> tuple[Any, Message]:
            own.c.add_(1)
            return super().client(own, down, f, h)

    class Leaks(type(SETTINGS["ef21"])):  # type: ignore[misc]
        def client(self, own: Any, down: Message, f: Local, h: Regulariser) -> tuple[Any, Message]:
            return own, own.c

    for bad in (Writes(1.5, 3), Leaks(2.0)):
        with pytest.raises(AssertionError):
            after(begun(WatchedStar(bad), problem(bad)), 1)
