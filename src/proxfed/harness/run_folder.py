"""A run folder: what was asked, every evaluation as a row, and the models.

    config.toml          the study, fully resolved
    versions.json        what it ran on, and since when on something else
    clients.json         how many samples each client holds, and of which classes
    rows.csv             one row per evaluation, of every task that is done
    status.json          each algorithm and seed: running, stopped, finished or diverged
    model.safetensors    the final model of each algorithm and seed
    checkpoint/          a folder for each task under way (checkpoint.py)
    report.html

A task is one algorithm with one seed. Several processes may work on different tasks of one folder; what they share is
written under the folder's lock. The status is never ahead of rows and model: what it does not know to be done is done
again, and rows behind those that it knows of are cut off.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import tomli_w
import torch
from safetensors.torch import save
from torch import Tensor

from proxfed.data.client_stats import ClientStats
from proxfed.errors import InputError, require
from proxfed.harness.checkpoint import UNREADABLE, TaskFolder, task_name
from proxfed.harness.files import locked, owned, replace, writing
from proxfed.problems.passes import kernels
from proxfed.report.columns import ROW, Row, cell, parse
from proxfed.types import Block

DONE = ("finished", "diverged")


def versions() -> dict[str, Any]:
    """What the numbers depend on beside the configuration."""
    from proxfed import __version__

    return {
        "proxfed": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "kernels": kernels(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "system": platform.system(),
    }


class Contents(NamedTuple):
    """What a run folder holds beside the models."""

    config: dict[str, Any]
    versions: dict[str, Any]
    clients: ClientStats | None
    status: list[dict[str, Any]]
    rows: list[dict[str, Any]]


class RunFolder:
    """Reading and writing one run folder; every write that fails says so and keeps what was there."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._seen: dict[str, tuple[Any, Any]] = {}
        """What stands in a file that this process has read or written, and the file's stamp at that time."""

    # ---- reading -----------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return (self.path / "config.toml").is_file()

    def contents(self) -> Contents:
        """All but the models."""
        return Contents(self.config(), self.versions(), self.clients(), self.status(), self.rows())

    def _read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as e:
            raise InputError(f"{self.path} is not a readable run folder: {name}: {e.strerror}") from e

    def config(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self._read("config.toml").decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
            raise InputError(f"{self.path / 'config.toml'} is damaged: {e}") from e

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self._read(name))
        except ValueError as e:
            raise InputError(f"{self.path / name} is damaged: {e}") from e

    def versions(self) -> dict[str, Any]:
        return self._json("versions.json")

    def clients(self) -> ClientStats | None:
        """Who holds what; None if the folder does not say."""
        path = self.path / "clients.json"
        return ClientStats.from_table(self._json("clients.json"), str(path)) if path.exists() else None

    def status(self) -> list[dict[str, Any]]:
        return self._remembered("status.json", lambda: self._json("status.json"))

    def _remembered(self, name: str, read: Callable[[], Any]) -> Any:
        """The content of a file that other processes may have replaced since."""
        stamp, content = self._seen.get(name, (None, None))
        if stamp is None or stamp != self._stamp(name):
            content = read()
            self._remember(name, content)
        return content

    def _remember(self, name: str, content: Any) -> None:
        self._seen[name] = self._stamp(name), content

    def _stamp(self, name: str) -> Any:
        try:
            found = (self.path / name).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def rows(self) -> list[dict[str, Any]]:
        """All complete rows, also of tasks under way; numbers are numbers and an empty cell is None."""
        with self._alone() if self.exists() else nullcontext():  # no task comes to its end meanwhile
            data = self._read("rows.csv")
            text = data[: self._rows_end(data.find(b"\n") + 1, len(data))].decode(errors="replace")
            done = {task_name(s["algorithm"], s["seed"]) for s in self.status() if s["status"] in DONE}
            for task in sorted((self.path / "checkpoint").glob("*/rows.csv")):
                if task.parent.name not in done:
                    text = _complete(text) + task.read_text(errors="replace")
        reader = csv.DictReader(io.StringIO(_complete(text)))
        require(
            set(reader.fieldnames or ()) >= {"algorithm", "seed", "round"}, f"{self.path / 'rows.csv'} has no header"
        )
        try:
            return [{k: parse(k, v) for k, v in row.items()} for row in reader]
        except (ValueError, TypeError, AttributeError) as e:
            raise InputError(f"{self.path / 'rows.csv'}, line {reader.line_num}, is damaged: {e}") from e

    def _rows_end(self, head: int, size: int) -> int:
        """Where the rows of the tasks that are done end: what stands behind them did not get to its status."""
        done = [s for s in self.status() if s["status"] in DONE]
        if not done:
            under_way = any((self.path / "checkpoint").glob("*/"))
            return head if under_way else size
        return max(s.get("rows_end", size) for s in done)

    def models(self) -> tuple[dict[str, Tensor], list[Block]]:
        """({'label/seed': x}, the blocks of x); empty before the first task is done."""
        return self._remembered("model.safetensors", self._read_models)

    def _read_models(self) -> tuple[dict[str, Tensor], list[Block]]:
        path = self.path / "model.safetensors"
        if not path.exists():
            return {}, []
        try:
            with safetensors.safe_open(path, framework="pt") as f:
                blocks = [Block(n, a, b, tuple(shape)) for n, a, b, shape in json.loads(f.metadata()["blocks"])]
                return {k: f.get_tensor(k) for k in f.keys()}, blocks  # noqa: SIM118
        except UNREADABLE as e:
            raise InputError(f"{path} is damaged: {e}") from e

    # ---- writing what all tasks share --------------------------------------------------------------------------

    def create(self, config: Mapping[str, Any], clients: ClientStats | None, measures: Iterable[str]) -> None:
        """A new folder, or an old one emptied of its results; `measures` are columns beside those of every study."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.path / "checkpoint", ignore_errors=True)
            for name in ("rows.csv", "model.safetensors", "clients.json"):
                (self.path / name).unlink(missing_ok=True)
            (self.path / "checkpoint").mkdir()
        self._json_file("versions.json", versions(), indent=1)
        if clients is not None:
            self._json_file("clients.json", clients.table(), separators=(",", ":"))
        replace(self.path / "rows.csv", (",".join([*ROW, *measures]) + "\n").encode())
        self.write_status([])
        self.write_config(config)  # the last: from now on it is a run folder

    def write_config(self, config: Mapping[str, Any]) -> None:
        replace(self.path / "config.toml", tomli_w.dumps(config).encode())

    def note_versions(self, here: Mapping[str, Any]) -> None:
        """Note what a run goes on with from `here`, if that is not what it ran on so far."""
        with self._alone():
            first, now = self.versions(), versions()
            later = first.get("continued_with", [])
            last = [first, *later][-1]
            if any(last.get(name) != version for name, version in now.items()):
                self._json_file("versions.json", first | {"continued_with": [*later, {**here, **now}]}, indent=1)

    def write_rows(self, rows: Sequence[Row]) -> None:
        """All rows at once, in place of those that are there."""
        names = list(dict.fromkeys(name for row in rows for name in row)) or list(ROW)
        columns = [*(c for c in ROW if c in names), *(c for c in names if c not in ROW)]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *([cell(r.get(c)) for c in columns] for r in rows)])
        replace(self.path / "rows.csv", data := text.getvalue().encode())
        if any("rows_end" in s for s in self.status()):
            self.write_status([s | {"rows_end": len(data)} if "rows_end" in s else s for s in self.status()])

    def _json_file(self, name: str, content: Any, **how: Any) -> None:
        replace(self.path / name, json.dumps(content, **how).encode())

    def write_status(self, status: Sequence[Mapping[str, Any]]) -> None:
        self._json_file("status.json", status, indent=1)
        self._remember("status.json", list(status))

    def write_models(self, models: Mapping[str, Tensor], blocks: Iterable[Block]) -> None:
        """Models by 'label/seed'."""
        models, blocks = owned(models), list(blocks)
        meta = {"blocks": json.dumps([list(block) for block in blocks])}
        replace(self.path / "model.safetensors", save(models, metadata=meta))
        self._remember("model.safetensors", (models, blocks))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with locked(self.path):
            yield

    # ---- tasks -------------------------------------------------------------------------------------------------

    def task(self, label: str, seed: int, measures: Iterable[str]) -> TaskFolder:
        """The folder of a task under way; `measures` as when the folder was made."""
        return TaskFolder(self.path / "checkpoint" / task_name(label, seed), [*ROW, *measures])

    def is_done(self, label: str, seed: int) -> bool:
        return any((s["algorithm"], s["seed"], s["status"] in DONE) == (label, seed, True) for s in self.status())

    def remove_leftovers(self) -> None:
        """Folders of tasks that came to their end just before the process did."""
        for s in self.status():
            if s["status"] in DONE:
                shutil.rmtree(self.path / "checkpoint" / task_name(s["algorithm"], s["seed"]), ignore_errors=True)

    def note(self, label: str, seed: int, status: str, round: int, message: str = "") -> None:
        """What a task is doing."""
        with self._alone():
            self._note(label, seed, status, round, message)

    def _note(self, label: str, seed: int, status: str, round: int, message: str, **more: Any) -> None:
        here = {"algorithm": label, "seed": seed, "status": status, "round": round, "message": message} | more
        others = [s for s in self.status() if (s["algorithm"], s["seed"]) != (label, seed)]
        self.write_status([*others, here])

    def finish(
        self, task: TaskFolder, label: str, seed: int, status: str, round: int, message: str, model: Tensor,
        blocks: Iterable[Block],
    ) -> None:  # fmt: skip
        """A task is done: its rows and its model join those of the others, and then its status says so."""
        with self._alone():
            self.write_models(self.models()[0] | {f"{label}/{seed}": model}, blocks)
            end = self._append_rows(task.rows())
            self._note(label, seed, status, round, message, rows_end=end)
            task.clear()

    def _append_rows(self, rows: bytes) -> int:
        """Behind the rows of the tasks that are done; those of one that did not get to its status are cut off."""
        with writing(self.path), (self.path / "rows.csv").open("r+b") as f:
            end = self._rows_end(len(f.readline()), f.seek(0, os.SEEK_END))
            f.truncate(end)
            f.seek(end)
            f.write(rows)
            f.flush()
            os.fsync(f.fileno())
            return f.tell()


def _complete(text: str) -> str:
    """Without the last line if it is half-written."""
    return text[: text.rfind("\n") + 1]
