"""Simulated seconds: by hand where that is short, against a plain loop where it is not, and the same live as after."""

# ruff: noqa: E501
from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import proxfed, refused
from proxfed.algorithms import ALGORITHMS
from proxfed.compressors import LowRank
from proxfed.errors import InputError
from proxfed.participation import Bernoulli, Full, Uniform
from proxfed.record import COLUMNS, RunFolder
from proxfed.simulate import Timing, clock, profiles
from proxfed.simulate.after import seconds, simulate, simulate_in_place
from proxfed.simulate.amounts import Amounts, amount
from proxfed.simulate.exchanges import exchanges
from proxfed.topologies import Complete, Exponential, RandomMatching, Ring
from proxfed.types import Topology

from experiments import Crash, execute, small

LINK = {"latency": 0.5, "up": 8.0, "down": 16.0}  # 8 Mbit/s: one million bytes a second
FEDAVG = ALGORITHMS["fedavg"](eta=0.1, K=1)
DPSGD = ALGORITHMS["dpsgd"](eta=0.1)


def timing(*steps: Any, links: list[dict] | None = None, **more: Any) -> Timing:
    return Timing.read({"devices": [{"seconds_per_step": s} for s in steps], "links": links or [LINK], **more})


def star(t: Timing, n: int, participation: Any = Full(), seed: int = 0):
    return clock(t, FEDAVG, participation, None, n, seed)


def graph(t: Timing, topology: Topology, seed: int = 0, algorithm: Any = DPSGD):
    return clock(t, algorithm, Full(), topology, topology.n, seed)


def row(t: int, gradients: float = 0, up: float = 0, down: float = 0, edge: float = 0) -> dict[str, Any]:
    return {"round": t, "gradients": gradients, "bytes_up": up, "bytes_down": down, "bytes_edge": edge}


# ---- with a server -------------------------------------------------------------------------------------------------


def test_a_round_takes_as_long_as_its_straggler() -> None:
    """Three clients, two steps, 1 MB down in half a second and 2 MB up in two; the server takes a quarter."""
    run = star(timing(0.1, 0.2, 1.0, server_seconds=0.25), 3)
    one_round = (0.5 + 0.5) + 2 * 1.0 + (0.5 + 2.0) + 0.25
    assert run(row(0)) == 0
    assert run(row(1, 6, up=6e6, down=3e6)) == pytest.approx(one_round)
    assert run(row(3, 18, up=18e6, down=9e6)) == pytest.approx(3 * one_round)


def test_what_is_done_before_the_first_round_counts_as_work_without_a_server() -> None:
    assert star(timing(0.1, 1.0, server_seconds=9.0), 2)(row(0, 4)) == pytest.approx(2 * 1.0)


def test_devices_and_links_go_round_and_some_clients_have_their_own() -> None:
    t = Timing.read(
        {
            "devices": [
                {"seconds_per_step": 1.0},
                {"seconds_per_step": 2.0},
                {"seconds_per_step": 7.0, "clients": [3]},
            ],
            "links": [LINK, LINK | {"latency": 4.0, "clients": [1]}],
        }
    )
    alone = [star(t, 5, _Only(i))(row(1, 1, up=1e6)) for i in range(5)]
    assert alone == pytest.approx([1 + 1.5, 2 + 5.0, 1 + 1.5, 7 + 1.5, 1 + 1.5])


def test_step_scale_scales_the_steps_alone() -> None:
    once, thrice = timing(0.2), timing(0.2, step_scale=3.0)
    work = row(1, 5, up=1e6)
    assert star(thrice, 1)(work) - star(once, 1)(work) == pytest.approx(2 * 5 * 0.2)


class _Only:
    """One client takes part."""

    def __init__(self, i: int) -> None:
        self.i = i

    def __call__(self, t: int, n: int, seed: int) -> np.ndarray:
        return np.array([self.i])


