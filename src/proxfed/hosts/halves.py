"""The two halves of a round with a server, for a framework that carries bytes between them.

Messages have a form and a body, as between organisations (silos/wire/message.py): compressed messages as their bytes. A
client's message must have the form, shapes and finite numbers that the algorithm sends; any other is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.compatibility import check_combination, compressors
from proxfed.engine.halves import Clients, Server, Work
from proxfed.engine.messages import WeightedSum, dense, leaves, rebuild, received
from proxfed.engine.network import Stacked
from proxfed.engine.noise import NoRows
from proxfed.engine.states import flatten, restore
from proxfed.errors import RunError, require
from proxfed.hosts.training import OneClient, Training
from proxfed.keyed_random import Ids
from proxfed.participation import Full
from proxfed.silos.wire.message import pack, unpack
from proxfed.types import Algorithm, Local, Message, Participation, Problem, Regulariser, Smooth, Star


class Sent(NamedTuple):
    """An encoded message."""

    form: str
    body: bytes

    @property
    def nbytes(self) -> int:
        return len(self.form) + len(self.body)


class Answer(NamedTuple):
    """A client's message and the client's number."""

    client: int
    """The client's number: the key of its randomness and its place in the sum."""
    rows: int
    sent: Sent


class ClientsElsewhere(Smooth):
    """f of clients whose rows are in other processes."""

    def __init__(self, n: int, x0: Tensor) -> None:
        self.n, self.d = n, len(x0)
        self.weights = torch.full((n,), 1 / n, dtype=x0.dtype)

    def local(self, t: int, ids: Ids, seed: int = 0) -> Local:
        return NoRows(t, ids, seed)


def check(algorithm: Any, h: Regulariser, n: int, d: int, participation: Participation, dtype: torch.dtype) -> None:
    """One sentence if the algorithm does not work for n clients with this participation."""
    name = type(algorithm).__name__
    require(isinstance(algorithm, Star), f"{name} has no server, so that a framework with one cannot run it")
    check_steps(algorithm)
    check_combination(Problem(ClientsElsewhere(n, torch.zeros(d, dtype=dtype)), h), algorithm, None, participation)
    heard = isinstance(participation, Full) or not algorithm.requires().all_hear
    require(heard, f"{name}: clients that sit out a round must also hear its message, so all clients must take part")


def check_steps(algorithm: Algorithm) -> None:
    """One sentence if a step size is not set."""
    found = " and ".join(f"{step} = 'auto'" for step in algorithm.to_find)
    name = type(algorithm).__name__
    require(not found, f"{name}: {found}: steps are found in a simulation only; give numbers")


class ServerSide:
    """The server's half, and its state."""

    def __init__(self, algorithm: Star[Any, Any], h: Regulariser, x0: Tensor, seed: int = 0) -> None:
        self.algorithm, self.problem, self.seed = algorithm, Problem(ClientsElsewhere(1, x0), h, x0), seed
        self.codecs = compressors(algorithm)
        self.clients = Clients(self.problem, algorithm, seed)
        self.nobody, self.state = self.clients.begin(algorithm, range(1), Work())
        self.expected: Message = ()

    def down(self, t: int) -> Sent:
        """The message of round t to each client that takes part."""
        self.state, message = self._half(1).down(self.state, t)
        own = restore(self.nobody, flatten(self.nobody))
        self.expected = self.clients.answer(self.algorithm, own, received(message), t, range(1), Work())[1]
        return Sent(*pack(message, self.codecs))

    def update(self, answers: Sequence[Answer], n: int, by_rows: bool = False) -> None:
        """The new state from the answers of some of the n clients."""
        answers = sorted(answers, key=lambda answer: answer.client)
        numbers = [answer.client for answer in answers]
        twice = next((a for a, b in pairwise(numbers) if a == b), None)
        require(twice is None, f"two clients have the number {twice}: give each a partition-id of its own")
        rows = [self._read(answer) for answer in answers]
        stacked = rebuild(self.expected, iter([torch.cat(leaf) for leaf in zip(*rows, strict=True)]))
        half = self._half(n)
        if by_rows:
            each = [answer.rows for answer in answers]
            half.weights = torch.tensor(each, dtype=half.weights.dtype) / sum(each)
        sent, everyone = WeightedSum(), len(answers) == n
        half.add(sent, stacked, range(len(answers)))
        cohort: Ids = range(n) if everyone else np.arange(len(answers))
        self.state = half.update(self.state, Stacked(n, self.problem.f.d).mean([sent]), cohort, Work())

    @property
    def model(self) -> Tensor:
        """(d,)"""
        return self.algorithm.model(self.state, self.problem.h)

    def _half(self, n: int) -> Server:
        return Server(self.algorithm, self.clients.h, ClientsElsewhere(n, self.clients.x0).weights, self.seed)

    def _read(self, answer: Answer) -> list[Tensor]:
        who, forms = f"client {answer.client}", [dense(leaf) for leaf in leaves(self.expected)]
        try:
            found = [dense(leaf) for leaf in leaves(unpack(*answer.sent, self.codecs, self.problem.f.d, 1))]
        except RunError as e:
            raise RunError(f"{who}: its message cannot be read: {e}") from e
        kinds = ([(tuple(x.shape), x.dtype) for x in message] for message in (found, forms))
        if next(kinds) != next(kinds):
            raise RunError(f"{who}: its message is none of {type(self.algorithm).__name__} for this model")
        if not all(bool(x.isfinite().all()) for x in found if x.is_floating_point()):
            raise RunError(f"{who}: its message has numbers that are not finite; try smaller steps")
        return found


class ClientSide:
    """A client's half. The caller keeps its state, as tensors by name."""

    def __init__(
        self, algorithm: Star[Any, Any], h: Regulariser, training: Training, x0: Tensor, number: int, seed: int = 0
    ) -> None:
        require(len(x0) == len(training.x), f"the server has {len(x0)} parameters, and the module {len(training.x)}")
        self.algorithm, self.number = algorithm, number
        self.clients = Clients(Problem(OneClient(training), h, x0), algorithm, seed)
        self.codecs, self.d, self.device = compressors(algorithm), len(x0), training.x.device

    @cached_property
    def _form(self) -> Any:
        """The form of a state, from a client without rows."""
        x0, inside = self.clients.x0, self.clients
        return self.algorithm.init(x0, NoRows(0, [self.number], 0), inside.h)[0]

    @property
    def keeps(self) -> bool:
        """Whether it has a state from round to round."""
        return bool(flatten(self._form, "own"))

    def begin(self) -> dict[str, Tensor]:
        """Its state before its first round."""
        return flatten(self.clients.begin(self.algorithm, np.array([self.number]), Work())[0], "own")

    def answer(self, state: Mapping[str, Tensor], t: int, down: Sent) -> tuple[dict[str, Tensor], Sent]:
        """Its round: (new state, message up)."""
        message = unpack(*down, self.codecs, self.d, 1, shared=True)
        message = rebuild(message, iter([dense(leaf).to(self.device) for leaf in leaves(message)]))
        own = restore(self._form, dict(state), "own")
        new, up = self.clients.answer(self.algorithm, own, message, t, np.array([self.number]), Work())
        return flatten(new, "own"), Sent(*pack(up, self.codecs))
