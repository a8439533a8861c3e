"""Shamir's shares: any k give the secret, and k - 1 fit every other secret as well."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import InputError, RunError
from proxfed.silos.protection.shamir import PRIME, SECRET, SHARE, combine, split


def coefficients(seed: int) -> dict[int, bytes]:
    rng = random.Random(seed)
    return {k: rng.randbytes(32) for k in range(1, 20)}


def test_the_field_is_one_and_the_smallest_for_32_bytes() -> None:
    """Fermat and Miller-Rabin with 40 bases; every number between 2^256 and it has a witness."""

    def prime(p: int) -> bool:
        s, d = 0, p - 1
        while d % 2 == 0:
            s, d = s + 1, d // 2
        return all(
            pow(a, d, p) in (1, p - 1) or any(pow(a, d << r, p) == p - 1 for r in range(s))
            for a in (random.Random(k).randrange(2, p - 1) for k in range(40))
        )

    assert prime(PRIME)
    assert not any(prime(p) for p in range(2**256 + 1, PRIME, 2))


@given(secret=st.binary(min_size=SECRET, max_size=SECRET), n=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_any_k_shares_give_the_secret(secret: bytes, n: int, seed: int) -> None:
    for k in range(1, n + 1):
        shares = dict(enumerate(split(secret, k, n, coefficients(seed).__getitem__), 1))
        assert all(len(share) == SHARE for share in shares.values())
        for some in itertools.combinations(shares, k):
            assert combine({x: shares[x] for x in some}) == secret


@given(one=st.binary(min_size=SECRET, max_size=SECRET), other=st.binary(min_size=SECRET, max_size=SECRET))
def test_fewer_shares_fit_every_secret(one: bytes, other: bytes) -> None:
    """Two of three shares of a threshold of three: for any other secret there is a third share, and a polynomial."""
    seen = dict(enumerate(split(one, 3, 3, coefficients(0).__getitem__)[:2], 1))
    value = lambda secret: int.from_bytes(secret, "little")
    # q(0) = 3 q(1) - 3 q(2) + q(3), for polynomials of degree 2: the third share that makes it `other`
    third = (value(other) - 3 * value(seen[1]) + 3 * value(seen[2])) % PRIME
    assert combine(seen | {3: third.to_bytes(SHARE, "little")}) == other


def test_what_is_no_share_or_no_threshold_is_refused() -> None:
    with pytest.raises(InputError, match="4 of 3 shares"):
        split(bytes(32), 4, 3, lambda k: bytes(32))
    with pytest.raises(InputError, match="32 bytes, not 3"):
        split(b"abc", 1, 1, lambda k: bytes(32))
    with pytest.raises(RunError, match="is none"):
        combine({1: PRIME.to_bytes(SHARE, "little")})
    with pytest.raises(RunError, match="is none"):
        combine({0: bytes(SHARE)})
    with pytest.raises(RunError, match="not shares of one secret"):
        combine({1: (2**256 + 5).to_bytes(SHARE, "little")})
