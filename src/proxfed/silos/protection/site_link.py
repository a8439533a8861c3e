"""A site's protection of its messages in one run: seals for neighbours, masks and noise for the server.

Refusals are in policy.py; the site's guard records what has left (history.py).
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from math import floor, isfinite, log10
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.compatibility import keeps_a_state
from proxfed.engine.messages import dense, leaves, rebuild
from proxfed.engine.noise import epsilon, privatise
from proxfed.harness.protection import Privacy
from proxfed.silos.protection import narrow_words, policy, recovery
from proxfed.silos.protection.guard import Link, Refused, Shares, Upload
from proxfed.silos.protection.keyring import Keyring, fingerprint
from proxfed.silos.protection.masks import Words, hide_wide, pads, stream, to_words
from proxfed.silos.protection.privacy import gaussian, noises
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Head as Headers
from proxfed.silos.wire.message import Letter
from proxfed.types import Message

if TYPE_CHECKING:
    from proxfed.silos.protection.site_guard import SiteGuard

_log = logging.getLogger("proxfed.silos")


class Sum(NamedTuple):
    """The sum to which a masked message belongs."""

    kind: str
    """'round' or 'query'."""
    t: int
    cohort: list[str]
    broadcast: bytes
    """The coordinator's message to all its sites."""
    shares: Shares | None = None
    grain: Any = None

    @property
    def asked(self) -> str:
        return hashlib.sha256(self.broadcast).hexdigest()[:32]


def _digest(*tensors: Tensor) -> str:
    return hashlib.sha256(b"".join(x.contiguous().numpy().tobytes() for x in tensors)).hexdigest()[:32]


