"""Our algorithms inside NVIDIA FLARE itself: its simulator, with a process for each site (`make test-carriers`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: make test-carriers installs it")

from proxfed import run
from proxfed.algorithms import DSGT, FedCEF, Pledge, PledgePeers
from proxfed.compressors import TopK
from proxfed.testing import toy as laws
from proxfed.topologies import Ring
from proxfed.types import Graph

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of other people's code

INSIDE = """
import json

import torch
from nvflare.collab import collab
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from proxfed.algorithms import DSGT, FedCEF, Pledge, PledgePeers
from proxfed.compressors import ErrorBoundedQuantiser, TopK
from proxfed.nvflare import ClientHalf, PeerHalf, Training, serve, serve_peers
from proxfed.testing import toy
from proxfed.topologies import Ring

P, A = toy.problem(), {algorithm}


def module(x):
    layer = nn.Linear(toy.D, 1, bias=False, dtype=torch.float64)
    layer.weight.data[:] = x
    return layer


def training(site):
    X, b = map(torch.tensor, P.f.data.client(int(site.rpartition("-")[2]) - 1))
    loss = lambda s, b: nn.functional.softplus(-b * s[:, 0]).mean()
    return Training(module(0.0), loss, DataLoader(TensorDataset(X, b), len(b)), l2=toy.L2)


{halves}
    with open("{out}", "w") as file:
        json.dump(model["weight"][0].tolist(), file)
"""
STAR = """
half = ClientHalf(A, P.h, training)


@collab.publish
def answer(question: bytes) -> bytes:
    return half.answer(collab.site_name, question)


@collab.main
def main():
    model = serve(A, P.h, module(P.start(0)), {rounds})
"""
PEERS = """
half = PeerHalf(A, P.h, Ring(toy.N), training, timeout=300)


@collab.publish
def walk(question: bytes) -> bytes:
    return half.walk(collab.site_name, question, collab.get_clients)


@collab.publish
def hear(message: bytes) -> None:
    half.hear(collab.caller, message)


@collab.main
def main():
    model = serve_peers(A, P.h, module(P.start(0)), Ring(toy.N), {rounds})
"""
SIMULATED = """
import inside
from nvflare.collab import CollabRecipe
from nvflare.recipe import SimEnv

recipe = CollabRecipe("inside", server=inside, client=inside, min_clients={n})
recipe.execute(SimEnv(num_clients={n}, workspace_root="{place}"))
"""


@pytest.mark.parametrize(
    "a",
    [FedCEF(0.6, 3, compressor=TopK(k=3)), Pledge(2.5, 3), DSGT(0.3), PledgePeers(0.3)],
    ids=lambda a: type(a).__name__,
)
def test_simulator(a: Any, tmp_path: Path) -> None:
    rounds, out, peers = 3, tmp_path / "model.json", isinstance(a, Graph)
    halves = (PEERS if peers else STAR).format(rounds=rounds)
    (tmp_path / "inside.py").write_text(INSIDE.format(algorithm=repr(a), halves=halves, out=out))
    script = SIMULATED.format(n=laws.N, place=tmp_path / "place")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert out.exists(), (done.stdout + done.stderr)[-3000:]
    ours = run(laws.problem(), a, rounds, topology=Ring(laws.N) if peers else None, progress=False).model.numpy()
    assert np.abs(np.array(json.loads(out.read_text())) - ours).max() <= 1e-12
