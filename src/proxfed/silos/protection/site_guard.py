"""What stands between a holder and the world, as its site.toml says: what is refused, written down, sealed and hidden.

Every decision is in policy.py, every line in audit.py; here they are asked in their order. The audit file is also the
memory of what has left before: bytes of a job, sums that were already given, epsilon that was already spent.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.compatibility import keeps_a_state
from proxfed.engine.messages import dense, leaves, rebuild
from proxfed.engine.noise import epsilon, privatise
from proxfed.errors import RunError
from proxfed.files import replace
from proxfed.fit.model_file import Signature
from proxfed.harness.protection import Privacy
from proxfed.silos.protection import narrow_words, policy, recovery
from proxfed.silos.protection.audit import Line
from proxfed.silos.protection.folds import folds
from proxfed.silos.protection.guard import Asked, Guard, Link, Parts, Refused, Shares, Upload, Wanted
from proxfed.silos.protection.keyring import Keyring, SiteKey, fingerprint
from proxfed.silos.protection.ledger import Head, Ledger
from proxfed.silos.protection.masks import Words, hide_wide, pads, stream, to_words
from proxfed.silos.protection.privacy import gaussian, noises
from proxfed.silos.protection.signatures import sign_model
from proxfed.silos.protection.trajectory import Trajectory
from proxfed.silos.protection.versions import digests, too_near
from proxfed.silos.protection.witness import Signed, countersign, publics, sign
from proxfed.silos.site.config import Site
from proxfed.silos.site.holder import Holder
from proxfed.silos.site.rows import Rows
from proxfed.silos.site.table_rows import TableRows
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Head as Headers
from proxfed.silos.wire.message import Letter
from proxfed.tables.raw import find_files
from proxfed.tables.schema import read_schema
from proxfed.types import Message

_log = logging.getLogger("proxfed.silos")

WITHOUT_ROWS = ("there", "shares", "unmask")
"""Questions whose answers do not depend on rows."""
COUNTS = "sizes"
"""The question for the number of rows."""


PATHS = 8
"""Families of jobs whose models are remembered."""


class SiteGuard(Guard):
    """Of one site, for all its runs."""

    def __init__(self, site: Site) -> None:
        self.site, self.audit = site, site.audit
        self.code, self.fewest = site.allow.code, site.limits.rows
        trail = self.audit.read()
        if trail.broken:
            raise Refused(f"nothing is answered: {self.audit.path} is not as it was written: {trail.broken}")
        try:
            self._head = self.ledger.check([*trail.lines])
        except RunError as e:
            raise Refused(f"nothing is answered: {e}") from e
        self.beside: Line = {}
        """What the next line of the audit file says more."""
        self.bytes: Counter[str] = Counter()
        """That left, by job."""
        self.answers: Counter[str] = Counter()
        """That depend on rows, by job."""
        self.heads: dict[str, Head] = {}
        """How far partners' audit files were, as far as jobs have said."""
        self.circles: dict[str, Circle] = {}
        """Between whom the jobs with masks were, by job."""
        self._table: tuple[Rows, np.ndarray] | None = None
        """The digests of the rows."""
        self._paths: dict[str, Trajectory] = {}
        """Of the last families."""
        self.keys: dict[str, str] = {}
        """Fingerprints that were seen, by partner."""
        self.sums: dict[tuple[str, str, int], list[Line]] = {}
        """Masked messages that left, by job, kind and round."""
        self.survivors: dict[tuple[str, int], list[str]] = {}
        """For whose sum shares were told, by job and round."""
        self.noisy: dict[str, Line] = {}
        """Lines of noisy messages that left, by their digest: the same bytes again give nothing away."""
        for line in trail.lines:
            self._remember(line)

    def _remember(self, line: Line) -> None:
        run = line.get("run", "")
        self.bytes[run] += line.get("bytes", 0)
        self.answers[run] += line.get("answers", 1) * _depends_on_rows(line.get("what", ""))
        self.heads |= {partner: Signed.read(said).head for partner, said in line.get("heads", {}).items()}
        if "circle" in line:
            self.circles[run] = Circle(frozenset(line["circle"]), line["weights"])
        if "partner" in line:
            self.keys[line["partner"]] = line["key"]
        if "survivors" in line:
            self.survivors[run, line["t"]] = line["survivors"]
        elif "cohort" in line:
            self.sums.setdefault((run, line["what"].partition(" ")[0], line["t"]), []).append(line)
        if "noise" in line:
            self.noisy[line["sha256"]] = line

    @cached_property
    def key(self) -> SiteKey:
        return self.site.key

    @cached_property
    def ledger(self) -> Ledger:
        return self.key.ledger(self.site.path(self.site.files.key))

    def introduction(self) -> bytes:
        return self.key.introduction()

    def head(self) -> str:
        return str(sign(self.key, self.site.name, self._head))

    def countersign(self, job: Job) -> str:
        return countersign(self.key, job.family, job.audits)

    # ---- what is refused -----------------------------------------------------------------------------------------

    def gate(self, asked: Asked) -> None:
        site, job = self.site, asked.job
        policy.check_rows(site, min(asked.rows, default=0))
        if asked.kind == "summary":
            policy.check_preparation(site, "summary")
        if asked.kind == "summary" or asked.what == COUNTS:
            policy.check_counts(site)
        if asked.kind == "query" and asked.what not in WITHOUT_ROWS:
            for measure in asked.parts or (asked.what,):
                policy.check_measure(site, measure)
                policy.check_noiseless(site, measure, None if job is None else job.protection.privacy)
        if asked.kind == "job" and job is not None:
            policy.check_job(site, job)
            policy.check_fit(site, job)
            self._check_circle(job)
            self._check_heads(job)
        if _depends_on_rows(asked.title):
            run = "" if job is None else job.digest
            policy.check_answers(site, self.answers[run], self.answers.total(), asked.answers)
        if asked.kind == "round":
            policy.check_rounds(site, asked.round)

    def _check_circle(self, job: Job) -> None:
        """Sums over nearly the same sites, or with other weights, differ by a message."""
        if not job.protection.secure_aggregation or job.protection.privacy is not None:
            return
        now = Circle.of(job)
        for before in self.circles.values():
            policy.check_other_circle(self.site, before.sites ^ now.sites, before.weights == now.weights)
        self.beside |= {"circle": sorted(now.sites), "weights": now.weights}

    def _check_heads(self, job: Job) -> None:
        """An audit file only grows: a partner's that was cut is noticed here, and its last digest noted."""
        told = {site: Signed.read(said) for site, said in job.audits.items() if site in job.sites}
        keys = publics(job.introductions)
        for site, signed in told.items():
            policy.check_signed(site, signed.by(site, keys.get(site, b"")))
            before = self._head if site == self.site.name else self.heads.get(site, Head())
            policy.check_head(self.site, site, before, signed.head)
        self.beside |= {"heads": {site: str(signed) for site, signed in told.items() if site != self.site.name}}

    def begins(self, job: Job | None, rows: Rows) -> None:
        """With a table that was used before, or with one that differs from all of those in enough rows."""
        if job is not None and job.protection.privacy is not None:
            return
        if self._table is None or self._table[0] is not rows:  # jobs of a family have the same
            self._table = rows, digests(rows.lines(), self.key.secret(b"rows"))
        table = self._table[1]
        if too_near(self.site.path(self.site.files.state) / "tables", table, self.site.limits.change):
            _log.warning("%s: its rows differ from those of an earlier job in fewer than limits.change", self.site.name)
            raise Refused("it begins nothing new now; the log of the site says why")

    def follow(self, job: Job, start: Tensor, sent: Iterable[Tensor]) -> None:
        if job.protection.privacy is not None:
            return  # it holds at whatever model
        known = job.family in self._paths
        if not known:
            self._paths = dict([*self._paths.items()][1 - PATHS :]) | {job.family: Trajectory(start)}
        path = self._paths[job.family]
        goes_on = not known and self.answers[job.digest] > 0  # after a restart: where it was is not known any more
        for x in sent:
            policy.check_model(self.site, [x])
            policy.check_step(self.site, 0.0 if goes_on else path.far(x))
            path.add(x)

    def folds(self, rows: Rows, strata: np.ndarray, count: int) -> np.ndarray:
        """Keyed by the site's secret. Their number and their units are kept: others would overlap in a few rows."""
        kept = self.site.path(self.site.files.state) / "folds"
        if kept.exists():
            before, _, units = kept.read_text().partition("\n")
            policy.check_same_folds(self.site, int(before), count, units.strip() == rows.divided_by)
        else:
            kept.parent.mkdir(parents=True, exist_ok=True)
            replace(kept, f"{count}\n{rows.divided_by}\n".encode())
        return folds(rows.lines(), strata, count, self.key.secret(b"folds"), rows.units)

    def divides(self, parts: Parts) -> None:
        total = sum(parts.rows)
        for rows in (total, *parts.rows, *(total - rows for rows in parts.rows)):
            if rows:  # of no rows nothing is told
                policy.check_part(self.site, rows)

    def tells(self, wanted: Wanted) -> None:
        parts, total = wanted.parts, sum(wanted.parts.rows)
        if wanted.what == "hessian":
            left = [total - rows for rows in parts.rows if rows < total]
            policy.check_products(self.site, min(total, *left, total), wanted.d)
        if wanted.what == "gram":
            policy.check_products(self.site, min(rows for rows in parts.rows if rows), wanted.d)
        if wanted.factors is not None:
            policy.check_factors(self.site, wanted.factors)
        if wanted.factors is not None or (wanted.what == "count" and not wanted.masked):
            policy.check_cells(self.site, parts.cells)

    def judges(self) -> None:
        policy.check_judged(self.site)

    def signs(self, content: bytes) -> Signature:
        return sign_model(self.key, content)

    # ---- what is written down ------------------------------------------------------------------------------------

    def leaving(self, asked: Asked, to: str, body: bytes) -> None:
        run = asked.job.digest if asked.job is not None else ""
        if run:
            policy.check_bytes(self.site, self.bytes[run], len(body))
        more = {"answers": asked.answers} if asked.answers > 1 else {}
        self.note(to, asked.title, body, run=run, t=asked.round, **more, **self.beside)
        self.beside = {}

    def note(self, to: str, what: str, body: bytes | None = None, **more: Any) -> None:
        line = self.audit.write(to, what, body, **more)
        follows = line["line"] == self._head.lines + 1  # else a write failed halfway: the line is there all the same
        self._head = self._head.then(line) if follows else self.ledger.check([*self.audit.read().lines])
        self.ledger.write(self._head)
        self._remember(line)

    def declined(self, question: str, run: str, body: bytes) -> None:
        self.beside = {}
        self.note("coordinator", question, body, run=run)

    def join(self, job: Job, site: str) -> Link:
        return SiteLink(self, job, site)


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
        """Pinned keys must be those; of others, the first one that was seen."""
        seen = self.guard.keys
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
                self.guard.note("", f"first key of {partner}", run=self.job.digest, partner=partner, key=shown)
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
        """Weighed and masked, if the job says so."""
        if not self.protection.secure_aggregation:
            return up
        return rebuild(up, iter(self._hidden([dense(leaf).detach() for leaf in leaves(up)], about)))

    def _hidden(self, values: list[Tensor], about: Upload) -> list[Tensor]:
        """As wide words, or as narrow ones, whose rows do not hold what all know."""
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
        """Of all of a cohort, its own included."""
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
        lines = self.guard.sums.get((run, "round", t), [])
        if not any((line["cohort"], line.get("among")) == (cohort, list(here.among)) for line in lines):
            raise Refused(f"round {t} was not answered here for the sum of these sites")
        policy.check_survivors(self.guard.site, t, cohort, survivors, self.guard.survivors.get((run, t)))
        told = recovery.tell(here, survivors, self._boxes(here, shares, cohort))
        self.guard.beside |= {"survivors": survivors, "cohort": cohort}
        return {"of_sites": list(told), "shares": [share.hex() for share in told.values()]}, b""

    def told(self, rows: tuple[Tensor, ...], p: Tensor, question: Letter) -> tuple[Tensor, ...]:
        """Measures of the training rows: sums over all sites, if messages of rounds are told as sums."""
        if not self.protection.secure_aggregation or not rows:
            return rows
        flat = [row.reshape(len(row), -1) for row in rows]
        # With the coordinator's life: one that goes on from an earlier round may ask the same of another state.
        asked = f"{question.digest} {question.life}".encode()
        masked = self._masked(flat, p, Sum("query", question.round, list(self.job.sites), asked))
        return tuple(word.view(1, *row.shape[1:]) for word, row in zip(masked, rows, strict=True))

    def sums(self, values: Tensor, question: Letter) -> Tensor:
        """Under masks, in two words for each number; they follow from the question and the rows alone, so that the same
        question gets the same bytes, whichever life of the coordinator asks."""
        if not self.protection.secure_aggregation:
            return values
        of, site = Sum("query", question.round, list(self.job.sites), question.digest.encode()), self.guard.site
        content, bits = _digest(values), self.protection.fraction_bits
        policy.check_sum(site, of.cohort)
        for line in self.guard.sums.get((self.job.digest, of.kind, of.t), ()):
            if line["asked"] == of.asked:
                policy.check_same_content(site, of.t, line["content"] == content)
        self.guard.beside |= {"cohort": sorted(of.cohort), "asked": of.asked, "content": content}
        words = hide_wide(values.numpy(), self.keyring, of.cohort, of.t, of.broadcast, bits)
        return torch.from_numpy(words.view(np.int64))

    def tested(self, values: Mapping[str, float], rows: int) -> tuple[dict[str, float], int]:
        """Rounded so that single rows do not show; of too few rows nothing."""
        site = self.guard.site
        policy.check_test_rows(site, rows)
        told = {name: coarse(value, rows) for name, value in values.items()}
        return told, rows if site.allow.counts else 0

    # ---- noise ---------------------------------------------------------------------------------------------------

    def _spend(self, privacy: Privacy, messages: int) -> None:
        """With the messages of so many clients that are to leave, epsilon must stay within the site's budget."""
        budget = self.guard.site.require.privacy
        if budget is not None:
            releases = noises(self.guard.noisy.values()) + Counter({privacy.noise: messages})
            policy.check_epsilon(self.guard.site, epsilon(releases, budget.delta))
        self.guard.beside |= {"noise": privacy.noise, "delta": privacy.delta, "messages": messages}

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
        for (run, kind, t), lines in self.guard.sums.items():
            if (run, kind) == (self.job.digest, "round") and t != of.t:
                policy.check_same_cohort(self.guard.site, lines[-1]["cohort"], sorted(of.cohort))
                return  # all of them are the same

    def _masked(self, values: list[Tensor], p: Tensor, of: Sum) -> list[Tensor]:
        """One row for all clients of the site, under its pads: sum_i p_i m_i."""
        weighted, site = [p @ value.double() for value in values], self.guard.site
        if of.kind == "round" and self.protection.word_bits < 64:
            weighted[-1] = torch.from_numpy(narrow_words.with_largest(torch.cat(weighted).numpy()))[
                -len(weighted[-1]) - 1 :
            ]
        content = _digest(torch.cat(weighted))
        policy.check_sum(site, of.cohort)
        if of.kind == "round" and site.require.same_cohort:
            self._same_cohort(of)
        for line in self.guard.sums.get((self.job.digest, of.kind, of.t), ()):
            if of.kind == "round":
                policy.check_same_sum(site, of.t, line["cohort"], sorted(of.cohort))
            if line["asked"] == of.asked:
                policy.check_same_content(site, of.t, line["content"] == content)
        self.guard.beside |= {"cohort": sorted(of.cohort), "asked": of.asked, "content": content}
        words = self._words(torch.cat(weighted).numpy(), of, content) + self._pads(of, len(torch.cat(weighted)))
        return [row[None] for row in torch.from_numpy(words.view(np.int64)).split([len(w) for w in weighted])]

    def _words(self, numbers: np.ndarray, of: Sum, content: str) -> Words:
        """In fixed point; with a grain, rounded at random by what only this site knows."""
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
        """Which only together with those of the whole cohort are zero; of a round with recovery, that can be undone."""
        if of.kind != "round" or not self.protection.recovery:
            return pads(self.keyring, of.cohort, of.t, of.broadcast, count)
        if of.shares is None:
            raise Refused(f"round {of.t}: the shares of the others are missing")
        here = self._round(of.t, of.shares.among)
        for line in self.guard.sums.get((self.job.digest, "round", of.t), ()):
            if line.get("among") != list(here.among):
                raise Refused(f"round {of.t} was answered before, with shares between other sites")
        self.guard.beside |= {"among": list(here.among)}
        if self.name not in of.cohort or len({*of.cohort}) != len(of.cohort) or not {*of.cohort} <= {*here.among}:
            raise Refused(f"round {of.t}: its cohort is not among those who have dealt shares")
        publics = {name: box.public for name, box in self._boxes(here, of.shares, of.cohort).items()}
        return recovery.pads(self.keyring, here, of.cohort, publics, of.broadcast, count)


