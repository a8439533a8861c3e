"""Inside Flower: any algorithm with a server as a Flower Strategy, and its other half as a ClientApp.

    app = client_app(FedComposite(0.1, 5), L1(1e-3), training)                     # training(context) -> Training
    ProxfedStrategy(FedComposite(0.1, 5), L1(1e-3)).start(grid, arrays(module), num_rounds=50)

Messages are the bytes that the algorithm's compressor writes, and a client's state lives in Flower's own context. Both
halves have the same algorithm, regulariser and seed. Installed by pip install 'proxfed[flower]'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from logging import INFO
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proxfed.errors import RunError, one_of, require
from proxfed.explained import explain
from proxfed.hosts.halves import Answer, ClientSide, Sent, ServerSide, check
from proxfed.hosts.parameters import flat, named, parameters
from proxfed.hosts.training import Training
from proxfed.participation import Full, UniformSampling
from proxfed.regularisers import Zero
from proxfed.types import Participation, Regulariser, Star

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg
    from flwr.serverapp.strategy.strategy_utils import sample_nodes
except ImportError as error:
    missing = "proxfed.flower needs Flower, which is not installed: pip install 'proxfed[flower]'"
    raise ImportError(missing, name="flwr") from error

__all__ = ["ProxfedStrategy", "Training", "arrays", "client_app"]

MESSAGE, BEGIN, SAID, STATE, ROUNDS = "message", "begin", "said", "proxfed", "proxfed-rounds"
"""Names of records: an algorithm's message, the initial point, the header, and two records of the context."""


def arrays(module: nn.Module) -> ArrayRecord:
    """The trained parameters of a module: the initial arrays of a strategy."""
    return ArrayRecord(parameters(module))


# ---- the server ------------------------------------------------------------------------------------------------------