@pytest.mark.parametrize("participation", [Uniform(3), Bernoulli(0.2)])
def test_only_those_who_take_part_are_waited_for(participation: Any) -> None:
    n, steps, rounds = 8, 4, 20
    paces = [float(2**i) for i in range(n)]
    cohorts = [participation(t, n, 5) for t in range(1, rounds + 1)]
    visits = sum(map(len, cohorts))
    expected = sum(steps * max(paces[i] for i in c) + 1.0 + 0.25 for c in cohorts if len(c))
    run = star(timing(*paces, links=[LINK | {"up": 4.0, "latency": 0.0}], server_seconds=0.25), n, participation, 5)
    assert run(row(rounds, steps * visits, up=5e5 * visits)) == pytest.approx(expected)


# ---- on a graph ----------------------------------------------------------------------------------------------------


def test_a_ring_of_three_with_one_slow_edge() -> None:
    """Steps of 1, 2, 3 s; a message takes 1.5 s, but 12 s between 0 and 1. T = (14, 13, 3.5), then (27, 27, 16.5)."""
    t = timing(1.0, 2.0, 3.0, edges=[{"between": [1, 0], "latency": 10.0, "bandwidth": 4.0}])
    run = graph(t, Ring(3))
    assert run(row(0)) == 0
    assert run(row(1, 3, edge=6e6)) == pytest.approx(14)
    assert run.network.T.tolist() == pytest.approx([14, 13, 3.5])  # type: ignore[attr-defined]
    assert run(row(2, 6, edge=12e6)) == pytest.approx(27)
    assert run.network.T.tolist() == pytest.approx([27, 27, 16.5])  # type: ignore[attr-defined]


def test_rounds_without_messages_do_not_wait() -> None:
    assert graph(timing(1.0, 5.0), Ring(4))(row(0, 8)) == pytest.approx(2 * 5.0)


GRAPHS = [Ring(6), Complete(5), Exponential(7), RandomMatching(5, seed=2)]
RANDOM = timing(
    {"name": "lognormal", "median": 0.3, "sigma": 1.0},
    {"name": "uniform", "low": 0.1, "high": 2.0},
    {"name": "exponential", "shift": 0.1, "mean": 1.0},
    links=[
        {"latency": {"name": "exponential", "shift": 0.0, "mean": 0.5}, "up": 2.0, "down": 3.0},
        {"latency": 0.1, "up": {"name": "lognormal", "median": 4.0, "sigma": 0.5}, "down": 1.0},
    ],
    edges=[
        {"between": [2, 1], "latency": 3.0, "bandwidth": {"name": "uniform", "low": 1.0, "high": 2.0}},
        {"between": [0, 1], "latency": {"name": "uniform", "low": 0.0, "high": 9.0}, "bandwidth": 0.5},
    ],
)


def plain_loop(t: Timing, topology: Topology, rounds: int, steps: int, size: float, seed: int, barrier: bool) -> float:
    """T_i(t), one edge after the other; with a barrier everybody waits for the slowest message of the round."""
    n = topology.n
    everyone = np.arange(n)

    def each(part: list, name: str, purpose: str) -> Callable[[int], np.ndarray]:
        drawn = Amounts([getattr(part[i % len(part)], name) for i in range(n)], everyone, purpose)
        return lambda t: drawn(seed, t)

    devices, links = list(t.devices), list(t.links)
    pace, latency = each(devices, "seconds_per_step", "seconds per step"), each(links, "latency", "latency")
    up, down = each(links, "up", "up"), each(links, "down", "down")
    T = np.zeros(n)
    for k in range(1, rounds + 1):
        done = T + steps * pace(k)
        arrived = done.copy()
        W = topology.W(k)
        for i, j in zip(W.row, W.col, strict=True):
            if i == j:
                continue
            wait, rate = max(latency(k)[i], latency(k)[j]), min(up(k)[j], down(k)[i])
            for e in t.edges:
                if set(e.between) == {i, j}:
                    ids = np.array([min(i, j) * n + max(i, j)])
                    wait = Amounts([e.latency], ids, "edge latency")(seed, k)[0]
                    rate = Amounts([e.bandwidth], ids, "edge bandwidth")(seed, k)[0]
            arrived[i] = max(arrived[i], done[j] + wait + size * 8e-6 / rate)
        T = np.full(n, arrived.max()) if barrier else arrived
    return float(T.max())


