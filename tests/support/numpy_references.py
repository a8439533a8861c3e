"""The papers' recursions, word for word, in plain NumPy: one client after the other, one vector at a time.

Nothing here uses the library. `grad(i, x, t, k)` is client i's gradient at local step k of round t; `prox(v, step)` is
prox_{step h}; `W(t)` is the mixing matrix of round t; `p` are the clients' weights. Each method yields its state after
every round (the decentralised ones that count iterations: after every iteration).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from types import SimpleNamespace as State

import numpy as np

Vector = np.ndarray
Grad = Callable[..., Vector]
Prox = Callable[[Vector, float], Vector]

# ---- gradients of (1/m) sum_j loss(a_j x, b_j) -------------------------------------------------------------------


def least_squares_gradient(A: np.ndarray, b: Vector, x: Vector) -> Vector:
    return A.T @ (A @ x - b) / len(b)


def logistic_gradient(A: np.ndarray, b: Vector, x: Vector) -> Vector:
    return -A.T @ (b / (1 + np.exp(b * (A @ x)))) / len(b)


def softmax_gradient(A: np.ndarray, b: Vector, x: Vector) -> Vector:
    X = x.reshape(-1, A.shape[1])
    scores = A @ X.T
    P = np.exp(scores - scores.max(1, keepdims=True))
    P /= P.sum(1, keepdims=True)
    P[np.arange(len(b)), b] -= 1
    return (P.T @ A / len(b)).ravel()


GRADIENTS = {"least_squares": least_squares_gradient, "logistic": logistic_gradient, "softmax": softmax_gradient}


def logistic_hessian(A: np.ndarray, x: Vector) -> np.ndarray:
    q = 1 / (1 + np.exp(-(A @ x)))
    return A.T @ ((q * (1 - q))[:, None] * A) / len(A)


# ---- prox, compressors, mixing matrices --------------------------------------------------------------------------


def soft(v: Vector, s: float) -> Vector:
    return np.sign(v) * np.maximum(np.abs(v) - s, 0)


@cache
def prox_l1(weight: float) -> Prox:
    return lambda v, step: soft(v, step * weight)


def prox_zero(v: Vector, step: float) -> Vector:
    return v


@cache
def prox_mcp(weight: float, theta: float) -> Prox:
    def prox(v: Vector, step: float) -> Vector:
        inner = soft(v, step * weight) / (1 - step / theta)
        return np.where(np.abs(v) <= theta * weight, inner, v)

    return prox


def identity(v: Vector) -> Vector:
    return v


def top_k(k: int) -> Callable[[Vector], Vector]:
    def compress(v: Vector) -> Vector:
        kept = sorted(range(len(v)), key=lambda j: (-abs(v[j]), j))[:k]
        out = np.zeros_like(v)
        out[kept] = v[kept]
        return out

    return compress


def scaled_sign(v: Vector) -> Vector:
    return np.abs(v).sum() / len(v) * np.where(v < 0, -1.0, 1.0)


def metropolis(n: int, neighbours: list[set[int]]) -> np.ndarray:
    W = np.zeros((n, n))
    for i in range(n):
        for j in neighbours[i]:
            W[i, j] = 1 / (1 + max(len(neighbours[i]), len(neighbours[j])))
        W[i, i] = 1 - W[i].sum()
    return W


def mixing(name: str, n: int) -> Callable[[int], np.ndarray]:
    if name == "one_peer":
        length = int(np.ceil(np.log2(n)))
        return lambda t: (np.eye(n) + np.roll(np.eye(n), 2 ** (t % length), axis=0)) / 2
    neighbours = {
        "ring": [{(i - 1) % n, (i + 1) % n} for i in range(n)],
        "star": [set(range(1, n))] + [{0}] * (n - 1),
        "complete": [set(range(n)) - {i} for i in range(n)],
    }[name]
    W = metropolis(n, neighbours)
    return lambda t: W


def gossip(W: np.ndarray, X: list[Vector]) -> list[Vector]:
    return [sum(W[i, j] * X[j] for j in range(len(X)) if W[i, j]) for i in range(len(X))]


def average(X: list[Vector], p: Vector | None = None) -> Vector:
    return sum(w * x for w, x in zip(np.full(len(X), 1 / len(X)) if p is None else p, X, strict=True))


# ---- the five algorithms -----------------------------------------------------------------------------------------


def depositum(
    grad: Grad,
    prox: Prox,
    W: Callable[[int], np.ndarray],
    n: int,
    x0: Vector,
    *,
    alpha: float,
    beta: float,
    gamma: float,
    T0: int,
    option: str,
    s: float,
    mix_offset: int = 0,
) -> Iterator[State]:
    """Iterations t = 0, 1, ...; gradients are taken in iteration t, so here grad is grad(i, x, t)."""
    zero = np.zeros_like(x0)
    x, y, g, nu, mu = [x0] * n, [zero] * n, [zero] * n, [zero] * n, [zero] * n
    events = 0
    for t in count():
        q = []
        for i in range(n):
            if option == "polyak":
                nu[i] = gamma * nu[i] + (1 - gamma) * y[i]
            else:
                mu[i] = gamma * mu[i] + (1 - gamma) * y[i]
                nu[i] = gamma * mu[i] + (1 - gamma) * y[i]
            q.append(prox(x[i] - alpha * nu[i], s))
        mix = (t > 0 and t % T0 == 0) if mix_offset == 0 else (t + 1) % T0 == 0
        events += mix
        x = gossip(W(events), q) if mix else q
        new = [grad(i, x[i], t) for i in range(n)]
        r = [y[i] + beta * (new[i] - g[i]) for i in range(n)]
        y = gossip(W(events), r) if mix else r
        g = new
        yield State(t=t, mix=mix, x=x, y=y, g=g, nu=list(nu), m=list(nu if option == "polyak" else mu))


def fedcef(
    grad: Grad,
    prox: Prox,
    compress: Callable[[Vector], Vector],
    n: int,
    z0: Vector,
    *,
    alpha: float,
    K: int,
    eta_g: float,
    eta: float,
    p: Vector | None = None,
) -> Iterator[State]:
    beta, z, c = eta_g * alpha * K, z0, 0 * z0
    own_c, v = [0 * z0] * n, [0 * z0] * n
    for t in count(1):
        u, means, deltas = [], [], []
        for i in range(n):
            w = x = z
            seen = []
            for k in range(K):
                seen.append(grad(i, x, t, k))
                w = w - alpha * (seen[-1] + c - own_c[i])
                x = prox(w, (k + 1) * alpha)
            u.append((z - w) / (alpha * K) + own_c[i] - c)
            means.append(average(seen))
            v[i] = (1 - eta) * v[i] + eta * u[i]
            deltas.append(compress(v[i] - own_c[i]))
            own_c[i] = own_c[i] + deltas[i]
        server_c = c + average(deltas, p)
        zt = z - beta * server_c
        c, z = (z - zt) / beta, prox(zt, beta)
        yield State(z=z, zt=zt, c=server_c, own_c=list(own_c), v=list(v), u=u, means=means, deltas=deltas)


def dfedadmm(
    grad: Grad,
    W: Callable[[int], np.ndarray],
    n: int,
    x0: Vector,
    *,
    eta_l: float | Callable[[int], float],
    lam: float,
    K: int,
    rho: float = 0.0,
    dual: str = "old",
) -> Iterator[State]:
    x, ghat = [x0] * n, [0 * x0] * n
    for t in count(1):
        step = eta_l(t) if callable(eta_l) else eta_l
        z, new, moves, seen = [], [], [], []
        for i in range(n):
            y, gradients = x[i], []
            for k in range(K):
                g = grad(i, y, t, k)
                if rho > 0 and np.linalg.norm(g) > 0:
                    g = grad(i, y + rho * g / np.linalg.norm(g), t, k)
                gradients.append(g)
                y = y - step * (g - ghat[i] + (y - x[i]) / lam)
            new.append(ghat[i] - (y - x[i]) / lam)
            z.append(y - lam * (ghat[i] if dual == "old" else new[i]))
            moves.append(y - x[i])
            seen.append(gradients)
        before, x, ghat = x, gossip(W(t), z), new
        yield State(x=x, g=ghat, before=before, moves=moves, seen=seen)


def fednag(
    grad: Grad,
    n: int,
    w0: Vector,
    *,
    eta: float | Callable[[int], float],
    gamma: float,
    tau: int,
    p: Vector | None = None,
) -> Iterator[State]:
    w, v = w0, 0 * w0
    for t in count(1):
        step = eta(t) if callable(eta) else eta
        ws, vs = [], []
        for i in range(n):
            wi, vi = w, v
            for k in range(tau):
                g = grad(i, wi, t, k)
                vi = gamma * vi - step * g
                wi = wi + gamma * vi - step * g
            ws.append(wi)
            vs.append(vi)
        w, v = average(ws, p), average(vs, p)
        yield State(w=w, v=v)


def fedcomposite(
    grad: Grad,
    prox: Prox,
    n: int,
    x0: Vector,
    *,
    eta: float,
    eta_g: float,
    tau: int,
    p: Vector | None = None,
    local_step: Callable[[int], float] | None = None,
) -> Iterator[State]:
    """`local_step(t)` replaces the prox step (t+1) eta after local step t; for wrong variants only."""
    S, x, c = eta * eta_g * tau, x0, [0 * x0] * n
    for r in count(1):
        z0 = prox(x, S)
        sent, sums = [], []
        for i in range(n):
            w = z = z0
            total = 0 * z0
            for t in range(tau):
                g = grad(i, z, r, t)
                total = total + g
                w = w - eta * (g + c[i])
                z = prox(w, (t + 1) * eta if local_step is None else local_step(t))
            sent.append(w)
            sums.append(total)
        x = z0 + eta_g * (average(sent, p) - z0)
        c = [(z0 - x) / S - sums[i] / tau for i in range(n)]
        yield State(x=x, z=prox(x, S), c=c, sums=sums)


# ---- the methods that they reduce to -----------------------------------------------------------------------------


def scaffold(grad: Grad, n: int, x0: Vector, *, eta: float, eta_g: float, K: int) -> Iterator[State]:
    """Option II, everybody takes part."""
    x, c, own_c = x0, 0 * x0, [0 * x0] * n
    for t in count(1):
        ys, new = [], []
        for i in range(n):
            y = x
            for k in range(K):
                y = y - eta * (grad(i, y, t, k) + c - own_c[i])
            ys.append(y)
            new.append(own_c[i] - c + (x - y) / (K * eta))
        x = x + eta_g * (average(ys) - x)
        c = c + average([new[i] - own_c[i] for i in range(n)])
        own_c = new
        yield State(x=x, c=c, own_c=own_c)


def ef21_sgdm(
    grad: Grad, compress: Callable[[Vector], Vector], n: int, x0: Vector, *, step: float, eta: float
) -> Iterator[State]:
    """EF21 for eta = 1."""
    x, v, c = x0, [0 * x0] * n, [0 * x0] * n
    for t in count(1):
        for i in range(n):
            v[i] = (1 - eta) * v[i] + eta * grad(i, x, t, 0)
            c[i] = c[i] + compress(v[i] - c[i])
        x = x - step * average(c)
        yield State(x=x, c=list(c), v=list(v))


def fedavg(
    grad: Grad, prox: Prox, n: int, x0: Vector, *, eta: float, K: int, p: Vector | None = None
) -> Iterator[State]:
    x = x0
    for t in count(1):
        ys = []
        for i in range(n):
            y = x
            for k in range(K):
                y = prox(y - eta * grad(i, y, t, k), eta)
            ys.append(y)
        x = average(ys, p)
        yield State(x=x)


def atc_dpsgd(grad: Grad, W: Callable[[int], np.ndarray], n: int, x0: Vector, *, step: float) -> Iterator[State]:
    x = [x0] * n
    for t in count(1):
        g = [grad(i, x[i], t, 0) for i in range(n)]
        x = gossip(W(t), [x[i] - step * g[i] for i in range(n)])
        yield State(x=x, g=g)


def atc_dsgt(grad: Grad, W: Callable[[int], np.ndarray], n: int, x0: Vector, *, step: float) -> Iterator[State]:
    """Started with y = g(x0)."""
    x = [x0] * n
    g = [grad(i, x0, 0, 0) for i in range(n)]
    y = list(g)
    for t in count(1):
        x = gossip(W(t), [x[i] - step * y[i] for i in range(n)])
        new = [grad(i, x[i], t, 0) for i in range(n)]
        y = gossip(W(t), [y[i] + new[i] - g[i] for i in range(n)])
        g = new
        yield State(x=x, y=y)


def proximal_gradient(gradient: Grad, prox: Prox, x0: Vector, *, step: float) -> Iterator[Vector]:
    x = x0
    while True:
        x = prox(x - step * gradient(x), step)
        yield x


def ema_momentum(
    gradient: Grad, prox: Prox, x0: Vector, *, alpha: float, gamma: float, option: str
) -> Iterator[Vector]:
    """One machine: x <- prox(x - alpha v) with v a running average of gradients, or Nesterov's look ahead of it."""
    x, m = x0, 0 * x0
    while True:
        g = gradient(x)
        m = gamma * m + (1 - gamma) * g
        v = m if option == "polyak" else gamma * m + (1 - gamma) * g
        x = prox(x - alpha * v, alpha)
        yield x


