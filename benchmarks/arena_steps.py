"""How much the step matters: rounds to 1e-6 on arena/composite with the tuned step times 1/4, 1/2, 1, 2 and 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxfed import Depositum, FedComposite, Linear, Logistic, load, run
from proxfed.algorithms import EF21, CompressedDownlink, FedCEF, Pledge, ProxSkip
from proxfed.compressors import ErrorBoundedQuantiser, TopK
from proxfed.errors import RunError
from proxfed.regularisers import L1
from proxfed.topologies import Complete

C = ErrorBoundedQuantiser(0.1)
TUNED: dict[str, tuple[float, Callable[[float], Any]]] = {
    "PLEDGE": (2.25, lambda s: Pledge(s, 9)),
    "FedComposite": (2.25, lambda s: FedComposite(s, 9)),
    "FedCEF": (2.25, lambda s: FedCEF(s, 9, compressor=TopK(fraction=0.5))),
    "DEPOSITUM": (10.96, lambda s: Depositum(s, gamma=0.8, T0=5)),
    "EF21, quantised both ways": (11.38, lambda s: CompressedDownlink(EF21(s, C), C)),
    "ProxSkip": (7.114, lambda s: ProxSkip(s, 0.3)),
}


def main() -> None:
    data = load("synthetic_binary", alpha=10.0, beta=10.0, clients=30, samples=200, features=60, unit_rows=True, seed=0)
    problem = Linear(data, Logistic(), h=L1(1e-4), l2=0.01)
    best = problem.solve()
    for name, (step, make) in TUNED.items():
        graph = Complete(30) if name == "DEPOSITUM" else None
        cells = []
        for times in (0.25, 0.5, 1, 2, 4):
            try:
                algorithm = make(step * times)
                rows = run(problem, algorithm, rounds=250, every=2, topology=graph, reference=best, progress=False).rows
            except RunError:  # it diverged
                rows = []
            cells.append(next((str(row["round"]) for row in rows if row["error"] < 1e-6), "-"))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
