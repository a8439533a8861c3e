"""Sites' signatures of a model that they took part in, for anybody who knows a site's fingerprint to check.

A site signs what it has seen: the coefficients, the preparation and the participants, in a run that it knows. It cannot
know whether the model fits the rows of the others.
"""

from __future__ import annotations

from proxfed.errors import InputError
from proxfed.fit.model_file import Model, Signature
from proxfed.silos.protection.keyring import SiteKey, fingerprint, needs_cryptography, verified

ABOUT = b"proxfed model, signed by a site that took part\n"


def sign_model(key: SiteKey, content: bytes) -> Signature:
    """Sign a model's content (`Model.content`)."""
    return Signature(key=key.public.hex(), signature=key.sign(ABOUT + content).hex())


def signed_by(model: Model) -> dict[str, str]:
    """Fingerprints of the sites that have signed a model; refused if a signature does not match it."""
    needs_cryptography()
    found, content = {}, model.content()
    for site, said in model.signatures.items():
        try:
            public, signature = bytes.fromhex(said.key), bytes.fromhex(said.signature)
        except ValueError:
            public, signature = b"", b""
        if not verified(public, ABOUT + content, signature):
            raise InputError(f"the signature of {site} is not under this model: it was changed, or never signed")
        found[site] = fingerprint(public)
    return found
