"""Values and gradients of linear models in one pass over the samples, compiled by numba.

The sums of a client are those of its tasks: runs of neighbouring samples whose length does not depend on threads or
blocks, added in their order, so neither does a bit of the result. A task goes through its samples a tile at a time:
their scores, what the loss makes of them, and their part of the gradient while the tile is still in the cache.

Sums may be reassociated, so that they run in vectors; nothing else may be: NaN and infinity stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, inf, log, log1p
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

SQUARED, HUBER, POISSON, LOGISTIC, SOFTMAX, ONE_HOT = range(6)

SUMS = {"reassoc", "contract", "nsz"}
TILE = 64
"""Samples of a tile, if they are short."""
TILE_NUMBERS = 4096
"""Numbers of a tile otherwise: 32 kB."""


def compiled(fastmath: Any = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compiled once: kept beside this file, or in the user's cache directory, or, where neither can be written, not."""

    def compile_it(function: Callable[..., Any]) -> Any:
        try:
            return njit(nogil=True, cache=True, fastmath=fastmath, **options)(function)
        except RuntimeError:  # there is no place to keep it
            return njit(nogil=True, fastmath=fastmath, **options)(function)

    return compile_it


# ---- exp that runs in vectors ----------------------------------------------------------------------------------------


@intrinsic
def _bits(typing: Any, x: Any) -> Any:
    return types.int64(types.float64), lambda context, builder, signature, a: builder.bitcast(a[0], ir.IntType(64))


@intrinsic
def _number(typing: Any, x: Any) -> Any:
    return types.float64(types.int64), lambda context, builder, signature, a: builder.bitcast(a[0], ir.DoubleType())


LARGEST, SMALLEST = 709.0, -708.0
ROUND = 1.5 * 2.0**52  # what is added to it loses its fraction
PER_LN2 = 1 / log(2)
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # the first has zeros at its end
C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13 = (1 / factorial(k) for k in range(2, 14))


@compiled({"contract"}, forceinline=True)
def exp(z):
    """Within one unit of the last place: 2^k times a polynomial in r = z - k ln 2. From 709 on it is infinite."""
    s = LARGEST if z > LARGEST else z
    s = SMALLEST if s < SMALLEST else s
    t = s * PER_LN2 + ROUND
    k = t - ROUND
    r = (s - k * LN2_HIGH) - k * LN2_LOW
    high = C8 + r * (C9 + r * (C10 + r * (C11 + r * (C12 + r * C13))))
    e = 1.0 + r * (1.0 + r * (C2 + r * (C3 + r * (C4 + r * (C5 + r * (C6 + r * (C7 + r * high)))))))
    e = e * _number((_bits(t) << 52) + (1023 << 52))
    e = inf if z > LARGEST else e
    return 0.0 if z < SMALLEST else e


# ---- losses ----------------------------------------------------------------------------------------------------------


@compiled()
def single(kind, delta, s, b, v, slopes, values):
    """Scores s (n,) become slopes, if they are asked for; the sum of the values, if that is."""
    total = 0.0
    if values:
        for i in range(len(s)):
            if kind == SQUARED:
                f = (s[i] - b[i]) ** 2 / 2
            elif kind == HUBER:
                r = abs(s[i] - b[i])
                f = r * r / 2 if r <= delta else delta * (r - delta / 2)
            elif kind == POISSON:
                f = exp(s[i]) - b[i] * s[i]
            else:
                z = -b[i] * s[i]
                f = (z if z > 0 else 0.0) + log1p(exp(-abs(z)))
            total += v[i] * f
    if slopes and kind == SQUARED:
        for i in range(len(s)):
            s[i] = v[i] * (s[i] - b[i])
    elif slopes and kind == HUBER:
        for i in range(len(s)):
            r = s[i] - b[i]
            r = delta if r > delta else r
            s[i] = v[i] * (-delta if r < -delta else r)
    elif slopes and kind == POISSON:
        for i in range(len(s)):
            s[i] = v[i] * (exp(s[i]) - b[i])
    elif slopes:
        for i in range(len(s)):
            z = -b[i] * s[i]
            e = exp(-abs(z))
            s[i] = -v[i] * b[i] * ((1.0 if z > 0 else e) / (1.0 + e))
    return total


@compiled()
def several(kind, S, b, v, slopes, values):
    """The same of S (n, outputs), for losses of classes."""
    total, n, q = 0.0, S.shape[0], S.shape[1]
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
    flat = S.reshape(-1)
    for k in range(len(flat)):
        flat[k] = exp(flat[k])
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


# ---- dense samples ---------------------------------------------------------------------------------------------------


