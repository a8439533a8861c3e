"""Data files: where they are looked for, how they are read, and whether they are the ones that were published.

The data directory is an explicit one, else $PROXFED_DATA, else the cache of the user; it holds a folder per dataset.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from proxfed.errors import InputError, MissingData, require
from proxfed.files import read_some

VARIABLE = "PROXFED_DATA"
OPENERS: dict[str, Callable[..., Any]] = {"": open, ".gz": gzip.open, ".bz2": bz2.open}


def data_directory(directory: str | Path | None = None) -> Path:
    """The directory that holds one folder per dataset."""
    if directory is not None:
        return Path(directory).expanduser()
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "proxfed"


class DamagedFile(InputError):
    """A file that is there but cannot be decoded."""


def room() -> int:
    """Bytes that the content of one file may take: half of this machine's memory, as far as that is known."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def require_room(path: str | Path, nbytes: int) -> None:
    """Refuse, before memory is taken, what would not fit; a small file may hold a large one."""
    fits = nbytes <= room()
    require(fits, f"{path}: its content takes more than {room() / 2**30:.2g} GB, half of this machine's memory")


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, decompressed if it is named .gz or .bz2."""
    try:
        with OPENERS.get(Path(path).suffix, open)(path, "rb") as file:
            content = read_some(file, room() + 1)
        require_room(path, len(content))
        return content
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFile(f"{path}: cannot be read, it may be damaged or cut short ({error})") from error


State = Literal["as published", "differs", "unknown", "missing"]


class FileCheck(NamedTuple):
    """What `check` found of one file; "unknown": it can be read, but no sum of this form of it is known."""

    path: Path
    state: State


class Sum(NamedTuple):
    """The SHA-256 or MD5 sum of a file's content, decompressed, or else only of the compressed file."""

    content: str = ""
    compressed: str = ""


@dataclass(frozen=True)
class Collection:
    """Files that are published together."""

    folders: tuple[str, ...]
    """Where they may lie, under the data directory; the first is the one that messages name."""
    source: str
    """Where people get them."""
    sums: Mapping[str, Sum]
    """Each file's name, without .gz or .bz2, and its published sum."""
    content: Callable[[Path], bytes] = read_bytes
    """What the sums are taken of."""
    url: str = ""
    """Where the file {name} can be downloaded; a .zip or .tar.gz holds all of them, in some folder."""
    other_form: Collection | None = None
    """The same samples, or some of them, in other files, which are read as well."""

    def place(self, directory: str | Path | None = None) -> Path:
        """The folder that messages name, and into which files are downloaded."""
        return data_directory(directory) / self.folders[0]

    def look(self, name: str, directory: str | Path | None = None) -> Path | None:
        """The file of this name, plain or compressed, if it is there."""
        for folder in self.folders:
            for suffix in OPENERS:
                path = data_directory(directory) / folder / (name + suffix)
                if path.is_file():
                    return path
        return None

    def found(self, directory: str | Path | None = None) -> dict[str, Path | None]:
        """Every file's name and where it is, None if it is not there."""
        return {name: self.look(name, directory) for name in self.sums}

    def find(self, name: str, directory: str | Path | None = None) -> Path:
        """The file of this name, or an InputError: which one, where it can be had, and where to put it."""
        path = self.look(name, directory)
        if path is None:
            raise self.missing(name, directory)
        return path

    def missing(self, name: str, directory: str | Path | None = None) -> MissingData:
        """The sentence for a file that is not there."""
        get = "`proxfed data fetch` downloads it, or get it" if self.url else "get it"
        return MissingData(
            f"there is no {name} (or .gz, .bz2) in {self.place(directory)}; {get} from {self.source} and put it there, "
            f"or name another data directory with {VARIABLE}"
        )

    def check(self, directory: str | Path | None = None) -> list[FileCheck]:
        """Compare every file with its published sum; an empty list if none of them is there."""
        found, place = self.found(directory), self.place(directory)
        if not any(found.values()):
            return []
        return [FileCheck(path or place / name, self.state(name, path)) for name, path in found.items()]

    def state(self, name: str, path: Path | None) -> State:
        """Is this the file of that name as it was published?"""
        if path is None:
            return "missing"
        published = self.sums[name]
        try:
            content = self.content(path)
        except DamagedFile:
            return "differs"
        if published.content:
            return "as published" if _sum(content, published.content) == published.content else "differs"
        same = _sum(path.read_bytes(), published.compressed) == published.compressed
        return "as published" if same else "unknown"


def _sum(content: bytes, like: str) -> str:
    """SHA-256 or MD5, whichever has as many digits."""
    return (hashlib.sha256 if len(like) == 64 else hashlib.md5)(content).hexdigest()
