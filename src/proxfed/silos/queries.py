"""Federated queries: numbers that a run is prepared and judged by, asked of the sites instead of computed from rows.

    there         nothing: the site is there
    smoothness    L_i and mu_i of each client of the site
    point         f_i(x), grad f_i(x), and the measures on the site's own test rows: what is asked for of these
    mean          on a graph: what `model` of the algorithm averages over the clients, stop by stop
    field, apart  on a graph: the rows of a field of the states, to be averaged; and how far they are from a point

`Remote` is the coordinator's problem: it has no rows, and whoever asks it for gradients and values, such as the
engine's measures or the reference solver, asks the sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import InputError, RunError, require
from proxfed.keyed_random import Ids
from proxfed.problems.fista import fista
from proxfed.problems.linear import Linear
from proxfed.silos.exchange import Exchange
from proxfed.silos.fibre import replay
from proxfed.silos.job import Job, build
from proxfed.silos.masks import add_up
from proxfed.silos.message import Head, Letter, pack, unpack
from proxfed.silos.rows import empty
from proxfed.types import Block, Graph, Local, Problem, Regulariser, Smoothness

if TYPE_CHECKING:
    from proxfed.silos.site_run import SiteRun

POINT = ("value", "gradient", "test")

COUNTED = ("wire_bytes", "absent")
"""Bytes of all letters of the rounds, both ways; and how often a site missed a round that it should have been in."""


# ---- at a site -------------------------------------------------------------------------------------------------------


def answer(run: SiteRun, letter: Letter) -> tuple[Head, bytes]:
    """(head, body) of the answer."""
    what = letter.word("what")
    match what:
        case "there":
            return {}, b""
        case "smoothness":
            return _smoothness(run)
        case "point":
            return _point(run, letter)
        case "mean" | "field" | "apart":
            return _of_state(run, letter, what)
    raise RunError(f"there is no query {what!r:.40}")


def _averaged(run: SiteRun, letter: Letter, rows: tuple[Tensor, ...], p: Tensor, **more: Any) -> tuple[Head, bytes]:
    """Rows of which the coordinator needs the average over all clients, with weights p."""
    return _told(run.link.told(rows, p[run.here.start : run.here.stop], letter), **more)


def _uniform(run: SiteRun) -> Tensor:
    return torch.full((len(run.job.weights),), 1 / len(run.job.weights), dtype=torch.float64)


def _smoothness(run: SiteRun) -> tuple[Head, bytes]:
    p = run.built.problem
    if not isinstance(p, Linear):
        raise InputError(f"the smoothness of {type(p).__name__} is not known: give steps as numbers")
    return _told((p.client_smoothness, p.client_convexity))


def _point(run: SiteRun, letter: Letter) -> tuple[Head, bytes]:
    parts, (x,) = letter.words("parts"), _read(letter, 1)
    p = run.built.problem
    x = x.to(p.weights)
    if x.shape != (p.d,):
        raise RunError(f"a point has {p.d} numbers, not {tuple(x.shape)}")
    f = p.local(0, run.here)
    told: tuple[Tensor, ...] = ()
    if "value" in parts and "gradient" in parts:
        told = f.value_and_grad(x)
    elif "value" in parts or "gradient" in parts:
        told = (f.value(x) if "value" in parts else f.full_grad(x),)
    head, body = _averaged(run, letter, tuple(told), torch.tensor(run.job.weights, dtype=torch.float64))
    if "test" in parts and p.data is not None and p.data.test is not None:
        head |= {"test": p.evaluate(x), "rows": len(p.data.test[1])}
    return head, body


def _of_state(run: SiteRun, letter: Letter, what: str) -> tuple[Head, bytes]:
    part, state = run.part, run.state(letter.round)
    if not isinstance(part.algorithm, Graph):
        raise RunError("only clients on a graph have models of their own")
    given = _read(letter, None)
    if what == "mean":
        alg, h = part.algorithm, part.problem.h
        _, stops = replay(lambda mean: alg.model(state, h, mean), given)
        if stops[-1].done:
            return _told((stops[-1].value,), done=True)
        return _averaged(run, letter, (stops[-1].value,), _uniform(run), done=False)
    rows = state._asdict().get(letter.word("field"))
    if not isinstance(rows, Tensor):
        raise RunError(f"the states have no field {letter.word('field')!r:.40}")
    if what == "field":
        return _averaged(run, letter, (rows,), _uniform(run))
    return _averaged(run, letter, ((rows - given[0]).square().sum(-1, keepdim=True),), _uniform(run))


def _told(tensors: tuple[Tensor, ...], **more: Any) -> tuple[Head, bytes]:
    form, body = pack(tensors, ())
    return {"form": form, **more}, body


def _read(letter: Letter, count: int | None) -> list[Tensor]:
    found = unpack(letter.word("form"), letter.body, (), 0, 0)
    good = isinstance(found, tuple) and all(isinstance(x, Tensor) for x in found) and count in (None, len(found))
    if not good:
        raise RunError(f"{letter.kind}: its body is not what was asked for")
    return list(found)


# ---- at the coordinator ----------------------------------------------------------------------------------------------


@dataclass
class Asking:
    """Queries of one job."""

    exchange: Exchange
    job: Job

    def __call__(
        self, what: str, t: int = 0, given: tuple[Tensor, ...] = (), sites: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, Letter]:
        head, body = _told(given, what=what, **more)
        question = Letter("query", self.job.digest, t, 0, head, body)
        asked = self.job.sites if sites is None else sites
        return self.exchange.ask(self.job, dict.fromkeys(asked, question))

    def rows(self, answers: Mapping[str, Letter], place: int = 0) -> Tensor:
        """Of all sites that answered, in the order of the clients; of masked ones, the average in the place of each."""
        parts = []
        for site in (s for s in self.job.sites if s in answers):
            found = _read(answers[site], None)
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


@dataclass(frozen=True, eq=False)
class Remote(Problem):
    """A problem whose rows are elsewhere: n clients at the sites of a job."""

    job: Job
    asking: Asking
    tests: tuple[str, ...] = ()
    """The sites that have test rows."""
    _last: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def shell(self) -> Problem:
        """The problem without rows: the model, h and the weights."""
        return build(replace(self.job, algorithm=None), empty(self.job.schema, self.job.window(None))).problem

    @property
    def n(self) -> int:  # type: ignore[override]
        return self.shell.n

    @property
    def d(self) -> int:  # type: ignore[override]
        return self.shell.d

    @property
    def h(self) -> Regulariser:  # type: ignore[override]
        return self.shell.h

    @property
    def batch(self) -> int | None:  # type: ignore[override]
        return self.shell.batch

    @property
    def x0(self) -> Tensor | None:  # type: ignore[override]
        return self.shell.x0

    @property
    def train_measures(self) -> bool:  # type: ignore[override]
        return self.shell.train_measures and self.job.protection.privacy is None  # they would be told without noise

    @cached_property
    def weights(self) -> Tensor:
        return self.shell.weights

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return self.shell.blocks

    def initial(self, seed: int) -> Tensor:
        return self.shell.initial(seed)

    def local(self, t: int, ids: Ids, seed: int = 0) -> Local:
        return Elsewhere(self, t, ids, seed) if len(ids) else self.shell.local(t, ids, seed)

    def at(self, x: Tensor) -> dict[str, Any]:
        """All that sites tell of a point, in one exchange; the last one is remembered."""
        key = x.numpy().tobytes()
        if self._last.get("x") != key:
            parts = list(POINT if self.train_measures else POINT[2:])
            answers = self.asking("point", given=(x,), parts=parts)
            self._last.clear()
            self._last.update({name: self.asking.rows(answers, k) for k, name in enumerate(parts) if name != "test"})
            tests = {site: a for site, a in answers.items() if "test" in a.head}
            self._last["test"] = {site: (a.head["test"], a.number("rows", 1)) for site, a in tests.items()}
            self._last["x"] = key
        return self._last

    def gradients(self, x: Tensor) -> Tensor:
        """(n, d)"""
        return self.asking.rows(self.asking("point", given=(x,), parts=["gradient"]))

    @cached_property
    def _criterion(self) -> Any:
        return self.shell.criterion  # type: ignore[attr-defined]

    @property
    def measures(self) -> tuple[str, ...]:
        """What the coordinator counts beside the rest; measures of all test rows together, and of each site's own."""
        own = tuple(self._criterion.measures) if self.tests else ()
        private = () if self.job.protection.privacy is None else ("epsilon",)
        return (*COUNTED, *private, *own, *(f"{name}_{site}" for name in own for site in self.tests))

    def evaluate(self, x: Tensor) -> dict[str, float]:
        if not self.tests:
            return {}
        told = {site: found for site, found in self.at(x)["test"].items() if site in self.tests}
        total = sum(m for _, m in told.values())
        out = {}
        for name in self._criterion.measures:
            values = {site: float(found[name]) for site, (found, _) in told.items()}
            out[name] = sum(values[site] * m for site, (_, m) in told.items()) / total
            out |= {f"{name}_{site}": value for site, value in values.items()}
        return out

    def smoothness(self) -> Smoothness:
        """L_f and mu from those of the clients, which bound them: sum p_i L_i and sum p_i mu_i."""
        return self._smoothness

    @cached_property
    def _smoothness(self) -> Smoothness:
        answers = self.asking("smoothness")
        L, mu = (self.asking.rows(answers, k) for k in (0, 1))
        p = self.weights.double()
        return Smoothness(float(L.max()), float(p @ L), float(p @ mu), float(mu.min()))

    def solve(self, tolerance: float = 1e-12) -> Tensor:
        """By FISTA, whose every gradient is an exchange."""
        least = 100 * torch.finfo(self.weights.dtype).eps
        mean = lambda x: self.weights @ self.gradients(x)
        return fista(mean, self.h, self.smoothness().L_f, self.start(0), max(tolerance, least))

    def with_l2(self, l2: float) -> Remote:
        experiment = self.job.experiment | {"problem": self.job.experiment["problem"] | {"l2": l2}}
        job = replace(self.job, experiment=experiment)
        return Remote(job, Asking(self.asking.exchange, job), self.tests)

    @property
    def described(self) -> Problem:
        return self.shell

    def __str__(self) -> str:
        return f"{self.shell} at {len(self.job.sites)} sites"


class Elsewhere(Local):
    """Clients whose rows are at sites: full gradients and values, to look at a run."""

    def __init__(self, problem: Remote, t: int, ids: Ids, seed: int) -> None:
        self.problem, self.t, self.ids, self.seed = problem, t, ids, seed

    def full_grad(self, x: Tensor) -> Tensor:
        return self._rows("gradient", x)

    def value(self, x: Tensor) -> Tensor:
        return self._rows("value", x)

    def _rows(self, what: str, x: Tensor) -> Tensor:
        require(x.ndim == 1, "sites are asked about one point at a time")
        return self.problem.at(x)[what][np.asarray(self.ids, np.int64)]
