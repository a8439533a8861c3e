"""What an algorithm of one's own may do: move parts of its state about, and send compressed messages down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from proxfed.compressors import RandK, TopK
from proxfed.engine import tuning
from proxfed.engine.compatibility import check_combination
from proxfed.engine.network import Stacked
from proxfed.engine.run import Run
from proxfed.engine.start import run_of
from proxfed.engine.state_measures import check_names
from proxfed.engine.states import leaves, put, take, writable
from proxfed.errors import InputError
from proxfed.keyed_random import keys
from proxfed.participation import Full, UniformSampling
from proxfed.regularisers import SquaredL2
from proxfed.topologies import Complete, Ring
from proxfed.types import Algorithm, Graph

from support import toy_problems as toy
from support.nested_state import Inner, Outer
from support.own_algorithms import CompressedDownlink, DecentralisedHeavyBall, ExtrapolatedGradients


@pytest.fixture(params=["whole", "blocks", "blocks on two cores"])
def spread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """All clients at once, or two at a time."""
    if request.param != "whole":
        monkeypatch.setattr(tuning, "BLOCK", 2 * toy.D)
        monkeypatch.setattr(tuning, "PARALLEL_FROM", 0)
    torch.set_num_threads(2 if request.param == "blocks on two cores" else 1)
    yield request.param
    torch.set_num_threads(1)


def begun(a: Algorithm, seed: int = 0, everyone: bool = True) -> Run:
    p = toy.problem(h=toy.SPARSE if a.needs.composite else SquaredL2(toy.LAMBDA))
    network = Stacked(p.f.n, p.f.d, Ring(p.f.n) if isinstance(a, Graph) else None)
    return run_of(p, a, network, Full() if everyone else UniformSampling(3), seed)


def after(run: Run, rounds: int, since: int = 0) -> Run:
    for t in range(since + 1, rounds + 1):
        run.round(t)
    return run


def dumped(run: Run) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in run.dump().items()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, x in one.items():
        assert torch.equal(x, other[name]), name


# ---- parts of a state that move --------------------------------------------------------------------------------------


@pytest.mark.parametrize("everyone", [True, False])
def test_a_client_may_move_a_field_of_its_state(spread: str, everyone: bool) -> None:
    moving, cloning = (begun(ExtrapolatedGradients(2.0, clones), everyone=everyone) for clones in (False, True))
    for t in range(1, 9):
        before = dumped(moving)["clients.z"]
        moving.round(t), cloning.round(t)
        assert_equal(dumped(moving), dumped(cloning))
        if everyone:
            assert torch.equal(dumped(moving)["clients.old.0"], before)
    if everyone:
        assert not torch.equal(dumped(moving)["clients.old.0"], dumped(moving)["clients.z"])


def test_a_peer_may_move_a_field_of_its_state(spread: str) -> None:
    moving, cloning = (begun(DecentralisedHeavyBall(0.5, 0.5, clones)) for clones in (False, True))
    for t in range(1, 9):
        before = dumped(moving)["clients.x"]
        moving.round(t), cloning.round(t)
        assert_equal(dumped(moving), dumped(cloning))
        assert torch.equal(dumped(moving)["clients.before"], before)


def nested() -> Outer:
    a, b, c = torch.arange(36.0).view(3, 4, 3)
    return Outer(a.clone(), Inner(b.clone(), (c.clone(), ())))


@pytest.mark.parametrize("rows", [slice(1, 3), np.array([0, 3])], ids=["slice", "some"])
def test_parts_may_trade_places(rows: slice | np.ndarray) -> None:
    state, old = nested(), nested()
    part = take(state, rows)
    put(state, rows, Outer(part.inner.b[0], Inner(part.x, (part.inner.a, ()))))
    for now, then in zip(leaves(state), (old.inner.b[0], old.x, old.inner.a), strict=True):
        assert torch.equal(now[rows], then[rows])
    others = [i for i in range(4) if i not in np.arange(4)[rows]]
    for now, then in zip(leaves(state), leaves(old), strict=True):
        assert torch.equal(now[others], then[others])


def test_a_part_may_be_a_view_of_its_own_place() -> None:
    state = (torch.arange(18.0).view(2, 3, 3),)
    put(state, slice(0, 2), (take(state, slice(0, 2))[0].mT,))
    assert torch.equal(state[0], torch.arange(18.0).view(2, 3, 3).mT)


def test_only_what_moves_is_copied_and_only_what_changes_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    state = nested()
    copies: list[Tensor] = []
    clone = Tensor.clone
    monkeypatch.setattr(Tensor, "clone", lambda x: copies.append(x) or clone(x))
    part = take(state, slice(0, 4))
    versions = [x._version for x in leaves(state)]
    put(state, slice(0, 4), Outer(part.x + 1, Inner(part.inner.a, (part.inner.b[0] * 2, ()))))
    assert copies == []
    assert [x._version - v for x, v in zip(leaves(state), versions, strict=True)] == [1, 0, 1]
    put(state, slice(0, 4), Outer(part.x, Inner(part.x, part.inner.b)))
    assert len(copies) == 1


def test_a_state_whose_parts_share_memory_can_be_made_writable() -> None:
    x = torch.arange(12.0).view(4, 3)
    shared, spread = (x, x), (x[0].expand(4, -1), x + 1)
    for state in (shared, spread):
        own = writable(state)
        put(own, slice(0, 2), tuple(part * 0 for part in take(own, slice(0, 2))))
        for part, before in zip(own, state, strict=True):
            assert torch.equal(part[2:], before[2:])
            assert part[:2].abs().sum() == 0
    apart = (x, x + 1)
    assert writable(apart) is apart


def test_blocks_may_begin_in_the_middle_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixing over a complete graph leaves rows that share memory; the next round writes them one by one."""
    p = toy.problem(h=SquaredL2(toy.LAMBDA))
    a = DecentralisedHeavyBall(0.5, 0.5)
    whole, later = (run_of(p, a, Stacked(p.f.n, p.f.d, Complete(p.f.n))) for _ in range(2))
    after(whole, 6)
    after(later, 3)
    monkeypatch.setattr(tuning, "BLOCK", 2 * p.f.d)
    after(later, 6, since=3)
    for name, x in whole.dump().items():
        torch.testing.assert_close(later.dump()[name], x, rtol=0, atol=1e-13)


