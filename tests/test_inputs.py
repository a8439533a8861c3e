"""What a network sees: scaled pixels, cropped and flipped images, layout and precision."""

from __future__ import annotations

import warnings
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from proxfed import Federated, keyed_random
from proxfed.problems.neural import bfloat16
from proxfed.problems.neural.inputs import crop_flip
from proxfed.problems.neural.neural import Neural

from support.image_data import RAGGED, close, images, point


def test_standard_channels_have_mean_0_and_variance_1() -> None:
    data = images(RAGGED, 3)
    seen = Neural(data, "mlp", normalise="standard", dtype=torch.float64).samples(np.arange(36)[None])[0]
    assert torch.allclose(seen.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-12)
    assert torch.allclose(seen.var((0, 2, 3), correction=0), torch.ones(3).double())
    bytes_ = torch.tensor(data.features).double()
    assert torch.allclose(
        (seen - seen[0, 0, 0, 0])[:, 0] * bytes_[:, 0].std(correction=0), bytes_[:, 0] - bytes_[0, 0, 0, 0]
    )


def test_half_has_pixels_between_minus_1_and_1() -> None:
    data = images(RAGGED, 3)
    seen = Neural(data, "mlp", normalise="half", dtype=torch.float64).samples(np.arange(36)[None])[0]
    assert torch.allclose(seen, (torch.tensor(data.features).double() / 255 - 0.5) / 0.5, atol=1e-15)


def test_features_that_are_floats_stay_as_they_are_and_constants_do_not_divide_by_zero() -> None:
    A = np.random.default_rng(0).normal(3, 2, size=(20, 5))
    A[:, 2] = 7
    data = Federated(A, np.arange(20) % 3, [12, 8], classes=3)
    assert np.array_equal(Neural(data, "mlp", dtype=torch.float64).samples(np.arange(20)[None])[0].numpy(), A)
    seen = Neural(data, "mlp", normalise="standard", dtype=torch.float64).samples(np.arange(20)[None])[0]
    assert torch.isfinite(seen).all()
    assert not seen[:, 2].any()
    assert torch.allclose(seen[:, [0, 1, 3, 4]].std(0, correction=0), torch.ones(4).double())


def test_augmented_images_are_windows_of_the_padded_image() -> None:
    rng = np.random.default_rng(0)
    A = torch.tensor(rng.integers(1, 256, (40, 2, 6, 6)).astype(np.uint8))
    key = keyed_random.keys(0, "augment", [0, 1], 1)
    seen = crop_flip(A, key)
    framed = nn.functional.pad(A, (4, 4, 4, 4))
    found = set()
    for k in range(40):
        windows = {
            (dy, dx, flip): framed[k, :, dy : dy + 6, dx : dx + 6].flip([-1] * flip)
            for dy, dx, flip in product(range(9), range(9), (0, 1))
        }
        match = [which for which, window in windows.items() if torch.equal(window, seen[k])]
        assert match
        found.add(match[0])
    assert len({dy for dy, _, _ in found}) > 4
    assert len({dx for _, dx, _ in found}) > 4
    assert {flip for _, _, flip in found} == {0, 1}
    assert torch.equal(crop_flip(A[20:], key[1:]), seen[20:])


def test_augmentation_is_only_for_minibatches() -> None:
    data = images()
    bare, augmented = (Neural(data, "mlp", batch=5, augment=a, dtype=torch.float64) for a in (None, "crop_flip"))
    x = point(bare)
    f, g = bare.local(1, range(4)), augmented.local(1, range(4))
    assert torch.equal(f.full_grad(x), g.full_grad(x))
    assert not torch.equal(f.grad(x, 0), g.grad(x, 0))


@pytest.mark.parametrize("option", [{"channels_last": False}, {"bfloat16": True}])
def test_layout_and_precision_change_little(option: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16, "slowdown", lambda: 0.5)
    data = images(RAGGED, 3, 16)
    p, q = Neural(data, "fednag_cnn", batch=5), Neural(data, "fednag_cnn", batch=5, **option)
    x = point(p)
    g, other = (m.local(1, range(p.n)).grad(x, 0) for m in (p, q))
    assert other.dtype == torch.float32
    assert close(other, g, 0.2 if "bfloat16" in option else 1e-5)
    assert not torch.equal(other, g)


@pytest.mark.parametrize(("times", "device"), [(13.0, "cpu"), (0.6, "cpu"), (13.0, "meta")])
def test_bfloat16_says_so_where_it_is_slower(times: float, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16, "slowdown", lambda: times)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        bfloat16.warn_if_slow(device)
    slow = times > 1 and device == "cpu"
    assert [str(w.message).startswith("bfloat16 = true: convolutions take 13.0 times") for w in said] == [True] * slow


def test_a_problem_with_bfloat16_asks_how_slow_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16, "slowdown", lambda: 2.0)
    with pytest.warns(UserWarning, match="2.0 times as long"):
        Neural(images(), "mlp", batch=5, bfloat16=True)


def test_how_slow_bfloat16_is_is_measured() -> None:
    assert 0.01 < bfloat16.slowdown() < 1000
