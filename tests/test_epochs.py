"""Local steps as epochs of each client's own samples."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from proxfed import Epochs, FedAvg, InputError, Scaffold, run
from proxfed.algorithms import ALGORITHMS, CompressedDownlink, FedProx
from proxfed.compressors import TopK
from proxfed.data.federated import Window
from proxfed.engine.compatibility import why_not_private
from proxfed.engine.halves import Clients, Work
from proxfed.engine.messages import leaves
from proxfed.engine.states import take
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.participation import Full
from proxfed.registry import hints
from proxfed.simulate import clock
from proxfed.testing import toy
from proxfed.testing.runs import after, begun, small_blocks

from support.cli import proxfed, refused
from support.clock_rows import row, timing
from support.resumed import same
from support.small_experiment import Crash, execute, small, write

STEPS = [1, 5, 2, 5, 4]
"""One pass of each client of toy.RAGGED in batches of 8."""

TAKES = sorted(
    name
    for name, make in ALGORITHMS.items()
    if isinstance(make, (type, partial)) and Epochs in get_args(hints(make).get("K"))
)


def ragged(**options: Any) -> Any:
    return toy.problem(toy.RIDGE, sizes=toy.RAGGED, weighting="size", **({"batch": 8} | options))


def made(name: str, K: Any) -> Any:
    more = {"fedprox": {"mu": 0.1}}.get(name, {"eta_g": 0.1} if name == "fedopt" else {})
    return ALGORITHMS[name](eta=0.1, K=K, **more)


UNEVEN = {
    "data": {"name": "digits", "partition": {"name": "sizes", "partition_sizes": [10, 90, 20, 40]}},
    "problem": {"name": "softmax", "batch": 10, "l2": 0.01},
    "algorithms": [
        {"name": "fedavg", "eta": 0.1, "K": {"epochs": 2}, "participation": {"name": "uniform", "m": 3}},
        {"name": "scaffold", "eta": 0.1, "K": {"epochs": 1}},
    ],
}


@pytest.mark.parametrize("name", TAKES)
def test_each_client_does_what_it_would_do_alone_with_its_own_number_of_steps(name: str) -> None:
    p = ragged()
    together = begun(made(name, Epochs(1)), p)
    after(together, 3)
    state, everyone = together.state, range(p.f.n)
    down = together.half.down(state.server, 4)[1]
    own, up = together.clients.client(together.algorithm, state.clients, down, 4, everyone, Work())
    for i, K in enumerate(STEPS):
        one = Clients(p, made(name, K))
        new, sent = one.client(made(name, K), take(state.clients, slice(i, i + 1)), down, 4, range(i, i + 1), Work())
        for mine, alone in zip(leaves((own, up)), leaves((new, sent)), strict=True):
            assert torch.equal(mine[i : i + 1], alone)


def test_the_algorithms_that_take_epochs_are_those_of_the_docs() -> None:
    assert {"fedavg", "fedprox", "fedsam", "scaffold", "slowmo", "mime", "mimelite", "local_adam"} <= {*TAKES}
    assert not {"fedcomposite", "fednova", "fedmid", "mofedsam", "fedpaq", "scafcom", "dfedavg"} & {*TAKES}


def test_clients_of_one_size_run_as_with_the_number() -> None:
    p = toy.problem(batch=4)
    K = -(-p.f.data.sizes[0] // 4)
    mine, number = (after(begun(FedAvg(0.1, K), p), 3) for K in (Epochs(1), int(K)))
    assert torch.equal(mine.model(), number.model())
    assert mine.counters() == number.counters()


def test_work_is_counted_by_each_clients_own_steps() -> None:
    result = run(ragged(), FedAvg(0.1, Epochs(2)), 3)
    assert result.rows[-1]["gradients"] == 3 * 2 * sum(STEPS)


@pytest.mark.parametrize(
    "a", [Scaffold(0.1, Epochs(1)), CompressedDownlink(FedAvg(0.1, Epochs(1)), TopK(k=2))], ids=str
)
def test_blocks_of_clients_do_not_matter(a: Any) -> None:
    p = ragged()
    whole, split = after(begun(a, p), 3), begun(a, p)
    with small_blocks(2, threads=2):
        after(split, 3)
    parts = split.dump()
    for key, x in whole.dump().items():
        assert torch.allclose(parts[key], x, rtol=1e-13, atol=1e-14)
    assert split.counters() == whole.counters()


def test_a_resumed_run_is_the_same_to_the_bit(tmp_path: Path) -> None:
    table = small(rounds=3, seeds=[0], reference=False, **UNEVEN)
    assert execute(tmp_path / "whole", table)
    with pytest.raises(Crash):
        execute(tmp_path / "run", table, crash_after=5)
    assert execute(tmp_path / "run", table, resume=True)
    same(tmp_path / "run", tmp_path / "whole")
    assert RunFolder(tmp_path / "run").config()["algorithms"][0]["K"] == {"epochs": 2}


def test_the_clock_charges_each_client_its_own_steps() -> None:
    """The slow device is that of the client with the fewest steps: 2 of 3 s, and 8 of 1 s."""
    now = clock(timing(3.0, 1.0), FedAvg(0.1, Epochs(1)), Full(), None, 2, 0, np.array([2, 8]))
    assert now(row(1, 10)) == pytest.approx(8.0)


def test_simulated_seconds_are_the_same_while_and_after_it_runs(tmp_path: Path, capsys: Any) -> None:
    table = small(rounds=2, seeds=[0], reference=False, **UNEVEN)
    file, live = (
        write(tmp_path / "a.toml", table),
        write(tmp_path / "b.toml", table | {"time": {"profile": "phones_4g"}}),
    )
    assert proxfed(capsys, "run", str(live), "--out", str(tmp_path / "live"))[0] == 0
    assert proxfed(capsys, "run", str(file), "--out", str(tmp_path / "plain"))[0] == 0
    args = ("simulate", str(tmp_path / "plain"), "--profile", "phones_4g", "--out", str(tmp_path / "later"))
    assert proxfed(capsys, *args)[0] == 0
    seconds = [[each["sim_seconds"] for each in RunFolder(tmp_path / k).rows()] for k in ("live", "later")]
    assert seconds[0] == seconds[1]


def test_seconds_of_partitions_that_the_folder_does_not_have_are_refused(tmp_path: Path, capsys: Any) -> None:
    partition = {"name": "dirichlet_by_class", "num_partitions": 4, "alpha": 1.0, "seed": "run"}
    table = small(
        rounds=1, seeds=[0, 1], reference=False, **UNEVEN | {"data": {"name": "digits", "partition": partition}}
    )
    assert execute(tmp_path / "run", table)
    said = refused(capsys, "simulate", str(tmp_path / "run"), "--profile", "lan", "--out", str(tmp_path / "later"))
    assert "each seed has a partition of its own, and clients.json has one of them" in said


def test_full_gradients_have_no_epochs() -> None:
    with pytest.raises(InputError, match=r"^FedAvg: epochs need minibatches of a data set; give the problem a batch$"):
        run(ragged(batch=None), FedAvg(0.1, Epochs(1)), 1)


def test_a_site_refuses_whatever_the_coordinator_asks() -> None:
    p = ragged()
    data = replace(p.f.data, window=Window(0, p.f.weights.numpy()))
    with pytest.raises(InputError, match="epochs would tell how many rows a site has; give a number"):
        Clients(replace(p, f=replace(p.f, data=data)), FedAvg(0.1, Epochs(1)))


def test_noise_refuses() -> None:
    assert why_not_private(FedAvg(0.1, Epochs(1)), 5).endswith("would tell how many rows it has; give a number")


def test_what_follows_from_K_must_have_a_number() -> None:
    with pytest.raises(InputError, match=r"mu = 'auto' follows from K, so K = Epochs\(epochs=1\) must be a number"):
        FedProx(0.1, Epochs(1), mu="auto")


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "fedcomposite", "eta": 0.1, "tau": {"epochs": 2}},
        {"name": "dfedavg", "eta": 0.1, "K": {"epochs": 2}, "topology": {"name": "ring"}},
    ],
    ids=["server", "peers"],
)
def test_methods_that_need_equally_many_steps_say_what_to_give(algorithm: Any, capsys: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", small(**UNEVEN | {"algorithms": [algorithm]}))
    said = refused(capsys, "run", str(file), "--out", str(tmp_path / "run"))
    assert "clients of this algorithm take equally many local steps; give a number, or {mean_epochs = 2}" in said


def test_scaffold_stays_exact_whatever_number_of_steps_each_client_takes() -> None:
    """With full gradients; the steps of a round are handed in, since full gradients have no epochs."""
    p, x = toy.problem(toy.RIDGE), toy.solution(toy.RIDGE)
    found = []
    for a in (Scaffold(0.5, 1), FedAvg(0.5, 1)):
        going = begun(a, p)
        going.algorithm, going.clients.steps = replace(a, K=Epochs(1)), np.array([1, 2, 3, 5, 8])
        found.append(toy.error(after(going, 600).model(), x))
    assert found[0] < 1e-6 < 1e-3 < found[1]