def spent(topology: Topology, rounds: int, steps: int, size: float) -> dict[str, Any]:
    """The row after so many rounds in which every edge carried `size` bytes."""
    lines = sum(int((topology.W(t).row != topology.W(t).col).sum()) for t in range(1, rounds + 1))
    return row(rounds, steps * topology.n * rounds, edge=size * lines)


@pytest.mark.parametrize("topology", GRAPHS, ids=lambda g: type(g).__name__)
def test_all_edges_at_once_are_the_plain_loop(topology: Topology) -> None:
    for seed in range(3):
        found = graph(RANDOM, topology, seed)(spent(topology, 9, 2, 3e5))
        assert found == pytest.approx(plain_loop(RANDOM, topology, 9, 2, 3e5, seed, barrier=False))


@settings(deadline=None, max_examples=15)
@given(topology=st.sampled_from(GRAPHS), seed=st.integers(0, 99), size=st.sampled_from([1.0, 1e5, 1e7]))
def test_waiting_for_neighbours_is_never_slower_than_waiting_for_all(topology: Any, seed: int, size: float) -> None:
    found = graph(RANDOM, topology, seed)(spent(topology, 6, 3, size))
    assert found <= plain_loop(RANDOM, topology, 6, 3, size, seed, barrier=True) * (1 + 1e-12)


def test_and_where_all_are_neighbours_at_no_distance_it_is_the_same() -> None:
    near = timing(
        {"name": "exponential", "shift": 0.1, "mean": 1.0}, links=[{"latency": 0.0, "up": 1e15, "down": 1e15}]
    )
    for seed in range(4):
        found = graph(near, Complete(6), seed)(spent(Complete(6), 12, 2, 8.0))
        assert found == pytest.approx(plain_loop(near, Complete(6), 12, 2, 8.0, seed, barrier=True), rel=1e-9)
        on_a_ring = graph(near, Ring(6), seed)(spent(Ring(6), 12, 2, 8.0))
        assert on_a_ring < found  # somebody who is slow once delays only those nearby


def test_every_exchange_pays_its_latency() -> None:
    """One exchange of twice the bytes against two: the difference is one latency a round, and nothing else."""
    t, last = timing(0.1), row(4, 12, edge=24e6)
    once, twice = graph(t, Ring(3)), graph(t, Ring(3), algorithm=ALGORITHMS["depositum"](alpha=0.1))
    assert twice(last) - once(last) == pytest.approx(4 * LINK["latency"])


@pytest.mark.parametrize(
    ("algorithm", "count"),
    [
        (ALGORITHMS["dpsgd"](eta=0.1), 1),
        (ALGORITHMS["depositum"](alpha=0.1, T0=3), 2),
        (ALGORITHMS["dsgt"](alpha=0.1), 2),
        (ALGORITHMS["dfedsam"](eta=0.1, K=2, rho=0.1, Q=3), 3),
        (ALGORITHMS["choco_sgd"](eta=0.1, gamma=0.5, compressor=LowRank(1, (50, 60))), 1),
    ],
    ids=lambda a: type(a).__name__,
)
def test_exchanges_are_the_calls_of_mix(algorithm: Any, count: int) -> None:
    assert exchanges(algorithm) == count


def test_a_thousand_clients_and_rounds_take_no_time() -> None:
    t = timing(
        {"name": "lognormal", "median": 0.1, "sigma": 0.3},
        links=[LINK | {"latency": RANDOM.table()["links"][0]["latency"]}],
    )
    run = graph(t, Ring(1000))
    start = time.process_time()
    for k in range(1, 1001):
        run(row(k, 5000 * k, edge=1e6 * k))
    assert time.process_time() - start < 2


# ---- what must hold for any rows -----------------------------------------------------------------------------------


def timed(t: Timing, seed: int, rows: list[dict]) -> list[float]:
    """A star and two graphs, one after the other."""
    runs = [star(t, 6, Uniform(3), seed), graph(t, Ring(6), seed), graph(t, RandomMatching(6), seed)]
    return [run(r) for run in runs for r in rows]


