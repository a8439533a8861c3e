"""How files of a run folder are written: the whole new content or the whole old one, also after a power cut."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from proxfed.errors import RunError


def replace(path: Path, data: bytes) -> None:
    """The content of a file, at once."""
    fresh = path.with_name(path.name + ".new")
    with writing(path.parent):
        with fresh.open("wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(fresh, path)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns a failed write into one sentence."""
    try:
        yield
    except OSError as e:
        raise RunError(
            f"cannot write to {folder}: {e.strerror}; everything up to the last checkpoint is kept, "
            "and --resume goes on from there"
        ) from e


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Meanwhile no other process has the lock of this folder; without waiting, False if another one has it now."""
    if sys.platform == "win32":  # has no lock of this kind
        yield True
        return
    import fcntl

    while True:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                here = os.open(folder, os.O_RDONLY)
            except FileNotFoundError:  # removed meanwhile by who had the lock
                continue
        try:
            try:
                fcntl.flock(here, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                free = True
            except BlockingIOError:
                free = False
            if free and not _is_at(folder, here):
                continue
            yield free
            return
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