class SiteLink(Link):
    """In one run."""

    sealed = True

    def __init__(self, guard: SiteGuard, job: Job, name: str) -> None:
        self.guard, self.job, self.name = guard, job, name
        self.protection = job.protection
        self.without_key = [site for site in job.sites if not job.introductions.get(site)]
        if self.without_key and self.protection.secure_aggregation:
            raise Refused(f"{', '.join(self.without_key)} came without a key, and secure_aggregation needs one of each")
        said = {site: bytes.fromhex(job.introductions[site]) for site in job.sites if site not in self.without_key}
        self.keyring = Keyring.of(guard.key, name, job.digest, said)
        self._known_partners()

    def _known_partners(self) -> None:
        """Check the partners' keys: the pinned one, or else the first one seen (trust on first use)."""
        seen = self.guard.history.keys
        for partner, public in self.keyring.partners.items():
            shown, pinned = fingerprint(public), self.guard.site.partners.get(partner)
            if pinned is not None and shown != pinned:
                raise Refused(f"{partner} came with the key {shown}, and partners.{partner} = {pinned!r}")
            if pinned is None and seen.get(partner, shown) != shown:
                raise Refused(
                    f"{partner} came with the key {shown}, and before with {seen[partner]}; if that is "
                    f"right, write it under [partners] of site.toml"
                )
            if pinned is None and partner not in seen:
                self.guard.history.note("", f"first key of {partner}", run=self.job.digest, partner=partner, key=shown)
                _log.warning("%s has the key %s, which is not under [partners] of site.toml", partner, shown)

    # ---- to neighbours -------------------------------------------------------------------------------------------

    def seal(self, to: str, t: int, k: int, body: bytes) -> bytes:
        return self.keyring.seal(to, t, k, body)

    def unseal(self, sender: str, t: int, k: int, body: bytes) -> bytes:
        return self.keyring.unseal(sender, t, k, body)

    # ---- to the server -------------------------------------------------------------------------------------------

    def noisy(self, up: Message, about: Upload) -> Message:
        privacy = self.protection.privacy
        if privacy is None:
            return up
        self._spend(privacy, len(about.ids))
        return rebuild(up, iter(self._noisy([dense(leaf).detach() for leaf in leaves(up)], about, privacy)))

    def upload(self, up: Message, about: Upload) -> Message:
        """Weighted and masked, if the job requires it."""
        if not self.protection.secure_aggregation:
            return up
        return rebuild(up, iter(self._hidden([dense(leaf).detach() for leaf in leaves(up)], about)))

    def _hidden(self, values: list[Tensor], about: Upload) -> list[Tensor]:
        """As wide words, or as narrow ones, without the public part."""
        p = torch.tensor([self.job.weights[i] for i in about.ids], dtype=torch.float64)
        broadcast = narrow_words.bound(about.broadcast, about.grain)
        of = Sum("round", about.t, about.cohort, broadcast, about.shares, about.grain)
        bits = self.protection.word_bits
        if bits == 64:
            return self._masked(values, p, of)
        part = about.part
        if not keeps_a_state(part.algorithm, part.problem.f.d):
            known = part.clients.without_rows(part.algorithm, (), about.down, about.t, about.ids)
            values = [x - dense(r) for x, r in zip(values, leaves(known), strict=True)]
        words = self._masked(values, p, of)
        if about.grain is None:
            return words
        return [narrow_words.to_bytes(row.numpy().view(np.uint64).ravel(), bits) for row in words]

    # ---- masks that can be undone ----------------------------------------------------------------------------------

    def _round(self, t: int, among: Iterable[str]) -> recovery.Round:
        here = recovery.Round.of(t, among)
        good = {*here.among} <= {*self.job.sites} and len({*here.among}) == len(here.among)
        if not (self.protection.recovery and good and self.name in here.among):
            raise Refused("the job has no protection.recovery, or shares are asked for of others than its sites")
        policy.check_sum(self.guard.site, here.among)
        return here

    def _threshold(self, here: recovery.Round) -> int:
        n = len(here.among)
        return min(n, max(self.guard.site.require.recovery, recovery.majority(n)))

    def _boxes(self, here: recovery.Round, shares: Shares, cohort: Iterable[str]) -> dict[str, recovery.Box]:
        """The boxes of a whole cohort, including its own."""
        own = recovery.deal(self.keyring, here, self._threshold(here)).own
        others = [name for name in cohort if name != self.name]
        missing = [name for name in others if name not in shares.sealed]
        if missing:
            raise Refused(f"round {here.t}: the shares of {', '.join(missing)} are missing")
        return {name: recovery.unbox(self.keyring, here, name, shares.sealed[name]) for name in others} | {
            self.name: own
        }

    def deal(self, question: Letter) -> tuple[Headers, bytes]:
        here = self._round(question.round, question.words("among"))
        dealt, to = recovery.deal(self.keyring, here, self._threshold(here)), list(here.among)
        boxes = [dealt.sealed.get(name, b"").hex() for name in to]
        known = {"public": dealt.own.public.hex(), "commitment": dealt.commitment.hex()}
        return {"to": to, "boxes": boxes, "threshold": self._threshold(here), **known}, b""

    def unmask(self, question: Letter) -> tuple[Headers, bytes]:
        t, shares = question.round, Shares.of(question)
        if shares is None:
            raise Refused(f"round {t}: the shares of the others are missing")
        here, cohort = self._round(t, shares.among), sorted(question.words("cohort"))
        survivors = sorted(question.words("survivors"))
        run = self.job.digest
        lines = self.guard.history.sums.get((run, "round", t), [])
        if not any((line["cohort"], line.get("among")) == (cohort, list(here.among)) for line in lines):
            raise Refused(f"round {t} was not answered here for the sum of these sites")
        policy.check_survivors(self.guard.site, t, cohort, survivors, self.guard.history.survivors.get((run, t)))
        told = recovery.tell(here, survivors, self._boxes(here, shares, cohort))
        self.guard.history.beside |= {"survivors": survivors, "cohort": cohort}
        return {"of_sites": list(told), "shares": [share.hex() for share in told.values()]}, b""

    def told(self, rows: tuple[Tensor, ...], p: Tensor, question: Letter) -> tuple[Tensor, ...]:
        """Measures of the training rows: sums over all sites, if messages of rounds are masked sums."""
        if not self.protection.secure_aggregation or not rows:
            return rows
        flat = [row.reshape(len(row), -1) for row in rows]
        # With the coordinator's life: one that resumes from an earlier round may ask the same of another state.
        asked = f"{question.digest} {question.life}".encode()
        masked = self._masked(flat, p, Sum("query", question.round, list(self.job.sites), asked))
        return tuple(word.view(1, *row.shape[1:]) for word, row in zip(masked, rows, strict=True))

    def sums(self, values: Tensor, question: Letter) -> Tensor:
        """Under masks, in two words per number; they follow from the question and the rows alone, so that a repeated
        question gets the same bytes, even after a restart of the coordinator."""
        if not self.protection.secure_aggregation:
            return values
        of, site = Sum("query", question.round, list(self.job.sites), question.digest.encode()), self.guard.site
        content, bits = _digest(values), self.protection.fraction_bits
        policy.check_sum(site, of.cohort)
        for line in self.guard.history.sums.get((self.job.digest, of.kind, of.t), ()):
            if line["asked"] == of.asked:
                policy.check_same_content(site, of.t, line["content"] == content)
        self.guard.history.beside |= {"cohort": sorted(of.cohort), "asked": of.asked, "content": content}
        words = hide_wide(values.numpy(), self.keyring, of.cohort, of.t, of.broadcast, bits)
        return torch.from_numpy(words.view(np.int64))

    def tested(self, values: Mapping[str, float], rows: int) -> tuple[dict[str, float], int]:
        """Rounded to hide single rows; nothing if there are too few rows."""
        site = self.guard.site
        policy.check_test_rows(site, rows)
        told = {name: coarse(value, rows) for name, value in values.items()}
        return told, rows if site.allow.counts else 0

    # ---- noise ---------------------------------------------------------------------------------------------------

    def _spend(self, privacy: Privacy, messages: int) -> None:
        """Refused if epsilon would exceed the site's budget with so many more client messages."""
        budget = self.guard.site.require.privacy
        if budget is not None:
            releases = noises(self.guard.history.noisy.values()) + Counter({privacy.noise: messages})
            policy.check_epsilon(self.guard.site, epsilon(releases, budget.delta))
        self.guard.history.beside |= {"noise": privacy.noise, "delta": privacy.delta, "messages": messages}

    def normal(self, secret: np.ndarray, question: Letter, noise: float) -> np.ndarray:
        budget = self.guard.site.require.privacy
        self._spend(Privacy(clip=1.0, noise=noise, delta=1e-5 if budget is None else budget.delta), 1)
        place = [self.job.digest, question.digest, _digest(torch.from_numpy(secret))]
        key = self.guard.key.secret(b"noise", *(word.encode() for word in place))
        return gaussian(key, secret.size).reshape(secret.shape)

    def _noisy(self, values: list[Tensor], about: Upload, privacy: Privacy) -> list[Tensor]:
        """Client by client."""
        part = about.part
        no_rows = part.clients.without_rows(
            part.algorithm, part.of(about.state, about.ids), about.down, about.t, about.ids
        )
        r, rows = [dense(leaf) for leaf in leaves(no_rows)], []
        for k, i in enumerate(about.ids):
            u = [value[k : k + 1] for value in values]
            place = [self.job.digest, str(about.t), str(i), _digest(*u)]
            secret = self.guard.key.secret(b"noise", *(word.encode() for word in place))
            g = gaussian(secret, sum(x.numel() for x in u))[None]
            rows.append(privatise(u, [x[k : k + 1] for x in r], privacy, g))
        return [torch.cat(column) for column in zip(*rows, strict=True)]

    # ---- masks ---------------------------------------------------------------------------------------------------

    def _same_cohort(self, of: Sum) -> None:
        for (run, kind, t), lines in self.guard.history.sums.items():
            if (run, kind) == (self.job.digest, "round") and t != of.t:
                policy.check_same_cohort(self.guard.site, lines[-1]["cohort"], sorted(of.cohort))
                return  # all of them are equal

    def _masked(self, values: list[Tensor], p: Tensor, of: Sum) -> list[Tensor]:
        """One masked row for all clients of the site: sum_i p_i m_i."""
        weighted, site = [p @ value.double() for value in values], self.guard.site
        if of.kind == "round" and self.protection.word_bits < 64:
            weighted[-1] = torch.from_numpy(narrow_words.with_largest(torch.cat(weighted).numpy()))[
                -len(weighted[-1]) - 1 :
            ]
        content = _digest(torch.cat(weighted))
        policy.check_sum(site, of.cohort)
        if of.kind == "round" and site.require.same_cohort:
            self._same_cohort(of)
        for line in self.guard.history.sums.get((self.job.digest, of.kind, of.t), ()):
            if of.kind == "round":
                policy.check_same_sum(site, of.t, line["cohort"], sorted(of.cohort))
            if line["asked"] == of.asked:
                policy.check_same_content(site, of.t, line["content"] == content)
        self.guard.history.beside |= {"cohort": sorted(of.cohort), "asked": of.asked, "content": content}
        words = self._words(torch.cat(weighted).numpy(), of, content) + self._pads(of, len(torch.cat(weighted)))
        return [row[None] for row in torch.from_numpy(words.view(np.int64)).split([len(w) for w in weighted])]

    def _words(self, numbers: np.ndarray, of: Sum, content: str) -> Words:
        """In fixed point; with a grain, rounded at random by a secret of this site."""
        n = len(of.cohort)
        if of.grain is None:
            return to_words(numbers, n, self.protection.fraction_bits)
        about = (self.job.digest, str(of.t), of.asked, content)
        u = stream(self.guard.key.secret(b"rounding", *(word.encode() for word in about)), len(numbers))
        step = 2.0 ** narrow_words.read_exponent(of.grain)
        bits = self.protection.word_bits
        return narrow_words.quantise(numbers, step, n, bits, (u >> np.uint64(11)).astype(np.float64) * 2.0**-53).view(
            np.uint64
        )

    def _pads(self, of: Sum, count: int) -> Words:
        """Pads that cancel over the whole cohort; in a round with recovery, those that can be undone."""
        if of.kind != "round" or not self.protection.recovery:
            return pads(self.keyring, of.cohort, of.t, of.broadcast, count)
        if of.shares is None:
            raise Refused(f"round {of.t}: the shares of the others are missing")
        here = self._round(of.t, of.shares.among)
        for line in self.guard.history.sums.get((self.job.digest, "round", of.t), ()):
            if line.get("among") != list(here.among):
                raise Refused(f"round {of.t} was answered before, with shares between other sites")
        self.guard.history.beside |= {"among": list(here.among)}
        if self.name not in of.cohort or len({*of.cohort}) != len(of.cohort) or not {*of.cohort} <= {*here.among}:
            raise Refused(f"round {of.t}: its cohort is not among those who have dealt shares")
        publics = {name: box.public for name, box in self._boxes(here, of.shares, of.cohort).items()}
        return recovery.pads(self.keyring, here, of.cohort, publics, of.broadcast, count)


ROWS_OF_A_STEP = 5
"""Test rows to which measures are rounded."""


def coarse(value: float, rows: int) -> float:
    """A measure on so many rows, rounded to two digits, or to the effect of five rows."""
    if not isfinite(value):
        return value
    step = max(0.01, ROWS_OF_A_STEP / rows) * 10.0 ** max(0, floor(log10(abs(value) or 1)))
    return round(round(value / step) * step, 12)
