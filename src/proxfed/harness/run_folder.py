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

Every file carries a checksum and the name of its run: those of the rows, piece by piece, and of the models are in the
status, which also has its own; config.toml has it in its last line. A folder of a version that had no checksums is read
as it is, and gets them when it is resumed.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import tomli_w
from torch import Tensor

from proxfed import files
from proxfed.errors import InputError, require
from proxfed.harness.checkpoint import UNREADABLE, TaskFolder, task_name
from proxfed.harness.status_file import Status, piece, read_status
from proxfed.machine import versions
from proxfed.report.client_stats import ClientStats
from proxfed.report.columns import DONE, ROW, Row, cell, parse
from proxfed.types import Block

MADE = {"checkpoint", "versions.json", "clients.json", "rows.csv", "status.json"}
"""What stands in a folder before its config.toml makes it a run folder."""


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
        whole = not run or data[last:] == _seal(data[:last], run)
        require(whole, f"{path} is damaged or was changed: it is not what this run wrote")
        try:
            return tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
            raise InputError(f"{path} is damaged: {e}") from e

    def _read_table(self, name: str) -> dict[str, Any]:
        """A JSON file, without what says that it is whole and of this run."""
        where, run = str(self.path / name), self._status().run
        table = files.parse_json(self._read(name), where)
        require(isinstance(table, dict), f"{where} is damaged: it holds no table")
        if run:
            table = files.checked(table, where)
            require(table.get("run") == run, f"{where} is of another run")
        return {key: value for key, value in table.items() if key not in ("run", files.SHA256)}

    def versions(self) -> dict[str, Any]:
        return self._remembered("versions.json", lambda: self._read_table("versions.json"))

    def clients(self) -> ClientStats | None:
        """Who holds what; None if the folder does not say."""
        path = self.path / "clients.json"
        if not path.exists():
            return None
        return self._remembered(path.name, lambda: ClientStats.from_table(self._read_table(path.name), str(path)))

    def status(self) -> list[dict[str, Any]]:
        """Of each task what it was doing when it last said so."""
        return self._status().tasks

    def seen_status(self) -> list[dict[str, Any]]:
        """The same as somebody sees it who looks now: a task that nobody works on does not run, whatever it said."""
        seen = [s | {"status": "interrupted"} if self._is_interrupted(s) else s for s in self.status()]
        return [{key: value for key, value in s.items() if key not in ("model", "rows_end")} for s in seen]

    def _is_interrupted(self, s: Mapping[str, Any]) -> bool:
        if s["status"] != "running":
            return False
        return not files.is_held(self.path / "checkpoint" / task_name(s["algorithm"], s["seed"]))

    def _status(self) -> Status:
        where = str(self.path / "status.json")
        return self._remembered("status.json", lambda: read_status(self._read("status.json"), where))

    def _remembered(self, name: str, read: Callable[[], Any]) -> Any:
        """The content of a file that other processes may have replaced since."""
        if name not in self._seen or self._seen[name][0] != self._stamp(name):
            self._remember(name, read())
        return self._seen[name][1]

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
        with self.alone() if self.exists() else nullcontext():  # no task comes to its end meanwhile
            data = self._rows_of_done()
            for s in self._status().tasks:
                if s["status"] not in DONE:
                    task = self.task(s["algorithm"], s["seed"], ())
                    data += task.rows() if self._status().run else task.old_rows()
        reader = csv.DictReader(io.StringIO(data.decode(errors="replace")))
        try:
            known = set(reader.fieldnames or ()) >= {"algorithm", "seed", "round"}
            require(known, f"{self.path / 'rows.csv'} has no header")
            return [{k: parse(k, v) for k, v in row.items()} for row in reader]
        except (ValueError, TypeError, AttributeError, csv.Error) as e:
            raise InputError(f"{self.path / 'rows.csv'}, line {reader.line_num}, is damaged: {e}") from e

    def _rows_of_done(self) -> bytes:
        """With the head; what stands behind them did not get to its status."""
        status, data = self._status(), self._read("rows.csv", files.LARGEST_ROWS)
        return status.known(data, str(self.path / "rows.csv")) if status.run else data[: self._old_end(data)]

    def _old_end(self, data: bytes) -> int:
        """The same of a version without checksums."""
        if done := self._status().done:
            return max(s.get("rows_end", len(data)) for s in done)
        under_way = any((self.path / "checkpoint").glob("*/"))
        return data.find(b"\n") + 1 if under_way else data.rfind(b"\n") + 1

    def models(self) -> tuple[dict[str, Tensor], list[Block]]:
        """({'label/seed': x}, the blocks of x); empty before the first task is done."""
        return self._remembered("model.safetensors", self._read_models)[:2]

    def _read_models(self) -> tuple[dict[str, Tensor], list[Block], dict[str, str]]:
        path = self.path / "model.safetensors"
        sums = self._status().models
        if not path.exists():
            require(not sums, f"{path} is not there, but {len(sums)} models were written")
            return {}, [], {}
        try:
            found = files.read_tensors(path, ["blocks"])
            blocks = [Block(n, a, b, tuple(shape)) for n, a, b, shape in json.loads(found.about["blocks"])]
        except UNREADABLE as e:
            raise InputError(f"{path} is damaged: {e}") from e
        other = next((name for name, digest in sums.items() if found.sums.get(name) != digest), None)
        require(other is None, f"{path} is not the file that this run wrote: its model {other!r} is another one")
        return found.tensors, blocks, found.sums

    # ---- writing what all tasks share --------------------------------------------------------------------------

    def create(self, config: Mapping[str, Any], clients: ClientStats | None, measures: Iterable[str]) -> None:
        """A new folder, or an old one emptied of its results; `measures` are columns beside those of every study."""
        with files.writing(self.path, begun=False):
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "config.toml").unlink(missing_ok=True)  # the first: from now on it is no run folder
            shutil.rmtree(self.path / "checkpoint", ignore_errors=True)
            for name in ("rows.csv", "model.safetensors", "clients.json"):
                (self.path / name).unlink(missing_ok=True)
            (self.path / "checkpoint").mkdir()
        self._remember("model.safetensors", ({}, [], {}))
        head = (",".join([*ROW, *measures]) + "\n").encode()
        self._found(config, versions(), clients, [], head, begun=False)

    def _found(
        self, config: Mapping[str, Any], versions: Mapping[str, Any], clients: ClientStats | None,
        tasks: Sequence[Mapping[str, Any]], rows: bytes, begun: bool = True,
    ) -> None:  # fmt: skip
        """All files but the models, of a run with a name of its own."""
        run = token_hex(8)
        self._write_table("versions.json", versions, run, begun)
        if clients is not None:
            self._write_table("clients.json", clients.table(), run, begun, clients)
        self._replace("rows.csv", rows, begun)
        kept = [{key: value for key, value in s.items() if key != "rows_end"} for s in tasks]
        status = Status(run, kept, [piece(rows)])
        if begun:  # it is a run folder: while its status is the old one, checksums are not looked at
            self._write_config(config, run)
        self._write(status, begun)
        if not begun:  # the last: from now on it is one
            self._write_config(config, run, begun)

    def has_checksums(self) -> bool:
        return self._status().run != ""

    def add_checksums(self) -> None:
        """To a folder of a version that had none; its tasks under way begin anew."""
        config, versions, clients, models = self.config(), self.versions(), self.clients(), self.models()
        rows = self._rows_of_done()
        done = self._status().done
        shutil.rmtree(self.path / "checkpoint", ignore_errors=True)
        if models[0]:
            sums = self.write_models(*models)
            done = [s | {"model": sums[f"{s['algorithm']}/{s['seed']}"]} for s in done]
        self._found(config, versions, clients, done, rows)

    def write_config(self, config: Mapping[str, Any]) -> None:
        self._write_config(config, self._status().run)

    def _write_config(self, config: Mapping[str, Any], run: str, begun: bool = True) -> None:
        text = tomli_w.dumps(config)
        self._replace("config.toml", text.encode() + _seal(text.encode(), run), begun)
        self._remember("config.toml", tomllib.loads(text))

    def note_versions(self, here: Mapping[str, Any]) -> None:
        """Note what a run goes on with from `here`, if that is not what it ran on so far."""
        with self.alone():
            first, now = self.versions(), versions()
            later = first.get("continued_with", [])
            last = [first, *later][-1]
            if any(last.get(name) != version for name, version in now.items()):
                noted = first | {"continued_with": [*later, {**here, **now}]}
                self._write_table("versions.json", noted, self._status().run)

    def rewrite(self, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Other settings and other rows, in place of those that are there: another run."""
        names = list(dict.fromkeys(name for row in rows for name in row)) or list(ROW)
        columns = [*(c for c in ROW if c in names), *(c for c in names if c not in ROW)]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *([cell(r.get(c)) for c in columns] for r in rows)])
        self._found(config, self.versions(), self.clients(), self.status(), text.getvalue().encode())

    def _write_table(
        self, name: str, table: Mapping[str, Any], run: str, begun: bool = True, content: Any = None
    ) -> None:
        """A JSON file, with what says that it is whole and of this run; `content` is what it is read as, if another."""
        text = json.dumps(files.with_checksum({**table, "run": run}), indent=1 if name != "clients.json" else None)
        self._replace(name, text.encode(), begun)
        self._remember(name, dict(table) if content is None else content)

    def _replace(self, name: str, data: bytes, begun: bool = True) -> None:
        """The content of one of the files; while the run has not begun, there is nothing to resume if that fails."""
        files.replace(self.path / name, data, begun)

    def write_status(self, status: Iterable[Mapping[str, Any]]) -> None:
        """What the tasks are doing."""
        self._write(self._status()._replace(tasks=[dict(s) for s in status]))

    def _write(self, status: Status, begun: bool = True) -> None:
        self._write_table("status.json", status._asdict(), status.run, begun, status)

    def write_models(self, models: Mapping[str, Tensor], blocks: Iterable[Block]) -> dict[str, str]:
        """Models by 'label/seed'; the checksum of each."""
        before, same_blocks, known = self._remembered("model.safetensors", self._read_models)
        blocks = list(blocks)
        unchanged = [name for name in before if models.get(name) is before[name] and blocks == same_blocks]
        same = {name: known[name] for name in unchanged if name in known}
        new = files.tensor_file(models, {"blocks": json.dumps([list(block) for block in blocks])}, same)
        self._replace("model.safetensors", new.data)
        self._remember("model.safetensors", (new.tensors, blocks, new.sums))
        return new.sums

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Meanwhile no other process writes what all tasks share; whether there is a run here."""
        with files.locked(self.path):
            yield self.exists()

    # ---- tasks -------------------------------------------------------------------------------------------------

    def task(self, label: str, seed: int, measures: Iterable[str]) -> TaskFolder:
        """The folder of a task under way; `measures` as when the folder was made."""
        return TaskFolder(self.path / "checkpoint", label, seed, self._status().run, [*ROW, *measures])

    def is_done(self, label: str, seed: int) -> bool:
        return any((s["algorithm"], s["seed"], s["status"] in DONE) == (label, seed, True) for s in self.status())

    def remove_leftovers(self) -> None:
        """Folders of tasks that came to their end just before the process did, and files that it was writing."""
        for name in (*MADE, "config.toml", "model.safetensors"):
            for half_written in self.path.glob(f"{name}.*.new"):
                half_written.unlink(missing_ok=True)
        for s in self.status():
            if s["status"] in DONE:
                shutil.rmtree(self.path / "checkpoint" / task_name(s["algorithm"], s["seed"]), ignore_errors=True)

    def note(self, label: str, seed: int, status: str, round: int, message: str = "") -> None:
        """What a task is doing."""
        with self.alone():
            self._note(label, seed, status, round, message)

    def _note(
        self, label: str, seed: int, status: str, round: int, message: str, rows: bytes | None = None, **more: Any
    ) -> None:
        here = {"algorithm": label, "seed": seed, "status": status, "round": round, "message": message} | more
        self._write(self._status().with_task(here, rows))

    def finish(
        self, task: TaskFolder, label: str, seed: int, status: str, round: int, message: str, model: Tensor,
        blocks: Iterable[Block],
    ) -> None:  # fmt: skip
        """A task is done: its rows and its model join those of the others, and then its status says so."""
        with self.alone():
            sums = self.write_models(self.models()[0] | {f"{label}/{seed}": model}, blocks)
            rows = task.rows()
            self._append_rows(rows)
            self._note(label, seed, status, round, message, rows, model=sums[f"{label}/{seed}"])
            task.clear()

    def _append_rows(self, rows: bytes) -> None:
        """Behind the rows of the tasks that are done; those of one that did not get to its status are cut off."""
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
    """The last line of config.toml."""
    return f"# run {run}, {files.SHA256} of the lines above: {sha256(text).hexdigest()}\n".encode()
