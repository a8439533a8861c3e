"""The coordinator's side of a run (running.py): the server's half of every round, or the relay between peers.

It has no rows and no client states. It keeps the server's state and, for each site, the last round whose answer
counted; both are in the checkpoint that the harness writes after every round. Sites keep their states on their own
disks. After a crash the two may be a round apart: the coordinator repeats the question of the missing round, and names
the round from whose state each site continues, so that nothing counts twice and nothing is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.compatibility import compressors
from proxfed.engine.halves import Clients, Server, Work
from proxfed.engine.messages import apart, dense, leaves
from proxfed.engine.network import Stacked
from proxfed.engine.noise import epsilon
from proxfed.engine.running import count_from, counted_so_far
from proxfed.engine.states import flatten, restore
from proxfed.errors import RunError
from proxfed.harness.protection import Protection
from proxfed.keyed_random import Ids
from proxfed.participation import Full, cohort
from proxfed.silos.coordinator.collect import Collect, CollectRobust, CollectSum
from proxfed.silos.coordinator.recovered import CollectRecovered
from proxfed.silos.coordinator.remote import COUNTED, Asking
from proxfed.silos.site.part import Counts, neighbours
from proxfed.silos.site.rows import without_rows
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.job import Job, complete
from proxfed.silos.wire.message import Letter, pack, unpack
from proxfed.types import Graph, Message, Problem, Star


class Field(NamedTuple):
    """A field of the clients' states, which stay at the sites, after round t."""

    name: str
    t: int


class Scattered(Stacked):
    """Clients at sites: to average a field of their states, the coordinator queries the sites."""

    def __init__(self, job: Job, asking: Asking, d: int) -> None:
        super().__init__(len(job.weights), d)
        self.asking = asking

    def average(self, rows: Any) -> Tensor:
        if isinstance(rows, Field):
            rows = self.asking.rows(self.asking("field", rows.t, field=rows.name))
        return super().average(rows)

    def consensus(self, rows: Any) -> float:
        answers = self.asking("apart", rows.t, given=(self.average(rows),), field=rows.name)
        return float(super().average(self.asking.rows(answers)))


