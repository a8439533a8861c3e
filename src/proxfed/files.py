"""Files: written whole or not at all, and read up to a size that somebody would have written."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from proxfed.errors import InputError, RunError, require

MEGABYTE = 1 << 20
LARGEST_TEXT = 64 * MEGABYTE
"""Bytes of a TOML or JSON file that are read at most."""
LARGEST_ROWS = 4096 * MEGABYTE
"""Of a table of rows."""


def replace(path: Path, data: bytes) -> None:
    """The content of a file, at once: a reader, or a power cut, finds the old one or the new one.

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
    """The same in one sentence if it fails; `what` it is, such as 'the report to '; in new `folders` if need be."""
    try:
        if folders:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        replace(Path(path), content.encode() if isinstance(content, str) else content)
    except OSError as e:
        raise RunError(f"cannot write {what}{path}: {e.strerror}") from e


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
