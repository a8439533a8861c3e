"""Tests run on one thread each, so that several can run side by side; torch's threads would only get in the way."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)


@pytest.fixture
def toy_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two experiments of one made-up paper, instead of those that come with the package; where their files are."""
    from support.toy_paper import ship

    ship(tmp_path / "experiments")
    monkeypatch.setattr("proxfed.harness.schema.EXPERIMENTS", tmp_path / "experiments")
    return tmp_path / "experiments"
