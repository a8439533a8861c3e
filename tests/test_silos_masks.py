"""Secure aggregation: the sum is right to the stated rounding, and no message says anything by itself."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import InputError, RunError
from proxfed.silos.protection.keyring import Keyring, SiteKey
from proxfed.silos.protection.masks import largest, pads, reveal, rounding, to_words

NAMES = ["berlin", "lyon", "oslo", "porto", "turin"]
KEYS = {name: SiteKey(X25519PrivateKey.generate()) for name in NAMES}
SAID = {name: key.introduction() for name, key in KEYS.items()}
RINGS = {name: Keyring.of(key, name, "job", SAID) for name, key in KEYS.items()}


def hide(values: np.ndarray, ring: Keyring, cohort: list[str], t: int, broadcast: bytes, bits: int) -> np.ndarray:
    """What a site sends."""
    words = to_words(values, len(cohort), bits)
    return words + pads(ring, cohort, t, broadcast, len(words))


def sent(values: dict[str, np.ndarray], t: int = 1, broadcast: bytes = b"x", bits: int = 40) -> dict[str, np.ndarray]:
    return {name: hide(v, RINGS[name], list(values), t, broadcast, bits) for name, v in values.items()}


@given(
    n=st.integers(2, 5),
    d=st.integers(0, 20),
    bits=st.integers(10, 46),
    size=st.floats(1e-6, 1e3),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_sum_to_the_stated_rounding(n: int, d: int, bits: int, size: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = {name: size * rng.standard_normal(d) for name in rng.permutation(NAMES)[:n]}
    size_of_sum = np.sum([np.abs(v) for v in values.values()], axis=0)
    error = np.abs(reveal(sent(values, bits=bits).values(), bits) - np.sum(list(values.values()), axis=0))
    assert (error <= rounding(n, bits) + 2 * n * np.finfo(float).eps * size_of_sum).all()


def test_the_stated_rounding_is_reached() -> None:
    """Numbers half-way between two of the fixed point, all rounded the same way."""
    bits = 10
    values = {name: np.array([0.5 * 2.0**-bits * (1 - 1e-9)]) for name in NAMES}
    error = abs(float(reveal(sent(values, bits=bits).values(), bits)[0]) - 5 * 0.5 * 2.0**-bits)
    assert error == pytest.approx(rounding(5, bits), rel=1e-6)


def test_integers_are_summed_exactly() -> None:
    values = {name: np.arange(-3.0, 4.0) * (k + 1) for k, name in enumerate(NAMES)}
    assert (reveal(sent(values).values(), 40) == np.arange(-3.0, 4.0) * 15).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_what_does_not_fit_is_refused_and_what_fits_does_not_wrap(sign: int) -> None:
    fits = sign * largest(5, 40) * (1 - 1e-12)
    values = {name: np.array([fits]) for name in NAMES}
    assert reveal(sent(values).values(), 40)[0] == pytest.approx(5 * fits, rel=1e-12)
    for too_much in (sign * largest(5, 40), sign * np.inf, np.nan):
        with pytest.raises(RunError, match="does not fit the range"):
            sent(dict.fromkeys(NAMES, np.array([too_much])))


def chi_squared(message: np.ndarray) -> float:
    """Of the bytes of a message, in standard deviations from what uniform ones have."""
    counts = np.bincount(message.view(np.uint8), minlength=256)
    expected = message.nbytes / 256
    return float((((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(2 * 255))


def test_a_single_message_looks_uniform_while_the_bare_one_does_not() -> None:
    d = 50_000
    bodies = sent({name: np.full(d, 0.1 * k) for k, name in enumerate(NAMES)})
    bare = np.rint(np.full(d, 0.1) * 2.0**40).astype(np.int64)
    assert chi_squared(bare) > 100
    for body in bodies.values():
        assert abs(chi_squared(body)) < 5
        ones = np.unpackbits(body.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(64 * d)
    first, second = (bodies[name] for name in NAMES[:2])
    apart = np.corrcoef(first.astype(float), second.astype(float))[0, 1]
    assert abs(apart) < 5 / np.sqrt(d)


def test_all_but_one_message_say_nothing_of_the_sum() -> None:
    bodies = sent({name: np.ones(50_000) for name in NAMES})
    some = np.sum([bodies[name] for name in NAMES[:-1]], axis=0, dtype=np.uint64)
    assert abs(chi_squared(some)) < 5


def test_other_contents_with_the_same_sum_are_as_likely() -> None:
    """For any other split of the sum there are pads that explain what was seen: the view does not tell one from it.

    A pad between two sites moves one message up and the other down by the same; whatever is moved from one site's
    content to another's, a changed pad of this pair gives the same view.
    """
    values = {name: np.array([float(k), -1.0]) for k, name in enumerate(NAMES)}
    seen = sent(values)
    other = values | {"berlin": values["berlin"] + 7.0, "oslo": values["oslo"] - 7.0}
    seen_of_other = sent(other)
    difference = {name: seen_of_other[name] - seen[name] for name in NAMES}
    assert (difference["berlin"] + difference["oslo"] == 0).all()  # what one pad can make up for
    assert all((difference[name] == 0).all() for name in ("lyon", "porto", "turin"))


@pytest.mark.parametrize("what", ["round", "broadcast", "cohort", "run"])
def test_pads_belong_to_one_round_broadcast_cohort_and_run(what: str) -> None:
    """A coordinator that tells sites different things reads noise."""
    values, pair = np.zeros(4), NAMES[:2]
    first = hide(values, RINGS["berlin"], pair, 1, b"x", 40)
    t, broadcast, cohort, ring = 1, b"x", pair, RINGS["lyon"]
    if what == "round":
        t = 2
    elif what == "broadcast":
        broadcast = b"y"
    elif what == "cohort":
        cohort = NAMES[:3]
    else:
        ring = Keyring.of(KEYS["lyon"], "lyon", "another job", SAID)
    second = hide(values, ring, cohort, t, broadcast, 40)
    assert (np.abs(reveal([first, second], 40)) > 1.0).any()
    assert (reveal([first, hide(values, RINGS["lyon"], pair, 1, b"x", 40)], 40) == 0).all()


def test_the_same_question_gets_the_same_bytes() -> None:
    values = {name: np.ones(3) for name in NAMES}
    first, again, later = sent(values), sent(values), sent(values, t=2)
    for name in NAMES:
        assert (first[name] == again[name]).all()
        assert (first[name] != later[name]).all()


def test_sums_that_hide_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="hides nothing"):
        hide(np.ones(2), RINGS["oslo"], ["oslo"], 1, b"", 40)
    with pytest.raises(InputError, match="hides nothing"):
        hide(np.ones(2), RINGS["oslo"], ["oslo", "oslo"], 1, b"", 40)
    with pytest.raises(InputError, match="is not among"):
        hide(np.ones(2), RINGS["oslo"], ["lyon", "turin"], 1, b"", 40)
    with pytest.raises(InputError, match="different lengths"):
        reveal([np.zeros(1, np.uint64), np.zeros(2, np.uint64)], 40)
