"""Files: written whole or not at all, and read up to a size that somebody would have written; their checksums; locks.

Checksums (SHA-256) are of what we write for ourselves: of tables under a key, of tensors in their file's metadata. They
tell damage from what was written, not a stranger's work from ours: who can write a file can also write its checksum.
Files of versions that had none are read as they are.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from proxfed.errors import InputError, RunError, require

if TYPE_CHECKING:
    from torch import Tensor

MEGABYTE = 1 << 20
LARGEST_TEXT = 64 * MEGABYTE
"""Bytes of a TOML or JSON file that are read at most."""
LARGEST_ROWS = 4096 * MEGABYTE
"""Of a table of rows."""

SHA256 = "sha256"
"""The key of a checksum."""

LOOKS = 5
"""How often a lock is tried, some milliseconds apart: somebody may just be looking whether it is free."""


def _at_once(path: Path, data: bytes) -> None:
    """The content of a file: a reader, or a power cut, finds the old one or the new one.

    An OSError leaves what was there. What is no plain file, such as /dev/stdout, is written to.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    fresh = path.with_name(f"{path.name}.{token_hex(4)}.new")  # several processes may write the same report
    try:
        with fresh.open("xb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def write(path: Path | str, content: str | bytes, what: str = "", folders: bool = False) -> None:
    """The content of a file, at once, or one sentence; `what` it is, such as 'the report to ', in new `folders` if
    need be."""
    try:
        if folders:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        _at_once(Path(path), content.encode() if isinstance(content, str) else content)
    except OSError as e:
        raise RunError(f"cannot write {what}{path}: {e.strerror}") from e


def replace(path: Path, data: bytes, begun: bool = True) -> None:
    """The content of a file of a run, at once."""
    with writing(path.parent, begun):
        _at_once(path, data)


@contextmanager
def writing(folder: Path, begun: bool = True) -> Iterator[None]:
    """Turns a failed write into one sentence; of a run that has not `begun` there is nothing to resume."""
    try:
        yield
    except OSError as e:
        kept = "; everything up to the last checkpoint is kept, and --resume goes on from there" if begun else ""
        raise RunError(f"cannot write to {folder}: {e.strerror}{kept}") from e


def read(path: Path | str, most: int = LARGEST_TEXT) -> bytes:
    """The content of a file of at most so many bytes; an OSError stays one."""
    with Path(path).open("rb") as f:
        data = f.read(most + 1)
    require(len(data) <= most, f"{path} is larger than {most // MEGABYTE} MB, which no such file should be")
    return data


def parse_json(data: bytes, where: str) -> Any:
    """JSON of any depth and content, or one sentence."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{where} is damaged: {str(e).partition(chr(10))[0]:.120}") from e


# ---- checksums ------------------------------------------------------------------------------------------------------


def checksum(table: Mapping[str, Any]) -> str:
    """Of a table as JSON has it, whatever the order of its keys."""
    plain = json.loads(json.dumps(table))
    return sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def with_checksum(table: Mapping[str, Any]) -> dict[str, Any]:
    return {**table, SHA256: checksum(table)}


def checked(table: Any, where: str) -> dict[str, Any]:
    """The table without its checksum; refused if that is not of this table."""
    good = isinstance(table, dict) and SHA256 in table
    require(good, f"{where} is damaged: it has no checksum")
    rest = {key: value for key, value in table.items() if key != SHA256}
    require(table[SHA256] == checksum(rest), f"{where} is damaged or was changed: its checksum is of something else")
    return rest


# ---- tensors with checksums ------------------------------------------------------------------------------------------


class Tensors(NamedTuple):
    """What a file of tensors holds."""

    tensors: dict[str, Tensor]
    about: dict[str, str]
    names: list[str]
    """Of all tensors, also of those that were not read."""
    sums: dict[str, str]
    """A checksum of each tensor; none in files of versions that had no checksums."""


def owned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no memory, as safetensors asks."""
    import torch

    return {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}


def tensor_sum(name: str, tensor: Tensor, about: Mapping[str, str]) -> str:
    """Of its name, type, shape and numbers, and of what is said about the file."""
    import torch

    head = json.dumps([dict(sorted(about.items())), name, str(tensor.dtype), list(tensor.shape)])
    numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    digest = sha256(head.encode() + b"\n")
    digest.update(numbers.data)
    return digest.hexdigest()


class TensorFile(NamedTuple):
    """A safetensors file with checksums."""

    data: bytes
    tensors: dict[str, Tensor]
    """What is in it: copies."""
    sums: dict[str, str]


def tensor_file(
    tensors: Mapping[str, Tensor], about: Mapping[str, str], known: Mapping[str, str] | None = None
) -> TensorFile:
    """Of these tensors; `known` are the checksums of those that have not changed."""
    from safetensors.torch import save

    tensors, known = owned(tensors), known or {}
    sums = {name: known.get(name) or tensor_sum(name, tensor, about) for name, tensor in tensors.items()}
    sums[""] = checksum(about)
    return TensorFile(save(tensors, metadata={**about, SHA256: json.dumps(sums)}), tensors, sums)


def read_tensors(path: Path, keys: Collection[str], only: Collection[str] | None = None) -> Tensors:
    """Of a file that says `keys` about itself, all tensors or `only` these; ValueError if a checksum does not fit."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as f:
        about, names = dict(f.metadata() or {}), list(f.keys())
        tensors = {name: f.get_tensor(name) for name in names if only is None or name in only}
    if about.keys() == {*keys}:
        return Tensors(tensors, about, names, {})
    if about.keys() != {*keys, SHA256}:
        raise ValueError(f"it does not say {', '.join(keys)}")
    sums = json.loads(about.pop(SHA256))
    if not isinstance(sums, dict) or sums.keys() != {*names, ""} or sums[""] != checksum(about):
        raise ValueError("its checksums are of something else")
    for name, tensor in tensors.items():
        if sums[name] != tensor_sum(name, tensor, about):
            raise ValueError(f"the checksum of {name!r} is of something else")
    return Tensors(tensors, about, names, sums)


# ---- locks ----------------------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Meanwhile no other process has the lock of this folder; without waiting, False if another one has it now."""
    if sys.platform == "win32":  # has no lock of this kind
        yield True
        return
    while True:
        with writing(folder):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                here = os.open(folder, os.O_RDONLY)
            except (FileNotFoundError, FileExistsError):
                if folder.exists() and not folder.is_dir():
                    raise
                continue  # removed meanwhile by the process that had the lock
        try:
            free = _take(here, wait)
            if free and not _is_at(folder, here):
                continue
            yield free
            return
        finally:
            os.close(here)


def _take(descriptor: int, wait: bool) -> bool:
    import fcntl

    if wait:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    for _ in range(LOOKS):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.005)
    return False


def is_held(folder: Path) -> bool:
    """Some process has the lock of this folder; True as well where there are no such locks to look at."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        here = os.open(folder, os.O_RDONLY)
    except OSError:  # the folder is gone, and its lock with it
        return False
    try:
        fcntl.flock(here, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(here)


def _is_at(folder: Path, descriptor: int) -> bool:
    """The open folder is the one that has this name now."""
    try:
        return os.path.samestat(folder.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
