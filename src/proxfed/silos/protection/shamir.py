"""Shamir's secret sharing: a secret of 32 bytes in n shares; any k restore it, and k - 1 reveal nothing about it.

share x     q(x) modulo PRIME, x = 1, ..., n, of a polynomial q with q(0) the secret and k - 1 random coefficients
secret      q(0) = sum_x q(x) prod_{z != x} z/(z - x), over any k of them       (Shamir 1979)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from proxfed.errors import RunError, require

PRIME = 2**256 + 297
"""The smallest prime above all secrets."""
SECRET, SHARE = 32, 33
"""Bytes."""


def split(secret: bytes, threshold: int, n: int, draw: Callable[[int], bytes]) -> list[bytes]:
    """The shares x = 1, ..., n; draw(k): 32 random bytes for the k-th coefficient, which nobody else can know."""
    require(len(secret) == SECRET, f"a secret has {SECRET} bytes, not {len(secret)}")
    require(1 <= threshold <= n, f"{threshold} of {n} shares cannot be what it takes")
    q = [int.from_bytes(secret, "little"), *(int.from_bytes(draw(k), "little") for k in range(1, threshold))]
    return [_value(q, x).to_bytes(SHARE, "little") for x in range(1, n + 1)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret from exactly as many shares, by x, as the threshold; RunError if they do not belong to a secret."""
    points = {x: int.from_bytes(share, "little") for x, share in shares.items()}
    if any(x < 1 or y >= PRIME for x, y in points.items()):
        raise RunError("a share of a secret is none")
    total = 0
    for x, y in points.items():
        above = below = 1
        for z in points:
            if z != x:
                above, below = above * z % PRIME, below * (z - x) % PRIME
        total += y * above * pow(below, -1, PRIME)
    total %= PRIME
    if total >> (8 * SECRET):
        raise RunError("these are not shares of one secret")
    return total.to_bytes(SECRET, "little")


def _value(q: list[int], x: int) -> int:
    total = 0
    for coefficient in reversed(q):
        total = (total * x + coefficient) % PRIME
    return total
