"""The methods with a server against their papers' recursions, written in NumPy, one client after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest

from proxfed import Linear
from proxfed.algorithms.error_feedback import EF14
from proxfed.algorithms.fast_fedda import FastFedDA
from proxfed.algorithms.fedcanon import FedCanon
from proxfed.algorithms.feddr import FedDR
from proxfed.algorithms.feddualavg import FedDualAvg
from proxfed.algorithms.fedmid import FedMiD
from proxfed.algorithms.fedmom import FedMom
from proxfed.algorithms.fednova import FedNova
from proxfed.algorithms.fedopt import FedOpt
from proxfed.algorithms.fedpaq import FedPAQ
from proxfed.algorithms.fedpd import FedPD
from proxfed.algorithms.fedprox import FedProx
from proxfed.algorithms.fedsam import MoFedSAM
from proxfed.algorithms.fedspeed import FedSpeed
from proxfed.algorithms.fedsplit import FedSplit
from proxfed.algorithms.local_steps import trials
from proxfed.algorithms.mime import Mime, MimeLite
from proxfed.algorithms.proxskip import ProxSkip
from proxfed.algorithms.scafcom import Scallion
from proxfed.algorithms.slowmo import SlowMo
from proxfed.compressors import TopK
from proxfed.regularisers import Zero
from proxfed.types import Algorithm, Problem

from support import numpy_references as ref
from support import toy_problems as toy

SMOOTH = toy.problem(h=Zero(), batch=4)
WEIGHTED = toy.problem(h=Zero(), batch=4, sizes=toy.RAGGED, weighting="size")
COMPOSITE = toy.problem(batch=4)

# Each yields the model after every round, for clients 0..n-1 that all take part.

Grad = Callable[..., np.ndarray]
PROX = ref.prox_l1(toy.LAMBDA)


def local_sgd(grad: Grad, i: int, x: np.ndarray, t: int, eta: float, K: int) -> np.ndarray:
    y = x
    for k in range(K):
        y = y - eta * grad(i, y, t, k)
    return y


def sharp(grad: Grad, i: int, y: np.ndarray, t: int, k: int, rho: float) -> np.ndarray:
    g = grad(i, y, t, k)
    return grad(i, y + rho * g / np.linalg.norm(g), t, k)


def fedprox(grad: Grad, n: int, x: np.ndarray, eta: float, K: int, mu: float) -> Iterator[np.ndarray]:
    for t in count(1):
        ys = []
        for i in range(n):
            y = x
            for k in range(K):
                y = y - eta * (grad(i, y, t, k) + mu * (y - x))
            ys.append(y)
        x = np.mean(ys, 0)
        yield x


def mofedsam(grad: Grad, n: int, x: np.ndarray, eta: float, K: int, beta: float, rho: float) -> Iterator[np.ndarray]:
    delta = 0 * x
    for t in count(1):
        changes = []
        for i in range(n):
            y = x
            for k in range(K):
                y = y - eta * (beta * sharp(grad, i, y, t, k, rho) + (1 - beta) * delta)
            changes.append(y - x)
        delta = -np.mean(changes, 0) / (eta * K)
        x = x + np.mean(changes, 0)
        yield x


def fedspeed(
    grad: Grad, n: int, x: np.ndarray, eta: float, K: int, lam: float, rho: float, alpha: float
) -> Iterator[np.ndarray]:
    dual = [0 * x] * n
    for t in count(1):
        sent = []
        for i in range(n):
            y = x
            for k in range(K):
                g = (1 - alpha) * grad(i, y, t, k) + alpha * sharp(grad, i, y, t, k, rho)
                y = y - eta * (g - dual[i] + (y - x) / lam)
            dual[i] = dual[i] - (y - x) / lam
            sent.append(y - lam * dual[i])
        x = np.mean(sent, 0)
        yield x


def fedmom(grad: Grad, n: int, w: np.ndarray, eta: float, K: int, gamma: float, eta_g: float) -> Iterator[np.ndarray]:
    v = w
    for t in count(1):
        new = w - eta_g * np.mean([w - local_sgd(grad, i, w, t, eta, K) for i in range(n)], 0)
        w, v = new + gamma * (new - v), new
        yield w


def slowmo(grad: Grad, n: int, x: np.ndarray, eta: float, K: int, beta: float, alpha: float) -> Iterator[np.ndarray]:
    u = 0 * x
    for t in count(1):
        average = np.mean([local_sgd(grad, i, x, t, eta, K) for i in range(n)], 0)
        u = beta * u + (x - average) / eta
        x = x - alpha * eta * u
        yield x


def fedopt(grad: Grad, n: int, x: np.ndarray, eta: float, K: int, s: FedOpt) -> Iterator[np.ndarray]:
    eta_g, rule, tau, beta1, beta2 = s.eta_g, s.rule, s.tau, s.beta1, s.beta2
    m, v = np.zeros(len(x)), np.full(len(x), tau**2)
    for t in count(1):
        D = np.mean([local_sgd(grad, i, x, t, eta, K) - x for i in range(n)], 0)
        m = beta1 * m + (1 - beta1) * D
        for j in range(len(x)):
            if rule == "adagrad":
                v[j] = v[j] + D[j] ** 2
            elif rule == "adam":
                v[j] = beta2 * v[j] + (1 - beta2) * D[j] ** 2
            else:
                v[j] = v[j] + (1 - beta2) * D[j] ** 2 if v[j] < D[j] ** 2 else v[j] - (1 - beta2) * D[j] ** 2
        x = x + eta_g * m / (np.sqrt(v) + tau)
        yield x


def mimelite(
    grad: Grad, full: Grad, n: int, x: np.ndarray, eta: float, K: int, beta: float, eta_g: float
) -> Iterator[np.ndarray]:
    m = 0 * x
    for t in count(1):
        ys = []
        for i in range(n):
            y = x
            for k in range(K):
                y = y - eta * ((1 - beta) * grad(i, y, t, k) + beta * m)
            ys.append(y)
        c = np.mean([full(i, x) for i in range(n)], 0)
        x, m = x + eta_g * (np.mean(ys, 0) - x), (1 - beta) * c + beta * m
        yield x


def mime(
    grad: Grad, full: Grad, n: int, x: np.ndarray, eta: float, K: int, beta: float, eta_g: float
) -> Iterator[np.ndarray]:
    m = 0 * x
    for t in count(2, 2):
        yield x  # the round that collects c
        c = np.mean([full(i, x) for i in range(n)], 0)
        ys = []
        for i in range(n):
            y = x
            for k in range(K):
                y = y - eta * ((1 - beta) * (grad(i, y, t, k) - grad(i, x, t, k) + c) + beta * m)
            ys.append(y)
        x, m = x + eta_g * (np.mean(ys, 0) - x), (1 - beta) * c + beta * m
        yield x


def fednova(grad: Grad, steps: list[int], x: np.ndarray, eta: float, rho: float) -> Iterator[np.ndarray]:
    n = len(steps)
    a = [sum((1 - rho ** (K - k)) / (1 - rho) for k in range(K)) for K in steps]
    for t in count(1):
        d = []
        for i in range(n):
            y, u = x, 0 * x
            for k in range(steps[i]):
                u = rho * u + grad(i, y, t, k)
                y = y - eta * u
            d.append((x - y) / (eta * a[i]))
        x = x - np.mean(a) * eta * np.mean(d, 0)
        yield x


def fedsplit(grad: Grad, n: int, x: np.ndarray, s: float, eta: float, K: int) -> Iterator[np.ndarray]:
    z = [x] * n
    for t in count(1):
        for i in range(n):
            u, anchor = x, 2 * x - z[i]
            for k in range(K):
                u = u - eta * (grad(i, u, t, k) + (u - anchor) / s)
            z[i] = z[i] + 2 * (u - x)
        x = np.mean(z, 0)
        yield x


def fedpd(
    grad: Grad, n: int, x: np.ndarray, eta: float, eta_l: float, K: int, passes: Callable[[int], int]
) -> Iterator[np.ndarray]:
    y, lam = [x] * n, [0 * x] * n
    for t in count(1):
        own = [x] * n
        for j in range(passes(t)):
            for i in range(n):
                for k in range(K):
                    y[i] = y[i] - eta_l * (grad(i, y[i], t, j * K + k) + lam[i] + (y[i] - own[i]) / eta)
                lam[i] = lam[i] + (y[i] - own[i]) / eta
                own[i] = y[i] + eta * lam[i]
        x = np.mean(own, 0)
        yield x


def fedmid(grad: Grad, n: int, x: np.ndarray, eta: float, K: int, eta_g: float, s: float) -> Iterator[np.ndarray]:
    for t in count(1):
        ys = []
        for i in range(n):
            y = x
            for k in range(K):
                y = PROX(y - eta * grad(i, y, t, k), eta)
            ys.append(y)
        x = PROX(x + eta_g * (np.mean(ys, 0) - x), s)
        yield x


def feddualavg(grad: Grad, n: int, z: np.ndarray, eta: float, K: int, eta_g: float) -> Iterator[np.ndarray]:
    for r in count(0):
        sent = []
        for i in range(n):
            own = z
            for k in range(K):
                w = PROX(own, eta_g * eta * r * K + eta * k)
                own = own - eta * grad(i, w, r + 1, k)
            sent.append(own)
        z = z + eta_g * (np.mean(sent, 0) - z)
        yield PROX(z, eta_g * eta * (r + 1) * K)


def fast_fedda(
    grad: Grad, n: int, x0: np.ndarray, mu: float, gamma: float, K: int, official: bool
) -> Iterator[np.ndarray]:
    """With the sum of gradients G and that of points X apart, as in the authors' code."""
    G, X, w = 0 * x0, x0 if official else 0 * x0, x0

    def point(G: np.ndarray, X: np.ndarray, e: int) -> np.ndarray:
        a, b = (G - mu / 2 * X - gamma * x0) / e, mu / 2 + gamma / e
        return PROX(-a / b, 1 / b)

    for r in count(1):
        Gs, Xs = [], []
        for i in range(n):
            g, s, own = G, X, w
            for k in range(1, K + 1):
                g = g + grad(i, own, r, k - 1)
                own = point(g, s, (r - 1) * K + k)
                s = s + own
            Gs.append(g)
            Xs.append(s)
        G, X = np.mean(Gs, 0), np.mean(Xs, 0)
        w = point(G, X, r * K)
        X = X + w if official else X
        yield w


