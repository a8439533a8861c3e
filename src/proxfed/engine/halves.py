"""The two halves of a round, the clients' and the server's, and the f and h that an algorithm receives.

All engines share them. The engines differ in how the halves exchange messages: in one process or several (`star.py`,
`graph.py`), or between organisations as bytes (`silos/`). Nothing here depends on which half waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.messages import WeightedSum, dense, leaves, rebuild
from proxfed.engine.noise import Noise, NoRows, privatise
from proxfed.epochs import at_steps, epochs_of
from proxfed.errors import require
from proxfed.keyed_random import Ids, keys, normals
from proxfed.regularisers import Zero, subgradient
from proxfed.types import Algorithm, Graph, Local, Message, Mix, Packed, Problem, Regulariser, Relay, Star

# ---- the f and h that an algorithm receives --------------------------------------------------------------------------


@dataclass
class Work:
    """Numbers of evaluations so far, over all clients (and the server)."""

    gradients: int = 0
    proxes: int = 0

    def add(self, *others: Work) -> None:
        self.gradients += sum(other.gradients for other in others)
        self.proxes += sum(other.proxes for other in others)


class Oracle(Local):
    """f as an algorithm sees it: counted, weighted, and including h if the algorithm takes no prox step.

    scale    (c, 1): multiplies f_i, so that plain averages over a graph become weighted ones; None: 1
    inside   a regulariser whose subgradient joins every gradient, for methods without prox; None: nothing
    """

    def __init__(self, f: Local, work: Work, scale: Tensor | None = None, inside: Regulariser | None = None) -> None:
        self.f, self.work, self.scale, self.inside = f, work, scale, inside
        self.t, self.ids, self.seed = f.t, f.ids, f.seed

    def grad(self, x: Tensor, draw: int) -> Tensor:
        return self._complete(self.f.grad(x, draw), x)

    def descend(self, y: Tensor, draws: range, eta: float) -> None:
        if self.scale is not None or self.inside is not None:
            return super().descend(y, draws, eta)
        self.work.gradients += y.shape[0] * len(draws)
        return self.f.descend(y, draws, eta)

    def full_grad(self, x: Tensor) -> Tensor:
        return self._complete(self.f.full_grad(x), x)

    def value(self, x: Tensor) -> Tensor:
        return self._whole(self.f.value(x), x)

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, g = self.f.value_and_grad(x)
        return self._whole(value, x), self._complete(g, x)

    @property
    def l2(self) -> float:
        return self.f.l2

    def hessian(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """A Hessian product counts as a gradient: it reads the data once."""
        times = self.f.hessian(x)

        def counted(V: Tensor) -> Tensor:
            self.work.gradients += V.shape[0]
            return times(V) if self.scale is None else times(V) * self.scale

        return counted

    def _whole(self, value: Tensor, x: Tensor) -> Tensor:
        value = value if self.scale is None else value * self.scale[:, 0]
        return value if self.inside is None else value + self.inside.value(x)

    def _complete(self, g: Tensor, x: Tensor) -> Tensor:
        self.work.gradients += g.shape[0]
        g = g if self.scale is None else g * self.scale
        return g if self.inside is None else g + subgradient(self.inside, x)


def counted(h: Regulariser, work: Work, each: int) -> Regulariser:
    """h, counting its proximal steps in `work`; h = 0 has none."""
    return h if isinstance(h, Zero) else CountedProx(h, work, each)


@dataclass(frozen=True)
class CountedProx(Regulariser):
    """A Regulariser that counts its proximal steps: one per row, and `each` for a shared point."""

    h: Regulariser
    work: Work
    each: int
    """How many compute the prox of a shared point: all clients of a block, or the one server."""

    @property
    def weak_convexity(self) -> float:
        return self.h.weak_convexity

    @property
    def indicator(self) -> bool:
        return self.h.indicator

    def value(self, x: Tensor) -> Tensor:
        return self.h.value(x)

    def prox(self, v: Tensor, step: float) -> Tensor:
        self.work.proxes += v.shape[0] if v.ndim > 1 else self.each
        return self.h.prox(v, step)


# ---- the halves ------------------------------------------------------------------------------------------------------


@dataclass
class Clients:
    """The clients' half: computes for any block of clients; the caller keeps their states."""

    problem: Problem
    kind: InitVar[Algorithm]
    """The algorithm that they run; its steps may change during the run."""
    seed: int = 0
    privacy: Noise | None = None
    """How their messages to a server are clipped and made noisy (noise.py); None: they are not."""
    watch: Callable[[Local], Local] = lambda f: f
    """A wrapper around their f."""

    def __post_init__(self, kind: Algorithm) -> None:
        p, composite = self.problem, kind.needs.composite
        self.inside: Regulariser | None = None if composite or isinstance(p.h, Zero) else p.h
        self.h: Regulariser = p.h if composite else Zero()
        self.x0 = p.start(self.seed)
        uniform = bool((p.f.weights == p.f.weights[0]).all())
        self.scale = None if isinstance(kind, Star) or uniform else p.f.n * p.f.weights[:, None]
        epochs = epochs_of(kind)
        self.steps = None if epochs is None else epochs.steps(p.f, type(kind).__name__)
        """(n,) local steps of each client; None: the algorithm has their number."""

    def oracle(self, t: int, ids: Ids, work: Work) -> Oracle:
        scale = None if self.scale is None else self.scale[_index(ids)]
        return Oracle(self.watch(self.problem.f.local(t, ids, self.seed)), work, scale, self.inside)

    def _known(self, t: int, ids: Ids, work: Work) -> tuple[Oracle, Regulariser]:
        """f and h of these clients, with their evaluations counted."""
        return self.oracle(t, ids, work), counted(self.h, work, len(ids))

    # ---- star --------------------------------------------------------------------------------------------------

    def begin(self, alg: Star[Any, Any], ids: Ids, work: Work) -> tuple[Any, Any]:
        """Their initial states, and the server's, which is the same for any clients."""
        states: tuple[Any, Any] = alg.init(self.x0, *self._known(0, ids, work))
        return states

    def client(self, alg: Star[Any, Any], own: Any, down: Message, t: int, ids: Ids, work: Work) -> tuple[Any, Message]:
        """Their round: (new states, message up); the message of a Relay is not compressed yet."""
        return self._client(alg, own, down, *self._known(t, ids, work), t, ids, work)

    def _client(
        self, alg: Star[Any, Any], own: Any, down: Message, f: Oracle, h: Regulariser, t: int, ids: Ids, work: Work
    ) -> tuple[Any, Message]:
        """Clients with equally many local steps compute together."""
        if self.steps is None:
            return alg.client(own, down, f, h)
        who = np.asarray(ids, np.int64)
        K, group = np.unique(self.steps[who], return_inverse=True)
        if len(K) <= 1:
            return at_steps(alg, int(K[0]) if len(K) else 1).client(own, down, f, h)
        groups = [np.flatnonzero(group == k) for k in range(len(K))]
        rounds = [
            at_steps(alg, int(steps)).client(_rows(own, rows), down, *self._known(t, who[rows], work))
            for steps, rows in zip(K, groups, strict=True)
        ]
        return _together(rounds, np.argsort(np.concatenate(groups)))

    def answer(self, alg: Star[Any, Any], own: Any, down: Message, t: int, ids: Ids, work: Work) -> tuple[Any, Message]:
        """The same, for a server that receives each client's message."""
        f, h = self._known(t, ids, work)
        new, up = self._client(alg, own, down, f, h, t, ids, work)
        if self.privacy is not None:
            sent = self._noisy(alg, own, up, down, t, ids, self.privacy)
            return self.after(alg, own, new, down, sent), sent
        return alg.relay(new, up, 0.0, f.key) if isinstance(alg, Relay) else (new, up)

    def after(self, alg: Star[Any, Any], own: Any, new: Any, down: Message, sent: Message) -> Any:
        """Their states if `sent` was sent instead of the message that belongs to `new`."""
        known = alg.after(own, down, sent, self.h)
        return new if known is None else known

    def without_rows(self, alg: Star[Any, Any], own: Any, down: Message, t: int, ids: Ids) -> Message:
        """What they would send in these states if they had no rows."""
        return alg.client(own, down, Oracle(NoRows(t, ids, self.seed), Work(), None, self.inside), self.h)[1]

    def _noisy(
        self, alg: Star[Any, Any], own: Any, up: Message, down: Message, t: int, ids: Ids, privacy: Noise
    ) -> Message:
        no_rows = self.without_rows(alg, own, down, t, ids)
        u, r = ([dense(leaf) for leaf in leaves(message)] for message in (up, no_rows))
        g = normals(keys(self.seed, "noise", ids, t), sum(x[0].numel() for x in u))
        return rebuild(up, iter(privatise(u, r, privacy, g)))

    # ---- graph -------------------------------------------------------------------------------------------------

    def begin_peers(self, alg: Graph[Any], ids: Ids, work: Work, mix: Mix) -> Any:
        return alg.init(self.x0, *self._known(0, ids, work), mix)

    def before_mix(self, alg: Graph[Any], own: Any, t: int, ids: Ids, work: Work) -> Any:
        return alg.before_mix(own, *self._known(t, ids, work))

    def step(self, alg: Graph[Any], own: Any, t: int, ids: Ids, work: Work, mix: Mix) -> Any:
        return alg.step(own, *self._known(t, ids, work), mix)


