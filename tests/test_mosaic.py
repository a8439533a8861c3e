"""Mosaic: its recursion against NumPy's, its inequalities (docs/theory.md), its messages, and where it must not run."""

from __future__ import annotations

from itertools import islice
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxfed import Federated, Linear, Logistic, Squared
from proxfed.algorithms import Mosaic, curvature_pieces
from proxfed.algorithms.curvature_pieces import GRADES, piece_grade, top_eigenvector
from proxfed.algorithms.mosaic_control import PATIENCE, Numbers
from proxfed.algorithms.proximal_model import Metric, model_step
from proxfed.compressors import ErrorBoundedQuantiser
from proxfed.compressors.rows_apart import CurvaturePieces, factor_code, factor_of, size_code, size_of
from proxfed.engine.compatibility import check_combination
from proxfed.errors import InputError, RunError
from proxfed.keyed_random import keys
from proxfed.participation import Full, UniformSampling
from proxfed.problems.fista import fista
from proxfed.problems.losses import Huber
from proxfed.regularisers import L1, Box, GroupLasso, Zero
from proxfed.testing.runs import begun
from proxfed.topologies import Ring, SpanningTree

from support import mosaic_reference


def data(seed, n=4, m=25, d=8, loss="logistic", decay=1.0):
    rng = np.random.default_rng(seed)
    A = (rng.normal(size=(n, m, d)) + rng.normal(size=(n, 1, d))) * np.logspace(0, -decay, d)
    s = A @ rng.normal(size=d)
    b = np.where(s + rng.normal(size=s.shape) > 0, 1.0, -1.0) if loss == "logistic" else s
    return A, b


def federated(A, b):
    return Federated.from_clients(list(zip(A, b, strict=True)))


# ---- the recursion ----


@pytest.mark.parametrize(("loss", "seed"), [("logistic", 0), ("logistic", 1), ("squared", 2), ("squared", 5)])
def test_recursion_in_numpy(loss, seed) -> None:
    """Points agree to the accuracy of the model's minimiser, bytes to the last one."""
    A, b = data(seed, loss=loss)
    (n, m, d), l2, lam = A.shape, 0.02, 0.01
    weights = lambda y: np.full((n, m), 1 / m) if loss == "squared" else _bent(A @ y) / m

    def grad(i, y):
        s = A[i] @ y
        r = s - b[i] if loss == "squared" else -b[i] / (1 + np.exp(b[i] * s))
        return A[i].T @ r / m + l2 * y

    soft = lambda v, step: np.sign(v) * np.maximum(np.abs(v) - step * lam, 0)
    H = lambda i, y: (A[i] * weights(y)[i][:, None]).T @ A[i]
    x0 = np.random.default_rng(9).normal(size=d)
    theirs = mosaic_reference.mosaic(
        n, d, np.full(n, 1 / n), l2, x0, grad, H, soft, lambda x: lam * float(np.abs(x).sum())
    )
    p = Linear(federated(A, b), Logistic() if loss == "logistic" else Squared(), l2=l2) + L1(lam)
    run = begun(Mosaic(), p.starting_at(torch.tensor(x0)))
    for t, other in enumerate(islice(theirs, 8), 1):
        before = run.network.traffic.up, run.network.traffic.down
        run.round(t)
        s, size = run.server, np.linalg.norm(other.x)
        assert np.linalg.norm(s.y.numpy() - other.y) <= 1e-5 * size, t
        assert np.linalg.norm(s.x.numpy() - other.x) <= 1e-4 * size, t
        assert np.abs(s.known.H.numpy().ravel() - other.Hh).max() <= 1e-6 * np.abs(other.Hh).max(), t
        assert run.network.traffic.up - before[0] == other.up, t
        assert run.network.traffic.down - before[1] == other.down, t


def _bent(s):
    e = np.exp(-np.abs(s))
    return e / (1 + e) ** 2


def test_what_is_public_is_the_same_for_all() -> None:
    """y to the bit; and c is the mean of the u_i, H of the pieces, whatever was compressed, shortened or taken back."""
    A, b = data(3, n=5)
    p = Linear(federated(10 * A, b), Logistic(), l2=1e-3) + L1(1e-3)
    run = begun(Mosaic(), p.starting_at(5 * torch.ones(8, dtype=torch.float64)))
    shortened = 0
    for t in range(1, 26):
        run.round(t)
        own, s = run.state.clients, run.server
        assert all(torch.equal(y, s.y) for y in own.y)
        assert torch.allclose(own.u.mean(0), s.c, atol=1e-12 * float(own.u.abs().max()))
        pieces = torch.einsum("ck,cki,ckj->ij", own.pieces.a, own.pieces.v, own.pieces.v) / 5
        assert torch.allclose(pieces, s.known.H, atol=1e-12 * float(pieces.abs().max()))
        shortened += Numbers(*s.numbers.tolist()).back > 0
    assert shortened > 0


