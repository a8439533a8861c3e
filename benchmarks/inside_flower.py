"""Rounds and bytes of our algorithms inside Flower, and of Flower's own FedAvg and FedProx, on examples/flower.

    python benchmarks/inside_flower.py [ROUNDS]

All strategies start from the same network, take five local steps of batches of 20 and count clients equally. Those of
Flower add weight |x|_1 to the loss, as people do there. Bytes are those of Flower's own encoding of all messages, both
ways. The nodes are in this process, since bytes and rounds do not depend on that. docs/howto/flower.md shows all rows.
"""

from __future__ import annotations

import copy
import logging
import sys
from pathlib import Path
from typing import Any

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


def measure(name: str, strategy: Any, client: ClientApp, begin: ArrayRecord, rounds: int) -> None:
    X, b = (torch.tensor(part) for part in app.DATA.test)
    grid, seen = Here(client, CLIENTS), []

    def look(t: int, arrays: ArrayRecord) -> None:
        net = copy.deepcopy(app.NETWORK)
        net.load_state_dict(arrays.to_torch_state_dict())
        right = float((net(X.float()).argmax(1) == b).float().mean())
        seen.append((right, sum(int(p.count_nonzero()) for p in net.parameters()), grid.bytes_up, grid.bytes_down))

    strategy.start(grid, begin, num_rounds=rounds, evaluate_fn=look)
    first = next((t for t, row in enumerate(seen) if row[0] >= TARGET), None)
    reached = "-, -, -" if first is None else f"{first}, {seen[first][2] / 1e6:.2f}, {seen[first][3] / 1e6:.2f}"
    print(f"{name} | {reached} | {seen[-1][0]:.3f} | {seen[-1][1]}", flush=True)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    torch.set_num_threads(1)
    torch.manual_seed(0)
    begin = app.arrays(app.NETWORK)
    from flwr.common.logger import FLOWER_LOGGER

    FLOWER_LOGGER.setLevel(logging.ERROR)
    print(f"strategy, step | rounds, MB up, MB down until {TARGET:.0%} | accuracy after {rounds} | non-zeros")
    for eta in STEPS:
        for name, (strategy, mu) in THEIRS.items():
            torch.manual_seed(0)
            measure(f"{name}, {eta}", strategy(), their_app(eta, mu), begin, rounds)
        for name, make in OURS.items():
            a = make(eta)
            strategy = app.ProxfedStrategy(a, app.H, min_available_nodes=CLIENTS)
            measure(f"{name}, {eta}", strategy, app.client_app(a, app.H, app.training), begin, rounds)


if __name__ == "__main__":
    main()
