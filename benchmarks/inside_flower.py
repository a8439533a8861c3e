"""Rounds and bytes of our algorithms inside Flower, and of Flower's own FedAvg and FedProx, on examples/flower.

    python benchmarks/inside_flower.py [ROUNDS]

All strategies start from the same network, take five local steps of batches of 20 and count clients equally. Those of
Flower add weight |x|_1 to the loss, as people do there. A seed decides the first network and the minibatches. Bytes are
those of Flower's own encoding of all messages, both ways. The nodes are in this process: bytes and rounds do not depend
on that. docs/howto/flower.md shows all rows.
"""

from __future__ import annotations

import copy
import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedProx

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples" / "flower")]

import app  # noqa: E402

from proxfed import algorithms as ours  # noqa: E402
from proxfed import compressors  # noqa: E402

from support.flower_grid import Here  # noqa: E402

CLIENTS, K, TARGET, MU = 10, 5, 0.9, 0.1
SEEDS = (0, 1, 2)
STEPS = (0.3, 1.0)
TOP, NATURAL = compressors.TopK(fraction=0.05), compressors.NaturalCompressor(contractive=True)
OURS = {
    "FedComposite": lambda eta: ours.FedComposite(eta, K),
    "FedCEF, top 5 %": lambda eta: ours.FedCEF(eta, K, compressor=TOP),
    "PLEDGE, natural both ways": lambda eta: ours.Pledge(eta, K, compressor_up=NATURAL, compressor_down=NATURAL),
    "SCAFFOLD": lambda eta: ours.Scaffold(eta, K),
    "FedNAG, gamma 0.5": lambda eta: ours.FedNAG(eta / 2, 0.5, K),
}
THEIRS = {
    "Flower's FedAvg": (lambda: FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS), 0.0),
    "Flower's FedProx, mu 0.1": (
        lambda: FedProx(fraction_evaluate=0.0, min_available_nodes=CLIENTS, proximal_mu=MU),
        MU,
    ),
}


def their_app(eta: float, mu: float) -> ClientApp:
    """Local SGD as the tutorials of Flower have it, on the loss with h inside."""
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Any) -> Message:
        net, training = copy.deepcopy(app.NETWORK), app.training(context)
        sent: Any = message.content["arrays"]
        net.load_state_dict(sent.to_torch_state_dict())
        start = [p.detach().clone() for p in net.parameters()]
        sgd, done = torch.optim.SGD(net.parameters(), lr=eta), 0
        while done < K:
            for X, b in training.loader:
                sgd.zero_grad()
                h = app.H.weight * sum(p.abs().sum() for p in net.parameters())
                near = mu / 2 * sum((p - q).square().sum() for p, q in zip(net.parameters(), start, strict=True))
                (training.loss(net(X), b) + h + near).backward()
                sgd.step()
                done += 1
                if done == K:
                    break
        told: dict[str, Any] = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(told), reply_to=message)

    return client


class Seen(NamedTuple):
    """After a round."""

    accuracy: float
    nonzeros: int
    up: int
    down: int


def curve(strategy: Any, client: ClientApp, begin: ArrayRecord, rounds: int) -> list[Seen]:
    X, b = (torch.tensor(part) for part in app.DATA.test)
    grid, seen = Here(client, CLIENTS), []

    def look(t: int, arrays: ArrayRecord) -> None:
        net = copy.deepcopy(app.NETWORK)
        net.load_state_dict(arrays.to_torch_state_dict())
        right = float((net(X.float()).argmax(1) == b).float().mean())
        seen.append(Seen(right, sum(int(p.count_nonzero()) for p in net.parameters()), grid.bytes_up, grid.bytes_down))

    strategy.start(grid, begin, num_rounds=rounds, evaluate_fn=look)
    return seen


def initial(seed: int) -> ArrayRecord:
    """Another first network for each seed, which also decides what Flower's strategies and loaders draw."""
    torch.manual_seed(seed)
    random.seed(seed)
    for layer in app.NETWORK:
        if isinstance(layer, torch.nn.Linear):
            layer.reset_parameters()
    return app.arrays(app.NETWORK)


def show(name: str, one: Callable[[int], list[Seen]]) -> None:
    """A line of the table: each seed's rounds to the target, and means over the seeds."""
    curves = [one(seed) for seed in SEEDS]
    first = [next((t for t, row in enumerate(seen) if row.accuracy >= TARGET), None) for seen in curves]
    rounds = ", ".join("-" if t is None else str(t) for t in first)
    there = [seen[t] for seen, t in zip(curves, first, strict=True) if t is not None]
    up, down = ([getattr(row, key) / 1e6 for row in there] for key in ("up", "down"))
    sent = f"{mean(up):.2f} | {mean(down):.2f}" if len(there) == len(SEEDS) else " | "
    last = [seen[-1] for seen in curves]
    right = [100 * row.accuracy for row in last]
    spread = f"{mean(right):.1f} ({min(right):.1f} to {max(right):.1f})"
    print(f"{name} | {rounds} | {sent} | {spread} | {mean(row.nonzeros for row in last):.0f}", flush=True)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    torch.set_num_threads(1)
    from flwr.common.logger import FLOWER_LOGGER

    FLOWER_LOGGER.setLevel(logging.ERROR)
    print(f"strategy | step | rounds to {TARGET:.0%} | MB up | MB down | accuracy after {rounds} | non-zeros")
    for name, (strategy, mu) in THEIRS.items():
        for eta in STEPS:
            show(f"{name} | {eta}", lambda seed: theirs(strategy(), eta, mu, seed, rounds))  # noqa: B023
    for name, make in OURS.items():
        for eta in STEPS:
            show(f"{name} | {eta}", lambda seed: within(make(eta), seed, rounds))  # noqa: B023


def theirs(strategy: Any, eta: float, mu: float, seed: int, rounds: int) -> list[Seen]:
    begin = initial(seed)
    return curve(strategy, their_app(eta, mu), begin, rounds)


def within(a: Any, seed: int, rounds: int) -> list[Seen]:
    begin = initial(seed)
    strategy = app.ProxfedStrategy(a, app.H, seed=seed, min_available_nodes=CLIENTS)
    return curve(strategy, app.client_app(a, app.H, app.training, seed=seed), begin, rounds)


if __name__ == "__main__":
    main()
