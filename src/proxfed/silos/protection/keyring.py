"""Keys of a site, and secrets that two sites share and the coordinator does not know.

    secret of a pair    X25519(own private key, the other's public key)
    keys of a run       HKDF(secret of the pair; run, purpose, both names, both public keys)
    signature           Ed25519, by a key derived from the private one
    sealed message      AES-256-GCM under a key of one direction; run, names, round and step are authenticated

The nonce of a sealed message is an HMAC of all that and of its content: repeating a message gives the same bytes, and a
different one never reuses a nonce, even if a process that crashed computes a round a second time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from proxfed.errors import InputError, RunError, require
from proxfed.silos.protection.ledger import Head, Ledger

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

FORM = b"proxfed silos 1"
EXCHANGED, PUBLIC, SALT = 32, 64, 16
"""Bytes of the public half of the key exchange, of both public halves, of a salt."""
NONCE, TAG = 12, 16


def needs_cryptography() -> None:
    """One sentence if the library is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError as e:
        raise InputError("keys and masks need the package cryptography: pip install 'proxfed[silos]'") from e


def fingerprint(public: bytes) -> str:
    """A fingerprint for people to compare: 128 bits of the SHA-256 of a public key, in groups of four."""
    digest = hashlib.sha256(public).hexdigest()[:32]
    return "-".join(digest[k : k + 4] for k in range(0, 32, 4))


