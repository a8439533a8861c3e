"""Rows in TensorBoard, MLflow and Weights & Biases, read back with the real libraries, offline.

They are extras: `make test-trackers` installs them, and without them these tests skip.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from proxfed import FedAvg, InputError, Moment, compare, read_study, run_study
from proxfed.adapters.trackers import HOOKS, MLflow, TensorBoard, WandB

from support.cli import refused
from support.small_experiment import small, write
from support.toy_problems import problem

QUIET: dict[str, Any] = {"progress": False, "jobs": 1}
ALGORITHMS = {"a: b": FedAvg(0.3, 2)}

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed: `make test-trackers` installs it")


def interrupted(hook: Any, out: Path) -> Any:
    """Two lives of one run: stopped after round 3, and resumed."""

    def stop(moment: Moment) -> None:
        if moment.round == 3:
            raise KeyboardInterrupt

    compare(problem(), ALGORITHMS, 6, out=out, hooks=[hook, stop], **QUIET)
    return compare(problem(), ALGORITHMS, 6, out=out, hooks=[hook], **QUIET)


def expected(results: Any, name: str) -> list[tuple[int, float]]:
    return [(row["round"], row[name]) for row in results.rows]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_library_that_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"{name} is not installed: pip install 'proxfed\[{name}\]'"):
        compare(problem(), ALGORITHMS, 2, out=tmp_path / "run", hooks=[HOOKS[name]()], **QUIET)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_the_command_line_names_it_before_anything_is_run(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    algorithms = [{"name": "fedavg", "eta": 0.1, "K": 1}]
    file = write(tmp_path / "a.toml", small(rounds=1, seeds=[0], algorithms=algorithms, hooks=[{"name": name}]))
    said = refused(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    assert f"{name} is not installed: pip install 'proxfed[{name}]'" in said
    assert not (tmp_path / "run").exists()


def test_tensorboard(tmp_path: Path) -> None:
    library("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    results = interrupted(TensorBoard(), tmp_path / "run")
    (folder,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert folder.name == "a--b--seed-0"
    events = EventAccumulator(str(folder)).Reload()
    for name in ("objective", "bytes_up"):
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert [t for t, _ in found] == list(range(7))
        assert found == [(t, pytest.approx(value, rel=1e-6)) for t, value in expected(results, name)]


def test_tensorboard_by_a_file_in_several_processes(tmp_path: Path) -> None:
    library("tensorboard")
    table = small(rounds=2, seeds=[0, 1], hooks=[{"name": "tensorboard", "folder": str(tmp_path / "tb")}])
    study = read_study(write(tmp_path / "a.toml", table))
    run_study(study, tmp_path / "run", only=["fedavg"], jobs=2, progress=False)
    assert sorted(path.name for path in (tmp_path / "tb").iterdir()) == ["fedavg--seed-0", "fedavg--seed-1"]


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = library("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions want a database otherwise
    uri = f"file://{tmp_path / 'mlruns'}"
    results = interrupted(MLflow("trial", uri), tmp_path / "run")
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    assert run.info.run_name == "a: b, seed 0"
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm.eta"] == "0.3"
    assert run.data.tags["proxfed.status"].startswith("finished")
    found = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "objective")]
    assert sorted(found) == expected(results, "objective")


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library("wandb")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    results = compare(problem(), ALGORITHMS, 6, out=tmp_path / "run", hooks=[WandB(mode="offline")], **QUIET)
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    history, config = _of_wandb(file)
    assert [(int(row["_step"]), row["objective"]) for row in history] == expected(results, "objective")
    assert config["algorithm.eta"] == "0.3"


def _of_wandb(file: Path) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """The rows and the settings in the file of a run that has not been sent."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store, history, config = DataStore(), [], dict[str, Any]()
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            history.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
        if record.WhichOneof("record_type") == "run":
            config |= {u.key or u.nested_key[0]: json.loads(u.value_json) for u in record.run.config.update}
    return history, config
