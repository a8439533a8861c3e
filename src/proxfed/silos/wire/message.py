"""The messages between a coordinator and holders: self-describing letters, and the vectors inside them.

A letter is, in this order,

    PXS1              4 bytes
    life              u64: how often the coordinator has been started; higher ones overrule lower ones
    sizes             u32, u64: bytes of the head and of the body
    head              a flat JSON object: kind, run, round, step, and the fields of the kind
    body              bytes
    checksum          SHA-256 of everything before it

A message of an algorithm (types.py) is a body and its form, which is in the head: '.' is a tensor or a Packed, '(..)' a
tuple of two. Its leaves follow one another: a tensor as LEAF bytes and its memory, a Packed as LEAF bytes and each
client's row as its compressor encodes it, preceded by ROW bytes for its length. So a message takes `bytes_best` of the
counters, plus LEAF per leaf and ROW per compressed row.

Any bytes are either parsed or refused in one sentence: every length is compared with the available bytes before use,
and nothing is executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from proxfed.compressors.coding.reader import Reader, check
from proxfed.errors import RunError
from proxfed.types import Compressor, Message, Packed, RowsApart

MAGIC = b"PXS1"
_PREFIX = struct.Struct("<4sQIQ")
_LEAF = struct.Struct("<BBBxII")
_ROW = struct.Struct("<I")
LEAF, ROW, CHECKSUM = _LEAF.size, _ROW.size, 32

LONGEST_HEAD, LONGEST_KIND = 1 << 20, 20
"""In bytes and in characters."""

DEEPEST, LONGEST_FORM, MOST_LEAVES = 8, 256, 32
"""Nested tuples, characters of a form, tensors of a message: a few compressed bytes can expand to d numbers."""

DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
"""A leaf has the index of its dtype."""

Head = dict[str, Any]


@dataclass(frozen=True)
class Letter:
    """A question or an answer."""

    kind: str
    run: str
    """The digest of its job."""
    round: int = 0
    step: int = 0
    head: Head = field(default_factory=dict)
    """The fields of its kind."""
    body: bytes = b""
    life: int = 0

    @property
    def digest(self) -> str:
        """The digest of its content without `life`, so that it survives restarts of the coordinator."""
        return hashlib.sha256(self._said() + self.body).hexdigest()[:32]

    def _said(self) -> bytes:
        named = {"kind": self.kind, "run": self.run, "round": self.round, "step": self.step}
        return canonical(self.head | named)

    def encode(self) -> bytes:
        head = self._said()
        told = _PREFIX.pack(MAGIC, self.life, len(head), len(self.body)) + head + self.body
        return told + hashlib.sha256(told).digest()

    @classmethod
    def decode(cls, data: bytes) -> Letter:
        """RunError if the bytes are not a letter."""
        data = bytes(data)
        check(len(data) >= _PREFIX.size + CHECKSUM, f"{len(data)} bytes are too few for a letter")
        magic, life, head, body = _PREFIX.unpack_from(data)
        check(magic == MAGIC, "it is no letter of this version")
        check(head <= LONGEST_HEAD, f"its head has {head} bytes")
        check(_PREFIX.size + head + body + CHECKSUM == len(data), "it is cut off, or has bytes too many")
        told, checksum = data[:-CHECKSUM], data[-CHECKSUM:]
        check(hashlib.sha256(told).digest() == checksum, "its checksum is wrong")
        said = flat(told[_PREFIX.size : _PREFIX.size + head])
        named = [said.pop(name, None) for name in ("kind", "run", "round", "step")]
        kind, run, t, k = named
        check(isinstance(kind, str) and len(kind) <= LONGEST_KIND, f"its kind = {kind!r:.40} is no short word")
        check(run == "" or is_digest(run), f"its run = {run!r:.40} is no digest")
        check(_counts(t) and _counts(k), "its round and step must be whole numbers")
        letter = cls(kind, run, t, k, said, told[_PREFIX.size + head :], life)
        try:
            as_written = letter._said() == told[_PREFIX.size : _PREFIX.size + head]
        except (ValueError, RecursionError):
            as_written = False
        check(as_written, "its head is written in an unusual way")
        return letter

    def number(self, name: str, least: int = 0) -> int:
        """A whole number of the head, or RunError."""
        value = self.head.get(name)
        good = _counts(value) and value is not None and value >= least
        check(good, f"{self.kind}: {name} = {value!r:.40} is no whole number >= {least}")
        assert isinstance(value, int)
        return value

    def numbers(self, name: str) -> list[int]:
        value = self.head.get(name)
        good = isinstance(value, list) and all(map(_counts, value))
        check(good, f"{self.kind}: {name} = {value!r:.40} is no list of whole numbers")
        assert isinstance(value, list)
        return value

    def word(self, name: str) -> str:
        value = self.head.get(name)
        check(isinstance(value, str), f"{self.kind}: {name} = {value!r:.40} is no word")
        assert isinstance(value, str)
        return value

    def words(self, name: str) -> list[str]:
        value = self.head.get(name)
        good = isinstance(value, list) and all(isinstance(item, str) for item in value)
        check(good, f"{self.kind}: {name} = {value!r:.40} is no list of words")
        assert isinstance(value, list)
        return value


def is_digest(value: Any) -> bool:
    """Whether this is a valid digest of a job, which is the name of its run."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 1 << 53


