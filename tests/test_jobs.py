"""Tasks shared out over processes: the same bits, however many there are and whatever becomes of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from proxfed import Results, compare
from proxfed.algorithms import FedAvg
from proxfed.engine.tuning import PARALLEL_FROM
from proxfed.errors import Elsewhere, InputError, RunError
from proxfed.files import locked
from proxfed.harness import further_jobs, processes
from proxfed.harness.execute import Execution
from proxfed.harness.folder.checkpoint import TaskFolder
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.further_jobs import LOOK, START, Pace, worth_starting
from proxfed.harness.plan import Share, share_cores
from proxfed.machine import idle_seconds
from proxfed.report.progress import Progress

from support import own_parts as own
from support.small_experiment import execute, small, write
from support.toy_problems import problem

LONG = 120


def same(a: Path, b: Path) -> None:
    one, two = Results.read(a), Results.read(b)
    rows = [[{k: v for k, v in row.items() if k != "wall_seconds"} for row in r.rows] for r in (one, two)]
    assert rows[0] == rows[1] != []
    assert {*one.models} == {*two.models}
    for key in one.models:
        assert one.models[key].numpy().tobytes() == two.models[key].numpy().tobytes()
    assert one.complete
    assert two.complete
    tasks = [(s["algorithm"], s["seed"]) for s in one.status]
    assert len({*tasks}) == len(tasks)


def children(parent: int) -> list[int]:
    """Processes that a process has started and that have not been waited for."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                    found.append(int(entry.name))
    return found


def workers(parent: int) -> list[int]:
    """Those of them that carry out tasks."""
    lines = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children(parent)}
    return [child for child, line in lines.items() if b"proxfed.harness.worker" in line]


