"""Should PLEDGE's messages be coarser while it contracts well, and finer when it stalls? Bytes to 1e-6 on the arena.

A message carries its step, so a sender may choose q2 alone. Here all follow one q2, which moves every five rounds by
the contraction of what the server compresses (peers: all of them together), which is more than senders would know:

    coarser below, finer above     q2 * 1.5 where a round contracts to less than the first, q2 / 2 above the second
    climb                          q2 * 1.4 or / 1.4, on in that direction while it contracts more per byte

What came out is in docs/explanation/pledge.md: no rule helps everywhere, so there is none in the package. On the first
draw of each problem. Run: python benchmarks/pledge_q2.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from proxfed import Linear, Logistic, load, run
from proxfed.algorithms import Pledge, PledgePeers
from proxfed.compressors import ErrorBoundedQuantiser
from proxfed.data.partitions import PARTITIONS
from proxfed.regularisers import L1
from proxfed.topologies import Ring, SpanningTree
from proxfed.types import Problem

LEAST, MOST, ROUNDS = 0.02, 0.25, 5


@dataclass
class Rule:
    """q2 of all messages: as it begins, if there is nothing else to it."""

    q2: float
    coarser: float = -math.inf
    finer: float = math.inf
    climb: bool = False
    norms: list[float] = field(default_factory=list)
    spent: int = 0
    last: float = -math.inf
    way: int = 1

    def see(self, norm: float) -> None:
        """What is to be compressed in this round."""
        self.norms.append(norm)
        if len(self.norms) <= ROUNDS or len(self.norms) % ROUNDS:
            return
        rate = (norm / self.norms[-1 - ROUNDS]) ** (1 / ROUNDS)
        if self.climb:
            gain, self.spent = -math.log(rate) / self.spent, 0
            self.way *= -1 if gain < self.last else 1
            self.last = gain
            self.q2 *= 1.4**self.way
        elif rate < self.coarser:
            self.q2 *= 1.5
        elif rate > self.finer:
            self.q2 /= 2
        self.q2 = min(max(self.q2, LEAST), MOST)


@dataclass(frozen=True)
class Following:
    """The quantiser with the q2 of a rule, or a part of it; one of them tells the rule what there is to compress."""

    unbiased: ClassVar[bool] = False
    rule: Rule
    tells: bool
    part: float = 1.0

    def contraction(self, d: int) -> float:
        return MOST

    def __call__(self, v: Any, key: Any) -> Any:
        if self.tells and v.any():
            self.rule.see(float(v.norm()))
        packed = ErrorBoundedQuantiser(self.part * self.rule.q2)(v, key)
        self.rule.spent += packed.best
        return packed

    def encode(self, packed: Any) -> Any:
        raise NotImplementedError("runs here are in one process")

    def decode(self, messages: Any, d: int, dtype: Any) -> Any:
        raise NotImplementedError("runs here are in one process")


def problems() -> dict[str, tuple[Problem[Linear], Callable[[Rule], Any], Any]]:
    """By name: the problem, PLEDGE with the settings of the arena, and the graph."""
    synthetic = load("synthetic_binary", alpha=10.0, beta=10.0, clients=30, samples=200, features=60, unit_rows=True)
    a9a = load("a9a", limit=2000, test_limit=500, partition=PARTITIONS["shards"](10, seed=0))
    composite = Linear(synthetic, Logistic(), l2=0.01) + L1(1e-4)
    ring = Linear(a9a, Logistic(), l2=0.01) + L1(1e-3)

    def both(rule: Rule, part: float) -> dict[str, Any]:
        return {"compressor_up": Following(rule, False, part), "compressor_down": Following(rule, True)}

    return {
        "composite": (composite, lambda rule: Pledge(2.25, 9, **both(rule, 1.0)), None),
        "tree": (ring, lambda rule: Pledge(0.6461, 8, **both(rule, 0.5)), SpanningTree(Ring(10))),
        "peers": (ring, lambda rule: PledgePeers(1.078, 2, compressor=Following(rule, True)), Ring(10)),
    }


def main() -> None:
    rules: dict[str, dict[str, Any]] = {f"fixed, {q2:g}": {"q2": q2} for q2 in (0.02, 0.05, 0.1, 0.15, 0.2, 0.25)}
    for coarser, finer in ((0.8, 0.9), (0.85, 0.95), (0.9, 0.97)):
        rules[f"coarser below {coarser:g}, finer above {finer:g}"] = {"q2": 0.1, "coarser": coarser, "finer": finer}
    rules["climb"] = {"q2": 0.1, "climb": True}
    known = {name: (*parts, parts[0].solve()) for name, parts in problems().items()}
    for name, (problem, make, graph, best) in known.items():
        for rule, settings in rules.items():
            rounds, every = (400, 2) if name == "peers" else (150, 1)
            algorithm = make(Rule(**settings))
            rows = run(problem, algorithm, rounds, topology=graph, every=every, reference=best, progress=False).rows
            cells = ["-", "-"]
            if there := next((row for row in rows if row["error"] < 1e-6), None):
                sent = sum(there[way] or 0 for way in ("bytes_up", "bytes_down", "bytes_edge"))
                cells = [str(there["round"]), f"{sent / 1000:.1f} kB"]
            print(f"| {name} | {rule} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