class ProxfedStrategy(FedAvg):
    """Flower's Strategy for an algorithm with a server; evaluation is that of Flower's FedAvg.

    Metrics of a round: clients that answered, non-zeros of the model, and the bytes of all messages up and down.

    Parameters
    ----------
    algorithm : Star
        Such as FedComposite(0.1, 5).
    h : Regulariser
        Penalty of the model. Algorithms without prox steps add its subgradient to their gradients.
    weighting : str
        'uniform', or 'size' to weight clients by their rows.
    seed : int
        Seed of minibatches and messages; the clients must have the same.
    fraction_train, fraction_evaluate : float
        The fraction of the nodes that train, and that evaluate, in a round.
    min_available_nodes : int
        The strategy waits until this many nodes are connected.
    **evaluation : Any
        Further settings of Flower's FedAvg.
    """

    def __init__(
        self,
        algorithm: Star[Any, Any],
        h: Regulariser = Zero(),
        *,
        weighting: str = "uniform",
        seed: int = 0,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_available_nodes: int = 2,
        **evaluation: Any,
    ) -> None:
        least = {"min_train_nodes": 1, "min_evaluate_nodes": 1} | evaluation
        super().__init__(fraction_train, fraction_evaluate, min_available_nodes=min_available_nodes, **least)
        self.algorithm, self.h, self.weighting, self.seed = algorithm, h, weighting, seed
        one_of(self, "weighting", ("uniform", "size"))
        good = 0 < fraction_train <= 1
        require(good, f"ProxfedStrategy: fraction_train = {fraction_train!r} must be in (0, 1]")
        alone = fraction_train == 1 or weighting == "uniform"
        require(alone, "ProxfedStrategy: weighting = 'size' needs fraction_train = 1: the rows of others are not known")
        self.server: ServerSide | None = None
        self.nodes: list[int] = []
        """All nodes of the last round."""
        self.heard: dict[int, int] = {}
        """The last round of each node whose message arrived."""

    def summary(self) -> None:
        """Say what is run."""
        from flwr.common.logger import log

        log(INFO, "\t├──> Algorithm: %s", self.algorithm)
        log(INFO, "\t└──> Regulariser: %s", self.h)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The server's message, with x0 for nodes that have not answered yet."""
        _, there = sample_nodes(grid, self.min_available_nodes, 1)
        nodes, everyone = sorted(there), self.algorithm.requires().everyone
        if self.server is None:
            self._begin(arrays, len(nodes))
        elif everyone and nodes != self.nodes:
            name = type(self.algorithm).__name__
            raise RunError(f"{name} needs every client in every round, but the nodes changed in round {server_round}")
        assert self.server is not None
        self.nodes = nodes
        chosen = self._participation(len(nodes))(server_round, len(nodes), self.seed)
        self.sent, self.bytes_down = self.server.down(server_round), 0
        messages = []
        for node in (nodes[k] for k in chosen):
            said: dict[str, Any] = {"round": server_round, "heard": self.heard.get(node, 0), "form": self.sent.form}
            content = RecordDict({MESSAGE: _record(self.sent.body), SAID: ConfigRecord(said), "config": config})
            if node not in self.heard:
                content[BEGIN] = self.begin
                self.bytes_down += sum(len(x.data) for x in self.begin.values())
            self.bytes_down += self.sent.nbytes
            messages.append(Message(content, message_type=MessageType.TRAIN, dst_node_id=node))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new state from the messages that arrived, and the model."""
        assert self.server is not None
        good, bad = self._check_and_log_replies(list(replies), is_train=True, validate=False)
        if self.algorithm.requires().everyone and len(good) < len(self.nodes):
            why = f": {bad[0].error.reason:.200}" if bad else ""
            name = type(self.algorithm).__name__
            raise RunError(
                f"{name} needs every client in every round, but {len(self.nodes) - len(good)} of {len(self.nodes)} "
                f"did not answer in round {server_round}{why}"
            )
        if not good:
            return None, None
        answers = [_answer(reply) for reply in good]
        self.server.update(answers, len(self.nodes), self.weighting == "size")
        self.heard |= {reply.metadata.src_node_id: server_round for reply in good}
        x = self.server.model
        counted: dict[str, Any] = {"clients": len(good), "nonzeros": int(x.count_nonzero())}
        counted |= {"bytes-up": sum(a.sent.nbytes for a in answers), "bytes-down": self.bytes_down}
        return self._model(x), MetricRecord(counted)

    def _begin(self, arrays: ArrayRecord, n: int) -> None:
        begin = arrays.to_torch_state_dict()
        kinds = {x.dtype for x in begin.values()}
        good = len(kinds) == 1 and next(iter(kinds)).is_floating_point
        require(good, "ProxfedStrategy: the initial arrays must be parameters of one dtype: take arrays(module)")
        self.form = begin
        x0 = flat(begin)
        check(self.algorithm, self.h, n, len(x0), self._participation(n), x0.dtype)
        self.begin = ArrayRecord({"x0": _array(x0)})
        self.server = ServerSide(self.algorithm, self.h, x0, self.seed)

    def _participation(self, n: int) -> Participation:
        m = max(1, int(n * self.fraction_train))
        return Full() if m == n else UniformSampling(m)

    def _model(self, x: Tensor) -> ArrayRecord:
        return ArrayRecord(named(x, self.form))


def _answer(reply: Message) -> Answer:
    """The reply as an Answer; RunError if it is none."""
    content: Any = reply.content
    try:
        said = content[SAID]
        client, rows, form = said["client"], said["num-examples"], said["form"]
        body = bytes(content[MESSAGE]["body"].data)
    except (KeyError, TypeError, AttributeError) as e:
        raise RunError(f"node {reply.metadata.src_node_id} sent no message of ours: {type(e).__name__}") from e
    good = isinstance(client, int) and isinstance(rows, int) and rows > 0 and isinstance(form, str)
    if not good:
        raise RunError(f"node {reply.metadata.src_node_id} sent no message of ours: client = {client!r:.40}")
    return Answer(client, rows, Sent(form, body))


# ---- a client --------------------------------------------------------------------------------------------------------


def client_app(
    algorithm: Star[Any, Any],
    h: Regulariser,
    training: Callable[[Context], Training],
    *,
    seed: int = 0,
    mods: list[Any] | None = None,
) -> ClientApp:
    """The clients' half of an algorithm as a ClientApp, to which @app.evaluate() may be added.

    Parameters
    ----------
    algorithm : Star
        As the server has it.
    h : Regulariser
        As the server has it.
    training : callable
        From Flower's context to this client's Training(module, loss, loader).
    seed : int
        As the server has it. The key of a client's randomness is `partition-id` of its node's configuration, or else
        the node's own number.
    mods : list, optional
        Flower's mods.
    """
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content: Any = message.content
        said = content[SAID]
        t, heard, down = int(said["round"]), int(said["heard"]), Sent(said["form"], _body(content))
        number = int(context.node_config.get("partition-id", context.node_id)) % 2**63
        own = training(context)
        x0 = _tensor(content[BEGIN]["x0"]) if BEGIN in content else own.x
        side = ClientSide(algorithm, h, own, x0, number, seed)
        state = _state(context, heard, side)
        new, up = side.answer(state, t, down)
        if side.keeps:
            both = {f"now.{k}": x for k, x in new.items()} | {f"before.{k}": x for k, x in state.items()}
            context.state[STATE] = ArrayRecord({name: _array(x) for name, x in both.items()})
            context.state[ROUNDS] = ConfigRecord({"now": t, "before": heard})
        told = ConfigRecord({"form": up.form, "client": number, "num-examples": own.rows})
        return Message(RecordDict({MESSAGE: _record(up.body), SAID: told}), reply_to=message)

    return app


def _state(context: Context, heard: int, side: ClientSide) -> dict[str, Tensor]:
    """The client's state after the last round whose message reached the server."""
    if not side.keeps:
        return {}
    known: Any = context.state
    rounds = known.get(ROUNDS, {})
    for which in ("now", "before"):
        if rounds.get(which) == heard and heard:
            kept = known[STATE]
            return {k.removeprefix(f"{which}."): _tensor(kept[k]) for k in kept if k.startswith(f"{which}.")}
    if heard:
        raise RunError(f"this node has no state of round {heard}, in which the server last heard it: it was lost")
    return side.begin()


# ---- bytes -----------------------------------------------------------------------------------------------------------


def _record(body: bytes) -> ArrayRecord:
    return ArrayRecord({"body": Array("uint8", (len(body),), "proxfed", body)})


def _body(content: Any) -> bytes:
    return bytes(content[MESSAGE]["body"].data)


def _array(x: Tensor) -> Array:
    """The numbers, and nothing else."""
    held = x.detach().cpu().contiguous().numpy()
    return Array(str(held.dtype), tuple(held.shape), "proxfed", held.tobytes())


def _tensor(x: Array) -> Tensor:
    return torch.from_numpy(np.frombuffer(x.data, x.dtype).reshape(x.shape).copy())


explain(__name__)
