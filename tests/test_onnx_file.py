"""Models as ONNX files give the scores that they give here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from proxfed import Federated, Linear, Neural
from proxfed.errors import InputError
from proxfed.problems.onnx_file import write_onnx

RNG = np.random.default_rng(0)


def rows() -> Federated:
    return Federated(RNG.normal(size=(12, 5)), RNG.integers(0, 3, 12), [6, 6], classes=3)


def images() -> Federated:
    pixels = RNG.integers(0, 256, (12, 1, 6, 6), dtype=np.uint8)
    return Federated(pixels, RNG.integers(0, 3, 12), [6, 6], classes=3)


def tokens() -> Federated:
    return Federated(RNG.integers(0, 9, (12, 4)), RNG.integers(0, 3, 12), [6, 6], classes=3)


CASES = {
    "linear": lambda: Linear(rows(), "cross_entropy", intercept=True, dtype=torch.float32),
    "images": lambda: Neural(
        images(), nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)), normalise="standard"
    ),
    "text": lambda: Neural(
        tokens(), nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3))
    ),
}


@pytest.mark.filterwarnings("ignore")  # torch's exporter warns of its own parts
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_the_file_gives_the_same_scores(make, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
    from onnx.reference import ReferenceEvaluator

    f = make()
    x = torch.randn(f.d, generator=torch.Generator().manual_seed(0))
    write_onnx(f, x, tmp_path / "model.onnx")
    session = ReferenceEvaluator(str(tmp_path / "model.onnx"))
    for k in (1, 7):
        stored = f.data.features[:k]
        given = stored if stored.dtype.kind in "iu" else stored.astype(np.float32)
        (scores,) = session.run(None, {"samples": given})
        np.testing.assert_allclose(scores, f.scores(x, stored), rtol=1e-4, atol=1e-5)


def test_without_the_extra_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    f = CASES["linear"]()
    with pytest.raises(InputError, match=r"install the extra: pip install 'proxfed\[onnx\]'"):
        write_onnx(f, torch.zeros(f.d), tmp_path / "model.onnx")
