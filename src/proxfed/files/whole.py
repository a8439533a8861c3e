"""Files that are written atomically, and read up to a plausible size."""

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
"""The largest size of a TOML or JSON file, in bytes."""
LARGEST_ROWS = 4096 * MEGABYTE
"""The same for a table of rows."""
PIECE = 16 * MEGABYTE
"""Bytes per read of a file of unknown size."""


def _at_once(path: Path, data: bytes) -> None:
    """Write a file atomically: a reader, or a power cut, finds the old content or the new one.

    An OSError leaves the old content. A link is replaced, not followed. Anything but a plain file, such as /dev/stdout,
    is written to directly.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    with _beside([path], [data]) as (fresh,):
        os.replace(fresh, path)


@contextmanager
def _beside(paths: Iterable[Path], contents: Iterable[bytes]) -> Iterator[list[Path]]:
    """Temporary files with these contents, on the disk, to be renamed; any left over are removed."""
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
    """Write a file atomically, or raise one sentence.

    what       such as 'the report to '
    folders    make missing folders
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
    """Write files of a folder that belong together, the first described by the others, or raise one sentence.

    If it is interrupted, no old file is left beside a new one, except for the first: as long as that is the old one,
    there are no others.
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
    """Write a file of a run atomically."""
    with writing(path.parent, begun):
        _at_once(path, data)


@contextmanager
def writing(folder: Path, begun: bool = True) -> Iterator[None]:
    """Turn a failed write into one sentence, which mentions resuming if the run has `begun`."""
    try:
        yield
    except OSError as e:
        kept = "; everything up to the last checkpoint is kept, and --resume goes on from there" if begun else ""
        raise RunError(f"cannot write to {folder}: {e.strerror}{kept}") from e


def read(path: Path | str, most: int = LARGEST_TEXT) -> bytes:
    """The content of a file of at most so many bytes; an OSError is passed on."""
    with Path(path).open("rb") as f:
        data = read_some(f, most + 1, os.fstat(f.fileno()).st_size)
    require(len(data) <= most, f"{path} is larger than {most // MEGABYTE} MB, which no such file should be")
    return data


def read_some(f: IO[bytes], most: int, size: int = 0) -> bytes:
    """The first bytes of a file with the nominal `size`; memory grows with the actual content, not with `most`."""
    data, asked = b"", size + 1
    while asked := min(asked, most - len(data)):
        more = f.read(asked)
        data += more
        if len(more) < asked:  # end of the file
            break
        asked = max(PIECE, len(data))
    return data


def parse_json(data: bytes, where: str) -> Any:
    """Parse JSON of any depth and content, or raise one sentence."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{where} is damaged: {str(e).partition(chr(10))[0]:.120}") from e


def file_name(words: str) -> str:
    """A file name for these words, with a digest that tells similar ones apart."""
    plain = re.sub(r"[^\w.+]+", "-", words.lower()).strip("-.")[:40]
    return f"{plain}-{sha256(words.encode()).hexdigest()[:6]}"


def private_folder(folder: Path) -> None:
    """Make the folder and its content accessible to this user only."""
    with writing(folder, begun=False):
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)


def flush_folder(folder: Path) -> None:
    """Flush the names of a folder's files to the disk."""
    with suppress(OSError):  # a system that cannot flush a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Seen:
    """A cache of files' contents; a file that has changed is read again."""

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[Any, Any]] = {}

    def get(self, path: Path, read: Callable[[], Any]) -> Any:
        stamp = _stamp(path)
        if path not in self._kept or self._kept[path][0] != stamp:
            self._kept[path] = stamp, read()
        return self._kept[path][1]

    def put(self, path: Path, content: Any) -> None:
        """Store content that this process has just written."""
        self._kept[path] = _stamp(path), content


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """A stamp that changes whenever the file does; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
