"""The decentralised methods are the recursions of their papers."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from proxfed.algorithms import (
    DPSGD,
    DSGT,
    DSMT,
    ChocoSGD,
    DFedAvg,
    DFedAvgM,
    DFedSAM,
    ExactDiffusion,
    Extra,
    PGExtra,
    ProxGT,
)
from proxfed.compressors import ScaledSign, TopK
from proxfed.regularisers import L1, Zero

from support import numpy_references as ref
from support import toy_problems as toy

N, D = toy.N, toy.D


def paper_dpsgd(G, W, X, eta, variant):
    for t in count(1):
        X = W(t) @ (X - eta * G(X, t)) if variant == "atc" else W(t) @ X - eta * G(X, t)
        yield X


def paper_dfedavgm(G, W, X, eta, K, theta):
    """y_{k+1} = y_k - eta g + theta (y_k - y_{k-1}) with y_{-1} = y_0 = x."""
    for t in count(1):
        before = y = X
        for k in range(K):
            before, y = y, y - eta * G(y, t, k) + theta * (y - before)
        X = W(t) @ y
        yield X


def paper_dfedsam(G, W, X, eta, K, rho, Q):
    for t in count(1):
        y = X
        for k in range(K):
            g = G(y, t, k)
            y = y - eta * G(y + rho * g / np.linalg.norm(g, axis=1, keepdims=True), t, k)
        X = np.linalg.matrix_power(W(t), Q) @ y
        yield X


def paper_dsgt(G, W, X, alpha, variant):
    g = G(X, 0)
    y = g
    for t in count(1):
        X = W(t) @ X - alpha * y if variant == "cta" else W(t) @ (X - alpha * y)
        new = G(X, t)
        y = W(t) @ (y + new - g) if variant == "atc" else W(t) @ y + new - g
        g = new
        yield X


def paper_proxgt(G, W, prox, X, alpha, Q):
    g, y = np.zeros_like(X), np.zeros_like(X)
    for t in count(1):
        WQ = np.linalg.matrix_power(W(t), Q)
        new = G(X, t)
        y = WQ @ (y + new - g)
        X = WQ @ prox(X - alpha * y, alpha)
        g = new
        yield X


def paper_dsmt(G, W, X, alpha, beta, eta_w):
    """Momentum tracking with the stacked vectors (x, x') and (y, y') under one augmented matrix."""
    n = len(X)
    z = (1 - beta) * G(X, 0)
    xx, yy = np.vstack([X, X]), np.vstack([z, z])
    for t in count(1):
        A = np.block([[(1 + eta_w) * W(t), -eta_w * np.eye(n)], [np.eye(n), np.zeros((n, n))]])
        xx = A @ (xx - alpha * np.vstack([yy[:n], yy[:n]]))
        new = beta * z + (1 - beta) * G(xx[:n], t)
        yy = A @ (yy + np.vstack([new - z, new - z]))
        z = new
        yield xx[:n]


def paper_exact_diffusion(G, W, X, eta, lazy):
    """x'' = W'(2 x' - x - eta (grad f(x') - grad f(x)))."""
    n = len(X)
    A = lambda t: (np.eye(n) + W(t)) / 2 if lazy else W(t)
    before, X = X, A(1) @ (X - eta * G(X, 1))
    yield X
    for t in count(2):
        before, X = X, A(t) @ (2 * X - before - eta * (G(X, t) - G(before, t - 1)))
        yield X


def paper_pg_extra(G, W, prox, X, alpha):
    """z'' = W x' + z' - (I + W)/2 x - alpha (grad f(x') - grad f(x)),  x'' = prox(z''); EXTRA with no prox."""
    W, n = W(1), len(X)
    before, z = X, W @ X - alpha * G(X, 1)
    X = prox(z, alpha)
    yield X
    for t in count(2):
        z = W @ X + z - (np.eye(n) + W) / 2 @ before - alpha * (G(X, t) - G(before, t - 1))
        before, X = X, prox(z, alpha)
        yield X


def paper_choco(G, W, X, eta, gamma, compress, variant):
    """Every client holds a copy of each neighbour's public model, and updates it by what that neighbour sends."""
    W, n = W(1), len(X)
    neighbours = [np.flatnonzero(W[i]) for i in range(n)]
    copies = [{j: X[j].copy() for j in (*neighbours[i], i)} for i in range(n)]
    gossip = lambda i: gamma * sum(W[i, j] * (copies[i][j] - copies[i][i]) for j in neighbours[i])
    for t in count(1):
        X = X - eta * G(X, t)
        if variant == "cta":
            X = np.stack([X[i] + gossip(i) for i in range(n)])
        sent = [compress(X[i] - copies[i][i]) for i in range(n)]
        for i in range(n):
            for j in copies[i]:
                copies[i][j] = copies[i][j] + sent[j]
        if variant == "atc":
            X = np.stack([X[i] + gossip(i) for i in range(n)])
        yield X


RECURSIONS = {
    "dpsgd cta": (DPSGD(0.5), lambda G, W, h, X: paper_dpsgd(G, W, X, 0.5, "cta")),
    "dpsgd atc": (DPSGD(0.5, "atc"), lambda G, W, h, X: paper_dpsgd(G, W, X, 0.5, "atc")),
    "dfedavg": (DFedAvg(0.3, 3), lambda G, W, h, X: paper_dfedavgm(G, W, X, 0.3, 3, 0)),
    "dfedavgm": (DFedAvgM(0.3, 4, 0.7), lambda G, W, h, X: paper_dfedavgm(G, W, X, 0.3, 4, 0.7)),
    "dfedsam": (DFedSAM(0.3, 3, 0.2), lambda G, W, h, X: paper_dfedsam(G, W, X, 0.3, 3, 0.2, 1)),
    "dfedsam-mgs": (DFedSAM(0.3, 2, 0.2, 4), lambda G, W, h, X: paper_dfedsam(G, W, X, 0.3, 2, 0.2, 4)),
    "dsgt atc": (DSGT(0.8), lambda G, W, h, X: paper_dsgt(G, W, X, 0.8, "atc")),
    "dsgt semi": (DSGT(0.8, "semi"), lambda G, W, h, X: paper_dsgt(G, W, X, 0.8, "semi")),
    "dsgt cta": (DSGT(0.8, "cta"), lambda G, W, h, X: paper_dsgt(G, W, X, 0.8, "cta")),
    "proxgt": (ProxGT(0.8), lambda G, W, h, X: paper_proxgt(G, W, h, X, 0.8, 1)),
    "proxgt Q=3": (ProxGT(0.8, 3), lambda G, W, h, X: paper_proxgt(G, W, h, X, 0.8, 3)),
    "dsmt": (DSMT(0.8, 0.6), lambda G, W, h, X: paper_dsmt(G, W, X, 0.8, 0.6, 0)),
    "dsmt lca": (DSMT(0.8, 0.6, 0.3), lambda G, W, h, X: paper_dsmt(G, W, X, 0.8, 0.6, 0.3)),
    "exact diffusion": (ExactDiffusion(0.8), lambda G, W, h, X: paper_exact_diffusion(G, W, X, 0.8, True)),
    "d2": (ExactDiffusion(0.8, lazy=False), lambda G, W, h, X: paper_exact_diffusion(G, W, X, 0.8, False)),
    "extra": (Extra(0.8), lambda G, W, h, X: paper_pg_extra(G, W, ref.prox_zero, X, 0.8)),
    "pg-extra": (PGExtra(0.8), lambda G, W, h, X: paper_pg_extra(G, W, h, X, 0.8)),
    "choco atc": (
        ChocoSGD(0.5, 0.4, TopK(k=3)),
        lambda G, W, h, X: paper_choco(G, W, X, 0.5, 0.4, ref.top_k(3), "atc"),
    ),
    "choco cta": (
        ChocoSGD(0.5, 0.4, ScaledSign(), variant="cta"),
        lambda G, W, h, X: paper_choco(G, W, X, 0.5, 0.4, ref.scaled_sign, "cta"),
    ),
}


@pytest.mark.parametrize("graph", ["ring", "star"])
@pytest.mark.parametrize("name", RECURSIONS)
def test_is_the_recursion_of_the_paper(name, graph):
    algorithm, paper = RECURSIONS[name]
    p = toy.problem(h=L1(toy.LAMBDA) if algorithm.needs.composite else Zero(), batch=6)
    X = np.tile(toy.start(p), (N, 1))
    expected = paper(toy.gradients(p), ref.mixing(graph, N), ref.prox_l1(toy.LAMBDA), X)
    found = toy.rows_of(p, algorithm, 15, toy.GRAPHS[graph](N))
    for t, (a, b) in enumerate(zip(found, expected, strict=False), 1):
        assert toy.gap(a, b) <= 1e-12, t


CHANGING = ("dpsgd cta", "dpsgd atc", "dfedavgm", "dfedsam-mgs", "dsgt atc", "dsgt semi", "dsgt cta", "proxgt", "dsmt")


@pytest.mark.parametrize("name", CHANGING)
def test_is_the_recursion_of_the_paper_on_a_changing_graph(name):
    algorithm, paper = RECURSIONS[name]
    p = toy.problem(h=L1(toy.LAMBDA) if algorithm.needs.composite else Zero())
    X = np.tile(toy.start(p), (N, 1))
    expected = paper(toy.gradients(p), ref.mixing("one_peer", N), ref.prox_l1(toy.LAMBDA), X)
    for a, b in zip(toy.rows_of(p, algorithm, 10, toy.GRAPHS["one_peer"](N)), expected, strict=False):
        assert toy.gap(a, b) <= 1e-12