@dataclass(frozen=True)
class SiteKey:
    """The key of a site. Its private half never leaves the file."""

    private: X25519PrivateKey

    @classmethod
    def create(cls, path: Path) -> SiteKey:
        """A new key, in a file that only this user can read; an existing file is not replaced."""
        needs_cryptography()
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        key = cls(X25519PrivateKey.generate())
        text = key.private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as f:
                f.write(text)
                f.flush()
                os.fsync(f.fileno())
        except FileExistsError as e:
            raise InputError(f"{path} is there already, and a key is not replaced") from e
        except OSError as e:
            raise RunError(f"cannot write the key to {path}: {e.strerror}") from e
        key.ledger(path).write(Head())
        return key

    def ledger(self, path: Path) -> Ledger:
        """The record of how much the site with this key has revealed, in a file beside it."""
        return Ledger.beside(path, self.secret(b"ledger"))

    @classmethod
    def read(cls, path: Path) -> SiteKey:
        """From its file; refused if other users can read it."""
        needs_cryptography()
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        try:
            open_to_others = path.stat().st_mode & 0o077
            text = path.read_bytes()
        except OSError as e:
            raise InputError(f"cannot read the site's key {path}: {e.strerror}") from e
        require(not open_to_others, f"others may read the key {path}: chmod 600 {path}")
        try:
            private = serialization.load_pem_private_key(text, None)
        except (ValueError, TypeError) as e:
            raise InputError(f"{path} is not a key: {e}") from e
        require(isinstance(private, X25519PrivateKey), f"{path} is a key of another kind than X25519")
        return cls(private)  # type: ignore[arg-type]

    @cached_property
    def public(self) -> bytes:
        """Its public halves: of the key exchange, and of the signature."""
        return self.private.public_key().public_bytes_raw() + self._signing.public_key().public_bytes_raw()

    @cached_property
    def _signing(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret(b"signature"))

    def sign(self, statement: bytes) -> bytes:
        """A signature of 64 bytes that only this site can make, and anybody can check (`verified`)."""
        return self._signing.sign(joined(FORM, statement))

    def introduction(self) -> bytes:
        """A site's message at the start of a run: its public halves, and a new salt.

        Because of the salt, a run that is started again has other keys, so that no pad is used for two contents,
        whatever happened to the site's rows in between.
        """
        return self.public + os.urandom(SALT)

    def secret(self, *about: bytes) -> bytes:
        """A secret of 32 bytes that only this site knows, for a purpose."""
        return derive(self.private.private_bytes_raw(), b"own secret", *about)

    def shared(self, public: bytes) -> bytes:
        """The secret that this site shares with the owner of another key."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            return self.private.exchange(X25519PublicKey.from_public_bytes(public[:EXCHANGED]))
        except ValueError as e:
            raise InputError(f"{public.hex()[:80]} is not a public key of a site") from e


def verified(public: bytes, statement: bytes, signature: bytes) -> bool:
    """Whether the site with these public halves signed the statement."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public[EXCHANGED:PUBLIC]).verify(signature, joined(FORM, statement))
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Keyring:
    """The keys that one site shares with the others of a run."""

    key: SiteKey
    me: str
    run: str
    """The digest of the job and of all introductions: keys of one run are useless in another."""
    partners: Mapping[str, bytes]
    """The public keys of the others, by name."""

    @classmethod
    def of(cls, key: SiteKey, me: str, job: str, introductions: Mapping[str, bytes]) -> Keyring:
        """From the introductions of all sites of the run, including this site's own."""
        for name, said in introductions.items():
            require(
                len(said) == PUBLIC + SALT, f"the introduction of {name!r} has {len(said)} bytes, not {PUBLIC + SALT}"
            )
        own = introductions.get(me, b"")
        require(own[:PUBLIC] == key.public, f"{me!r} was introduced to the others with a key that is not its own")
        everybody = joined(
            job.encode(), *(part for name in sorted(introductions) for part in (name.encode(), introductions[name]))
        )
        others = {name: said[:PUBLIC] for name, said in introductions.items() if name != me}
        return cls(key, me, hashlib.sha256(everybody).hexdigest(), others)

    def pair(self, other: str, *purpose: bytes) -> bytes:
        """32 bytes that only this site and `other` know; the same at both."""
        require(other in self.partners, f"the key of {other!r} is not known here; known: {', '.join(self.partners)}")
        ends = sorted([(self.me.encode(), self.key.public), (other.encode(), self.partners[other])])
        return derive(
            self._shared(other), b"pair", self.run.encode(), *purpose, *(part for end in ends for part in end)
        )

    def _shared(self, other: str) -> bytes:
        if other not in self._secrets:
            self._secrets[other] = self.key.shared(self.partners[other])
        return self._secrets[other]

    @cached_property
    def _secrets(self) -> dict[str, bytes]:
        return {}

    def seal(self, to: str, t: int, k: int, body: bytes) -> bytes:
        """Encrypt a message of round t and step k, so that only `to` can read and authenticate it."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        about, key, for_nonces = self._direction(to, self.me, to, t, k)
        nonce = hmac.digest(for_nonces, about + body, "sha256")[:NONCE]
        return nonce + AESGCM(key).encrypt(nonce, body, about)

    def unseal(self, sender: str, t: int, k: int, sealed: bytes) -> bytes:
        """Decrypt what `sender` sealed for this site in round t and step k, or one sentence."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        about, key, _ = self._direction(sender, sender, self.me, t, k)
        where = f"the message of {sender!r} to {self.me!r} in round {t}, step {k}"
        require(len(sealed) >= NONCE + TAG, f"{where} is too short to be a sealed one: {len(sealed)} bytes")
        try:
            return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], about)
        except InvalidTag as e:
            raise InputError(f"{where} is not what {sender!r} sealed: it was changed, or belongs elsewhere") from e

    def _direction(self, other: str, sender: str, to: str, t: int, k: int) -> tuple[bytes, bytes, bytes]:
        """(the authenticated data, the key of messages from `sender` to `to`, the key of their nonces)."""
        ends = sender.encode(), to.encode()
        about = joined(FORM, self.run.encode(), *ends, str(t).encode(), str(k).encode())
        return about, self.pair(other, b"seal", *ends), self.pair(other, b"nonce", *ends)


def joined(*parts: bytes) -> bytes:
    """Each prefixed with its length, so that no two lists give the same bytes."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def derive(secret: bytes, *about: bytes) -> bytes:
    """Derive 32 bytes from a secret, for a purpose."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt=FORM, info=joined(*about)).derive(secret)
