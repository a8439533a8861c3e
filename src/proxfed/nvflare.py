"""Inside NVIDIA FLARE: any algorithm between functions of its Collab API.

With a server:

    half = ClientHalf(FedComposite(0.1, 5), L1(1e-3), training)                # training(site) -> Training

    @collab.publish
    def answer(question: bytes) -> bytes:
        return half.answer(collab.site_name, question)

    @collab.main
    def main():
        model = serve(FedComposite(0.1, 5), L1(1e-3), module, rounds=50)

Between peers, whose messages go from site to site:

    half = PeerHalf(PledgePeers(0.1), L1(1e-3), Ring(10), training)

    @collab.publish
    def walk(question: bytes) -> bytes:
        return half.walk(collab.site_name, question, collab.get_clients)

    @collab.publish
    def hear(message: bytes) -> None:
        half.hear(collab.caller, message)

    @collab.main
    def main():
        model = serve_peers(PledgePeers(0.1), L1(1e-3), module, Ring(10), rounds=50)

Messages are the bytes that the algorithm's compressor writes; a client's state lives in the process of its job. Both
halves have the same algorithm, regulariser and seed. Installed by pip install 'proxfed[nvflare]'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from proxfed.engine.bundle import bundle, unbundle
from proxfed.errors import RunError, require, whole
from proxfed.explained import explain
from proxfed.hosts.halves import Answer, ClientSide, Sent, ServerSide, check
from proxfed.hosts.nvflare_peers import PeerHalf, collab, serve_peers
from proxfed.hosts.parameters import as_bytes, flat, from_bytes, named, parameters
from proxfed.hosts.training import Training
from proxfed.participation import Full
from proxfed.silos.wire.message import canonical
from proxfed.silos.wire.message import flat as head_of
from proxfed.types import Regulariser, Star

__all__ = ["ClientHalf", "PeerHalf", "Training", "serve", "serve_peers"]


def serve(
    algorithm: Star[Any, Any],
    h: Regulariser,
    module: nn.Module,
    rounds: int,
    *,
    seed: int = 0,
    timeout: float = 3600.0,
    watch: Callable[[int, Mapping[str, int]], object] = lambda t, counted: None,
    clients: Any = None,
) -> dict[str, Tensor]:
    """The server's half, in a function that is collab.main: all sites take part in all rounds.

    Parameters
    ----------
    algorithm : Star
        Such as FedComposite(0.1, 5).
    h : Regulariser
        Penalty of the model. Algorithms without prox steps add its subgradient to their gradients.
    module : nn.Module
        Its parameters are trained, from their current values.
    rounds : int
        Communication rounds.
    seed : int
        Seed of minibatches and messages.
    timeout : float
        Seconds for a site's round.
    watch : callable
        Called after each round with its number and {"clients", "nonzeros", "bytes_up", "bytes_down"}.
    clients : ProxyList, optional
        The sites; None: collab.clients.

    Returns
    -------
    dict of str to Tensor
        The parameters of the model by name.
    """
    require(whole(rounds) and rounds >= 1, f"serve: rounds = {rounds!r} must be a whole number >= 1")
    if clients is None:
        clients = collab().clients
    names, begin = sorted(client.name for client in clients), parameters(module)
    x0 = flat(begin)
    check(algorithm, h, len(names), len(x0), Full(), x0.dtype)
    server, heard = ServerSide(algorithm, h, x0, seed), dict.fromkeys(names, 0)
    for t in range(1, rounds + 1):
        sent = server.down(t)
        head = canonical({"round": t, "heard": [heard[name] for name in names], "names": names})
        first = as_bytes(x0) if not all(heard.values()) else b""
        question = bundle([head, sent.form.encode(), sent.body, first])
        replies = clients(timeout=timeout).answer(question)
        answers = [_read(names, name, reply) for name, reply in replies]
        missing = len(names) - len(answers)
        if not answers or (missing and algorithm.requires().everyone):
            why = next((f": {e}" for e in getattr(replies, "failures", {}).values()), "")
            raise RunError(f"{missing} of {len(names)} sites did not answer in round {t}{why:.300}")
        server.update(answers, len(names))
        heard |= {names[answer.client]: t for answer in answers}
        counted = {"clients": len(answers), "nonzeros": int(server.model.count_nonzero())}
        up, down = sum(len(reply) for _, reply in replies), len(question) * len(names)
        watch(t, counted | {"bytes_up": up, "bytes_down": down})
    return named(server.model, begin)


class ClientHalf:
    """A site's half: its answers and its state.

    Parameters
    ----------
    algorithm : Star
        As the server has it.
    h : Regulariser
        As the server has it.
    training : callable
        From the name of this site to its Training(module, loss, loader).
    seed : int
        As the server has it.
    """

    def __init__(
        self, algorithm: Star[Any, Any], h: Regulariser, training: Callable[[str], Training], *, seed: int = 0
    ) -> None:
        self.algorithm, self.h, self.training, self.seed = algorithm, h, training, seed
        self.side: ClientSide | None = None
        self.kept: dict[int, dict[str, Tensor]] = {}
        """Its states after its last two rounds, because a message may be lost."""

    def answer(self, site: str, question: bytes) -> bytes:
        """Its round."""
        head, form, body, x0 = unbundle(question)
        said = head_of(head)
        number = said["names"].index(site)
        t, heard = int(said["round"]), int(said["heard"][number])
        if heard and heard not in self.kept:
            raise RunError(f"{site} has no state of round {heard}, in which the server last heard it: it was lost")
        if self.side is None:
            own = self.training(site)
            begin = from_bytes(x0, own.x.dtype)
            self.side, self.rows = ClientSide(self.algorithm, self.h, own, begin, number, self.seed), own.rows
        state = self.kept[heard] if heard else self.side.begin()
        new, up = self.side.answer(state, t, Sent(form.decode("ascii"), body))
        self.kept = {heard: state, t: new}
        return bundle([canonical({"rows": self.rows}), up.form.encode(), up.body])


def _read(names: list[str], name: str, reply: Any) -> Answer:
    """A site's reply as an Answer; RunError if it is none."""
    if not isinstance(reply, bytes):
        raise RunError(f"{name} sent no message of ours, but a {type(reply).__name__}")
    parts = unbundle(reply)
    rows = head_of(parts[0]).get("rows") if len(parts) == 3 else None
    if not (isinstance(rows, int) and rows > 0):
        raise RunError(f"{name} sent no message of ours")
    return Answer(names.index(name), rows, Sent(parts[1].decode("ascii", "replace"), parts[2]))


explain(__name__)
