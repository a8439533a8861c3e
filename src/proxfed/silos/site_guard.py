"""What stands between a holder and the world, as its site.toml says: what is refused, written down, sealed and hidden.

Every decision is in policy.py, every line in audit.py; here they are asked in their order. The audit file is also the
memory of what has left before: bytes of a job, sums that were already given, epsilon that was already spent.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.messages import dense, leaves, rebuild
from proxfed.engine.oracle import Oracle, Work
from proxfed.harness.protection import Protection
from proxfed.silos import policy
from proxfed.silos.audit import Line
from proxfed.silos.guard import Asked, Guard, Link, Refused, Upload
from proxfed.silos.job import Job
from proxfed.silos.keyring import Keyring, SiteKey, fingerprint
from proxfed.silos.masks import hide
from proxfed.silos.privacy import NoRows, epsilon, privatise
from proxfed.silos.protection import check_protection
from proxfed.silos.site import Site
from proxfed.types import Graph, Message, Star

_log = logging.getLogger("proxfed.silos")

COUNTS = "sizes"
"""The question for the number of rows."""
PREPARATIONS = ("hello", "summary")
"""Questions before a run."""


class SiteGuard(Guard):
    """Of one site, for all its runs."""

    def __init__(self, site: Site) -> None:
        self.site, self.audit = site, site.audit
        self.code = site.allow.code
        trail = self.audit.read()
        if trail.broken:
            raise Refused(f"{site.name} answers nothing: {self.audit.path} is not as it was written: {trail.broken}")
        self.beside: Line = {}
        """What the next line of the audit file says more."""
        self.bytes: Counter[str] = Counter()
        """That left, by job."""
        self.keys: dict[str, str] = {}
        """Fingerprints that were seen, by partner."""
        self.sums: dict[tuple[str, int], list[Line]] = {}
        """Masked messages that left, by job and round."""
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
            self.sums.setdefault((run, line["t"]), []).append(line)
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
        if asked.what == COUNTS:
            policy.check_counts(site)
        elif asked.kind == "query":
            policy.check_measure(site, asked.what)
        if asked.kind == "job" and job is not None:
            tables = {**job.experiment, "algorithms": [] if job.algorithm is None else [job.algorithm]}
            policy.check_job(site, tables, job.sites)
        if asked.kind == "round":
            policy.check_rounds(site, asked.round)

    # ---- what is written down ------------------------------------------------------------------------------------

    def leaving(self, asked: Asked, to: str, body: bytes) -> None:
        run = asked.job.digest if asked.job is not None else ""
        policy.check_bytes(self.site, self.bytes[run], len(body))
        what = f"{asked.kind} {asked.what}".strip()
        self.note(to, what, body, run=run, t=asked.round, **self.beside)
        self.beside = {}

    def note(self, to: str, what: str, body: bytes | None = None, **more: Any) -> None:
        self._remember(self.audit.write(to, what, body, **more))

    def join(self, job: Job, site: str) -> Link:
        return SiteLink(self, job, site)


class SiteLink(Link):
    """In one run."""

    def __init__(self, guard: SiteGuard, job: Job, name: str) -> None:
        self.guard, self.job, self.name = guard, job, name
        self.protection = Protection.model_validate(job.experiment.get("protection") or {})
        said = {site: bytes.fromhex(told) for site, told in job.introductions.items()}
        self.keyring = Keyring.of(guard.key, name, job.digest, said)
        self._known_partners()
        self.sealed = True

    def _known_partners(self) -> None:
        """Pinned keys must be those; of others, the first one that was seen."""
        seen = self.guard.keys
        for partner, public in self.keyring.partners.items():
            shown, pinned = fingerprint(public), self.guard.site.partners.get(partner)
            if pinned is not None and shown != pinned:
                raise Refused(f"{self.name} refuses: {partner} came with the key {shown}, and partners.{partner} = {pinned!r}")
            if pinned is None and seen.get(partner, shown) != shown:
                raise Refused(
                    f"{self.name} refuses: {partner} came with the key {shown}, and before with {seen[partner]}; if that is "
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

    def upload(self, up: Message, about: Upload) -> tuple[Message, Mapping[str, Any]]:
        """Clipped and made noisy, weighed and masked, as far as the job says."""
        values = [dense(leaf).detach() for leaf in leaves(up)]
        beside: Line = {}
        if self.protection.privacy is not None:
            values = self._noisy(values, about)
            beside |= {"noise": self.protection.privacy.noise, "delta": self.protection.privacy.delta}
            self._spend(beside)
        if self.protection.secure_aggregation:
            values = self._masked(values, about)
            beside |= self._one_sum(values, about)
        self.guard.beside = beside
        return (rebuild(up, iter(values)), {}) if beside else (up, {})

    def _noisy(self, values: list[Tensor], about: Upload) -> list[Tensor]:
        """Client by client."""
        algorithm, clients, privacy = about.part.algorithm, about.part.clients, self.protection.privacy
        assert privacy is not None
        f = Oracle(NoRows(about.t, about.ids, self.job.seed), Work(), None, clients.inside)
        _, no_rows = algorithm.client((), about.down, f, clients.h)
        r = [dense(leaf) for leaf in leaves(no_rows)]
        rows = []
        for k, i in enumerate(about.ids):
            u = [value[k : k + 1] for value in values]
            content = hashlib.sha256(b"".join(x.contiguous().numpy().tobytes() for x in u)).digest()
            place = self.job.digest.encode(), str(about.t).encode(), str(i).encode()
            rows.append(privatise(u, [x[k : k + 1] for x in r], privacy, self.guard.key.secret(b"noise", *place, content)))
        return [torch.cat(column) for column in zip(*rows, strict=True)]

    def _spend(self, line: Line) -> None:
        """With the message that is to leave, epsilon must stay within the site's budget."""
        budget = self.guard.site.require.privacy
        if budget is not None:
            releases = Counter([*self.guard.noises.values(), line["noise"]])
            policy.check_epsilon(self.guard.site, epsilon(releases, budget.delta))

    def _masked(self, values: list[Tensor], about: Upload) -> list[Tensor]:
        """One row for all clients of the site: sum_i p_i m_i under its pads."""
        p = torch.tensor([self.job.weights[i] for i in about.ids], dtype=torch.float64)
        weighted = [p @ value.double() for value in values]
        bits = self.protection.fraction_bits
        words = hide(torch.cat(weighted).numpy(), self.keyring, about.cohort, about.t, about.broadcast, bits)
        return [row[None] for row in torch.from_numpy(words.view(np.int64)).split([len(w) for w in weighted])]

    def _one_sum(self, values: list[Tensor], about: Upload) -> Line:
        """Of a round one sum is given: the difference of two, over other sites, would be the message of who left.

        The same masks must not hide two contents either, which differ if rows have changed.
        """
        cohort = sorted(about.cohort)
        sum_of = hashlib.sha256(about.broadcast).hexdigest()[:32]
        content = hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()[:32]
        policy.check_sum(self.guard.site, cohort)
        for line in self.guard.sums.get((self.job.digest, about.t), ()):
            policy.check_same_sum(self.guard.site, about.t, line["cohort"], cohort)
            if line["broadcast"] == sum_of and line["content"] != content:
                raise Refused(f"{self.name} refuses: round {about.t} was answered before, from other rows")
        return {"cohort": cohort, "broadcast": sum_of, "content": content}


def guarded(job: Job, algorithm: Star[Any, Any] | Graph[Any], d: int) -> None:
    """One sentence if the algorithm of a job cannot be protected as the job says."""
    check_protection(Protection.model_validate(job.experiment.get("protection") or {}), algorithm, d)
