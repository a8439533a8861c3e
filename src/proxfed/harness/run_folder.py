"""A run folder: what was asked, every evaluation as a row, the models, and a checkpoint that survives kill -9.

    config.toml          the experiment, fully resolved
    versions.json        what it ran on, and since when on something else
    clients.json         how many samples each client holds, and of which classes
    rows.csv             one row per evaluation, appended as the run goes
    status.json          each algorithm and seed: running, stopped, finished or diverged
    model.safetensors    the final model of each algorithm and seed
    checkpoint/          two slots, written in turn, each replaced atomically
    report.html

Rows after the last checkpoint are cut off on resume and computed again, bit for bit the same.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import platform
import sys
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import tomli_w
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from proxfed.data.client_stats import ClientStats
from proxfed.errors import InputError, RunError, require

COLUMNS = (
    "run",
    "algorithm",
    "seed",
    "round",
    "gradients",
    "proxes",
    "bytes_up",
    "bytes_down",
    "bytes_edge",
    "bytes_best",
    "wall_seconds",
    "sim_seconds",
    "objective",
    "gap",
    "error",
    "stationarity",
    "consensus",
    "nonzeros",
)
MEASURED = COLUMNS[COLUMNS.index("objective") :]
"""What every problem has a column for; the others say where the run stands and what it has spent."""
_TEXT = {"run", "algorithm"}
_WHOLE = {"seed", "round", "gradients", "proxes", "bytes_up", "bytes_down", "bytes_edge", "bytes_best", "nonzeros"}

_UNREADABLE = (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError)
"""What reading a damaged safetensors file may raise."""

Row = Mapping[str, Any]


class Checkpoint(NamedTuple):
    """Where a run stands: at which task with which seed, after which round, with which state."""

    task: int  # how many tasks are done, each seed counted
    round: int
    rows_end: int
    counters: dict[str, float]
    tensors: dict[str, Tensor]


def versions() -> dict[str, Any]:
    """What the numbers depend on beside the configuration."""
    from proxfed import __version__

    return {
        "proxfed": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "system": platform.system(),
    }


class RunFolder:
    """Reading and writing one run folder; every write that fails says so and keeps what was there."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.columns: list[str] = []
        self._slot = 0

    # ---- reading -----------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return (self.path / "config.toml").is_file()

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
        return self._json("status.json")

    def ended(self) -> list[dict[str, Any]]:
        """The status of the algorithms and seeds that have come to an end."""
        return [state for state in self.status() if state["status"] in ("finished", "diverged")]

    def finished(self) -> bool:
        """Every algorithm has come to an end with every seed."""
        config = self.config()
        return len(self.ended()) == len(config["algorithms"]) * len(config["seeds"])

    def rows(self) -> list[dict[str, Any]]:
        """All complete rows; numbers are numbers and an empty cell is None."""
        text = self._rows().decode(errors="replace")
        complete = text[: text.rfind("\n") + 1]  # the last line may be half-written
        reader = csv.DictReader(io.StringIO(complete))
        require(
            set(reader.fieldnames or ()) >= {"algorithm", "seed", "round"}, f"{self.path / 'rows.csv'} has no header"
        )
        try:
            return [{k: _parse(k, v) for k, v in row.items()} for row in reader]
        except (ValueError, TypeError) as e:
            raise InputError(f"{self.path / 'rows.csv'}, line {reader.line_num}, is damaged: {e}") from e

    def _rows(self) -> bytes:
        packed = self.path / "rows.csv.gz"
        if (self.path / "rows.csv").exists() or not packed.exists():
            return self._read("rows.csv")
        try:
            return gzip.decompress(self._read(packed.name))
        except (EOFError, OSError, zlib.error) as e:
            raise InputError(f"{packed} is damaged: {e}") from e

    def models(self) -> tuple[dict[str, np.ndarray], list[list[Any]]]:
        """({'label/seed': x}, blocks of x as [name, start, stop, shape]); empty before the first run has finished."""
        path = self.path / "model.safetensors"
        if not path.exists():
            return {}, []
        with _reading(path), safetensors.safe_open(path, framework="np") as f:
            return {k: f.get_tensor(k) for k in f.keys()}, json.loads(f.metadata()["blocks"])  # noqa: SIM118

    # ---- writing -----------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Meanwhile nobody else may write the run."""
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32":  # has no lock of this kind
            yield
            return
        import fcntl

        here = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(here, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(here)
            raise InputError(f"{self.path}: another process is writing this run") from None
        try:
            yield
        finally:
            os.close(here)

    def create(self, config: Mapping[str, Any]) -> None:
        """A new folder, or an old one emptied of its results."""
        with self._writing():
            (self.path / "checkpoint").mkdir(parents=True, exist_ok=True)
            results = [self.path / name for name in ("rows.csv", "model.safetensors", "clients.json")]
            for old in [*(self.path / "checkpoint").iterdir(), *results]:
                old.unlink(missing_ok=True)
        self.write_config(config)
        self._replace("versions.json", json.dumps(versions(), indent=1).encode())
        self.write_status([])

    def start_rows(self, measures: Iterable[str]) -> None:
        """Write the header: the fixed columns, what else the experiment asks for and the problem's own measures."""
        self.columns = [*COLUMNS, *measures]
        self._replace("rows.csv", (",".join(self.columns) + "\n").encode())

    def resume_rows(self, end: int) -> None:
        """Go on after the first `end` bytes of rows.csv."""
        self.columns = self._read("rows.csv").split(b"\n", 1)[0].decode().split(",")
        require(
            (self.path / "rows.csv").stat().st_size >= end,
            f"{self.path / 'rows.csv'} is shorter than when the checkpoint was written: it cannot be resumed",
        )
        with self._writing(), (self.path / "rows.csv").open("r+b") as f:
            f.truncate(end)

    def append(self, row: Row) -> None:
        cells = [_cell(row.get(c)) for c in self.columns]
        with self._writing(), (self.path / "rows.csv").open("a", newline="") as f:
            csv.writer(f, lineterminator="\n").writerow(cells)

    def write_rows(self, rows: Sequence[Row]) -> None:
        """All rows at once, in place of those that are there."""
        names = list(dict.fromkeys(chain.from_iterable(rows))) or list(COLUMNS)
        self.columns = [*(c for c in COLUMNS if c in names), *(c for c in names if c not in COLUMNS)]
        text = io.StringIO()
        cells = ([_cell(row.get(c)) for c in self.columns] for row in rows)
        csv.writer(text, lineterminator="\n").writerows([self.columns, *cells])
        self._replace("rows.csv", text.getvalue().encode())

    def write_config(self, config: Mapping[str, Any]) -> None:
        self._replace("config.toml", tomli_w.dumps(config).encode())

    def write_versions(self, here: Mapping[str, Any]) -> None:
        """Note what a run goes on with from `here`, if that is not what it ran on so far."""
        first, now = self.versions(), versions()
        later = first.get("continued_with", [])
        last = [first, *later][-1]
        if any(last.get(name) != version for name, version in now.items()):
            every = first | {"continued_with": [*later, {**here, **now}]}
            self._replace("versions.json", json.dumps(every, indent=1).encode())

    def write_clients(self, holdings: ClientStats) -> None:
        self._replace("clients.json", json.dumps(holdings.table(), separators=(",", ":")).encode())

    def write_status(self, status: list[dict[str, Any]]) -> None:
        self._replace("status.json", json.dumps(status, indent=1).encode())

    def write_models(self, models: Mapping[str, Tensor], blocks: Iterable[tuple]) -> None:
        meta = {"blocks": json.dumps([list(b) for b in blocks])}
        self._replace("model.safetensors", save(_owned(models), metadata=meta))

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def save_checkpoint(self, task: int, round: int, counters: dict[str, float], tensors: dict[str, Tensor]) -> None:
        """Write the older slot; the newer one stays whole until this one is safely on the disk."""
        with self._writing(), (self.path / "rows.csv").open("rb") as f:
            os.fsync(f.fileno())
            end = f.seek(0, os.SEEK_END)
        about = {"task": task, "round": round, "rows_end": end, "counters": counters}
        data = save(_owned(tensors), metadata={"about": json.dumps(about)})
        self._replace(f"checkpoint/{self._slot}.safetensors", data)
        self._slot = 1 - self._slot

    def load_checkpoint(self) -> Checkpoint | None:
        """The newest readable slot; None if the run had not got that far."""
        for found, slot in self._slots():
            with suppress(*_UNREADABLE):
                whole = found._replace(tensors=load_file(self._slot_path(slot)))
                self._slot = 1 - slot
                return whole
        kept = (self.path / "model.safetensors").exists() or any((self.path / "checkpoint").glob("*.safetensors"))
        require(not kept, f"{self.path} has no readable checkpoint: move it away, or --force discards its rows")
        return None

    def tasks_done(self) -> int:
        """How many tasks are done, each seed counted, as far as the slots can be read."""
        return max((found.task for found, _ in self._slots()), default=0)

    def _slots(self) -> list[tuple[Checkpoint, int]]:
        """The slots that say where they stand, the newest first, still without their tensors."""
        slots = []
        for slot in (0, 1):
            with suppress(*_UNREADABLE), safetensors.safe_open(self._slot_path(slot), framework="pt") as f:
                slots.append((Checkpoint(**json.loads(f.metadata()["about"]), tensors={}), slot))
        return sorted(slots, key=lambda pair: (pair[0].task, pair[0].round), reverse=True)

    def _slot_path(self, slot: int) -> Path:
        return self.path / "checkpoint" / f"{slot}.safetensors"

    # ---- how a file is written ---------------------------------------------------------------------------------

    def _replace(self, name: str, data: bytes) -> None:
        """The whole new content or the whole old one, also after a power cut."""
        path, fresh = self.path / name, self.path / (name + ".new")
        with self._writing():
            with fresh.open("wb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            os.replace(fresh, path)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns a failed write into one sentence."""
        try:
            yield
        except OSError as e:
            raise RunError(
                f"cannot write to {self.path}: {e.strerror}; everything up to the last checkpoint is kept, "
                "and --resume goes on from there"
            ) from e


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns an unreadable safetensors file into one sentence."""
    try:
        yield
    except _UNREADABLE as e:
        raise InputError(f"{path} is damaged: {e}") from e


def _owned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no memory, as the file format asks."""
    return {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}


def _cell(value: Any) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _parse(column: str, cell: str) -> Any:
    if column in _TEXT:
        return cell
    if cell == "":
        return None
    return int(cell) if column in _WHOLE else float(cell)