@dataclass
class Server:
    """The server's half; the caller keeps its state."""

    algorithm: Star[Any, Any]
    h: Regulariser
    """The regulariser as the algorithm sees it."""
    weights: Tensor
    seed: int = 0

    def down(self, state: Any, t: int) -> tuple[Any, Message]:
        """(new state, message to each client that takes part)."""
        return self.algorithm.down(state, keys(self.seed, "server message", [0], t))

    def add(self, sent: WeightedSum, message: Message, ids: Ids, heard: np.ndarray | None = None) -> None:
        """Add these clients' message to the sum, with their weights; heard: which messages arrived, if not all did."""
        w = self.weights[_index(ids)]
        sent.add(message, w if heard is None else w * torch.from_numpy(heard).to(w.device))

    def update(self, state: Any, mean: Message, cohort: Ids, work: Work, each: int = 1) -> Any:
        """The new state from the weighted mean of the cohort's messages; `each`: how many servers count their work."""
        share = 1.0 if isinstance(cohort, range) else float(self.weights[cohort].sum())
        return self.algorithm.server(state, mean, counted(self.h, work, each), share)


def _rows(state: Any, rows: np.ndarray) -> Any:
    """The states of some clients of a block."""
    return rebuild(state, iter([dense(x)[rows] for x in leaves(state)]))


def _together(rounds: list[tuple[Any, Message]], order: np.ndarray) -> tuple[Any, Message]:
    """(states, messages) of groups of clients as those of one block, whose client k is row order[k] of all groups."""
    columns = list(zip(*map(leaves, rounds), strict=True))
    packed = any(isinstance(part, Packed) for column in columns for part in column)
    require(not packed, "epochs: a client half that compresses takes equally many steps at every client; give a number")
    joined: Any = rebuild(rounds[0], iter([torch.cat([dense(part) for part in column])[order] for column in columns]))
    return joined[0], joined[1]


def _index(ids: Ids) -> slice | Ids:
    """Consecutive ids as a slice, which avoids a copy."""
    return slice(ids.start, ids.stop) if isinstance(ids, range) else ids
