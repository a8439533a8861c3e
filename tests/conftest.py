"""Tests run on one thread each, so that several can run side by side; torch's threads would only get in the way.

A property test takes as many examples as the hypothesis profile says: `ci` is the default, and `make test-slow` chooses
`slow` with --hypothesis-profile.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

import proxfed.harness.experiment

from support import toy_paper as paper
from support.forked import ForkedPopen, fork_server

torch.set_num_threads(1)
os.fsync = lambda descriptor: None  # tests kill processes and fill disks, but nobody pulls the plug

settings.register_profile("ci", max_examples=15, deadline=None, derandomize=True)  # the same ones every time
settings.register_profile("slow", max_examples=1000, deadline=None)
settings.load_profile("ci")


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of that with the experiments which come with the package."""
    folder = tmp_path / "experiments"
    folder.mkdir()
    monkeypatch.setattr(proxfed.harness.experiment, "EXPERIMENTS", [folder])
    return folder


@pytest.fixture
def toy_paper(experiments: Path) -> Path:
    """The two experiments of a made-up paper, and no others; where their files are."""
    paper.write_paper(experiments)
    return experiments


@pytest.fixture(scope="session")
def forks() -> Iterator[str]:
    """Where the server of forks listens; one for all tests of this process."""
    with fork_server() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkedPopen, "server", path)
        yield path


@pytest.fixture
def forked(forks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of Python that a test starts are forks of one that has imported torch."""
    monkeypatch.setattr(subprocess, "Popen", ForkedPopen)
