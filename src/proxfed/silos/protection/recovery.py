"""Masks of a round that can be undone if a site drops out after the cohort is fixed (Bonawitz et al. 2017).

    before     site i draws a key r_i and a seed b_i for the round, and deals shares of both, sealed, to all others
    i sends    y_i = words + pad(b_i) + sum_{j in cohort} s_ij pad(X25519(r_i, R_j)),      R_j the public half of r_j
    after      survivors send shares of b_i for a site whose y_i has arrived, and shares of r_i for one that dropped out
    sum        sum_i y_i - sum_i pad(b_i) - the pads between survivors and sites that dropped out

No site ever sends its shares of both: it answers for one set of survivors per round. To read y_i takes b_i and r_i. A
coordinator that tells some sites that i has answered, and others that it has not, needs k shares from each group; if k
is a majority, there are not enough sites. With c colluding sites it needs 2 k <= n + c.

All draws follow from a secret of the site, the run, the round and all recipients: the same question gets the same
bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from proxfed.errors import RunError, require
from proxfed.silos.protection.keyring import EXCHANGED, Keyring, derive, joined
from proxfed.silos.protection.masks import Words, stream
from proxfed.silos.protection.shamir import SHARE, combine, split

STEP = -1
"""The step of sealed shares; messages to neighbours have 0, 1, ..."""
DIGEST = 32
BOX = EXCHANGED + DIGEST + 2 * SHARE


def majority(n: int) -> int:
    """The smallest majority of n."""
    return n // 2 + 1


class Round(NamedTuple):
    """A round in which masks can be undone."""

    t: int
    among: tuple[str, ...]
    """All sites that shares are dealt to, sorted."""

    @classmethod
    def of(cls, t: int, among: Iterable[str]) -> Round:
        return cls(t, tuple(sorted(among)))

    @property
    def about(self) -> tuple[bytes, ...]:
        return str(self.t).encode(), *(name.encode() for name in self.among)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(joined(*self.about)).digest()

    def place(self, name: str) -> int:
        """The x of its shares."""
        return self.among.index(name) + 1


class Box(NamedTuple):
    """One site's message to another before a round."""

    public: bytes
    """R_i: the public half of its key of the round."""
    of_key: bytes
    """A share of r_i."""
    of_seed: bytes
    """A share of b_i."""


class Dealt(NamedTuple):
    """A site's messages to all others."""

    own: Box
    """The shares that it keeps."""
    commitment: bytes
    """The digest of b_i, which detects wrong shares of it."""
    sealed: dict[str, bytes]
    """The sealed boxes, by addressee."""


def deal(keyring: Keyring, here: Round, threshold: int) -> Dealt:
    """This site's shares for all sites; `threshold` of them undo a mask."""
    require(keyring.me in here.among, f"{keyring.me!r} is not among {', '.join(here.among)}")
    n = len(here.among)
    keys, seeds = (_split(keyring, here, which, threshold, n) for which in (b"key", b"seed"))
    public = _public(_secret(keyring, here, b"key"))
    boxes = {name: Box(public, keys[k], seeds[k]) for k, name in enumerate(here.among)}
    sealed = {
        name: keyring.seal(name, here.t, STEP, box.public + here.digest + box.of_key + box.of_seed)
        for name, box in boxes.items()
        if name != keyring.me
    }
    return Dealt(boxes[keyring.me], _commitment(_secret(keyring, here, b"seed")), sealed)


def unbox(keyring: Keyring, here: Round, sender: str, sealed: bytes) -> Box:
    """Open another site's shares for this one, for just this round and these sites."""
    body = keyring.unseal(sender, here.t, STEP, sealed)
    good = len(body) == BOX and body[EXCHANGED : EXCHANGED + DIGEST] == here.digest
    require(good, f"the shares of {sender!r} are of another round, or between other sites")
    shares = body[EXCHANGED + DIGEST :]
    return Box(body[:EXCHANGED], shares[:SHARE], shares[SHARE:])


def pads(
    keyring: Keyring, here: Round, cohort: Sequence[str], publics: Mapping[str, bytes], broadcast: bytes, count: int
) -> Words:
    """The masks that this site adds to its words: from its seed, and with all others of the cohort."""
    key, about = _secret(keyring, here, b"key"), _about(here, cohort, broadcast)
    total = stream(derive(_secret(keyring, here, b"seed"), *about), count)
    for other in cohort:
        if other != keyring.me:
            total = total + _between(keyring.me, key, other, publics[other], about, count)
    return total


def tell(here: Round, survivors: Sequence[str], boxes: Mapping[str, Box]) -> dict[str, bytes]:
    """A site's shares: of the survivors' seeds, and of the keys of sites that dropped out; never of both."""
    return {name: box.of_seed if name in survivors else box.of_key for name, box in boxes.items()}


class Told(NamedTuple):
    """The coordinator's information about a round."""

    here: Round
    cohort: Sequence[str]
    publics: Mapping[str, bytes]
    commitments: Mapping[str, bytes]
    thresholds: Mapping[str, int]
    broadcast: bytes


def undo(told: Told, survivors: Sequence[str], shares: Mapping[str, Mapping[str, bytes]], count: int) -> Words:
    """The masks in the sum of the survivors' messages; shares: by sender, then by the site that they belong to."""
    about, total = _about(told.here, told.cohort, told.broadcast), np.zeros(count, np.uint64)
    for name in told.cohort:
        k = told.thresholds[name]
        mine = {told.here.place(teller): said[name] for teller, said in shares.items() if name in said}
        if len(mine) < k:
            raise RunError(f"{len(mine)} sites have told their shares of {name}, and it takes {k}")
        secret = combine(dict([*mine.items()][:k]))
        there = name in survivors
        if (_commitment(secret) != told.commitments[name]) if there else (_public(secret) != told.publics[name]):
            raise RunError(f"the shares of {name} that sites have told do not fit each other")
        if there:
            total = total + stream(derive(secret, *about), count)
            continue
        for other in survivors:  # the pad of the pair that `other` has added and the missing site has not cancelled
            total = total - _between(name, secret, other, told.publics[other], about, count)
    return total


def _split(keyring: Keyring, here: Round, which: bytes, threshold: int, n: int) -> list[bytes]:
    draw = lambda k: _secret(keyring, here, which, str(threshold).encode(), str(k).encode())
    return split(_secret(keyring, here, which), threshold, n, draw)


def _secret(keyring: Keyring, here: Round, *which: bytes) -> bytes:
    return keyring.key.secret(b"recovery", *which, keyring.run.encode(), *here.about)


def _about(here: Round, cohort: Sequence[str], broadcast: bytes) -> tuple[bytes, ...]:
    names = (name.encode() for name in sorted(cohort))
    return b"recoverable mask", here.digest, *names, hashlib.sha256(broadcast).digest()


def _commitment(seed: bytes) -> bytes:
    return hashlib.sha256(joined(b"commitment", seed)).digest()


def _public(key: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()


def _between(me: str, key: bytes, other: str, public: bytes, about: tuple[bytes, ...], count: int) -> Words:
    """The pad that `me` adds for the pair: with plus if its name comes first, else with minus."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        shared = X25519PrivateKey.from_private_bytes(key).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as e:
        raise RunError(f"the key that {other!r} has for the round is none") from e
    ends = sorted([(me.encode(), _public(key)), (other.encode(), public)])
    pad = stream(derive(shared, *about, *(part for end in ends for part in end)), count)
    return pad if me < other else np.zeros(count, np.uint64) - pad
