"""Values and gradients of linear models in one pass over the samples, compiled by numba.

A client's sum is the sum of its tasks, in order. A task is a run of consecutive samples whose length does not depend on
threads or blocks, so the result does not either, bit for bit. A task processes its samples a tile at a time: scores,
losses or slopes, and the contribution to the gradient while the tile is still in the cache.

The compiler may reassociate sums, so that they are vectorised, and nothing else: NaN and infinity are preserved.
"""

from __future__ import annotations

from math import factorial, inf, log
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from proxfed.machine import compiled

SQUARED, HUBER, POISSON, LOGISTIC, SOFTMAX, ONE_HOT = range(6)

SUMS = {"reassoc", "contract", "nsz"}
TILE = 64
"""Samples of a tile, if they are short."""
TILE_NUMBERS = 1024
"""Numbers of a tile otherwise, if they make at least 16 samples: 8 kB, which fit in the first-level cache."""


# ---- vectorised exp and log ------------------------------------------------------------------------------------------


@intrinsic
def _bits(typing: Any, x: Any) -> Any:
    return types.int64(types.float64), lambda context, builder, signature, a: builder.bitcast(a[0], ir.IntType(64))


@intrinsic
def _number(typing: Any, x: Any) -> Any:
    return types.float64(types.int64), lambda context, builder, signature, a: builder.bitcast(a[0], ir.DoubleType())


LARGEST, SMALLEST = 709.0, -708.0
ROUND = 1.5 * 2.0**52  # adding it to a number removes the fraction
PER_LN2 = 1 / log(2)
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # the first has zeros at its end
A3, A5, A7, A9, A11, A13, A15, A17, A19, A21, A23, A25, A27, A29, A31 = (1 / k for k in range(3, 33, 2))
C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13 = (1 / factorial(k) for k in range(2, 14))


@compiled({"contract"}, forceinline=True)
def exp(z):
    """exp to one unit in the last place: 2^k times a polynomial in r = z - k ln 2. From 709 on it is infinite."""
    s = LARGEST if z > LARGEST else z
    s = SMALLEST if s < SMALLEST else s
    t = s * PER_LN2 + ROUND
    k = t - ROUND
    r = (s - k * LN2_HIGH) - k * LN2_LOW
    high = C8 + r * (C9 + r * (C10 + r * (C11 + r * (C12 + r * C13))))
    e = 1.0 + r * (1.0 + r * (C2 + r * (C3 + r * (C4 + r * (C5 + r * (C6 + r * (C7 + r * high)))))))
    e = e * _number((_bits(t) << 52) + (1023 << 52))  # type: ignore[call-arg]
    e = inf if z > LARGEST else e
    return 0.0 if z < SMALLEST else e


# ---- losses ----------------------------------------------------------------------------------------------------------


@compiled({"contract"}, forceinline=True)
def log1p(e):
    """log(1 + e) for 0 <= e <= 1: twice the area tangent of z = e / (2 + e), which is at most 1/3."""
    z = e / (2.0 + e)
    y = z * z
    high = A17 + y * (A19 + y * (A21 + y * (A23 + y * (A25 + y * (A27 + y * (A29 + y * A31))))))
    return 2.0 * z * (1.0 + y * (A3 + y * (A5 + y * (A7 + y * (A9 + y * (A11 + y * (A13 + y * (A15 + y * high))))))))


@compiled(SUMS)
def single(kind, delta, s, b, v, slopes, values):
    """Replace scores s (n,) by slopes if `slopes`; return the sum of the values if `values`."""
    total, n = 0.0, len(s)
    if kind == SQUARED:
        for i in range(n if values else 0):
            r = s[i] - b[i]
            total += v[i] * r * r / 2
        for i in range(n if slopes else 0):
            s[i] = v[i] * (s[i] - b[i])
    elif kind == HUBER:
        for i in range(n if values else 0):
            r = abs(s[i] - b[i])
            total += v[i] * (r * r / 2 if r <= delta else delta * (r - delta / 2))
        for i in range(n if slopes else 0):
            r = s[i] - b[i]
            r = delta if r > delta else r
            s[i] = v[i] * (-delta if r < -delta else r)
    elif kind == POISSON:
        for i in range(n if values else 0):
            total += v[i] * (exp(s[i]) - b[i] * s[i])
        for i in range(n if slopes else 0):
            s[i] = v[i] * (exp(s[i]) - b[i])
    else:
        for i in range(n if values else 0):
            z = -b[i] * s[i]
            total += v[i] * ((z if z > 0 else 0.0) + log1p(exp(-abs(z))))
        for i in range(n if slopes else 0):
            z = -b[i] * s[i]
            e = exp(-abs(z))
            s[i] = -v[i] * b[i] * ((1.0 if z > 0 else e) / (1.0 + e))
    return total


