"""Ranks work together only if they are meant to, and about the same; they end with the process that started them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.results import Results

from support.resumed import same
from support.small_experiment import execute, small, write

FEW = [a for a in small()["algorithms"] if a["name"] == "fedavg"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def command(file: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "proxfed", "run", str(file), "--out", str(out), *more]


def started_by_hand(commands: list[list[str]], **environments: list[str]) -> list[tuple[int, str]]:
    """(exit code, stderr) of each rank; `environments` has a value for each."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(commands))}
    processes = []
    for r, arguments in enumerate(commands):
        own = {name: values[r] for name, values in environments.items()}
        where = own.pop("cwd", None)
        environment = os.environ | common | {"RANK": str(r)} | own
        started = subprocess.Popen(
            [*arguments, "--timeout", "60"], env=environment, cwd=where, stderr=subprocess.PIPE, text=True
        )
        processes.append(started)
    said = [process.communicate(timeout=300)[1] for process in processes]
    return [(process.returncode, words) for process, words in zip(processes, said, strict=True)]


def test_ranks_with_other_settings_refuse_with_the_first_difference(tmp_path: Path) -> None:
    file = write(tmp_path / "small.toml", small(rounds=2, seeds=[0], algorithms=FEW))
    one, other = command(file, tmp_path / "run"), command(file, tmp_path / "run", "-c", "algorithms.fedavg.eta=0.25")
    for code, said in started_by_hand([one, other]):
        assert code == 2, said
        assert "algorithms.fedavg.eta is 0.5 on rank 0, but 0.25 on rank 1" in said
        assert "Traceback" not in said
    assert not (tmp_path / "run" / "config.toml").exists()


def test_ranks_with_other_data_refuse(tmp_path: Path) -> None:
    """One number of one sample, with the same settings."""
    features = np.random.default_rng(0).normal(size=(30, 4))
    labels, clients = np.sign(features[:, 0]), np.arange(30) % 3
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "own.npz", features=features, labels=labels, clients=clients)
        features[7, 2] = np.nextafter(features[7, 2], 1)
    table = small(rounds=2, seeds=[0], algorithms=FEW, reference=False)
    table["data"] = {"name": "own", "path": "own.npz", "client": "clients", "label": "labels"}
    file = write(tmp_path / "small.toml", table)
    run = command(file, tmp_path / "run")
    for code, said in started_by_hand([run, run], cwd=[str(tmp_path / "a"), str(tmp_path / "b")]):
        assert code == 2, said
        assert "the ranks were not started alike: the data, checksum is" in said


def test_a_rank_without_the_secret_is_not_listened_to(tmp_path: Path) -> None:
    file = write(tmp_path / "small.toml", small(rounds=2, seeds=[0], algorithms=FEW))
    run = command(file, tmp_path / "run")
    (code, said), (other, _) = started_by_hand([run, run], PROXFED_SECRET=["this", "that"])
    assert code == other == 1
    assert "rank 1 does not know the secret of this run" in said
    assert not (tmp_path / "run" / "config.toml").exists()


# ---- processes of one machine ---------------------------------------------------------------------------------------


def children(parent: int) -> list[int]:
    """The processes that this one started."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                found.append(int(entry.name))
    return found


def listening(process: int) -> set[str]:
    """The addresses at which it listens, as /proc has them."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                sockets[words[9]] = words[1].partition(":")[0]
    found = set()
    for handle in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):
            found.add(sockets.get(os.readlink(handle).removeprefix("socket:[").removesuffix("]"), ""))
    return found - {""}


@contextmanager
def running(arguments: list[str], rows: Path) -> Iterator[subprocess.Popen]:
    """A command that has got to its first rows; killed at the end."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            assert process.poll() is None, "it ended too early"
            with suppress(OSError):
                if sum(file.stat().st_size for file in rows.glob("checkpoint/*/rows.csv")) > 1000:
                    break
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def gone(processes: list[int], seconds: float) -> bool:
    """All of them have ended by then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(_lives(process) for process in processes):
            return True
        time.sleep(0.05)
    return False


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@linux
@pytest.mark.parametrize("how", ["--ranks", "--jobs"])
def test_a_killed_launcher_takes_its_processes_with_it(how: str, tmp_path: Path) -> None:
    """Meanwhile ranks listen on loopback only; what is left says that it was interrupted, and goes on exactly."""
    table = small(rounds=300, seeds=[0, 1], algorithms=FEW)
    file, out = write(tmp_path / "small.toml", table), tmp_path / "run"
    with running(command(file, out, how, "2", "--checkpoint", "0"), out) as launcher:
        started = children(launcher.pid)
        assert len(started) == {"--ranks": 2, "--jobs": 1}[how]
        if how == "--ranks":
            assert {address for process in started for address in listening(process)} == {"0100007F"}
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        assert gone(started, 60)
    states = {s["status"] for s in Results.read(out).status}
    assert "running" not in states
    assert states <= {"interrupted", "stopped", "finished"}
    subprocess.run(command(file, out, "--resume"), check=True, capture_output=True, timeout=300)
    execute(tmp_path / "whole", table)
    if how == "--jobs":
        by_task = lambda row: (row["algorithm"], row["seed"], row["round"])
        both = [sorted(RunFolder(path).rows(), key=by_task) for path in (out, tmp_path / "whole")]
        strip = lambda rows: [{k: v for k, v in row.items() if k != "wall_seconds"} for row in rows]
        assert strip(both[0]) == strip(both[1])
    else:
        assert len(RunFolder(out).rows()) == len(RunFolder(tmp_path / "whole").rows())


def test_a_task_that_nobody_works_on_is_interrupted(tmp_path: Path) -> None:
    from proxfed.files import locked

    from support.resumed import under_way
    from support.small_experiment import Crash

    table = small(rounds=4, seeds=[3], algorithms=FEW)
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=3)
    assert [s["status"] for s in RunFolder(tmp_path / "run").status()] == ["running"]
    results = Results.read(tmp_path / "run")
    assert [s["status"] for s in results.status] == ["interrupted"]
    assert results.table()[0]["status"] == "interrupted, round 2"
    assert results.histories("fedavg") == {}
    with locked(under_way(tmp_path / "run").path):
        assert [s["status"] for s in Results.read(tmp_path / "run").status] == ["running"]
    assert execute(tmp_path / "run", table, resume=True)
    execute(tmp_path / "whole", table)
    same(tmp_path / "run", tmp_path / "whole")
