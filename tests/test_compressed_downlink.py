"""Algorithms whose messages down are compressed: laws, the paper's recursion, files, refusals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from proxfed import FedAvg, FedCEF, FedComposite, InputError, Study, compare, read_study, run
from proxfed.algorithms import ALGORITHMS, CompressedDownlink, Depositum, FedDyn, FedNAG, FedSpeed, Mime, Scaffold
from proxfed.compressors import QSGD, ErrorBoundedQuantiser, Identity, RandK, TopK
from proxfed.engine.compatibility import check_combination
from proxfed.harness.build import build_again
from proxfed.participation import Full, UniformSampling
from proxfed.testing import check_algorithm, toy
from proxfed.testing.runs import after, begun
from proxfed.types import Compressor, Facts, Local, Needs, Regulariser, Sends, Star, Stateless

from support import own_algorithms
from support.own_algorithms import Point

Q = ErrorBoundedQuantiser(0.1)

FITTING = [
    FedAvg(0.5, 3),
    FedComposite(1.5, 3),
    FedCEF(0.6, 3, compressor=Q),
    FedNAG(0.3, 0.5, 3),
    Scaffold(1.5, 3),
]
named = {"ids": lambda a: type(a).__name__}


@pytest.mark.parametrize("star", FITTING, **named)
def test_all_laws_hold(star: Star[Any, Any]) -> None:
    report = check_algorithm(CompressedDownlink(star, Q))
    assert report, report


@pytest.mark.parametrize("star", FITTING, **named)
def test_without_loss_nothing_changes(star: Star[Any, Any]) -> None:
    p = toy.problem() if star.needs.composite else toy.problem(toy.RIDGE)
    plain, wrapped = (
        after(begun(star, p), 20).model(),
        after(begun(CompressedDownlink(star, Identity()), p), 20).model(),
    )
    torch.testing.assert_close(wrapped, plain, rtol=0, atol=1e-12)


@dataclass(frozen=True)
class ProximalGradients(Star[Stateless, Point]):
    """x <- prox_{gamma h}(x - gamma mean grad f_i(what clients received))."""

    gamma: float
    needs: ClassVar[Needs] = Needs()
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=True)

    def largest_prox_step(self) -> float:
        return self.gamma

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Point]:
        return (), Point(x0)

    def client(self, own: Stateless, x: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, Tensor]:
        return own, f.grad(x, 0)

    def server(self, s: Point, g: Tensor, h: Regulariser, share: float) -> Point:
        return Point(h.prox(s.x - self.gamma * g, self.gamma))


@pytest.mark.parametrize("C", [TopK(k=3), Q], ids=repr)
def test_it_is_ef21_p(C: Compressor) -> None:
    """Around proximal gradient steps, as that algorithm is written on its own, byte by byte."""
    ours, theirs = CompressedDownlink(ProximalGradients(1.0), C), own_algorithms.CompressedDownlink(1.0, C)
    one, other = (after(begun(a, toy.problem()), 30) for a in (ours, theirs))
    torch.testing.assert_close(one.model(), other.model(), rtol=0, atol=1e-13)
    assert one.counters() == other.counters()


def test_clients_and_server_know_the_same() -> None:
    run = after(begun(CompressedDownlink(FedNAG(0.3, 0.5, 3), RandK(k=4)), toy.problem(toy.RIDGE)), 7)
    for rows, w in zip(run.state.clients.w, run.state.server.w, strict=True):
        assert len(rows) == toy.N
        assert all(torch.equal(row, w) for row in rows)
        assert w.norm() > 0


def test_only_vectors_are_compressed_and_every_byte_is_counted() -> None:
    """FedDualAvg sends a vector and a number down; in the first round the vector is already known."""
    star = ALGORITHMS["feddualavg"](eta=0.5, K=3)
    traffic = after(begun(CompressedDownlink(star, TopK(k=2)), toy.problem()), 3).network.traffic
    assert traffic.down == 3 * toy.N * (2 * (4 + 8) + 8)
    assert traffic.up == 3 * toy.N * toy.D * 8
    assert str(CompressedDownlink(star, TopK(k=2)).sends()) == "1 up, C(d) down, and 1 number down"


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: CompressedDownlink(FedDyn(1.0, 3, 0.1), Q), "FedDyn needs clients that have exactly what its server"),
        (lambda: CompressedDownlink(FedSpeed(1.0, 3, 8.0), Q), "FedSpeed needs clients that have exactly"),
        (lambda: CompressedDownlink(Mime(1.5, 3, 0.4), Q), "Mime needs clients that have exactly"),
        (lambda: CompressedDownlink(CompressedDownlink(FedAvg(1.0, 3), Q), Q), "CompressedDownlink compresses what it"),
        (lambda: CompressedDownlink(FedAvg, Q), "CompressedDownlink: star = .* must be an algorithm with a server"),
        (lambda: CompressedDownlink(Depositum(0.5), Q), "CompressedDownlink: star = .* must be an algorithm with a s"),
        (
            lambda: CompressedDownlink(FedAvg(1.0, 3), "top_k"),
            "CompressedDownlink: compressor = 'top_k' must be an obj",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(make: Any, says: str) -> None:
    with pytest.raises(InputError, match=f"^{says}") as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "participation", "says"),
    [
        (
            CompressedDownlink(FedCEF(1.0, 3), Q),
            UniformSampling(2),
            "FedCEF needs every client in every round, not Unif",
        ),
        (CompressedDownlink(FedAvg(1.0, 3), QSGD(1)), Full(), "CompressedDownlink needs a contractive compressor"),
        (CompressedDownlink(FedAvg(1.0, 3), TopK(k=11)), Full(), "TopK: k = 11 must be at most"),
        (CompressedDownlink(FedCEF(1.0, 3, compressor=QSGD(1)), Q), Full(), "FedCEF needs a contractive compressor"),
        (CompressedDownlink(FedNAG(1.0, 0.5, 3, "best"), Q), UniformSampling(2), "FedNAG needs every client"),
    ],
)
def test_what_cannot_run_is_refused_before_it_begins(algorithm: Any, participation: Any, says: str) -> None:
    p = toy.problem() if algorithm.needs.composite else toy.problem(toy.RIDGE)
    with pytest.raises(InputError, match=f"^{says}"):
        check_combination(p, algorithm, None, participation)


# ---- files -----------------------------------------------------------------------------------------------------------

EXPERIMENT = """
name = "downlink"
rounds = 6
[data]
name = "synthetic_binary"
clients = 4
samples = 20
features = 8
[problem]
name = "logistic"
l2 = 0.1
[[algorithms]]
name = "fedcef"
alpha = 1.0
K = 2
compressor = {name = "error_bounded", q2 = 0.1}
DOWN
"""


def study(tmp_path: Path, down: str = 'down = {name = "error_bounded", q2 = 0.05}') -> Study:
    file = tmp_path / "downlink.toml"
    file.write_text(EXPERIMENT.replace("DOWN", down))
    return read_study(file)


def test_a_file_says_it_in_one_line(tmp_path: Path) -> None:
    s = study(tmp_path)
    algorithm = s.entries["fedcef"].algorithm
    assert algorithm == CompressedDownlink(FedCEF(1.0, 2, compressor=Q), ErrorBoundedQuantiser(0.05))
    table = s.settings["algorithms"][0]
    assert table["name"] == "fedcef"
    assert table["down"] == {"name": "error_bounded", "q2": 0.05}
    assert build_again(table, 4).algorithm == algorithm


@pytest.mark.parametrize(
    ("down", "says"),
    [
        ('down = {name = "error_bounded"}', "algorithms.fedcef.down: the key 'q2' is missing"),
        ('down = {name = "error_bounded", q2 = 2.0}', "algorithms.fedcef.down: ErrorBoundedQuantiser: q2 = 2.0 must"),
        ('down = {name = "energy"}', "algorithms.fedcef.down: there is no 'energy'"),
        ("down = 0.1", "algorithms.fedcef.down = 0.1 must be a table with a name"),
        ('[[algorithms]]\nname = "feddyn"\neta = 1.0\nK = 2\nalpha = 0.1\ndown = {name = "top_k", k = 1}',
         "algorithms.feddyn.down: FedDyn needs clients that have exactly"),
        ('[[algorithms]]\nname = "dpsgd"\neta = 1.0\ntopology = {name = "ring"}\ndown = {name = "top_k", k = 1}',
         "algorithms.dpsgd.down: DPSGD has no server"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_refused_in_one_sentence(tmp_path: Path, down: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        study(tmp_path, down)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


BOTH = {"both": CompressedDownlink(FedCEF(0.6, 3, compressor=Q), Q), "up": FedCEF(0.6, 3, compressor=Q)}


def test_a_run_folder_is_read_again_and_simulated(tmp_path: Path) -> None:
    first = compare(toy.problem(), BOTH, 40, every=40, out=tmp_path / "run", timing="wan", progress=False)
    again = compare(toy.problem(), BOTH, 40, every=40, out=tmp_path / "run", timing="wan", progress=False)
    assert first.rows == again.rows
    both, up = (next(r for r in first.rows if r["round"] == 40 and r["algorithm"] == label) for label in BOTH)
    assert both["bytes_down"] < 0.25 * up["bytes_down"]
    assert both["bytes_up"] < 1.3 * up["bytes_up"]
    assert both["objective"] == pytest.approx(up["objective"], rel=1e-6)


@pytest.mark.slow
def test_over_two_ranks_it_is_the_same() -> None:
    one, two = (compare(toy.problem(), BOTH, 6, ranks=ranks, progress=False).rows for ranks in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert a["objective"] == pytest.approx(b["objective"], rel=1e-12)
        assert (a["bytes_up"], a["bytes_down"]) == (b["bytes_up"], b["bytes_down"])


def test_the_model_is_that_of_the_algorithm() -> None:
    p = toy.problem()
    found = run(p, CompressedDownlink(FedComposite(1.5, 3), Q), rounds=150, progress=False).model
    torch.testing.assert_close(found, toy.solution(), rtol=0, atol=1e-8)