@pytest.mark.parametrize("h", [Zero(), L1(0.01), Box(-0.1, 0.2), GroupLasso(0.02, size=4)], ids=repr)
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_it_ends_at_the_solution(loss, h) -> None:
    A, b = data(6, loss=loss, decay=2)
    p = Linear(federated(A, b), Logistic() if loss == "logistic" else Squared(), l2=1e-3) + h
    x, run = p.solve(), begun(Mosaic(), p)
    for t in range(1, 41):
        run.round(t)
    assert float((run.model() - x).norm()) <= 1e-8 * float(x.norm())


def test_many_parameters_and_few_pieces_at_the_server(monkeypatch) -> None:
    """Beyond FULL parameters the server keeps pieces instead of a matrix; nothing else changes but rounding."""
    A, b = data(7, n=3, m=30, d=20)
    p, models = Linear(federated(A, b), Logistic(), l2=0.01) + L1(1e-3), []
    for most in (1024, 19):
        monkeypatch.setattr(curvature_pieces, "FULL", most)
        run = begun(Mosaic(), p)
        for t in range(1, 6):
            run.round(t)
        assert run.server.known.H.numel() == (400 if most == 1024 else 0)
        models.append(run.model())
    assert 6 <= int(run.server.known.used) <= 19
    assert torch.allclose(*models, atol=1e-6)
    for t in range(6, 61):  # with no room for more of them it is slower, and ends there all the same
        run.round(t)
    x = p.solve()
    assert float((run.model() - x).norm()) <= 1e-8 * float(x.norm())


# ---- safeguards ----


def test_a_far_start_where_there_is_no_curvature() -> None:
    """All sigmoids are saturated, so that the first Hessians are 0 and say nothing of the steps to take."""
    rng = np.random.default_rng(4)
    A = 10 * rng.normal(size=(5, 40, 6))
    p = Linear(federated(A, np.where(A @ rng.normal(size=6) > 0, 1.0, -1.0)), Logistic(), l2=1e-2) + L1(1e-4)
    x, run = p.solve(), begun(Mosaic(), p.starting_at(torch.tensor(30 * rng.normal(size=6))))
    for t in range(1, 201):
        run.round(t)
    assert float((run.model() - x).norm()) <= 1e-6 * float(x.norm())


def test_clients_that_are_all_alike_begin_with_full_damping() -> None:
    A, b = data(8)
    alike = begun(Mosaic(), Linear(federated(A[:1].repeat(4, 0), b[:1].repeat(4, 0)), Logistic(), l2=0.01) + L1(1e-3))
    apart = begun(Mosaic(), Linear(federated(A, b), Logistic(), l2=0.01) + L1(1e-3))
    for run, sigma in ((alike, 1.0), (apart, 0.5)):
        run.round(1)
        assert Numbers(*run.server.numbers.tolist()).sigma == pytest.approx(sigma)


def test_rounds_that_are_not_good_lead_back_to_the_kept_point() -> None:
    """The kept point has the least certified residual; after PATIENCE bad rounds the damping rises, up to L."""
    a = Mosaic()
    A, b = data(8)
    p = Linear(federated(A, b), Logistic(), l2=0.01) + L1(1e-3)
    run = begun(a, p)
    for t in range(1, 4):
        run.round(t)
    s, n = run.server, Numbers(*run.server.numbers.tolist())
    n, floors = n._replace(kept_e=0.0), []
    bad = s._replace(y=s.kept_y + 1, q=torch.ones_like(s.q))  # far from there
    for _ in range(4 * (PATIENCE + 1)):
        n = a._watched(bad, n, bad.c.double() + 1, 0.1, p.h)
        assert n.mark == 0
        if n.to_kept:
            floors.append(n.floor / n.L)
    assert floors == [1 / 64, 1 / 16, 1 / 4, 1.0]


