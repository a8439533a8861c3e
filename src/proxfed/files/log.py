"""An append-only log: frames, each with a checksum of itself and of all frames before it.

    sum_0 = SHA-256(name)        sum_k = SHA-256(sum_{k-1}, payload of frame k)

The name is the owner's, such as that of a run. So a frame that is changed, left out, repeated, moved or taken from
another log does not match; an owner that keeps the last sum elsewhere also detects a missing end. A frame that a crash
left unfinished at the end is torn: it does not count, and is cut off before the next write.

There are two framings. `Lines` are text, one frame a line, with the sum at its end; `Blocks` are bytes:

    size (8 bytes) | payload | sum (32 bytes)

The owner decides what counts: it appends after a known `End`, and anything after that is cut off.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple

from proxfed.errors import RunError
from proxfed.files.whole import flush_folder, writing

Parts = Iterable[Any]
"""The pieces of a payload, in order."""

STEP = 1 << 16
"""Bytes per read when searching backwards for the last line."""


class End(NamedTuple):
    """The position up to which a log counts."""

    size: int
    sum: str
    """The checksum of all frames up to there, in hexadecimal digits."""


class Frame(NamedTuple):
    """The begin and end of a frame's payload, and the end of the log after it."""

    start: int
    stop: int
    end: End
    fits: bool
    """Whether its checksum matches."""


@dataclass(frozen=True)
class Lines:
    """Text: the payload, `before`, the sum, `after`. A payload has no line break in it."""

    before: bytes
    after: bytes = b""
    digits: int = 64

    def framed(self, parts: Parts, total: str) -> Iterator[Any]:
        yield from parts
        yield self.before + total.encode() + self.after + b"\n"

    def split(self, data: Any, at: int, most: int) -> tuple[int, int, End] | None:
        """(begin, end of the payload, end of the log after it) of the line at this position; None: it is torn."""
        stop = data.find(b"\n", at, most)
        if stop < 0:
            return None
        cut = stop - len(self.after) - self.digits
        payload = max(at, cut - len(self.before))
        good = data[payload:cut] == self.before and data[cut + self.digits : stop] == self.after
        return at, payload, End(stop + 1, data[cut : cut + self.digits].decode(errors="replace") if good else "")

    def last(self, f: IO[bytes]) -> tuple[bytes, End] | None:
        """The last complete line, of any length: its payload, and the end of the log after it."""
        start = size = f.seek(0, os.SEEK_END)
        tail = b""
        while start and tail.count(b"\n") < 2:  # the ends of the last line and of the one before it
            start = max(0, start - max(STEP, len(tail)))
            f.seek(start)
            tail = f.read(size - start)
        begin = tail.rfind(b"\n", 0, max(0, tail.rfind(b"\n"))) + 1
        if (found := self.split(tail, begin, len(tail))) is None:
            return None
        _, stop, end = found
        return tail[begin:stop], End(start + end.size, end.sum)


@dataclass(frozen=True)
class Blocks:
    """Bytes, of any content."""

    digits = 64

    def framed(self, parts: Parts, total: str) -> Iterator[Any]:
        parts = list(parts)
        yield sum(map(len, parts)).to_bytes(8, "little")
        yield from parts
        yield bytes.fromhex(total)

    def split(self, data: Any, at: int, most: int) -> tuple[int, int, End] | None:
        """The same for the block at this position."""
        start = at + 8
        stop = start + int.from_bytes(data[at:start], "little")
        end = stop + self.digits // 2
        return (start, stop, End(end, bytes(data[stop:end]).hex())) if end <= most else None


BLOCKS = Blocks()


class Log:
    """The log at `path`, which counts up to `end`."""

    def __init__(self, path: Path, name: str, framing: Lines | Blocks = BLOCKS, end: End | None = None) -> None:
        self.path, self.framing = path, framing
        self.begin = End(0, self._sum("", [name.encode()]))
        self.end = end or self.begin

    def _sum(self, before: str, parts: Parts) -> str:
        digest = sha256(before.encode())
        for part in parts:
            digest.update(part)
        return digest.hexdigest()[: self.framing.digits]

    def append(self, payloads: Iterable[Parts], flush: bool = True) -> None:
        """Append after the end; on the disk on return, unless `flush` is False."""
        new = not self.path.exists()
        with writing(self.path.parent), self.path.open("ab") as f:
            self.add(f, payloads, flush)
        if new and flush:
            flush_folder(self.path.parent)

    def add(self, f: IO[bytes], payloads: Iterable[Parts], flush: bool = True) -> None:
        """The same, to an open file."""
        there = f.seek(0, os.SEEK_END)
        if there < self.end.size:
            raise RunError(f"{self.path} is cut short: it is not what was written")
        if there > self.end.size:
            f.truncate(self.end.size)
        size, total = self.end
        for payload in payloads:
            parts = list(payload)
            total = self._sum(total, parts)
            for part in self.framing.framed(parts, total):
                f.write(part)
                size += len(part)
        f.flush()
        if flush:
            os.fsync(f.fileno())
        self.end = End(size, total)

    def frames(self, data: Any, size: int | None = None) -> Iterator[Frame]:
        """All frames in these bytes, or in the first `size`; a torn one at the end is left out."""
        size, end = len(data) if size is None else size, self.begin
        while (found := self.framing.split(data, end.size, size)) is not None:
            start, stop, said = found
            fits = said.sum == self._sum(end.sum, [memoryview(data)[start:stop]])
            end = said
            yield Frame(start, stop, end, fits)

    def whole(self, data: Any, upto: End | None = None) -> list[Frame]:
        """All frames, up to a known end. ValueError if a checksum does not match."""
        if upto is not None and len(data) < upto.size:
            raise ValueError(f"{self.path} is shorter than when the checkpoint was written")
        frames = list(self.frames(data, None if upto is None else upto.size))
        for k, frame in enumerate(frames, 1):
            if not frame.fits:
                what = f"line {k}," if isinstance(self.framing, Lines) else f"record {k}"
                raise ValueError(f"{self.path}, {what} is damaged, or does not belong there")
        if upto is not None and upto != (frames[-1].end if frames else self.begin):
            raise ValueError(f"{self.path} is not what it was when the checkpoint was written")
        return frames
