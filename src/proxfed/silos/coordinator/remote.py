"""The coordinator's f: it has no rows, so it queries the sites for values, gradients and measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import RunError, require
from proxfed.keyed_random import Ids
from proxfed.problems.empirical_risk import EmpiricalRisk
from proxfed.problems.fista import fista
from proxfed.silos.protection.masks import add_up
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Letter
from proxfed.silos.wire.queries import POINT, read, told
from proxfed.types import Local, Measure, Regulariser, Smooth, Smoothness, directions

COUNTED = Measure("wire_bytes", "lower"), Measure("absent", "lower")
"""Bytes of all letters of the rounds, both ways; and how often a site missed a round of its cohort."""


@dataclass
class Asking:
    """Queries of one job."""

    exchange: Exchange
    job: Job

    def __call__(
        self, what: str, t: int = 0, given: tuple[Tensor, ...] = (), sites: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, Letter]:
        head, body = told(given, what=what, **more)
        question = Letter("query", self.job.digest, t, 0, head, body)
        asked = self.job.sites if sites is None else sites
        return self.exchange.ask(self.job, dict.fromkeys(asked, question))

    def rows(self, answers: Mapping[str, Letter], place: int = 0) -> Tensor:
        """The rows of all sites that answered, in the order of the clients; if masked, each is the average."""
        parts = []
        for site in (s for s in self.job.sites if s in answers):
            found = read(answers[site], None)
            masked = len(found) > place and found[place].dtype == torch.int64
            rows = 1 if masked else len(self.job.who.here(site))
            good = len(found) > place and found[place].ndim >= 1 and len(found[place]) == rows
            if not good:
                raise RunError(f"{site}: its answer does not have a row for each of its clients")
            parts.append(found[place])
        if len({part.shape[1:] for part in parts}) > 1:
            raise RunError(f"the answers of {', '.join(answers)} have different shapes")
        if parts[0].dtype != torch.int64:
            return torch.cat(parts)
        whole = add_up(torch.stack([part.flatten() for part in parts]), self.job.protection.fraction_bits)
        return whole.view(parts[0].shape).expand(len(self.job.weights), *parts[0].shape[1:]).contiguous()


class Remote(Smooth):
    """f over the n clients at the sites of a job.

    model   the same f over no rows: its blocks, weights and first parameters
    tests   the sites that have test rows
    """

    def __init__(self, asking: Asking, model: EmpiricalRisk, tests: tuple[str, ...] = ()) -> None:
        self.asking, self.model, self.tests = asking, model, tests
        self.n, self.d, self.batch, self.l2 = model.n, model.d, model.batch, model.l2
        self.has_hessian = model.has_hessian
        self.weights, self.blocks = model.weights, model.blocks
        self.private = asking.job.protection.privacy is not None
        self.train_measures = model.train_measures and not self.private  # they would be sent without noise
        self._last: dict[str, Any] = {}

    def initial(self, seed: int) -> Tensor:
        return self.model.initial(seed)

    def local(self, t: int, ids: Ids, seed: int = 0) -> Local:
        return RemoteClients(self, t, ids, seed) if len(ids) else self.model.local(t, ids, seed)

    def at(self, x: Tensor) -> dict[str, Any]:
        """All that sites reveal about a point, in one exchange; the last one is cached."""
        key = x.numpy().tobytes()
        if self._last.get("x") != key:
            parts = list(POINT if self.train_measures else POINT[2:])
            answers = self.asking("point", given=(x,), parts=parts)
            self._last.clear()
            self._last.update({name: self.asking.rows(answers, k) for k, name in enumerate(parts) if name != "test"})
            tests = {site: a for site, a in answers.items() if "test" in a.head}
            counts = {site: a.number("rows") for site, a in tests.items()}
            known = all(counts.values())  # else all sites have the same weight
            self._last["test"] = {site: (a.head["test"], counts[site] if known else 1) for site, a in tests.items()}
            self._last["x"] = key
        return self._last

    def gradient(self, x: Tensor) -> Tensor:
        return self.weights @ self.asking.rows(self.asking("point", given=(x,), parts=["gradient"]))

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The coordinator's counters; measures of all test rows together, and of each site's own."""
        own = directions(self.model.criterion.measures) if self.tests else {}
        private = (Measure("epsilon", "lower"),) if self.private else ()
        at_sites = {f"{name}_{site}": better for name, better in own.items() for site in self.tests}
        return (*COUNTED, *private, *(Measure(*each) for each in (own | at_sites).items()))

    def evaluate(self, x: Tensor) -> dict[str, float]:
        if not self.tests:
            return {}
        told = {site: found for site, found in self.at(x)["test"].items() if site in self.tests}
        total = sum(m for _, m in told.values())
        out = {}
        for name in directions(self.model.criterion.measures):
            values = {site: float(found[name]) for site, (found, _) in told.items()}
            out[name] = sum(values[site] * m for site, (_, m) in told.items()) / total
            out |= {f"{name}_{site}": value for site, value in values.items()}
        return out

    def smoothness(self) -> Smoothness:
        """Bounds on L_f and mu from the clients' constants: sum p_i L_i and sum p_i mu_i."""
        return self._smoothness

    @cached_property
    def _smoothness(self) -> Smoothness:
        answers = self.asking("smoothness")
        L, mu = (self.asking.rows(answers, k) for k in (0, 1))
        p = self.weights.double()
        return Smoothness(float(L.max()), float(p @ L), float(p @ mu), float(mu.min()))

    def minimise(self, h: Regulariser, x0: Tensor, tolerance: float = 1e-12) -> Tensor:
        """By FISTA, with one exchange per gradient."""
        least = 100 * torch.finfo(self.weights.dtype).eps
        return fista(self.gradient, h, self.smoothness().L_f, x0.to(self.weights), max(tolerance, least))

    def with_l2(self, l2: float) -> Remote:
        job = self.asking.job
        experiment = job.experiment | {"problem": job.experiment["problem"] | {"l2": l2}}
        asking = Asking(self.asking.exchange, replace(job, experiment=experiment))
        return Remote(asking, self.model.with_l2(l2), self.tests)

    def __str__(self) -> str:
        return f"{self.model} at {len(self.asking.job.sites)} sites"


class RemoteClients(Local):
    """Clients whose rows are at sites: full gradients and values, to evaluate a run."""

    def __init__(self, f: Remote, t: int, ids: Ids, seed: int) -> None:
        self.f, self.t, self.ids, self.seed = f, t, ids, seed

    def full_grad(self, x: Tensor) -> Tensor:
        return self._rows("gradient", x)

    def value(self, x: Tensor) -> Tensor:
        return self._rows("value", x)

    def _rows(self, what: str, x: Tensor) -> Tensor:
        require(x.ndim == 1, "sites are asked about one point at a time")
        return self.f.at(x)[what][np.asarray(self.ids, np.int64)]
