"""Masked words of 16, 24 or 32 bits: the sum is exactly that of the rounded messages, and takes few bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import InputError
from proxfed.harness.experiment import parse
from proxfed.silos.protection import narrow_words, site_guard
from proxfed.silos.protection.narrow_words import bound, cap, exponent, from_bytes, quantise, signed, to_bytes
from proxfed.silos.wire.message import LEAF, Letter

from support.guarded_sites import FEDAVG, Sites, after, algorithm

BITS = [16, 24, 32]


def masked(bits: int = 16, **more: Any) -> dict[str, Any]:
    return {"secure_aggregation": True, "word_bits": bits, **more}


@given(
    n=st.integers(1, 6),
    bits=st.sampled_from(BITS),
    d=st.integers(0, 20),
    seed=st.integers(0, 2**32),
    e=st.integers(-30, 5),
)
def test_the_sum_is_exactly_that_of_the_rounded_messages(n: int, bits: int, d: int, seed: int, e: int) -> None:
    """Under any masks whose sum is zero, whatever the messages are, also where they saturate."""
    rng = np.random.default_rng(seed)
    q = [quantise(rng.standard_normal(d), 2.0**e, n, bits, rng.random(d)) for _ in range(n)]
    pads = [rng.integers(0, 2**64, d, np.uint64) for _ in range(n - 1)]
    pads.append(np.zeros(d, np.uint64) - sum(pads, np.zeros(d, np.uint64)))
    sent = [to_bytes(x.view(np.uint64) + pad, bits) for x, pad in zip(q, pads, strict=True)]
    assert all(row.shape == (1, d * bits // 8) for row in sent)
    total = np.sum([from_bytes(row, bits) for row in sent], axis=0, dtype=np.uint64)
    assert (signed(total, bits) == np.sum(q, axis=0)).all()


@given(seed=st.integers(0, 2**32), bits=st.sampled_from(BITS), n=st.integers(1, 100))
def test_rounding_is_unbiased_within_a_step_and_saturates(seed: int, bits: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    x, step, u = rng.standard_normal(50), 2.0**-3, rng.random(50)
    q = quantise(x, step, n, bits, u)
    inside = np.abs(x) < step * (cap(n, bits) - 1)
    assert (np.abs(q * step - x)[inside] < step).all()
    assert (
        quantise(np.array([np.inf, -np.inf, np.nan, 1e300]), step, n, bits, np.zeros(4))
        == cap(n, bits) * np.array([1, -1, 0, 1])
    ).all()
    grid = (np.arange(1000) + 0.5) / 1000  # the mean over u, to 1/1000 of a step
    means = np.mean([quantise(x[:5], step, 1, 32, np.full(5, v)) for v in grid], axis=0) * step
    assert np.abs(means - x[:5]).max() <= step / 1000


def test_the_step_leaves_room_and_not_too_much() -> None:
    for together in (1e-9, 0.3, 1.0, 7.7, 1e9):
        for bits in BITS:
            step = 2.0 ** exponent(together, 3, bits)
            assert step * cap(3, bits) >= 2 * together
            assert step * cap(3, bits) < 4.1 * together
    assert exponent(0.0, 3, 16) == exponent(float("nan"), 3, 16) == narrow_words.FINEST


STARS = [FEDAVG, algorithm("scaffold", eta=0.1, K=2), algorithm("fedcomposite", eta=0.1, tau=3)]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("table", STARS, ids=lambda a: a["name"])
@pytest.mark.parametrize("recovery", [False, True], ids=["masks", "recovery"])
def test_what_the_server_reads_is_the_sum_of_the_rounded_messages(
    table: Mapping[str, Any], bits: int, recovery: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End to end: the words that sites hid, added up, are the words that the coordinator reads."""
    hidden: list[np.ndarray] = []
    whole = site_guard.SiteLink._words

    def noted(self: Any, numbers: np.ndarray, of: Any, content: str) -> Any:
        words = whole(self, numbers, of, content)
        if of.kind == "round" and of.grain is not None:
            hidden.append(words.view(np.int64) * 2.0**of.grain)
        return words

    monkeypatch.setattr(site_guard.SiteLink, "_words", noted)
    c = Sites(tmp_path).coordinator(table, masked(bits, recovery=recovery))
    read: list[np.ndarray] = []
    values = c.collect._values
    c.collect._values = lambda words: read.append(values(words)) or read[-1]
    for t in range(1, 4):
        c.round(t)
        if t > 1:
            assert (read[-1] == np.sum(hidden[-3:], axis=0)).all()
    assert len(hidden) == 6


