"""Damage to files: what disks, copies and careless hands do to them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

KINDS = ("flip", "cut", "zeros", "doubled", "swapped")


def damage(path: Path, kind: str, draw: np.random.Generator, other: Path | None = None) -> None:
    """Damage one file; `swapped` exchanges it with the other one."""
    data = bytearray(path.read_bytes())
    if kind == "swapped":
        assert other is not None
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
        return
    n = len(data)
    if n == 0:
        path.write_bytes(b"x")
        return
    begin = int(draw.integers(n))
    end = min(n, begin + 1 + int(draw.integers(64)))
    if kind == "flip":
        data[begin] ^= 1 << int(draw.integers(8))
    elif kind == "cut":
        del data[begin:]
    elif kind == "zeros":
        data[begin:end] = bytes(end - begin)
    else:
        data[end:end] = data[begin:end]
    path.write_bytes(bytes(data))


def files_of(folder: Path) -> list[Path]:
    """Those that are read again: all but the pages."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".html")


class FullDisk:
    """Meanwhile the n-th write, new folder or renaming below a folder fails: half of the data gets there, no more.

    for_good: all later ones fail as well.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, n: int, for_good: bool = False) -> None:
        self.folder, self.left, self.for_good = folder.resolve(), n, for_good
        opened, replaced, made = Path.open, os.replace, os.mkdir

        def open_(path: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
            file = opened(path, mode, *args, **more)
            writes = path.resolve().is_relative_to(self.folder) and any(c in mode for c in "wax+")
            return _Failing(file, self) if writes else file

        def replace(a: Any, b: Any, **more: Any) -> None:
            self.count(b)
            replaced(a, b, **more)

        def mkdir(path: Any, *args: Any, **more: Any) -> None:
            if not os.path.exists(path):
                self.count(path)
            made(path, *args, **more)

        patch.setattr(Path, "open", open_)
        patch.setattr(os, "replace", replace)
        patch.setattr(os, "mkdir", mkdir)

    @property
    def full(self) -> bool:
        return self.left <= 0

    def count(self, path: Any) -> None:
        if Path(path).resolve().is_relative_to(self.folder):
            self.left -= 1
            if self.left == 0 or (self.for_good and self.left < 0):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Failing:
    """A file on a disk that becomes full."""

    def __init__(self, file: Any, disk: FullDisk) -> None:
        self.file, self.disk = file, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> _Failing:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: Any) -> int:
        try:
            self.disk.count(self.file.name)
        except OSError:
            self.file.write(data[: len(data) // 2])
            raise
        return self.file.write(data)
