"""Clients in one process or over several: the same rows; a rank that dies ends the run with a sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from proxfed.engine.network import world
from proxfed.engine.ranks import connect
from proxfed.errors import InputError
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.report.columns import ROW

from support.small_experiment import execute, small, write

EXACT = {*ROW[: ROW.index("wall_seconds")]}
"""What is counted does not depend on the number of processes."""


def command(file: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "proxfed", "run", str(file), "--out", str(out), *more]


def run(file: Path, out: Path, *more: str) -> None:
    done = subprocess.run(command(file, out, *more), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def agree(a: Path, b: Path, tolerance: float = 1e-12) -> None:
    rows_a, rows_b = RunFolder(a).rows(), RunFolder(b).rows()
    assert len(rows_a) == len(rows_b) > 0
    for x, y in zip(rows_a, rows_b, strict=True):
        assert {k: x[k] for k in EXACT} == {k: y[k] for k in EXACT}
        for k in x.keys() - EXACT - {"wall_seconds"}:
            if x[k] is None:
                assert y[k] is None
            else:
                assert abs(x[k] - y[k]) <= tolerance * max(1, abs(x[k])), (k, x, y)
    models_a, models_b = RunFolder(a).models()[0], RunFolder(b).models()[0]
    for name, model in models_a.items():
        assert abs(model - models_b[name]).max() <= tolerance, name


STARTED_BY = [name for name in os.environ if name.startswith(("SLURM_", "MASTER_")) or name in ("RANK", "WORLD_SIZE")]
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}
MASTER = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nobody has started this process as a rank."""
    for name in STARTED_BY:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("master", [{}, MASTER], ids=["alone", "master"])
@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, None),
        (BATCH, None),
        (BATCH | {"SLURM_STEP_NUM_TASKS": "8"}, None),
        *((BATCH | STEP | {"SLURM_STEP_ID": word}, None) for word in ("", "batch", "4294967290", "4294967291")),
        (BATCH | {"SLURM_STEP_ID": "0"}, None),
        (BATCH | STEP | {"SLURM_STEP_NUM_TASKS": "1"}, None),
        (STEP, None),
        (BATCH | STEP, (0, 8)),
        (BATCH | STEP | {"SLURM_PROCID": "7", "SLURM_STEP_ID": "12"}, (7, 8)),
        (BATCH | STEP | {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, (3, 4)),
        (BATCH | STEP | {"SLURM_PROCID": "8"}, None),
        (TORCHRUN, (1, 4)),
        (TORCHRUN | BATCH, (1, 4)),
        (TORCHRUN | BATCH | STEP, (1, 4)),
        ({"RANK": "0"}, None),
        ({"WORLD_SIZE": "4"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
    ],
    ids=str,
)
def test_which_process_is_a_rank(
    environment: pytest.MonkeyPatch, given: dict[str, str], master: dict[str, str], found: tuple[int, int] | None
) -> None:
    """A task of srun or torchrun is one; a batch script is not, whatever it exports for the tasks that it starts."""
    for name, value in (given | master).items():
        environment.setenv(name, value)
    assert world() == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"RANK": "first", "WORLD_SIZE": "4"}, "RANK = 'first' must be a whole number >= 0"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "RANK = '-1' must be"),
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE = 'abc' must be"),
        ({"RANK": "7", "WORLD_SIZE": "2"}, "RANK = 7 must be below WORLD_SIZE = 2"),
    ],
)
def test_a_rank_that_is_none_does_not_run_alone(
    environment: pytest.MonkeyPatch, given: dict[str, str], said: str
) -> None:
    for name, value in given.items():
        environment.setenv(name, value)
    with pytest.raises(InputError, match=f"^{said}"):
        world()


@pytest.mark.parametrize("port", ["abc", "-1", "99999", ""])
def test_a_port_that_is_none_is_refused(environment: pytest.MonkeyPatch, port: str) -> None:
    for name, value in (TORCHRUN | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}).items():
        environment.setenv(name, value)
    with pytest.raises(InputError, match=f"^MASTER_PORT = '{port}' must be a whole number below 65536"):
        connect(1.0)


@pytest.mark.parametrize(("given", "missing"), [({}, "ADDR"), ({"MASTER_ADDR": "node1"}, "PORT")])
def test_srun_without_a_meeting_point_says_what_to_export(
    environment: pytest.MonkeyPatch, given: dict[str, str], missing: str
) -> None:
    for name, value in (BATCH | STEP | given).items():
        environment.setenv(name, value)
    with pytest.raises(InputError, match=rf"^MASTER_{missing} is not set: rank 0 of 8 .*`export MASTER_ADDR=.*PORT="):
        connect(1.0)


