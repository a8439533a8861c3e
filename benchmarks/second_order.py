"""Bytes and rounds of Mosaic to 1e-6 and 1e-8, against what no algorithm can beat, and on problems not seen before.

    python benchmarks/second_order.py lab --draws 3
    python benchmarks/second_order.py random --seeds 1000 1060
    python benchmarks/second_order.py hard

lab      the composite problem of the arena, A9A, shifted data, and the first one with a hundredth of its l2
random   l1, group lasso, elastic net and box; logistic and squared loss; kappa from 1 to 1e5; a problem a seed
hard     far starts, features of scales 1 .. 1e3, clients that are all alike, separable data, saturated starts

`--against` runs ProxNewton or PLEDGE as well; both send numbers in 4 bytes, or quantised. The limit is that of
J. Korhonen and D. Alistarh, "Towards Tight Communication Lower Bounds for Distributed Optimisation", NeurIPS 2021,
arXiv:2010.08222: n d log2(1/eps) bits each way, but for a constant.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from math import log2
from typing import NamedTuple

import numpy as np
import torch

from proxfed import Linear, Logistic, load
from proxfed.algorithms import Mosaic, Pledge, ProxNewton
from proxfed.algorithms.proximal_model import Metric, model_step
from proxfed.data.federated import Federated
from proxfed.data.partitions import Shards
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.problems.losses import Squared
from proxfed.regularisers import L1, Box, ElasticNet, GroupLasso, Zero
from proxfed.types import Algorithm, Problem, Regulariser

TARGETS = (1e-3, 1e-6, 1e-8)


class Case(NamedTuple):
    name: str
    problem: Problem[Linear]
    x: torch.Tensor  # its solution


# ---- problems --------------------------------------------------------------------------------------------------------


def curvature(f: Linear, x: torch.Tensor) -> torch.Tensor:
    """The Hessian of f at x, (d, d), column by column."""
    H = f.local(0, range(f.n)).hessian(x)
    return torch.stack([f.weights @ H(e.expand(f.n, -1)) for e in torch.eye(f.d, dtype=f.dtype)])


def solved(p: Problem[Linear]) -> torch.Tensor:
    """argmin f + h by Newton's method with a line search, to rounding error."""
    x = p.h.prox(torch.zeros(p.f.d, dtype=torch.float64), 0.0)
    for _ in range(100):
        B = Metric.full(curvature(p.f, x))
        step, t = model_step(B, x, p.f.gradient(x), p.h, 20_000, 1e-9), 1.0
        while float(p.value(x + t * step)) > float(p.value(x)) * (1 + 1e-14) and t > 1e-6:
            t /= 2
        x = x + t * step
        if float(step.norm()) <= 1e-12 * float(x.norm()):
            break
    return x


def by_coordinates(p: Problem[Linear], lam: float) -> torch.Tensor:
    """The same for l1, with Newton's models minimised coordinate by coordinate: however features are scaled."""
    x = np.zeros(p.f.d)
    for _ in range(100):
        H, g = curvature(p.f, torch.tensor(x)).numpy(), p.f.gradient(torch.tensor(x)).numpy()
        z, far = x.copy(), 1.0
        for _ in range(2000):
            before = z.copy()
            for j in range(len(z)):
                v = H[j, j] * z[j] - g[j] - H[j] @ (z - x)
                z[j] = np.sign(v) * max(abs(v) - lam, 0) / H[j, j]
            if np.abs(z - before).max() <= 1e-15 * np.abs(z).max():
                break
        t, step = 1.0, z - x
        while p.value(torch.tensor(x + t * step)) > p.value(torch.tensor(x)) * (1 + 1e-14) and t > 1e-9:
            t /= 2
        x, far = x + t * step, float(np.linalg.norm(step))
        if far <= 1e-13 * np.linalg.norm(x):
            break
    return torch.tensor(x)