def feddr(grad: Grad, n: int, x: np.ndarray, eta: float, eta_l: float, K: int, alpha: float) -> Iterator[np.ndarray]:
    y, own = [x] * n, [x] * n
    for t in count(1):
        hats = []
        for i in range(n):
            y[i] = y[i] + alpha * (x - own[i])
            for k in range(K):
                own[i] = own[i] - eta_l * (grad(i, own[i], t, k) + (own[i] - y[i]) / eta)
            hats.append(2 * own[i] - y[i])
        x = PROX(np.mean(hats, 0), eta)
        yield x


def fedcanon(grad: Grad, n: int, z: np.ndarray, alpha: float, K: int, beta: float) -> Iterator[np.ndarray]:
    c, own = 0 * z, [0 * z] * n
    for t in count(1):
        for i in range(n):
            y = z
            for k in range(K):
                y = y - alpha * (grad(i, y, t, k) + c - own[i])
            own[i] = own[i] - c + (z - y) / (alpha * K)
        c = np.mean(own, 0)
        z = PROX(z - beta * c, beta)
        yield z


def proxskip(
    grad: Grad, n: int, x0: np.ndarray, gamma: float, p: float, throws: Callable[[int], int]
) -> Iterator[np.ndarray]:
    x, c = [x0] * n, [0 * x0] * n
    for t in count(1):
        last = throws(t) - 1
        for k in range(last + 1):
            hat = [x[i] - gamma * (grad(i, x[i], t, k) - c[i]) for i in range(n)]
            if k == last:
                x = [PROX(np.mean([hat[i] - gamma / p * c[i] for i in range(n)], 0), gamma / p)] * n
            else:
                x = hat
            c = [c[i] + p / gamma * (x[i] - hat[i]) for i in range(n)]
        yield x[0]