def test_a_batch_script_runs_alone(tmp_path: Path) -> None:
    """As `sbatch -n 8` runs it, without srun."""
    alone = {name: value for name, value in os.environ.items() if name not in STARTED_BY}
    file = write(
        tmp_path / "small.toml", small(rounds=1, seeds=[0], algorithms=[{"name": "fedavg", "eta": 0.5, "K": 1}])
    )
    done = subprocess.run(
        command(file, tmp_path / "run"),
        env=alone | BATCH | {"SLURM_STEP_ID": "4294967291"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


SCAFFOLD = {"name": "scaffold", "eta": 0.5, "K": 3, "participation": {"name": "uniform", "m": 2}}


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    table = small(algorithms=[*small()["algorithms"], SCAFFOLD])
    write(folder / "small.toml", table)
    assert execute(folder / "run", table)
    return folder


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("ranks", [2, 3])
def test_same_rows_as_stacked(ranks: int, stacked: Path, tmp_path: Path) -> None:
    """Every algorithm, with minibatches, compression, partial participation; 7 clients do not divide evenly."""
    run(stacked / "small.toml", tmp_path / "run", "--ranks", str(ranks))
    agree(stacked / "run", tmp_path / "run")


def test_same_rows_under_torchrun(stacked: Path, tmp_path: Path) -> None:
    """The same command line, started by torchrun."""
    out = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    rest = command(stacked / "small.toml", out)[1:]
    done = subprocess.run(
        [*torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *rest],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    agree(stacked / "run", out)


def test_a_dead_rank_ends_the_run_and_resume_goes_on(tmp_path: Path) -> None:
    """One rank is killed in the middle; the run says so within the time-out, and another number of ranks can go on."""
    kinds = {a["name"]: a for a in small()["algorithms"]}
    algorithms = [
        kinds["fedcef"],
        SCAFFOLD,
        kinds["depositum"],
    ]  # killed in the second: its journal has clients' states
    table = small(rounds=300, seeds=[0], algorithms=algorithms)
    file = write(tmp_path / "small.toml", table)
    out = tmp_path / "run"
    start = command(file, out, "--ranks", "2", "--checkpoint", "0", "--timeout", "20")
    process = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    record = out / "rows.csv"
    while time.monotonic() < deadline and not (record.exists() and record.read_bytes().count(b"\n") > 100):
        assert process.poll() is None, "it ended before a rank could be killed"
        time.sleep(0.005)
    os.kill(_child(process.pid, rank=1), signal.SIGKILL)
    began = time.monotonic()
    _, said = process.communicate(timeout=300)
    assert time.monotonic() - began < 20 + 10
    assert process.returncode == 1
    assert "rank 1 was killed (SIGKILL)" in said
    assert "resume the run to continue" in said
    assert "Traceback" not in said
    assert execute(out, table, resume=True)
    assert execute(tmp_path / "whole", table)
    agree(tmp_path / "whole", out)


def _child(parent: int, rank: int) -> int:
    """The process id of one of the ranks that a launcher started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat, environment = (entry / "stat").read_text(), (entry / "environ").read_bytes()
            except OSError:
                continue
            if int(stat.rsplit(")", 1)[1].split()[1]) == parent and f"\0RANK={rank}\0".encode() in environment:
                return int(entry.name)
    raise AssertionError(f"no rank {rank} below {parent}")


@pytest.mark.usefixtures("forked")
def test_more_ranks_than_clients_are_refused(tmp_path: Path) -> None:
    two = small()["data"] | {"clients": 2}
    file = write(tmp_path / "small.toml", small(data=two, algorithms=[{"name": "fedavg", "eta": 0.5, "K": 2}]))
    done = subprocess.run(
        command(file, tmp_path / "run", "--ranks", "3"), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert "3 ranks for 2 clients" in done.stderr


@pytest.mark.usefixtures("forked")
@pytest.mark.usefixtures("forked")
def test_same_rows_of_clients_that_take_epochs_of_their_own(tmp_path: Path) -> None:
    table = small(
        rounds=3,
        seeds=[0],
        reference=False,
        data={"name": "digits", "partition": {"name": "sizes", "partition_sizes": [10, 90, 20, 40]}},
        problem={"name": "softmax", "batch": 10, "l2": 0.01},
        algorithms=[SCAFFOLD | {"K": {"epochs": 1}}],
    )
    assert execute(tmp_path / "stacked", table)
    run(write(tmp_path / "a.toml", table), tmp_path / "ranks", "--ranks", "2")
    agree(tmp_path / "stacked", tmp_path / "ranks")


def test_same_rows_of_networks_over_ranks(tmp_path: Path) -> None:
    """A neural network, over clients of different sizes, with partial participation and compression."""
    file = write(
        tmp_path / "network.toml",
        small(
            rounds=3,
            seeds=[0],
            reference=False,
            data={"name": "digits", "partition": {"name": "dirichlet_by_class", "num_partitions": 5, "alpha": 1.0}},
            problem={"name": "network", "model": "mlp", "batch": 16, "weighting": "size", "train_measures": True},
            measures=["accuracy_x", "worst_x"],
            regulariser={"name": "l1", "weight": 1e-4, "blocks": ["*weight"]},
            algorithms=[
                a for a in small()["algorithms"] if a.get("label", a["name"]) in ("fedavg", "fedcef", "depositum")
            ],
        ),
    )
    run(file, tmp_path / "stacked")
    run(file, tmp_path / "ranks", "--ranks", "2")
    agree(tmp_path / "stacked", tmp_path / "ranks")
