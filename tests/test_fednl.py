"""FedNL: its recursion against NumPy's, with Hessians and their top eigenpairs written out."""

from __future__ import annotations

import numpy as np
import pytest

from proxfed import Federated, Linear, Logistic
from proxfed.algorithms import FedNL
from proxfed.errors import InputError
from proxfed.regularisers import Zero
from proxfed.testing.runs import begun


@pytest.mark.parametrize("alpha", [1.0, 0.6])
def test_recursion_in_numpy(alpha) -> None:
    """Option 2 of the paper with Rank-1, from Hh_i = 0; l_i is the largest eigenvalue of R_i by size."""
    rng = np.random.default_rng(4)
    n, m, d, l2 = 4, 30, 6, 0.05
    A, b = rng.normal(size=(n, m, d)), np.sign(rng.normal(size=(n, m)))
    run = begun(FedNL(alpha), Linear(Federated.from_clients(list(zip(A, b, strict=True))), Logistic(), l2=l2) + Zero())
    x, Hh = np.zeros(d), np.zeros((n, d, d))
    for t in range(1, 13):
        run.round(t)
        g, l, S = np.zeros(d), 0.0, np.zeros((n, d, d))
        for i in range(n):
            s = 1 / (1 + np.exp(b[i] * (A[i] @ x)))
            g += (A[i].T @ (-b[i] * s) / m + l2 * x) / n
            R = (A[i].T * (s * (1 - s))) @ A[i] / m + l2 * np.eye(d) - Hh[i]
            e, Z = np.linalg.eigh(R)
            k = np.abs(e).argmax()
            l += abs(e[k]) / n
            S[i] = e[k] * np.outer(Z[:, k], Z[:, k])
        x = x - np.linalg.solve(Hh.mean(0) + l * np.eye(d), g)
        Hh += alpha * S
        assert np.allclose(run.model().numpy(), x, atol=1e-9)
        assert np.allclose(run.server.Hh.numpy(), Hh.mean(0), atol=1e-8)


def test_it_ends_fast_and_at_the_solution() -> None:
    rng = np.random.default_rng(1)
    A, b = rng.normal(size=(5, 40, 8)), np.sign(rng.normal(size=(5, 40)))
    p = Linear(Federated.from_clients(list(zip(A, b, strict=True))), Logistic(), l2=1e-3) + Zero()
    run = begun(FedNL(), p)
    for t in range(1, 31):
        run.round(t)
    assert float(p.f.gradient(run.model()).norm()) <= 1e-9


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_alpha_out_of_range_is_refused(alpha) -> None:
    with pytest.raises(InputError, match="alpha"):
        FedNL(alpha)