def ef14(grad: Grad, n: int, x: np.ndarray, gamma: float, C: Callable) -> Iterator[np.ndarray]:
    e = [0 * x] * n
    for t in count(1):
        sent = []
        for i in range(n):
            e[i] = e[i] + gamma * grad(i, x, t, 0)
            sent.append(C(e[i]))
            e[i] = e[i] - sent[i]
        x = x - np.mean(sent, 0)
        yield x


def fedpaq(grad: Grad, n: int, x: np.ndarray, eta: float, K: int, C: Callable) -> Iterator[np.ndarray]:
    for t in count(1):
        x = x + np.mean([C(local_sgd(grad, i, x, t, eta, K) - x) for i in range(n)], 0)
        yield x


def scallion(
    grad: Grad, n: int, x: np.ndarray, eta: float, K: int, C: Callable, alpha: float, eta_g: float
) -> Iterator[np.ndarray]:
    c, own = 0 * x, [0 * x] * n
    for t in count(1):
        sent = []
        for i in range(n):
            y = x
            for k in range(K):
                y = y - eta * (grad(i, y, t, k) + c - own[i])
            sent.append(C(alpha * ((x - y) / (eta * K) - c)))
            own[i] = own[i] + sent[i]
        x = x - eta_g * eta * K * np.mean([s + c for s in sent], 0)
        c = c + np.mean(sent, 0)
        yield x


