"""Work over several threads, in blocks, changes the speed and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import astuple
from functools import partial

import pytest
import torch

from proxfed import Depositum, DFedADMM, FedAvg, FedCEF
from proxfed.algorithms import ChocoSGD
from proxfed.compressors import TopK
from proxfed.engine import tuning
from proxfed.engine.lockstep import in_lockstep
from proxfed.engine.measures import Measures
from proxfed.engine.network import Stacked
from proxfed.engine.run import Run
from proxfed.engine.start import run_of
from proxfed.engine.states import flatten
from proxfed.machine import map_parallel, over_threads, run_parallel, split_evenly, thread_count
from proxfed.participation import Full, UniformSampling
from proxfed.topologies import Complete, RandomMatching, Ring
from proxfed.types import Algorithm, Participation, Topology

from support import toy_problems as toy


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize(("m", "count"), [(1, 4), (7, 2), (8, 3), (100, 8)])
def test_parts_are_even_and_in_order(m: int, count: int) -> None:
    found = split_evenly(range(m), count)
    assert [k for part in found for k in part] == list(range(m))
    assert max(map(len, found)) - min(map(len, found)) <= 1
    assert len(found) == min(m, count)


@pytest.mark.usefixtures("two_threads")
def test_each_call_runs_in_the_same_thread_every_time() -> None:
    """And the first of them in the thread of the caller."""
    first, second = (run_parallel([threading.get_ident, threading.get_ident]) for _ in range(2))
    assert first == second
    assert first[0] == threading.get_ident() != first[1]


@pytest.mark.usefixtures("two_threads")
def test_inside_a_thread_the_count_is_one_and_afterwards_it_is_restored() -> None:
    assert run_parallel([thread_count, thread_count]) == [1, 1]
    assert thread_count() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_one_thread_is_raised_after_the_others_have_finished() -> None:
    done = []

    def work(k: int) -> None:
        if k == 0:
            raise ValueError("broken")
        done.append(k)

    with pytest.raises(ValueError, match="broken"):
        map_parallel(work, range(4))
    assert done == [2, 3]
    assert thread_count() == 2


@pytest.mark.usefixtures("two_threads")
def test_blocks_meet_at_every_mix() -> None:
    """Three blocks of different sizes on two threads; each gets its own rows of what was mixed."""
    seen = {}

    def step(k: int, mix) -> None:
        x = torch.full((k + 1, 2), float(k))
        once = mix(x)
        seen[k] = once, mix(2 * once)

    in_lockstep([partial(step, k) for k in range(3)], [1, 2, 3], lambda x: x.cumsum(0))
    whole = torch.tensor([0.0, 1, 1, 2, 2, 2]).cumsum(0)
    again = (2 * whole).cumsum(0)
    for k, rows in enumerate((slice(0, 1), slice(1, 3), slice(3, 6))):
        once, twice = seen[k]
        assert torch.equal(once, whole[rows, None].expand(-1, 2))
        assert torch.equal(twice, again[rows, None].expand(-1, 2))


CASES: dict[str, tuple[Algorithm, Topology | None, Participation]] = {
    "FedAvg": (FedAvg(0.5, 3), None, Full()),
    "FedCEF": (FedCEF(0.5, 3, compressor=TopK(k=2)), None, Full()),
    "some take part": (FedAvg(0.5, 3), None, UniformSampling(m=6)),
    "DEPOSITUM": (Depositum(0.3, T0=3), Ring(9), Full()),
    "DFedADMM": (DFedADMM(0.2, 3, lam=2.0), Complete(9), Full()),
    "CHOCO, packed messages": (ChocoSGD(0.2, 0.3, TopK(k=3)), Ring(9), Full()),
    "matching": (Depositum(0.3, T0=2), RandomMatching(9), Full()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_in_blocks_over_two_threads_is_the_run_of_all_at_once(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, topology, participation = CASES[case]

    def rounds() -> tuple[Run, dict]:
        p = toy.problem("logistic", sizes=(7, 40, 13, 40, 25, 9, 12, 30, 21))
        network = Stacked(p.f.n, p.f.d, topology)
        run = run_of(p, algorithm, network, participation, seed=3)
        for t in range(1, 6):
            run.round(t)
        return run, Measures(p, network)(run.model())

    whole, measured = rounds()
    monkeypatch.setattr(tuning, "BLOCK", 2 * whole.problem.f.d)
    monkeypatch.setattr(tuning, "PARALLEL_FROM", 0)
    monkeypatch.setattr(tuning, "MIX_BLOCK", 4 * 9)
    torch.set_num_threads(2)
    try:
        assert len(whole.network.blocks(range(9))) == 6
        parts, also_measured = rounds()
    finally:
        torch.set_num_threads(1)
    for name, x in flatten(whole._parts()).items():
        torch.testing.assert_close(flatten(parts._parts())[name], x, rtol=1e-12, atol=1e-13)
    assert parts.counters() == whole.counters()
    assert astuple(parts.work) == astuple(whole.work)
    assert also_measured == pytest.approx(measured, rel=1e-10)


def test_more_calls_than_threads_are_refused_and_none_is_dropped() -> None:
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="longer"):
            run_parallel([lambda: 1, lambda: 2, lambda: 3])
        assert over_threads(sum, range(7)) == [3, 18]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
