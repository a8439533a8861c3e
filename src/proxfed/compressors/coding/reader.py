"""A sequential reader of messages: any bytes are either parsed or refused in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import RunError

Bytes = np.ndarray  # of uint8


class Reader:
    """The rest of a message. Every length is compared with it before memory is allocated."""

    def __init__(self, message: bytes) -> None:
        self.rest: Bytes = np.frombuffer(message, np.uint8)

    def take(self, nbytes: int) -> Bytes:
        """The next bytes."""
        missing = nbytes - len(self.rest)
        check(missing <= 0, f"it ends {missing} bytes early")
        body, self.rest = self.rest[:nbytes], self.rest[nbytes:]
        return body

    def floats(self, count: int, dtype: torch.dtype) -> Tensor:
        """Read `count` numbers."""
        return torch.from_numpy(self.take(count * dtype.itemsize).copy()).view(dtype)

    def sizes(self, count: int, dtype: torch.dtype) -> Tensor:
        """Numbers >= 0, or NaN if a run has diverged."""
        numbers = self.floats(count, dtype)
        check(not (numbers < 0).any(), "a norm is negative")
        return numbers

    def packed(self, count: int) -> Bytes:
        """Read the bytes of `count` bits; padding bits must be 0."""
        body = self.take(-(-count // 8))
        check(count % 8 == 0 or not int(body[-1]) & (0xFF >> count % 8), "the bits that fill up a byte are not 0")
        return body

    def bits(self, count: int) -> np.ndarray:
        """Read `count` bits, as 0 and 1."""
        return np.unpackbits(self.packed(count), count=count)


@contextmanager
def reading(client: int, message: bytes) -> Iterator[Reader]:
    """The body of the `with` reads the message to its end; errors name the client."""
    reader = Reader(message)
    try:
        yield reader
        check(len(reader.rest) == 0, f"it has {len(reader.rest)} bytes too many")
    except RunError as e:
        raise RunError(f"message of client {client}: {e}") from None


def check(condition: bool, sentence: str) -> None:
    """Raise RunError(sentence) unless the condition holds."""
    if not condition:
        raise RunError(sentence)
