"""A run between organisations, from the handshake to its end: the usual harness, with sites in place of clients.

The run folder is the usual one, plus `silos.json`: the agreement of the sites, and how often a coordinator has started
or resumed the run, by which letters of an earlier start are recognised.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from proxfed import files
from proxfed.engine.noise import drowned
from proxfed.engine.running import Running
from proxfed.engine.state_measures import split
from proxfed.errors import InputError, RunError, option, require
from proxfed.files import checked, replace, with_checksum
from proxfed.harness.build import build_study
from proxfed.harness.experiment import Experiment
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.plan import Planned, finished_before
from proxfed.harness.results import Results
from proxfed.harness.study import CompleteEntry, Study, Task
from proxfed.harness.under_way import WAITING
from proxfed.machine import versions
from proxfed.problems.empirical_risk import EmpiricalRisk
from proxfed.registry import Table
from proxfed.report.progress import watching
from proxfed.silos.coordinator.coordinator import Coordinator
from proxfed.silos.coordinator.remote import Asking, Remote
from proxfed.silos.coordinator.waits import recording_waits
from proxfed.silos.protection.eligibility import check_protection
from proxfed.silos.protection.witness import countersigned, publics
from proxfed.silos.site.holder import VERSIONS
from proxfed.silos.site.rows import agree, check_schema, without_rows
from proxfed.silos.site.table_rows import of_preparation, prepared
from proxfed.silos.wire.carrier import Carrier
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.job import TABLES, Job, complete
from proxfed.silos.wire.message import Letter, canonical, flat
from proxfed.tables import Preparation, decode
from proxfed.types import Graph, Problem

log = logging.getLogger(__name__)

ROUND = "round-{}.json"
"""The file, beside the rows, of the current round of a job whose masks can be undone."""

FAREWELL = 30.0
"""Seconds to tell the sites that a run has ended; a site that cannot be reached keeps its files of the run."""


class Agreement(NamedTuple):
    """The agreement of sites and coordinator before the computation."""

    job: Job
    """The job that describes the problem."""
    tests: tuple[str, ...]
    """The sites that have test rows."""
    life: int = 1


def deploy(
    e: Experiment,
    carrier: Carrier,
    path: Path,
    *,
    resume: bool = False,
    force: bool = False,
    only: Collection[str] = (),
    deadline: float | None = None,
    say: Callable[[str], None] = log.warning,
    stop: Callable[[], bool] = lambda: False,
    progress: bool = True,
) -> Results:
    """Carry out an experiment over the sites of a carrier, whose own rows take the place of its table [data].

    deadline    seconds that sites have per round, if the algorithm can do without some of them
    say         called with one sentence for the user, such as which sites are waited for or missed a round; by default
    it is logged
    """
    path = Path(path)
    require(deadline is None or deadline > 0, f"deadline = {deadline!r} must be a number of seconds > 0")
    resume = resume and not force
    kept = path / "silos.json"
    agreed = recorded(kept) if resume and kept.exists() else handshake(e, carrier, say)
    same = canonical(agreed.job.experiment) == canonical(_tables(e))
    anew = f"{option('force', True)} begins anew"
    require(same, f"{kept}: the sites have agreed on another problem than the experiment has now; {anew}")
    fits = carrier.sites == agreed.job.sites
    require(fits, f"the run was begun with {', '.join(agreed.job.sites)}, and the sites are {', '.join(carrier.sites)}")
    exchange = Exchange(carrier, agreed.life, say)
    ours, witnesses = _announce(agreed.job, exchange)
    study = _study(e, agreed, exchange, ours, only)
    jobs = {task: _job(agreed.job, study, task) for task in study.tasks}
    planned = Planned(study, RunFolder(path), resume, force, only)
    longer = finished_before(study, planned.folder) if resume and planned.begun else []
    over = ", ".join(f"{label}, seed {seed}" for label, seed in longer)
    require(not longer, f"{path}: {over} is over at the sites, which keep nothing of it; more rounds are another run")
    for task, job in jobs.items():
        if not (resume and planned.begun and planned.folder.is_done(*task)):
            _announce(job, exchange, ours)
    if not resume:
        kept.unlink(missing_ok=True)  # of a run that is replaced
    resumed = planned.open()
    record = {"life": agreed.life, "tests": agreed.tests, "job": json.loads(agreed.job.encode()), "audits": witnesses}
    replace(kept, json.dumps(with_checksum(record), indent=1).encode())

    def engine(task: Task, entry: CompleteEntry) -> Running:
        note = path / ROUND.format(jobs[task].digest)
        return Coordinator(jobs[task], exchange, deadline, say, ours, note)

    with watching(progress) as watch, recording_waits(exchange, path / WAITING):
        how = {"watch": watch, "stop": stop, "checkpoint_seconds": 0.0, "resumed": resumed, "engine": engine}
        done = planned.execution(**how).run()
    if done and not only:
        ended = _farewell(exchange, [*jobs.values(), agreed.job])
        replace(kept, json.dumps(with_checksum(record | {"ended": ended}), indent=1).encode())
        for note in path.glob(ROUND.format("*")):
            note.unlink()
    return Results.read(planned.folder)


class Greeting(NamedTuple):
    """The information from the handshake with the sites."""

    told: dict[str, Table]
    """The answer of each site."""
    schemas: dict[str, Table]
    agreed: Table
    """The common arrangement of rows, with the preparation of tables."""
    bytes: tuple[int, int]
    """Bytes that sites sent and received for it."""
    rows: dict[str, int | None]
    """The number of rows of each site, as far as the summary of its table reveals it."""

    @property
    def introductions(self) -> dict[str, str]:
        return {site: str(said.get("introduction", "")) for site, said in self.told.items()}

    @property
    def audits(self) -> dict[str, str]:
        return {site: str(said["audit"]) for site, said in self.told.items() if said.get("audit")}


def greet(
    carrier: Carrier, sized: bool, say: Callable[[str], None], preparation: Preparation | None = None
) -> Greeting:
    """Schemas and versions of all sites; one sentence if they are incompatible. If the preparation of tables is given,
    no summaries are collected."""
    require(len(carrier.sites) > 0, "there is no site to ask")
    exchange = Exchange(carrier, say=say)
    hello = Letter("hello", "", head={"weights": sized, "nonce": secrets.token_hex(8)})
    told = {site: flat(a.body) for site, a in exchange.ask(None, dict.fromkeys(carrier.sites, hello)).items()}
    told = {site: told[site] for site in carrier.sites}
    for site, said in told.items():
        _compare_versions(site, said.get("versions"), say)
    schemas = {site: check_schema(said.get("schema"), site) for site, said in told.items()}
    agreed, rows = agree(schemas), dict[str, int | None]()
    if preparation is not None:
        agreed = agreed | of_preparation(preparation)
    elif any("table" in schema for schema in schemas.values()):
        summaries = exchange.ask(None, dict.fromkeys(carrier.sites, Letter("summary", "", head=hello.head)))
        agreed = prepared(agreed, schemas, {site: answer.body for site, answer in summaries.items()})
        rows = {site: decode(answer.body).rows for site, answer in summaries.items()}
    return Greeting(told, schemas, agreed, (exchange.back, exchange.out), rows)


def handshake(e: Experiment, carrier: Carrier, say: Callable[[str], None] = log.warning) -> Agreement:
    """Schemas, versions and weights of all sites; one sentence if they are incompatible."""
    sized = e.problem.get("weighting", EmpiricalRisk.weighting) == "size"
    met = greet(carrier, sized, say)
    clients = tuple(schema["clients"] for schema in met.schemas.values())
    p = np.concatenate([_weights(site, met.told[site], sized, c) for site, c in zip(met.told, clients, strict=True)])
    job = Job(
        _tables(e),
        carrier.sites,
        clients,
        tuple((p / p.sum()).tolist()),
        met.agreed,
        secrets.token_hex(16),
        introductions=met.introductions,
        audits=met.audits,
    )
    private = job.protection.privacy is not None  # measures would be sent without noise
    return Agreement(job, tuple(site for site, schema in met.schemas.items() if schema["test"] and not private))


def _tables(e: Experiment) -> Table:
    """The tables of an experiment that a job includes."""
    tables = e.model_dump(exclude_none=True)
    return {key: tables[key] for key in TABLES if key in tables}


def _compare_versions(site: str, told: Any, say: Callable[[str], None]) -> None:
    """Refuse a site with another version of proxfed; warn if other libraries may round differently."""
    theirs, ours = told if isinstance(told, dict) else {}, versions()
    same = theirs.get("proxfed") == ours["proxfed"]
    require(same, f"{site} has proxfed {theirs.get('proxfed')!r:.40}, and we {ours['proxfed']!r}: install the same one")
    apart = [f"{key} {theirs.get(key)!s:.40} and not {ours[key]}" for key in VERSIONS if theirs.get(key) != ours[key]]
    if apart:
        say(f"{site} has {', '.join(apart)}: last digits may differ from those of a run in one place")


def _weights(site: str, said: Table, sized: bool, clients: int) -> np.ndarray:
    if not sized:
        return np.ones(clients)
    given: Any = said.get("weights")
    listed = isinstance(given, list) and len(given) == clients
    good = listed and all(isinstance(w, (int, float)) and 0 < w < math.inf for w in given)
    require(good, f"{site} does not say how many rows it has; problem.weighting = 'uniform' does not need it")
    return np.array(given, np.float64)


def _study(e: Experiment, agreed: Agreement, exchange: Exchange, ours: Problem, only: Collection[str]) -> Study:
    """A study whose rows are at the sites; `ours` is the same problem without rows."""
    job = agreed.job
    assert isinstance(ours.f, EmpiricalRisk)
    remote = Problem(Remote(Asking(exchange, job), ours.f, agreed.tests), ours.h, ours.x0)
    study = build_study(e, problem=remote, only=only)
    for label, entry in study.complete.items():
        try:
            check_protection(job.protection, entry.algorithm, ours.f.d)
        except InputError as error:
            raise InputError(f"algorithms.{label}: {error}") from error
        uneven = job.protection.robust is not None and max(job.weights) > min(job.weights) * (1 + 1e-9)
        require(not uneven, "protection.robust: all clients count alike; take problem.weighting = 'uniform'")
        rounds = entry.rounds or e.rounds
        if (privacy := job.protection.privacy) and (why := drowned(privacy, job.weights, ours.f.d, rounds)):
            exchange.say(f"algorithms.{label}: {why}")
    told = ("consensus", "mean")
    for name in study.measures:
        near = split(name)[0] in told and all(isinstance(entry.algorithm, Graph) for entry in study.complete.values())
        allowed = "between organisations consensus_FIELD and mean_FIELD of algorithms on graphs are told"
        require(near, f"measures: {name!r} takes the states of all clients in one place; {allowed}")
    return study


def _announce(job: Job, exchange: Exchange, ours: Problem | None = None) -> tuple[Problem, dict[str, str]]:
    """All sites build the computation, or refuse it. Returns the problem without rows, which is built once, and the
    counter-signatures of sites with keys over the positions of all audit files."""
    question = Letter("job", job.digest, body=job.encode())
    answers = exchange.ask(job, dict.fromkeys(job.sites, question))
    ours = ours or without_rows(job)  # only now, so that code that sites refuse is not run
    complete(job, ours)
    for site, answer in answers.items():
        d, n = answer.number("d"), answer.number("n")
        fits = (d, n) == (ours.f.d, ours.f.n)
        require(fits, f"{site} has a model of {d} numbers over {n} clients, and we of {ours.f.d} over {ours.f.n}")
    keys, signed = (
        publics(job.introductions),
        {site: str(a.head.get("countersigned", "")) for site, a in answers.items()},
    )
    for site, said in signed.items():
        good = site not in keys or countersigned(keys[site], job.family, job.audits, said)
        require(good, f"{site} did not counter-sign how far the audit files of the sites are")
    return ours, {site: said for site, said in signed.items() if said}


def _job(base: Job, study: Study, task: Task) -> Job:
    table = next(table for table in study.settings["algorithms"] if table["label"] == task.label)
    return base.of({key: value for key, value in table.items() if key != "tuned"}, task.label, task.seed)


def _farewell(exchange: Exchange, jobs: list[Job]) -> dict[str, str]:
    """The signed positions of the audit files of the sites that could be reached."""
    ended: dict[str, str] = {}
    for job in jobs:
        gone = Letter("end", job.digest)
        heard = exchange.ask(job, dict.fromkeys(job.sites, gone), FAREWELL)
        ended |= {site: str(answer.head["audit"]) for site, answer in heard.items() if answer.head.get("audit")}
        missing = [site for site in job.sites if site not in heard]
        if missing:
            exchange.say(f"{', '.join(missing)} did not hear that the run is over, and keeps its state of it")
    return ended


def recorded(path: Path) -> Agreement:
    """The agreement with which the run was begun, to resume it."""
    try:
        table = checked(files.parse_json(files.read(path), str(path)), str(path))
        job = Job.decode(json.dumps(table["job"]).encode())
        return Agreement(job, tuple(table["tests"]), int(table["life"]) + 1)
    except (OSError, ValueError, KeyError, TypeError, RunError) as e:
        raise InputError(f"{path} is damaged: {e}") from e
