"""The quantiser with a bounded error, and the codes of its levels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed.compressors import ByteBudgetQuantiser, ErrorBoundedQuantiser
from proxfed.compressors.coding import plane_code, rans, urn_code, wire
from proxfed.compressors.coding.planes import put_together, take_apart
from proxfed.compressors.coding.reader import Reader
from proxfed.compressors.step_search import largest_level
from proxfed.errors import InputError, RunError

from support.compressor_cases import Urns, dtypes, keys, normal, same_bits, seeds, square

LONG = 5000
CODES = pytest.mark.parametrize("code", [Urns, plane_code], ids=["urn_code", "plane_code"])


def shaped(kind: str, d: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    numbers = {
        "normal": lambda: rng.standard_normal(d),
        "t2": lambda: rng.standard_t(2, d),
        "spikes": lambda: rng.standard_normal(d) * (rng.random(d) < 0.01) + 1e-4 * rng.standard_normal(d),
        "flat": lambda: rng.choice([-1.0, 1.0], d),
        "sorted": lambda: np.sort(rng.standard_normal(d) ** 3),
    }
    return torch.from_numpy(numbers[kind]())[None]


SHAPES = ["normal", "t2", "spikes", "flat", "sorted"]


# ------------------------------------------------------------------------------------------------- the step


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("q2", [0.9, 0.5, 0.1, 1e-3, 1e-6])
@dtypes
def test_the_bound_holds_and_is_used(kind, q2, dtype):
    """Also beyond the sample on which the step is looked for; where errors change smoothly, nearly all is used."""
    v = shaped(kind, 3 * LONG).to(dtype)
    lost = float(square(ErrorBoundedQuantiser(q2)(v, keys(1)).dense.double() - v.double()) / square(v.double()))
    assert lost <= q2
    if kind in ("normal", "sorted") or (q2 == 1e-3 and kind != "flat"):
        assert lost >= 0.97 * q2


def test_what_is_read_is_a_multiple_of_the_step_plus_one_offset():
    v = shaped("normal", LONG)
    sizes = ErrorBoundedQuantiser(0.02)(v, keys(1)).dense.abs().unique()
    assert sizes[0] == 0
    steps = sizes[2:] - sizes[1:-1]
    assert len(steps) > 3
    assert torch.allclose(steps, steps[:1], rtol=1e-12, atol=0)
    s = float(steps[0])
    kept = v.abs() >= 0.6 * s
    zero = ErrorBoundedQuantiser(0.02)(v, keys(1)).dense == 0
    assert int((zero == kept).sum()) <= 2  # but for rounding at 0.6 s
    offset = float((v.abs() - s * torch.floor(v.abs() / s + 0.4))[kept].mean())
    assert float(sizes[1]) - s == pytest.approx(offset, abs=s / 512 + 1e-9)


@dtypes
@given(data=st.data(), q2=st.sampled_from([0.7, 0.1, 1e-4]))
def test_the_bound_holds_among_the_smallest_and_largest_numbers(dtype, data, q2):
    info = torch.finfo(dtype)
    unit = float(np.finfo(str(dtype).split(".")[1]).smallest_subnormal)
    number = st.sampled_from([0.0, 1.0, -2.0, 3.0, 7.0, 50.0, 1e3])
    entries = data.draw(st.lists(number, min_size=1, max_size=12))
    scale = data.draw(st.sampled_from([unit, info.tiny, info.max / 1e3]))
    v = (torch.tensor([entries], dtype=torch.float64) * scale).to(dtype)
    dense = ErrorBoundedQuantiser(q2)(v, keys(1)).dense
    assert dense.isfinite().all()
    a, b = v.double() / scale, dense.double() / scale
    assert square(b - a) <= q2 * square(a) * (1 + 1e-12)


@pytest.mark.parametrize("q2", [0, 1, -0.1, 1e-7, math.nan, math.inf, "much", None, True])
def test_a_part_that_cannot_be_lost_is_refused(q2):
    with pytest.raises(InputError, match=r"^ErrorBoundedQuantiser: q2 = .* must be at least 1e-06 and below 1$"):
        ErrorBoundedQuantiser(q2)


# ------------------------------------------------------------------------------------------------- so many bytes


@pytest.mark.parametrize("kind", [*SHAPES, "geometric"])
@pytest.mark.parametrize(("d", "nbytes"), [(60, 45), (60, 500), (1000, 100), (LONG, 200), (LONG, 1500)])
@dtypes
def test_a_message_keeps_to_its_budget(kind, d, nbytes, dtype):
    """And loses no more than it says, which for most vectors is far less."""
    v = (shaped(kind, d) if kind != "geometric" else 2.0 ** -torch.arange(d).double()[None]).to(dtype)
    C = ByteBudgetQuantiser(nbytes)
    packed = C(v, keys(1))
    (message,) = C.encode(packed)
    assert packed.best == len(message) <= nbytes
    assert same_bits(C.decode([message], d, dtype), packed.dense)
    lost = float(square(packed.dense.double() - v.double()) / square(v.double()))
    assert lost <= C.contraction(d) < 1
    if kind == "normal" and nbytes < d:
        assert len(message) >= 0.93 * nbytes
        exact = ErrorBoundedQuantiser(max(lost, 1e-6))(v, keys(1)).best
        assert exact >= 0.9 * nbytes  # the same loss costs about as much, asked for directly


@given(seed=seeds, d=st.sampled_from([30, 400, 3000]), tail=st.sampled_from([0.3, 1.0, 2.0]), data=st.data())
def test_the_largest_entries_always_fit(seed, d, tail, data):
    """Heavy tails of all kinds, and numbers next to the smallest that there are."""
    v = torch.from_numpy(np.random.default_rng(seed).standard_t(tail, (1, d)).clip(-1e100, 1e100))
    v = v * data.draw(st.sampled_from([1.0, 1e-320, 1e-200]))
    C = ByteBudgetQuantiser(data.draw(st.integers(100, 2000)))
    message, dense = C._largest_only(v.numpy()) if v.any() else (b"", v.numpy())
    assert len(message) <= C.bytes
    a, b = (np.ldexp(x, 1000) if abs(v).max() < 1e-50 else x for x in (v.numpy(), dense))
    assert ((a - b) ** 2).sum() <= C.contraction(d) * (a**2).sum() * (1 + 1e-12)


def test_more_bytes_lose_less():
    v = shaped("normal", LONG)
    lost = [float(square(ByteBudgetQuantiser(n)(v, keys(1)).dense - v)) for n in (200, 500, 1000, 2000, 4000)]
    assert lost == sorted(lost, reverse=True)
    assert lost[-1] < 1e-2 * lost[0]


def test_a_message_beyond_the_budget_is_refused():
    v, C = shaped("normal", LONG).float(), ErrorBoundedQuantiser(1e-6)
    with pytest.raises(RunError, match=r"^message of client 0: it has \d+ bytes, more than 500$"):
        ByteBudgetQuantiser(500).decode(C.encode(C(v, keys(1))), LONG, torch.float32)


# ---------------------------------------------------------------------------------------------------- bits


def entropy(level: np.ndarray) -> float:
    p = np.unique(level, return_counts=True)[1] / len(level)
    return float(-(p * np.log2(p)).sum())


@pytest.mark.parametrize(("kind", "q2"), [("normal", 0.1), ("normal", 0.5), ("t2", 0.01), ("normal", 0.01)])
def test_bits_are_those_of_the_entropy(kind, q2):
    """Within 1.5 % and 20 bytes, and above the rate-distortion bound of normal numbers."""
    d = 200_000
    packed = ErrorBoundedQuantiser(q2)(shaped(kind, d).float(), keys(1))
    level = np.unique(packed.dense[0].numpy(), return_inverse=True)[1]
    assert packed.best * 8 <= 1.015 * entropy(level) * d + 160
    if kind == "normal":
        bound = -0.5 * math.log2(q2)
        assert bound < packed.best * 8 / d < bound + 0.32


@pytest.mark.parametrize("q2", [0.1, 0.5])
def test_a_short_vector_costs_little_more_than_its_entropy(q2):
    """The mean over 200 vectors of 60 numbers: nine bytes for step, offset and counts."""
    packed = ErrorBoundedQuantiser(q2)(normal(0, 200, 60), keys(200))
    level = [np.unique(row.numpy(), return_inverse=True)[1] for row in packed.dense]
    assert packed.best / 200 <= np.mean([entropy(row) for row in level]) * 60 / 8 + 9


# --------------------------------------------------------------------------------------------------- codes


def through(code, level: np.ndarray, largest: int) -> np.ndarray:
    message = Reader(code.write(take_apart(level), wire.width(largest)))
    read = put_together(code.read(message, len(level), wire.width(largest)), largest)
    assert len(message.rest) == 0
    return read


@CODES
@given(data=st.data())
def test_levels_are_read_back(code, data):
    """Sparse and not, flat and heavy-tailed, by either code at any length."""
    rng = np.random.default_rng(data.draw(seeds))
    d = data.draw(st.integers(1, 300) | st.integers(1000, 3000))
    density, scale = data.draw(st.sampled_from([0.003, 0.1, 0.5, 1.0])), data.draw(st.sampled_from([1, 3, 40, 10_000]))
    level = (rng.standard_t(2, d) * scale).clip(-(10**6), 10**6).astype(np.int32) * (rng.random(d) < density)
    level[rng.integers(d)] = data.draw(st.sampled_from([1, -1, 15, -16, 10**6]))
    assert np.array_equal(through(code, level, 10**6), level)


@given(data=st.data())
def test_bits_from_an_urn_cost_what_their_probabilities_say(data):
    """And the digits below and above them are read back."""
    plane = data.draw(st.lists(st.booleans(), max_size=300))
    urn = urn_code.Urn(*(data.draw(st.integers(1, 90)) for _ in range(3)))
    radix, to = data.draw(st.integers(2, 10**9)), urn_code.Writer()
    to.digit(radix // 2, radix)
    to.bits(plane, urn)
    to.digit(radix - 1, radix)
    (ones, zeros, more), bits = urn, 2 * math.log2(radix)
    for bit in plane:
        bits += math.log2((ones + zeros) / (ones if bit else zeros))
        ones, zeros = ones + more * bit, zeros + more * (not bit)
    message = to.message()
    assert 8 * len(message) <= bits + 8.01
    digits = urn_code.Digits(Reader(message), len(message))
    assert (digits.digit(radix), digits.bits(len(plane), urn), digits.digit(radix)) == (radix // 2, plane, radix - 1)
    digits.end()


@given(n=st.integers(1, 10**7), data=st.data())
def test_frequencies_are_those_of_independent_bits(n, data):
    ones = data.draw(st.integers(-(-n // 32), n))
    table = plane_code._frequencies(ones, n)
    assert table.min() >= 1
    assert table.sum() == 2**15
    count = np.array([byte.bit_count() for byte in range(256)])
    exact = (ones / n) ** count * (1 - ones / n) ** (8 - count)
    assert np.abs(table / 2**15 - exact).sum() < 0.03


def one_coder(symbols: list[int], table: list[int], payload: int) -> bytes:
    """The same in plain Python, one whole number and no limits but the 16 bits that are sent."""
    x, words = 2**16 + payload, []
    for symbol in reversed(symbols):
        f, start = table[symbol], sum(table[:symbol])
        if x >= f << 17:
            words.append(x % 2**16)
            x //= 2**16
        x = x // f * 2**15 + x % f + start
    return x.to_bytes(4, "little") + b"".join(word.to_bytes(2, "little") for word in reversed(words))


@given(seed=seeds, lanes=st.integers(1, 9), count=st.integers(1, 200))
def test_coders_side_by_side_are_single_coders(seed, lanes, count):
    rng = np.random.default_rng(seed)
    table = plane_code._frequencies(int(rng.integers(4, 90)), 100)
    symbols = rng.choice(256, count, p=table / 2**15).astype(np.uint8)
    payload = rng.bytes(2 * lanes)
    kinds, tables = np.zeros(count, int), table[None]
    message = rans.write(symbols, kinds, tables, payload)
    alone = [
        one_coder(symbols[j::lanes].tolist(), table.tolist(), int.from_bytes(payload[2 * j : 2 * j + 2], "little"))
        for j in range(lanes)
    ]
    assert message[: 4 * lanes] == b"".join(one[:4] for one in alone)
    assert len(message) == sum(map(len, alone))
    read, back = rans.read(np.frombuffer(message, np.uint8), kinds, tables, lanes)
    assert np.array_equal(read, symbols)
    assert back == payload


# ------------------------------------------------------------------------------------------- long messages, damaged


def refused(C: ErrorBoundedQuantiser, message: bytes) -> bool:
    try:
        dense = C.decode([message], LONG, torch.float32)
    except RunError as e:
        sentence = str(e)
    else:
        assert dense.shape == (1, LONG)
        return False
    assert sentence.startswith("message of client 0: ")
    return True


@given(kind=st.sampled_from(SHAPES), q2=st.sampled_from([0.3, 0.01, 1e-6]), data=st.data())
def test_a_long_message_is_read_whole_or_refused(kind, q2, data):
    C = ErrorBoundedQuantiser(q2)
    message = C.encode(C(shaped(kind, LONG, data.draw(seeds)).float(), keys(1)))[0]
    assert not refused(C, message)
    assert refused(C, message[: data.draw(st.integers(0, len(message) - 1))])
    assert refused(C, message + data.draw(st.binary(min_size=1, max_size=20)))
    changed = bytearray(message)
    places = st.integers(0, min(20, len(message) - 1)) | st.integers(0, len(message) - 1)
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=3)):
        changed[place] = byte
    refused(C, bytes(changed))


@given(body=st.binary(max_size=400), q2=st.sampled_from([0.3, 1e-6]))
def test_any_bytes_behind_a_step_are_read_or_refused(body, q2):
    refused(ErrorBoundedQuantiser(q2), (((4096 - 11) << 11) + 5).to_bytes(3, "little") + body)


def test_no_level_is_larger_than_it_can_be():
    """A single entry next to many small ones has the largest level; one more would be refused."""
    C, d = ErrorBoundedQuantiser(0.01), 50
    largest = largest_level(d, 0.01)
    v = torch.full((1, d), 1e-3, dtype=torch.float64)
    v[0, 0] = 1.0
    assert not C.decode(C.encode(C(v, keys(1))), d, v.dtype).isnan().any()
    level = np.zeros(d, np.int32)
    level[0] = largest
    assert np.array_equal(through(Urns, level, largest), level)
    level[0] += 1
    with pytest.raises(RunError, match=f"^a level is above {largest}$"):
        through(Urns, level, largest)


def test_a_message_is_written_once():
    """What was packed is what is sent; a row that is zero, or not finite, is a byte or two of zeros."""
    v = normal(0, 4, 70)
    v[1], v[2, 3] = 0, math.inf
    C = ErrorBoundedQuantiser(0.1)
    packed = C(v, keys(4))
    messages = C.encode(packed)
    assert [len(message) for message in messages] == packed.parts["length"].tolist()
    assert (messages[1], messages[2]) == (bytes(1), bytes(2))
    assert same_bits(packed.dense[1], torch.zeros(70, dtype=torch.float64))
    assert packed.dense[2].isnan().all()
