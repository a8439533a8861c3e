"""What each part of PLEDGE does on a network: MNIST with a server, the tuned settings with one thing changed at a time.

    python benchmarks/pledge_parts.py

Rounds and bytes to 90, 93 and 95 % with the comparison's three seeds; what came out is in docs/explanation/pledge.md.
"""

from __future__ import annotations

from dataclasses import replace

from proxfed import read_study, run
from proxfed.algorithms import Pledge
from proxfed.compressors import ErrorBoundedQuantiser, Identity

TARGETS = (0.9, 0.93, 0.95)
ROUNDS = 40


def variants(tuned: Pledge) -> dict[str, Pledge]:
    coarse, dense = ErrorBoundedQuantiser(0.1), Identity()
    return {
        "as tuned": tuned,
        "no guard": replace(tuned, guard=False),
        "theta = 0.5": replace(tuned, theta=0.5),
        "theta = 0": replace(tuned, theta=0.0),
        "beta = 0, with a step for the same S": replace(tuned, beta=0.0, eta=tuned.S / tuned.tau),
        "q2 = 0.1": replace(tuned, compressor_up=coarse, compressor_down=coarse),
        "nothing compressed": replace(tuned, compressor_up=dense, compressor_down=dense),
    }


def main() -> None:
    study = read_study("arena/mnist_server")
    tuned = study.entries["PLEDGE"].algorithm
    assert isinstance(tuned, Pledge)
    for name, algorithm in variants(tuned).items():
        for seed in (0, 1, 2):
            found = run(study.problem, algorithm, ROUNDS, seed=seed, progress=False)
            there = [next((row for row in found.rows if row["accuracy"] >= target), None) for target in TARGETS]
            cells = ["-" if row is None else f"{row['round']} ({row['bytes_best'] / 1e6:.1f} MB)" for row in there]
            end = f"{found.status}, {100 * found.rows[-1]['accuracy']:.1f} %"
            print(f"{name:40} seed {seed}: {', '.join(cells)}; {end}", flush=True)


if __name__ == "__main__":
    main()
