"""What a site has told is not forgotten, whatever becomes of its audit file; partners note each other's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxfed.errors import InputError, RunError
from proxfed.silos.protection import audit as audits
from proxfed.silos.protection.audit import Audit
from proxfed.silos.protection.ledger import Head, Ledger
from proxfed.silos.protection.site_guard import SiteGuard
from proxfed.silos.protection.witness import Signed, sign
from proxfed.silos.wire.message import Letter

from support.guarded_sites import SITES, Sites, after, site


def rewritten(audit: Audit, lines: list[dict[str, Any]]) -> None:
    """By somebody who can write all its files, and takes the trouble to compute the chain again."""
    audit.path.unlink()
    for line in lines:
        audit.write(line["to"], line["what"], **{k: v for k, v in line.items() if k not in ("line", "to", "what")})


def used(tmp_path: Path) -> Sites:
    sites = Sites(tmp_path)
    after(sites.coordinator(), 2)
    return sites


@pytest.mark.parametrize("how", ["cut", "changed", "removed", "all removed"])
def test_an_audit_file_that_is_forged_or_gone_ends_the_site_and_frees_no_budget(how: str, tmp_path: Path) -> None:
    used(tmp_path)
    audit = site(tmp_path, "lyon").audit
    lines = audit.read().lines
    if how == "cut":
        rewritten(audit, lines[:-2])
    elif how == "changed":
        rewritten(audit, [line | {"bytes": 1} if "bytes" in line else line for line in lines])
    else:
        audit.path.unlink()
        audit.last_number.unlink()
        if how == "all removed":
            (tmp_path / "lyon" / "site.key.spent").unlink()
    assert audit.read().broken == ""
    with pytest.raises(InputError, match=r"^nothing is answered: .*(lines that|counts as spent)"):
        SiteGuard(site(tmp_path, "lyon"))


def test_what_was_written_before_a_crash_joins(tmp_path: Path) -> None:
    used(tmp_path)
    here = site(tmp_path, "lyon")
    here.audit.write("coordinator", "round", b"x", run="r", t=1)
    guard = SiteGuard(here)
    assert Signed.read(guard.head()).head == Head.of(here.audit.read().lines)


def test_a_line_whose_write_failed_halfway_counts_and_the_site_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after the line and before the second file of the audit; then there is room again."""
    sites = used(tmp_path)
    guard = sites.holders["lyon"].guard
    assert isinstance(guard, SiteGuard)
    real = audits.replace

    def full(path: Path, data: bytes) -> None:
        raise RunError("No space left on device")

    monkeypatch.setattr(audits, "replace", full)
    with pytest.raises(RunError):
        guard.history.note("", "a remark")
    monkeypatch.setattr(audits, "replace", real)
    guard.history.note("", "another")
    assert Signed.read(guard.head()).head == Head.of(guard.history.audit.read().lines)
    assert guard.head() == SiteGuard(site(tmp_path, "lyon")).head()


def test_a_ledger_of_another_key_is_none(tmp_path: Path) -> None:
    used(tmp_path)
    here = site(tmp_path, "lyon")
    lines = here.audit.read().lines
    with pytest.raises(RunError, match="was not written with this site's key"):
        Ledger.beside(here.path(here.files.key), bytes(32)).check([*lines])
    (tmp_path / "lyon" / "site.key.spent").write_text("nonsense")
    with pytest.raises(InputError, match="cannot be read"):
        SiteGuard(here)


def test_partners_note_how_far_each_others_files_were_and_refuse_a_shorter_one(tmp_path: Path) -> None:
    sites = used(tmp_path)
    hello = Letter("hello", "").encode()
    job = sites.job()
    heads = {name: json.loads(Letter.decode(here.answer(hello)).body)["audit"] for name, here in sites.holders.items()}
    told = replace(job, audits=heads)
    ask = lambda job, name: Letter.decode(
        sites.holders[name].answer(Letter("job", job.digest, body=job.encode()).encode())
    )
    assert all(ask(told, name).kind == "answer" for name in SITES)
    noted = [line["heads"] for line in site(tmp_path, "oslo").audit.read().lines if line.get("heads")]
    assert noted[-1]["lyon"] == heads["lyon"]
    lines, digest = Signed.read(heads["lyon"]).head
    assert Head.of(site(tmp_path, "lyon").audit.read().lines[:lines]) == (lines, digest)
    key = site(tmp_path, "lyon").key
    saying = lambda lines, digest: {"lyon": str(sign(key, "lyon", Head(lines, digest)))}
    shorter = replace(job, nonce="2", audits=heads | saying(lines - 1, digest))
    said = ask(shorter, "oslo")
    assert said.kind == "refused"
    assert "the audit file of lyon does not have the lines any more" in said.head["why"]
    other = replace(job, nonce="3", audits=heads | saying(lines, "0" * 32))
    assert "audit file of lyon" in ask(other, "oslo").head["why"]
    longer = replace(job, nonce="4", audits=saying(lines + 10**6, digest))
    assert "the job knows another audit file of this site" in ask(longer, "lyon").head["why"]
    assert ask(replace(job, nonce="5", audits={"oslo": "x"}), "lyon").kind == "failed"
