"""What a user is told beside the results."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed import FedAvg, Federated, Linear, Neural, Squared, compare, run
from proxfed.harness.remarks import UNEQUAL

from support.cli import proxfed
from support.image_data import images
from support.small_experiment import small, write

QUIET: dict[str, Any] = {"progress": False}


def problem(sizes: tuple[int, ...], **options: Any) -> Linear:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(sum(sizes), 3))
    return Linear(Federated(A, A @ np.ones(3), list(sizes)), Squared(), **options)


REMARK = "clients hold {} to {} samples and all count the same (weighting = 'uniform'); 'size' weights them by samples"


def test_clients_of_very_different_sizes_that_count_the_same_are_told() -> None:
    least = 20
    most = round(UNEQUAL * least)
    assert REMARK.format(least, most) in run(problem((least, 30, most)), FedAvg(0.1, 2), 3, **QUIET).message
    for fine in (problem((least, 30, most - 1)), problem((least, 30, most), weighting="size")):
        assert "count the same" not in run(fine, FedAvg(0.1, 2), 3, **QUIET).message


def test_a_study_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    algorithms = {"a": FedAvg(0.1, 2), "b": FedAvg(0.05, 2)}
    results = compare(problem((20, 200)), algorithms, 2, seeds=2)
    assert capsys.readouterr().err.count(REMARK.format(20, 200)) == 1
    assert not any(s["message"] for s in results.status)
    compare(problem((20, 200)), algorithms, 2, **QUIET)
    assert "count the same" not in capsys.readouterr().err
    data = {"name": "digits", "partition": {"name": "sizes", "partition_sizes": [10, 90]}}
    file = write(
        tmp_path / "a.toml",
        small(rounds=1, data=data, problem={"name": "softmax"}, algorithms=[{"name": "fedavg", "eta": 0.1, "K": 2}]),
    )
    code, _, said = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    assert (code, said.count("count the same")) == (0, 1), said


def test_simulated_seconds_say_where_their_constants_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = "the profile 'phones_4g': a step of 0.15 to 0.5 s, and the links, are assumed for phones"
    results = compare(problem((20, 20)), {"a": FedAvg(0.1, 2)}, 2, timing="phones_4g")
    assert capsys.readouterr().err.count(origin) == 1
    assert escape(origin) in results.report(tmp_path / "report.html").read_text()
    file = write(tmp_path / "a.toml", small(rounds=1, seeds=[0], time={"profile": "phones_4g", "step_scale": 0.01}))
    _, _, said = proxfed(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    assert said.count(origin) == 1
    assert "time.step_scale = 0.01 multiplies a step" in said


def test_a_network_that_blew_up_got_worse() -> None:
    result = run(Neural(images(), "mlp", batch=4), FedAvg(20.0, 3), 2, **QUIET)
    first, last = result.rows[0]["test_loss"], result.rows[-1]["test_loss"]
    assert last > 2 * first
    assert result.message.startswith(f"got worse: its loss on the test data went from {first:.6g} to {last:.6g}")


def test_a_run_that_stands_still_made_no_progress() -> None:
    result = run(Neural(images(), "mlp", batch=4), FedAvg(1e-12, 3), 3, **QUIET)
    assert result.message.startswith("made no progress: its loss on the test data went from ")
