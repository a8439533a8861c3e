"""A site's answers to queries: the numbers with which a run is prepared and evaluated.

there         nothing: the site is available
shares        of a round with masks: shares that can undo this site's mask, for the others; independent of rows
unmask        its shares of the others' masks, so that the sum over the sites that answered can be read
smoothness    L_i and mu_i of each client of the site
point         any of f_i(x), grad f_i(x), and the measures on the site's own test rows
mean          on a graph: the rows that the algorithm's `model` averages over the clients, call by call
field, apart  on a graph: the rows of a field of the states, to be averaged; and their distance from a point
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from proxfed.errors import RunError
from proxfed.problems.linear.linear import Linear
from proxfed.silos.protection.guard import Refused, withheld
from proxfed.silos.site.fibre import replay
from proxfed.silos.wire.message import Head, Letter, pack, unpack
from proxfed.types import Graph

if TYPE_CHECKING:
    from proxfed.silos.site.site_run import SiteRun

POINT = ("value", "gradient", "test")


def answer(run: SiteRun, letter: Letter) -> tuple[Head, bytes]:
    """(head, body) of the answer."""
    what = letter.word("what")
    match what:
        case "there":
            return {}, b""
        case "shares":
            return run.link.deal(letter)
        case "unmask":
            return run.link.unmask(letter)
        case "smoothness":
            return _smoothness(run)
        case "point":
            return _point(run, letter)
        case "mean" | "field" | "apart":
            return _of_state(run, letter, what)
    raise RunError(f"there is no query {what!r:.40}")


def _averaged(run: SiteRun, letter: Letter, rows: tuple[Tensor, ...], p: Tensor, **more: Any) -> tuple[Head, bytes]:
    """An answer with rows that the coordinator averages over all clients, with weights p."""
    return told(run.link.told(rows, p[run.here.start : run.here.stop], letter), **more)


def _uniform(run: SiteRun) -> Tensor:
    return torch.full((len(run.job.weights),), 1 / len(run.job.weights), dtype=torch.float64)


def _smoothness(run: SiteRun) -> tuple[Head, bytes]:
    p = run.built.problem.f
    if not isinstance(p, Linear):
        raise Refused(f"the smoothness of {type(p).__name__} is not known: give steps as numbers")
    with withheld("smoothness failed"):
        return told((p.client_smoothness, p.client_convexity))


def _point(run: SiteRun, letter: Letter) -> tuple[Head, bytes]:
    parts, (x,) = letter.words("parts"), read(letter, 1)
    p = run.built.problem.f
    x = x.to(p.weights)
    if x.shape != (p.d,):
        raise RunError(f"a point has {p.d} numbers, not {tuple(x.shape)}")
    run.follow([x])
    with withheld("a query failed"):
        f = p.local(0, run.here)
        rows: tuple[Tensor, ...] = ()
        if "value" in parts and "gradient" in parts:
            rows = f.value_and_grad(x)
        elif "value" in parts or "gradient" in parts:
            rows = (f.value(x) if "value" in parts else f.full_grad(x),)
        head, body = _averaged(run, letter, tuple(rows), torch.tensor(run.job.weights, dtype=torch.float64))
        if "test" in parts and p.data is not None and p.data.test is not None:
            values, count = run.link.tested(p.evaluate(x), len(p.data.test[1]))
            head |= {"test": values, "rows": count}
    return head, body


def _of_state(run: SiteRun, letter: Letter, what: str) -> tuple[Head, bytes]:
    part, state = run.part, run.state(letter.round)
    if not isinstance(part.algorithm, Graph):
        raise RunError("only clients on a graph have models of their own")
    given = read(letter, None)
    run.follow(given)
    if what == "mean":
        alg, h = part.algorithm, part.problem.h
        with withheld("a query failed"):
            _, stops = replay(lambda mean: alg.model(state, h, mean), given)
        if stops[-1].done:
            return told((stops[-1].value,), done=True)
        return _averaged(run, letter, (stops[-1].value,), _uniform(run), done=False)
    rows = state._asdict().get(letter.word("field"))
    if not isinstance(rows, Tensor):
        raise RunError(f"the states have no field {letter.word('field')!r:.40}")
    if what == "field":
        return _averaged(run, letter, (rows,), _uniform(run))
    return _averaged(run, letter, ((rows - given[0]).square().sum(-1, keepdim=True),), _uniform(run))


def told(tensors: tuple[Tensor, ...], **more: Any) -> tuple[Head, bytes]:
    form, body = pack(tensors, ())
    return {"form": form, **more}, body


def read(letter: Letter, count: int | None) -> list[Tensor]:
    found = unpack(letter.word("form"), letter.body, (), 0, 0)
    good = isinstance(found, tuple) and all(isinstance(x, Tensor) for x in found) and count in (None, len(found))
    if not good:
        raise RunError(f"{letter.kind}: its body is not what was asked for")
    return list(found)
