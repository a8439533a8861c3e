"""A record beside the key of how much a site has revealed, which survives a cut, rewritten or removed audit file.

The file KEY.spent has the number of lines of the audit file and their digest, authenticated with the site's key. It is
written when the key is made. If it is missing, or the audit file lacks lines that it counts, the site answers nothing:
all budgets count as spent. A site that starts afresh needs a new key, which its partners notice. Partners also record
each other's digests at every job: not even with the key can they be rewritten unnoticed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from proxfed.errors import RunError
from proxfed.files import replace

Line = Mapping[str, Any]


class Head(NamedTuple):
    """The position of an audit file: its number of lines and their digest."""

    lines: int = 0
    digest: str = "0" * 32

    def then(self, line: Line) -> Head:
        more = json.dumps(dict(line), sort_keys=True)
        return Head(self.lines + 1, hashlib.sha256(f"{self.digest} {more}".encode()).hexdigest()[:32])

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Head:
        head = cls()
        for line in lines:
            head = head.then(line)
        return head

    def __str__(self) -> str:
        return f"{self.lines}:{self.digest}"

    @classmethod
    def read(cls, text: Any) -> Head:
        """From what `str` wrote, or RunError."""
        lines, _, digest = str(text).partition(":")
        good = lines.isascii() and lines.isdecimal() and len(lines) < 16 and len(digest) == 32
        if not (good and all(c in "0123456789abcdef" for c in digest)):
            raise RunError(f"{text!r:.60} does not say how far an audit file is")
        return cls(int(lines), digest)


@dataclass
class Ledger:
    """The file KEY.spent of a site."""

    path: Path
    secret: bytes
    """32 bytes that only the site knows."""

    @classmethod
    def beside(cls, key: Path, secret: bytes) -> Ledger:
        return cls(key.with_name(key.name + ".spent"), secret)

    def write(self, head: Head) -> None:
        replace(self.path, f"{head} {self._code(head)}\n".encode())

    def _code(self, head: Head) -> str:
        return hmac.digest(self.secret, str(head).encode(), "sha256").hex()

    def check(self, lines: list[Line]) -> Head:
        """The head of these lines; RunError unless they begin with the recorded ones."""
        try:
            said, code = self.path.read_text().split()
            head = Head.read(said)
        except FileNotFoundError as e:
            raise RunError(
                f"{self.path} is missing: what this site has told is not known, so it counts as spent"
            ) from e
        except (OSError, ValueError, RunError) as e:
            raise RunError(f"{self.path} cannot be read: {e}") from e
        if not hmac.compare_digest(code, self._code(head)):
            raise RunError(f"{self.path} was not written with this site's key")
        if Head.of(lines[: head.lines]) != head:
            raise RunError(f"the audit file does not begin with the {head.lines} lines that {self.path} knows of")
        for line in lines[head.lines :]:  # written before a crash
            head = head.then(line)
        return head