def _depends_on_rows(what: str) -> bool:
    """An answer of this kind, by the first words of its line in the audit file, tells something of rows.

    So does one that failed while rows were worked on. Refusals come before.
    """
    kind, _, rest = what.partition(" ")
    return kind in ("round", "query", "summary") and rest not in (*WITHOUT_ROWS, "refused", "late", "gone", "unknown")


ROWS_OF_A_STEP = 5
"""Test rows to which measures are rounded."""


def coarse(value: float, rows: int) -> float:
    """A measure on so many rows, rounded to two digits, or to what five of the rows make."""
    if not isfinite(value):
        return value
    step = max(0.01, ROWS_OF_A_STEP / rows) * 10.0 ** max(0, floor(log10(abs(value) or 1)))
    return round(round(value / step) * step, 12)


class Circle(NamedTuple):
    """The sites of a job with masks, and the digest of what each client weighs."""

    sites: frozenset[str]
    weights: str

    @classmethod
    def of(cls, job: Job) -> Circle:
        each = sorted(zip(job.sites, job.clients, _by_site(job), strict=True))
        return cls(frozenset(job.sites), hashlib.sha256(repr(each).encode()).hexdigest()[:32])


def _by_site(job: Job) -> list[tuple[float, ...]]:
    return [tuple(job.weights[i] for i in job.who.here(site)) for site in job.sites]