@compiled(SUMS)
def dense_scores(T, W, S):
    """S = T W', four samples at a time."""
    n, p = T.shape
    zero, k = T.dtype.type(0), 0
    while k + 4 <= n:
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
def dense_gradient(T, S, G):
    """G += S' T."""
    n, p = T.shape
    k = 0
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
def finish(task, x, l2, g, total):
    """Sums become means; the first task of a client adds what l2 gives."""
    m = task[3]
    for j in range(len(g)):
        g[j] /= m
    total /= m
    if task[4]:
        square = 0.0
        for j in range(len(x)):
            square += x[j] * x[j]
        for j in range(len(g)):
            g[j] += l2 * x[j]
        total += l2 / 2 * square
    return total


@compiled()
def dense(kind, delta, A, b, v, rows, tasks, x, q, l2, G, f):
    """The tasks' parts of gradients, into G (tasks, d) if it is not empty, and of values, into f (tasks,) likewise.

    A task is (first sample, last + 1, row of x, samples of its client, whether it is the client's first). Samples are
    rows of A, or what `rows` says if it is not empty. v may be empty: all samples count the same.
    """
    p, gradients, values = A.shape[1], len(G) > 0, len(f) > 0
    tile = min(TILE, max(4, TILE_NUMBERS // max(p, 1) // 4 * 4))
    gathered = np.empty((tile if len(rows) else 0, p), A.dtype)
    scores, b_tile, v_tile = np.empty((tile, q), A.dtype), np.empty(tile, b.dtype), np.ones(tile, b.dtype)
    nothing = np.empty(0, x.dtype)
    for t in range(len(tasks)):
        start, stop, own = tasks[t, 0], tasks[t, 1], x[tasks[t, 2]]
        W, bias = own[: q * p].reshape((q, p)), own[q * p :]
        g = G[t] if gradients else nothing
        g[:] = 0
        total = 0.0
        for k in range(start, stop, tile):
            n = min(tile, stop - k)
            T, S, bt, vt = A[k : k + n], scores[:n], b_tile[:n], v_tile[:n]
            if len(rows):
                T = gathered[:n]
            for i in range(n):
                row = k + i
                if len(rows):
                    row = rows[k + i]
                    T[i] = A[row]
                bt[i] = b[row]
                if len(v):
                    vt[i] = v[row]
            dense_scores(T, W, S)
            if len(bias):
                S += bias
            if q > 1 or kind >= SOFTMAX:
                total += several(kind, S, bt, vt, gradients, values)
            else:
                total += single(kind, delta, S.reshape(-1), bt, vt, gradients, values)
            if gradients:
                dense_gradient(T, S, g[: q * p].reshape((q, p)))
                for c in range(len(bias)):
                    for i in range(n):
                        g[q * p + c] += S[i, c]
        total = finish(tasks[t], own, l2, g, total)
        if values:
            f[t] = total


# ---- sparse samples --------------------------------------------------------------------------------------------------


@compiled()
def sparse(kind, delta, A, b, v, rows, tasks, x, q, l2, G, f):
    """The same of compressed sparse rows, A = (values, indices, indptr, width)."""
    numbers, columns, indptr, p = A
    gradients, values = len(G) > 0, len(f) > 0
    scores, b_tile, v_tile = np.empty((TILE, q), x.dtype), np.empty(TILE, b.dtype), np.ones(TILE, b.dtype)
    at, nothing = np.empty(TILE, np.int64), np.empty(0, x.dtype)
    for t in range(len(tasks)):
        start, stop, own = tasks[t, 0], tasks[t, 1], x[tasks[t, 2]]
        W, bias = own[: q * p].reshape((q, p)), own[q * p :]
        g = G[t] if gradients else nothing
        g[:] = 0
        total = 0.0
        for k in range(start, stop, TILE):
            n = min(TILE, stop - k)
            S, bt, vt = scores[:n], b_tile[:n], v_tile[:n]
            for i in range(n):
                row = rows[k + i] if len(rows) else k + i
                at[i], bt[i] = row, b[row]
                if len(v):
                    vt[i] = v[row]
                for c in range(q):
                    w, s = W[c], x.dtype.type(0)
                    for e in range(indptr[row], indptr[row + 1]):
                        s += numbers[e] * w[columns[e]]
                    S[i, c] = s
            if len(bias):
                S += bias
            if q > 1 or kind >= SOFTMAX:
                total += several(kind, S, bt, vt, gradients, values)
            else:
                total += single(kind, delta, S.reshape(-1), bt, vt, gradients, values)
            if gradients:
                Gw = g[: q * p].reshape((q, p))
                for i in range(n):
                    for c in range(q):
                        gc, r = Gw[c], S[i, c]
                        for e in range(indptr[at[i]], indptr[at[i] + 1]):
                            gc[columns[e]] += r * numbers[e]
                for c in range(len(bias)):
                    for i in range(n):
                        g[q * p + c] += S[i, c]
        total = finish(tasks[t], own, l2, g, total)
        if values:
            f[t] = total


@compiled()
def add_up(parts, tasks, out):
    """The parts of each client, in the order of its tasks; a client's first task has 1 in its last column."""
    k = -1
    for t in range(len(tasks)):
        if tasks[t, 4]:
            k += 1
            out[k] = parts[t]
        else:
            out[k] += parts[t]
