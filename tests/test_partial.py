"""Some clients a round: what the recursions keep, where they rest, and which methods still reach the solution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
import torch

from proxfed import algorithms as alg
from proxfed.compressors import Identity, NaturalCompressor, TopK
from proxfed.engine.compatibility import check_combination
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.errors import InputError
from proxfed.harness.catalogue import catalogue
from proxfed.participation import BernoulliSampling, Dropouts, Full, UniformSampling, arrived
from proxfed.regularisers import SquaredL2, Zero
from proxfed.types import Star
from test_conformance import SETTINGS

from support import numpy_references as ref
from support import toy_problems as toy

N, PROX = 10, ref.prox_l1(toy.LAMBDA)
RIDGE = SquaredL2(toy.LAMBDA)


@cache
def problem(h=toy.SPARSE, **options):
    """Ten clients, so that one of them is 10 %."""
    return toy.problem(h=h, sizes=(20,) * N, **options)


def begin(p, algorithm, participation, seed=0):
    return run_of(p, algorithm, Stacked(p.f.n, p.f.d), participation, seed)


def states(p, algorithm, participation, rounds, seed=0):
    run = begin(p, algorithm, participation, seed)
    for t in range(1, rounds + 1):
        run.round(t)
        yield toy.numpy(run.state), run.model().numpy()


def error_of(p, algorithm, participation, most, tolerance=0.0):
    """After at most so many rounds, or as soon as it is below the tolerance."""
    x = toy.solution(p, None if p.h == toy.SPARSE else lambda v, step: v / (1 + step * toy.LAMBDA))
    run = begin(p, algorithm, participation)
    for t in range(1, most + 1):
        run.round(t)
        if t % 50 == 0 and toy.error(run.model().numpy(), x) < tolerance:
            break
    return toy.error(run.model().numpy(), x)


@dataclass(frozen=True)
class InTurn:
    """One client after the other: everybody once in n rounds."""

    def __call__(self, t, n, seed):
        return np.array([t * 7 % n])


SOME = {
    "10 %": UniformSampling(1),
    "30 %": UniformSampling(3),
    "each with 10 %": BernoulliSampling(0.1),
    "each with 30 %": BernoulliSampling(0.3),
    "half of 60 % lost": Dropouts(0.5, UniformSampling(6)),
    "in turn": InTurn(),
}
some = pytest.mark.parametrize("participation", SOME.values(), ids=SOME)


# ---- FedComposite and FedCEF, written down once more ---------------------------------------------------------------


def in_numpy(p, participation, compress, *, alpha, K, eta_g=1.0, eta=1.0, seed=0):
    """FedCEF of docs/theory.md with some clients a round, one client at a time: (z, zt, c, all c_i, all v_i)."""
    grad, beta, weights = toy.gradient(p, seed), eta_g * alpha * K, p.f.weights.numpy()
    zt, c = toy.start(p), np.zeros(p.f.d)
    own, v = np.zeros((p.f.n, p.f.d)), np.zeros((p.f.n, p.f.d))
    t = 0
    while True:
        t += 1
        z, change = PROX(zt, beta), np.zeros(p.f.d)
        here = arrived(participation, t, participation(t, p.f.n, seed), seed)[0]
        for i in here:
            w = x = z
            gradients = []
            for k in range(K):
                gradients.append(grad(i, x, t, k))
                w = w - alpha * (gradients[-1] + c - own[i])
                x = PROX(w, (k + 1) * alpha)
            v[i] = (1 - eta) * v[i] + eta * np.mean(gradients, 0)
            D = compress(v[i] - own[i])
            own[i] = own[i] + D
            change += weights[i] * D
        if len(here):
            c = c + change
            zt = z - beta * c
        yield PROX(zt, beta), zt, c, own.copy(), v.copy()


@pytest.mark.parametrize("batch", [None, 6])
@pytest.mark.parametrize("participation", [UniformSampling(3), BernoulliSampling(0.1), Full()], ids=repr)
@pytest.mark.parametrize(("K", "eta_g", "eta"), [(1, 0.7, 1.0), (4, 1.0, 0.4), (3, 1.6, 1.0)])
def test_FedCEF_is_the_recursion_of_the_theory_page(K, eta_g, eta, participation, batch):
    p = toy.problem(sizes=(7, 40, 13, 40, 25, 9), weighting="size", batch=batch)
    algorithm = alg.FedCEF(0.6, K, eta_g, eta, TopK(k=3), partial=True)
    expected = in_numpy(p, participation, ref.top_k(3), alpha=0.6, K=K, eta_g=eta_g, eta=eta)
    for (s, z), (z_, zt, c, own, v) in zip(states(p, algorithm, participation, 25), expected, strict=False):
        assert toy.gap(z, z_) < 1e-13
        assert toy.gap(s.server.zt, zt) < 1e-13
        assert toy.gap(s.server.c, c) < 1e-13
        assert toy.gap(s.clients.c, own) < 1e-13
        assert toy.gap(s.clients.v, v) < 1e-13


@pytest.mark.parametrize("batch", [None, 6])
@pytest.mark.parametrize(("tau", "eta_g"), [(1, 0.7), (4, 1.0), (3, 1.6)])
@some
def test_FedComposite_is_the_same_without_compressor(participation, tau, eta_g, batch):
    p, algorithm = problem(batch=batch), alg.FedComposite(0.6, tau, eta_g, partial=True)
    expected = in_numpy(p, participation, ref.identity, alpha=0.6, K=tau, eta_g=eta_g)
    for (s, z), (z_, zt, c, own, _) in zip(states(p, algorithm, participation, 20), expected, strict=False):
        assert toy.gap(z, z_) < 1e-13
        assert toy.gap(s.server.x, zt) < 1e-13
        assert toy.gap(s.server.g, c) < 1e-13
        assert toy.gap(-s.clients.a, own) < 1e-13


# ---- identities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, 5])
@some
def test_T06a_the_server_has_the_mean_of_what_all_clients_have(participation, batch):
    p = toy.problem(sizes=(7, 40, 13, 40, 25, 9), weighting="size", batch=batch)
    participation = (
        replace(participation, among=UniformSampling(4)) if isinstance(participation, Dropouts) else participation
    )
    weights = p.f.weights.numpy()
    for s, _ in states(p, alg.FedComposite(0.8, 3, partial=True), participation, 40):
        assert toy.gap(s.server.g, -weights @ s.clients.a) < 1e-14
    for s, _ in states(p, alg.FedCEF(0.8, 3, 1.0, 0.5, TopK(k=2), partial=True), participation, 40):
        assert toy.gap(s.server.c, weights @ s.clients.c) < 1e-14
    gamma_p = 4.0 / 0.4
    for s, _ in states(p, alg.ProxSkip(4.0, 0.4, partial=True), participation, 40):
        assert toy.gap(s.server.v, weights @ (s.clients.u - gamma_p * s.clients.c)) < 1e-13


PAIRS = {
    "fedcef": alg.FedCEF(0.6, 3, 1.3, 0.5, TopK(k=3)),
    "fedcomposite": alg.FedComposite(1.5, 3, 1.2),
    "fedpd": alg.FedPD(8.0, 2.0, 3, p=0.3),
    "fedsplit": alg.FedSplit(8.0, 2.0, 3),
    "proxskip": alg.ProxSkip(4.0, 0.4),
}


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("name", PAIRS)
def test_T06b_with_all_clients_it_is_the_method_of_the_paper(name, batch):
    a = PAIRS[name]
    p = problem(toy.SPARSE if a.needs.composite else RIDGE, batch=batch)
    plain, partial = toy.models(p, a), toy.models(p, replace(a, partial=True))
    toy.assert_same((next(plain) for _ in range(25)), (next(partial) for _ in range(25)))


def test_T06b_PLEDGE_with_all_clients_is_the_same_to_the_bit():
    p = problem()
    plain = alg.Pledge(2.5, 3, 0.0, False)
    for (a, _), (b, _) in zip(
        states(p, plain, Full(), 25), states(p, replace(plain, partial=True), Full(), 25), strict=True
    ):
        assert all(map(np.array_equal, (*a.clients, *a.server), (*b.clients, *b.server)))


@some
def test_T06c_at_a_solution_nothing_moves_whoever_takes_part(participation):
    p, a = problem(), alg.FedCEF(0.8, 4, 1.3, 0.4, TopK(k=2), partial=True)
    b = alg.FedComposite(0.8, 4, 1.3, partial=True)
    x, grad = toy.solution(p), toy.gradient(p)
    own = toy.rows(*[grad(i, x) for i in range(N)])
    mean, here = own.mean(0), torch.tensor(x)
    for algorithm, clients in ((a, (own, own)), (b, (-own,))):
        run = begin(p, algorithm, participation)
        state = run.state
        rest = state.clients[len(clients) :]
        server = type(state.server)(here - algorithm.largest_prox_step() * mean, mean)
        run.state = state._replace(clients=type(state.clients)(*clients, *rest), server=server)
        before = toy.numpy(run.state)
        for t in range(1, 25):
            run.round(t)
        after = toy.numpy(run.state)
        for now, then in zip((*after.clients, *after.server), (*before.clients, *before.server), strict=True):
            assert now.size == 0 or toy.gap(now, then) < 1e-14
        assert toy.gap(run.model(), x) < 1e-14


@pytest.mark.parametrize("batch", [None, 4])
@some
def test_T06d_one_local_step_is_EF21(participation, batch):
    p, C = problem(batch=batch), TopK(k=4)
    x0 = torch.tensor(PROX(toy.start(p), 1.8))
    q = p.starting_at(x0)  # FedCEF takes a prox step before its first gradient
    for one, other in [
        (alg.FedComposite(1.5, 1, 1.2, partial=True), alg.EF21(1.8)),
        (alg.FedCEF(1.5, 1, 1.2, 1.0, C, partial=True), alg.EF21(1.8, C)),
        (alg.FedCEF(1.5, 1, 1.2, 0.4, C, partial=True), alg.EF21SGDM(1.8, 0.4, C)),
    ]:
        for (_, z), (_, x) in zip(states(p, one, participation, 30), states(q, other, participation, 30), strict=True):
            assert toy.gap(z, x) < 1e-13


@pytest.mark.parametrize("batch", [None, 4])
@some
def test_T06e_FedPD_is_FedADMM_without_regulariser(participation, batch):
    p = problem(Zero(), batch=batch)
    one, other = (
        toy.models(p, alg.FedPD(8.0, 2.0, 3, partial=True), participation),
        toy.models(p, alg.FedADMM(1 / 8, 2.0, 3), participation),
    )
    toy.assert_same((next(one) for _ in range(30)), (next(other) for _ in range(30)))


# ---- the theorem about old gradients -------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 4])
def test_T06f_the_lyapunov_function_falls_with_the_step_of_the_theorem(m):
    """Everybody takes part once in T rounds: with S = 1/(L/2 + (T-1) sum p_i L_i), V never rises."""
    p = problem()
    T = -(-N // m)

    @dataclass(frozen=True)
    class InGroups:
        def __call__(self, t, n, seed):
            return np.arange(n)[(t % T) * m : (t % T) * m + m]

    A = [p.f.data.client(i)[0] for i in range(N)]
    L_i = [np.linalg.eigvalsh(a.T @ a / (4 * len(a)))[-1] + p.f.l2 for a in A]
    L, Lb = p.f.smoothness().L_f, np.mean(L_i)
    S = 1 / (L / 2 + (T - 1) * Lb)
    run = begin(p, alg.FedComposite(S, 1, partial=True), InGroups())
    x, moves, values = [], [], []
    for t in range(1, 60 * T + 1):
        run.round(t)
        x.append(run.model().numpy())
        moves.append(np.linalg.norm(x[-1] - x[-2]) if t > 1 else 0.0)
        if t > 2 * T:  # all have been heard, and all their last rounds are among the moves
            kept = sum((T - 1 - j) * moves[-1 - j] ** 2 for j in range(T - 1))
            values.append(toy.objective(p, x[-1]) + Lb / 2 * kept)
    assert max(np.diff(values)) < 1e-14
    assert values[0] - values[-1] > 1e-3
    assert toy.objective(p, x[-1]) - toy.objective(p, toy.solution(p)) < 0.1 * (
        toy.objective(p, x[0]) - toy.objective(p, toy.solution(p))
    )


@dataclass(frozen=True)
class Just:
    ids: tuple[int, ...]

    def __call__(self, t, n, seed):
        return np.array(self.ids)


@pytest.mark.parametrize("k", [toy.D, 4])
def test_T06g_staying_away_is_a_contractive_compressor(k):
    """Over all pairs of five clients, sum p_i |c_i - grad f_i|^2 shrinks by 1 - (2/5)(1 - q^2) at least."""
    p, C = toy.problem(), TopK(k=k)
    a = alg.FedCEF(1.5, 1, compressor=C, partial=True)
    grad, after = toy.gradient(p), []
    for pair in combinations(range(toy.N), 2):
        run = begin(p, a, UniformSampling(2))
        for t in range(1, 4):
            run.round(t)
        s, z = toy.numpy(run.state), run.model().numpy()
        own = np.array([grad(i, z) for i in range(toy.N)])
        before = np.sum((s.clients.c - own) ** 2)
        run.participation = Just(pair)
        run.round(4)
        after.append(np.sum((toy.numpy(run.state).clients.c - own) ** 2))
    assert len(after) == 10
    rest = 1 - 2 / 5 * (1 - C.contraction(toy.D))
    assert np.mean(after) <= rest * before * (1 + 1e-12)
    assert k < toy.D or np.mean(after) == pytest.approx(rest * before, rel=1e-12)


# ---- who reaches the solution --------------------------------------------------------------------------------------

C, NATURAL = TopK(k=4), NaturalCompressor(contractive=True)
EXACT: dict[str, Star] = {
    "ef21": alg.EF21(2.0, C),
    "ef21_bc": alg.EF21BC(1.0, C, TopK(k=7)),
    "ef21_sgdm": alg.EF21SGDM(2.0, 0.5, C),
    "fedadmm": alg.FedADMM(0.2, 2.0, 3),
    "fedcef": alg.FedCEF(1.0, 3, compressor=C, partial=True),
    "fedcomposite": alg.FedComposite(1.5, 3, partial=True),
    "feddr": alg.FedDR(5.0, 2.0, 3),
    "feddyn": alg.FedDyn(1.0, 3, 0.2),
    "fedpd": alg.FedPD(5.0, 2.0, 3, partial=True),
    "fedsplit": alg.FedSplit(5.0, 2.0, 3, partial=True),
    "pledge": alg.Pledge(1.5, 3, 0.0, False, compressor_up=NATURAL, compressor_down=NATURAL, partial=True),
    "proxskip": alg.ProxSkip(2.0, 0.4, partial=True),
    "scafcom": alg.Scafcom(0.6, 3, C, beta=0.5),
    "scaffold": alg.Scaffold(1.0, 3),
    "scallion": alg.Scallion(0.6, 3, NaturalCompressor(), alpha=0.5),
}
INEXACT: dict[str, Star] = {"fast_fedda": alg.FastFedDA(0.05, 0.5, 3), "mime": alg.Mime(0.5, 3, 0.4)}


def its_problem(a, **options):
    return problem(toy.SPARSE if a.needs.composite else RIDGE, **options)


def test_the_lists_are_those_of_the_facts():
    """Of those that are exact with the settings of every day; FedSpeed has its perturbation then."""
    stars = {name: a for name, a in SETTINGS.items() if isinstance(a, Star) and a.is_exact()}
    assert {name for name, a in stars.items() if a.is_exact(partial=True)} == set(EXACT)
    takes_some = {name for name, a in stars.items() if not a.needs.everyone}
    assert takes_some - set(EXACT) == set(INEXACT)
    assert not any(a.is_exact(partial=True) for a in SETTINGS.values() if not a.is_exact())
    said = {e["name"]: e["some clients"] for e in catalogue("algorithms")["algorithms"]}
    assert {name for name in said if said[name].startswith("exact")} == {*EXACT, "fedspeed"}
    assert said["fedcef"] == "exact with `partial`"
    assert (said["mime"], said["fista"], said["depositum"]) == ("inexact", "refused", "refused")


@pytest.mark.parametrize("name", EXACT)
def test_converges_to_the_solution_with_30_percent(name):
    assert error_of(its_problem(EXACT[name]), EXACT[name], UniformSampling(3), 3000, 1e-8) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("participation", SOME.values(), ids=SOME)
@pytest.mark.parametrize("name", EXACT)
def test_converges_to_the_solution_whoever_takes_part(name, participation):
    assert error_of(its_problem(EXACT[name]), EXACT[name], participation, 20_000, 1e-9) < 1e-9


@pytest.mark.parametrize("name", ["fedcomposite", "fedcef"])
@some
def test_FedComposite_and_FedCEF_reach_the_solution_whoever_takes_part(name, participation):
    assert error_of(problem(), EXACT[name], participation, 6000, 1e-9) < 1e-9


def test_weights_and_a_wrapped_downlink_change_nothing_of_that():
    p = toy.problem(sizes=(7, 40, 13, 40, 25, 9), weighting="size")
    inner = alg.FedComposite(1.0, 3, partial=True)
    for a in (inner, EXACT["fedcef"], alg.CompressedDownlink(inner, NATURAL)):
        assert a.is_exact(partial=True)
        assert error_of(p, a, UniformSampling(2), 4000, 1e-9) < 1e-9


@pytest.mark.parametrize("name", INEXACT)
def test_others_are_far_from_it_where_these_have_arrived(name):
    a = INEXACT[name]
    assert error_of(its_problem(a), a, UniformSampling(3), 500) > 1e-2


def test_rounding_errors_do_not_build_up():
    """In float32 the model stays as near to the solution as it has come."""
    x = toy.solution(problem())
    for name in ("fedcomposite", "fedcef"):
        *_, (_, z) = states(problem(dtype=torch.float32), EXACT[name], UniformSampling(3), 1000)
        assert toy.error(z, x) < 2e-5


@pytest.mark.slow
def test_with_minibatches_the_neighbourhood_shrinks_with_the_step():
    p, x = problem(batch=4), toy.solution(problem())
    far = []
    for eta in (0.8, 0.2):
        errors = [
            toy.error(z, x) for _, z in states(p, alg.FedComposite(eta, 3, partial=True), UniformSampling(3), 1500)
        ]
        far.append(np.sqrt(np.mean(np.square(errors[-500:]))))
    assert 1e-3 < far[1] < 0.6 * far[0]


# ---- messages that everybody must get ------------------------------------------------------------------------------


@pytest.mark.parametrize("participation", [UniformSampling(3), Dropouts(0.5, BernoulliSampling(0.4))], ids=repr)
@pytest.mark.parametrize("name", ["pledge", "ef21_bc"])
def test_T06h_what_is_public_is_the_same_for_absent_clients(name, participation):
    a = EXACT[name]
    for s, _ in states(its_problem(a), a, participation, 40):
        for key in ("z", "y") if name == "pledge" else ("x", "b"):
            assert (getattr(s.clients, key) == getattr(s.server, key)).all()


@pytest.mark.parametrize("participation", [UniformSampling(3), Dropouts(0.5, BernoulliSampling(0.4))], ids=repr)
@pytest.mark.parametrize("inner", [alg.Scaffold(0.5, 3), alg.FedComposite(0.5, 3, partial=True)], ids=repr)
def test_T06h_also_with_a_wrapped_downlink_which_loses_nothing_if_it_is_dense(inner, participation):
    p = its_problem(inner)
    for s, _ in states(p, alg.CompressedDownlink(inner, TopK(k=4)), participation, 25):
        assert all((mine == theirs).all() for mine, theirs in zip(s.clients.w, s.server.w, strict=True))
    one, other = (
        toy.models(p, inner, participation),
        toy.models(p, alg.CompressedDownlink(inner, Identity()), participation),
    )
    toy.assert_same((next(one) for _ in range(25)), (next(other) for _ in range(25)))


def test_messages_down_are_counted_for_all_clients_and_up_for_the_cohort():
    p, a = its_problem(EXACT["ef21_bc"]), EXACT["ef21_bc"]
    run = begin(p, a, UniformSampling(3))
    for t in range(1, 6):
        run.round(t)
    counts = run.counters()
    assert counts["bytes_down"] == 5 * N * 7 * (4 + 8)
    assert counts["bytes_up"] == 5 * 3 * 4 * (4 + 8)


def test_one_more_vector_goes_down():
    p, d = problem(), toy.D
    for a, up in (
        (alg.FedComposite(1.0, 3, partial=True), 8 * d),
        (alg.FedCEF(1.0, 3, compressor=C, partial=True), 48),
    ):
        run = begin(p, a, UniformSampling(3))
        run.round(1)
        assert (run.counters()["bytes_up"], run.counters()["bytes_down"]) == (3 * up, 3 * 2 * 8 * d)
        assert (a.sends().down, replace(a, partial=False).sends().down) == (2, 1)


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_a_method_that_needs_all_clients_says_what_would_help():
    p = problem()
    with pytest.raises(InputError, match=r"FedComposite needs every client .*; with partial = True clients may"):
        check_combination(p, alg.FedComposite(1.0, 3), None, UniformSampling(3))
    check_combination(p, alg.FedComposite(1.0, 3, partial=True), None, UniformSampling(3))
    with pytest.raises(InputError, match=r"FISTA needs every client in every round, not UniformSampling$"):
        check_combination(p, alg.FISTA(1.0), None, UniformSampling(3))
    with pytest.raises(InputError, match=r"Pledge: partial = True needs theta = 0, not 0.7"):
        alg.Pledge(1.0, partial=True)
