"""With full gradients the exact algorithms reach the solution however different the clients are; FedAvg does not."""

from __future__ import annotations

import numpy as np
import pytest

from proxfed import Depositum, FedAvg, FedCEF, FedComposite
from proxfed.compressors import ScaledSign, TopK
from proxfed.regularisers import MCP

from support import numpy_references as ref
from support import toy_problems as toy

N = toy.N
TOP1 = TopK(fraction=1 / toy.D)  # keeps one entry of ten of the logistic problem, three of thirty of the softmax one
STEP = 0.6  # of DEPOSITUM, times 1/L


def stars(L):
    """The exact algorithms with a server, K = 5 local steps."""
    step = 1 / L / 5
    return {
        "fedcef top 1": FedCEF(step, 5, compressor=TOP1),
        "fedcef top 1, eta 0.5": FedCEF(step, 5, eta=0.5, compressor=TOP1),
        "fedcef scaled sign": FedCEF(step, 5, compressor=ScaledSign()),
        "fedcomposite": FedComposite(step, 5),
        "fedcomposite, eta_g": FedComposite(step / np.sqrt(N), 5, np.sqrt(N)),
    }


def reaches(p, algorithm, most, topology=None):
    x = p.solve().numpy()
    assert 0 < np.count_nonzero(x) < p.f.d  # a solution in which h matters
    return toy.reaches(p, algorithm, 1e-10, most, topology, far=lambda model: toy.error(model, x))


@pytest.mark.parametrize("T0", [1, 5])
@pytest.mark.parametrize("option", ["polyak", "nesterov"])
@pytest.mark.parametrize("graph", ["ring", "star", "complete", "one_peer"])
def test_depositum_reaches_the_solution_on_every_graph(graph, option, T0):
    p = toy.problem()
    algorithm = Depositum(STEP / p.f.smoothness().L, 1.0, 0.5, T0, option)
    assert reaches(p, algorithm, 600, toy.GRAPHS[graph](N))


@pytest.mark.parametrize("loss", ["least_squares", "softmax"])
@pytest.mark.parametrize(("graph", "option", "T0"), [("ring", "polyak", 5), ("star", "nesterov", 1)])
def test_depositum_reaches_the_solution_of_other_losses(graph, option, T0, loss):
    p = toy.problem(loss)
    algorithm = Depositum(2 * STEP / p.f.smoothness().L, 0.5, 0.5, T0, option)
    assert reaches(p, algorithm, 600, toy.GRAPHS[graph](N))


@pytest.mark.parametrize("loss", toy.LOSSES)
@pytest.mark.parametrize("name", stars(1.0))
def test_exact_algorithms_with_a_server_reach_the_solution(name, loss):
    p = toy.problem(loss)
    assert reaches(p, stars(p.f.smoothness().L)[name], 800)


@pytest.mark.parametrize("loss", toy.LOSSES)
def test_fedavg_stops_away_from_the_solution(loss):
    p = toy.problem(loss)
    algorithm = FedAvg(1 / p.f.smoothness().L / 5, 5)
    early, late = (toy.error(toy.final(p, algorithm, rounds), p.solve().numpy()) for rounds in (80, 100))
    assert late > 1e-2
    assert late == pytest.approx(early, rel=0.02)  # it stopped there


@pytest.mark.parametrize("name", ["depositum", "fedcef top 1", "fedcomposite"])
def test_clients_weigh_as_much_as_they_hold(name):
    p = toy.problem(sizes=toy.RAGGED, weighting="size")
    L, x = p.f.smoothness().L, p.solve().numpy()
    assert toy.error(toy.problem(sizes=toy.RAGGED, weighting="uniform").solve().numpy(), x) > 1e-2
    if name == "depositum":  # its steps see n p_i f_i, whose smoothness is that many times larger
        L *= N * max(toy.RAGGED) / sum(toy.RAGGED)
        assert reaches(p, Depositum(STEP / L, 1.0, 0.5, 3), 800, toy.GRAPHS["ring"](N))
    else:
        assert reaches(p, stars(L)[name], 800)


@pytest.mark.parametrize("T0", [1, 5])
@pytest.mark.parametrize("graph", ["ring", "star", "complete"])
def test_depositum_reaches_a_stationary_point_of_a_weakly_convex_problem(graph, T0):
    """phi is not convex. Local prox steps spread the clients, so that alpha rho < 1 - psi^{1/(2 T0)} is needed."""
    weight, theta, s = 0.03, 8.0, 1.0
    p, prox = toy.problem(h=MCP(weight, theta)), ref.prox_mcp(weight, theta)
    gradient = toy.mean_gradient(p)
    stationarity = lambda x: np.linalg.norm(x - prox(x - s * gradient(x), s)) / s
    psi = np.linalg.norm(ref.mixing(graph, N)(0) - 1 / N, 2)
    alpha = min(STEP / p.f.smoothness().L, 0.9 * theta * (1 - psi ** (1 / (2 * T0))))
    assert toy.reaches(p, Depositum(alpha, 1.0, 0.5, T0), 1e-10, 1500, toy.GRAPHS[graph](N), stationarity)


# ---- the reference solution itself -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"sizes": toy.RAGGED}, {"sizes": toy.RAGGED, "weighting": "size"}], ids=str)
@pytest.mark.parametrize("loss", toy.LOSSES)
def test_solve_is_optimal(loss, options):
    p = toy.problem(loss, **options)
    x, s = p.solve().numpy(), 1 / p.f.smoothness().L_f
    residual = (x - ref.soft(x - s * toy.mean_gradient(p)(x), s * toy.LAMBDA)) / s
    assert np.linalg.norm(residual) < 1e-11
    assert toy.error(x, toy.solution(p)) < 1e-10
