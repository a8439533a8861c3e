"""Contestants take turns: who fails says why, what others computed meanwhile is seen, and nothing stays behind."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

SCRIPT = """
import sys, time
sys.path.insert(0, {folder!r})
from turns import Clock, options
told = options(None, ("sleep", "compute", "fail"))
clock = Clock()
def one_round():
    with open({log!r}, "a") as file:
        print(told.workload, "begins", file=file)
    if told.workload == "fail" and len(clock.seconds) == 1:
        raise ValueError("the second round is too much")
    end = time.perf_counter() + 0.05
    while time.perf_counter() < end:
        time.sleep(0 if told.workload == "compute" else 0.05)
    with open({log!r}, "a") as file:
        print(told.workload, "ends", file=file)
clock.time(one_round, told.rounds)
clock.report(1.5, 2048)
"""


@pytest.fixture
def interleave(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("interleave")
    monkeypatch.setattr(module, "_busy", lambda: 0.0)  # whatever the machine does besides
    return module


@pytest.fixture
def contestant(interleave, tmp_path: Path):
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(SCRIPT.format(folder=str(BENCHMARKS), log=str(log)))
    return lambda name: interleave.Contestant(name, "", (sys.executable, str(script), name))


def test_one_round_each_in_turn(interleave, contestant, tmp_path: Path) -> None:
    scores = interleave.take_turns([contestant("sleep"), contestant("compute")], 3)
    said = (tmp_path / "log").read_text().splitlines()
    assert said == ["sleep begins", "sleep ends", "compute begins", "compute ends"] * 4
    for score in scores:
        assert len(score.seconds) == 3
        assert score.dropped == 0
        assert 0.05 <= score.median < 5
        assert (score.learned, score.memory) == (1.5, 2048)


def test_a_contestant_of_two_processes_computes_in_its_turn_alone(interleave, contestant, tmp_path: Path) -> None:
    twice = "import subprocess, sys; [p.wait() for p in [subprocess.Popen(sys.argv[1:]) for _ in range(2)]]"
    one = contestant("sleep")
    both = interleave.Contestant("both", "", (sys.executable, "-c", twice, *one.command), processes=2)
    scores = interleave.take_turns([both, contestant("compute")], 3)
    assert [len(score.seconds) for score in scores] == [3, 3]
    begins = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines() if "begins" in line]
    assert begins == ["sleep", "sleep", "compute"] * 4


def test_who_fails_says_why_and_the_others_go_on(interleave, contestant) -> None:
    broken, fine = interleave.take_turns([contestant("fail"), contestant("sleep")], 3)
    assert broken.failure == "ValueError: the second round is too much"
    assert len(fine.seconds) == 3
    nobody = interleave.Contestant("nobody", "", (sys.executable, "-c", "raise SystemExit('not installed')"))
    assert interleave.take_turns([nobody], 1)[0].failure == "not installed"


def test_turns_with_foreign_load_are_dropped_and_counted(interleave, contestant, monkeypatch) -> None:
    """A machine whose cores compute more than the contestant does, in every other turn."""
    busy, asked = 0.0, 0

    def load() -> float:
        nonlocal busy, asked
        asked += 1
        busy += 5.0 if asked % 4 == 0 else 0.0  # it is asked before and after each turn
        return busy

    monkeypatch.setattr(interleave, "_busy", load)
    score = interleave.take_turns([contestant("sleep")], 6)[0]
    assert (len(score.seconds), score.dropped) == (3, 3)


def test_what_the_machine_does_is_read_from_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("interleave")
    before, own = module._busy(), time.process_time()
    while time.process_time() - own < 0.2:
        pass
    assert module._busy() - before >= 0.15


def test_nothing_stays_behind(contestant, interleave) -> None:
    interleave.take_turns([contestant("sleep")], 1)
    said = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args"], capture_output=True, text=True, check=False)
    assert "script.py" not in said.stdout


def test_the_table_has_a_row_for_each_contestant(interleave, contestant) -> None:
    rows = interleave.table(
        [
            interleave.Score(interleave.Contestant("proxfed", "x", ()), 1.0, [1.0, 2.0, 3.0], 1, 1.0, 1024.0),
            interleave.Score(interleave.Contestant("loop", "y", ()), 1.0, [4.0, 4.0, 5.0], 0, 1.1, 1024.0),
            interleave.Score(interleave.Contestant("other", "z", ()), 1.0, [4.0, 4.0, 5.0], 0, 0.5, 1024.0),
            interleave.Score(interleave.Contestant("few", "", ()), 1.0, [4.0], 9, 1.0, 1024.0),
            interleave.Score(interleave.Contestant("gone", "", ()), failure="no network"),
        ]
    )
    assert [row[4] for row in rows[1:]] == ["1.00", "2.00", "2.00", "", ""]
    assert rows[1][5:7] == ("3", "1")
    assert "computes something else" in rows[3][0]
    assert "too few turns" in rows[4]
    assert "cannot be run: no network" in rows[5]


@pytest.mark.parametrize(
    ("before", "keep", "code"), [(2.0, False, 0), (1.6, False, 1), (None, False, 2), (1.6, True, 0)]
)
def test_a_ratio_that_grew_by_more_than_a_fifth_is_a_loss(
    monkeypatch: pytest.MonkeyPatch, interleave, tmp_path: Path, before: float | None, keep: bool, code: int
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    bench = importlib.import_module("bench")
    monkeypatch.setattr(bench, "HERE", tmp_path / "benchmarks")
    monkeypatch.setattr(bench, "KEPT", tmp_path / "benchmarks" / "kept.json")
    bench.HERE.mkdir()
    if before is not None:
        bench.KEPT.write_text(json.dumps({"a": before}))
    scores = [
        interleave.Score(interleave.Contestant("proxfed", "", ()), 0.0, [2.0, 2.0, 2.1]),
        interleave.Score(interleave.Contestant("the limit", "", ()), 0.0, [1.0, 1.0, 1.0]),
    ]
    assert bench.regress({"a": scores}, keep) == code
    assert not keep or json.loads(bench.KEPT.read_text()) == {"a": 2.0}
