"""The audit file: a record of everything that leaves a site, written before it leaves.

One line of JSON per message: when, to whom, what, bytes, SHA-256 of the content. It is a log (files/log.py): each line
has its number and, under `chain`, the digest of all lines up to it, which detects changed, removed and inserted lines;
the last number is in a second file, which detects missing lines at the end. An attacker who can write both files can
forge all of it: keep the last digest, which `proxfed site audit` prints, elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from proxfed.errors import RunError
from proxfed.files import Lines, Log, flush_folder, hold, replace

Line = dict[str, Any]

FRAMING = Lines(b', "chain": "', b'"}')
"""The digest is the last key of a line."""

LONGEST_WORD = 256
"""Characters of a word in a line; longer words are cut."""


class Trail(NamedTuple):
    """The content of an audit file."""

    lines: list[Line]
    broken: str
    """Where the chain is broken, in one sentence; empty: it is intact."""
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
        """Record, on the disk on return, that `body` is about to leave. Without a body: a remark."""
        told = {} if body is None else {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "to": to, "what": what, **told, **more}
        line = {key: value[:LONGEST_WORD] if isinstance(value, str) else value for key, value in line.items()}
        log = Log(self.path, "audit", FRAMING)
        try:
            with _locked(self.path) as f:
                number = 0
                if (last := FRAMING.last(f)) is not None:
                    number, log.end = _line(last[0])["line"], last[1]
                line = {"line": number + 1} | line
                log.add(f, [[json.dumps(line)[:-1].encode()]])
                replace(self.last_number, f"{number + 1}\n".encode())
                return line
        except OSError as e:
            raise RunError(f"nothing leaves: the audit file {self.path} cannot be written: {e.strerror}") from e
        except (ValueError, KeyError, TypeError) as e:
            raise RunError(f"nothing leaves: the last line of the audit file {self.path} cannot be read") from e

    def read(self) -> Trail:
        """All lines, and whether the chain is intact."""
        try:
            text = self.path.read_bytes() if self.path.exists() else b""
            last = int(self.last_number.read_text()) if self.last_number.exists() else 0
        except (OSError, ValueError) as e:
            raise RunError(f"the audit file {self.path} cannot be read: {e}") from e
        log, lines, broken = Log(self.path, "audit", FRAMING), list[Line](), ""
        for number, frame in enumerate(log.frames(text), 1):
            log.end = frame.end
            try:
                lines.append(_line(text[frame.start : frame.stop]))
            except ValueError:
                lines.append({"line": number, "at": "", "to": "", "what": "(not readable)"})
            if not broken and not frame.fits:
                broken = f"line {number} is not what was written there, or lines before it are missing"
        if not broken and len(lines) < last:
            broken = f"{last} lines were written, and {len(lines)} are there"
        return Trail(lines, broken, log.end.sum)


def _line(payload: bytes) -> Line:
    """The entries of a line, without its digest; ValueError if it cannot be parsed."""
    line = json.loads(payload + b"}")
    if not isinstance(line, dict):
        raise ValueError("it is no table")
    return line


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """The file, open for reading and appending, under an exclusive lock."""
    new = not path.exists()
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as f:
        hold(f.fileno(), path)
        if new:
            flush_folder(path.parent)
        yield f
