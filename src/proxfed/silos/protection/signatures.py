"""Signatures of sites under a model that they took part in: anybody who knows a site's fingerprint can check them.

The key for signatures follows from the site's key (Ed25519), and its public half stands beside each signature. A site
signs what it was shown: the coefficients, the preparation and who took part, in a run that it knows. That the model
fits the rows of the others it cannot know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxfed.errors import InputError
from proxfed.fit.model_file import Model, Signature
from proxfed.silos.protection.keyring import SiteKey, fingerprint, needs_cryptography

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ABOUT = b"proxfed model, signed by a site that took part\n"


def _private(key: SiteKey) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(key.secret(b"signatures"))


def signing_fingerprint(key: SiteKey) -> str:
    """What others compare: that of the public half of the key for signatures."""
    return fingerprint(_private(key).public_key().public_bytes_raw())


def sign(key: SiteKey, content: bytes) -> Signature:
    """Under what a model says (`Model.content`)."""
    private = _private(key)
    return Signature(key=private.public_key().public_bytes_raw().hex(), signature=private.sign(ABOUT + content).hex())


def signed_by(model: Model) -> dict[str, str]:
    """Fingerprints of the keys with which sites have signed a model; refused if a signature is not under this one."""
    from cryptography.exceptions import InvalidSignature

    needs_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    found, content = {}, model.content()
    for site, said in model.signatures.items():
        try:
            public = bytes.fromhex(said.key)
            Ed25519PublicKey.from_public_bytes(public).verify(bytes.fromhex(said.signature), ABOUT + content)
        except (InvalidSignature, ValueError) as e:
            raise InputError(f"the signature of {site} is not under this model: it was changed, or never signed") from e
        found[site] = fingerprint(public)
    return found