def heavy_ball(gradient: Grad, x0: Vector, *, alpha: float, gamma: float) -> Iterator[Vector]:
    """x+ = x - alpha (1 - gamma) g + gamma (x - x-), with x- = x0 at first."""
    before = x = x0
    while True:
        before, x = x, x - alpha * (1 - gamma) * gradient(x) + gamma * (x - before)
        yield x


def nesterov(gradient: Grad, w0: Vector, *, eta: float, gamma: float, v0: Vector | None = None) -> Iterator[State]:
    w, v = w0, 0 * w0 if v0 is None else v0
    while True:
        g = gradient(w)
        v = gamma * v - eta * g
        w = w + gamma * v - eta * g
        yield State(w=w, v=v)


def minimise(gradient: Grad, prox: Prox, step: float, x0: Vector, most: int = 200_000) -> Vector:
    """Proximal gradient steps until the iterate stands still, or for as many as are allowed if it ends in a cycle."""
    x, best, least, since = x0, x0, np.inf, 0
    for _ in range(most):
        new = prox(x - step * gradient(x), step)
        move = float(np.linalg.norm(new - x))
        if move == 0:
            return new
        best, least, since = (new, move, 0) if move < least else (best, least, since + 1)
        if since > 200:  # moves of the size of rounding errors
            return best
        x = new
    raise AssertionError("proximal gradient did not settle")


def guarded(G, g, shift, x, y, S, share, prox):
    """PLEDGE's guard of a walk of length S from x = prox(y, S), in which the first gradient, g, has this share of G."""
    xi, end = (y - x) / S, prox(x - S * (G + shift), S)
    speed, drive = (x - end) / S, g + shift + xi
    ran_away = np.linalg.norm(speed - drive) > np.linalg.norm(drive)
    return share * g - (1 - share) * (shift + xi) if ran_away else G
