"""data.partition.seed = "run": each seed of a run draws its own partition, in every process and after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxfed.errors import InputError
from proxfed.harness.build import load_data, partitioned, read_study
from proxfed.harness.execute import Execution
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.plan import Planned, carry_out
from proxfed.report.columns import Row

FILE = """
name = "spread"
rounds = 2
seeds = {seeds}
[data]
name = "digits"
limit = 300
[data.partition]
name = "dirichlet_by_class"
num_partitions = 4
alpha = 0.3
seed = {partition}
[problem]
name = "softmax"
[[algorithms]]
name = "fedavg"
eta = 0.1
K = 2
[[algorithms]]
name = "fedavg"
label = "decayed"
eta = 0.1
K = 2
weight_decay = 0.5
"""


def rows(folder: Path, seeds: list[int], partition: int | str, **how: Any) -> list[Row]:
    """What a run finds, without its wall time."""
    path = folder / f"{partition}-{len(seeds)}.toml"
    path.write_text(FILE.format(seeds=seeds, partition=f'"{partition}"' if partition == "run" else partition))
    planned = Planned(read_study(path), RunFolder(path.with_suffix("")))
    (found,) = carry_out([planned], lambda: False, progress=False, **how)
    return [{k: v for k, v in row.items() if k != "wall_seconds"} for row in found.rows]


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_seed_runs_as_alone_with_its_partition(tmp_path: Path, jobs: int) -> None:
    alone = [row for seed in (3, 4) for row in rows(tmp_path, [seed], seed, jobs=1)]
    together = rows(tmp_path, [3, 4], "run", jobs=jobs)
    assert together == alone
    shared = rows(tmp_path, [3, 4], 3, jobs=1)
    assert [row for row in shared if row["seed"] == 3] == [row for row in together if row["seed"] == 3]
    assert [row for row in shared if row["seed"] == 4] != [row for row in together if row["seed"] == 4]


def test_an_interrupted_seed_goes_on_with_its_partition(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FILE.format(seeds=[3, 4], partition='"run"'))
    study, folder = read_study(path), RunFolder(tmp_path / "stopped")
    planned = Planned(study, folder)
    planned.open()
    stops = iter([False] * 7)  # asked after every round: seed 4 ends after its first
    Execution(study, folder, stop=lambda: next(stops, True), checkpoint_seconds=0.0).run()
    last = folder.status()[-1]
    assert (last["seed"], last["status"], last["round"]) == (4, "stopped", 1)
    (found,) = carry_out([Planned(read_study(path), folder, resume=True)], lambda: False, progress=False, jobs=1)
    whole = rows(tmp_path, [3, 4], "run", jobs=1)
    assert [{k: v for k, v in row.items() if k != "wall_seconds"} for row in found.rows] == whole


def test_partitions_differ_and_one_solution_for_all_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FILE.format(seeds=[3, 4], partition='"run"'))
    study = read_study(path)
    assert study.problem_of is not None
    assert study.problem.f.data is not None
    sizes = [study.problem_of(seed).f.data.sizes.tolist() for seed in study.seeds]  # type: ignore[union-attr]
    assert sizes[0] == study.problem.f.data.sizes.tolist() != sizes[1]
    with pytest.raises(InputError, match="reference = true needs one problem for all seeds"):
        read_study(path, ["reference=true"])
    with pytest.raises(InputError, match="seed = 'draw'"):
        read_study(path, ["data.partition.seed='draw'"])
    table = {"name": "digits", "partition": {"name": "iid", "num_partitions": 3, "seed": "run"}}
    assert load_data(partitioned(table, 5), None).sizes.sum() > 0
    assert partitioned({"name": "digits"}, 5) == {"name": "digits"}
