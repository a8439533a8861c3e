"""Clocks for made-up rows."""

from __future__ import annotations

from typing import Any

from proxfed.algorithms import ALGORITHMS
from proxfed.participation import Full, UniformSampling
from proxfed.simulate import Timing, clock
from proxfed.topologies import RandomMatching, Ring
from proxfed.types import Topology

DEVICE = {"seconds_per_step": 1.0}
LINK = {"latency": 0.5, "up": 8.0, "down": 16.0}  # 8 Mbit/s: one million bytes a second
FEDAVG = ALGORITHMS["fedavg"](eta=0.1, K=1)
DPSGD = ALGORITHMS["dpsgd"](eta=0.1)


def timing(*steps: Any, links: list[dict] | None = None, **more: Any) -> Timing:
    return Timing.read({"devices": [{"seconds_per_step": s} for s in steps], "links": links or [LINK], **more})


def star(t: Timing, n: int, participation: Any = Full(), seed: int = 0):
    return clock(t, FEDAVG, participation, None, n, seed)


def graph(t: Timing, topology: Topology, seed: int = 0, algorithm: Any = DPSGD):
    return clock(t, algorithm, Full(), topology, topology.n, seed)


def row(t: int, gradients: float = 0, up: float = 0, down: float = 0, edge: float = 0) -> dict[str, Any]:
    return {"round": t, "gradients": gradients, "bytes_up": up, "bytes_down": down, "bytes_edge": edge}


def timed(t: Timing, seed: int, rows: list[dict]) -> list[float]:
    """A star and two graphs, one after the other."""
    runs = [star(t, 6, UniformSampling(3), seed), graph(t, Ring(6), seed), graph(t, RandomMatching(6), seed)]
    return [run(r) for run in runs for r in rows]


ROWS = [row(0, 6), row(2, 40, 3e5, 6e5, 9e5), row(3, 70, 6e5, 9e5, 2e6), row(9, 200, 2e6, 2e6, 4e6)]