@compiled()
def several(kind, S, s, b, v, values):
    """The same for S (n, outputs), for losses of classes; s has the same numbers in one row."""
    total, n, q = 0.0, len(b), S.shape[1]
    if kind == ONE_HOT:
        for i in range(n):
            S[i, int(b[i])] -= 1.0
            if values:
                for c in range(q):
                    total += v[i] * S[i, c] * S[i, c] / 2
            for c in range(q):
                S[i, c] *= v[i]
        return total
    for i in range(n):
        top = S[i, 0]
        for c in range(1, q):
            top = S[i, c] if S[i, c] > top or top != top else top
        for c in range(q):
            S[i, c] -= top
        if values:
            total -= v[i] * S[i, int(b[i])]
    for k in range(n * q):
        s[k] = exp(s[k])
    for i in range(n):
        e = 0.0
        for c in range(q):
            e += S[i, c]
        if values:
            total += v[i] * log(e)
        for c in range(q):
            S[i, c] *= v[i] / e
        S[i, int(b[i])] -= v[i]
    return total


@compiled()
def pick(source, rows, k, n, target):
    """target = source[rows[k : k + n]]"""
    for i in range(n):
        target[i] = source[rows[k + i]]


@compiled()
def slopes(kind, delta, S, s, n, bias, b, b_first, v, v_first, gradients, values):
    """Add intercepts to the first n scores in S (s is S in one row), replace them by slopes; return the sum of values.

    Labels and weights begin at b_first and v_first.
    """
    for c in range(len(bias)):
        for i in range(n):
            S[i, c] += bias[c]
    b, v = b[b_first : b_first + n], v[v_first : v_first + n]
    if kind >= SOFTMAX:
        return several(kind, S, s, b, v, values)
    return single(kind, delta, s[:n], b, v, gradients, values)


# ---- dense samples ---------------------------------------------------------------------------------------------------


@compiled(SUMS)
def dense_scores(A, first, n, W, S):
    """S = T W' for the samples T = A[first : first + n]; with several outputs, four samples at a time. With one output,
    memory bandwidth is the limit, and a single stream is fastest."""
    T, p, zero, k = A[first : first + n], A.shape[1], A.dtype.type(0), 0
    while len(W) > 1 and k + 4 <= n:
        a0, a1, a2, a3 = T[k], T[k + 1], T[k + 2], T[k + 3]
        for c in range(W.shape[0]):
            w, s0, s1, s2, s3 = W[c], zero, zero, zero, zero
            for j in range(p):
                s0 += a0[j] * w[j]
                s1 += a1[j] * w[j]
                s2 += a2[j] * w[j]
                s3 += a3[j] * w[j]
            S[k, c], S[k + 1, c], S[k + 2, c], S[k + 3, c] = s0, s1, s2, s3
        k += 4
    for i in range(k, n):
        for c in range(W.shape[0]):
            w, s0 = W[c], zero
            for j in range(p):
                s0 += T[i, j] * w[j]
            S[i, c] = s0


@compiled(SUMS)
def dense_gradient(A, first, n, S, G):
    """G += S' T."""
    T, p, k = A[first : first + n], A.shape[1], 0
    while k + 4 <= n:
        a0, a1, a2, a3 = T[k], T[k + 1], T[k + 2], T[k + 3]
        for c in range(G.shape[0]):
            g, r0, r1, r2, r3 = G[c], S[k, c], S[k + 1, c], S[k + 2, c], S[k + 3, c]
            for j in range(p):
                g[j] += (r0 * a0[j] + r1 * a1[j]) + (r2 * a2[j] + r3 * a3[j])
        k += 4
    for i in range(k, n):
        for c in range(G.shape[0]):
            g, r0 = G[c], S[i, c]
            for j in range(p):
                g[j] += r0 * T[i, j]


@compiled()
def gather(A, rows, k, n, T):
    """T = A[rows[k : k + n]]."""
    for i in range(n):
        a, to = A[rows[k + i]], T[i]
        for j in range(len(a)):
            to[j] = a[j]


@compiled()
def add_biases(S, n, Gb):
    """Add the biases' part of the gradient, if there are biases: the slopes of n samples."""
    for c in range(len(Gb)):
        for i in range(n):
            Gb[c] += S[i, c]


@compiled()
def finish(task, x, l2, g, total, values):
    """Turn sums into means; the first task of a client adds the l2 term, also to the value if `values`."""
    m = g.dtype.type(task[3])
    for j in range(len(g)):
        g[j] /= m
    total /= task[3]
    if task[4] and l2:
        for j in range(len(g)):
            g[j] += l2 * x[j]
    if task[4] and l2 and values:
        square = 0.0
        for j in range(len(x)):
            square += x[j] * x[j]
        total += l2 / 2 * square
    return total


@compiled({"contract"})
def step(x, g, eta):
    """x <- x - eta g, rounded once, as in torch."""
    eta = x.dtype.type(eta)
    for j in range(len(x)):
        x[j] -= eta * g[j]


