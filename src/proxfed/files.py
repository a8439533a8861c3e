"""Files: written whole or not at all, and read up to a size that somebody would have written; and locks of folders."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from proxfed.errors import InputError, RunError, require

MEGABYTE = 1 << 20
LARGEST_TEXT = 64 * MEGABYTE
"""Bytes of a TOML or JSON file that are read at most."""
LARGEST_ROWS = 4096 * MEGABYTE
"""Of a table of rows."""

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