def test_the_model_is_never_worse_than_the_best_point_that_is_known() -> None:
    """Nor than the start: also on features of very different scales, where steps are often far too long at first."""
    rng = np.random.default_rng([1, 53])
    A = rng.normal(size=(10, 40, 20)) * np.logspace(0, 3, 20)
    p = Linear(federated(A, np.where(A @ rng.normal(size=20) > 0, 1.0, -1.0)), Logistic(), l2=3e-5) + L1(1e-4)
    run, shortened, start = begun(Mosaic(), p), 0, float(p.value(torch.zeros(20, dtype=torch.float64)))
    for t in range(1, 41):
        run.round(t)
        shown, best = (float(p.value(x)) for x in (run.model(), run.server.best))
        assert shown <= best * (1 + 1e-9), t
        assert best <= start, t
        shortened += Numbers(*run.server.numbers.tolist()).back > 0
    assert shortened > 0


def test_negative_curvature_of_quantised_pieces_is_not_believed() -> None:
    """Separable data with little l2: about 50 rounds; 100 were too few while it was believed."""
    rng = np.random.default_rng([3, 53])
    A = rng.normal(size=(10, 40, 20))
    p = Linear(federated(A, np.where(A @ rng.normal(size=20) > 0, 1.0, -1.0)), Logistic(), l2=1e-5) + L1(1e-4)
    x, run = p.solve(), begun(Mosaic(), p)
    for t in range(1, 71):
        run.round(t)
    assert float((run.model() - x).norm()) <= 1e-7 * float(x.norm())


@pytest.mark.parametrize("most", [1024, 1])
def test_the_known_curvature_has_no_negative_eigenvalues_in_the_metric(monkeypatch, most) -> None:
    monkeypatch.setattr(curvature_pieces, "FULL", most)
    known = curvature_pieces.Known.nothing(torch.zeros(4, dtype=torch.float64))
    known = known.plus(torch.tensor([-2.0], dtype=torch.float64), torch.eye(4, dtype=torch.float64)[:1])
    none = torch.zeros(2, 4, dtype=torch.float64)
    B = known.metric(0.1, none, 0.01)
    e = torch.eye(4, dtype=torch.float64)
    assert B.norm(e[0]) ** 2 == pytest.approx(0.1)
    assert known(e[0])[0] == -2  # but it predicts gradients as everybody does
    B = known.metric(0.1, torch.stack([e[0], 3 * e[0]]), 0.01)  # a secant pair counts as it was seen
    assert B.norm(e[0]) ** 2 == pytest.approx(3)


# ---- the theory ----


