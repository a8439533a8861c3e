"""A run folder: the settings, every evaluation as a row, and the models.

    config.toml          the study, fully resolved
    versions.json        the versions that it ran on, and later changes of them
    clients.json         each client's number of samples, by class
    rows.csv             one row per evaluation, for all finished tasks
    status.json          each algorithm and seed: running, stopped, finished or diverged
    models/              the final model of each algorithm and seed, a file each
    checkpoint/          a folder for each unfinished task (checkpoint.py)
    kept/                the last checkpoints of finished tasks, unless they are large: for a run of more rounds
    report.html

A task is one algorithm with one seed. Several processes may work on different tasks of one folder; shared files are
written under the folder's lock. The status is written after rows and model: tasks that it does not list as finished are
run again, and rows that it does not cover are cut off.

Every file has a checksum and the name of its run. The status has the checksums of rows.csv, task by task, of the models
and of itself; config.toml has its own in the last line.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import tomli_w
from torch import Tensor

from proxfed import files
from proxfed.errors import InputError, require
from proxfed.harness.folder.checkpoint import TaskFolder, task_name
from proxfed.harness.folder.status_file import Status, piece, read_status
from proxfed.machine import versions
from proxfed.problems.saved import model_name, read_model
from proxfed.report.client_stats import ClientStats
from proxfed.report.columns import DONE, ROW, Row, RunStatus, cell, parse
from proxfed.types import Block

MADE = {"checkpoint", "kept", "models", "versions.json", "clients.json", "rows.csv", "status.json"}
"""Files of a folder that has no config.toml yet and so is not yet a run folder."""

TASK = re.compile(r"-[0-9a-f]{6}-seed\d+")
"""In the names of files and folders of tasks (files.file_name)."""

SEAL = re.compile(rb"^# run [0-9a-f]+, sha256 of the lines above: [0-9a-f]{64}\n\Z", re.M)

NEXT = "rows.next.csv"
"""The file that replaces rows.csv when tasks are reopened; the status already refers to it."""


class Contents(NamedTuple):
    """The contents of a run folder except the models."""

    config: dict[str, Any]
    versions: dict[str, Any]
    clients: ClientStats | None
    status: list[dict[str, Any]]
    rows: list[dict[str, Any]]


class RunFolder:
    """Reads and writes one run folder; a failed write raises an error and keeps the old file."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._seen = files.Seen()

    # ---- reading -----------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return (self.path / "config.toml").is_file()

    def contents(self) -> Contents:
        """All contents except the models."""
        return Contents(self.config(), self.versions(), self.clients(), self.seen_status(), self.rows())

    def _read(self, name: str, most: int = files.LARGEST_TEXT) -> bytes:
        try:
            return files.read(self.path / name, most)
        except OSError as e:
            raise InputError(f"{self.path} is not a readable run folder: {name}: {e.strerror}") from e

    def config(self) -> dict[str, Any]:
        return self._remembered("config.toml", self._read_config)

    def _read_config(self) -> dict[str, Any]:
        path, data, run = self.path / "config.toml", self._read("config.toml"), self._status().run
        last = data.rfind(b"\n", 0, -1) + 1
        whole = data[last:] == _seal(data[:last], run)
        require(whole, f"{path} is damaged or was changed: it is not what this run wrote")
        try:
            return tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
            raise InputError(f"{path} is damaged: {e}") from e

    def _read_table(self, name: str) -> dict[str, Any]:
        """A JSON file, without its checksum and the name of its run."""
        where, run = str(self.path / name), self._status().run
        table = files.checked(files.parse_json(self._read(name), where), where)
        require(table.pop("run", None) == run, f"{where} belongs to another run")
        return table

    def versions(self) -> dict[str, Any]:
        return self._remembered("versions.json", lambda: self._read_table("versions.json"))

    def clients(self) -> ClientStats | None:
        """The statistics of the clients' data; None if they are not recorded."""
        path = self.path / "clients.json"
        if not path.exists():
            return None
        return self._remembered(path.name, lambda: ClientStats.from_table(self._read_table(path.name), str(path)))

    def status(self) -> list[dict[str, Any]]:
        """The last recorded status of each task."""
        return self._status().tasks

    def seen_status(self) -> list[dict[str, Any]]:
        """The status as of now: a task recorded as running without a live process is interrupted."""
        seen = [s | {"status": RunStatus.INTERRUPTED} if self._is_interrupted(s) else s for s in self.status()]
        return [{key: value for key, value in s.items() if key != "model"} for s in seen]

    def _is_interrupted(self, s: Mapping[str, Any]) -> bool:
        if s["status"] != RunStatus.RUNNING:
            return False
        return not files.is_held(self.path / "checkpoint" / task_name(s["algorithm"], s["seed"]))

    def _status(self) -> Status:
        where = str(self.path / "status.json")
        return self._remembered("status.json", lambda: read_status(self._read("status.json"), where))

    def _remembered(self, name: str, read: Callable[[], Any]) -> Any:
        """The cached content of a file, read again if another process has replaced it."""
        return self._seen.get(self.path / name, read)

    def _remember(self, name: str, content: Any) -> None:
        self._seen.put(self.path / name, content)

    def rows(self) -> list[dict[str, Any]]:
        """All complete rows, including those of unfinished tasks; numbers are parsed, and an empty cell is None."""
        with self.alone() if self.exists() else nullcontext():  # no task finishes meanwhile
            data = self._rows_of_done()
            for s in self._status().tasks:
                if s["status"] not in DONE:
                    data += self.task(s["algorithm"], s["seed"], ()).rows()
        reader = csv.DictReader(io.StringIO(data.decode(errors="replace")))
        try:
            known = set(reader.fieldnames or ()) >= {"algorithm", "seed", "round"}
            require(known, f"{self.path / 'rows.csv'} has no header")
            return [{k: parse(k, v) for k, v in row.items()} for row in reader]
        except (ValueError, TypeError, AttributeError, csv.Error) as e:
            raise InputError(f"{self.path / 'rows.csv'}, line {reader.line_num}, is damaged: {e}") from e

    def _rows_of_done(self) -> bytes:
        """The rows of finished tasks with the header; later rows are not covered by the status."""
        status = self._status()
        if (self.path / NEXT).exists():  # a process ended while it reopened tasks
            with suppress(InputError):
                return status.known(self._read(NEXT, files.LARGEST_ROWS), str(self.path / NEXT))
        return status.known(self._read("rows.csv", files.LARGEST_ROWS), str(self.path / "rows.csv"))

    def models(self) -> tuple[dict[str, Tensor], list[Block]]:
        """({'label/seed': x}, the blocks of x) of all finished tasks; empty before the first one."""
        models, blocks = {}, list[Block]()
        for s in self._status().done:
            if "model" in s:
                name = model_name(s["algorithm"], s["seed"])
                model = self._remembered(name, partial(read_model, self.path / name))
                same = model.name == f"{s['algorithm']}/{s['seed']}" and model.sum == s["model"]
                require(same, f"{self.path / name} is not the file that this run wrote: its checksum differs")
                models[model.name], blocks = model.x, model.blocks
        return models, blocks

    # ---- writing the shared files ------------------------------------------------------------------------------

    def create(self, config: Mapping[str, Any], clients: ClientStats | None, measures: Iterable[str]) -> None:
        """Create a folder, or empty an old one of its results; `measures` are columns beside the usual ones."""
        with files.writing(self.path, begun=False):
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "config.toml").unlink(missing_ok=True)  # first: from now on it is not a run folder
            for name in ("checkpoint", "kept", "models"):
                shutil.rmtree(self.path / name, ignore_errors=True)
            for name in ("rows.csv", "clients.json"):
                (self.path / name).unlink(missing_ok=True)
            for name in ("checkpoint", "models"):
                (self.path / name).mkdir()
        head = (",".join([*ROW, *measures]) + "\n").encode()
        self._found(config, versions(), clients, [], head)

    def strangers(self) -> list[Path]:
        """Files that `create` would remove although no run has written them."""
        inside = [path for name in ("checkpoint", "kept", "models") for path in (self.path / name).glob("*")]
        config = [] if not self.exists() or self._is_ours() else [self.path / "config.toml"]
        return [*config, *(path for path in inside if not TASK.search(path.name))]

    def _is_ours(self) -> bool:
        """Whether config.toml ends with our checksum line, or there is a status of ours beside it."""
        with suppress(OSError, InputError):
            return bool(SEAL.search(files.read(self.path / "config.toml"))) or bool(self._status().run)
        return False

    def _found(
        self, config: Mapping[str, Any], versions: Mapping[str, Any], clients: ClientStats | None,
        tasks: Sequence[Mapping[str, Any]], rows: bytes,
    ) -> None:  # fmt: skip
        """Write all files except the models, for a run with a new name."""
        run = token_hex(8)
        self._write_table("versions.json", versions, run, begun=False)
        if clients is not None:
            self._write_table("clients.json", clients.table(), run, begun=False, content=clients)
        self._replace("rows.csv", rows, begun=False)
        self._write(Status(run, [dict(s) for s in tasks], [piece(rows)]), begun=False)
        self._write_config(config, run, begun=False)  # last: from now on it is a run folder

    def write_config(self, config: Mapping[str, Any]) -> None:
        self._write_config(config, self._status().run)

    def _write_config(self, config: Mapping[str, Any], run: str, begun: bool = True) -> None:
        text = tomli_w.dumps(config)
        self._replace("config.toml", text.encode() + _seal(text.encode(), run), begun)
        self._remember("config.toml", tomllib.loads(text))

    def other_versions(self) -> dict[str, Any]:
        """The versions that the run last used, if they differ from those here."""
        first = self.versions()
        last = [first, *first.get("continued_with", [])][-1]
        return {name: last.get(name) for name, version in versions().items() if last.get(name) != version}

    def note_versions(self, here: Mapping[str, Any]) -> None:
        """Record the versions `here` with which a run is resumed, if they have changed."""
        with self.alone():
            if self.other_versions():
                first = self.versions()
                noted = first | {"continued_with": [*first.get("continued_with", []), {**here, **versions()}]}
                self._write_table("versions.json", noted, self._status().run)

    def rewrite(self, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Replace settings and rows, which makes it another run."""
        names = list(dict.fromkeys(name for row in rows for name in row)) or list(ROW)
        columns = [*(c for c in ROW if c in names), *(c for c in names if c not in ROW)]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *([cell(r.get(c)) for c in columns] for r in rows)])
        self._found(config, self.versions(), self.clients(), self.status(), text.getvalue().encode())

    def _write_table(
        self, name: str, table: Mapping[str, Any], run: str, begun: bool = True, content: Any = None
    ) -> None:
        """Write a JSON file with its checksum and the name of its run; `content`: its parsed content, if different."""
        text = json.dumps(files.with_checksum({**table, "run": run}), indent=1 if name != "clients.json" else None)
        self._replace(name, text.encode(), begun)
        self._remember(name, dict(table) if content is None else content)

    def _replace(self, name: str, data: bytes, begun: bool = True) -> None:
        """Replace the content of a file; the error suggests to resume only if the run has begun."""
        files.replace(self.path / name, data, begun)

    def write_status(self, status: Iterable[Mapping[str, Any]]) -> None:
        """Write the status of the tasks."""
        self._write(self._status()._replace(tasks=[dict(s) for s in status]))

    def _write(self, status: Status, begun: bool = True) -> None:
        text = files.sealed(status._asdict())  # in one pass, because it is written at both ends of every task
        self._replace("status.json", text.replace('},{"', '},\n{"').encode(), begun)
        self._remember("status.json", status)

    def write_model(self, label: str, seed: int, x: Tensor, blocks: Iterable[Block]) -> str:
        """Write the final model of a task; returns its checksum, for the status."""
        name, about = f"{label}/{seed}", {"blocks": json.dumps([list(block) for block in blocks])}
        new = files.tensor_file({name: x}, about)
        self._replace(model_name(label, seed), new.data)
        return new.sums[name]

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Hold the lock of the shared files; yields whether there is a run."""
        with files.locked(self.path):
            yield self.exists()

    # ---- tasks -------------------------------------------------------------------------------------------------

    def task(self, label: str, seed: int, measures: Iterable[str]) -> TaskFolder:
        """The folder of an unfinished task; `measures` as when the folder was made."""
        return TaskFolder(self.path / "checkpoint", label, seed, self._status().run, [*ROW, *measures])

    def is_done(self, label: str, seed: int) -> bool:
        return any((s["algorithm"], s["seed"], s["status"] in DONE) == (label, seed, True) for s in self.status())

    def remove_leftovers(self) -> None:
        """Remove folders of tasks that finished just before their process ended, and half-written files."""
        for name in (*MADE, "config.toml", "models/*"):
            for half_written in self.path.glob(f"{name}.*.new"):
                half_written.unlink(missing_ok=True)
        if (self.path / NEXT).exists():
            rows = self._rows_of_done()
            self._replace("rows.csv", rows)
            (self.path / NEXT).unlink()
        for s in self.status():
            if s["status"] in DONE:
                shutil.rmtree(self.path / "checkpoint" / task_name(s["algorithm"], s["seed"]), ignore_errors=True)

    def note(self, label: str, seed: int, status: RunStatus, round: int, message: str = "") -> None:
        """Record the status of a task."""
        with self.alone():
            self._note(label, seed, status, round, message)

    def _note(
        self, label: str, seed: int, status: RunStatus, round: int, message: str, rows: bytes | None = None, **more: Any
    ) -> None:
        here = {"algorithm": label, "seed": seed, "status": status, "round": round, "message": message} | more
        self._write(self._status().with_task(here, rows))

    def finish(
        self, task: TaskFolder, label: str, seed: int, status: RunStatus, round: int, message: str, model: Tensor,
        blocks: Iterable[Block],
    ) -> None:  # fmt: skip
        """Finish a task: add its rows and its model to the others', then update its status."""
        with self.alone():
            digest = self.write_model(label, seed, model, blocks)
            rows = task.rows()
            self._append_rows(rows)
            self._note(label, seed, status, round, message, rows, model=digest)
            task.keep(self.path / "kept")

    def reopen(self, tasks: Collection[tuple[str, int]], every: int) -> None:
        """Reopen finished tasks, to run them for more rounds; the caller has the folder's lock.

        The row of their last round is removed unless it is a multiple of `every`: a longer run would not have it.
        """
        head, *lines = self._rows_of_done().splitlines() or [b""]
        mine: dict[tuple[str, int], list[bytes]] = {task: [] for task in tasks}
        others = [head]
        for line in lines:
            task, t = self._place(head, line)
            if task not in mine:
                others.append(line)
            elif t % every == 0:
                mine[task].append(line)
        for task, own in mine.items():
            self.task(*task, ()).reopen(self.path / "kept", own)
        rows = b"".join(line + b"\n" for line in others)
        states = [s for s in self.status() if (s["algorithm"], s["seed"]) not in mine]
        again = [s for s in self.status() if (s["algorithm"], s["seed"]) in mine]
        states += [{k: v for k, v in s.items() if k != "model"} | {"status": RunStatus.STOPPED} for s in again]
        self._replace(NEXT, rows)
        self._write(Status(self._status().run, states, [piece(rows)]))
        self._replace("rows.csv", rows)
        (self.path / NEXT).unlink()

    def _place(self, head: bytes, line: bytes) -> tuple[tuple[str, int], int]:
        """(task, round) of a line of rows.csv."""
        try:
            (row,) = csv.DictReader([head.decode(), line.decode()])
            return (row["algorithm"], int(row["seed"])), int(row["round"])
        except (ValueError, KeyError, TypeError, csv.Error) as e:
            raise InputError(f"{self.path / 'rows.csv'} is damaged: {line!r:.60} is not a row") from e

    def _append_rows(self, rows: bytes) -> None:
        """Append after the rows covered by the status; other rows are cut off."""
        end = self._status().rows[-1][0]
        with files.writing(self.path), (self.path / "rows.csv").open("r+b") as f:
            there = f.seek(0, os.SEEK_END)
            require(there >= end, f"{self.path / 'rows.csv'} is cut short: it is not what was written")
            f.truncate(end)
            f.seek(end)
            f.write(rows)
            f.flush()
            os.fsync(f.fileno())


def _seal(text: bytes, run: str) -> bytes:
    """The last line of config.toml, with the checksum."""
    return f"# run {run}, {files.SHA256} of the lines above: {sha256(text).hexdigest()}\n".encode()
