"""How many rounds and bytes to the solution when only some clients take part? Methods that stay exact.

python benchmarks/participation.py [NAME ...]

The problem of the demo with 100 samples a client; methods without prox get the same with a squared l2 norm in the place
of l1. Five local steps. For each method and each part of the clients five local step sizes are tried, and the one with
the fewest rounds to a relative error of 1e-6 is shown. Bytes are those of all clients together, 8 a dense number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch

from proxfed import Linear, Logistic, load
from proxfed import algorithms as alg
from proxfed.compressors import ErrorBoundedQuantiser, NaturalCompressor, TopK
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.participation import Full, UniformSampling
from proxfed.regularisers import L1, SquaredL2
from proxfed.types import Participation, Problem, Star

K, CLIENTS, TARGET = 5, 30, 1e-6
STEPS = (0.5, 1.0, 2.0, 4.0, 8.0)
PARTS: dict[str, tuple[Participation, int]] = {
    "100 %": (Full(), 500),
    "30 %": (UniformSampling(9), 1000),
    "10 %": (UniformSampling(3), 2500),
}
TOP, FINE = TopK(fraction=0.3), ErrorBoundedQuantiser(0.1)
METHODS: dict[str, Callable[[float], Star[Any, Any]]] = {
    "FedComposite": lambda s: alg.FedComposite(s, K),
    "FedCEF, dense": lambda s: alg.FedCEF(s, K),
    "FedCEF, top 30 %": lambda s: alg.FedCEF(s, K, compressor=TOP),
    "FedCEF, quantised": lambda s: alg.FedCEF(s, K, compressor=FINE),
    "FedComposite, quantised down": lambda s: alg.CompressedDownlink(alg.FedComposite(s, K), FINE),
    "PLEDGE, theta = 0": lambda s: alg.Pledge(s, K, 0.0, False),
    "ProxSkip": lambda s: alg.ProxSkip(s, 1 / K),
    "FedDR": lambda s: alg.FedDR(K * s, s, K),
    "FedADMM": lambda s: alg.FedADMM(1 / (K * s), s, K),
    "EF21, top 30 %": lambda s: alg.EF21(s, TOP),
    "EF21-SGDM, top 30 %": lambda s: alg.EF21SGDM(s, 0.5, TOP),
    "SCAFFOLD": lambda s: alg.Scaffold(s, K),
    "SCAFCOM, top 30 %": lambda s: alg.Scafcom(s, K, TOP, beta=0.5),
    "SCALLION": lambda s: alg.Scallion(s, K, NaturalCompressor(), alpha=0.5),
    "FedDyn": lambda s: alg.FedDyn(s, K, 1 / (K * s)),
    "FedSplit": lambda s: alg.FedSplit(K * s, s, K),
    "FedPD": lambda s: alg.FedPD(K * s, s, K),
    "EF21-BC, top 30 %": lambda s: alg.EF21BC(s, TOP, TOP),
}


def problem(composite: bool) -> Problem[Linear]:
    data = load("synthetic_binary", alpha=10.0, beta=10.0, clients=CLIENTS, samples=100)
    return Linear(data, Logistic(), l2=0.01) + (L1(0.003) if composite else SquaredL2(0.003))


def some(a: Any) -> Any:
    """The same, for clients that may stay away."""
    if isinstance(a, alg.CompressedDownlink):
        return replace(a, star=some(a.star))
    return replace(a, partial=True) if "partial" in {f.name for f in fields(a)} else a


def effort(
    p: Problem[Linear], best: torch.Tensor, a: Star[Any, Any], participation: Participation, most: int
) -> tuple[float, int, float]:
    """(smallest error, rounds, bytes) at the target, or after the last round."""
    run, least = run_of(p, a, Stacked(p.f.n, p.f.d), participation), 1.0
    for t in range(1, most + 1):
        run.round(t)
        error = float((run.model() - best).norm() / best.norm())
        least = min(least, error)
        if error < TARGET or not error < 1e3:
            break
    return least, t, run.counters()["bytes_up"] + run.counters()["bytes_down"]


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    problems = {composite: problem(composite) for composite in (True, False)}
    solutions = {composite: p.solve() for composite, p in problems.items()}
    print("| method |", " | ".join(PARTS), "|")
    print("|---" * (len(PARTS) + 1) + "|")
    for name in names or METHODS:
        cells = []
        for participation, most in PARTS.values():
            found = []
            for s in STEPS:
                a = METHODS[name](s) if isinstance(participation, Full) else some(METHODS[name](s))
                composite = a.needs.composite
                found.append((*effort(problems[composite], solutions[composite], a, participation, most), s))
                if found[-1][0] < TARGET:  # a longer run than the best so far is of no interest
                    most = min(most, found[-1][1])
            error, rounds, size, s = min(found, key=lambda f: (f[0] >= TARGET, f[1] if f[0] < TARGET else f[0]))
            there = f"{rounds} rounds, {size / 1e6:.2f} MB (step {s:g})"
            cells.append(there if error < TARGET else f"not in {most}: {error:.0e}")
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
