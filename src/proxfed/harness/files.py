"""How files of a run folder are written, in a sentence if it fails; and the locks of its folders."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from proxfed import files
from proxfed.errors import RunError

LOOKS = 5
"""How often a lock is tried, some milliseconds apart: somebody may just be looking whether it is free."""


def replace(path: Path, data: bytes, begun: bool = True) -> None:
    """The content of a file, at once."""
    with writing(path.parent, begun):
        files.replace(path, data)


@contextmanager
def writing(folder: Path, begun: bool = True) -> Iterator[None]:
    """Turns a failed write into one sentence; of a run that has not `begun` there is nothing to resume."""
    try:
        yield
    except OSError as e:
        kept = "; everything up to the last checkpoint is kept, and --resume goes on from there" if begun else ""
        raise RunError(f"cannot write to {folder}: {e.strerror}{kept}") from e


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


def owned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no memory, as safetensors asks."""
    return {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}