def until(condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s: {what}")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: str) -> Any:
    """No test leaves a process, or a temporary file."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    before = {*children(os.getpid())}
    yield
    assert {*children(os.getpid())} <= before
    assert list(place.iterdir()) == []


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs begin at the same time."""
    monkeypatch.setattr(processes._Others, "start", own.wait_for_other_jobs())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jobs") / "run"
    assert execute(path, small(rounds=3))
    return path


SCRIPT = """
import sys
sys.path[:0] = {path!r}
import proxfed
from support import own_parts as own
from support.toy_problems import problem
from proxfed.harness.processes import _Others
_Others.start = own.wait_for_other_jobs()
proxfed.compare(problem(), {{"a": own.Slow(0.1, {seconds}), "b": own.Slow(0.2, {seconds})}}, {rounds},
    out={out!r}, jobs=2, progress=False)
"""


def script(out: Path, seconds: float, rounds: int = 30) -> list[str]:
    """Two slow algorithms in two processes."""
    path = [p for p in sys.path if p]
    return [sys.executable, "-c", SCRIPT.format(path=path, out=str(out), seconds=seconds, rounds=rounds)]


def under_way(out: Path, rows: int) -> bool:
    """Both tasks have got somewhere."""
    files = [*out.glob("checkpoint/*/rows.csv")]
    with suppress(OSError):
        return len(files) == 2 and all(f.read_bytes().count(b"\n") >= rows for f in files)
    return False


def finish(out: Path, tmp_path: Path, rounds: int = 30) -> None:
    """Resumed, it is the run that nothing happened to; nobody has to wait for it any more."""
    algorithms = {"a": own.Slow(0.1, 0.05), "b": own.Slow(0.2, 0.05)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "time", SimpleNamespace(sleep=lambda seconds: None))
        done = compare(problem(), algorithms, rounds, out=out, jobs=1, progress=False)
        assert done.complete
        compare(problem(), algorithms, rounds, out=tmp_path / "whole" / out.name, jobs=1, progress=False)
    same(out, tmp_path / "whole" / out.name)


# ---- the same bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("jobs", "how"), [(1, "forked"), (2, "new"), (3, "forked")])
def test_any_number_of_jobs_gives_the_same_bits(
    jobs: int, how: str, whole: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if how == "forked":
        request.getfixturevalue("forked")
    file = write(tmp_path / "small.toml", small(rounds=3))
    command = [sys.executable, "-m", "proxfed", "run", str(file), "--out", str(tmp_path / "run"), "--jobs", str(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 0, done.stderr
    same(tmp_path / "run", whole)
    assert list((tmp_path / "run" / "checkpoint").iterdir()) == []


@pytest.mark.usefixtures("forked", "together")
def test_progress_arrives_from_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[str, int, int]] = set()

    class Watching:
        def __enter__(self) -> Callable[[Any], None]:
            return lambda p: seen.add((p.label, p.seed, p.round))

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("proxfed.harness.plan.watching", lambda *_: Watching())
    compare(problem(), {"a": own.Slow(0.1, 0.1), "b": own.Slow(0.1, 0.1)}, 8, seeds=2, jobs=2)
    for label in "ab":
        for seed in (0, 1):
            assert {(label, seed, 0), (label, seed, 8)} <= seen


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("own_file", [False, True])
def test_classes_of_the_program_itself(own_file: bool, tmp_path: Path) -> None:
    """Of __main__, and of a file that is named './mine.py:Mine'."""
    mine = "class Mine(own.Slow):\n    pass\n"
    head = f"import sys\nsys.path[:0] = {[p for p in sys.path if p]!r}\nfrom support import own_parts as own\n"
    if own_file:
        (tmp_path / "mine.py").write_text(head + mine)
        table = small(rounds=2, algorithms=[{"name": "./mine.py:Mine", "label": str(k), "eta": 0.1} for k in (1, 2)])
        command = ["-m", "proxfed", "run", str(write(tmp_path / "mine.toml", table)), "--jobs", "2"]
        command += ["--out", str(tmp_path / "run")]
    else:
        call = "proxfed.compare(problem(), {'1': Mine(0.1), '2': Mine(0.1)}, 2, seeds=2, out='run', jobs=2)"
        (tmp_path / "mine.py").write_text(
            f"{head}import proxfed\nfrom support.toy_problems import problem\n{mine}{call}\n"
        )
        command = ["mine.py"]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, done.stderr
    results = Results.read(tmp_path / "run")
    assert results.complete
    assert len(results.status) == 4
    table = results.settings["algorithms"][0]
    assert table["name"] == f"{tmp_path / 'mine.py'}:Mine"
    assert len(table["source"]) == 12


# ---- what may happen ------------------------------------------------------------------------------------------------


def test_a_killed_worker_ends_with_a_sentence(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(script(out, 0.05), stderr=subprocess.PIPE, text=True)
    until(lambda: under_way(out, 3), "both are under way")
    (worker,) = workers(process.pid)
    os.kill(worker, signal.SIGKILL)
    _, said = process.communicate(timeout=LONG)
    assert process.returncode == 1
    last = said.strip().splitlines()[-1]
    assert last.startswith("proxfed.errors.RunError: a process that carried out tasks was killed (SIGKILL)")
    finish(out, tmp_path)


def test_ctrl_c_stops_all_after_their_round(tmp_path: Path) -> None:
    """A worker is asked once: asked again, it would end in the middle of its round."""
    out = tmp_path / "run"
    process = subprocess.Popen(script(out, 0.05, rounds=40), stderr=subprocess.PIPE, text=True)
    until(lambda: under_way(out, 2), "both are under way")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LONG)
    assert (process.returncode, said) == (0, "")
    status = RunFolder(out).status()
    assert [s["status"] for s in status] == ["stopped", "stopped"]
    for s in status:
        reached = [row["round"] for row in RunFolder(out).rows() if row["algorithm"] == s["algorithm"]]
        assert reached == list(range(s["round"] + 1))
        assert RunFolder(out).task(s["algorithm"], s["seed"], []).load().round == s["round"]  # type: ignore[union-attr]
    finish(out, tmp_path, rounds=40)


def test_workers_of_a_killed_parent_stop_by_themselves(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(script(out, 0.05), stderr=subprocess.DEVNULL)
    until(lambda: under_way(out, 2), "both are under way")
    (worker,) = workers(process.pid)
    process.kill()
    process.wait()
    until(lambda: not alive(worker), "the worker has stopped", 5)
    assert {s["status"] for s in RunFolder(out).status()} == {"stopped", "running"}
    finish(out, tmp_path)


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked", "together")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_bug_of_ones_own_is_told_with_its_traceback(jobs: int) -> None:
    """Here it is the exception itself, with a note; from another process, a sentence whose cause is the traceback."""
    if jobs == 1:
        with pytest.raises(ZeroDivisionError, match="no more patience") as raised:
            compare(problem(), {"a": own.Slow(0.1), "b": own.Slow(0.1, fails_in=3)}, 5, jobs=1, progress=False)
        assert raised.value.__notes__ == ["(in b, seed 0)"]
        return
    fails = own.Slow(0.1, 0.2, fails_in=3, spares=os.getpid())
    with pytest.raises(RunError) as told:
        compare(problem(), {"a": fails, "b": fails}, 5, jobs=2, progress=False)
    assert re.fullmatch(r"ZeroDivisionError: the client has no more patience \(in [ab], seed 0\)", str(told.value))
    assert isinstance(told.value.__cause__, Elsewhere)
    assert "own_parts.py" in str(told.value.__cause__)


@pytest.mark.usefixtures("forked", "together")
@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_for_the_user_is_one_sentence(jobs: int) -> None:
    """With the label and the seed, wherever it happened."""
    refuses = own.Refuses(0.1, 0.2, spares=os.getpid() if jobs == 2 else 0)
    with pytest.raises(InputError if jobs == 1 else RunError) as told:
        compare(problem(), {"a": refuses, "b": refuses}, 5, jobs=jobs, progress=False)
    assert re.fullmatch("[ab], seed 0: there is no third round", str(told.value))


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_command_line_says_where_the_traceback_is(jobs: str, tmp_path: Path) -> None:
    slow = {"name": "support.own_parts:Slow", "eta": 0.1}
    table = small(rounds=4, seeds=[0], algorithms=[slow | {"label": "good", "seconds": 0.1}, slow | {"fails_in": 3}])
    file = write(tmp_path / "small.toml", table)
    command = [sys.executable, "-m", "proxfed", "run", str(file), "--out", str(tmp_path / "run"), "--jobs", jobs]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False, env=environment)
    assert done.returncode == 1
    words = r"error: ZeroDivisionError: the client has no more patience \(in support.own_parts:Slow, seed 0\) "
    said = re.search(words + r".*traceback is in (\S+\.txt), and PROXFED_DEBUG=1 shows it\)\n", done.stderr)
    assert said, done.stderr
    assert "Traceback" not in done.stderr
    trace = Path(said[1]).read_text()
    Path(said[1]).unlink()
    assert "Traceback" in trace
    assert "own_parts.py" in trace
    done = subprocess.run(
        [*command, "--force"], capture_output=True, text=True, timeout=LONG, check=False,
        env=environment | {"PROXFED_DEBUG": "1"},
    )  # fmt: skip
    assert "own_parts.py" in done.stderr


def test_what_cannot_travel_is_refused_or_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused if jobs were asked for; if not, nobody need know."""
    algorithms = {"a": own.Slow(0.1), "b": own.Stuck(0.1)}
    with pytest.raises(InputError, match="cannot be sent to other processes"):
        compare(problem(), algorithms, 3, jobs=2, progress=False)
    monkeypatch.setattr(Pace, "further", lambda self: 1)
    monkeypatch.setattr("proxfed.harness.plan.share_cores", lambda *_: Share(2, 1, False))
    assert compare(problem(), algorithms, 3, progress=False).complete


# ---- how many -------------------------------------------------------------------------------------------------------


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores in (1, 2, 8):
        monkeypatch.setattr(torch, "get_num_threads", lambda cores=cores: cores)
        for tasks in (1, 3, 20):
            for jobs in (1, 2, 5, 40):
                used = share_cores(jobs, tasks, 1)
                assert used.jobs == min(jobs, tasks)
                assert used.threads == max(1, cores // used.jobs)
                assert used.at_once
            small_, large = share_cores(None, tasks, PARALLEL_FROM - 1), share_cores(None, tasks, PARALLEL_FROM)
            assert small_.jobs == min(cores, tasks)
            assert small_.jobs * small_.threads <= cores
            assert (large.jobs, large.threads) == (1, cores)
            assert (small_.at_once, large.at_once) == (False, False)


def seconds(work: float, others: int, at: float) -> float:
    """Of a study with so much work for one process, if so many others are asked for after `at` seconds of it."""
    ready = at + START
    return work if work <= ready else ready + (work - ready) / (others + 1)


@pytest.mark.parametrize("cores", [1, 2, 4, 16])
def test_the_default_is_nearly_as_fast_as_the_best_number_of_jobs(cores: int) -> None:
    """Not starting costs a tenth at most, starting late the time until the first look, if the work divides evenly."""
    for work in (0.1, 1, 2, 3, 4, 5, 6, 8, 10, 15, 30, 100, 1000):
        others = worth_starting(work - LOOK, cores - 1, 19)
        best = min(seconds(work, number, 0) for number in range(cores))
        assert seconds(work, others, LOOK) <= 1.1 * best + LOOK, (work, others)
        assert others <= cores - 1


def test_busy_cores_are_left_to_others() -> None:
    assert [worth_starting(100.0, idle, 7) for idle in (0.0, 0.4, 0.9, 3.2, 50.0)] == [0, 0, 1, 3, 7]


def test_the_pace_of_what_was_done_tells_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tasks of 100 rounds, one of them resumed at round 50; the second core is idle from the third second on."""
    now = 0.0
    monkeypatch.setattr(further_jobs.time, "monotonic", lambda: now)
    monkeypatch.setattr(further_jobs, "idle_seconds", lambda: max(0.0, now - 2.0))
    pace, told = Pace(3, 2), []
    pace.hear(Progress(0, 3, "a", 0, 50, 100, None))
    assert pace.left() == float("inf")
    for rounds in range(51, 101):
        now += 0.1
        pace.hear(Progress(0, 3, "a", 0, rounds, 100, None))
        told.append((round(now, 1), pace.further()))
    assert pace.left() == pytest.approx(2 * 4.9)  # the first round may compile: it does not count
    started = [at for at, further in told if further]
    assert 2.4 < min(started) < 3.6
    for task in (1, 2):
        pace.hear(Progress(task, 3, "a", task, 0, 100, None))
    now += 1
    assert pace.further() == 0  # there is no task left for another


def test_idle_cores_are_counted(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  10 20 30 400 50 0 0 0 0 0\ncpu0 1 2 3 4\n")
    assert idle_seconds(str(tmp_path / "stat")) == 450 / os.sysconf("SC_CLK_TCK")
    assert idle_seconds(str(tmp_path / "nothing")) is None
    (tmp_path / "stat").write_text("")
    assert idle_seconds(str(tmp_path / "stat")) is None


def test_a_resumed_run_has_the_threads_it_was_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In workers too: the number of threads decides the last bits."""
    seen = []

    def run_jobs(e: Any, share: Any) -> None:
        seen.append((share.threads, torch.get_num_threads()))

    def run_here(e: Any) -> None:
        seen.append((1, torch.get_num_threads()))

    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("proxfed.harness.plan.run_jobs", run_jobs)
    monkeypatch.setattr(Execution, "run", run_here)
    torch.set_num_threads(2)
    try:
        for jobs in (2, 1, 2):
            compare(problem(), {"a": FedAvg(0.1, 1), "b": FedAvg(0.2, 1)}, 1, out=tmp_path / "run", jobs=jobs)
    finally:
        torch.set_num_threads(1)
    assert seen == [(1, 1)] * 3


# ---- the lock of a task ---------------------------------------------------------------------------------------------


def test_a_task_that_has_only_just_been_taken_is_left_alone(tmp_path: Path) -> None:
    """Its folder is still empty; who comes second must not remove it."""

    def task() -> TaskFolder:
        return TaskFolder(tmp_path, "FedAvg", 0, "one", [])

    with task().taken() as mine:
        assert mine
        with task().taken() as also:
            assert not also
        assert task().path.is_dir()
    assert not task().path.exists()


def test_the_lock_of_a_folder_that_was_removed_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    real, removed = fcntl.flock, []

    def flock(here: int, how: int) -> None:
        if not removed:  # another process removes the folder between our opening and locking it
            removed.append((tmp_path / "task").rmdir())
        real(here, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path / "task", wait=False) as free:
        assert free
        assert (tmp_path / "task").is_dir()
        with locked(tmp_path / "task", wait=False) as again:
            assert not again


# ---- a Slurm array --------------------------------------------------------------------------------------------------


def member(k: int, command: Sequence[str]) -> subprocess.Popen[str]:
    environment = os.environ | {"SLURM_ARRAY_TASK_ID": str(k), "SLURM_ARRAY_JOB_ID": "7"}
    return subprocess.Popen(
        [*command, "--jobs", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.usefixtures("forked")
def test_members_of_an_array_share_the_tasks(tmp_path: Path) -> None:
    """Each is done once, and a member that comes when all is done has nothing to do."""
    table = small(rounds=25)
    file = write(tmp_path / "small.toml", table)
    command = [sys.executable, "-m", "proxfed", "run", str(file), "--out", str(tmp_path / "run"), "--checkpoint", "0"]
    members = [member(k, command) for k in (0, 1)]
    for one in members:
        _, said = one.communicate(timeout=LONG)
        assert one.returncode == 0, said
    before = (tmp_path / "run" / "rows.csv").read_bytes()
    late = member(2, command)
    _, said = late.communicate(timeout=LONG)
    assert late.returncode == 0, said
    assert (tmp_path / "run" / "rows.csv").read_bytes() == before
    execute(tmp_path / "whole", table)
    same(tmp_path / "run", tmp_path / "whole")
    names = lambda path: {file.name for file in path.iterdir()} - {"report.html"}
    assert names(tmp_path / "run") == names(tmp_path / "whole")
    assert list((tmp_path / "run" / "checkpoint").iterdir()) == []


def test_a_folder_that_another_member_is_just_making_is_waited_for(tmp_path: Path) -> None:
    """It has files already, but no config.toml; the one who makes it has its lock."""
    from proxfed.harness.build import build_study
    from proxfed.harness.experiment import parse
    from proxfed.harness.plan import check_folder, open_folder

    study = build_study(parse(small(), "test"))
    out = tmp_path / "run"
    open_folder(study, RunFolder(out), True, False)
    (out / "config.toml").rename(tmp_path / "config.toml")
    late = Thread(target=check_folder, args=(study, RunFolder(out), True, False))
    with locked(out):
        late.start()
        late.join(0.3)
        assert late.is_alive()
        (tmp_path / "config.toml").rename(out / "config.toml")
    late.join()  # pytest makes an error of what a thread raises


def test_the_study_travels_in_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that training rows are not left behind, whenever a process is killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with processes._payload([], 1) as study:
        assert os.fstat(study).st_size > 0
        assert os.fstat(study).st_nlink == 0
        assert not any(path.is_file() for path in tmp_path.iterdir())
