"""Samples that are read when a client takes part: the same run as with all in memory, and nobody else is read."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import scipy.sparse
import torch

from proxfed import FedAvg, Federated, InputError, Linear, Logistic, Neural, Scaffold, Softmax, compare, load, run
from proxfed.data import OnDemand, SparseRows
from proxfed.data.federated import counts
from proxfed.engine.measures import Measures
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.participation import UniformSampling
from proxfed.regularisers import Zero
from proxfed.report.client_stats import ClientStats
from proxfed.tuning.held_out import chosen_rows

pytestmark = pytest.mark.usefixtures("forked")

N, P, CLASSES = 9, 6, 3
SIZES = (5, 7, 5, 9, 4, 6, 5, 8, 7)
RNG = np.random.default_rng(3)
SAMPLES = [(RNG.normal(size=(m, P)), RNG.integers(0, CLASSES, m)) for m in SIZES]
SIGNS = [(A, np.where(b > 0, 1.0, -1.0)) for A, b in SAMPLES]
SOME = UniformSampling(3)


class Reader:
    """Reads from memory, and remembers whom."""

    def __init__(self, clients):
        self.clients, self.asked = clients, []

    def __call__(self, i):
        self.asked.append(i)
        return self.clients[i]


def cohorts(rounds: int, seed: int = 0) -> set[int]:
    return {int(i) for t in range(1, rounds + 1) for i in SOME(t, N, seed)}


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_linear_models_run_bit_for_bit_as_with_all_samples_in_memory(batch, weighting):
    whole = Linear(Federated.from_clients(SIGNS), Logistic(), batch=batch, weighting=weighting, intercept=True)
    read = Reader(SIGNS)
    lazy = Linear(OnDemand(read, SIZES), Logistic(), batch=batch, weighting=weighting, intercept=True)
    for algorithm in (FedAvg(0.5, 3), Scaffold(0.5, 3)):
        one, other = (run(p, algorithm, 4, participation=SOME) for p in (whole, lazy))
        assert torch.equal(one.model, other.model)
        assert [row["gradients"] for row in one.rows] == [row["gradients"] for row in other.rows]
        assert "objective" in one.rows[-1]
        assert "objective" not in other.rows[-1]
    assert set(read.asked) == cohorts(4) | {0}  # client 0 is looked at for the form
    assert len(read.asked) == len(set(read.asked))  # and all of them stayed in memory
    x = one.model
    values = [Measures(p + Zero(), Stacked(N, p.d)).objective(x) for p in (whole, lazy)]
    assert values[0] == pytest.approx(values[1], abs=1e-14)


@pytest.mark.parametrize("kernels", ["numba", "torch"])
@pytest.mark.parametrize("form", [np.asarray, SparseRows.of])
def test_samples_do_not_outlive_their_round(form, kernels, monkeypatch):
    """Not even where the garbage collector does not come by."""
    monkeypatch.setenv("PROXFED_KERNELS", kernels)
    p = Linear(OnDemand(Reader([(form(A), b) for A, b in SIGNS]), SIZES), Logistic(), batch=3)
    r = run_of(p + Zero(), FedAvg(0.5, 3), Stacked(N, p.d), SOME)

    def alive() -> int:
        return sum(type(held) is Federated for held in gc.get_objects())

    r.round(1)
    gc.collect()
    gc.disable()
    try:
        before = alive()
        for t in (2, 3, 4):
            r.round(t)
        assert alive() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("form", [scipy.sparse.csr_array, SparseRows.of])
def test_sparse_samples_stay_sparse_as_they_are_read(form):
    clients = [(form(A * (A > 0)), b) for A, b in SIGNS]
    whole = Linear(Federated.from_clients(clients), Logistic(), batch=3, intercept=True)
    lazy = Linear(OnDemand(Reader(clients), SIZES), Logistic(), batch=3, intercept=True)
    assert isinstance(lazy.over([2, 0]).samples, SparseRows)
    one, other = (run(p, Scaffold(0.5, 3), 4, participation=SOME) for p in (whole, lazy))
    assert torch.equal(one.model, other.model)
    assert all(map(torch.equal, *(p.local(0, [1, 3]).value_and_grad(one.model) for p in (whole, lazy))))


def test_a_problem_over_some_begins_without_what_was_computed_from_others():
    """Not even from those in whose place it stands."""
    p = Linear(OnDemand(Reader(SIGNS), SIZES), Logistic())
    x = torch.ones(P, dtype=torch.float64)
    first, second = p.over([0, 1]), p.over([3, 4])
    first.local(0, range(2)).full_grad(x)
    assert len(first.samples) == 12
    assert len(second.samples) == 13
    A, b = SIGNS[3]
    expected = -(b / (1 + np.exp(b * (A @ x.numpy())))) @ A / len(b)
    assert second.local(0, range(1)).full_grad(x)[0].numpy() == pytest.approx(expected, rel=1e-13)
    assert p.gradient_size == sum(SIZES) * P // N


@pytest.mark.parametrize("batch", [None, 4])
def test_networks_run_bit_for_bit_as_with_all_samples_in_memory(batch):
    def net(channels, side, classes):
        return torch.nn.Sequential(torch.nn.Linear(P, 5), torch.nn.ReLU(), torch.nn.Linear(5, classes))

    data = Federated.from_clients(SAMPLES, classes=CLASSES, test=SAMPLES[0])
    lazy = OnDemand(Reader(SAMPLES), SIZES, classes=CLASSES, test=SAMPLES[0])
    for mechanism in ("batched", "loop"):
        one, other = (
            run(Neural(part, net, batch=batch, mechanism=mechanism), Scaffold(0.1, 3), 3, participation=SOME)
            for part in (data, lazy)
        )
        assert torch.equal(one.model, other.model)
        assert one.rows[-1]["accuracy"] == other.rows[-1]["accuracy"]


def test_images_become_rows_as_they_are_read():
    images = [
        (RNG.integers(0, 256, (m, 1, 2, 3)).astype(np.uint8), b) for m, (_, b) in zip(SIZES, SAMPLES, strict=True)
    ]
    data = Federated.from_clients(images, classes=CLASSES)
    one, other = (
        run(Linear(part, Softmax()), FedAvg(0.5, 2), 3, participation=SOME)
        for part in (data, OnDemand(Reader(images), SIZES, classes=CLASSES))
    )
    assert torch.equal(one.model, other.model)


def test_other_processes_read_for_themselves(tmp_path):
    def read(i):
        return SIGNS[i]

    p = Linear(OnDemand(read, SIZES, test=SIGNS[0]), Logistic(), batch=3)
    how = {"participation": SOME, "progress": False}
    one, other = (compare(p, {"scaffold": Scaffold(0.5, 3)}, 4, ranks=ranks, **how) for ranks in (1, 2))
    assert one.rows[-1]["test_loss"] == pytest.approx(other.rows[-1]["test_loss"], abs=1e-12)
    assert "objective and stationarity are not measured, since samples are read on demand" in str(one.status)


def test_what_is_kept_of_the_samples_is_bounded():
    size = sum(part.nbytes for part in SIGNS[3])
    read = Reader(SIGNS)
    data = OnDemand(read, SIZES, cache=2 * size)
    for i in (3, 8, 3, 1, 2, 3):
        data.client(i)
        assert data._latest.used <= 2 * size
    assert read.asked.count(3) <= 2
    none = OnDemand(read, SIZES, cache=0)
    p = Linear(none, Logistic())
    one = run(p, FedAvg(0.5, 2), 2, participation=SOME).model
    assert torch.equal(one, run(Linear(data, Logistic()), FedAvg(0.5, 2), 2, participation=SOME).model)
    assert none._latest.used == 0


def test_files(tmp_path):
    for i, (A, b) in enumerate(SIGNS):
        np.savez(tmp_path / f"{i:03}.npz", features=A, label=b)
    paths = sorted(tmp_path.glob("*.npz"))
    whole = Linear(Federated.from_clients(SIGNS), Logistic())
    for sizes in (None, SIZES):
        data = OnDemand.files(paths, sizes=sizes)
        assert data.sizes.tolist() == list(SIZES)
        assert torch.equal(
            run(Linear(data, Logistic()), FedAvg(0.5, 2), 2, participation=SOME).model,
            run(whole, FedAvg(0.5, 2), 2, participation=SOME).model,
        )
    np.savez(paths[4], features=SIGNS[4][0])
    data = OnDemand.files(paths, sizes=SIZES)
    with pytest.raises(InputError, match=r"004\.npz: has no array 'label'"):
        data.client(4)
    paths[5].unlink()
    with pytest.raises(InputError, match=r"005\.npz"):
        data.client(5)
    with pytest.raises(InputError, match=r"9 files but 2 sizes"):
        OnDemand.files(paths, sizes=[1, 2])


def test_a_folder_of_files_is_a_dataset(tmp_path):
    for i, (A, b) in enumerate(SAMPLES):
        np.savez(tmp_path / f"{i:03}.npz", features=A, target=b)
    np.savez(tmp_path / "held out.npz", features=SAMPLES[0][0], target=SAMPLES[0][1])
    settings = {"path": tmp_path, "label": "target", "classes": CLASSES, "test": tmp_path / "held out.npz"}
    data = load("client_files", **settings)
    assert data.sizes.tolist() == list(SIZES)
    assert run(Linear(data, Softmax()), FedAvg(0.5, 2), 2, participation=SOME).rows[-1]["accuracy"] > 0
    with pytest.raises(InputError, match=r"client_files: there is no \.npz file in"):
        load("client_files", path=tmp_path.parent / tmp_path.name / "..")
    with pytest.raises(InputError, match="is not a folder"):
        load("client_files", path=tmp_path / "nothing")
    with pytest.raises(InputError, match=r"limit = 5: the samples of .* are read on demand"):
        load("client_files", limit=5, **settings)


def test_statistics_are_of_sizes_alone():
    stats = ClientStats.of(OnDemand(Reader(SIGNS), SIZES))
    assert stats.sizes.tolist() == list(SIZES)
    assert stats.counts is None
    assert stats.checksum is None
    with pytest.raises(InputError, match="samples are read on demand, so there is nothing to count"):
        counts(OnDemand(Reader(SAMPLES), SIZES, classes=CLASSES))


def test_fewer_samples_are_evenly_spaced_among_a_clients_own():
    one = Federated.from_clients(SAMPLES, classes=CLASSES).thinned(5)
    other = OnDemand(Reader(SAMPLES), SIZES, classes=CLASSES).thinned(5)
    assert other.sizes.tolist() == one.sizes.tolist()
    for i in range(N):
        np.testing.assert_array_equal(other.client(i)[0], one.client(i)[0])


BAD = {
    "another shape": (
        [*SIGNS[:2], (np.ones((5, 2)), np.ones(5))],
        r"samples of client 2 have shape \(2,\), those of",
    ),
    "another size": ([*SIGNS[:2], (np.ones((4, P)), np.ones(4))], r"client 2 has features of shape \(4, 6\) and 4 la"),
    "not a number": (
        [*SIGNS[:2], (np.full((5, P), np.nan), np.ones(5))],
        "row 0 of client 2 has a feature that is",
    ),
    "another label": ([*SIGNS[:2], (np.ones((5, P)), np.full(5, 3.0))], r"takes labels -1 and \+1.*\(client 2\)"),
    "no pair": ([*SIGNS[:2], 7], r"what was read of client 2 is not \(features, labels\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_a_client_is_said_when_it_is_read(case):
    clients, said = BAD[case]
    p = Linear(OnDemand(Reader(clients), SIZES[:3]), Logistic())
    with pytest.raises(InputError, match=said):
        p.local(1, [1, 2]).full_grad(torch.zeros(P, dtype=torch.float64))


def test_what_needs_the_samples_of_all_clients_is_refused():
    data = OnDemand(Reader(SIGNS), SIZES)
    with pytest.raises(InputError, match="smoothness of f needs the samples of all clients, but data"):
        Linear(data, Logistic()).smoothness()
    with pytest.raises(InputError, match="class_weights = 'balanced' needs the samples of all clients"):
        Linear(data, Logistic(), class_weights="balanced")
    with pytest.raises(InputError, match=r"validation = 0\.2: the samples of data are read on demand"):
        chosen_rows(data, 0.2)
    with pytest.raises(InputError, match="data: client 1 holds no samples"):
        OnDemand(Reader(SIGNS), [5, 0])
    with pytest.raises(InputError, match="sizes must be a list of whole numbers"):
        OnDemand(Reader(SIGNS), [1.5])
    with pytest.raises(InputError, match="read = 3 must be a function"):
        OnDemand(3, SIZES)  # type: ignore[arg-type]
