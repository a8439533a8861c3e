"""Sites in this process, made anew from their disks for every message, and carriers that do what real ones do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxfed.engine.network import Stacked
from proxfed.engine.run import Run
from proxfed.engine.start import run_of
from proxfed.harness.study import describe_algorithm, describe_problem
from proxfed.participation import PARTICIPATIONS, Full
from proxfed.problems import Linear
from proxfed.registry import describe
from proxfed.silos.coordinator.coordinator import Coordinator
from proxfed.silos.protection.guard import Guard
from proxfed.silos.site.holder import Holder
from proxfed.silos.site.rows import Rows, agree
from proxfed.silos.site.store import Store
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.job import Job
from proxfed.testing.runs import regulariser, ring, some
from proxfed.topologies import TOPOLOGIES
from proxfed.types import Algorithm, Graph, Participation, Problem, Topology

from support import toy_problems as toy

SEED = 3


def toy_problem(a: Algorithm, small: bool) -> Problem[Linear]:
    """Least squares, whose arithmetic does not depend on where a number stands in an array, unlike torch's sigmoid.

    small: minibatches, ragged sizes and weights by size; else full gradients of equal ones.
    """
    if small:
        return toy.problem("least_squares", regulariser(a), toy.RAGGED, batch=8, weighting="size")
    return toy.problem("least_squares", regulariser(a))


def job_of(
    a: Algorithm, p: Problem[Linear], participation: Participation = Full(), topology: Topology | None = None,
    clients: Sequence[int] | None = None, nonce: str = "",
) -> tuple[Job, dict[str, Rows]]:  # fmt: skip
    """The job of an algorithm on a problem over `clients` of each site, and the rows of the sites."""
    clients = tuple(clients or (1,) * p.f.n)
    ends = np.cumsum(clients)
    names = tuple("abcdefgh"[: len(clients)])
    rows = {name: Rows.of(p.f.data, range(end - c, end)) for name, c, end in zip(names, clients, ends, strict=True)}
    tables = describe_problem(p)
    tables["problem"] = {k: v for k, v in tables["problem"].items() if k not in ("device", "x0")}
    algorithm = {"label": "it"} | describe_algorithm(a) | {"participation": describe(participation, PARTICIPATIONS)}
    if topology is not None:
        algorithm["topology"] = {k: v for k, v in describe(topology, TOPOLOGIES).items() if k != "n"}
    job = Job(
        {key: tables[key] for key in ("problem", "regulariser", "dtype")},
        names,
        clients,
        tuple(p.f.weights.tolist()),
        agree({name: r.schema() for name, r in rows.items()}),
        nonce,
        "it",
        SEED,
        algorithm,
        None if p.x0 is None else tuple(p.x0.tolist()),
    )
    return job, rows


class Anew:
    """A carrier to sites that are made from their disks for every message."""

    def __init__(self, rows: Mapping[str, Rows], folder: Path, guard: Callable[[str], Guard] = lambda name: Guard()):
        self.rows, self.folder, self.guard = rows, folder, guard
        self.sites = tuple(rows)
        self.messages = 0

    def holder(self, site: str) -> Holder:
        return Holder(site, self.rows[site], self.folder / site, self.guard(site))

    def one(self, site: str, question: bytes) -> bytes:
        self.messages += 1
        return self.holder(site).answer(question)

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        return {site: self.one(site, question) for site, question in questions.items()}

    def states(self, job: Job) -> dict[str, dict[str, torch.Tensor]]:
        """What each site has on its disk after the last round."""
        found = {}
        for site in self.sites:
            slots = Store(self.folder / site / job.digest).slots()
            found[site] = slots[max(slots)].tensors
        return found


def both(
    a: Algorithm, p: Problem[Linear], folder: Path, participation: Participation | None = None,
    clients: Sequence[int] | None = None, **options: Any,
) -> tuple[Run, Coordinator, Anew]:  # fmt: skip
    """The same run stacked and over sites."""
    topology = ring(a)
    participation = participation or Full()
    job, rows = job_of(a, p, participation, topology, clients)
    carrier = Anew(rows, folder)
    over_sites = Coordinator(job, Exchange(carrier), **options)
    return run_of(p, a, Stacked(p.f.n, p.f.d, topology), participation, SEED), over_sites, carrier


def must_equal(stacked: Run, over_sites: Coordinator, carrier: Anew) -> None:
    """Bit for bit: the server's tensors, every client's, and the model."""
    expected, seen = stacked.dump(), over_sites.dump()
    for name, x in expected.items():
        if name.startswith("server"):
            assert torch.equal(seen[name], x), name
    for site, tensors in carrier.states(over_sites.job).items():
        here = over_sites.job.who.here(site)
        for name, rows in tensors.items():
            assert torch.equal(rows, expected[name][here.start : here.stop]), (site, name)
    assert torch.equal(over_sites.model(), stacked.model())


def partly(a: Algorithm) -> Participation:
    """Some clients a round, where that is allowed."""
    return Full() if isinstance(a, Graph) else some(a)