ROWS = [row(0, 6), row(2, 40, 3e5, 6e5, 9e5), row(3, 70, 6e5, 9e5, 2e6), row(9, 200, 2e6, 2e6, 4e6)]


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 99), factor=st.floats(1.0, 50.0), key=st.sampled_from(["latency", "up", "down"]))
def test_a_worse_link_is_never_faster(seed: int, factor: float, key: str) -> None:
    base = {k: {"name": "uniform", "low": v / 2, "high": v} for k, v in LINK.items()}
    change = factor if key == "latency" else 1 / factor
    worse = {"name": "uniform", "low": change * LINK[key] / 2, "high": change * LINK[key]}
    pace = {"name": "exponential", "shift": 0.1, "mean": 0.2}
    before, after = (timed(timing(pace, links=[link]), seed, ROWS) for link in (base, base | {key: worse}))
    assert all(b <= a * (1 + 1e-12) for b, a in zip(before, after, strict=True))
    assert key == "down" or factor < 1 + 1e-6 or before[3] < after[3]  # a smaller change may be lost in rounding


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 99))
def test_time_goes_forward(seed: int) -> None:
    for k in range(3):
        found = timed(RANDOM, seed, ROWS)[4 * k : 4 * k + 4]
        assert found == sorted(found)
        assert found[-1] > 0


def test_rows_may_be_left_out_where_rounds_are_alike() -> None:
    every, few = ([row(t, 60 * t, 3e5 * t, 6e5 * t, 12e5 * t) for t in ts] for ts in (range(13), (0, 5, 12)))
    t = timing(0.1, 0.3, links=[LINK, LINK | {"up": 1.0}])
    assert timed(t, 1, few)[2::3] == pytest.approx(timed(t, 1, every)[12::13])


def test_the_seconds_depend_on_the_seed_alone() -> None:
    assert timed(RANDOM, 4, ROWS) == timed(RANDOM, 4, ROWS)
    assert timed(RANDOM, 4, ROWS) != timed(RANDOM, 5, ROWS)


# ---- amounts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "mean", "deviation"),
    [
        ({"name": "uniform", "low": 1.0, "high": 3.0}, 2.0, math.sqrt(4 / 12)),
        ({"name": "exponential", "shift": 1.0, "mean": 0.5}, 1.5, 0.5),
        (
            {"name": "lognormal", "median": 2.0, "sigma": 0.5},
            2 * math.exp(0.125),
            2 * math.exp(0.125) * math.sqrt(math.expm1(0.25)),
        ),
    ],
)
def test_distributions_have_their_mean_and_spread(table: dict, mean: float, deviation: float) -> None:
    drawn = Amounts([amount(table, "here", "seconds")] * 500, np.arange(500), "test")
    values = np.concatenate([drawn(0, t) for t in range(80)])
    assert abs(values.mean() - mean) < 5 * deviation / math.sqrt(len(values))
    assert values.std() == pytest.approx(deviation, rel=0.05)
    assert values.min() >= table.get("low", table.get("shift", 0))


def test_the_median_of_a_lognormal() -> None:
    drawn = Amounts(
        [amount({"name": "lognormal", "median": 2.0, "sigma": 1.0}, "here", "seconds")] * 999, np.arange(999), "test"
    )
    below = np.mean([np.mean(drawn(0, t) < 2.0) for t in range(40)])
    assert abs(below - 0.5) < 5 * 0.5 / math.sqrt(40 * 999)


@pytest.fixture
def phones(tmp_path: Path) -> Path:
    path = tmp_path / "phones.csv"
    path.write_text("device,seconds\nold,5\nnew,1\nold,6\nnew,2\nnew,4\n")
    return path


def test_a_trace_is_played_in_a_loop(phones: Path) -> None:
    trace = {"name": "trace", "file": str(phones), "device": "new"}
    offsets = set()
    for seed in range(12):
        run = star(timing(trace, links=[{"latency": 0.0, "up": 1.0, "down": 1.0}]), 1, seed=seed)
        took = np.diff([run(row(t, t)) for t in range(8)])
        first = [1, 2, 4].index(took[0])
        assert list(took) == [[1, 2, 4][(first + k) % 3] for k in range(7)]
        offsets.add(first)
    assert offsets == {0, 1, 2}