class Sum(NamedTuple):
    """What a masked message is a part of."""

    kind: str
    """'round' or 'query'."""
    t: int
    cohort: list[str]
    broadcast: bytes
    """What the coordinator sent to all of them."""
    shares: Shares | None = None
    grain: Any = None

    @property
    def asked(self) -> str:
        return hashlib.sha256(self.broadcast).hexdigest()[:32]


def _digest(*tensors: Tensor) -> str:
    return hashlib.sha256(b"".join(x.contiguous().numpy().tobytes() for x in tensors)).hexdigest()[:32]


def holder(site: Site) -> Holder:
    """The holder of a site, as its site.toml says; rows are read when they are first asked for."""
    return Holder(site.name, SiteFiles(site), site.path(site.files.state), SiteGuard(site))


@dataclass(frozen=True)
class SiteFiles:
    """The rows of a site, from where site.toml says, and from nowhere else."""

    site: Site

    def read(self) -> Rows:
        data = self.site.data
        if data.schema_file:
            return TableRows.read_table(self.site.path(data.schema_file), self.site.name, data.organisation)
        test = None if data.test is None else self.site.path(data.test)
        more = {"classes": data.classes, "test": test, "held_out": data.held_out}
        return Rows.read(self.site.path(data.path), data.label, data.client, **more)

    def stamp(self) -> object:
        return [(str(path), found.st_ino, found.st_mtime_ns, found.st_size) for path in self._files()
                if (found := path.stat())]  # fmt: skip

    def _files(self) -> list[Path]:
        data = self.site.data
        if not data.schema_file:
            return [self.site.path(name) for name in (data.path, data.test) if name]
        schema = self.site.path(data.schema_file)
        source = read_schema(schema).source
        joins = [source.model_copy(update={"files": join.file}) for join in source.join]
        return [schema, *(path for of in (source, *joins) for path in find_files(of, schema.parent).values())]
