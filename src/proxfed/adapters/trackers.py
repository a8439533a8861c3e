"""Hooks that log a run's rows to TensorBoard, MLflow or Weights & Biases, as one tracker run per algorithm and seed.

The libraries are extras (pip install 'proxfed[tensorboard]', '[mlflow]', '[wandb]') and are imported when a run begins.
A resumed run continues the tracker's run, except in Weights & Biases, where it is a new one in the same group.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

from proxfed.errors import InputError
from proxfed.explained import explain
from proxfed.hooks import About, Hook, Moment, Stop
from proxfed.registry import Registry
from proxfed.report.columns import DONE, Row, RunStatus

__all__ = ["HOOKS", "MLflow", "TensorBoard", "WandB"]


def _library(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as e:
        raise InputError(f"{name} is not installed: pip install 'proxfed[{extra}]'") from e


def _numbers(row: Row) -> dict[str, float]:
    """The finite numbers of a row by name, without the round and the seed."""
    others = {k: v for k, v in row.items() if k not in ("round", "seed") and isinstance(v, (int, float))}
    return {name: float(value) for name, value in others.items() if isfinite(value)}


def _name(about: About) -> str:
    """The name of one algorithm with one seed within its study."""
    return f"{about.case}: {about.label}, seed {about.seed}" if about.case else f"{about.label}, seed {about.seed}"


def _settings(about: About) -> dict[str, str]:
    """The settings of this algorithm and the common ones, by dotted keys."""

    def flat(table: Any, prefix: str) -> dict[str, str]:
        if not isinstance(table, dict):
            return {prefix: str(table)}
        below = (flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in table.items())
        return {key: value for part in below for key, value in part.items()}

    own: Any = next((a for a in about.settings.get("algorithms", ()) if a["label"] == about.label), {})
    common = {k: v for k, v in about.settings.items() if k not in ("algorithms", "claims", "reported", "paper")}
    return flat(common, "") | flat(own, "algorithm") | {"label": about.label, "seed": str(about.seed)}


@dataclass(frozen=True)
class TensorBoard(Hook):
    """Event files for `tensorboard --logdir FOLDER`."""

    folder: str = ""
    """The folder of the event files; tensorboard/ in the run folder if not given."""

    def check(self) -> None:
        _library("tensorboard", "tensorboard")

    def begin(self, about: About) -> Hook:
        self.check()
        from torch.utils.tensorboard import SummaryWriter

        place = Path(self.folder) if self.folder else (about.folder or Path()) / "tensorboard"
        done = max((int(row["round"]) for row in about.rows), default=-1)
        name = "".join(c if c.isalnum() or c in "._+-=" else "-" for c in _name(about))
        writer: Any = SummaryWriter(str(place / name), purge_step=done + 1 if about.rows else None)
        return _TensorBoardRun(writer)


@dataclass(frozen=True)
class _TensorBoardRun(Hook):
    writer: Any

    def __call__(self, moment: Moment) -> Stop | None:
        for name, value in _numbers(moment.row).items():
            self.writer.add_scalar(name, value, moment.round)
        return None

    def close(self, status: RunStatus, message: str) -> None:
        self.writer.add_text("status", f"{status}: {message}" if message else str(status))
        self.writer.close()


@dataclass(frozen=True)
class MLflow(Hook):
    """Runs in an MLflow experiment: settings as parameters, rows as metrics by round."""

    experiment: str = ""
    """The study's name if not given."""
    uri: str = ""
    """URI of the tracking server; $MLFLOW_TRACKING_URI, or MLflow's default, if not given."""

    def check(self) -> None:
        _library("mlflow", "mlflow")

    def begin(self, about: About) -> Hook:
        mlflow = _library("mlflow", "mlflow")
        client = mlflow.MlflowClient(tracking_uri=self.uri or None)
        name = self.experiment or about.study or "proxfed"
        known = client.get_experiment_by_name(name)
        where = client.create_experiment(name) if known is None else known.experiment_id
        key = sha256(f"{about.folder and about.folder.resolve()}\n{_name(about)}".encode()).hexdigest()[:16]
        begun = client.search_runs([where], f"tags.`proxfed.run` = '{key}'", max_results=1) if about.rows else []
        if begun:
            run = begun[0].info.run_id
            client.update_run(run, "RUNNING")
        else:
            run = client.create_run(where, run_name=_name(about), tags={"proxfed.run": key}).info.run_id
            params = [mlflow.entities.Param(name, value[:500]) for name, value in _settings(about).items()]
            for k in range(0, len(params), 100):  # MLflow's limit per call
                client.log_batch(run, params=params[k : k + 100])
        return _MLflowRun(client, run, mlflow.entities.Metric)


@dataclass(frozen=True)
class _MLflowRun(Hook):
    client: Any
    run: str
    metric: Any

    def __call__(self, moment: Moment) -> Stop | None:
        now, numbers = int(1000 * time.time()), _numbers(moment.row)
        metrics = [self.metric(name, value, now, moment.round) for name, value in numbers.items()]
        self.client.log_batch(self.run, metrics=metrics)
        return None

    def close(self, status: RunStatus, message: str) -> None:
        self.client.set_tag(self.run, "proxfed.status", f"{status}: {message}" if message else str(status))
        self.client.set_terminated(self.run, "FINISHED" if status in DONE else "KILLED")


@dataclass(frozen=True)
class WandB(Hook):
    """Runs in a project of Weights & Biases, grouped by study."""

    project: str = "proxfed"
    """The W&B project."""
    entity: str = ""
    """A user or team; the default one if not given."""
    mode: str = ""
    """'online', 'offline' or 'disabled'; $WANDB_MODE if not given."""
    folder: str = ""
    """The folder of W&B's files; the run folder if not given."""

    def check(self) -> None:
        _library("wandb", "wandb")

    def begin(self, about: About) -> Hook:
        wandb = _library("wandb", "wandb")
        place = Path(self.folder) if self.folder else about.folder or Path()
        run = wandb.init(
            project=self.project,
            entity=self.entity or None,
            mode=self.mode or None,
            dir=str(place),
            group=about.study or None,
            name=_name(about),
            config=_settings(about),
            reinit="create_new",
        )
        return _WandBRun(run)


@dataclass(frozen=True)
class _WandBRun(Hook):
    run: Any

    def __call__(self, moment: Moment) -> Stop | None:
        self.run.log(_numbers(moment.row), step=moment.round)
        return None

    def close(self, status: RunStatus, message: str) -> None:
        self.run.summary["status"] = f"{status}: {message}" if message else str(status)
        self.run.finish(exit_code=0 if status in DONE else 1)


HOOKS: Registry[type] = Registry("hooks", {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB})


explain(__name__)