def test_lines_of_a_link_trace_stay_together(tmp_path: Path) -> None:
    """Where one line has a long latency and a fast link and another one the opposite, nobody meets the worst of both."""
    (tmp_path / "wifi.csv").write_text("latency, up, down\n10,8,8\n0,0.8,0.8\n")
    run = star(timing(0.0, links=[{"trace": str(tmp_path / "wifi.csv")}]), 3)
    took = np.diff([run(row(t, 0, up=3e6 * t)) for t in range(6)])
    assert set(took.round(9)) <= {10 + 1, 0 + 10}


def test_a_trace_that_has_changed_is_refused(phones: Path) -> None:
    table = timing({"name": "trace", "file": str(phones), "device": "old"}).table()
    assert Timing.read(table).table() == table
    phones.write_text(phones.read_text() + "old,7\n")
    with pytest.raises(InputError, match="has changed since the run"):
        Timing.read(table)


# ---- profiles and bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", profiles())
def test_profiles_are_whole_and_say_whose_they_are(name: str) -> None:
    t = Timing.read({"profile": name})
    assert Timing.read(t.table()) == t
    found = timed(t, 0, ROWS)
    assert all(math.isfinite(x) and x > 0 for x in found)
    assert (
        "The\n# numbers are ours" in profiles()[name].read_text()
        or "The numbers are ours" in profiles()[name].read_text()
    )


def test_a_given_key_replaces_the_profiles() -> None:
    t = Timing.read({"profile": "wan", "links": [LINK]})
    assert t.devices == Timing.read({"profile": "wan"}).devices
    assert [link.up for link in t.links] == [amount(8.0, "", "")]