def lab(draws: int) -> Iterator[Case]:
    for k in range(draws):
        named = {
            "composite": Linear(composite(k), Logistic(), l2=0.01) + L1(1e-4),
            "A9A": Linear(load("a9a", Shards(10, seed=k), limit=2000, test_limit=500), Logistic(), l2=0.01) + L1(1e-3),
            "shifted": Linear(
                load("synthetic_shifted", clients=30, samples=300, features=60, seed=k), Logistic(), l2=0.01
            )
            + L1(2e-3),
            "composite, l2 = 1e-3": Linear(composite(k), Logistic(), l2=1e-3) + L1(1e-5),
            "composite, l2 = 1e-4": Linear(composite(k), Logistic(), l2=1e-4) + L1(1e-6),
        }
        for name, p in named.items():
            yield Case(f"{name}, draw {k}", p, solved(p))


def composite(seed: int) -> Federated:
    return load(
        "synthetic_binary", alpha=10.0, beta=10.0, unit_rows=True, seed=seed, clients=30, samples=200, features=60
    )


def random_problem(seed: int) -> Case:
    """Everything is drawn: sizes, loss, spectrum and heterogeneity of the rows, h and its weight, kappa."""
    rng = np.random.default_rng([seed, 35])
    d, n, m = round(10 ** rng.uniform(1, 2.4)), round(10 ** rng.uniform(0.7, 2)), int(rng.integers(15, 80))
    n = max(5, min(n, 8000 // d))
    kind = ("l1", "group", "elastic net", "box")[seed % 4]
    size = int(rng.choice([2, 5]))
    d = max(2 * size, d // size * size) if kind == "group" else d
    squared, apart, decay = bool(rng.integers(2)), float(rng.choice([0, 0.3, 1, 3])), float(rng.choice([0, 1, 2, 3]))
    kappa, one_class = 10 ** rng.uniform(0, 5), not squared and rng.random() < 0.3
    scale = np.logspace(0, -decay / 2, d)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0] if rng.random() < 0.5 else np.eye(d)
    truth = 3 * rng.normal(size=d) * (rng.random(d) < 0.4)
    clients = []
    for i in range(n):
        A = (rng.normal(size=(m, d)) + apart * rng.normal(size=d)) * scale @ turn
        A /= np.sqrt(np.square(A).sum(1).mean())
        s = A @ (truth + min(apart, 1) * rng.normal(size=d))
        if squared:
            b = s + 0.1 * s.std() * rng.normal(size=m)
        else:
            b = (
                np.full(m, 1.0 if i % 2 else -1.0)
                if one_class
                else np.where(s + 0.5 * s.std() * rng.normal(size=m) > 0, 1.0, -1.0)
            )
        clients.append((A, b))
    data, loss = Federated.from_clients(clients), Squared() if squared else Logistic()
    zero = torch.zeros(d, dtype=torch.float64)
    L = float(Metric.full(curvature(Linear(data, loss, l2=0.0), zero)).largest)
    f = Linear(data, loss, l2=L / kappa)
    part, g = float(rng.choice([0.01, 0.1, 0.3])), f.gradient(zero)
    h: Regulariser
    if kind == "l1":
        h = L1(part * float(g.abs().max()))
    elif kind == "group":
        h = GroupLasso(part * float(g.view(-1, size).norm(dim=1).max()), size=size)
    elif kind == "elastic net":
        h = ElasticNet(part * float(g.abs().max()), 0.1 * L / kappa)
    else:
        r = max(float(solved(f + Zero()).abs().quantile(0.7)), 1e-6)
        h = Box(-r, r)
    p = f + h
    words = f"#{seed} n {n} d {d} {'squared' if squared else 'logistic'}{' one class' * one_class} {kind} {part:g}"
    return Case(f"{words} apart {apart:g} decay {decay:g} kappa {kappa:.0f}", p, solved(p))


def hard() -> Iterator[Case]:
    for k, kind in enumerate(("far start", "scaled features", "alike", "separable", "saturated") * 2):
        rng = np.random.default_rng([k, 53])
        n, m, d, l2 = 10, 40, 20, 10 ** rng.uniform(-5, -2)
        A, truth, x0 = rng.normal(size=(n, m, d)), rng.normal(size=d), np.zeros(d)
        b = np.where(A @ truth > 0, 1.0, -1.0)
        if kind == "far start":
            x0 = 10 ** rng.uniform(1, 2) * rng.normal(size=d)
        elif kind == "scaled features":
            A = A * np.logspace(0, 3, d)
        elif kind == "alike":
            A, b = np.tile(A[:1], (n, 1, 1)), np.tile(b[:1], (n, 1))
        elif kind == "separable":
            l2 = 1e-5
        else:
            A, x0 = 10 * A, 30 * rng.normal(size=d)
        p = Linear(Federated.from_clients(list(zip(A, b, strict=True))), Logistic(), l2=l2) + L1(1e-4)
        yield Case(f"{kind} l2 {l2:.0e}", p.starting_at(torch.tensor(x0)), by_coordinates(p, 1e-4))


# ---- runs ------------------------------------------------------------------------------------------------------------


def limit(p: Problem[Linear], eps: float) -> float:
    """Kilobytes."""
    return 2 * p.f.n * p.f.d * log2(1 / eps) / 8e3


def reached(case: Case, algorithm: Algorithm, rounds: int) -> dict[str, tuple[int, float]]:
    """{target: (rounds, kilobytes)}, and the last round with its error; dense numbers in 4 bytes."""
    p, size = case.problem, float(case.x.norm())
    run = run_of(p, algorithm, Stacked(p.f.n, p.f.d))
    found: dict[str, tuple[int, float]] = {}
    dense = 0.5 if isinstance(algorithm, ProxNewton) else 1.0
    for t in range(1, rounds + 1):
        run.round(t)
        error = float((run.model() - case.x).norm()) / size
        kilobytes = dense * (run.network.traffic.up + run.network.traffic.down) / 1e3
        for target in TARGETS:
            if error < target:
                found.setdefault(f"{target:g}", (t, kilobytes))
        if len(found) == len(TARGETS) or not error < 1e9:
            break
    return found | {"last": (t, error)}


def shown(found: dict[str, tuple[int, float]], p: Problem[Linear]) -> str:
    parts = [f"{t:g}: {found[f'{t:g}'][0]} / {found[f'{t:g}'][1]:.1f} kB" for t in TARGETS if f"{t:g}" in found]
    times = found["1e-06"][1] / limit(p, 1e-6) if "1e-06" in found else None
    far = "" if times is None else f" ({times:.1f} times the limit of {limit(p, 1e-6):.1f} kB)"
    return ", ".join(parts) + far + ("" if "1e-08" in found else f" - ends at {found['last'][1]:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("lab", "random", "hard"))
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs=2, default=(1000, 1060))
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--against", nargs="*", default=(), choices=("prox_newton", "pledge"))
    parser.add_argument("--json", help="a file to which a line a problem is appended")
    args = parser.parse_args()
    cases = (
        lab(args.draws) if args.what == "lab" else hard() if args.what == "hard"
        else map(random_problem, range(*args.seeds))
    )  # fmt: skip
    for case in cases:
        s = case.problem.f.smoothness() if args.against else None
        others: dict[str, Algorithm] = (
            {} if s is None else {"prox_newton": ProxNewton(s.L_f), "pledge": Pledge(1 / s.L, guard=False)}
        )
        chosen: dict[str, Algorithm] = {"mosaic": Mosaic(), **{name: others[name] for name in args.against}}
        for name, algorithm in chosen.items():
            start = time.process_time()
            found = reached(case, algorithm, args.rounds)
            print(f"{case.name}: {name} {shown(found, case.problem)}", flush=True)
            if args.json:
                row = {"case": case.name, "algorithm": name, "cpu": time.process_time() - start} | found
                with open(args.json, "a") as out:
                    out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
