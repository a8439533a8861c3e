"""States of the clients that have taken part: the same run as with all states at once, in the memory of those met."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from proxfed.algorithms import FedAvg, FedCEF, FedComposite, FedDyn, Scaffold
from proxfed.compressors import TopK
from proxfed.engine.halves import Work
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.engine.states import MET, ClientRows
from proxfed.errors import InputError
from proxfed.files import Log
from proxfed.harness.folder import journal
from proxfed.participation import BernoulliSampling, Full, UniformSampling
from proxfed.testing.runs import after, must_equal, small_blocks
from proxfed.types import Participation, Star

from support import toy_problems as toy
from support.algorithm_settings import SETTINGS
from support.resumed import same, under_way
from support.small_experiment import Crash, execute, small

PARTIAL = {
    "fedcomposite": FedComposite(1.5, 3, partial=True),
    "fedcef": FedCEF(0.6, 3, compressor=TopK(k=3), partial=True),
}
STARS = {
    name: a
    for name, a in (SETTINGS | PARTIAL).items()
    if isinstance(a, Star) and not (a.requires().everyone or a.requires().all_hear)
}
RIDGE = toy.toy.RIDGE
SIZES = (3, 9, 5, 4, 8, 6, 7, 5)


class AllAtOnce(Full):
    """The cohorts of another participation, for a run that keeps a row for everybody from the start."""

    def __init__(self, of: Participation) -> None:
        object.__setattr__(self, "of", of)

    def __call__(self, t: int, n: int, seed: int) -> np.ndarray:
        return self.of(t, n, seed)  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("participation", [UniformSampling(3), BernoulliSampling(0.3)], ids=repr)
@pytest.mark.parametrize("name", STARS)
def test_a_run_that_meets_clients_one_by_one_is_the_run_that_has_them_all(name, participation):
    a = STARS[name]
    p = toy.problem(h=toy.SPARSE if a.needs.composite else RIDGE, sizes=SIZES, batch=4, weighting="size")
    lazy, eager = (
        run_of(p, a, Stacked(p.f.n, p.f.d), kind, seed=2) for kind in (participation, AllAtOnce(participation))
    )
    assert not lazy.rows.everyone
    assert eager.rows.everyone
    for t in (1, 2, 5):
        for run in (lazy, eager):
            with small_blocks(2, threads=2):
                run.round(t)
        must_equal(lazy, eager, "clients met one by one and all at once")


def test_rows_are_those_of_the_clients_that_were_met():
    p = toy.problem(h=RIDGE, sizes=SIZES)
    run, met = run_of(p, Scaffold(0.1, 2), Stacked(p.f.n, p.f.d), UniformSampling(2)), set()
    for t in range(1, 4):
        run.round(t)
        met |= set(UniformSampling(2)(t, p.f.n, 0).tolist())
        assert run.rows.met == len(met)
    assert len(met) < p.f.n
    pieces = list(run.changes())
    assert [i for piece in pieces for i in piece[MET].tolist()] == sorted(met)
    assert list(run.changes()) == []
    run.round(4)
    (piece,) = run.changes()
    assert piece[MET].tolist() == UniformSampling(2)(4, p.f.n, 0).tolist()


def test_clients_without_state_have_no_rows_and_the_start_visits_no_client(monkeypatch):
    p = toy.problem(h=RIDGE, sizes=SIZES)
    asked = []
    local = type(p.f).local
    monkeypatch.setattr(
        type(p.f), "local", lambda self, t, ids, seed=0: asked.append(len(ids)) or local(self, t, ids, seed)
    )
    for a in (FedAvg(0.1, 2), Scaffold(0.1, 2)):
        run_of(p, a, Stacked(p.f.n, p.f.d), UniformSampling(2))
    assert asked == [1, 1]
    run = after(run_of(p, FedAvg(0.1, 2), Stacked(p.f.n, p.f.d), UniformSampling(2)), 5)
    assert run.rows.met == 0
    assert run.rows.row_bytes == 0
    assert list(run.changes()) == []


def test_rows_past_the_limit_are_in_a_file_and_the_same(monkeypatch):
    p = toy.problem(h=RIDGE, sizes=SIZES)
    whole = after(run_of(p, FedDyn(0.1, 2, 0.5), Stacked(p.f.n, p.f.d), UniformSampling(2)), 6)
    assert not whole.rows.on_disk
    moved = after(run_of(p, FedDyn(0.1, 2, 0.5), Stacked(p.f.n, p.f.d), UniformSampling(2)), 1)
    monkeypatch.setenv("PROXFED_STATE_GB", str(3.5 * moved.rows.row_bytes / 1e9))
    assert not moved.rows.on_disk
    after(moved, 6, since=1)
    assert moved.rows.on_disk
    must_equal(whole, moved, "rows in memory and in a file")
    monkeypatch.setenv("PROXFED_STATE_GB", "much")
    other = run_of(p, FedDyn(0.1, 2, 0.5), Stacked(p.f.n, p.f.d), UniformSampling(2))
    with pytest.raises(InputError, match="PROXFED_STATE_GB = 'much' must be a number >= 0"):
        other.round(1)


class State(NamedTuple):
    x: Tensor
    k: Tensor
    nothing: Tensor


def begin(ids, work):
    clients = torch.as_tensor(np.asarray(ids))
    return State(-clients[:, None].double().expand(-1, 3), clients.to(torch.int64), torch.empty(len(clients), 0))


@given(steps=st.lists(st.tuples(st.sets(st.integers(4, 15)).map(sorted), st.booleans()), max_size=12))
def test_rows_are_what_was_put_last_and_else_what_they_begin_with(steps):
    rows = ClientRows(range(4, 16), begin([4], Work()), begin, everyone=False)
    there = {i: (float(-i), i) for i in range(4, 16)}
    changed: set[int] = set()
    for t, (ids, settle) in enumerate(steps):
        before = rows.copy()
        rows.meet(ids)
        x = torch.full((len(ids), 3), 100.0 + t, dtype=torch.float64)
        new = State(x, torch.full((len(ids),), t), torch.empty(len(ids), 0))
        rows.put(np.array(ids, np.int64), new)
        assert before.all().k.tolist() == [k for _, k in there.values()]  # a copy has rows of its own
        there |= dict.fromkeys(ids, (100.0 + t, t))
        changed |= {*ids}
        for some in (range(4, 16), range(6, 9), np.array(ids, np.int64)):
            taken = rows.take(some, Work())
            assert taken.x[:, 0].tolist() == [there[int(i)][0] for i in some]
            assert taken.k.tolist() == [there[int(i)][1] for i in some]
        assert rows.changed().tolist() == sorted(changed)
        if settle:
            rows.settle()
            changed = set()
    assert rows.met == len({i for ids, _ in steps for i in ids})


# ---- checkpoints -----------------------------------------------------------------------------------------------------

SOME = [
    {"name": "scaffold", "eta": 0.5, "K": 3, "participation": {"name": "uniform", "m": 2}},
    {"name": "feddyn", "eta": 0.3, "K": 2, "alpha": 0.5, "participation": {"name": "bernoulli", "p": 0.3}},
    {"name": "scaffold", "label": "auto", "eta": "auto", "K": 2, "participation": {"name": "uniform", "m": 3}},
]


@pytest.fixture(scope="module")
def table() -> dict:
    return small(rounds=8, seeds=[1], every=2, algorithms=SOME, reference=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, table) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    assert execute(path, table)
    return path


@pytest.mark.parametrize("slack", [0, journal.SLACK], ids=["copied often", "never copied"])
@pytest.mark.parametrize("after", [2, 5, 9, 14, 18, 23])
def test_a_crash_after_any_round_is_forgotten(after, slack, whole, table, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "SLACK", slack)
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=after)
    assert execute(tmp_path / "run", table, resume=True)
    same(tmp_path / "run", whole)


@pytest.mark.parametrize("damage", ["journal", "slot", "journal is gone"])
def test_the_older_checkpoint_stands_in_for_a_damaged_one(damage, whole, table, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "SLACK", 0)
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=8)
    task = under_way(tmp_path / "run").path
    newest = under_way(tmp_path / "run").load()
    name, end, _ = newest.journal
    if damage == "journal":
        data = bytearray((task / name).read_bytes())
        data[end - 20] ^= 1
        (task / name).write_bytes(data)
    elif damage == "slot":
        max(task.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns).write_bytes(b"no")
    else:
        for path in task.glob("*.journal"):
            path.unlink()
        with pytest.raises(InputError, match="has no readable checkpoint"):
            execute(tmp_path / "run", table, resume=True)
        return
    assert under_way(tmp_path / "run").load().round < newest.round
    assert execute(tmp_path / "run", table, resume=True)
    same(tmp_path / "run", whole)


@pytest.mark.parametrize("what", ["another run", "swap", "repeat", "drop"])
def test_a_journal_is_believed_only_as_it_was_written(what, whole, table, tmp_path):
    """Whole records of the same size, but of a run with other settings, or in another order."""
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=8)
    task = under_way(tmp_path / "run")
    place = task.path / "0.journal"
    if what == "another run":
        with pytest.raises(Crash):
            execute(tmp_path / "other", table | {"problem": table["problem"] | {"l2": 0.3}}, crash_after=8)
        stranger = under_way(tmp_path / "other").path / "0.journal"
        assert stranger.stat().st_size == place.stat().st_size
        place.write_bytes(stranger.read_bytes())
    else:
        data = place.read_bytes()
        ends = [0, *(frame.end.size for frame in Log(place, task.of).frames(data))]
        a, b, *rest = (data[x:y] for x, y in pairwise(ends))
        assert len(a) == len(b)
        some = {"swap": [b, a], "repeat": [a, a], "drop": [b]}[what]
        place.write_bytes(b"".join([*some, *rest]))
    with pytest.raises(InputError, match="has no readable checkpoint"):
        execute(tmp_path / "run", table, resume=True)


def test_checkpoints_write_what_changed_and_keep_no_journal_that_nobody_needs(table, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "SLACK", 0)
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=8)
    task = under_way(tmp_path / "run").path
    journals = {path.name for path in task.glob("*.journal")}
    assert journals == {about["journal"][0] for about in under_way(tmp_path / "run")._slots.about().values()}
    assert max(int(name.partition(".")[0]) for name in journals) >= 1  # it was copied on the way
    found = under_way(tmp_path / "run").load()
    d = len(found.tensors["server.x"])
    assert found.tensors["clients.c"].shape == (len(found.tensors[MET]), d)
    assert len(found.tensors[MET]) <= 7
