"""Files that are written whole or not at all, and read up to a size that somebody would have written."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

from proxfed.errors import InputError, RunError, require

MEGABYTE = 1 << 20
LARGEST_TEXT = 64 * MEGABYTE
"""Bytes of a TOML or JSON file that are read at most."""
LARGEST_ROWS = 4096 * MEGABYTE
"""Of a table of rows."""
PIECE = 16 * MEGABYTE
"""Bytes that are asked for at once of a file that does not say its size."""


def _at_once(path: Path, data: bytes) -> None:
    """The content of a file: a reader, or a power cut, finds the old one or the new one.

    An OSError leaves what was there. A link is replaced, not followed. What is no plain file, such as /dev/stdout, is
    written to.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    with _beside([path], [data]) as (fresh,):
        os.replace(fresh, path)


@contextmanager
def _beside(paths: Iterable[Path], contents: Iterable[bytes]) -> Iterator[list[Path]]:
    """Files with these contents, on the disk, to be renamed; those that are not are removed."""
    fresh = [path.with_name(f"{path.name}.{token_hex(4)}.new") for path in paths]  # another process may do the same
    try:
        for path, data in zip(fresh, contents, strict=True):
            with path.open("xb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
        yield fresh
    except BaseException:
        for path in fresh:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise


def write(path: Path | str, content: str | bytes, what: str = "", folders: bool = False, follow: bool = True) -> None:
    """The content of a file, at once, or one sentence.

    what       such as 'the report to '
    folders    it may be in new ones
    follow     where the path is a link, write what it points to; else the link is replaced
    """
    try:
        if folders:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        _at_once(Path(path).resolve() if follow else Path(path), data)
    except OSError as e:
        raise RunError(f"cannot write {what}{path}: {e.strerror}") from e


def write_together(folder: Path, contents: Mapping[str, str]) -> None:
    """Files of a folder that belong together, the first of which the others describe, or one sentence.

    Whenever it is interrupted, no file of those before stands beside one of these, but for the first: while that one is
    still the old one, there are no others.
    """
    paths = [folder / name for name in contents]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _beside(paths, [text.encode() for text in contents.values()]) as fresh:
            for path in paths[1:]:
                path.unlink(missing_ok=True)
            flush_folder(folder)
            for new, path in zip(fresh, paths, strict=True):
                os.replace(new, path)
    except OSError as e:
        raise RunError(f"cannot write {', '.join(contents)} to {folder}: {e.strerror}") from e


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
        data = read_some(f, most + 1, os.fstat(f.fileno()).st_size)
    require(len(data) <= most, f"{path} is larger than {most // MEGABYTE} MB, which no such file should be")
    return data


def read_some(f: IO[bytes], most: int, size: int = 0) -> bytes:
    """The first bytes of a file, which says that it has `size`; the memory follows what is there, not `most`."""
    data, asked = b"", size + 1
    while asked := min(asked, most - len(data)):
        more = f.read(asked)
        data += more
        if len(more) < asked:  # that was all
            break
        asked = max(PIECE, len(data))
    return data


def parse_json(data: bytes, where: str) -> Any:
    """JSON of any depth and content, or one sentence."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{where} is damaged: {str(e).partition(chr(10))[0]:.120}") from e


def file_name(words: str) -> str:
    """A name for files that are about this; words that look alike differ in their digest."""
    plain = re.sub(r"[^\w.+]+", "-", words.lower()).strip("-.")[:40]
    return f"{plain}-{sha256(words.encode()).hexdigest()[:6]}"


def private_folder(folder: Path) -> None:
    """Nobody but this user can look into it, or at what is in it."""
    with writing(folder, begun=False):
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)


def flush_folder(folder: Path) -> None:
    """The names of its files are on the disk, as well as their content."""
    with suppress(OSError):  # a system that cannot flush a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Seen:
    """What files held when they were last read; one that has changed since is read again."""

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[Any, Any]] = {}

    def get(self, path: Path, read: Callable[[], Any]) -> Any:
        stamp = _stamp(path)
        if path not in self._kept or self._kept[path][0] != stamp:
            self._kept[path] = stamp, read()
        return self._kept[path][1]

    def put(self, path: Path, content: Any) -> None:
        """What this process has just written there."""
        self._kept[path] = _stamp(path), content


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file does; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
