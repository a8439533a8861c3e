"""A stock Transformer with dropout and an embedding, on text: killed and resumed, and adapters in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from proxfed import FedAvg, Federated, Neural, run
from proxfed.harness.folder.run_folder import RunFolder

from support import shakespeare
from support.resumed import rows, same

pytestmark = pytest.mark.usefixtures("forked")

needs_text = pytest.mark.skipif(
    not shakespeare.file().is_file(), reason="shakespeare/shakespeare.json.bz2 is not in PROXFED_DATA"
)


@needs_text
def test_a_stock_transformer_is_killed_and_resumed_to_the_bit(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    shakespeare.compared(whole)
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "support.shakespeare", str(killed)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (killed.is_dir() and _rows(killed) >= 2):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 2 <= _rows(killed) < 7
    shakespeare.compared(killed)
    same(killed, whole)
    found = rows(whole)
    assert len(found) == 7
    assert found[-1]["test_loss"] < found[0]["test_loss"]
    assert {"accuracy_worst_client", "accuracy_spread"} <= found[-1].keys()


def _rows(path: Path) -> int:
    try:
        return len(RunFolder(path).rows())
    except Exception:  # it is being written
        return 0


class Adapted(nn.Module):
    """A linear layer that stays as it is, and a product of rank r that is trained (LoRA)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.B = nn.Parameter(torch.zeros(layer.out_features, rank))

    @property
    def weight(self) -> Tensor:  # torch's encoder layer looks at it
        return self.layer.weight + self.B @ self.A

    @property
    def bias(self) -> Tensor:
        return self.layer.bias

    def forward(self, v: Tensor) -> Tensor:
        return self.layer(v) + v @ self.A.T @ self.B.T


def adapted(network: nn.Module, rank: int) -> nn.Module:
    network.requires_grad_(False)
    for layer in network.encoder.layers:
        layer.linear1, layer.linear2 = Adapted(layer.linear1, rank), Adapted(layer.linear2, rank)
    return network


def tokens() -> Federated:
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 30, (40, shakespeare.LONG))
    return Federated.of(texts, texts[:, -1] % 30, client=np.arange(40) % 4, classes=30, name="tokens")


def test_adapters_send_a_hundredth_of_the_bytes() -> None:
    """And what is frozen is neither sent nor changed."""
    torch.manual_seed(0)
    base = shakespeare.Transformer(30, width=96, heads=4, inside=384, layers=2)
    whole = Neural(tokens(), base, batch=5)
    few = Neural(tokens(), adapted(base, 1), batch=5)
    assert {block.name.rpartition(".")[2] for block in few.blocks} == {"A", "B"}
    found = {name: run(f, FedAvg(0.05, 1), rounds=2, progress=False) for name, f in (("all", whole), ("few", few))}
    up = {name: result.rows[-1]["bytes_up"] for name, result in found.items()}
    assert up["all"] >= 100 * up["few"]
    before, after = dict(few.net.template.named_parameters()), few.state_dict(found["few"].model)
    for name, parameter in before.items():
        assert torch.equal(parameter, after[name]) == (name.rpartition(".")[2] not in "AB")


def test_adapters_of_peft() -> None:
    peft = pytest.importorskip("peft", reason="the library `peft` is not installed")
    torch.manual_seed(0)
    base = shakespeare.Transformer(30)
    settings = peft.LoraConfig(r=2, target_modules=["out"], lora_dropout=0.1)
    f = Neural(tokens(), peft.get_peft_model(base, settings).base_model.model, batch=5)
    assert all("lora_" in block.name for block in f.blocks)
    one, two = (run(f, FedAvg(0.05, 2), rounds=3, progress=False).model for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, f.initial(0))
