"""The coordinator's half of masks that can be undone: sites may drop out after the cohort is fixed.

Sites send shares for only one set of survivors per round. So the round's cohort and its survivors are on disk before a
site is asked: a coordinator that was killed continues with the same sites.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxfed import files
from proxfed.errors import InputError, RunError
from proxfed.files import checked, with_checksum
from proxfed.silos.coordinator.collect import CollectSum
from proxfed.silos.protection import recovery
from proxfed.silos.protection.masks import Words
from proxfed.silos.wire.message import Letter
from proxfed.types import Star

if TYPE_CHECKING:
    from proxfed.harness.protection import Protection
    from proxfed.silos.coordinator.coordinator import Coordinator


class CollectRecovered(CollectSum):
    """Reads the sum over the sites that have not dropped out.

    Parameters
    ----------
    protection
        The job's protection.
    note
        The file of the current round; None: a coordinator that is killed within a round cannot finish it.
    """

    def __init__(self, protection: Protection, note: Path | None = None) -> None:
        super().__init__(protection)
        self.note = note
        self.survivors: list[str] | None = None
        """The survivors of the current round, if shares were requested before a restart."""

    def _there(self, c: Coordinator, alg: Star[Any, Any], t: int, ids: dict[str, list[int]]) -> dict[str, list[int]]:
        """The clients of sites that deal shares of their masks to all others."""
        if not self._went_on(t):
            self._deal(c, alg, t, ids)
        return {site: own for site, own in ids.items() if site in self.dealt.cohort}

    def _deal(self, c: Coordinator, alg: Star[Any, Any], t: int, ids: dict[str, list[int]]) -> None:
        here = recovery.Round.of(t, ids)
        question = Letter("query", c.job.digest, t, 0, {"what": "shares", "among": list(here.among)})
        dealt = c.answers(alg, t, dict.fromkeys(ids, question))
        boxes = {site: dict(zip(a.words("to"), a.words("boxes"), strict=True)) for site, a in dealt.items()}
        self.boxes = {site: {dealer: boxes[dealer].get(site, "") for dealer in boxes if dealer != site} for site in ids}
        publics, seeds = (
            {site: _bytes(site, a.word(name)) for site, a in dealt.items()} for name in ("public", "commitment")
        )
        thresholds = {site: a.number("threshold", 1) for site, a in dealt.items()}
        self.dealt = recovery.Told(here, list(dealt), publics, seeds, thresholds, b"")
        self.survivors = None
        self._write()

    # ---- what is kept of a round under way -------------------------------------------------------------------------

    def _write(self) -> None:
        if self.note is None:
            return
        d = self.dealt
        known = {name: [d.publics[name].hex(), d.commitments[name].hex(), d.thresholds[name]] for name in d.cohort}
        plain = {"round": d.here.t, "among": list(d.here.among), "known": known, "boxes": self.boxes}
        text = json.dumps(with_checksum(plain | {"survivors": self.survivors}))
        files.write(self.note, text, folders=True)

    def _went_on(self, t: int) -> bool:
        """Whether this round was begun before a restart; if so, restores its sites and shares."""
        if self.note is None or not self.note.exists():
            return False
        try:
            plain = checked(files.parse_json(files.read(self.note), str(self.note)), str(self.note))
            if plain["round"] != t:
                return False
            known: Mapping[str, Any] = plain["known"]
            publics, seeds = ({name: bytes.fromhex(each[k]) for name, each in known.items()} for k in (0, 1))
            thresholds = {name: int(each[2]) for name, each in known.items()}
            self.boxes, self.survivors = plain["boxes"], plain["survivors"]
        except (OSError, ValueError, KeyError, TypeError, RunError) as e:
            raise InputError(f"{self.note} is damaged: {e}") from e
        self.dealt = recovery.Told(recovery.Round.of(t, plain["among"]), list(known), publics, seeds, thresholds, b"")
        return True

    def head(self, site: str) -> dict[str, Any]:
        return super().head(site) | self._shares(site)

    def _shares(self, site: str) -> dict[str, Any]:
        own = self.boxes[site]
        return {"among": list(self.dealt.here.among), "dealers": list(own), "boxes": list(own.values())}

    @property
    def _fewest(self) -> int:
        return max(self.dealt.thresholds.values())

    def gather(self, c: Coordinator, alg: Star[Any, Any], t: int, questions: Mapping[str, Letter]) -> dict[str, Letter]:
        """The answers of enough sites for their shares to suffice; after a restart, of the survivors named before."""
        if self.survivors is not None:
            return c.ask({site: questions[site] for site in self.survivors})
        return c.answers(alg, t, questions, self._fewest)

    def _too_much(self, c: Coordinator, sites: Sequence[str], count: int) -> Words:
        told = self.dealt._replace(broadcast=self.broadcast)
        self.survivors = sorted(sites)
        self._write()
        head = {"what": "unmask", "cohort": sorted(told.cohort), "survivors": sorted(sites)}
        questions = {site: Letter("query", c.job.digest, self.t, 0, head | self._shares(site)) for site in sites}
        answers = c.answers(c.star, self.t, questions, self._fewest)
        shares = {
            site: {
                name: _bytes(site, share) for name, share in zip(a.words("of_sites"), a.words("shares"), strict=True)
            }
            for site, a in answers.items()
        }
        return recovery.undo(told, list(sites), shares, count)


def _bytes(site: str, word: str) -> bytes:
    try:
        return bytes.fromhex(word)
    except ValueError as e:
        raise RunError(f"{site}: {word!r:.20} are no bytes") from e
