"""Mosaic's recursion in plain NumPy, from the head of its file: clients one after the other, dense matrices, and
eigenvectors from LAPACK. Only the quantiser and the codes of single bytes are the library's own.

`H(i, y)` is the Hessian of f_i without l2, `grad(i, y)` its gradient, `prox(v, step)` and `value(x)` those of h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, inf, log2, sqrt
from types import SimpleNamespace as State

import numpy as np
import torch

from proxfed.compressors import ErrorBoundedQuantiser

Vector = np.ndarray
GRADES = [0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6]


def compress(v: Vector, q2: float) -> tuple[Vector, int]:
    packed = ErrorBoundedQuantiser(1e-6).within(torch.tensor(v)[None], q2)
    return packed.dense[0].numpy(), packed.nbytes


def up_to_a_quarter_octave(size: float) -> float:
    return 0.0 if size <= 0 else 2.0 ** (min(max(ceil(4 * log2(size)), -159), 95) / 4)


def to_an_eighth_octave(a: float) -> float:
    return float(np.sign(a)) * 2.0 ** (min(max(round(8 * log2(abs(a))), -63), 63) / 8)


def by_size(R: np.ndarray) -> tuple[Vector, np.ndarray]:
    e, Z = np.linalg.eigh(R)
    order = np.argsort(-np.abs(e))
    Z = Z[:, order]
    return np.abs(e)[order], Z * np.sign(Z[np.abs(Z).argmax(0), range(len(e))])


def model(B: np.ndarray, c: Vector, y: Vector, prox: Callable[[Vector, float], Vector]) -> Vector:
    """argmin <c, x - y> + |x - y|_B^2/2 + h(x), by FISTA."""
    L = np.linalg.eigvalsh(B)[-1]
    x = z = y
    t = 1.0
    for _ in range(20_000):
        new = prox(z - (c + B @ (z - y)) / L, 1 / L)
        if (z - new) @ (new - x) > 0:
            t = 1.0
        later = (1 + sqrt(1 + 4 * t * t)) / 2
        z, moved = new + (t - 1) / later * (new - x), np.abs(new - x).max()
        x, t = new, later
        if moved < 1e-15 * np.abs(x - y).max():
            break
    return x


def mosaic(n, d, p, l2, x0, grad, H, prox, value) -> Iterator[State]:
    """The state after every round, with its bytes up and down."""
    y, I = prox(x0, 0.0), np.eye(d)
    u, Hh = np.zeros((n, d)), np.zeros((n, d, d))
    count = np.zeros(n, int)
    kept, kept_e = (y, u.copy()), inf
    sigma, kappa, floor, L, l_mean, fall, least_sigma, delta = 1.0, 0.99, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0
    noise = nu = 0.0
    g_up, g_down, ask, mark, to_kept, back, tau, tries, since = 1, 1, True, False, False, 0, 1.0, 0, 0
    B = pair = base_c = Bq = None
    q, x, first = np.zeros(d), y, True
    while True:
        # down
        threshold = up_to_a_quarter_octave(0.5 * l_mean)
        if mark:
            kept = y, u.copy()
        if to_kept:
            y, u = kept[0], kept[1].copy()
        if back:
            sent, left = np.zeros(d), 2.0 ** (-back / 4)
            moved, q, Bq, tau = (left - 1) * q, left * q, left * Bq, tau * left
        else:
            sent = np.zeros(d) if first else x - y
            moved, tau = compress(sent, GRADES[g_down])[0], 1.0
            q, base_c = moved, p @ u
            base_nu, base_noise = nu, noise
        down = n * (compress(sent, GRADES[g_down])[1] + 2)
        y = y + moved
        u = u + np.stack([Hh[i] @ moved for i in range(n)]) + l2 * moved
        # clients
        D, l, before, up, some = np.zeros((n, d)), np.zeros(n), np.zeros(n), 0, False
        for i in range(n):
            D[i], nbytes = compress(grad(i, y) - u[i], GRADES[g_up])
            up += nbytes + 1
            R = H(i, y) - Hh[i]
            sizes, Z = by_size(R)
            l[i] = sizes[0]
            if ask and count[i] < 64 and sizes[0] >= max(threshold, 1e-300):
                q_v = max(0.5 * sizes[1] / sizes[0], 2e-3)
                grade = min(max(next(k for k, q2 in enumerate(GRADES) if sqrt(q2) <= q_v), 2), 5)
                v, nbytes = compress(Z[:, 0] * sqrt(sizes[0]), GRADES[grade])
                a = to_an_eighth_octave(v @ R @ v / (v @ v) ** 2)
                Hh[i] += a * np.outer(v, v)
                up, some = up + nbytes + 1, True
                count[i] += 1
                before[i], l[i] = abs(a) * (v @ v), by_size(R - a * np.outer(v, v))[0][0]
            l[i] = up_to_a_quarter_octave(l[i])
        u = u + D
        # server
        c, size, q2 = p @ u, (D * D).sum(1), GRADES[g_up]
        hidden = q2 * (p**2 @ size)
        nu, e = sqrt(hidden), sqrt(q2) / (1 - sqrt(q2)) * (p @ np.sqrt(size))
        old_l, l_mean, before_mean = l_mean, p @ l, p @ np.maximum(l, before)
        if some:
            fall = min(max(l_mean / before_mean, 0.1), 0.97)
        if first:
            L, new_pair = l2 + before_mean + l_mean, None
            sigma = 1.0 if c @ c > 0.9 * (p @ size) else float(np.linalg.norm(p))
        else:
            dg, qB = c - base_c, q @ Bq
            rest = dg - Bq
            noise = hidden * np.trace(np.linalg.inv(B)) / d
            seen = sqrt(max(rest @ np.linalg.solve(B, rest) - base_noise - noise, 0) / qB)
            kappa = min(max(seen, kappa / 4, 0.01), 0.99)
            t, ray, nz = tau * (dg @ q) / qB, (dg @ q) / (q @ q), nu + base_nu
            clear = np.linalg.norm(dg) > 2 * nz
            if clear and ray > L:
                L = 1.05 * ray
            if t > 1.5 + tau * nz * np.linalg.norm(q) / qB and tries < 12:
                back, tries = min(max(ceil(4 * log2(t)), 2), 26), tries + 1
                sigma, ask, mark, to_kept = max(2 * sigma, 0.5 * ray / old_l), False, False, False
                least_sigma = 2 * delta / old_l
                yield State(x=x, y=y, c=c, up=up, down=down, Hh=p @ Hh.reshape(n, -1), back=back)
                continue
            back = tries = 0
            least_sigma /= 2**0.25
            sigma = 2 * sigma if t > 1.1 else max(sigma / 2, least_sigma) if t < 0.9 else sigma
            new_pair = (q, dg) if dg @ q > 0.05 * qB and clear else None

        # the watch
        def residual(at: Vector, c: Vector) -> float:
            return L * float(np.linalg.norm(at - prox(at - c / L, 1 / L)))  # noqa: B023

        G, least = residual(y, c) + e, inf
        if kept_e < inf:
            least = residual(kept[0], p @ kept[1]) + kept_e
        fell = -(c @ q + value(y) - value(y - q)) - e * np.linalg.norm(q)
        mark, to_kept = least > G, False
        kept_e = e if mark else kept_e
        if 0.9 * least > G or fell >= G * G / (100 * L):
            since, floor = 0, floor / 2 if floor > L / 256 else 0.0
        elif since < 12:
            since += 1
        else:
            since, floor, to_kept = 0, min(max(4 * floor, L / 64), L), not mark
        at, at_c = (kept[0], p @ kept[1]) if to_kept else (y, c)
        pair = None if to_kept else new_pair
        sigma = min(sigma, 4 * L / l_mean)
        delta = max(sigma * l_mean, floor)
        if floor >= L:
            kappa, B = max(l2 / (8 * L), 1e-3), L * I
        else:
            w, Z = np.linalg.eigh(np.tensordot(p, Hh, 1))
            B = (Z * np.maximum(w, 0)) @ Z.T + (l2 + delta) * I
            if pair is not None:
                Bs = B @ pair[0]
                B = B - np.outer(Bs, Bs) / (pair[0] @ Bs) + np.outer(pair[1], pair[1]) / (pair[0] @ pair[1])
            w, Z = np.linalg.eigh((B + B.T) / 2)
            B = (Z * np.maximum(w, max(l2 / 2, 1e-10 * L))) @ Z.T
        x = model(B, at_c, at, prox)
        s = x - at

        def norm(v: Vector) -> float:
            return sqrt(v @ B @ v)  # noqa: B023

        for g_down in range(1, 12):
            step = compress(s, GRADES[g_down])[0]
            if norm(step - s) <= min(max(kappa, 1e-3), sqrt(0.1)) * norm(s):
                break
        Bq = B @ step
        amplified = l_mean * np.linalg.norm(s) * sqrt(np.trace(np.linalg.inv(B)) / d) * np.linalg.norm(p) / norm(s)
        wanted = kappa * min(1.0, 0.5 / amplified)
        g_up = max(1, next((k for k, q2 in enumerate(GRADES) if sqrt(q2) <= wanted), 11))

        def message(q: float) -> float:
            return d * log2(1 / min(q, 0.32)) / 8 + 0.05 * d + 5

        def left_to_send(k: float) -> float:
            return 20 / log2(1 / k) * 2 * message(k)

        ask = left_to_send(kappa) - left_to_send(max(fall * kappa, 0.01)) > message(0.1) + 1
        first = False
        yield State(x=x, y=y, c=c, up=up, down=down, Hh=p @ Hh.reshape(n, -1), back=0)
