"""Several messages as one byte string: their number, their lengths, then the messages themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from proxfed.compressors.coding.reader import Reader, check

HEAD = 8
"""Bytes of the number of messages, and of each length."""


def bundle(messages: Sequence[bytes]) -> bytes:
    return np.array([len(messages), *map(len, messages)], "<u8").tobytes() + b"".join(messages)


def unbundle(data: bytes) -> list[bytes]:
    """The inverse of `bundle`; malformed bytes are refused in one sentence."""
    reader = Reader(data)
    count = int(reader.take(HEAD).view("<u8")[0])
    check(count <= len(reader.rest) // HEAD, f"it announces {count} messages in {len(data)} bytes")
    lengths = [int(length) for length in reader.take(HEAD * count).view("<u8")]
    check(sum(lengths) == len(reader.rest), f"its messages have {sum(lengths)} bytes, not {len(reader.rest)}")
    return [reader.take(length).tobytes() for length in lengths]