class Coordinator:
    """One algorithm with one seed, over the sites of a job."""

    def __init__(
        self, job: Job, exchange: Exchange, deadline: float | None = None,
        say: Callable[[str], None] = lambda sentence: None, ours: Problem | None = None,
        note: Path | None = None,
    ) -> None:  # fmt: skip
        """`ours`: the problem of the job's family without rows, if it has been built;
        `note`: the file of the current round, if masks can be undone."""
        self.job, self.exchange, self.deadline, self.say = job, exchange, deadline, say
        self.collect = _collect(job.protection, note)
        built = complete(job, ours or without_rows(job))
        assert built.algorithm is not None
        self.problem, self.algorithm = built.problem, built.algorithm
        self.participation, self.topology = built.participation, built.topology
        self.codecs = compressors(self.algorithm)
        self.asking = Asking(exchange, job)
        self.network = Scattered(job, self.asking, self.problem.f.d)
        self.clients = Clients(self.problem, self.algorithm, job.seed)
        self.x0 = self.clients.x0
        self.work, self.seconds = Work(), 0.0
        self.wire = self.absent = 0
        self.after = dict.fromkeys(job.sites, -1)
        """The last round of each site that counted; -1: not begun."""
        self.begun = dict.fromkeys(job.sites, Counts())
        """The work of each site for its start."""
        self.met: set[int] = set()
        """The clients whose start has been counted."""
        self.told = dict.fromkeys(job.sites, 0)
        """The number of client messages that each site has sent."""
        self.t = 0
        self.state: Any = ()
        """The server's state; the clients' states are at the sites."""
        if isinstance(self.algorithm, Star):
            self.server = Server(self.algorithm, self.clients.h, self.problem.f.weights, job.seed)
            self.state = self.clients.begin(self.algorithm, range(0), Work())[1]

    # ---- rounds ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Round 0, unless it has been completed."""
        if all(after >= 0 for after in self.after.values()):
            return
        if isinstance(self.algorithm, Star):
            everyone = {site: self._question(0, 0, {"after": -1}) for site in self.job.sites}
            for site, answer in self.ask(everyone).items():
                self.begun[site] = self._counts(answer)
                self.after[site] = 0
            if isinstance(self.participation, Full):
                self._meet(range(self.network.n))
        else:
            self._peers(0)

    def round(self, t: int) -> None:
        self.begin()
        start = time.perf_counter()
        if isinstance(self.algorithm, Star):
            self._star(self.algorithm, t)
        else:
            self._peers(t)
        self.t = t
        self.seconds += time.perf_counter() - start

    def _question(self, t: int, k: int, head: Mapping[str, Any], body: bytes = b"") -> Letter:
        return Letter("round", self.job.digest, t, k, dict(head), body)

    def ask(self, questions: Mapping[str, Letter], deadline: float | None = None) -> dict[str, Letter]:
        before = self.exchange.out + self.exchange.back
        answers = self.exchange.ask(self.job, questions, deadline)
        self.wire += self.exchange.out + self.exchange.back - before
        return answers

    def _meet(self, ids: Iterable[int]) -> None:
        """Count the start-up work of clients that take part, or receive from the server, for the first time."""
        new = {*map(int, ids)} - self.met
        self.met |= new
        for site, own in self.job.who.among(sorted(new)).items():
            clients = len(self.job.who.here(site))
            self.work.add(Work(*(len(own) * count // clients for count in self.begun[site][:2])))

    def _counts(self, answer: Letter) -> Counts:
        told = answer.numbers("counts")
        if len(told) != len(Counts._fields):
            raise RunError("counts of a round are missing")
        return Counts(*told)

    def _count(self, answer: Letter) -> Counts:
        """Add a site's own work to the counters; returns its counts."""
        counts = self._counts(answer)
        self.work.add(Work(counts.gradients, counts.proxes))
        self.network.traffic.best += counts.best
        return counts

    # ---- star --------------------------------------------------------------------------------------------------

    def _star(self, alg: Star[Any, Any], t: int) -> None:
        taking_part = cohort(self.participation, t, self.network.n, self.job.seed)
        if len(taking_part) == 0:
            return
        state, message = self.server.down(self.state, t)
        form, body = pack(message, self.codecs)
        ids, all_hear = self.job.who.among(taking_part), alg.requires().all_hear
        self.network.send(message, self.network.n if all_hear else len(taking_part))
        ids = self.collect.count(self, alg, t, ids, message, body)
        told = {"form": form, "cohort": list(ids)}
        questions = {
            site: self._question(t, 0, self._told(site, told, ids), body)
            for site in (self.job.sites if all_hear else ids)
        }
        answers = self.collect.gather(self, alg, t, questions)
        answers = self._sound(alg, t, answers, ids)
        in_time = {site: own for site, own in ids.items() if site in answers}
        mean = self.collect.mean(self, answers, in_time)
        for site, answer in answers.items():
            self.network.traffic.up += self._count(answer).sent
            self.after[site] = t
            self.told[site] += len(ids.get(site, ()))
            self._meet(self.job.who.here(site) if all_hear else ids[site])
        who = self.cohort_of([i for own in in_time.values() for i in own])
        self.state = self.server.update(state, mean, who, self.work)

    def _told(self, site: str, told: dict[str, Any], ids: Mapping[str, list[int]]) -> dict[str, Any]:
        own = told | {"ids": ids.get(site, []), "after": self.after[site]}
        return own | self.collect.head(site) if site in ids else own

    @property
    def star(self) -> Star[Any, Any]:
        assert isinstance(self.algorithm, Star)
        return self.algorithm

    def there(self, alg: Star[Any, Any], t: int, ids: dict[str, list[int]]) -> dict[str, list[int]]:
        """With a deadline, the clients of a cohort whose sites are available now; a sum then needs all of these."""
        if self._patient(alg):
            return ids
        there = self.answers(alg, t, dict.fromkeys(ids, Letter("query", self.job.digest, t, 0, {"what": "there"})))
        return {site: own for site, own in ids.items() if site in there}

    def _patient(self, alg: Star[Any, Any]) -> bool:
        """Whether rounds wait for all sites: there is no deadline, or the algorithm cannot do without late clients."""
        needs = alg.requires()
        return self.deadline is None or needs.everyone or needs.all_hear

    def answers(
        self, alg: Star[Any, Any], t: int, questions: Mapping[str, Letter], fewest: int = 1
    ) -> dict[str, Letter]:
        """At least `fewest` answers that arrive in time, if the algorithm can do without the others; else all."""
        answers = self.ask(questions, None if self._patient(alg) else self.deadline)
        late, fewest = [site for site in questions if site not in answers], min(fewest, len(questions))
        if len(answers) < fewest:
            who = "nobody" if not answers else f"only {', '.join(answers)}"
            self.say(f"round {t}: {who} answered within {self.deadline:g} s; it waits for {', '.join(late)}")
        while len(answers) < fewest:
            answers |= self.ask({site: questions[site] for site in late if site not in answers}, self.deadline)
        missing = [site for site in questions if site not in answers]
        if missing:
            self.absent += len(missing)
            self.say(f"round {t} goes on without {', '.join(missing)}: no answer within {self.deadline:g} s")
        return answers

    def _sound(
        self, alg: Star[Any, Any], t: int, answers: dict[str, Letter], ids: Mapping[str, list[int]]
    ) -> dict[str, Letter]:
        """The answers without implausible ones; masked answers cannot be checked."""
        if self.collect.whole:
            return answers
        sizes = {site: _norm(self.message(site, a, len(ids[site]))) for site, a in answers.items() if site in ids}
        finite = [size for size in sizes.values() if isfinite(size)]
        if not finite:  # the run diverges, and no site is at fault
            return answers
        most = FAR * max(1.0, median(finite)) if len(sizes) > 2 else inf
        bad = [site for site, size in sizes.items() if not size <= most]
        why = f"round {t}: {', '.join(bad)} sent numbers that are not finite, or {FAR:g} times larger than the others'"
        needs = alg.requires()
        if bad and (needs.everyone or needs.all_hear):
            raise RunError(f"{why}, and {type(alg).__name__} cannot do without a message")
        if bad:
            self.absent += len(bad)
            self.say(f"{why}; it goes on without")
        return {site: answer for site, answer in answers.items() if site not in bad}

    def cohort_of(self, ids: Sequence[int]) -> Ids:
        """The clients; a range if all take part, as in the engine."""
        return range(self.network.n) if len(ids) == self.network.n else np.array(ids, np.int64)

    def message(self, site: str, answer: Letter, rows: int) -> Message:
        """The message in a site's answer."""
        return unpack(answer.word("form"), answer.body, self.codecs, self.problem.f.d, rows)

    def stacked(self, messages: Mapping[str, Message]) -> tuple[Message, list[Tensor]]:
        """(form, leaves with the rows of all sites); sites whose messages differ in form are refused."""
        (first, form), *_ = messages.items()
        shape = _shape(form)
        for site, message in messages.items():
            if _shape(message) != shape:
                raise RunError(f"the message of {site} is not of the form that {first} has sent")
        columns = zip(*map(leaves, messages.values()), strict=True)
        return form, [torch.cat([dense(part) for part in parts]) for parts in columns]

    # ---- graph -------------------------------------------------------------------------------------------------

    def _peers(self, t: int) -> None:
        """All sites take part; messages at `mix` are relayed to the neighbours, unread if they are sealed."""
        who, after = self.job.who, {"after": t - 1}
        assert self.topology is not None
        period = self.topology.period
        W = self.topology.W(t % period if period else t)
        near = {site: neighbours(W, self.job, who.here(site)) for site in self.job.sites}
        questions = {site: self._question(t, 0, after) for site in self.job.sites}
        for k in count(1):
            answers = self.ask(questions)
            done = {site for site, answer in answers.items() if answer.head.get("done") is True}
            if len(done) == len(answers):
                break
            if done:
                raise RunError(f"round {t}: {', '.join(sorted(done))} ended it after {k - 1} exchanges, others did not")
            parts = {site: _addressed(site, answer) for site, answer in answers.items()}
            questions = {}
            for site in self.job.sites:
                heard = [_for(site, sender, parts[sender]) for sender in near[site]]
                head = after | {"from": near[site], "sizes": [len(body) for body in heard]}
                questions[site] = self._question(t, k, head, b"".join(heard))
        for site, answer in answers.items():
            self.network.traffic.edge += self._count(answer).sent
            self.after[site] = t

    # ---- as a run ----------------------------------------------------------------------------------------------

    def model(self) -> Tensor:
        if isinstance(self.algorithm, Star):
            return self.algorithm.model(self.state, self.problem.h)
        means: list[Tensor] = []
        while True:
            answers = self.asking("mean", self.t, given=tuple(means))
            done = {answer.head.get("done") for answer in answers.values()}
            if done == {True}:
                (x,) = unpack(*_body(answers[self.job.sites[0]]), (), 0, 0)
                return x
            means.append(self.network.average(self.asking.rows(answers)))

    def fields(self, names: Collection[str] | None = None) -> dict[str, Any]:
        """On graphs, the fields of the clients' states, which sites send on request; x is always included."""
        if not isinstance(self.algorithm, Graph):
            return {}
        form = self.clients.begin_peers(self.algorithm, range(0), Work(), dense)
        fields = [name for name, x in form._asdict().items() if isinstance(x, Tensor)]
        return {name: Field(name, self.t) for name in fields if names is None or name in {"x", *names}}

    def counters(self) -> dict[str, float]:
        more: dict[str, float] = {"wire_bytes": self.wire, "absent": self.absent}
        if (privacy := self.job.protection.privacy) is not None:
            more["epsilon"] = epsilon({privacy.noise: max(self.told.values())}, privacy.delta)
        return counted_so_far(self.work, self.network) | more

    def changes(self) -> Iterator[dict[str, Tensor]] | None:
        return None

    def found(self) -> dict[str, float]:
        return {}

    def sent(self) -> tuple[int, int]:
        return 0, 0

    def variates(self) -> Tensor | None:
        return None

    def dump(self, clients: bool = True) -> dict[str, Tensor]:
        """The server's state, and the last round of each site that counted."""
        server = flatten(self.state, "server")
        of_sites: dict[str, Mapping[str, Any]] = {"after": self.after, "told": self.told, "begun": self.begun}
        sites = {name: torch.tensor([of[site] for site in self.job.sites]) for name, of in of_sites.items()}
        more = {"met": torch.tensor(sorted(self.met), dtype=torch.int64)}
        return server | sites | more | self.collect.dump()

    def load(self, tensors: dict[str, Tensor] | None, counters: Mapping[str, float]) -> None:
        assert tensors is not None
        self.after = dict(zip(self.job.sites, tensors["after"].tolist(), strict=True))
        self.told = dict(zip(self.job.sites, tensors["told"].tolist(), strict=True))
        self.begun = {site: Counts(*told) for site, told in zip(self.job.sites, tensors["begun"].tolist(), strict=True)}
        self.met = {*tensors["met"].tolist()}
        self.collect.load(tensors)
        self.t = max(self.after.values())
        self.state = restore(self.state, tensors, "server")
        count_from(counters, self.work, self.network)
        self.seconds = counters["wall_seconds"]
        self.wire, self.absent = (int(counters.get(each.name, 0)) for each in COUNTED)


FAR = 1e4
"""A message is ignored if its norm exceeds both 1 and the median of all by this factor."""


def _collect(protection: Protection, note: Path | None) -> Collect:
    if protection.secure_aggregation:
        return CollectRecovered(protection, note) if protection.recovery else CollectSum(protection)
    return Collect() if protection.robust is None else CollectRobust(protection.robust)


def _norm(message: Message) -> float:
    """The norm of a whole message; not finite if one of its numbers is not."""
    return float(torch.cat([dense(leaf).double().flatten() for leaf in leaves(message)]).norm())


def _shape(message: Message) -> Any:
    """Form, lengths of rows and dtypes."""
    if isinstance(message, tuple):
        return tuple(map(_shape, message))
    rows = dense(message)
    if rows.ndim < 1:
        raise RunError("a message has no rows")
    return rows.shape[1:], rows.dtype, apart(message)


def _addressed(site: str, answer: Letter) -> dict[str, bytes]:
    """A site's messages at `mix`, by addressee; '*' stands for all neighbours."""
    to, sizes, at, parts = answer.words("to"), answer.numbers("sizes"), 0, {}
    if len(to) != len(sizes) or sum(sizes) != len(answer.body) or min(sizes, default=0) < 0:
        raise RunError(f"{site}: its message to its neighbours does not have the parts that it says")
    for addressee, size in zip(to, sizes, strict=True):
        parts[addressee] = answer.body[at : at + size]
        at += size
    return parts


def _for(site: str, sender: str, parts: Mapping[str, bytes]) -> bytes:
    body = parts.get(site, parts.get("*"))
    if body is None:
        raise RunError(f"{sender} sent nothing to its neighbour {site}")
    return body


def _body(answer: Letter) -> tuple[str, bytes]:
    return answer.word("form"), answer.body
