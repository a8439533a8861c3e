"""A job is data: the computation, the sites, and the schema that their rows must have.

It is written as canonical JSON, whose SHA-256 names the run in every message. A site builds the computation from the
job and its own rows, with classes that are installed there: custom code is refused unless the site allows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import torch

from proxfed._version import __version__
from proxfed.data.federated import Federated, Window
from proxfed.errors import RunError, require
from proxfed.harness.build import build_again, build_problem
from proxfed.harness.experiment import Experiment, parse
from proxfed.harness.protection import Protection
from proxfed.participation import Dropouts, Full
from proxfed.registry import Table
from proxfed.silos.protection.eligibility import check_protection
from proxfed.silos.wire.message import canonical, flat
from proxfed.types import Algorithm, Participation, Problem, Star, Topology

TABLES = ("problem", "regulariser", "dtype", "device", "protection")
"""The tables of an experiment that a job includes."""


class Sites(NamedTuple):
    """The clients of each site: consecutive ones, site by site."""

    names: tuple[str, ...]
    clients: tuple[int, ...]

    def here(self, name: str) -> range:
        """The clients of a site."""
        k = self.names.index(name)
        first = sum(self.clients[:k])
        return range(first, first + self.clients[k])

    def among(self, ids: Sequence[int] | np.ndarray) -> dict[str, list[int]]:
        """These clients by site; sites without any are left out."""
        ids = np.asarray(ids, np.int64)
        holder = np.searchsorted(np.cumsum(self.clients), ids, side="right")
        return {self.names[k]: ids[holder == k].tolist() for k in np.unique(holder).tolist()}


@dataclass(frozen=True)
class Job:
    """The information that all sites of a run share. Without an algorithm, it describes the problem only."""

    experiment: Table
    """The tables of the problem as in an experiment (harness/experiment.py), with all defaults."""
    sites: tuple[str, ...]
    clients: tuple[int, ...]
    """The number of clients of each site."""
    weights: tuple[float, ...]
    """p_i of all clients."""
    schema: Table
    """The schema of the rows (rows.py)."""
    nonce: str
    """Random, so that a run that is started again has another digest."""
    label: str = ""
    seed: int = 0
    algorithm: Table | None = None
    """With all step sizes, its participation and its graph."""
    x0: tuple[float, ...] | None = None
    """The starting point; None: given by the problem and the seed."""
    fit: Table | None = None
    """Instead of a problem and an algorithm: the loss whose sums a fit needs (fit_job.py)."""
    introductions: dict[str, str] = field(default_factory=dict)
    """The introductions of the sites' keys, in hex."""
    audits: dict[str, str] = field(default_factory=dict)
    """The signed position of each site's audit file before the job; its partners record it."""
    version: str = __version__

    def encode(self) -> bytes:
        return canonical({each.name: getattr(self, each.name) for each in fields(self)})

    @cached_property
    def digest(self) -> str:
        return sha256(self.encode()).hexdigest()[:32]

    @classmethod
    def decode(cls, data: bytes) -> Job:
        """RunError if the bytes are not a job."""
        table = flat(data)
        try:
            for key in ("sites", "clients", "weights"):
                table[key] = tuple(table[key])
            table["x0"] = None if table["x0"] is None else tuple(table["x0"])
            job = cls(**table)
            job.check()
        except (TypeError, KeyError) as e:
            raise RunError(f"it is no job: {e}") from None
        return job

    def check(self) -> None:
        """Refuse inconsistent entries."""
        n = sum(self.clients)
        good = len(self.sites) == len(self.clients) == len({*self.sites}) and len(self.weights) == n
        require(good, "the job's sites, clients and weights do not fit each other")
        unknown = [key for key in self.experiment if key not in TABLES]
        require(not unknown, f"the job has a table {unknown[:1]}, which is none of {', '.join(TABLES)}")
        same = self.version == __version__
        require(
            same, f"the job is of proxfed {self.version!r:.40}, and here is {__version__}: install the same version"
        )

    def check_code(self, allowed: Collection[str] = ()) -> None:
        """One sentence if it names code that is neither registered here nor allowed."""
        for where, name in _names({**self.experiment, "algorithm": self.algorithm, "fit": self.fit}, "job"):
            known = ":" not in name or name in allowed
            require(known, f"{where} = {name!r}: a job may name what is registered here, and brings no code of its own")

    @property
    def protection(self) -> Protection:
        return Protection.model_validate(self.experiment.get("protection") or {})

    @property
    def who(self) -> Sites:
        return Sites(self.sites, self.clients)

    @property
    def private(self) -> bool:
        """Whether it is a fit to noisy sums only."""
        return bool(self.fit and self.fit.get("private"))

    @property
    def measures_only(self) -> bool:
        """Whether a model is validated at one site, which may send its own measures, but no sum."""
        return bool(self.fit and self.fit.get("external") and len(self.sites) == 1)

    @cached_property
    def family(self) -> str:
        """A digest shared by all jobs of one problem, whatever their algorithm."""
        return replace(self, algorithm=None, label="", seed=0, x0=None).digest

    def of(self, algorithm: Table, label: str, seed: int) -> Job:
        """The job of one algorithm with one seed."""
        return replace(self, algorithm=algorithm, label=label, seed=seed)

    def window(self, name: str | None) -> Window:
        """The window of a site, or of a server (None), which has no clients."""
        return Window(0 if name is None else self.who.here(name).start, np.array(self.weights))


def _names(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """(place, name) of each component in the tables; the registry imports nothing else (registry.py)."""
    if isinstance(value, dict):
        for key, inside in value.items():
            if key in ("name", "model") and isinstance(inside, str):
                yield f"{where}.{key}", inside
            yield from _names(inside, f"{where}.{key}")
    elif isinstance(value, list):
        for inside in value:
            yield from _names(inside, where)


class Built(NamedTuple):
    """The objects built from a job and the local rows."""

    problem: Problem
    algorithm: Algorithm | None
    participation: Participation
    topology: Topology | None


def problem_of(job: Job, data: Federated) -> Problem:
    """The problem that all jobs of a family share, over these rows."""
    job.check()
    return build_problem(_experiment(job), data=data)


def complete(job: Job, problem: Problem) -> Built:
    """Build the algorithm, network and the rest of a job whose family has this problem."""
    if job.x0 is not None:
        problem = problem.starting_at(torch.tensor(job.x0, dtype=problem.f.weights.dtype))
    if job.algorithm is None:
        return Built(problem, None, Full(), None)
    if (decay := job.algorithm.get("weight_decay")) is not None:
        problem = replace(problem, f=problem.f.with_l2(decay))
    entry = build_again(job.algorithm, problem.f.n)
    algorithm = entry.algorithm
    found = " and ".join(f"{name} = 'auto'" for name in algorithm.to_find)
    require(not found, f"{job.label}: {found}: steps that are found on the way take several runs at once; give numbers")
    require(
        not (isinstance(algorithm, Star) and entry.topology is not None),
        f"{job.label}: between organisations a server hears every site, and there is no tree: leave out its topology",
    )
    check_protection(job.protection, algorithm, problem.f.d)
    simulated = isinstance(entry.participation, Dropouts)
    require(
        not simulated,
        f"{job.label}: 'dropouts' are simulated losses; between organisations a deadline says who is late",
    )
    assert entry.participation is not None
    return Built(problem, algorithm, entry.participation, entry.topology)


def _experiment(job: Job) -> Experiment:
    rest = {"name": "job", "rounds": 1, "data": {}, "algorithms": [{"name": "fedavg"}]}
    return parse(job.experiment | rest, "job")
