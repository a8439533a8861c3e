"""Laws of the compressors: what they lose, that they are unbiased where they say so, and what each one does."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from proxfed import keyed_random
from proxfed.compressors import (
    COMPRESSORS,
    QSGD,
    ByteBudgetQuantiser,
    Identity,
    LowRank,
    NaturalCompressor,
    RandK,
    ScaledSign,
    TopK,
    largest,
)
from proxfed.errors import InputError

from support.compressor_cases import (
    ANY_LENGTH,
    CASES,
    EVERY,
    FEDCEF_D,
    FIXED,
    RANDOM,
    UNBIASED,
    D,
    dtypes,
    every,
    keys,
    normal,
    same_bits,
    seeds,
    square,
    vectors,
)


def test_every_compressor_has_a_case():
    assert set(CASES) == set(COMPRESSORS)
    assert all(type(case.compressor) is COMPRESSORS[name] for name, cases in CASES.items() for case in cases)


# ---------------------------------------------------------------------------------------------------- what is lost


@every(FIXED)
@given(seed=seeds)
def test_a_deterministic_compressor_contracts_every_vector(C, seed):
    v = vectors(seed, 5)
    error = square(C(v, keys(5)).dense - v)
    assert (error <= C.contraction(D) * square(v) + 1e-14 * square(v)).all()


@every(RANDOM)
@given(seed=seeds)
def test_a_random_compressor_contracts_on_average(C, seed):
    """The mean of N draws is below q^2 |v|^2, but for five standard errors."""
    N, v = 3000, vectors(seed, 1)
    error, whole = square(C(v.expand(N, D), keys(N, seed)).dense - v), float(square(v))
    assert error.mean() <= C.contraction(D) * whole + 5 * error.std() / math.sqrt(N) + 1e-12 * whole


def spike() -> Tensor:
    return torch.eye(D, dtype=torch.float64)[3:4] * -7


def flat() -> Tensor:
    return normal(3, 1, D).sign() * 0.3


REACHED = [
    (TopK(k=5), flat()),
    (RandK(k=5), normal(1, 1, D)),
    (RandK(k=5, unbiased=True), normal(1, 1, D)),
    (RandK(k=20, unbiased=True), spike()),
    (ScaledSign(), spike()),
    (NaturalCompressor(), torch.full((1, D), 4 / 3, dtype=torch.float64)),
    (NaturalCompressor(contractive=True), torch.full((1, D), 4 / 3, dtype=torch.float64)),
    (LowRank(2, (6, 6)), torch.eye(6, dtype=torch.float64).reshape(1, 36)),
    (LowRank(2, (6, 6), power=True), torch.eye(6, dtype=torch.float64).reshape(1, 36)),
]


@pytest.mark.parametrize(("C", "v"), REACHED, ids=lambda x: repr(x) if not isinstance(x, Tensor) else "")
def test_the_constant_is_the_smallest_possible(C, v):
    """For these vectors E|C(v) - v|^2 = q^2 |v|^2, so no smaller q^2 would do."""
    N, d = 20_000, v.shape[1]
    error = square(C(v.expand(N, d), keys(N)).dense - v) / square(v)
    assert abs(error.mean() - C.contraction(d)) <= 5 * error.std() / math.sqrt(N) + 1e-12


@every(UNBIASED)
@given(seed=seeds)
def test_an_unbiased_compressor_has_the_right_mean(C, seed):
    """|mean of N draws - v|^2 is about E|C(v) - v|^2 / N <= omega |v|^2 / N; five times that length is allowed."""
    N, v = 20_000, vectors(seed, 1)
    mean = C(v.expand(N, D), keys(N, seed)).dense.mean(0)
    assert (mean - v).norm() <= 5 * math.sqrt(C.omega(D) / N) * v.norm()


@every([C for C in RANDOM if isinstance(C, (RandK, QSGD, NaturalCompressor))])
def test_the_two_forms_have_their_constants(C):
    q2, omega = C.contraction(D), C.omega(D)
    assert q2 == pytest.approx(omega if C.unbiased else omega / (1 + omega), rel=1e-12)
    assert C.unbiased or q2 < 1


@every([case.compressor for case in EVERY])
@pytest.mark.parametrize("scale", [2.0**-90, 2.0**90])
def test_size_does_not_matter(C, scale):
    """C(s v) = s C(v) for a power of two, even where the squares of float32 numbers vanish or overflow."""
    v, key = normal(0, 3, D, dtype=torch.float32), keys(3)
    scaled, plain = C(scale * v, key).dense / scale, C(v, key).dense
    assert torch.allclose(scaled, plain, rtol=0, atol=1e-5 if isinstance(C, LowRank) else 0)


@every([case.compressor for case in EVERY])
@dtypes
def test_zero_stays_zero(C, dtype):
    packed = C(torch.zeros(3, D, dtype=dtype), keys(3))
    assert (packed.dense == 0).all()


def test_identity_and_full_rank_are_exact():
    v = normal(0, 3, D)
    for C in (Identity(), TopK(k=D), RandK(k=D), RandK(1.0, unbiased=True), LowRank(4, (6, 4)), LowRank(7, (4, 6))):
        assert C.contraction(D) == 0
        assert same_bits(C(v, keys(3)).dense, v)


# ------------------------------------------------------------------------------------------------ what each one does


@given(seed=seeds, c=st.integers(1, 4), d=st.integers(1, 40), data=st.data())
def test_top_k_keeps_the_first_of_the_largest(seed, c, d, data):
    """As a stable sort by magnitude does; few different values, so that ties are everywhere."""
    k = data.draw(st.integers(1, d))
    sign = np.array([1.0, -1.0])[seed % 2]  # with which -0.0 occurs as well
    v = keyed_random.generator(seed, "test").integers(-2, 3, (c, d)) * sign
    expected = np.zeros_like(v)
    first = np.argsort(-np.abs(v), axis=1, kind="stable")[:, :k]
    np.put_along_axis(expected, first, np.take_along_axis(v, first, 1), 1)
    packed = TopK(k=k)(torch.from_numpy(v), keys(c))
    assert np.array_equal(packed.dense.numpy(), expected)
    assert np.array_equal(packed.parts["index"].numpy(), np.sort(first, axis=1))


def long_vectors() -> dict[str, np.ndarray]:
    d, rng = largest.LONG + 12_345, keyed_random.generator(0, "test")
    normal = rng.standard_normal((2, d)).astype(np.float32)
    few = np.where(rng.random((2, d)) < 1e-4, normal, 0)
    periodic = np.tile(np.arange(d, dtype=np.float32) % (d // largest.SAMPLE) == 0, (2, 1)) * normal
    odd = normal.copy()
    odd[:, ::1000], odd[:, 1::1000] = np.nan, np.inf
    return {
        "normal": normal,
        "double": normal.astype(np.float64),
        "ties": np.round(normal, 1),
        "sorted": np.sort(normal, axis=1),
        "mostly zero": few,
        "all equal": np.ones((2, d), np.float32),
        "what a sample sees only": periodic,
        "what a sample never sees": np.where(periodic == 0, normal, 0),
        "not finite": odd,
    }


@pytest.mark.parametrize(("kind", "v"), long_vectors().items(), ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("fraction", [1e-5, 0.01, 0.125])
@pytest.mark.parametrize(("threads", "way"), [(1, ""), (2, ""), (2, "torch")])
def test_top_k_of_long_vectors_is_exact(monkeypatch, kind, v, fraction, threads, way):
    """The guess from a sample decides how long it takes, and nothing else; nor do threads and compiled loops."""
    monkeypatch.setenv("PROXFED_KERNELS", way)
    torch.set_num_threads(threads)
    try:
        packed = TopK(fraction)(torch.from_numpy(v), keys(2))
    finally:
        torch.set_num_threads(1)
    k = int(fraction * v.shape[1])
    size = np.where(np.isnan(v), np.inf, np.abs(v)) + np.isnan(v)  # NaN beside infinity: told apart below
    order = np.lexsort((np.broadcast_to(np.arange(v.shape[1]), v.shape), ~np.isnan(v), -size), axis=1)
    assert np.array_equal(packed.parts["index"].numpy(), np.sort(order[:, :k], axis=1))


@pytest.mark.parametrize(
    ("fraction", "d", "k"),
    [(0.01, FEDCEF_D, 44_601), (0.1, 39, 3), (0.1, 9, 1), (1.0, 7, 7), (1, 7, 7), (0.29, 100, 29)],
)
def test_a_fraction_is_rounded_down_but_never_to_nothing(fraction, d, k):
    assert TopK(fraction).contraction(d) == 1 - k / d
    assert RandK(fraction).contraction(d) == 1 - k / d


@pytest.mark.parametrize(("k", "d"), [(1, 7), (3, 7), (5, 7), (1, 2), (7, 16)])
def test_every_choice_of_rand_k_is_equally_likely(k, d):
    """Each entry is kept with probability k/d, and each pair with k(k-1) / d(d-1), within five standard errors."""
    N = 20_000
    kept = (RandK(k=k)(torch.ones(N, d, dtype=torch.float64), keys(N)).dense != 0).double()
    assert (kept.sum(1) == k).all()
    pairs = kept.T @ kept / N
    p = torch.full((d, d), k * (k - 1) / (d * (d - 1)), dtype=torch.float64).fill_diagonal_(k / d)
    assert ((pairs - p).abs() <= 5 * (p * (1 - p) / N).sqrt() + 1e-12).all()


@given(seed=seeds)
def test_scaled_sign_is_its_formula(seed):
    v = vectors(seed, 3)
    sign = torch.where(v < 0, -1.0, 1.0).double()
    assert torch.allclose(ScaledSign()(v, keys(3)).dense, v.abs().mean(1, keepdim=True) * sign, rtol=1e-14, atol=0)


@given(seed=seeds, levels=st.sampled_from([1, 3, 100]), bucket=st.sampled_from([None, 1, 5, 8, 24, 99]))
def test_qsgd_rounds_to_a_neighbouring_level_of_its_bucket(seed, levels, bucket):
    v = vectors(seed, 3)
    dense = QSGD(levels, bucket)(v, keys(3, seed)).dense
    for start in range(0, D, bucket or D):
        part, got = v[:, start : start + (bucket or D)], dense[:, start : start + (bucket or D)]
        norm = part.norm(dim=1, keepdim=True)
        level = got.abs() * levels / norm
        level = torch.where(norm > 0, level, 0)
        assert (level - level.round()).abs().max() < 1e-9
        assert (level - torch.where(norm > 0, levels * part.abs() / norm, 0)).abs().max() < 1 + 1e-9
        assert (got * part >= 0).all()


@dtypes
@given(seed=seeds)
def test_natural_rounds_to_a_neighbouring_power_of_two(dtype, seed):
    v = vectors(seed, 3).to(dtype)
    dense = NaturalCompressor()(v, keys(3, seed)).dense
    assert torch.equal(dense == 0, v == 0)
    ratio = torch.where(v == 0, 1, dense / v)
    mantissa, _ = torch.frexp(torch.where(v == 0, 1, dense).abs())
    assert (mantissa == 0.5).all()
    assert ((ratio > 0.5) & (ratio <= 2)).all()


@dtypes
def test_natural_at_both_ends_of_the_number_range(dtype):
    """No infinity from a finite number, and tiny numbers are unbiased between 0 and the smallest power."""
    info, N = torch.finfo(dtype), 20_000
    assert NaturalCompressor()(torch.full((50, 1), info.max, dtype=dtype), keys(50)).dense.isfinite().all()
    tiny = torch.full((N, 1), info.tiny / 4, dtype=dtype)
    up = NaturalCompressor()(tiny, keys(N)).dense == info.tiny
    assert abs(up.double().mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / N)


@given(seed=seeds, shape=st.sampled_from([(4, 6), (6, 4), (3, 8)]))
def test_low_rank_is_the_best_of_its_rank(seed, shape):
    """What is lost is what the other singular values hold, and a power iteration never loses less."""
    v = vectors(seed, 3)
    sigma = torch.linalg.svdvals(v.reshape(3, *shape))
    best = square(LowRank(1, shape)(v, keys(3)).dense - v)
    power = square(LowRank(1, shape, power=True)(v, keys(3, seed)).dense - v)
    assert torch.allclose(best, square(sigma[:, 1:]), rtol=1e-9, atol=1e-12 * float(square(v).max()))
    assert (power >= best - 1e-12 * square(v)).all()
    assert (power <= square(v) * (1 + 1e-12)).all()


@given(seed=seeds)
def test_a_power_iteration_finds_a_matrix_of_that_rank(seed):
    M = normal(seed, 2, 6, 2) @ normal(seed + 1, 2, 2, 6)
    v = M.reshape(2, 36)
    assert torch.allclose(
        LowRank(2, (6, 6), power=True)(v, keys(2, seed)).dense, v, rtol=0, atol=1e-7 * float(v.norm())
    )


# --------------------------------------------------------------------------------------------------------- keys, rows


@every([case.compressor for case in EVERY])
def test_the_key_decides(C):
    v, random = normal(0, 3, D), C in RANDOM
    first, again, other = (C(v, keys(3, seed)).dense for seed in (0, 0, 1))
    assert same_bits(first, again)
    assert all(torch.equal(a, b) != random for a, b in zip(first, other, strict=True))


@every([QSGD(1, bucket=4), NaturalCompressor()])
@pytest.mark.parametrize("lag", [1, 1000, 4096, 8192, 10_000])
def test_columns_are_rounded_independently(C, lag):
    """In a flat vector all entries go up with the same p; two of them agree with probability p^2 + (1 - p)^2."""
    up = C(torch.full((1, 20_000), 4 / 3, dtype=torch.float64), keys(1)).dense[0] > 4 / 3
    p = {QSGD: 1 / 2, NaturalCompressor: 1 / 3}[type(C)]
    agree, N = p * p + (1 - p) ** 2, len(up) - lag
    assert abs((up[lag:] == up[:-lag]).double().mean() - agree) < 5 * math.sqrt(2 * agree * (1 - agree) / N)


@every([*ANY_LENGTH, LowRank(2, (100, 200)), LowRank(2, (100, 200), power=True)])
@dtypes
def test_a_row_does_not_depend_on_the_others(C, dtype):
    """Bit for bit, also over more columns than are drawn at once; matrix products only to rounding."""
    v, key = vectors(0, 5, 20_000).to(dtype), keys(5)
    block = C(v, key).dense
    alone = torch.cat([C(v[i : i + 1], key[i : i + 1]).dense for i in range(5)])
    order = [3, 0, 4, 1]
    shuffled = C(v[order], key[order]).dense
    if isinstance(C, LowRank):
        near = 1e3 * torch.finfo(dtype).eps * v.norm(dim=1, keepdim=True)
        assert ((alone - block).abs() <= near).all()
        assert ((shuffled - block[order]).abs() <= near[order]).all()
    else:
        assert same_bits(alone, block)
        assert same_bits(shuffled, block[order])


@every([case.compressor for case in EVERY])
def test_a_view_is_compressed_like_a_copy_and_left_alone(C):
    base = normal(0, D, 3)
    v, before = base.T, base.clone()
    assert same_bits(C(v, keys(3)).dense, C(v.contiguous(), keys(3)).dense)
    assert same_bits(base, before)


@every([case.compressor for case in EVERY])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_divergence_is_passed_on(C, bad):
    """No warning and no exception; the row that is not finite stays so (unless just that entry is left out)."""
    v = normal(0, 2, D)
    v[1, 5] = bad
    packed = C(v, keys(2))
    messages = C.encode(packed)
    assert packed.dense[0].isfinite().all()
    assert not packed.dense[1].isfinite().all() or isinstance(C, RandK)
    assert packed.best == sum(map(len, messages))
    assert torch.allclose(C.decode(messages, D, v.dtype), packed.dense, rtol=0, atol=0, equal_nan=True)


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TopK(), "TopK: fraction = None, k = None"),
        (lambda: TopK(0.1, 3), "TopK: fraction = 0.1, k = 3"),
        (lambda: TopK(k=0), "TopK: k = 0 must"),
        (lambda: TopK(k=2.5), "TopK: k = 2.5 must"),
        (lambda: TopK(0.0), "TopK: fraction = 0.0 must"),
        (lambda: TopK(1.5), "TopK: fraction = 1.5 must"),
        (lambda: TopK(-0.1), "TopK: fraction = -0.1 must"),
        (lambda: TopK(math.nan), "TopK: fraction = nan must"),
        (lambda: TopK("a lot"), "TopK: fraction = 'a lot' must"),
        (lambda: TopK(k=25)(torch.zeros(1, D), keys(1)), "TopK: k = 25 must be at most .* d = 24"),
        (lambda: TopK(k=25).contraction(D), "TopK: k = 25 must be at most .* d = 24"),
        (lambda: RandK(), "RandK: fraction = None, k = None"),
        (lambda: RandK(k=-1), "RandK: k = -1 must"),
        (lambda: RandK(2), "RandK: fraction = 2 must"),
        (lambda: RandK(k=25)(torch.zeros(1, D), keys(1)), "RandK: k = 25 must be at most .* d = 24"),
        (lambda: ByteBudgetQuantiser(0), "ByteBudgetQuantiser: bytes = 0 must"),
        (
            lambda: ByteBudgetQuantiser(30).contraction(D),
            "ByteBudgetQuantiser: bytes = 30 must be at least 35 for d = 24",
        ),
        (lambda: QSGD(0), "QSGD: levels = 0 must"),
        (lambda: QSGD(2**15), "QSGD: levels = 32768 must"),
        (lambda: QSGD(4, bucket=0), "QSGD: bucket = 0 must"),
        (lambda: LowRank(0, (4, 6)), "LowRank: rank = 0 must"),
        (lambda: LowRank(1, (4, 6, 1)), r"LowRank: shape = \(4, 6, 1\) must"),
        (lambda: LowRank(1, (0, 6)), r"LowRank: shape = \(0, 6\) must"),
        (lambda: LowRank(1, 24), "LowRank: shape = 24 must"),
        (lambda: LowRank(1, (5, 5))(torch.zeros(1, D), keys(1)), r"LowRank: shape = \(5, 5\) has 25 .* d = 24"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(make, says):
    with pytest.raises(InputError, match=f"^{says}") as caught:
        make()
    assert "\n" not in str(caught.value)
