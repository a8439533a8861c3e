"""Bad input of the Python API: one sentence that names the argument, the value and what is allowed; and no traces."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from proxfed import Entry, Patience, Stop, Study, compare, run, run_study
from proxfed.algorithms import Depositum, FedAvg
from proxfed.errors import InputError
from proxfed.participation import Full
from proxfed.topologies import Ring

from support.toy_problems import problem

AVG, GRAPH = FedAvg(eta=0.1, K=1), Depositum(alpha=0.1)


def sentence(call: Any, expected: str) -> None:
    with pytest.raises(InputError) as refused:
        call()
    said = str(refused.value)
    assert re.search(expected, said), said
    assert "\n" not in said
    assert len(said) < 400


RUN: list[tuple[dict[str, Any], str]] = [
    ({"problem": None}, r"problem must be an object such as"),
    ({"problem": "logistic"}, r"problem must be an object such as .*, not 'logistic'"),
    ({"algorithm": None}, r"algorithm = None is not an algorithm"),
    ({"algorithm": "fedavg"}, r"algorithm = 'fedavg' is not an algorithm"),
    ({"algorithm": FedAvg}, r"is not an algorithm .*; give an object, FedAvg\(\.\.\.\)"),
    ({"rounds": -1}, r"rounds = -1 must be a whole number >= 1"),
    ({"rounds": 0}, r"rounds = 0 must be a whole number >= 1"),
    ({"rounds": 2.5}, r"rounds = 2\.5 must be a whole number"),
    ({"rounds": "5"}, r"rounds = '5' must be a whole number"),
    ({"rounds": True}, r"rounds = True must be a whole number"),
    ({"every": 0}, r"every = 0 must be a whole number >= 1"),
    ({"every": None}, r"every = None must be a whole number >= 1"),
    ({"seed": 0.5}, r"seed = 0\.5 must be a whole number"),
    ({"seed": None}, r"seed = None must be a whole number"),
    ({"topology": Ring(5)}, r"FedAvg has a server and takes no graph"),
    ({"topology": "ring"}, r"topology must be an object such as .*, not 'ring'"),
    ({"algorithm": GRAPH}, r"Depositum works on a graph: give a topology, such as Ring\(5\)$"),
    ({"algorithm": GRAPH, "topology": Ring(4)}, r"the topology has 4 nodes, but the problem 5 clients"),
    ({"participation": "full"}, r"participation must be an object such as Full\(\)"),
    ({"participation": Full}, r"participation must be an object such as .*, not .*"),
    ({"participation": None}, r"participation must be an object such as .*, not None"),
    ({"reference": "yes"}, r"reference = 'yes' must be a tensor of shape \(10,\)"),
    ({"reference": torch.zeros(3)}, r"reference = .* must be a tensor of shape \(10,\)"),
    ({"reference": torch.full((10,), torch.nan)}, r"reference must be finite"),
    ({"reference": torch.zeros(10, dtype=torch.cfloat)}, r"reference = .* must be a tensor of shape \(10,\)"),
    ({"measures": "consensus_y"}, r"measures = 'consensus_y' must be a list of names"),
    ({"measures": ["consensus_y"]}, r"measures: no algorithm here has 'consensus_y'"),
    ({"measures": [3]}, r"measures = \[3\] must be a list of names"),
    ({"hooks": 3}, r"hooks = 3 must be a list of functions of a Moment"),
    ({"hooks": [3]}, r"hooks: 3 must be a function of a Moment"),
    ({"hooks": [Patience]}, r"hooks: <class .*Patience.*> must be a function of a Moment, or an object"),
    ({"hooks": [lambda moment: True]}, r"the hook .* returned True: return None, or Stop\(reason\)"),
    ({"hooks": [lambda moment: Stop("")]}, r"Stop\(reason = ''\): the reason must be a sentence"),
    ({"hooks": [Patience(3, "accuracy")]}, r"stop: rows have no measure 'accuracy'; they have round,"),
]


@pytest.mark.parametrize(("change", "expected"), RUN, ids=[str(k) for k in range(len(RUN))])
def test_run_refuses(change: dict[str, Any], expected: str) -> None:
    sentence(lambda: run(**({"problem": problem(), "algorithm": AVG, "rounds": 2} | change)), expected)


COMPARE: list[tuple[dict[str, Any], str]] = [
    ({"problem": None}, r"problem must be an object such as .*, not None"),
    (
        {"problem": None, "algorithms": {"a": Entry(AVG, problem=problem())}},
        r"problem must be an object such as .*, not None",
    ),
    ({"algorithms": [AVG]}, r"algorithms = .* must be a dict of labels and algorithms"),
    ({"algorithms": {}}, r"a study needs at least one algorithm"),
    ({"algorithms": {"a": "fedavg"}}, r"'fedavg' is not an algorithm"),
    ({"algorithms": {"a/b": AVG}}, r"the label 'a/b' must be .* without '/'"),
    ({"algorithms": {"": AVG}}, r"the label '' must be"),
    ({"algorithms": {" ": AVG}}, r"the label ' ' must be"),
    ({"algorithms": {"a\nb": AVG}}, r"the label 'a\\nb' must be .* in one line"),
    ({"algorithms": {3: AVG}}, r"the label 3 must be"),
    ({"algorithms": {"a": Entry(AVG, rounds=0)}}, r"algorithms\.a\.rounds = 0 must be a whole number >= 1"),
    ({"algorithms": {"a": Entry(AVG, rounds="2")}}, r"algorithms\.a\.rounds = '2' must be"),
    ({"algorithms": {"a": Entry(AVG, topology=Ring(5))}}, r"algorithms\.a: FedAvg has a server"),
    (
        {"algorithms": {"a": Entry(GRAPH, topology="ring")}},
        r"algorithms\.a: topology must be an object such as .*, not 'ring'",
    ),
    (
        {"algorithms": {"a": Entry(AVG, participation="full")}},
        r"algorithms\.a: participation must be an object such as .*, not 'full'",
    ),
    (
        {"algorithms": {"a": Entry(AVG, problem="mine")}},
        r"algorithms\.a: problem must be an object such as .*, not 'mine'",
    ),
    ({"algorithms": {"a": GRAPH}}, r"algorithms\.a: Depositum works on a graph: give a topology"),
    ({"algorithms": {"a": GRAPH}, "topology": Ring(3)}, r"the topology has 3 nodes, but the problem 5 clients"),
    ({"rounds": 0}, r"rounds = 0 must be a whole number >= 1"),
    ({"rounds": "5"}, r"rounds = '5' must be"),
    ({"seeds": 0}, r"seeds = 0 must be a list of whole numbers, or how many"),
    ({"seeds": -2}, r"seeds = -2 must be"),
    ({"seeds": []}, r"seeds = \[\] must be a list of whole numbers"),
    ({"seeds": [0, 0]}, r"seeds = \[0, 0\]: a seed is given twice"),
    ({"seeds": [0.5]}, r"seeds = \[0\.5\] must be a list of whole numbers"),
    ({"seeds": "01"}, r"seeds = '01' must be"),
    ({"seeds": None}, r"seeds = None must be"),
    ({"seeds": True}, r"seeds = True must be"),
    ({"name": 5}, r"name = 5 must be a text"),
    ({"name": ""}, r"name = '' must be"),
    ({"topology": "ring"}, r"topology must be an object such as Ring"),
    ({"topology": Ring}, r"topology must be an object such as .*, not .*"),
    ({"participation": "full"}, r"participation must be an object such as Full\(\)"),
    ({"participation": None}, r"participation must be an object such as .*, not None"),
    ({"every": 0}, r"every = 0 must be"),
    ({"reference": "yes"}, r"reference = 'yes' must be True or False"),
    ({"measures": "consensus"}, r"measures = 'consensus' must be a list of names"),
    ({"measures": ["consensus_q"]}, r"measures: no algorithm here has 'consensus_q'"),
    ({"targets": ["gap"]}, r"targets = \['gap'\] must be a dict"),
    ({"targets": {"acuracy": 0.9}}, r"targets: there is no measure 'acuracy'"),
    ({"targets": {"gap": "small"}}, r"targets\.gap = 'small' must be a number, or a list of numbers"),
    ({"targets": {"gap": None}}, r"targets\.gap = None must be"),
    ({"targets": {"gap": [True]}}, r"targets\.gap = \[True\] must be"),
    ({"timing": 5}, r"timing = 5 must be a Timing, a table, or the name of a profile \(.*lan"),
    ({"timing": "lam"}, r"there is no profile 'lam'; did you mean 'lan'\?"),
    ({"timing": {"speed": 3}}, r"time: unknown key 'speed'"),
    ({"out": 5}, r"out = 5 must be the path of a folder"),
    ({"only": "b"}, r"no algorithm has the label 'b'"),
    ({"only": ["a", "b"]}, r"no algorithm has the label 'b'"),
    ({"only": 3}, r"only = 3 must be a label, or a list of labels"),
    ({"only": [3]}, r"only = \[3\] must be"),
    ({"jobs": 0}, r"jobs = 0 must be a whole number >= 1"),
    ({"jobs": "two"}, r"jobs = 'two' must be a whole number >= 1"),
    ({"jobs": 1.5}, r"jobs = 1\.5 must be"),
    ({"ranks": 0}, r"ranks = 0 must be a whole number >= 1"),
    ({"ranks": True}, r"ranks = True must be a whole number >= 1"),
    ({"ranks": "2"}, r"ranks = '2' must be"),
    ({"ranks": 6}, r"6 ranks for 5 clients: at most one rank per client"),
    ({"jobs": 2, "ranks": 2}, r"jobs = 2 and ranks = 2 exclude each other"),
]


@pytest.mark.parametrize(("change", "expected"), COMPARE, ids=[str(k) for k in range(len(COMPARE))])
def test_compare_refuses_and_writes_nothing(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = {"problem": problem(), "algorithms": {"a": AVG}, "rounds": 2, "out": out, "progress": False} | change
    sentence(lambda: compare(**given), expected)
    assert not out.exists()


def test_a_folder_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "folder"):
        sentence(lambda out=out: compare(problem(), {"a": AVG}, 2, out=out), "exists and is not a run folder")
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["mine.txt"]


STUDY: list[tuple[dict[str, Any], str]] = [
    ({"description": 3}, r"description = 3 must be a text"),
    ({"stationarity_step": 0}, r"stationarity_step = 0 must be a finite number > 0"),
    ({"stationarity_step": "a"}, r"stationarity_step = 'a' must be"),
    ({"timing": "lan"}, r"timing = 'lan' must be a Timing"),
    ({"entries": None}, r"a study needs at least one algorithm"),
]


@pytest.mark.parametrize(("change", "expected"), STUDY, ids=[str(k) for k in range(len(STUDY))])
def test_study_refuses(change: dict[str, Any], expected: str) -> None:
    sentence(lambda: Study(**({"problem": problem(), "entries": {"a": AVG}, "rounds": 2} | change)), expected)


def test_run_study_takes_a_study() -> None:
    sentence(lambda: run_study("demo"), r"study must be a Study")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_reference_of_another_dtype_is_converted(dtype: torch.dtype) -> None:
    p = problem()
    reference = (10 * p.solve()).to(dtype)
    found, expected = (run(p, AVG, 2, reference=x, progress=False).rows for x in (reference, reference.double()))
    assert [row["error"] for row in found] == [row["error"] for row in expected]


def test_a_problem_and_an_algorithm_that_are_swapped_are_told_so() -> None:
    sentence(lambda: run(AVG, problem(), 2), r"^the problem comes first: run\(problem, algorithm, rounds\)$")  # type: ignore[arg-type]
    sentence(lambda: run(problem(), problem(), 2), r"^algorithm = a Problem is not an algorithm")  # type: ignore[arg-type]


# ---- no traces ------------------------------------------------------------------------------------------------------


def python(code: str, **environment: str) -> str:
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": path} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HEAVY = "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'numpy', 'networkx', 'pydantic'}))"


def test_importing_has_no_side_effects() -> None:
    before = "import os, sys, signal; e = dict(os.environ); s = signal.getsignal(signal.SIGINT); import proxfed;"
    assert python(f"{before} {HEAVY}; print(e == dict(os.environ), s is signal.getsignal(signal.SIGINT))") == (
        "[]\nTrue True"
    )


def test_every_public_name_can_be_imported() -> None:
    names = "import os, proxfed; e = dict(os.environ); [getattr(proxfed, n) for n in proxfed.__all__]; "
    assert python(f"{names} print(e == dict(os.environ), {{*proxfed.__all__}} <= {{*dir(proxfed)}})") == "True True"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["report", "--help"]])
def test_help_does_not_wait_for_torch(arguments: list[str]) -> None:
    code = f"""
import sys
sys.argv = ["proxfed", *{arguments!r}]
from proxfed.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
{HEAVY}
"""
    assert python(code).splitlines()[-1] == "[]"


def test_threads_and_signals_are_as_before(tmp_path: Path) -> None:
    signals = (signal.SIGINT, signal.SIGTERM)
    handlers, threads, environment = [signal.getsignal(n) for n in signals], torch.get_num_threads(), dict(os.environ)
    random = torch.get_rng_state()
    for jobs in (1, 2):
        compare(problem(), {"a": AVG, "b": AVG}, 2, jobs=jobs, progress=False)
    run(problem(), AVG, 2)
    with pytest.raises(InputError):
        compare(problem(), {"a": GRAPH}, 2)
    assert [signal.getsignal(n) for n in signals] == handlers
    assert torch.get_num_threads() == threads
    assert dict(os.environ) == environment
    assert torch.equal(torch.get_rng_state(), random)