def averaged(A, loss, l2, at, to):
    """(n, d, d): Hessians of the f_i averaged between two points, by Gauss's rule."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    m, d = A.shape[1:]
    out = np.zeros((len(A), d, d))
    for z, w in zip(nodes, weights, strict=True):
        s = A @ (at + (z + 1) / 2 * (to - at))
        each = np.ones_like(s) if loss == "squared" else _bent(s)
        out += w / 2 * np.einsum("nmd,nm,nme->nde", A, each / m, A)
    return out + l2 * np.eye(d)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["logistic", "squared"]), st.integers(0, 4), st.integers(0, 4))
def test_T07a_one_round_contracts_as_the_lemmas_say(seed, loss, up, down) -> None:
    """|x - x*|_B <= omega a + |e|_{B^-1}; and (a, eta)' <= M (a, eta)' after both compressors."""
    rng = np.random.default_rng(seed)
    A, b = data(seed, n=int(rng.integers(2, 6)), d=int(rng.integers(3, 12)), loss=loss)
    (n, _, d), l2, h = A.shape, 10 ** rng.uniform(-3, 0), L1(10 ** rng.uniform(-3, -1))
    p = Linear(federated(A, b), Logistic() if loss == "logistic" else Squared(), l2=l2) + h
    best = fista(p.f.gradient, h, p.f.smoothness().L_f, torch.zeros(d, dtype=torch.float64), 1e-14).numpy()
    known = averaged(A, loss, 0.0, best, best)
    wrong = rng.normal(size=known.shape)
    known = known + 0.1 * rng.uniform() * np.linalg.norm(known[0], 2) * (wrong + wrong.transpose(0, 2, 1)) / sqrt(d)
    least = min(np.linalg.eigvalsh(known.mean(0))[0], 0.0)
    B = known.mean(0) + (l2 - least + 0.3 * rng.uniform() * np.linalg.norm(known[0], 2)) * np.eye(d)
    beta, root, inverse = np.linalg.eigvalsh(B)[0], np.linalg.cholesky(B), np.linalg.inv(B)
    norm = lambda v: float(np.linalg.norm(root.T @ v))
    grads = lambda y: p.f.local(0, range(n)).full_grad(torch.tensor(y)).numpy()
    y = best + rng.normal(size=d)
    u = grads(y) + 0.3 * rng.normal(size=(n, d))
    q_u = sqrt(GRADES[up])
    for _ in range(4):
        e, c = u - grads(y), u.mean(0)
        Hm = averaged(A, loss, l2, best, y).mean(0)
        omega = np.linalg.norm(np.linalg.solve(root, np.linalg.solve(root, B - Hm).T), 2)
        step = model_step(Metric.full(torch.tensor(B)), torch.tensor(y), torch.tensor(c), h, 50_000, 1e-15).numpy()
        a, eta = norm(y - best), np.linalg.norm(e, axis=1).mean() / sqrt(beta)
        if a < 1e-8:
            break
        allowed = omega * a + sqrt(e.mean(0) @ inverse @ e.mean(0))
        assert norm(y + step - best) <= allowed * (1 + 1e-7) + 1e-9
        q = ErrorBoundedQuantiser(1e-6).within(torch.tensor(step)[None], GRADES[down]).dense[0].numpy()
        k_d = norm(q - step) / norm(step)
        r = max(np.linalg.norm(R, 2) for R in averaged(A, loss, 0.0, y, y + q) - known) / beta
        y = y + q
        u = u + known @ q + l2 * q
        u = u + ErrorBoundedQuantiser(1e-6).within(torch.tensor(grads(y) - u), q_u**2).dense.numpy()
        M = np.array(
            [[k_d + (1 + k_d) * omega, 1 + k_d], [q_u * r * (1 + k_d) * (1 + omega), q_u * (1 + r * (1 + k_d))]]
        )
        bound = M @ [a, eta]
        assert norm(y - best) <= bound[0] * (1 + 1e-7) + 1e-9
        assert np.linalg.norm(u - grads(y), axis=1).mean() / sqrt(beta) <= bound[1] * (1 + 1e-7) + 1e-9


@given(st.floats(0, 0.99), st.floats(0, 1e6))
def test_T07b_the_rate_does_not_know_the_condition(w, r) -> None:
    """With k_d <= (1-w)/8 and q_u <= (1-w)/(2(1-w) + 21 r), max(a, 4 eta/(1-w)) falls by 1 - 0.46 (1-w)."""
    g, k_d, q_u = (1 - w) / 4, (1 - w) / 8, (1 - w) / (2 * (1 - w) + 21 * r)
    M = np.array([[k_d + (1 + k_d) * w, 1 + k_d], [q_u * r * (1 + k_d) * (1 + w), q_u * (1 + r * (1 + k_d))]])
    after = M @ [1.0, g]
    assert max(after[0], after[1] / g) <= 1 - 0.46 * (1 - w) + 1e-12


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 4))
def test_T07c_a_piece_contracts(seed, grade) -> None:
    """|R - a v v'|_F^2 <= (1 - 0.998 (1 - 2 q^2)^2/d) |R|_F^2, also after a was rounded to an eighth of an octave."""
    rng = np.random.default_rng(seed)
    d, q2 = int(rng.integers(2, 25)), GRADES[grade]
    E = rng.normal(size=(d, d))
    R = E + E.T if rng.integers(2) else (E * rng.random(d) ** 6) @ E.T
    e, Z = np.linalg.eigh(R)
    k = np.abs(e).argmax()
    v = ErrorBoundedQuantiser(1e-6).within(torch.tensor(Z[:, k] * sqrt(abs(e[k])))[None], q2).dense[0].numpy()
    a = factor_of(factor_code(np.array([v @ R @ v / (v @ v) ** 2])))[0]
    left = np.square(R - a * np.outer(v, v)).sum() / np.square(R).sum()
    assert left <= 1 - 0.998 * (1 - 2 * q2) ** 2 / d + 1e-12


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_T07d_the_certified_residual_bounds_the_distance(seed) -> None:
    """After any round: |x' - x*| <= 2 G/mu for x' = prox_{h/L}(y - c/L), and |c - grad f(y)| is within its bound."""
    A, b = data(seed, decay=0.5)
    p = Linear(federated(A, b), Logistic(), l2=0.05) + L1(0.01)
    best, run, rng = p.solve(), begun(Mosaic(), p), np.random.default_rng(seed)
    for t in range(1, int(rng.integers(2, 8))):
        run.round(t)
        s, n = run.server, Numbers(*run.server.numbers.tolist())
        if n.mark and not n.back:
            hidden = float((s.c - p.f.gradient(s.y)).norm())
            assert hidden <= n.kept_e * (1 + 1e-9)
            L = max(n.L, p.f.smoothness().L_f)
            near = p.h.prox(s.y - s.c / L, 1 / L)
            G = L * float((s.y - near).norm()) + n.kept_e
            assert float((near - best).norm()) <= 2 * G / 0.05 + 1e-12