@pytest.mark.parametrize(("bits", "close"), [(16, 2e-3), (24, 1e-5), (32, 1e-7)])
def test_the_model_is_that_of_the_plain_run_to_the_step(bits: int, close: float, tmp_path: Path) -> None:
    plain = after(Sites(tmp_path / "plain", guarded=False).coordinator(), 8)
    narrow = after(Sites(tmp_path / "narrow").coordinator(FEDAVG, masked(bits)), 8)
    apart = float((plain.model() - narrow.model()).abs().max())
    assert 0 < apart < close * float(plain.model().abs().max())


@pytest.mark.parametrize("bits", BITS)
def test_a_number_takes_so_many_bits_from_the_second_round_on(bits: int, tmp_path: Path) -> None:
    d = 1000
    sites = Sites(tmp_path, d=d)
    after(sites.coordinator(FEDAVG, masked(bits)), 2)
    for t, each in ((1, 8), (2, bits // 8)):
        assert {len(body) for body in sites.bodies(t).values()} == {LEAF + each * (d + 1)}


def test_narrow_words_look_uniform(tmp_path: Path) -> None:
    d = 20_000
    sites = Sites(tmp_path, d=d)
    after(sites.coordinator(FEDAVG, masked(16)), 2)
    for body in sites.bodies(2).values():
        counts = np.bincount(np.frombuffer(body[LEAF:], np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert abs((((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(510)) < 5


def test_a_coordinator_that_says_other_steps_gets_no_two_words_under_one_mask(tmp_path: Path) -> None:
    """The same round and model with another step: the difference of both would be the rounding of one site. Noise."""
    sites = Sites(tmp_path, d=2000)
    c = sites.coordinator(FEDAVG, masked(16))
    after(c, 2)
    name, question, answer = next(s for s in reversed(sites.seen) if Letter.decode(s[1]).kind == "round")
    letter = Letter.decode(question)
    other = replace(letter, head=letter.head | {"grain": letter.head["grain"] + 1}, step=1, life=letter.life + 1)
    again = Letter.decode(sites.holders[name].answer(other.encode()))
    assert again.kind == "answer"
    one, two = (np.frombuffer(body[LEAF:], "<u2") for body in (Letter.decode(answer).body, again.body))
    apart = (one - two).astype(np.int16).astype(float)
    assert np.abs(apart).mean() > 8000  # uniform: 8192
    assert bound(b"x", 1) != bound(b"x", 2) != bound(b"x", None)
    for bad in (1.5, "1", 10**6, True):
        letter = replace(other, head=other.head | {"grain": bad}, step=2, life=other.life + 1)
        assert Letter.decode(sites.holders[name].answer(letter.encode())).kind == "failed"


def test_after_a_crash_the_same_bytes_and_the_same_steps(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    c = after(sites.coordinator(FEDAVG, masked(24)), 3)
    d = type(c)(c.job, sites.exchange())
    d.load(c.dump(), {"wall_seconds": 0.0, **dict.fromkeys(c.counters(), 0)})
    assert d.collect.together == c.collect.together > 0
    name, question, answer = sites.seen[-1]
    sites.start()
    assert sites.holders[name].answer(question) == answer


def test_narrow_words_are_refused_without_masks_and_without_a_server(tmp_path: Path) -> None:
    base = {"name": "x", "rounds": 1, "data": {"name": "synthetic_binary"}, "problem": {"name": "logistic"}}
    base["algorithms"] = [{"name": "fedavg", "eta": 0.1, "K": 1}]
    for key, value in (("word_bits", 16), ("recovery", True)):
        with pytest.raises(InputError, match=f"protection.{key} = {value}: only with secure_aggregation = true"):
            parse(base | {"protection": {key: value}}, "x")
    with pytest.raises(InputError, match="17"):
        parse(base | {"protection": {"secure_aggregation": True, "word_bits": 17}}, "x")
    sites = Sites(tmp_path)
    dsgt = algorithm("dsgt", alpha=0.1, topology={"name": "ring"})
    with pytest.raises(InputError, match=r"protection.word_bits: DSGT has no server"):
        sites.coordinator(dsgt, masked(16))
    with pytest.raises(InputError, match=r"protection.recovery: DSGT has no server"):
        sites.coordinator(dsgt, {"secure_aggregation": True, "recovery": True})


def test_with_noise_the_noise_stays(tmp_path: Path) -> None:
    """Rounding comes after the noise: it takes nothing of the privacy."""
    noisy = masked(16, privacy={"clip": 1.0, "noise": 4.0, "delta": 1e-5})
    d = 2000
    c = after(Sites(tmp_path, d=d).coordinator(FEDAVG, noisy), 1)
    before = c.model()
    c.round(2)
    moved = (c.model() - before).numpy()
    assert float(np.std(moved)) == pytest.approx(4 / np.sqrt(3), rel=0.15)
    assert torch.isfinite(c.model()).all()
