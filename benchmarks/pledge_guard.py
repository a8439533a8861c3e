"""Why PLEDGE diverged on networks of the arena, and what its guard does about it.

    python benchmarks/pledge_guard.py cause     20 clients of DFedADMM's MNIST, the settings that diverged, and others
    python benchmarks/pledge_guard.py memory    the norms of the v_i, round by round, without and with the guard
    python benchmarks/pledge_guard.py guard     three failures of the arena, three seeds each, without and with it

What came out is in docs/explanation/pledge.md.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from proxfed import FedComposite, Neural, load, run
from proxfed.algorithms import FedAvg, Pledge
from proxfed.compressors import ErrorBoundedQuantiser, Identity
from proxfed.data.partitions import IID, DirichletByClass, DirichletByClient
from proxfed.regularisers import L1, Zero
from proxfed.topologies import RandomRegular, SpanningTree
from proxfed.types import Algorithm, Problem, Topology

TREE = SpanningTree(RandomRegular(20, degree=9))
DIVERGED = Pledge(0.188, 10, theta=0.3, restart=False, a=0.5, guard=False)
DENSE = replace(DIVERGED, compressor_up=Identity(), compressor_down=Identity())
PLAIN = replace(DENSE, theta=0.0)
FINE = ErrorBoundedQuantiser(0.02)
CAUSES: dict[str, tuple[Algorithm, Topology | None]] = {
    "as it was": (DIVERGED, TREE),
    "q2 = 0.02 both ways": (replace(DIVERGED, compressor_up=FINE, compressor_down=FINE), TREE),
    "no extrapolation": (replace(DIVERGED, theta=0.0), TREE),
    "a = 0.3": (replace(DIVERGED, a=0.3), TREE),
    "with a server": (DIVERGED, None),
    "with a server, nothing compressed": (DENSE, None),
    "also no extrapolation": (PLAIN, None),
    "also a = 1": (replace(PLAIN, a=1.0), None),
    "also five local steps instead of ten": (replace(PLAIN, a=1.0, tau=5), None),
    "also one local step": (replace(PLAIN, a=1.0, tau=1), None),
    "20 local steps of half the length": (replace(PLAIN, a=1.0, eta=0.094, tau=20), None),
    "FedComposite with the same step": (FedComposite(0.188, 10), None),
    "FedAvg with the same step": (FedAvg(0.188, 10), None),
    "as it was, but guarded": (replace(DIVERGED, guard=True), TREE),
}


def twenty_clients() -> Problem[Neural]:
    """The quick form of arena/mnist_100."""
    data = load("mnist", DirichletByClient(20, alpha=0.3), limit=12000, test_limit=2000)
    return Neural(data, "dfedadmm_mlp", batch=32) + Zero()


def ten_clients() -> Problem[Neural]:
    """arena/mnist_server, on 2000 test images."""
    data = load("mnist", DirichletByClass(10, alpha=0.5), test_limit=2000)
    return Neural(data, "mlp", batch=32) + L1(1e-5)


def four_workers() -> Problem[Neural]:
    """arena/mnist_cnn."""
    data = load("mnist", IID(4), limit=10000, test_limit=2000)
    return Neural(data, "fednag_cnn", batch=16, normalise="standard") + Zero()


def outcome(problem: Problem[Neural], algorithm: Algorithm, graph: Topology | None, rounds: int, seed: int) -> str:
    found = run(problem, algorithm, rounds, topology=graph, seed=seed, progress=False)
    percent = [100 * row["accuracy"] for row in found.rows]
    return f"{found.status} in round {found.rows[-1]['round']}, best {max(percent):.1f} %, last {percent[-1]:.1f} %"


def cause() -> None:
    problem = twenty_clients()
    for name, (algorithm, graph) in CAUSES.items():
        print(f"{name:40} {outcome(problem, algorithm, graph, 30, 0)}", flush=True)


def memory() -> None:
    """Of the simplest form that diverges: with a server, nothing compressed, no extrapolation."""
    problem = twenty_clients()
    for guarded in (False, True):
        algorithm, asked = replace(PLAIN, guard=guarded), ["largest_v", "size_v"]
        for row in run(problem, algorithm, 30, measures=asked, progress=False).rows:
            sizes = f"largest {row['largest_v']:.3g}, root mean square {row['size_v'] ** 0.5:.3g}"
            print(f"{'guarded' if guarded else 'as it was':10} round {row['round']:2}: {sizes}", flush=True)


def guard() -> None:
    cnn = Pledge(0.02883, 10, theta=0.0, restart=False, beta=0.8)
    server = Pledge(0.1472, 10, theta=0.5, restart=False, beta=0.5)
    for make, algorithm, graph, rounds in (
        (twenty_clients, DIVERGED, TREE, 30),
        (ten_clients, server, None, 60),
        (four_workers, cnn, None, 25),
    ):
        problem = make()
        for guarded in (False, True):
            for seed in (0, 1, 2):
                said = outcome(problem, replace(algorithm, guard=guarded), graph, rounds, seed)
                print(f"{make.__name__:16} {'guarded' if guarded else 'as it was':10} seed {seed}: {said}", flush=True)


if __name__ == "__main__":
    {"cause": cause, "memory": memory, "guard": guard}[sys.argv[1]]()
