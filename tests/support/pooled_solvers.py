"""Solvers of pooled samples that share nothing with ours: coordinate and block descent, and Newton's method."""

from __future__ import annotations

import numpy as np
from numpy import ndarray as Array


def sigmoid(s: Array) -> Array:
    return 0.5 * (1 + np.tanh(s / 2))


def logistic_l1(A: Array, y: Array, lam: float, sweeps: int = 200, tolerance: float = 1e-11) -> Array:
    """mean log(1 + exp(-y s)) + lam |w|_1, with a free intercept (last): IRLS, coordinate descent, a working set."""
    N, p = A.shape
    w, b, active = np.zeros(p), 0.0, np.zeros(p, bool)
    for _ in range(sweeps):
        pi = sigmoid(A[:, active] @ w[active] + b)
        W, r = pi * (1 - pi) / N, ((y + 1) / 2 - pi) / N
        slope = A.T @ r
        missing = ~active & (np.abs(slope) > lam)
        moved = 0.0
        active |= missing
        index, before = np.flatnonzero(active), w.copy()
        b_before = b
        H = (A[:, index] * W[:, None]).T @ A[:, index]
        cross, total, u = A[:, index].T @ W, W.sum(), slope[index]
        v = r.sum()
        for _ in range(2000):  # u, v: minus the gradient of the quadratic model
            change = 0.0
            for k, j in enumerate(index):
                new = u[k] + H[k, k] * w[j]
                new = np.sign(new) * max(abs(new) - lam, 0) / H[k, k]
                d = new - w[j]
                if d:
                    u -= H[:, k] * d
                    v -= cross[k] * d
                    w[j], change = new, max(change, abs(d))
            d = v / total
            b, u, v, change = b + d, u - cross * d, 0.0, max(change, abs(d))
            if change < tolerance / 10:
                break
        moved = max(np.abs(w - before).max(), abs(b - b_before))
        if moved < tolerance and not missing.any():
            return np.append(w, b)
    raise AssertionError("no convergence")


def group_lasso(A: Array, y: Array, groups: list[list[int]], lam: float, sweeps: int = 20_000) -> Array:
    """|A w + b - y|^2 / (2 N) + lam sum sqrt|g| |w_g|, with a free intercept (last), by block descent."""
    N, p = A.shape
    mean, centre = A.mean(0), y.mean()
    A, r, w = A - mean, y - centre, np.zeros(p)
    L = [np.linalg.norm(A[:, g], 2) ** 2 / N for g in groups]
    for _ in range(sweeps):
        change = 0.0
        for g, step in zip(groups, L, strict=True):
            u = w[g] + A[:, g].T @ r / (N * step)
            new = u * max(0.0, 1 - lam * np.sqrt(len(g)) / (step * np.linalg.norm(u)))
            r -= A[:, g] @ (new - w[g])
            change, w[g] = max(change, np.abs(new - w[g]).max()), new
        if change < 1e-13:
            return np.append(w, centre - mean @ w)
    raise AssertionError("no convergence")


def cox(clients: list[tuple[Array, Array, Array]], ridge: float) -> Array:
    """Newton's method on minus the stratified partial log-likelihood (Breslow) / N + ridge/2 |x|^2.

    clients: (features, times, events) each.
    """
    N, x = sum(len(t) for _, t, _ in clients), np.zeros(clients[0][0].shape[1])
    for _ in range(50):
        g, H = ridge * x, ridge * np.eye(len(x))
        for A, times, events in clients:
            e = np.exp(A @ x)
            for j in np.flatnonzero(events):
                R = times >= times[j]
                pi = e[R] / e[R].sum()
                mean = pi @ A[R]
                g = g + (mean - A[j]) / N
                H = H + ((A[R] * pi[:, None]).T @ A[R] - np.outer(mean, mean)) / N
        step = np.linalg.solve(H, g)
        x = x - step
        if np.abs(step).max() < 1e-13:
            return x
    raise AssertionError("no convergence")
