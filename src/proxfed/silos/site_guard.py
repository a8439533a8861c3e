"""What stands between a holder and the world, as its site.toml says: what is refused, written down, sealed and hidden.

Every decision is in policy.py, every line in audit.py; here they are asked in their order. The audit file is also the
memory of what has left before: bytes of a job, sums that were already given, epsilon that was already spent.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.halves import Oracle, Work
from proxfed.engine.messages import dense, leaves, rebuild
from proxfed.harness.protection import Privacy
from proxfed.silos import policy
from proxfed.silos.audit import Line
from proxfed.silos.guard import Asked, Guard, Link, Refused, Upload
from proxfed.silos.holder import Holder
from proxfed.silos.job import Job
from proxfed.silos.keyring import Keyring, SiteKey, fingerprint
from proxfed.silos.masks import hide
from proxfed.silos.message import Letter
from proxfed.silos.privacy import NoRows, epsilon, privatise
from proxfed.silos.rows import Rows
from proxfed.silos.site import Site
from proxfed.silos.table_rows import TableRows
from proxfed.types import Message

_log = logging.getLogger("proxfed.silos")

COUNTS = "sizes"
"""The question for the number of rows."""


class SiteGuard(Guard):
    """Of one site, for all its runs."""

    def __init__(self, site: Site) -> None:
        self.site, self.audit = site, site.audit
        self.code = site.allow.code
        trail = self.audit.read()
        if trail.broken:
            raise Refused(f"nothing is answered: {self.audit.path} is not as it was written: {trail.broken}")
        self.beside: Line = {}
        """What the next line of the audit file says more."""
        self.bytes: Counter[str] = Counter()
        """That left, by job."""
        self.keys: dict[str, str] = {}
        """Fingerprints that were seen, by partner."""
        self.sums: dict[tuple[str, str, int], list[Line]] = {}
        """Masked messages that left, by job, kind and round."""
        self.noises: dict[str, float] = {}
        """Of noisy messages that left, by their digest: the same bytes again give nothing away."""
        for line in trail.lines:
            self._remember(line)

    def _remember(self, line: Line) -> None:
        run = line.get("run", "")
        self.bytes[run] += line.get("bytes", 0)
        if "partner" in line:
            self.keys[line["partner"]] = line["key"]
        if "cohort" in line:
            self.sums.setdefault((run, line["what"].partition(" ")[0], line["t"]), []).append(line)
        if "noise" in line:
            self.noises[line["sha256"]] = line["noise"]

    @cached_property
    def key(self) -> SiteKey:
        return self.site.key

    def introduction(self) -> bytes:
        return self.key.introduction()

    # ---- what is refused -----------------------------------------------------------------------------------------

    def gate(self, asked: Asked) -> None:
        site, job = self.site, asked.job
        policy.check_rows(site, min(asked.rows, default=0))
        if asked.kind == "summary":
            policy.check_preparation(site, "summary")
        if asked.kind == "summary" or asked.what == COUNTS:
            policy.check_counts(site)
        if asked.kind == "query" and asked.what != "there":
            for measure in asked.parts or (asked.what,):
                policy.check_measure(site, measure)
                policy.check_noiseless(site, measure, None if job is None else job.protection.privacy)
        if asked.kind == "job" and job is not None:
            tables = {**job.experiment, "algorithms": [] if job.algorithm is None else [job.algorithm]}
            policy.check_job(site, tables, job.sites)
        if asked.kind == "round":
            policy.check_rounds(site, asked.round)

    # ---- what is written down ------------------------------------------------------------------------------------

    def leaving(self, asked: Asked, to: str, body: bytes) -> None:
        run = asked.job.digest if asked.job is not None else ""
        if run:
            policy.check_bytes(self.site, self.bytes[run], len(body))
        what = f"{asked.kind} {asked.what}".strip()
        self.note(to, what, body, run=run, t=asked.round, **self.beside)
        self.beside = {}

    def note(self, to: str, what: str, body: bytes | None = None, **more: Any) -> None:
        self._remember(self.audit.write(to, what, body, **more))

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

    def upload(self, up: Message, about: Upload) -> Message:
        """Clipped and made noisy, weighed and masked, as far as the job says."""
        privacy, hidden = self.protection.privacy, self.protection.secure_aggregation
        if privacy is None and not hidden:
            return up
        values = [dense(leaf).detach() for leaf in leaves(up)]
        if privacy is not None:
            self._spend(privacy)
            values = self._noisy(values, about, privacy)
        if hidden:
            p = torch.tensor([self.job.weights[i] for i in about.ids], dtype=torch.float64)
            values = self._masked(values, p, Sum("round", about.t, about.cohort, about.broadcast))
        return rebuild(up, iter(values))

    def told(self, rows: tuple[Tensor, ...], p: Tensor, question: Letter) -> tuple[Tensor, ...]:
        """Measures of the training rows: sums over all sites, if messages of rounds are told as sums."""
        if not self.protection.secure_aggregation or not rows:
            return rows
        flat = [row.reshape(len(row), -1) for row in rows]
        # With the coordinator's life: one that goes on from an earlier round may ask the same of another state.
        asked = f"{question.digest} {question.life}".encode()
        masked = self._masked(flat, p, Sum("query", question.round, list(self.job.sites), asked))
        return tuple(word.view(1, *row.shape[1:]) for word, row in zip(masked, rows, strict=True))

    # ---- noise ---------------------------------------------------------------------------------------------------

    def _spend(self, privacy: Privacy) -> None:
        """With the message that is to leave, epsilon must stay within the site's budget."""
        budget = self.guard.site.require.privacy
        if budget is not None:
            releases = Counter([*self.guard.noises.values(), privacy.noise])
            policy.check_epsilon(self.guard.site, epsilon(releases, budget.delta))
        self.guard.beside |= {"noise": privacy.noise, "delta": privacy.delta}

    def _noisy(self, values: list[Tensor], about: Upload, privacy: Privacy) -> list[Tensor]:
        """Client by client."""
        part = about.part
        f = Oracle(NoRows(about.t, about.ids, self.job.seed), Work(), None, part.clients.inside)
        _, no_rows = part.algorithm.client((), about.down, f, part.clients.h)
        r, rows = [dense(leaf) for leaf in leaves(no_rows)], []
        for k, i in enumerate(about.ids):
            u = [value[k : k + 1] for value in values]
            place = [self.job.digest, str(about.t), str(i), _digest(*u)]
            secret = self.guard.key.secret(b"noise", *(word.encode() for word in place))
            rows.append(privatise(u, [x[k : k + 1] for x in r], privacy, secret))
        return [torch.cat(column) for column in zip(*rows, strict=True)]

    # ---- masks ---------------------------------------------------------------------------------------------------

    def _masked(self, values: list[Tensor], p: Tensor, of: Sum) -> list[Tensor]:
        """One row for all clients of the site, under its pads: sum_i p_i m_i."""
        weighted, site = [p @ value.double() for value in values], self.guard.site
        numbers = torch.cat(weighted).numpy()
        content = _digest(torch.cat(weighted))
        policy.check_sum(site, of.cohort)
        for line in self.guard.sums.get((self.job.digest, of.kind, of.t), ()):
            if of.kind == "round":
                policy.check_same_sum(site, of.t, line["cohort"], sorted(of.cohort))
            if line["asked"] == of.asked:
                policy.check_same_content(site, of.t, line["content"] == content)
        self.guard.beside |= {"cohort": sorted(of.cohort), "asked": of.asked, "content": content}
        words = hide(numbers, self.keyring, of.cohort, of.t, of.broadcast, self.protection.fraction_bits)
        return [row[None] for row in torch.from_numpy(words.view(np.int64)).split([len(w) for w in weighted])]


class Sum(NamedTuple):
    """What a masked message is a part of."""

    kind: str
    """'round' or 'query'."""
    t: int
    cohort: list[str]
    broadcast: bytes
    """What the coordinator sent to all of them."""

    @property
    def asked(self) -> str:
        return hashlib.sha256(self.broadcast).hexdigest()[:32]


def _digest(*tensors: Tensor) -> str:
    return hashlib.sha256(b"".join(x.contiguous().numpy().tobytes() for x in tensors)).hexdigest()[:32]


def holder(site: Site) -> Holder:
    """The holder of a site, as its site.toml says; rows are read when they are first asked for."""
    return Holder(site.name, partial(read_rows, site), site.path(site.files.state), SiteGuard(site))


def read_rows(site: Site) -> Rows:
    """From where site.toml says, and from nowhere else."""
    if site.data.schema_file:
        return TableRows.read_table(site.path(site.data.schema_file), site.name)
    data = site.data
    test = None if data.test is None else site.path(data.test)
    more = {"classes": data.classes, "test": test, "held_out": data.held_out}
    return Rows.read(site.path(data.path), data.label, data.client, **more)
