"""Algorithms and regularisers that are watched: what an algorithm writes into, and which prox steps it takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from proxfed.engine.messages import dense
from proxfed.keyed_random import Key
from proxfed.testing.law import must
from proxfed.types import Graph, Local, Mean, Message, Mix, Needs, Regulariser, Relay, Star


def tensors(*things: Any) -> Iterator[Tensor]:
    """Those of states and messages."""
    for thing in things:
        if isinstance(thing, tuple):
            yield from tensors(*thing)
        else:
            yield dense(thing)


@contextmanager
def untouched(method: str, **things: Any) -> Iterator[None]:
    """On leaving, all that was handed over is what it was on entering."""
    was = {name: [x.clone() for x in tensors(thing)] for name, thing in things.items()}
    yield
    for name, thing in things.items():
        same = all(torch.equal(now, then) for now, then in zip(tensors(thing), was[name], strict=True))
        must(same, f"{method}() writes into its argument `{name}`: it must make new tensors")


class WatchedStar(Star[Any, Any]):
    """Another algorithm, whose methods must leave their arguments as they are."""

    def __init__(self, inner: Star[Any, Any]) -> None:
        self.inner, self.needs, self.facts = inner, inner.needs, inner.facts  # type: ignore[misc]

    def requires(self) -> Needs:
        return self.inner.requires()

    def largest_prox_step(self) -> float:
        return self.inner.largest_prox_step()

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Any, Any]:
        with untouched("init", x0=x0):
            return self.inner.init(x0, f, h)

    def down(self, s: Any, key: Key) -> tuple[Any, Message]:
        with untouched("down", s=s):
            return self.inner.down(s, key)

    def client(self, own: Any, down: Message, f: Local, h: Regulariser) -> tuple[Any, Message]:
        with untouched("client", own=own, down=down):
            new, up = self.inner.client(own, down, f, h)
        # A client's state may be kept while its message is still on the way.
        states, message = ({x.untyped_storage().data_ptr() for x in tensors(y)} for y in (own, up))
        must(not states & message, "client() sends the memory of its own state: send a copy, such as own.x.clone()")
        return new, up

    def hear(self, own: Any, down: Message) -> Any:
        with untouched("hear", own=own, down=down):
            return self.inner.hear(own, down)

    def server(self, s: Any, up: Message, h: Regulariser, share: float) -> Any:
        with untouched("server", s=s, up=up):
            return self.inner.server(s, up, h, share)

    def model(self, s: Any, h: Regulariser) -> Tensor:
        with untouched("model", s=s):
            return self.inner.model(s, h)


class WatchedRelay(WatchedStar, Relay[Any, Any]):
    """The same of one that can pass messages on."""

    inner: Relay[Any, Any]

    def relay(self, own: Any, up: Tensor, below: Tensor | float, key: Key | None) -> tuple[Any, Message]:
        with untouched("relay", own=own, up=up):
            return self.inner.relay(own, up, below, key)


class WatchedGraph(Graph[Any]):
    """Another algorithm, whose methods must leave their arguments as they are."""

    def __init__(self, inner: Graph[Any]) -> None:
        self.inner, self.needs, self.facts = inner, inner.needs, inner.facts  # type: ignore[misc]

    def largest_prox_step(self) -> float:
        return self.inner.largest_prox_step()

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> Any:
        with untouched("init", x0=x0):
            return self.inner.init(x0, f, h, mix)

    def before_mix(self, s: Any, f: Local, h: Regulariser) -> Any:
        with untouched("before_mix", s=s):
            return self.inner.before_mix(s, f, h)

    def step(self, s: Any, f: Local, h: Regulariser, mix: Mix) -> Any:
        with untouched("step", s=s):
            return self.inner.step(s, f, h, mix)

    def model(self, s: Any, h: Regulariser, mean: Mean) -> Tensor:
        with untouched("model", s=s):
            return self.inner.model(s, h, mean)


class AllInOneStep(WatchedGraph):
    """Another algorithm, doing in its step what it does before it mixes; and its calls of `mix`, counted."""

    calls = 0

    def before_mix(self, s: Any, f: Local, h: Regulariser) -> Any:
        return s

    def step(self, s: Any, f: Local, h: Regulariser, mix: Mix) -> Any:
        def counted(message: Message) -> Tensor:
            self.calls += 1
            return mix(message)

        return self.inner.step(self.inner.before_mix(s, f, h), f, h, counted)


@dataclass(frozen=True)
class Spy(Regulariser):
    """A regulariser that writes down the steps of its prox."""

    h: Regulariser
    steps: list[float] = field(default_factory=list)

    @property
    def weak_convexity(self) -> float:
        return self.h.weak_convexity

    @property
    def indicator(self) -> bool:
        return False

    def value(self, x: Tensor) -> Tensor:
        return self.h.value(x)

    def prox(self, v: Tensor, step: float) -> Tensor:
        self.steps.append(step)
        return self.h.prox(v, step)
