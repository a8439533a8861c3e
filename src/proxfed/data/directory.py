"""Data files: their directory, how they are read, and the comparison with their published checksums.

The data directory is the given one, else $PROXFED_DATA, else the user's cache; it has one folder per dataset.
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
    """A file that exists but cannot be decoded."""


def room() -> int:
    """The largest allowed size of one file's content: half of this machine's memory, if that is known."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def require_room(path: str | Path, nbytes: int) -> None:
    """Refuse contents that would not fit before memory is allocated: a small archive may contain a large file."""
    fits = nbytes <= room()
    require(fits, f"{path}: its content takes more than {room() / 2**30:.2g} GB, half of this machine's memory")


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, decompressed if its name ends in .gz or .bz2."""
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
    """The result of `check` for one file; "unknown": it can be read, but this form has no published checksum."""

    path: Path
    state: State


class Sum(NamedTuple):
    """The SHA-256 or MD5 checksum of a file's decompressed content, or else of the compressed file."""

    content: str = ""
    compressed: str = ""


@dataclass(frozen=True)
class Collection:
    """Files that are published together."""

    folders: tuple[str, ...]
    """Possible folders under the data directory; messages name the first."""
    source: str
    """Where to get the files, for messages."""
    sums: Mapping[str, Sum]
    """Each file's name, without .gz or .bz2, and its published checksum."""
    content: Callable[[Path], bytes] = read_bytes
    """The bytes of a file that the checksums are computed from."""
    url: str = ""
    """The address of the file {name}, or of a .zip or .tar.gz with all files in some folder."""
    other_form: Collection | None = None
    """Alternative files with the same samples or some of them, which can also be read."""

    def place(self, directory: str | Path | None = None) -> Path:
        """The folder that messages name, and the target of downloads."""
        return data_directory(directory) / self.folders[0]

    def look(self, name: str, directory: str | Path | None = None) -> Path | None:
        """The file of this name, plain or compressed, if it exists."""
        for folder in self.folders:
            for suffix in OPENERS:
                path = data_directory(directory) / folder / (name + suffix)
                if path.is_file():
                    return path
        return None

    def found(self, directory: str | Path | None = None) -> dict[str, Path | None]:
        """Every file's name and path; None if it does not exist."""
        return {name: self.look(name, directory) for name in self.sums}

    def find(self, name: str, directory: str | Path | None = None) -> Path:
        """The file of this name, or an InputError that says where to get it and where to put it."""
        path = self.look(name, directory)
        if path is None:
            raise self.missing(name, directory)
        return path

    def missing(self, name: str, directory: str | Path | None = None) -> MissingData:
        """The error for a missing file."""
        get = "`proxfed data fetch` downloads it, or get it" if self.url else "get it"
        return MissingData(
            f"there is no {name} (or .gz, .bz2) in {self.place(directory)}; {get} from {self.source} and put it there, "
            f"or name another data directory with {VARIABLE}"
        )

    def check(self, directory: str | Path | None = None) -> list[FileCheck]:
        """Compare every file with its published checksum; an empty list if there are no files."""
        found, place = self.found(directory), self.place(directory)
        if not any(found.values()):
            return []
        return [FileCheck(path or place / name, self.state(name, path)) for name, path in found.items()]

    def state(self, name: str, path: Path | None) -> State:
        """Whether this is the published file of that name."""
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
    """The SHA-256 or MD5 checksum, according to the length of `like`."""
    return (hashlib.sha256 if len(like) == 64 else hashlib.md5)(content).hexdigest()
