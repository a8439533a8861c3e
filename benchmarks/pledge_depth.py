"""How fine must PLEDGE's messages up be along a deep tree? Rounds and bytes to 1e-6, by the depth and q2.

Composite FL's Fig. 1 as in the arena, its first draw, with the settings that were tuned with a server: 30 clients along
spanning trees of graphs from a star to a ring. Messages down have q2 = 0.1. What came out is in
docs/explanation/pledge.md. Run: python benchmarks/pledge_depth.py
"""

from __future__ import annotations

from proxfed import Linear, Logistic, load, run
from proxfed.algorithms import Pledge
from proxfed.compressors import ErrorBoundedQuantiser
from proxfed.regularisers import L1
from proxfed.topologies import Grid, Ring, SpanningTree, StarGraph, SymmetricExponentialGraph

GRAPHS = [StarGraph(30), SymmetricExponentialGraph(30), Grid(30, rows=5), Ring(30)]
PARTS = (0.2, 0.1, 0.05, 0.02, 0.01)


def main() -> None:
    data = load("synthetic_binary", alpha=10.0, beta=10.0, clients=30, samples=200, features=60, unit_rows=True)
    problem = Linear(data, Logistic(), l2=0.01) + L1(1e-4)
    best = problem.solve()
    print("| depth |", " | ".join(f"q2 = {q2:g}" for q2 in PARTS), "|")
    print("|---" * (len(PARTS) + 1) + "|")
    for graph in GRAPHS:
        tree = SpanningTree(graph)
        cells = [str(len(tree.rooted.levels) - 1)]
        for q2 in PARTS:
            algorithm = Pledge(2.25, 9, compressor_up=ErrorBoundedQuantiser(q2))
            rows = run(problem, algorithm, rounds=200, topology=tree, reference=best, progress=False).rows
            there = next((row for row in rows if row["error"] < 1e-6), None)
            sent = there and (there["bytes_up"] + there["bytes_down"]) / 1000
            cells.append(f"{there['round']}, {sent:.0f} kB" if there else "-")
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
