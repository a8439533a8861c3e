"""The picture on the front page: error against bytes with a server, and the coefficients that one sparse model keeps.

    python benchmarks/front_picture.py        # writes docs/assets/front.svg

Left: sparse logistic regression over 30 clients with heterogeneous data (the demo's problem with fewer samples). Every
method runs with full gradients and the step 1/L or the demo's; bytes are those of all clients, both ways. Right: the
model that `proxfed fit` chooses for the four clinics of examples/tables, on the prepared scale.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from proxfed import L1, FedAvg, FedCEF, FedComposite, FedNAG, Linear, Logistic, Pledge, load, run
from proxfed.algorithms import Mosaic
from proxfed.compressors import TopK
from proxfed.fit import fit
from proxfed.types import Algorithm

ROOT = Path(__file__).parents[1]
COLOURS = ("#888888", "#b07aa1", "#4e79a7", "#76b7b2", "#f28e2b", "#e15759")


def methods() -> dict[str, Algorithm]:
    """As the demo has them; PLEDGE and Mosaic need no step."""
    return {
        "FedAvg": FedAvg(eta=1.0, K=5),
        "FedNAG": FedNAG(eta=0.1, gamma=0.9, tau=5),
        "FedComposite": FedComposite(eta=1.0, tau=5),
        "FedCEF": FedCEF(alpha=1.0, K=5, compressor=TopK(0.1)),
        "PLEDGE": Pledge(eta="auto"),
        "Mosaic": Mosaic(),
    }


def main() -> None:
    data = load("synthetic_binary", alpha=10.0, beta=10.0, clients=30, samples=300)
    problem = Linear(data, Logistic(), l2=0.01) + L1(0.003)
    best = problem.solve()
    plt.rcParams.update(
        {"font.size": 9, "svg.hashsalt": "proxfed", "axes.spines.top": False, "axes.spines.right": False}
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4), width_ratios=(1.15, 1))
    for (name, algorithm), colour in zip(methods().items(), COLOURS, strict=True):
        rows = run(problem, algorithm, rounds=40 if name == "Mosaic" else 150, reference=best).rows
        x = [row["bytes_up"] + row["bytes_down"] for row in rows[1:]]
        y = [row["error"] for row in rows[1:]]
        end = next((k for k, value in enumerate(y) if value <= 1e-8), len(y) - 1)
        left.plot(x[: end + 1], y[: end + 1], color=colour, lw=1.6)
        side = "right" if name in ("FedCEF", "Mosaic") else "left"
        left.annotate(f" {name} ", (x[end], y[end]), color=colour, fontsize=8.5, ha=side, va="center")
    left.set(xscale="log", yscale="log", ylim=(3e-10, 2), xlabel="bytes sent, all clients, both ways")
    left.set_ylabel("relative distance from the solution")
    fitted = fit(ROOT / "examples" / "tables" / "clinics" / "tables.toml", alone=False, repetitions=0)
    kept = [(name, c) for name, c in zip(fitted.design.preparation.names, fitted.fit.x.tolist(), strict=False) if c]
    kept.sort(key=lambda each: abs(each[1]))
    right.barh([name for name, _ in kept], [c for _, c in kept], color="#4e79a7")
    right.axvline(0, color="black", lw=0.8)
    total = len(fitted.design.preparation.names)
    right.set_title(f"{len(kept)} of {total} coefficients, four clinics", fontsize=9)
    right.set_xlabel("coefficient (prepared scale)")
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "assets" / "front.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