DEVICE = {"seconds_per_step": 1.0}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"profile": "wann"}, r"there is no profile 'wann'; did you mean 'wan'"),
        ({"profile": 3}, r"there is no profile 3; known: fednag_wifi, lan, phones_4g, wan"),
        ({}, r"time: the key 'devices' is missing; .*fednag_wifi"),
        ({"devices": [DEVICE]}, r"time: the key 'links' is missing"),
        ({"devices": [DEVICE], "links": [LINK], "link": []}, r"time: unknown key 'link'; did you mean 'links'"),
        ({"devices": [], "links": [LINK]}, r"time\.devices = \[\] must be one or more tables"),
        ({"devices": [3], "links": [LINK]}, r"time\.devices\.0 = 3 must be a table"),
        ({"devices": [{}], "links": [LINK]}, r"time\.devices\.0: the key 'seconds_per_step' is missing"),
        ({"devices": [{"seconds_per_step": -1.0}], "links": [LINK]}, r"time\.devices\.0\.seconds_per_step: .*value = -1\.0 must be >= 0"),
        ({"devices": [{"seconds_per_step": "1"}], "links": [LINK]}, r"time\.devices\.0\.seconds_per_step = '1' must be a table"),
        ({"devices": [{"seconds_per_step": {"name": "normal"}}], "links": [LINK]}, r"seconds_per_step: there is no 'normal'; did you mean 'lognormal'"),
        ({"devices": [{"seconds_per_step": {"name": "uniform", "low": 2.0, "high": 1.0}}], "links": [LINK]}, r"low = 2\.0 must be <= high = 1\.0"),
        ({"devices": [DEVICE | {"pace": 1}], "links": [LINK]}, r"time\.devices\.0: unknown key 'pace'"),
        ({"devices": [DEVICE], "links": [LINK | {"up": 0}]}, r"time\.links\.0\.up = 0 must be > 0 Mbit/s"),
        ({"devices": [DEVICE], "links": [LINK | {"down": {"name": "exponential", "shift": 0.0, "mean": 1.0}}]}, r"time\.links\.0\.down .* must be > 0"),
        ({"devices": [DEVICE], "links": [LINK], "edges": [{"between": [1, 1], "latency": 1.0, "bandwidth": 1.0}]}, r"time\.edges\.0\.between = \[1, 1\] must be two different clients"),
        ({"devices": [DEVICE], "links": [LINK], "step_scale": 0}, r"step_scale = 0\.0 must be > 0"),
        ({"devices": [DEVICE], "links": [LINK], "step_scale": "2"}, r"time\.step_scale = '2' is not allowed"),
        ({"devices": [DEVICE], "links": [LINK], "server_seconds": -1}, r"time\.server_seconds.*= -1\.0 must be >= 0"),
    ],
)  # fmt: skip
def test_bad_tables_are_one_sentence(table: dict, says: str) -> None:
    with pytest.raises(InputError, match=says) as refusal:
        Timing.read(table)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"devices": [DEVICE | {"clients": [4]}, DEVICE], "links": [LINK]}, r"time\.devices\.0\.clients = \[4\]: there is no client 4, only 0 to 3"),
        ({"devices": [DEVICE | {"clients": [0, 1]}], "links": [LINK]}, r"time\.devices: 2 of the 4 clients get none"),
        ({"devices": [DEVICE], "links": [LINK, LINK | {"clients": [2, 2]}]}, r"time\.links\.1\.clients: client 2 is named twice"),
        ({"devices": [DEVICE], "links": [LINK], "edges": [{"between": [0, 1], "latency": 1.0, "bandwidth": 1.0}, {"between": [1, 0], "latency": 2.0, "bandwidth": 1.0}]}, r"time\.edges\.1\.between = \[1, 0\] has an entry already"),
        ({"devices": [DEVICE], "links": [LINK], "edges": [{"between": [0, 9], "latency": 1.0, "bandwidth": 1.0}]}, r"time\.edges\.0\.between = \[0, 9\]: there is no client 9"),
    ],
)  # fmt: skip
def test_clients_that_do_not_exist(table: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Timing.read(table).check(4)


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        (None, {}, r"cannot read file = .*No such file"),
        ("seconds\n", {}, r"no lines below its header"),
        ("second\n1\n", {}, r"no column 'seconds'; did you mean 'second'"),
        ("seconds\n1\nfast\n", {}, r"line 3: seconds = 'fast' must be a number >= 0"),
        ("seconds\n1\n-1\n", {}, r"line 3: seconds = '-1' must be a number >= 0"),
        ("device,seconds\nold,1\n", {}, r"no lines of device = None; known: old"),
        ("device,seconds\nold,1\n", {"device": "odd"}, r"no lines of device = 'odd'; did you mean 'old'"),
        ("seconds\n1\n", {"device": "old"}, r"no column 'device'"),
    ],
)
def test_bad_traces_are_one_sentence(text: str | None, more: dict, says: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(InputError, match=says):
        timing({"name": "trace", "file": str(tmp_path / "trace.csv")} | more)


# ---- runs ----------------------------------------------------------------------------------------------------------


def column(path: Path) -> list[float]:
    return [row["sim_seconds"] for row in RunFolder(path).rows()]


WIFI = {"profile": "fednag_wifi"}
KEPT = ("fedavg", "fednag", "depositum, one peer", "dfedadmm")


def few(**changes: Any) -> dict:
    """Partial participation, a round without anybody, and two graphs that change."""
    table = small(rounds=5, seeds=[0, 3], reference=False, **{"every": 2} | changes)
    return table | {"algorithms": [a for a in table["algorithms"] if a.get("label", a["name"]) in KEPT]}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "run"
    execute(path, few())
    return path


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "run"
    execute(path, few(time=WIFI))
    return path


def test_live_and_after_are_the_same_to_the_bit(plain: Path, live: Path, tmp_path: Path) -> None:
    assert set(column(plain)) == {None}
    after = simulate(plain, Timing.read(WIFI), tmp_path / "after")
    assert column(after.path) == column(live)
    assert after.config() == RunFolder(live).config()
    ended = [r["sim_seconds"] for r in RunFolder(live).rows() if r["round"] == 5]
    assert min(ended) > 0
    assert set(ended[::2]).isdisjoint(ended[1::2])  # the seeds
    same = [
        [{k: v for k, v in r.items() if k not in ("sim_seconds", "wall_seconds")} for r in RunFolder(p).rows()]
        for p in (live, after.path)
    ]
    assert same[0] == same[1]
    assert (after.path / "rows.csv").read_text().split("\n")[0].startswith(",".join(COLUMNS))


def test_the_run_folder_has_all_that_is_needed(live: Path) -> None:
    folder = RunFolder(live)
    assert folder.config()["time"]["devices"][0]["seconds_per_step"]["name"] == "lognormal"
    assert seconds(folder, Timing.read(folder.config()["time"])) == column(live)


@pytest.mark.parametrize("after", [1, 5, 6, 21, 40])
def test_a_resumed_run_has_the_same_seconds(after: int, live: Path, tmp_path: Path) -> None:
    table = few(time=WIFI)
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=after)
    execute(tmp_path / "run", table, resume=True)
    assert column(tmp_path / "run") == column(live)


