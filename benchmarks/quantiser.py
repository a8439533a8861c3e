"""ErrorBoundedQuantiser: megabytes of float32 a second, and bits a number beside the rate-distortion bound.

    python benchmarks/quantiser.py

The codes of the levels take their turns with two others, if those are installed: the coders of the library
`constriction` with one frequency table a message, and an adaptive binary range coder that numba compiles.
"""

from __future__ import annotations

import importlib
from functools import partial
from math import log2

import numpy as np
import torch
from timing import side_by_side

from proxfed.compressors import QSGD, ErrorBoundedQuantiser, TopK
from proxfed.compressors.coding import plane_code, urn_code, wire
from proxfed.compressors.coding.planes import put_together, take_apart
from proxfed.compressors.coding.reader import Reader
from proxfed.compressors.step_search import SHORT
from proxfed.keyed_random import Key, keys
from proxfed.types import Compressor

LARGEST = 10_000


def vector(kind: str, d: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal(d) if kind == "normal" else rng.standard_t(2, d)
    return torch.from_numpy(numbers.astype(np.float32))[None]


def bits() -> None:
    print("bits a number, of float32 vectors (normal: the bound is 0.5 log2(1 / q2))")
    print(f"{'':24}{'d = 60':>10}{'1000':>10}{'10^5':>10}{'10^6':>10}{'bound':>10}")
    for kind in ("normal", "Student t2"):
        for q2 in (0.5, 0.1, 0.01):
            sizes = []
            for d, rows in ((60, 200), (1000, 20), (10**5, 1), (10**6, 1)):
                v = torch.cat([vector(kind, d, seed) for seed in range(rows)])
                sizes.append(8 * ErrorBoundedQuantiser(q2)(v, keys(0, "bench", range(rows), 0)).best / v.numel())
            bound = f"{0.5 * log2(1 / q2):10.2f}" if kind == "normal" else f"{'-':>10}"
            print(f"{kind + f', q2 = {q2}':24}" + "".join(f"{size:10.3f}" for size in sizes) + bound)


def speed() -> None:
    print("\nMB of float32 a second, one core: compress (with the bytes written), and decode")
    contenders: dict[str, Compressor] = {"q2 = 0.1": ErrorBoundedQuantiser(0.1), "q2 = 0.5": ErrorBoundedQuantiser(0.5)}
    contenders |= {"top 10 %": TopK(0.1), "qsgd, 4 levels": QSGD(4)}
    for kind in ("normal", "Student t2"):
        for d in (10**5, 10**6, 10**7):
            v, key = vector(kind, d), keys(0, "bench", range(1), 0)
            there = side_by_side({name: partial(_there, C, v, key) for name, C in contenders.items()}, 5)
            back = side_by_side({name: partial(_back, C, _there(C, v, key), d) for name, C in contenders.items()}, 5)
            shown = "   ".join(f"{name}: {4e-6 * d / there[name]:.0f}, {4e-6 * d / back[name]:.0f}" for name in there)
            print(f"{kind}, d = {d:>8}   {shown}")


def _there(C: Compressor, v: torch.Tensor, key: Key) -> list[bytes]:
    return C.encode(C(v, key))


def _back(C: Compressor, messages: list[bytes], d: int) -> torch.Tensor:
    return C.decode(messages, d, torch.float32)


def codes() -> None:
    print("\ncodes of the same levels (normal, q2 = 0.1): bits a number, MB of float32 a second there and back")
    for d in (60, 1000, 10**5, 10**6):
        step = 1.05
        v = vector("normal", d)[0].numpy()
        level = (np.sign(v) * np.floor(np.abs(v) / step + 0.4)).astype(np.int32)
        makers = {"ours": _ours, "constriction": _constriction, "numba": _numba}
        if d <= 10**5:  # it squares up
            makers["signed Rice"] = _rice
        pairs = {name: pair for name, make in makers.items() if (pair := make(level)) is not None}
        there = side_by_side({name: write for name, (write, _) in pairs.items()}, 5)
        messages = {name: write() for name, (write, _) in pairs.items()}
        back = side_by_side({name: partial(read, messages[name]) for name, (_, read) in pairs.items()}, 5)
        for name, (_, read) in pairs.items():
            assert np.array_equal(read(messages[name]), level), name
        shown = [
            f"{name} {8 * len(messages[name]) / d:.3f}, {4e-6 * d / there[name]:.0f}, {4e-6 * d / back[name]:.0f}"
            for name in pairs
        ]
        print(f"d = {d:>8}   " + "   ".join(shown))


def _ours(level: np.ndarray):
    width, d = wire.width(LARGEST), len(level)
    if d > SHORT:
        return lambda: plane_code.write(take_apart(level), width), lambda m: put_together(
            plane_code.read(Reader(m), d, width), LARGEST
        )

    def write() -> bytes:
        to = urn_code.Writer()
        urn_code.write(to, take_apart(level), width)
        return to.message()

    return write, lambda m: put_together(urn_code.read(urn_code.Digits(Reader(m), len(m)), d, width), LARGEST)


def _rice(level: np.ndarray):
    d = len(level)
    return lambda: wire.write_signed(level, LARGEST), lambda m: wire.read_signed(Reader(m), d, LARGEST)


def _constriction(level: np.ndarray):
    """One table of 16-bit counts in front."""
    try:
        stream = importlib.import_module("constriction").stream
    except ImportError:
        return None
    d = len(level)

    def model(counts: np.ndarray):
        p = counts.astype(np.float64) / counts.sum()
        return stream.model.Categorical(p.astype(np.float32), perfect=False)

    def write() -> bytes:
        low = int(level.min())
        counts = np.bincount(level - low)
        coder = stream.stack.AnsCoder()
        coder.encode_reverse(level - low, model(counts))
        head = np.array([low, len(counts), *counts], np.int32)
        return head.tobytes() + coder.get_compressed().astype("<u4").tobytes()

    def read(message: bytes) -> np.ndarray:
        low, n = np.frombuffer(message[:8], np.int32)
        counts = np.frombuffer(message[8 : 8 + 4 * n], np.int32)
        coder = stream.stack.AnsCoder(np.frombuffer(message[8 + 4 * n :], "<u4").astype(np.uint32))
        return coder.decode(model(counts), d) + low

    return write, read


def _numba(level: np.ndarray):
    """Planes bit by bit, adaptive, carry-less range coder of 32 bits; signs as plain bits."""
    try:
        njit = importlib.import_module("numba").njit
    except ImportError:
        return None
    d = len(level)

    @njit(cache=False)
    def shift(low, cache, pending, out, at):
        """Move the highest byte of `low` out; one that a carry may still change waits."""
        if low < np.uint64(0xFF000000) or low > np.uint64(0xFFFFFFFF):
            carry = low >> np.uint64(32)
            while pending > 0:
                out[at] = (cache + carry) & np.uint64(255)
                at += 1
                cache = np.uint64(255)
                pending -= 1
            cache = (low >> np.uint64(24)) & np.uint64(255)
        return (low & np.uint64(0x00FFFFFF)) << np.uint64(8), cache, pending + 1, at

    @njit(cache=False)
    def encode(level, out):
        p = np.full(64, 2048, np.int64)
        low, rng, cache, pending, at = np.uint64(0), np.uint64(0xFFFFFFFF), np.uint64(0), 1, 0
        for v in level:
            a = abs(v)
            k = 0
            while True:
                # one bit: is a > k; then, at the end, the sign with a half
                more = a > k
                slot = min(k, 62)
                bound = (rng >> np.uint64(12)) * np.uint64(p[slot])
                if more:
                    low += bound
                    rng -= bound
                    p[slot] -= p[slot] >> 6
                else:
                    rng = bound
                    p[slot] += (4096 - p[slot]) >> 6
                while rng < np.uint64(1 << 24):
                    low, cache, pending, at = shift(low, cache, pending, out, at)
                    rng = (rng << np.uint64(8)) & np.uint64(0xFFFFFFFF)
                if not more:
                    break
                k += 1
        for _ in range(5):
            low, cache, pending, at = shift(low, cache, pending, out, at)
        return at

    @njit(cache=False)
    def decode(body, d):
        p = np.full(64, 2048, np.int64)
        out = np.zeros(d, np.int32)
        rng, code, at = np.uint64(0xFFFFFFFF), np.uint64(0), 1
        for _ in range(4):
            code = (code << np.uint64(8)) | np.uint64(body[at] if at < len(body) else 0)
            at += 1
        for i in range(d):
            k = 0
            while True:
                slot = min(k, 62)
                bound = (rng >> np.uint64(12)) * np.uint64(p[slot])
                more = code >= bound
                if more:
                    code -= bound
                    rng -= bound
                    p[slot] -= p[slot] >> 6
                else:
                    rng = bound
                    p[slot] += (4096 - p[slot]) >> 6
                while rng < np.uint64(1 << 24):
                    code = ((code << np.uint64(8)) | np.uint64(body[at] if at < len(body) else 0)) & np.uint64(
                        0xFFFFFFFF
                    )
                    rng = (rng << np.uint64(8)) & np.uint64(0xFFFFFFFF)
                    at += 1
                if not more:
                    break
                k += 1
            out[i] = k
        return out

    room = np.zeros(4 * d + 64, np.uint8)

    def write() -> bytes:
        at = encode(level, room)
        signs = wire.pack_flags(level[level != 0] < 0)
        return at.to_bytes(4, "little") + room[:at].tobytes() + signs

    def read(message: bytes) -> np.ndarray:
        at = int.from_bytes(message[:4], "little")
        out = decode(np.frombuffer(message, np.uint8, at, 4), d)
        nonzero = out != 0
        count = int(nonzero.sum())
        negative = wire.unpack_flags(Reader(message[4 + at :]), count)
        out[nonzero] *= np.where(negative, -1, 1)
        return out

    return write, read


def main() -> None:
    torch.set_num_threads(1)
    bits()
    speed()
    codes()


if __name__ == "__main__":
    main()
