"""Peers inside NVIDIA FLARE: messages go from site to site through its Collab API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
from torch import Tensor, nn

from proxfed.engine.bundle import bundle, unbundle
from proxfed.errors import RunError, require, whole
from proxfed.explained import explain
from proxfed.hosts.halves import Sent
from proxfed.hosts.inbox import Inbox, Place
from proxfed.hosts.parameters import as_bytes, flat, from_bytes, named, parameters
from proxfed.hosts.peers import Mixed, PeerSide, check_peers, model_of
from proxfed.hosts.training import Training
from proxfed.silos.wire.message import canonical
from proxfed.silos.wire.message import flat as head_of
from proxfed.types import Graph, Regulariser, Topology

__all__ = ["PeerHalf", "serve_peers"]


def serve_peers(
    algorithm: Graph[Any],
    h: Regulariser,
    module: nn.Module,
    topology: Topology,
    rounds: int,
    *,
    timeout: float = 86400.0,
    watch: Callable[[Mapping[str, int]], object] = lambda counted: None,
    clients: Any = None,
) -> dict[str, Tensor]:
    """Start a walk of all sites as peers, in a function that is collab.main, and return the model of their average.

    The server sends the start and receives the end. In between, messages go from site to site, and all sites take part
    in all rounds.

    Parameters
    ----------
    algorithm : Graph
        Such as PledgePeers(0.1).
    h : Regulariser
        Penalty of the model. Algorithms without prox steps add its subgradient to their gradients.
    module : nn.Module
        Its parameters are trained, from their current values.
    topology : Topology
        Such as Ring(10), with a node for each site, in the order of their names.
    rounds : int
        Communication rounds.
    timeout : float
        Seconds for the whole walk.
    watch : callable
        Called at the end with {"clients", "nonzeros", "bytes"}; bytes of all messages between peers.
    clients : ProxyList, optional
        The sites; None: collab.clients.

    Returns
    -------
    dict of str to Tensor
        The parameters of the model by name.
    """
    require(whole(rounds) and rounds >= 1, f"serve_peers: rounds = {rounds!r} must be a whole number >= 1")
    if clients is None:
        clients = collab().clients
    names, begin = sorted(client.name for client in clients), parameters(module)
    x0 = flat(begin)
    check_peers(algorithm, h, topology, x0, len(names))
    question = bundle([canonical({"rounds": rounds, "names": names}), as_bytes(x0)])
    replies = clients(timeout=timeout).walk(question)
    ends = dict(_end(name, reply, x0) for name, reply in replies)
    missing = [name for name in names if name not in ends]
    if missing:
        why = next((f": {e}" for e in getattr(replies, "failures", {}).values()), "")
        raise RunError(f"{len(missing)} of {len(names)} sites did not come to the end{why:.300}")
    require(len({len(rows) for rows, _ in ends.values()}) == 1, "the sites do not run the same algorithm")
    model = model_of(algorithm, h, x0, [ends[name][0] for name in names])
    sent = sum(size for _, size in ends.values())
    watch({"clients": len(names), "nonzeros": int(model.count_nonzero()), "bytes": sent})
    return named(model, begin)


class PeerHalf:
    """A site's half of an algorithm without a server.

    Parameters
    ----------
    algorithm : Graph
        As the server has it.
    h : Regulariser
        As the server has it.
    topology : Topology
        As the server has it.
    training : callable
        From the name of this site to its Training(module, loss, loader).
    seed : int
        Seed of minibatches and messages; the same at all sites.
    timeout : float
        Seconds to wait for a neighbour's message.
    """

    def __init__(
        self,
        algorithm: Graph[Any],
        h: Regulariser,
        topology: Topology,
        training: Callable[[str], Training],
        *,
        seed: int = 0,
        timeout: float = 3600.0,
    ) -> None:
        self.algorithm, self.h, self.topology, self.training = algorithm, h, topology, training
        self.seed, self.timeout, self.inbox = seed, timeout, Inbox()

    def walk(self, site: str, question: bytes, neighbours: Callable[[list[str]], Any]) -> bytes:
        """All rounds of this site; `neighbours` is collab.get_clients."""
        head, begin = unbundle(question)
        said, walk = head_of(head), sha256(question).hexdigest()
        names, own = said["names"], self.training(site)
        x0 = from_bytes(begin, own.x.dtype)
        check_peers(self.algorithm, self.h, self.topology, x0, len(names))
        side = PeerSide(self.algorithm, self.h, self.topology, own, x0, names.index(site), self.seed)
        self.inbox.begin(walk)
        sent = 0

        def exchange(m: Mixed) -> dict[int, Sent]:
            nonlocal sent
            place = Place(walk, m.round, m.step)
            message = bundle([canonical(place._asdict()), m.sent.form.encode(), m.sent.body])
            if m.to:
                replies = neighbours([names[j] for j in m.to])(timeout=self.timeout).hear(message)
                sent += len(message) * len(m.to)
                for name, e in getattr(replies, "failures", {}).items():
                    raise RunError(f"round {m.round}: {name} could not be reached: {e}")
            found = self.inbox.take([names[j] for j in m.hears], place, self.timeout)
            return {j: _sent(found[names[j]]) for j in m.hears}

        rows = side.walk(int(said["rounds"]), exchange)
        return bundle([canonical({"bytes": sent}), *(as_bytes(x.cpu()) for x in rows)])

    def hear(self, sender: str, message: bytes) -> None:
        """A neighbour's message; `sender` is collab.caller, which FLARE vouches for."""
        said = head_of(unbundle(message)[0])
        good = set(said) == set(Place._fields) and isinstance(said["walk"], str)
        if not (good and whole(said["round"]) and whole(said["step"])):
            raise RunError(f"{sender} sent no message of ours")
        self.inbox.put(sender, Place(**said), message)


def _sent(message: bytes) -> Sent:
    parts = unbundle(message)
    if len(parts) != 3:
        raise RunError("a neighbour sent no message of ours")
    return Sent(parts[1].decode("ascii", "replace"), parts[2])


def _end(name: str, reply: Any, x0: Tensor) -> tuple[str, tuple[list[np.ndarray], int]]:
    """(site, (its rows, the bytes that it sent)); RunError if the reply is not the end of a walk."""
    head, *rows = unbundle(reply) if isinstance(reply, bytes) else [b"{}"]
    size, like = head_of(head).get("bytes"), x0.numpy()
    if not (isinstance(size, int) and all(len(row) == like.nbytes for row in rows)):
        raise RunError(f"{name} sent no end of a walk")
    found = [np.frombuffer(row, like.dtype) for row in rows]
    if not all(np.isfinite(row).all() for row in found):
        raise RunError(f"{name} ended with numbers that are not finite; try smaller steps")
    return name, (found, size)


def collab() -> Any:
    try:
        from nvflare.collab import collab
    except ImportError as error:
        missing = "proxfed.nvflare needs NVIDIA FLARE, which is not installed: pip install 'proxfed[nvflare]'"
        raise ImportError(missing, name="nvflare") from error
    return collab


explain(__name__)
