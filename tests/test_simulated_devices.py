"""Devices, links and traces: distributions are what they say, and what is not allowed is one sentence."""

# ruff: noqa: E501
from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from proxfed.errors import InputError
from proxfed.simulate import Timing, origin, profiles
from proxfed.simulate.distributions import Amounts, Trace, amount

from support.clock_rows import DEVICE, LINK, ROWS, row, star, timed, timing

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
    text = " ".join(profiles()[name].read_text().replace("#", "").split())
    assert ("fits the six times" if name == "fednag_paper" else "The numbers are ours") in text
    medians = sorted(float(m) for m in re.findall(r"seconds_per_step = (?:\{.*?median = )?([\d.]+)", text))
    steps = (
        f"a step of {medians[0]:g} s" if medians[0] == medians[-1] else f"a step of {medians[0]:g} to {medians[-1]:g} s"
    )
    said = origin({"profile": name})
    assert said.startswith(f"simulated seconds are for the profile '{name}': {steps}, and the links, are ")
    assert said.endswith("time.step_scale = 1 multiplies a step: set it for your model and devices")


def test_own_devices_and_links_have_no_origin_of_ours() -> None:
    assert origin({"devices": [DEVICE], "links": [LINK]}) == origin({}) == ""
    assert origin({"profile": "wan", "devices": [DEVICE], "links": [LINK]}) == ""
    assert "step_scale = 0.01" in origin(Timing.read({"profile": "wan", "step_scale": 0.01}).table())


def test_a_given_key_replaces_the_profiles() -> None:
    t = Timing.read({"profile": "wan", "links": [LINK]})
    assert t.devices == Timing.read({"profile": "wan"}).devices
    assert [link.up for link in t.links] == [amount(8.0, "", "")]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"profile": "wann"}, r"there is no profile 'wann'; did you mean 'wan'"),
        ({"profile": 3}, r"there is no profile 3; known: fednag_paper, fednag_wifi, lan, phones_4g, wan"),
        ({}, r"time: the key 'devices' is missing; .*fednag_paper"),
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
        ("seconds\n1\n\n-1\n", {}, r"line 4: seconds = '-1' must be a number >= 0"),
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


def test_a_trace_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_bytes("\ufeffseconds , device\r\n1.5, old \r\n9,new\r\n\r\n2.5,old\r\n".encode())
    trace = Trace(str(tmp_path / "trace.csv"), "seconds", "old")
    assert trace.values.tolist() == [1.5, 2.5]


def test_amounts_of_some_are_those_among_all(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("seconds\n1\n2\n5\n")
    tables = [
        2.0,
        {"name": "lognormal", "median": 1.0, "sigma": 0.5},
        {"name": "trace", "file": str(trace)},
        {"name": "lognormal", "median": 3.0, "sigma": 0.1},
        {"name": "exponential", "shift": 0.5, "mean": 2.0},
    ]
    kinds = [amount(table, "here", "seconds") for table in tables]
    which = np.arange(40) % 5
    each = Amounts([kinds[k] for k in which], np.arange(40), "test")
    drawn = Amounts(kinds, np.arange(40), "test", which)
    some = np.array([3, 4, 11, 12, 25, 39])
    for t in range(4):
        np.testing.assert_array_equal(drawn(1, t), each(1, t))
        np.testing.assert_array_equal(drawn(1, t, some), each(1, t)[some])