def canonical(value: Any) -> bytes:
    """Canonical JSON, the only form that is digested."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def flat(text: bytes) -> Head:
    """A JSON object that was written by `canonical`, or RunError."""
    try:
        value = json.loads(text.decode("ascii"), parse_constant=_no_number, parse_float=_finite, parse_int=_short)
    except (ValueError, RecursionError) as e:
        raise RunError(f"it is no JSON: {type(e).__name__}") from None
    check(isinstance(value, dict), "it is no JSON object")
    return value


def _no_number(word: str) -> float:
    raise ValueError(word)


def _finite(word: str) -> float:
    """Refuses 1e400 and the like: Python reads it as infinity, which JSON does not have."""
    value = float(word)
    return value if math.isfinite(value) else _no_number(word)


def _short(word: str) -> int:
    """Refuses whole numbers that do not fit a float, such as 400 digits."""
    return int(word) if len(word) <= 20 else int(_no_number(word))


# ---- messages of algorithms ------------------------------------------------------------------------------------------


def pack(message: Message, codecs: Sequence[Compressor]) -> tuple[str, bytes]:
    """(form, body)."""
    parts: list[bytes] = []
    return _form(message, codecs, parts), b"".join(parts)


def _form(message: Message, codecs: Sequence[Compressor], parts: list[bytes]) -> str:
    if isinstance(message, tuple):
        return f"({''.join(_form(m, codecs, parts) for m in message)})"
    if isinstance(message, Packed):
        (rows, cols), codec = message.dense.shape, _codec(message, codecs)
        parts.append(_LEAF.pack(1 + codec, DTYPES.index(message.dense.dtype), 2, rows, cols))
        for row in codecs[codec].encode(message):
            parts += [_ROW.pack(len(row)), bytes(row)]
    else:
        x = message.detach().cpu()
        rows, cols = (1,) * (2 - x.ndim) + tuple(x.shape)
        parts.append(_LEAF.pack(0, DTYPES.index(x.dtype), x.ndim, rows, cols))
        parts.append(x.contiguous().numpy().tobytes())
    return "."


def _codec(message: Packed, codecs: Sequence[Compressor]) -> int:
    """The index of the compressor that packed it; equal compressors write the same."""
    if message.compressor not in codecs:
        raise RunError("a message was packed by a compressor that is none of the algorithm's fields")
    return codecs.index(message.compressor)


def unpack(form: str, body: bytes, codecs: Sequence[Compressor], d: int, rows: int, shared: bool = False) -> Message:
    """The message, with the dense value in place of each Packed, which must have `rows` rows of d numbers.

    A Packed whose rows the server reads one by one stays one, with only its value and compressor.
    shared: it is the server's message; its Packed has one row, which becomes a point (d,).
    """
    good = len(form) <= LONGEST_FORM and form.count(".") <= MOST_LEAVES
    check(good, f"a message of {form.count('.')} tensors is not one of ours")
    reader, forms = Reader(body), iter(form)
    message = _read(next(forms, ""), forms, lambda: _leaf(reader, codecs, d, 1 if shared else rows, shared), DEEPEST)
    check(next(forms, None) is None, "its form goes on behind its end")
    check(len(reader.rest) == 0, f"it has {len(reader.rest)} bytes too many")
    return message


def _read(sign: str, forms: Iterator[str], leaf: Any, deepest: int) -> Message:
    if sign == ".":
        return leaf()
    check(sign == "(" and deepest > 0, "its form is none")
    parts = []
    while (sign := next(forms, "")) != ")":
        parts.append(_read(sign, forms, leaf, deepest - 1))
    return tuple(parts)


def _leaf(reader: Reader, codecs: Sequence[Compressor], d: int, rows: int, shared: bool) -> Tensor | Packed:
    codec, kind, ndim, c, k = _LEAF.unpack(reader.take(LEAF).tobytes())
    check(kind < len(DTYPES) and ndim <= 2 and codec <= len(codecs), "a leaf is of no kind that is known")
    dtype = DTYPES[kind]
    if codec == 0:
        shape = (c, k)[2 - ndim :]
        check((c == 1 or ndim == 2) and (k == 1 or ndim >= 1), "a leaf has no such shape")
        data = reader.take(c * k * dtype.itemsize)
        check(dtype is not torch.bool or not (data > 1).any(), "a truth value is neither")
        # A copy in torch's own aligned memory: arithmetic on a view of a message may round differently.
        x = torch.empty(shape, dtype=dtype)
        x.view(-1).view(torch.uint8).copy_(torch.from_numpy(data.copy()))
        return x
    given = codecs[codec - 1]
    apart = isinstance(given, RowsApart) and not shared
    width = d + given.beside if isinstance(given, RowsApart) else d
    check((ndim, c, k) == (2, rows, width), f"{c} rows of {k} numbers came, not {rows} of {width}")
    check(dtype.is_floating_point, "compressed numbers are no floats")
    encoded = [reader.take(_ROW.unpack(reader.take(ROW).tobytes())[0]).tobytes() for _ in range(c)]
    dense = given.decode(encoded, width, dtype)
    if apart:
        return Packed({}, dense, 0, 0, given)
    return dense[0] if shared else dense