def steps_of(p: Problem[Linear], algorithm: FedNova) -> list[int]:
    steps = [int(k) for k in toy.started(p, algorithm).state.clients.steps.flatten()]
    assert min(steps) >= algorithm.K_min
    assert max(steps) <= algorithm.K
    assert len(set(steps)) > 1
    return steps


S, C = SMOOTH, COMPOSITE
ADAM, YOGI = FedOpt(0.5, 3, 0.1, "adam", 0.01), FedOpt(0.5, 3, 0.1, "yogi", 0.01, 0.5, 0.7)
ADAGRAD = FedOpt(0.5, 3, 0.1, "adagrad", 0.01, beta1=0.0)
RECURSIONS: dict[str, tuple[Problem[Linear], Algorithm, Callable[[Grad, np.ndarray], Iterator[np.ndarray]]]] = {
    "fedprox": (S, FedProx(0.5, 3, 0.3), lambda g, x: fedprox(g, 5, x, 0.5, 3, 0.3)),
    "mofedsam": (S, MoFedSAM(0.5, 3, 0.4, 0.2), lambda g, x: mofedsam(g, 5, x, 0.5, 3, 0.4, 0.2)),
    "fedspeed": (S, FedSpeed(0.5, 3, 4.0, 0.2, 0.3), lambda g, x: fedspeed(g, 5, x, 0.5, 3, 4.0, 0.2, 0.3)),
    "fedmom": (S, FedMom(0.5, 3, 0.6, 0.8), lambda g, x: fedmom(g, 5, x, 0.5, 3, 0.6, 0.8)),
    "slowmo": (S, SlowMo(0.5, 3, 0.6, 0.8), lambda g, x: slowmo(g, 5, x, 0.5, 3, 0.6, 0.8)),
    "fedadam": (S, ADAM, lambda g, x: fedopt(g, 5, x, 0.5, 3, ADAM)),
    "fedyogi": (S, YOGI, lambda g, x: fedopt(g, 5, x, 0.5, 3, YOGI)),
    "fedadagrad": (S, ADAGRAD, lambda g, x: fedopt(g, 5, x, 0.5, 3, ADAGRAD)),
    "mimelite": (
        S,
        MimeLite(0.5, 3, 0.6, 0.8),
        lambda g, x: mimelite(g, toy.gradient(toy.problem(h=Zero())), 5, x, 0.5, 3, 0.6, 0.8),
    ),
    "mime": (
        S,
        Mime(0.5, 3, 0.6, 0.8),
        lambda g, x: mime(g, toy.gradient(toy.problem(h=Zero())), 5, x, 0.5, 3, 0.6, 0.8),
    ),
    "fednova": (
        S,
        FedNova(0.5, 6, 2, 0.4),
        lambda g, x: fednova(g, steps_of(S, FedNova(0.5, 6, 2, 0.4)), x, 0.5, 0.4),
    ),
    "fedsplit": (S, FedSplit(4.0, 0.5, 3), lambda g, x: fedsplit(g, 5, x, 4.0, 0.5, 3)),
    "fedpd": (
        S,
        FedPD(4.0, 0.5, 3, p=0.6, seed=3),
        lambda g, x: fedpd(g, 5, x, 4.0, 0.5, 3, lambda t: trials(0.4, 3, t)),
    ),
    "fedmid": (C, FedMiD(0.5, 3, 0.8), lambda g, x: fedmid(g, 5, x, 0.5, 3, 0.8, 0.8 * 0.5 * 3)),
    "fedmid 1": (C, FedMiD(0.5, 3, 0.8, "1"), lambda g, x: fedmid(g, 5, x, 0.5, 3, 0.8, 0.8 * 0.5)),
    "feddualavg": (C, FedDualAvg(0.5, 3, 0.8), lambda g, x: feddualavg(g, 5, x, 0.5, 3, 0.8)),
    "fast_fedda": (C, FastFedDA(0.05, 2.0, 3), lambda g, x: fast_fedda(g, 5, x, 0.05, 2.0, 3, False)),
    "fast_fedda official": (C, FastFedDA(0.05, 2.0, 3, True), lambda g, x: fast_fedda(g, 5, x, 0.05, 2.0, 3, True)),
    "feddr": (C, FedDR(4.0, 0.5, 3, 1.7), lambda g, x: feddr(g, 5, x, 4.0, 0.5, 3, 1.7)),
    "fedcanon": (C, FedCanon(0.5, 3, 0.8), lambda g, x: fedcanon(g, 5, x, 0.5, 3, 0.8 * 0.5 * 3)),
    "proxskip": (C, ProxSkip(0.5, 0.4, 3), lambda g, x: proxskip(g, 5, x, 0.5, 0.4, lambda t: trials(0.4, 3, t))),
    "ef14": (S, EF14(0.5, TopK(k=2)), lambda g, x: ef14(g, 5, x, 0.5, ref.top_k(2))),
    "fedpaq": (S, FedPAQ(0.5, 3, TopK(k=2)), lambda g, x: fedpaq(g, 5, x, 0.5, 3, ref.top_k(2))),
    "scallion": (
        S,
        Scallion(0.5, 3, TopK(k=2), 0.3, 0.8),
        lambda g, x: scallion(g, 5, x, 0.5, 3, ref.top_k(2), 0.3, 0.8),
    ),
}


@pytest.mark.parametrize("name", RECURSIONS)
def test_recursion_of_the_paper(name: str) -> None:
    p, algorithm, paper = RECURSIONS[name]
    for _, x, y in zip(range(8), toy.models(p, algorithm), paper(toy.gradient(p), toy.start(p)), strict=False):
        assert toy.gap(x, y) < 1e-12


def test_the_shared_coin_is_geometric() -> None:
    rounds, p = 4000, 0.25
    throws = np.array([trials(p, 7, t) for t in range(1, rounds + 1)])
    assert throws.min() == 1
    deviation = np.sqrt((1 - p) / p**2 / rounds)
    assert abs(throws.mean() - 1 / p) < 5 * deviation
    assert abs((throws == 1).mean() - p) < 5 * np.sqrt(p * (1 - p) / rounds)
    assert {trials(1.0, 0, t) for t in range(9)} == {1}
    assert [trials(p, 8, t) for t in range(1, 9)] != list(throws[:8])
