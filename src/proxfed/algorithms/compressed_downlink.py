"""Any algorithm with a server, with its downlink compressed by error feedback.

    server sends    D = C(m - w),   w <- w + D            m: the algorithm's message
    clients         w <- w + D,     and continue as if they had received w

All clients know the same w, so each needs every D: a client that was absent gets the ones that it missed, which are
counted when they are sent. As m converges, m - w and with it the error go to zero: an exact method stays exact, unless
its server relies on clients receiving m itself (`exact_downlink`). w begins at the first message, which follows from
the public starting point.

Reference: K. Gruntkowska, A. Tyurin, P. Richtarik, "EF21-P and Friends: Improved Theoretical Communication Complexity
for Distributed Optimization with Bidirectional Compression", ICML 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from proxfed.errors import InputError, require
from proxfed.keyed_random import Key, fold, keys
from proxfed.types import Compressor, Facts, Local, Message, Needs, Regulariser, Relay, Sends, Star


class Client(NamedTuple):
    own: Any  # state of the algorithm
    w: tuple[Tensor, ...]  # the clients' copy of each vector of the message


class Server(NamedTuple):
    s: Any  # state of the algorithm
    w: tuple[Tensor, ...]  # the clients' copies


@dataclass(frozen=True)
class CompressedDownlink(Star[Client, Server]):
    """An algorithm with a server that sends a compressed difference instead of each vector."""

    star: Star[Any, Any]
    """The algorithm."""
    compressor: Compressor
    """Contractive compressor of the downlink."""

    needs: ClassVar[Needs] = Needs(all_hear=True, contractive=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1, compressed=("down",)), exact=True)

    def __post_init__(self) -> None:
        star, C = self.star, self.compressor
        ours = isinstance(star, Star) and not isinstance(star, type)
        require(
            ours, f"CompressedDownlink: star = {star!r:.80} must be an algorithm with a server, such as FedAvg(0.1, 5)"
        )
        fits = isinstance(C, Compressor) and not isinstance(C, type)
        require(fits, f"CompressedDownlink: compressor = {C!r:.80} must be an object such as TopK(0.1)")
        name, sends = type(star).__name__, star.sends()
        require("down" not in sends.compressed, f"{name} compresses what it sends down itself")
        require(not isinstance(star, Relay), f"{name} compresses its own messages, as a Relay: its downlink is its own")
        whole = f"{name} needs clients that have exactly what its server sent: its downlink cannot be compressed"
        require(not star.requires().exact_downlink, whole)
        needs = star.requires()._replace(all_hear=True, contractive=True, unbiased=False)
        ways = tuple(way for way in ("up", "down") if way == "down" or way in sends.compressed)
        object.__setattr__(self, "needs", needs)
        facts = star.facts._replace(exact=star.is_exact(), exact_partial=star.is_exact(partial=True))
        object.__setattr__(self, "facts", facts._replace(sends=sends._replace(compressed=ways)))

    def steps_for(self, s: float) -> dict[str, float]:
        return self.star.steps_for(s)

    def known_step(self, L: float, rho: float) -> float | None:
        return self.star.known_step(L, rho)

    @property
    def to_find(self) -> tuple[str, ...]:
        return self.star.to_find

    def resolve(self, **steps: float) -> CompressedDownlink:
        return replace(self, star=self.star.resolve(**steps))

    def largest_prox_step(self) -> float:
        return self.star.largest_prox_step()

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        own, s = self.star.init(x0, f, h)
        _, message = self.star.down(s, keys(f.seed, "server message", [0], f.t))
        w = tuple(part for part in _parts(message) if part.shape == x0.shape)
        return Client(own, tuple(map(f.spread, w))), Server(s, w)

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        inner, message = self.star.down(s.s, key)
        vectors = sum(part.shape == s.w[0].shape for part in _parts(message))
        if vectors != len(s.w):
            sends = f"{type(self.star).__name__} sends {vectors} vectors down after {len(s.w)}"
            raise InputError(f"{sends}, but a compressed downlink needs the same ones in every round")
        sent: list[Message] = []
        known: list[Tensor] = []
        for part in _parts(message):
            if part.shape != s.w[0].shape:  # a single number
                sent.append(part)
                continue
            w = s.w[len(known)]
            D = self.compressor((part - w)[None], fold(key, len(known)))
            sent.append(D)
            known.append(w + D.dense[0])
        return Server(inner, tuple(known)), _like(message, sent)

    def client(self, own: Client, D: Message, f: Local, h: Regulariser) -> tuple[Client, Message]:
        read, w = _read(own, D)
        new, up = self.star.client(own.own, _like(D, read), f, h)
        return Client(new, w), up

    def shown(self, own: Client, s: Server) -> dict[str, Tensor]:
        """The diagnostics of the algorithm."""
        fields = own.own._asdict() if hasattr(own.own, "_asdict") else {}
        return {name: x for name, x in fields.items() if isinstance(x, Tensor)} | self.star.shown(own.own, s.s)

    def hear(self, own: Client, D: Message) -> Client:
        return own._replace(w=_read(own, D)[1])

    def server(self, s: Server, up: Message, h: Regulariser, share: float) -> Server:
        return s._replace(s=self.star.server(s.s, up, h, share))

    def carried(self, own: Client, s: Server, h: Regulariser, to: CompressedDownlink) -> tuple[Client, Server]:
        inner, state = self.star.carried(own.own, s.s, h, to.star)
        return own._replace(own=inner), s._replace(s=state)

    def model(self, s: Server, h: Regulariser) -> Tensor:
        return self.star.model(s.s, h)


def _read(own: Client, D: Message) -> tuple[list[Any], tuple[Tensor, ...]]:
    """The parts of the message as clients read it, and those that are vectors."""
    w, d = iter(own.w), own.w[0].shape[-1:]
    read = [next(w) + part if part.shape == d else part for part in _parts(D)]
    return read, tuple(part for part in read if part.shape[-1:] == d)


def _parts(message: Message) -> tuple[Any, ...]:
    return message if isinstance(message, tuple) else (message,)


def _like(message: Message, parts: list[Any]) -> Message:
    """The parts in the form of a message."""
    return tuple(parts) if isinstance(message, tuple) else parts[0]