def test_other_devices_are_other_settings(live: Path) -> None:
    with pytest.raises(InputError, match=r"other settings: time\."):
        execute(live, few(time={"profile": "lan"}), resume=True)


def test_bad_devices_are_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no client 7, only 0 to 6"):
        execute(tmp_path / "run", small(time=WIFI | {"devices": [DEVICE, DEVICE | {"clients": [7]}]}))
    assert not (tmp_path / "run").exists()


def test_in_place_it_stays_the_finished_run_that_it_was(live: Path, tmp_path: Path) -> None:
    execute(tmp_path / "run", few())
    models = (tmp_path / "run" / "model.safetensors").read_bytes()
    simulate_in_place(tmp_path / "run", Timing.read(WIFI))
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    execute(tmp_path / "run", few(time=WIFI), resume=True)
    assert column(tmp_path / "run") == column(live)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == models


def test_an_unfinished_run_is_not_rewritten_in_place(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        execute(tmp_path / "run", few(every=1), crash_after=8)
    with pytest.raises(InputError, match="is not finished"):
        simulate_in_place(tmp_path / "run", Timing.read(WIFI))
    copied = column(simulate(tmp_path / "run", Timing.read(WIFI), tmp_path / "copy").path)
    assert len(copied) == 8
    assert None not in copied


# ---- the command line and the report -------------------------------------------------------------------------------


def test_the_command(capsys: Any, plain: Path, live: Path, tmp_path: Path) -> None:
    goals = ["--target", "objective=1e9", "--target", "objective=0"]
    code, said, _ = proxfed(
        capsys, "simulate", str(plain), "--profile", "fednag_wifi", "--out", str(tmp_path / "new"), *goals
    )
    assert code == 0
    assert "Did not reach" in said
    assert column(tmp_path / "new") == column(live)
    assert '"sim_seconds"' in (tmp_path / "new" / "report.html").read_text()
    assert "there is no profile 'wify'" in refused(capsys, "simulate", str(plain), "--profile", "wify")
    assert "exists already" in refused(
        capsys, "simulate", str(plain), "--profile", "lan", "--out", str(tmp_path / "new")
    )
    assert "no table [time]" in refused(capsys, "simulate", str(plain))
    assert "exclude each other" in refused(capsys, "simulate", str(plain), "--profile", "lan", "--time", "x.toml")
    assert "not of the form" in refused(capsys, "simulate", str(plain), "--profile", "lan", "--target", "objective")
    said = refused(
        capsys, "simulate", str(plain), "--profile", "lan", "--target", "objectiv=1", "--out", str(tmp_path / "x")
    )
    assert "no measure 'objectiv'; did you mean 'objective'" in said
    assert not (tmp_path / "x").exists()


def test_the_command_with_a_file_of_your_own(capsys: Any, plain: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text('[time]\nprofile = "lan"\nstep_scale = 100.0\n')
    arguments = [
        "--time",
        str(tmp_path / "slow.toml"),
        "--out",
        str(tmp_path / "both"),
        "--target",
        "objective=1e9",
        "--format",
        "json",
    ]
    code, said, _ = proxfed(capsys, "simulate", str(plain), *arguments)
    assert code == 0
    [found] = json.loads(said)
    slow = {e["algorithm"]: e["sim_seconds"] for e in found["results"]}
    for entry in found["results"]:
        assert entry["reached"][0]["sim_seconds"] <= entry["sim_seconds"]
    fast = seconds(RunFolder(plain), Timing.read({"profile": "lan"}))
    assert min(slow.values()) > 20 * max(fast)
    assert RunFolder(tmp_path / "both").config()["time"]["step_scale"] == 100.0


def test_profiles_are_listed(capsys: Any) -> None:
    code, said, _ = proxfed(capsys, "list", "profiles")
    assert code == 0
    assert all(name in said for name in profiles())
