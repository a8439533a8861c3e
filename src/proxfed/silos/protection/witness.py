"""Signatures over the position of an audit file: a site's own, and its partners', which saw it before a job began.

    signed            Ed25519 by the site's key over its name, the number of lines and their digest (ledger.py)
    counter-signed    the same by a partner, over the name of a job and all that sites have signed before it

Sites sign before a job, and again when it is over. Partners record the signatures before a job in their own audit
files. The coordinator keeps all of them in silos.json of the run folder, with the partners' counter-signatures. At the
next job, partners refuse a file with fewer lines than they know. A file that was rewritten, even with the site's key,
does not match an earlier signature: `proxfed site audit --against` compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from proxfed.errors import InputError, RunError, require
from proxfed.silos.protection.audit import Audit
from proxfed.silos.protection.keyring import PUBLIC, SiteKey, joined, verified
from proxfed.silos.protection.ledger import Head, Line

SIGNATURE = 64
"""Bytes."""


class Signed(NamedTuple):
    """The position of an audit file, signed by its site."""

    head: Head
    signature: bytes

    def __str__(self) -> str:
        return f"{self.head}:{self.signature.hex()}"

    @classmethod
    def read(cls, text: Any) -> Signed:
        """From what `str` wrote, or RunError."""
        head, _, signature = str(text).rpartition(":")
        try:
            found = cls(Head.read(head), bytes.fromhex(signature))
        except ValueError as e:
            raise RunError(f"{text!r:.60} is not signed") from e
        if len(found.signature) != SIGNATURE:
            raise RunError(f"{text!r:.60} is not signed")
        return found

    def by(self, site: str, public: bytes) -> bool:
        """Whether the owner of this key signed it."""
        return verified(public, _statement(site, self.head), self.signature)


def sign(key: SiteKey, site: str, head: Head) -> Signed:
    return Signed(head, key.sign(_statement(site, head)))


def countersign(key: SiteKey, job: str, audits: Mapping[str, str]) -> str:
    """A signature over all sites' signatures before a job."""
    return key.sign(_all(job, audits)).hex()


def countersigned(public: bytes, job: str, audits: Mapping[str, str], signature: str) -> bool:
    try:
        return verified(public, _all(job, audits), bytes.fromhex(signature))
    except ValueError:
        return False


def _statement(site: str, head: Head) -> bytes:
    return joined(b"audit", site.encode(), str(head).encode())


def _all(job: str, audits: Mapping[str, str]) -> bytes:
    return joined(b"audits", job.encode(), *(part.encode() for site in sorted(audits) for part in (site, audits[site])))


# ---- records of others -----------------------------------------------------------------------------------------------


def compare(site: str, public: bytes, lines: Sequence[Line], noted: Path) -> tuple[int, str]:
    """(the number of this site's signatures in a file of others, the first that does not match its lines; else empty).

    noted: the audit file of a partner, or silos.json of a coordinator.
    """
    count, heads = 0, [Head()]
    for line in lines:
        heads.append(heads[-1].then(line))
    for signed in _noted(site, noted):
        require(signed.by(site, public), f"{noted}: a signature of {site} was not made with the key that is here")
        count += 1
        n = signed.head.lines
        if n >= len(heads):
            return count, f"{n} lines were signed, and {len(lines)} are there"
        if heads[n] != signed.head:
            return count, f"the first {n} lines are not those that were signed"
    return count, ""


def _noted(site: str, path: Path) -> Iterator[Signed]:
    try:
        text = path.read_text()
        table = json.loads(text) if path.suffix == ".json" else None
    except (OSError, ValueError) as e:
        raise InputError(f"{path} cannot be read: {e}") from e
    if table is None:
        said = [line.get("heads", {}).get(site) for line in Audit(path).read().lines]
    else:
        said = [table.get("job", {}).get("audits", {}).get(site), table.get("ended", {}).get(site)]
    return (Signed.read(each) for each in said if each)


def publics(introductions: Mapping[str, str]) -> dict[str, bytes]:
    """The keys of the sites that have introduced one."""
    return {site: bytes.fromhex(said)[:PUBLIC] for site, said in introductions.items() if said}
