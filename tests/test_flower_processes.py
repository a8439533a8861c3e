"""Our algorithms inside Flower itself: its simulation, and a SuperLink with SuperNodes (`make test-carriers`)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make test-carriers installs it")

from proxfed import run
from proxfed.algorithms import FedCEF, FedComposite, FedNAG, Pledge, Scaffold
from proxfed.compressors import TopK
from proxfed.silos.carriers.loopback import free_ports
from proxfed.silos.carriers.supervise import Kept
from proxfed.testing import toy as laws

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of other people's code
    pytest.mark.skipif(sys.platform != "linux", reason="only there do processes end with their parents"),
]

APP = """
import json

import torch
from flwr.serverapp import ServerApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from proxfed.algorithms import FedCEF, FedComposite, FedNAG, Pledge, Scaffold
from proxfed.compressors import ErrorBoundedQuantiser, TopK
from proxfed.flower import ProxfedStrategy, Training, arrays, client_app
from proxfed.testing import toy

P, A = toy.problem(), {algorithm}


def module(x):
    layer = nn.Linear(toy.D, 1, bias=False, dtype=torch.float64)
    layer.weight.data[:] = x
    return layer


def training(context):
    X, b = map(torch.tensor, P.f.data.client(context.node_config["partition-id"]))
    loss = lambda s, b: nn.functional.softplus(-b * s[:, 0]).mean()
    return Training(module(0.0), loss, DataLoader(TensorDataset(X, b), len(b)), l2=toy.L2)


client = client_app(A, P.h, training)
server = ServerApp()


@server.main()
def main(grid, context):
    strategy = ProxfedStrategy(A, P.h, min_available_nodes=toy.N)
    result = strategy.start(grid, arrays(module(P.start(0))), num_rounds={rounds})
    with open("{out}", "w") as file:
        json.dump(result.arrays["weight"].numpy()[0].tolist(), file)
"""
PROJECT = """
[project]
name = "inside"
version = "1.0.0"
license = "MIT"
dependencies = []
[tool.flwr.app]
publisher = "proxfed"
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
"""
SIMULATED = """
from flwr.simulation import run_simulation
import app
run_simulation(app.server, app.client, {n}, backend_config={{"client_resources": {{"num_cpus": 1, "num_gpus": 0.0}}}})
"""
ALGORITHMS = [
    FedComposite(1.5, 3),
    FedCEF(0.6, 3, compressor=TopK(k=3)),
    Pledge(2.5, 3),
    Scaffold(1.5, 3),
    FedNAG(0.3, 0.5, 3),
]


def agrees(out: Path, algorithm: object, rounds: int) -> None:
    ours = run(laws.problem(), algorithm, rounds, progress=False).model.numpy()
    assert np.abs(np.array(json.loads(out.read_text())) - ours).max() <= 1e-12


def write_app(folder: Path, algorithm: object, rounds: int) -> Path:
    out = folder / "model.json"
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "app.py").write_text(APP.format(algorithm=repr(algorithm), rounds=rounds, out=out))
    return out


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_simulation(algorithm: object, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'flwr[simulation]'")
    out = write_app(tmp_path, algorithm, 3)
    script = SIMULATED.format(n=laws.N)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert out.exists(), done.stderr[-3000:]
    agrees(out, algorithm, 3)


def test_superlink_and_supernodes(tmp_path: Path) -> None:
    algorithm, rounds = ALGORITHMS[1], 2
    home, place = tmp_path / "home", tmp_path / "app"
    place.mkdir()
    out = write_app(place, algorithm, rounds)
    link, *ports = free_ports(1 + laws.N)
    home.mkdir()
    connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    (home / "config.toml").write_text(connection)
    bin = Path(sys.executable).parent
    path = {"PATH": f"{bin}:/usr/bin:/bin", "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
    own = ["--insecure", "--disable-runtime-dependency-installation"]
    kept = [Kept([str(bin / "flower-superlink"), *own, "--port", str(link)], tmp_path / "link.log", path).start()]
    try:
        time.sleep(5)
        for k, port in enumerate(ports):
            told = ["--superlink", f"127.0.0.1:{link}", "--port", str(port), "--node-config", f"partition-id={k}"]
            command = [str(bin / "flower-supernode"), "--insecure", *told]
            kept.append(Kept(command, tmp_path / f"{k}.log", path).start())
        end = time.monotonic() + 900
        started = False
        while not out.exists() and time.monotonic() < end:
            if not started:
                command = [str(bin / "flwr"), "run", str(place), "here"]
                started = subprocess.run(command, env=path, capture_output=True, timeout=120).returncode == 0
            time.sleep(1)
        logs = "\n".join(log.read_text()[-1500:] for log in tmp_path.glob("*.log"))
        assert out.exists(), logs
        time.sleep(1)
        agrees(out, algorithm, rounds)
    finally:
        for process in kept:
            process.stop()
