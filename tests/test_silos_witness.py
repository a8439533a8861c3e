"""Signatures over the audit files: nobody but a site says how far its file is, and what it said stays with others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from typer.testing import CliRunner

from proxfed.cli.main import app
from proxfed.errors import InputError, RunError
from proxfed.harness.experiment import parse
from proxfed.silos.coordinator.deploy import deploy
from proxfed.silos.protection.keyring import FORM, PUBLIC, SiteKey, joined, verified
from proxfed.silos.protection.ledger import Head
from proxfed.silos.protection.site_guard import SiteGuard
from proxfed.silos.protection.witness import Signed, compare, countersign, countersigned, publics, sign
from proxfed.silos.wire.carrier import Direct
from proxfed.silos.wire.message import Letter

from support.guarded_sites import SITES, Sites, site

KEY, OTHER = (SiteKey(X25519PrivateKey.generate()) for _ in range(2))
HEAD = Head(7, "0123456789abcdef" * 2)


def test_a_signature_is_of_one_site_key_and_head() -> None:
    signed = sign(KEY, "lyon", HEAD)
    assert Signed.read(str(signed)) == signed
    assert signed.by("lyon", KEY.public)
    assert not signed.by("oslo", KEY.public)
    assert not signed.by("lyon", OTHER.public)
    assert not signed._replace(head=Head(8, HEAD.digest)).by("lyon", KEY.public)
    assert not signed.by("lyon", b"")
    for text in ("", "7", str(HEAD), f"{HEAD}:00", f"{HEAD}:xx", 5):
        with pytest.raises(RunError):
            Signed.read(text)


def test_it_is_ed25519_as_the_library_has_it() -> None:
    statement = b"something"
    Ed25519PublicKey.from_public_bytes(KEY.public[32:]).verify(KEY.sign(statement), joined(FORM, statement))
    assert len(KEY.public) == PUBLIC == 64
    assert not verified(KEY.public, statement, bytes(64))


def test_counter_signatures_are_of_all_heads_and_of_one_job() -> None:
    audits = {"lyon": str(sign(KEY, "lyon", HEAD)), "oslo": str(sign(OTHER, "oslo", HEAD))}
    signature = countersign(OTHER, "job", audits)
    assert countersigned(OTHER.public, "job", audits, signature)
    assert not countersigned(KEY.public, "job", audits, signature)
    assert not countersigned(OTHER.public, "another", audits, signature)
    assert not countersigned(OTHER.public, "job", audits | {"lyon": audits["oslo"]}, signature)
    assert not countersigned(OTHER.public, "job", audits, "no hex")


def test_a_coordinator_that_says_something_else_of_a_file_is_refused(tmp_path: Path) -> None:
    """It could have made partners refuse a site, or made them note what is not so. Yields nothing."""
    sites = Sites(tmp_path)
    hello = Letter("hello", "").encode()
    heads = {name: json.loads(Letter.decode(here.answer(hello)).body)["audit"] for name, here in sites.holders.items()}
    job = sites.job()
    signed = Signed.read(heads["lyon"])
    forged = [
        str(signed._replace(head=Head(signed.head.lines + 1, signed.head.digest))),
        str(sign(site(tmp_path, "oslo").key, "lyon", signed.head)),
        heads["oslo"],
    ]
    for k, said in enumerate(forged):
        lie = replace(job, nonce=f"{k}", audits=heads | {"lyon": said})
        answer = Letter.decode(sites.holders["turin"].answer(Letter("job", lie.digest, body=lie.encode()).encode()))
        assert answer.kind == "refused"
        assert "audit file of lyon is was not signed with the key of lyon" in answer.head["why"]


def experiment() -> Any:
    table = {"name": "x", "rounds": 2, "data": {}, "problem": {"name": "logistic", "weighting": "uniform"}}
    return parse(table | {"algorithms": [{"name": "fedavg", "eta": 0.1, "K": 1}]}, "x")


def deployed(folder: Path, sites: Sites, name: str = "run") -> Path:
    carrier = Direct({each: here.answer for each, here in sites.holders.items()})
    deploy(experiment(), carrier, folder / name, say=lambda line: None, progress=False)
    return folder / name / "silos.json"


def rewritten(here: Any, lines: list[Mapping[str, Any]]) -> None:
    """By somebody with the key: audit file, its second file and the ledger, all of them right."""
    here.audit.path.unlink()
    for line in lines:
        here.audit.write(line["to"], line["what"], **{k: v for k, v in line.items() if k not in ("line", "to", "what")})
    here.key.ledger(here.path(here.files.key)).write(Head.of(here.audit.read().lines))


def test_what_was_signed_stays_with_partners_and_the_coordinator(tmp_path: Path) -> None:
    """a9: cut or rewritten with the key, so that the site itself notices nothing: what others keep shows it."""
    sites = Sites(tmp_path)
    first, second = deployed(tmp_path, sites, "first"), deployed(tmp_path, sites, "second")
    table = json.loads(second.read_text())
    keys = publics(table["job"]["introductions"])
    assert {*table["audits"]} == {*SITES}
    lyon, partner = site(tmp_path, "lyon"), site(tmp_path, "oslo").audit.path
    lines = lyon.audit.read().lines
    for noted in (first, second, partner):
        count, broken = compare("lyon", keys["lyon"], lines, noted)
        assert (count >= 1, broken) == (True, "")
    changed = [line | {"bytes": 1} if line["line"] == 2 else line for line in lines]
    for forged, why in (
        (changed, "lines are not those that were signed"),
        (lines[:1], "lines were signed, and 1 are there"),
    ):
        rewritten(lyon, forged)
        SiteGuard(lyon)  # it notices nothing
        for noted in (first, second, partner):  # the coordinator's of the first run: signed at its end
            count, broken = compare("lyon", keys["lyon"], lyon.audit.read().lines, noted)
            assert why in broken
    with pytest.raises(InputError, match="was not made with the key that is here"):
        compare("lyon", keys["oslo"], lines, partner)


def test_the_command_that_compares(tmp_path: Path) -> None:
    noted = deployed(tmp_path, Sites(tmp_path))
    lyon = site(tmp_path, "lyon")
    text = '\nname = "lyon"\n[data]\npath = "rows.csv"\nlabel = "y"\n'
    (tmp_path / "lyon" / "site.toml").write_text(text)
    ask = ["site", "audit", "--site", str(tmp_path / "lyon" / "site.toml"), "--against", str(noted)]
    result = CliRunner().invoke(app, ask)
    assert result.exit_code == 0, result.output
    rewritten(lyon, lyon.audit.read().lines[:1])
    assert CliRunner().invoke(app, ask).exit_code == 1


def test_a_cut_file_is_refused_by_partners_at_the_next_job(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    for name in ("one", "two"):
        deployed(tmp_path, sites, name)
    lyon = site(tmp_path, "lyon")
    rewritten(lyon, lyon.audit.read().lines[:1])
    sites.start()
    with pytest.raises(InputError, match="the audit file of lyon does not have the lines any more"):
        deployed(tmp_path, sites, "again")


def test_a_site_that_does_not_counter_sign_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Sites(tmp_path)
    monkeypatch.setattr(sites.holders["oslo"].guard, "countersign", lambda job: "00" * 64)
    with pytest.raises(InputError, match="oslo did not counter-sign"):
        deployed(tmp_path, sites)
