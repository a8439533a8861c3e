"""What an algorithm has for itself in an experiment: its own weight decay instead of the problem's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxfed.errors import InputError
from proxfed.harness.build import build_study
from proxfed.harness.experiment import parse
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.settings_diff import changed, first_difference

from support.small_experiment import execute, small

SETTINGS = {"eta": 0.1, "K": 3}


def digits(*algorithms: dict[str, Any], **problem: Any) -> dict[str, Any]:
    """A network on a few digits."""
    data = {"name": "digits", "limit": 60, "partition": {"name": "iid", "num_partitions": 3}}
    network = {"name": "network", "model": "linear", "batch": 5, "train_measures": True} | problem
    labelled = [{"name": "fedavg", "label": str(k)} | SETTINGS | own for k, own in enumerate(algorithms)]
    other = {"reference": False, "rounds": 3, "seeds": [0], "regulariser": {"name": "zero"}, "dtype": "float64"}
    return small(data=data, problem=network, algorithms=labelled, **other)


def rows(path: Path, label: str) -> list[dict[str, Any]]:
    left_out = ("wall_seconds", "algorithm")
    return [
        {k: v for k, v in row.items() if k not in left_out}
        for row in RunFolder(path).rows()
        if row["algorithm"] == label
    ]


def test_an_algorithm_may_have_its_own_weight_decay(tmp_path: Path) -> None:
    execute(tmp_path / "own", digits({}, {"weight_decay": 0.2}, {"weight_decay": 0.0}, weight_decay=0.1))
    for label, decay in {"0": 0.1, "1": 0.2, "2": 0.0}.items():
        execute(tmp_path / label, digits({}, weight_decay=decay))
        assert rows(tmp_path / "own", label) == rows(tmp_path / label, "0")
    assert rows(tmp_path / "own", "0") != rows(tmp_path / "own", "1")
    kept = RunFolder(tmp_path / "own").config()
    assert [entry.get("weight_decay") for entry in kept["algorithms"]] == [None, 0.2, 0.0]
    execute(tmp_path / "again", kept)
    assert RunFolder(tmp_path / "again").rows()[-1]["objective"] == RunFolder(tmp_path / "own").rows()[-1]["objective"]


def test_algorithms_with_the_same_weight_decay_share_the_data() -> None:
    study = build_study(parse(digits({}, {"weight_decay": 0.2}, {"weight_decay": 0.2}), "test"))
    tasks = [study.complete[label] for label in study.entries]
    assert tasks[1].problem is tasks[2].problem
    assert tasks[0].problem.f.data is tasks[1].problem.f.data


@pytest.mark.parametrize("decay", [-0.1, "a lot", True, float("nan"), float("inf")])
def test_a_weight_decay_is_a_number_that_is_not_negative(decay: Any) -> None:
    with pytest.raises(InputError, match=r"algorithms\.0\.weight_decay = .* must be a finite number >= 0"):
        build_study(parse(digits({"weight_decay": decay}), "test"))


def test_beside_a_reference_solution_all_have_the_problems_weight_decay() -> None:
    own = small(algorithms=[{"name": "fedavg", "weight_decay": 0.1} | SETTINGS])
    with pytest.raises(InputError, match=r"algorithms\.fedavg\.weight_decay = 0\.1: with reference = true all algo"):
        build_study(parse(own | {"reference": True}, "test"))
    assert build_study(parse(own | {"reference": False}, "test")).complete["fedavg"].problem.f.l2 == 0.1


def test_l2_and_weight_decay_are_two_words_for_one_thing(tmp_path: Path) -> None:
    one, two = digits({}, weight_decay=0.1), digits({}, l2=0.1)
    execute(tmp_path / "one", one)
    execute(tmp_path / "two", two)
    assert rows(tmp_path / "one", "0") == rows(tmp_path / "two", "0")
    tables = [build_study(parse(table, "test")).settings for table in (one, two)]
    assert first_difference(*tables) is None
    then = RunFolder(tmp_path / "one").config()
    then["problem"]["weight_decay"] = then["problem"].pop("l2")  # as it was written before
    assert first_difference(then, tables[1]) is None
    assert changed(then, build_study(parse(digits({}, l2=0.2), "test")).settings) == {"problem.l2": (0.1, 0.2)}
    with pytest.raises(InputError, match="l2 and weight_decay are the same; give one of them"):
        build_study(parse(digits({}, l2=0.1, weight_decay=0.1), "test"))