@compiled()
def dense(kind, delta, A, b, v, rows, tasks, x, q, l2, G, f, eta):
    """Write the tasks' parts of gradients to G (tasks, d) if it is not empty, and of values to f (tasks,) likewise.

    A task is (first sample, last + 1, row of x, samples of its client, whether it is the client's first). Samples index
    the rows of A, or of `rows` if it is not empty. v may be empty: all samples have equal weights. With a step size
    eta other than 0, each task is a step of its row of x instead, and G is a buffer for one gradient.
    """
    p, gradients, values, gathered = A.shape[1], len(G) > 0, len(f) > 0, len(rows) > 0
    tile = min(TILE, max(16, TILE_NUMBERS // max(p, 1) // 4 * 4))
    S, bt, vt = np.empty((tile, q), A.dtype), np.empty(tile), np.ones(tile)
    T, s, nothing = np.empty((tile if gathered else 0, p), A.dtype), S.reshape(-1), np.empty(0, x.dtype)
    for t in range(len(tasks)):
        start, stop, own = tasks[t, 0], tasks[t, 1], x[tasks[t, 2]]
        W, bias = own[: q * p].reshape((q, p)), own[q * p :]
        g = G[0 if eta else t] if gradients else nothing
        g[:] = 0
        GW, Gb, total = g[: q * p].reshape((q if gradients else 0, p)), g[q * p :], 0.0
        for k in range(start, stop, tile):
            n = min(tile, stop - k)
            if gathered:
                gather(A, rows, k, n, T)
                pick(b, rows, k, n, bt)
                if len(v):
                    pick(v, rows, k, n, vt)
                dense_scores(T, 0, n, W, S)
                total += slopes(kind, delta, S, s, n, bias, bt, 0, vt, 0, gradients, values)
                dense_gradient(T, 0, n, S, GW)
            else:
                dense_scores(A, k, n, W, S)
                if len(v):
                    total += slopes(kind, delta, S, s, n, bias, b, k, v, k, gradients, values)
                else:
                    total += slopes(kind, delta, S, s, n, bias, b, k, vt, 0, gradients, values)
                dense_gradient(A, k, n, S, GW)
            add_biases(S, n, Gb)
        total = finish(tasks[t], own, l2, g, total, values)
        if values:
            f[t] = total
        if eta:
            step(own, g, eta)


# ---- sparse samples --------------------------------------------------------------------------------------------------


@compiled()
def sparse_scores(A, rows, n, W, S):
    numbers, columns, indptr, _ = A
    for i in range(n):
        start, stop = indptr[rows[i]], indptr[rows[i] + 1]
        for c in range(len(W)):
            w, s = W[c], W.dtype.type(0)
            for e in range(start, stop):
                s += numbers[e] * w[columns[e]]
            S[i, c] = s


@compiled()
def sparse_gradient(A, rows, n, S, G):
    numbers, columns, indptr, _ = A
    for i in range(n):
        start, stop = indptr[rows[i]], indptr[rows[i] + 1]
        for c in range(len(G)):
            g, r = G[c], S[i, c]
            for e in range(start, stop):
                g[columns[e]] += r * numbers[e]


@compiled()
def sparse(kind, delta, A, b, v, rows, tasks, x, q, l2, G, f, eta):
    """The same for compressed sparse rows, A = (values, indices, indptr, width)."""
    p, gradients, values = A[3], len(G) > 0, len(f) > 0
    S, bt, vt = np.empty((TILE, q), x.dtype), np.empty(TILE), np.ones(TILE)
    at, s, nothing = np.empty(TILE, np.int64), S.reshape(-1), np.empty(0, x.dtype)
    for t in range(len(tasks)):
        start, stop, own = tasks[t, 0], tasks[t, 1], x[tasks[t, 2]]
        W, bias = own[: q * p].reshape((q, p)), own[q * p :]
        g = G[0 if eta else t] if gradients else nothing
        g[:] = 0
        GW, Gb, total = g[: q * p].reshape((q if gradients else 0, p)), g[q * p :], 0.0
        for k in range(start, stop, TILE):
            n = min(TILE, stop - k)
            for i in range(n):
                at[i] = rows[k + i] if len(rows) else k + i
            pick(b, at, 0, n, bt)
            if len(v):
                pick(v, at, 0, n, vt)
            sparse_scores(A, at, n, W, S)
            total += slopes(kind, delta, S, s, n, bias, bt, 0, vt, 0, gradients, values)
            sparse_gradient(A, at, n, S, GW)
            add_biases(S, n, Gb)
        total = finish(tasks[t], own, l2, g, total, values)
        if values:
            f[t] = total
        if eta:
            step(own, g, eta)


@compiled()
def add_up(parts, tasks, out):
    """Sum the parts of each client in the order of its tasks; a client's first task has 1 in its last column."""
    k = -1
    for t in range(len(tasks)):
        if tasks[t, 4]:
            k += 1
            out[k] = parts[t]
        else:
            out[k] += parts[t]