# ---- a compressed downlink -------------------------------------------------------------------------------------------

RANDOM = CompressedDownlink(1.0, RandK(k=3))


def test_a_random_downlink_converges_to_the_solution(spread: str) -> None:
    run = after(begun(RANDOM), 600)
    assert toy.error(run.model().numpy(), toy.solution(run.problem)) < 1e-8
    server, clients = run.state.server, run.state.clients
    torch.testing.assert_close(clients.w, server.w.expand(toy.N, -1), rtol=0, atol=1e-14)


def test_every_client_receives_the_servers_one_message(spread: str) -> None:
    """The key is the server's own: of the seed and the round, not of the clients or where they live."""
    run = begun(RANDOM, seed=5)
    for t in range(1, 5):
        x, w = run.state.server
        D = RANDOM.downlink((x - w)[None], keys(5, "server message", [0], t))
        known = run.state.clients.w.clone()
        run.round(t)
        assert torch.equal(run.state.clients.w, known + D.dense[0])
        assert torch.equal(run.state.server.w, w + D.dense[0])
    assert not torch.equal(run.model(), after(begun(RANDOM, seed=6), 4).model())


@pytest.mark.parametrize("compressor", [RandK(k=3), TopK(k=2)])
def test_bytes_of_a_compressed_downlink(spread: str, compressor: RandK | TopK) -> None:
    run, rounds = begun(CompressedDownlink(1.0, compressor)), 4
    best = 0
    for t in range(1, rounds + 1):
        (x, w), key = run.state.server, keys(0, "server message", [0], t)
        best += toy.N * compressor((x - w)[None], key).best
        run.round(t)
    one = compressor(torch.ones(1, toy.D, dtype=torch.float64), keys(0, "any", [0], 0)).nbytes
    assert one < toy.D * 8
    assert run.network.traffic.down == rounds * toy.N * one
    assert run.network.traffic.up == rounds * toy.N * toy.D * 8
    assert run.network.traffic.best == best + run.network.traffic.up


def test_a_compressed_downlink_goes_on_after_a_dump(spread: str) -> None:
    whole = after(begun(RANDOM), 3)
    resumed = begun(RANDOM)
    resumed.load(dumped(whole), whole.counters() | {"wall_seconds": 0.0})
    after(whole, 8, since=3), after(resumed, 8, since=3)
    assert_equal(dumped(whole), dumped(resumed))
    assert whole.counters() == resumed.counters()


def test_blocks_do_not_matter_to_a_compressed_downlink(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = begun(RANDOM), begun(RANDOM)
    after(whole, 6)
    monkeypatch.setattr(tuning, "BLOCK", 2 * toy.D)
    after(parts, 6)
    for name, x in whole.dump().items():
        torch.testing.assert_close(parts.dump()[name], x, rtol=0, atol=1e-13)
    assert whole.counters() == parts.counters()


def test_a_compressor_is_checked_whatever_its_field_is_called() -> None:
    p = toy.problem()
    check_combination(p, RANDOM, None, Full())
    with pytest.raises(InputError, match="CompressedDownlink needs a contractive compressor"):
        check_combination(p, replace(RANDOM, downlink=RandK(k=1, unbiased=True)), None, Full())
    with pytest.raises(InputError, match=f"k = {toy.D + 1} must be at most"):
        check_combination(p, replace(RANDOM, downlink=TopK(k=toy.D + 1)), None, Full())


# ---- measures --------------------------------------------------------------------------------------------------------


def test_the_fields_of_a_state_are_known_without_annotations() -> None:
    check_names(["consensus_before", "consensus_x"], [DecentralisedHeavyBall(0.5, 0.5)], toy.problem())
    with pytest.raises(InputError, match="no algorithm here has 'consensus_after'"):
        check_names(["consensus_after"], [DecentralisedHeavyBall(0.5, 0.5)], toy.problem())
