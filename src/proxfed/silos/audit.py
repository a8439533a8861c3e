"""The audit file: everything that leaves a site, written down before it does.

One line of JSON for each message: when, to whom, what, bytes, SHA-256 of the content. Each line also has its number,
and the digest of itself and of the line before, so that a line which is changed, removed or put in between is noticed;
the last number stands in a second file, so that lines missing at the end are noticed as well. Whoever can write both
files and takes the trouble can forge all of it: keep the last digest, which `proxfed site audit` prints, elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from proxfed.errors import RunError
from proxfed.files import replace

Line = dict[str, Any]

START = "0" * 64
LONGEST = 1 << 16
"""Bytes of a line."""


class Trail(NamedTuple):
    """What an audit file says."""

    lines: list[Line]
    broken: str
    """Where the chain does not hold, in one sentence; empty: it does."""
    last: str
    """The digest of the last line."""


@dataclass(frozen=True)
class Audit:
    """The audit file of a site; several processes may write to it."""

    path: Path

    @property
    def last_number(self) -> Path:
        """The second file."""
        return self.path.with_name(self.path.name + ".last")

    def write(self, to: str, what: str, body: bytes | None = None, **more: Any) -> Line:
        """Say that `body` is about to leave; on return that is on the disk. Without a body: a remark."""
        told = {} if body is None else {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "to": to, "what": what, **told, **more}
        try:
            with _locked(self.path) as f:
                number, before = _end(f)
                line = {"line": number + 1} | line
                f.write((json.dumps(line | {"chain": _link(before, line)}) + "\n").encode())
                f.flush()
                os.fsync(f.fileno())
                replace(self.last_number, f"{number + 1}\n".encode())
                return line
        except OSError as e:
            raise RunError(f"nothing leaves: the audit file {self.path} cannot be written: {e.strerror}") from e
        except (ValueError, KeyError) as e:
            raise RunError(f"nothing leaves: the last line of the audit file {self.path} cannot be read") from e

    def read(self) -> Trail:
        """All lines, and whether the chain holds."""
        try:
            text = self.path.read_bytes() if self.path.exists() else b""
            last = int(self.last_number.read_text()) if self.last_number.exists() else 0
        except (OSError, ValueError) as e:
            raise RunError(f"the audit file {self.path} cannot be read: {e}") from e
        lines, before, broken = list[Line](), START, ""
        for number, raw in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), 1):
            try:
                line = json.loads(raw)
                chain = line.pop("chain")
            except (ValueError, KeyError, AttributeError, TypeError):
                line, chain = {"line": number, "at": "", "to": "", "what": "(not readable)"}, ""
            if not broken and chain != _link(before, line):
                broken = f"line {number} is not what was written there, or lines before it are missing"
            lines.append(line)
            before = chain
        if not broken and len(lines) < last:
            broken = f"{last} lines were written, and {len(lines)} are there"
        return Trail(lines, broken, before)


def _link(before: str, line: Line) -> str:
    return hashlib.sha256((before + json.dumps(line, sort_keys=True)).encode()).hexdigest()


def _end(f: IO[bytes]) -> tuple[int, str]:
    """The number and the digest of the last line; one that a power cut left unfinished is cut off: it did not leave."""
    size = f.seek(0, os.SEEK_END)
    f.seek(max(0, size - LONGEST))
    tail = f.read()
    whole = tail.rfind(b"\n") + 1
    f.truncate(size - len(tail) + whole)
    if not whole:
        return 0, START
    last = json.loads(tail[:whole].splitlines()[-1])
    return last["line"], last["chain"]


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """The file, to read and to append to, while nobody else writes to it."""
    new = not path.exists()
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as f:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(f, fcntl.LOCK_EX)
            if new:
                folder = os.open(path.parent, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
        yield f