# ---- its parts ----


@given(st.integers(0, 1000), st.integers(1, 9), st.booleans())
def test_metrics(seed, k, wide) -> None:
    """b I + U M U' by its spectrum: products, solutions, norms and traces are those of the matrix."""
    rng, d = np.random.default_rng(seed), 4 if wide else 12
    U, M = rng.normal(size=(d, k)), np.diag(rng.uniform(0.1, 2, k))
    B, full = Metric.of(0.3, torch.tensor(U), torch.tensor(M)), 0.3 * np.eye(d) + U @ M @ U.T
    v = rng.normal(size=d)
    assert np.allclose(B(torch.tensor(v)).numpy(), full @ v)
    assert np.allclose(B.solve(torch.tensor(v)).numpy(), np.linalg.solve(full, v))
    assert B.norm(torch.tensor(v)) == pytest.approx(sqrt(v @ full @ v))
    assert float(B.mean_inverse) == pytest.approx(np.trace(np.linalg.inv(full)) / d)
    assert float(B.largest) == pytest.approx(np.linalg.eigvalsh(full)[-1])


def test_eigenvectors_of_many_clients_at_once() -> None:
    rng = np.random.default_rng(0)
    E = rng.normal(size=(6, 9, 9))
    R = torch.tensor(E + E.transpose(0, 2, 1))
    sizes, vectors, second = top_eigenvector(
        lambda V: (R @ V[:, :, None])[:, :, 0], torch.tensor(rng.normal(size=(6, 9)))
    )
    e, Z = np.linalg.eigh(R.numpy())
    order = np.argsort(-np.abs(e), 1)
    for i in range(6):
        assert np.allclose([sizes[i], second[i]], np.abs(e[i])[order[i, :2]])
        assert abs(Z[i, :, order[i, 0]] @ vectors[i].numpy()) == pytest.approx(1)


def test_precision_of_pieces() -> None:
    """A vector that is soon joined by others need not be fine."""
    assert piece_grade(np.array([1.0, 0.3, 0.2, 0.01, np.nan])).tolist() == [0.03, 0.01, 0.01, 1e-3, 1e-3]


@given(st.floats(1e-11, 1e6), st.floats(2**-7, 2**7), st.booleans())
def test_bytes_of_single_numbers(size, a, negative) -> None:
    assert size <= float(size_of(size_code(np.array([size])))[0]) * (1 + 1e-12) <= size * 2**0.25 * (1 + 1e-9)
    a = -a if negative else a
    assert abs(np.log2(factor_of(factor_code(np.array([a])))[0] / a)) <= 1 / 16 + 1e-9
    codes = np.arange(256, dtype=np.uint8)
    assert np.array_equal(size_code(size_of(codes) * (1 - 1e-12)), codes)
    known = np.setdiff1d(codes, [128])  # minus 0 is nothing
    assert np.array_equal(factor_code(factor_of(known)), known)


def test_messages_of_pieces_are_what_is_read() -> None:
    rng, C = np.random.default_rng(1), CurvaturePieces()
    rows = torch.tensor(rng.normal(size=(5, 12)))
    rows[:, 0], rows[:, 1] = rows[:, 0].abs(), torch.tensor([1.0, 0.0, -0.7, 0.0, 1.3])
    packed = C(rows, keys(0, "test", range(5), 0))
    messages = C.encode(packed)
    assert [len(m) == 1 for m in messages] == [False, True, False, True, False]
    assert packed.nbytes == sum(map(len, messages))
    assert torch.equal(C.decode(messages, 12, torch.float64), packed.dense)
    assert not packed.dense[1, 1:].any()
    for damaged in (b"", messages[0][:-1], messages[0] + b"\0", messages[0][:1] + b"\0" + messages[0][2:]):
        with pytest.raises(RunError):
            C.decode([damaged], 12, torch.float64)


# ---- what it refuses ----


def test_refusals() -> None:
    A, b = data(0)
    f = Linear(federated(A, b), Logistic(), l2=0.1)
    huber = Linear(federated(A, b), Huber(), l2=0.1)
    with pytest.raises(InputError, match=r"Mosaic needs Hessian products of f, which .* does not offer"):
        check_combination(huber + L1(0.1), Mosaic(), None, Full())
    with pytest.raises(InputError, match="needs every client in every round"):
        check_combination(f + L1(0.1), Mosaic(), None, UniformSampling(2))
    with pytest.raises(InputError, match="a tree brings it only sums of them"):
        check_combination(f + L1(0.1), Mosaic(), SpanningTree(Ring(4)), Full())
