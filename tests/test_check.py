"""`proxfed check` as a stranger meets it, with a file of their own; and the laws of components, which can fail."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from proxfed import compressors, regularisers
from proxfed.compressors import COMPRESSORS, QSGD, Identity, RandK, TopK
from proxfed.regularisers import L1, MCP, Box
from proxfed.testing import check_compressor, check_regulariser, check_topology
from proxfed.topologies import TOPOLOGIES, Ring
from proxfed.types import Mixing, Packed

from support.cli import proxfed, refused
from support.regulariser_cases import CASES

MINE = '''
"""Algorithms of a stranger."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxfed.types import Facts, Needs, Sends, Star


class Server(NamedTuple):
    x: Tensor
    c: Tensor


@dataclass(frozen=True)
class Mine(Star):
    """Federated averaging of proximal gradient steps."""

    eta: float
    """Step size."""
    K: int
    """Local steps."""
    wrong: str = ""
    """What is to go wrong."""

    needs: ClassVar[Needs] = Needs()
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1), exact=False)

    def __post_init__(self):
        if self.K < 1:
            raise ValueError("K is at least 1")

    def largest_prox_step(self):
        return self.eta

    def init(self, x0, f, h):
        return (), Server(x0, 3 if self.wrong == "state" else torch.zeros_like(x0))

    def client(self, own, x, f, h):
        y = f.spread(x)
        for k in range(self.K):
            y = h.prox(y - self.eta * f.grad(y, k), self.eta)
        if self.wrong == "raises":
            y = y + {}["no key"]  # here
        return own, y

    def server(self, s, up, h, share):
        return s._replace(x=up)


@dataclass(frozen=True)
class Penalty:
    """weight |x|_1."""

    weight: float
    """In front of the norm."""

    weak_convexity = 0.0
    indicator = False

    def value(self, x):
        return self.weight * x.abs().sum(-1)

    def prox(self, v, step):
        return v.sign() * (v.abs() - step * self.weight).clamp_min(0)


def make(eta: float = 0.5):
    return Mine(eta, 2)
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


GOOD = ("check", "./mine.py:Mine", "-c", "eta=0.5", "-c", "K=3")


def laws(said: str) -> dict[str, tuple[str, str]]:
    return {law["law"]: (law["status"], law["says"]) for law in json.loads(said)["laws"]}


# ---- algorithms ------------------------------------------------------------------------------------------------------


def test_a_good_algorithm(capsys: Any, mine: Path) -> None:
    code, said, _ = proxfed(capsys, *GOOD)
    assert code == 0
    assert "Mine(eta=0.5, K=3, wrong=''), algorithm" in said
    assert re.search(r"ends where its facts say +holds", said)
    assert re.search(r"mixes as often as it sends +does not apply +it is no Graph", said)
    assert "17 laws hold, 3 do not apply." in said


def test_json(capsys: Any, mine: Path) -> None:
    code, said, _ = proxfed(capsys, *GOOD, "--format", "json")
    found = json.loads(said)
    assert code == 0
    assert (found["name"], found["kind"], found["holds"]) == ("./mine.py:Mine", "algorithm", True)
    assert {law["status"] for law in found["laws"]} == {"holds", "does not apply"}
    assert all(law["about"].endswith(".") for law in found["laws"])


def test_a_function_that_makes_one(capsys: Any, mine: Path) -> None:
    assert proxfed(capsys, "check", "./mine.py:make", "-c", "eta=0.4")[0] == 0


def test_a_module_beside_the_user(capsys: Any, mine: Path) -> None:
    mine.rename(mine.with_name("module_of_a_stranger.py"))
    assert proxfed(capsys, "check", "module_of_a_stranger:Mine", "-c", "eta=0.5", "-c", "K=3")[0] == 0


def test_a_registered_one_with_a_compressor(capsys: Any) -> None:
    compressor = ("-c", "compressor.name=top_k", "-c", "compressor.k=3")
    code, said, _ = proxfed(capsys, "check", "ef21", "-c", "gamma=2.0", *compressor, "--format", "json")
    assert code == 0, said


def test_divergence_is_told_with_a_hint(capsys: Any, mine: Path) -> None:
    code, said, err = proxfed(capsys, "check", "./mine.py:Mine", "-c", "eta=1e9", "-c", "K=3")
    assert code == 1
    assert re.search(r"ends where its facts say +does not hold +diverged: .* in round \d+; try smaller steps", said)
    assert "Traceback" not in said + err


def test_an_exception_is_told_with_its_line(capsys: Any, mine: Path) -> None:
    code, said, err = proxfed(capsys, *GOOD, "-c", "wrong=raises", "--format", "json")
    line = 1 + MINE[: MINE.index("# here")].count("\n")
    assert code == 1
    why = f"KeyError: 'no key' (mine.py, line {line}, in client)"
    assert laws(said)["ends where its facts say"] == ("does not hold", why)
    assert laws(said)["survives the configuration file"][0] == "holds"
    assert err == ""


def test_the_table_says_an_exception_once(capsys: Any, mine: Path) -> None:
    _, said, _ = proxfed(capsys, *GOOD, "-c", "wrong=raises")
    assert said.count("KeyError") == 1
    assert re.search(r"same seed same run +does not hold +the same", said)


def test_a_state_that_is_no_tensor(capsys: Any, mine: Path) -> None:
    _, said, _ = proxfed(capsys, *GOOD, "-c", "wrong=state", "--format", "json")
    status, why = laws(said)["keeps shapes and dtypes"]
    assert status == "does not hold"
    assert "states must be NamedTuples, or tuples, of tensors" in why


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["./mine.py:Mine"], "./mine.py:Mine: the key 'eta' is missing (float) and 'K' is missing (int)"),
        (["./mine.py:Mine", "-c", "eta=0.5"], "./mine.py:Mine: the key 'K' is missing (int)"),
        (["./mine.py:Mine", "-c", "eta=fast", "-c", "K=3"], "./mine.py:Mine.eta = 'fast' is not allowed"),
        (["./mine.py:Mine", "-c", "eta=1", "-c", "k=3"], "unknown key 'k'"),
        (["./mine.py:Mine", "-c", "eta"], "-c 'eta' is not of the form key=value"),
        (["./mine.py:Mine", "-c", "eta=1", "-c", "K=0"], "cannot be made: ValueError: K is at least 1 (mine.py, line"),
        (["./mine.py:Minne"], "has no 'Minne'; did you mean 'Mine'?"),
        (["./yours.py:Mine"], "there is no file"),
        (["no_such_module:Mine"], "cannot be imported: ModuleNotFoundError"),
        (["fedavgg"], "there is no 'fedavgg'; did you mean 'fedavg'?"),
        (["mine.py"], "mine.py is a file: name the class in it, mine.py:Class"),
        (["Mine"], "a class of your own is package.module:Class or ./file.py:Class"),
        (["./mine.py:Server"], "./mine.py:Server is neither an algorithm (a Star or a Graph) nor a regulariser"),
        (["./mine.py:Star"], "cannot be made: TypeError: Can't instantiate abstract class Star"),
        (["fedavg", "-c", "eta=-1", "-c", "K=3"], "fedavg: FedAvg: eta = -1"),
    ],
)
def test_bad_names_and_settings(capsys: Any, mine: Path, arguments: list[str], says: str) -> None:
    assert says in refused(capsys, "check", *arguments)


# ---- regularisers ----------------------------------------------------------------------------------------------------


def test_a_penalty_of_a_stranger(capsys: Any, mine: Path) -> None:
    code, said, _ = proxfed(capsys, "check", "./mine.py:Penalty", "-c", "weight=0.3")
    assert code == 0
    assert "regulariser" in said
    assert re.search(r"prox minimises +holds", said)


@pytest.mark.parametrize("name", regularisers.REGULARISERS)
def test_registered_regularisers_obey(name: str) -> None:
    for h in CASES[name]:
        assert (report := check_regulariser(h)), report


class ThresholdsTooLittle(L1):
    """Half."""

    def prox(self, v: Tensor, step: float) -> Tensor:
        return super().prox(v, step / 2)


class HardThreshold(L1):
    """The prox of something else."""

    def prox(self, v: Tensor, step: float) -> Tensor:
        return v * (v.abs() > step * self.weight)


class SaysConvex(MCP):
    """It is not."""

    weak_convexity = 0.0


class AcrossRows(L1):
    """Of the mean row."""

    def prox(self, v: Tensor, step: float) -> Tensor:
        return super().prox(v, step) + (0 if v.ndim == 1 else 1e-3 * v.mean(0))


class InPlace(L1):
    """It writes into v."""

    def prox(self, v: Tensor, step: float) -> Tensor:
        return v.copy_(super().prox(v, step))


class ScaledProjection(Box):
    """With a step that matters."""

    def prox(self, v: Tensor, step: float) -> Tensor:
        return super().prox(v * (1 - 0.01 * min(step, 1)), step)


@pytest.mark.parametrize(
    ("h", "law"),
    [
        (ThresholdsTooLittle(0.3), "prox minimises"),
        (HardThreshold(0.3), "prox is as smooth as the theory says"),
        (SaysConvex(0.4, 1.5), "is as convex as it says"),
        (AcrossRows(0.3), "rows are independent"),
        (InPlace(0.3), "keeps shapes and dtypes"),
        (ScaledProjection(-0.5, 0.8), "an indicator projects"),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, str) else "",
)
def test_a_broken_regulariser_is_caught(h: Any, law: str) -> None:
    assert law in check_regulariser(h).broken


# ---- compressors -----------------------------------------------------------------------------------------------------

SETTINGS: dict[str, list[Any]] = {
    "identity": [Identity()],
    "top_k": [TopK(0.25)],
    "rand_k": [RandK(k=3), RandK(k=3, unbiased=True)],
    "scaled_sign": [compressors.ScaledSign()],
    "qsgd": [QSGD(3), QSGD(4, bucket=5), QSGD(3, contractive=True)],
    "natural": [compressors.NaturalCompressor(), compressors.NaturalCompressor(contractive=True)],
    "low_rank": [compressors.LowRank(1, (3, 4)), compressors.LowRank(2, (3, 4), power=True)],
    "byte_budget": [compressors.ByteBudgetQuantiser(45)],
    "error_bounded": [compressors.ErrorBoundedQuantiser(q2) for q2 in (0.1, 0.7, 1e-4)],
}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_registered_compressors_obey(name: str) -> None:
    for C in SETTINGS[name]:
        assert (report := check_compressor(C)), report


class PromisesMuch(TopK):
    """More than it keeps."""

    def contraction(self, d: int) -> float:
        return super().contraction(d) - 0.1


class SaysUnbiased(RandK):
    """Without the factor d/k."""

    def __call__(self, v: Tensor, key: Any) -> Packed:
        return RandK(k=self.k)(v, key)


class CountsWrong(TopK):
    """A byte too few."""

    def __call__(self, v: Tensor, key: Any) -> Packed:
        p = super().__call__(v, key)
        return Packed(p.parts, p.dense, p.nbytes, p.best - 1, self)


class NamesAnother(TopK):
    """As if somebody else had packed it."""

    def __call__(self, v: Tensor, key: Any) -> Packed:
        return replace(super().__call__(v, key), compressor=Identity())


class ReadsWrong(TopK):
    """Rounded."""

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        return super().decode(messages, d, dtype).bfloat16().to(dtype)


class Repeats(TopK):
    """An entry twice."""

    def entries(self, messages: Sequence[bytes], d: int, dtype: Any) -> tuple[Tensor, Tensor]:
        index, value = super().entries(messages, d, dtype)
        return torch.cat([index, index[:, :1]], 1), torch.cat([value, value[:, :1]], 1)


class Keyless(Identity):
    """Noise that no key decides."""

    def __call__(self, v: Tensor, key: Any) -> Packed:
        return super().__call__(v + 1e-3 * torch.randn(v.shape, dtype=v.dtype), key)


@pytest.mark.parametrize(
    ("C", "law"),
    [
        (PromisesMuch(k=3), "loses no more than its contraction"),
        (SaysUnbiased(k=3, unbiased=True), "is unbiased if it says so"),
        (CountsWrong(k=3), "bytes promised are bytes encoded"),
        (ReadsWrong(k=3), "decode of encode is dense"),
        (Repeats(k=3), "decode of encode is dense"),
        (NamesAnother(k=3), "decode of encode is dense"),
        (Keyless(), "rows and keys decide"),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, str) else "",
)
def test_a_broken_compressor_is_caught(C: Any, law: str) -> None:
    assert law in check_compressor(C).broken


# ---- topologies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in TOPOLOGIES if name not in ("graph", "matrix")])
def test_registered_topologies_obey(capsys: Any, name: str) -> None:
    ring = 'of={name="ring", n=8}'
    more = {"random_regular": ["degree=3"], "erdos_renyi": ["p=0.6"], "random_groups": ["size=3"]}
    more |= {"spanning_tree": [ring], "every": [ring, "k=3"]}
    more |= {"link_failures": [ring, "p=0.3"], "matrices": ["matrices=[[[0.5, 0.5], [0.5, 0.5]]]", "n=2"]}
    changes = [part for change in more.get(name, []) for part in ("-c", change)]
    code, said, _ = proxfed(capsys, "check", name, *changes)
    assert code == 0, said


def from_dense(W: np.ndarray) -> Mixing:
    return Mixing(len(W), *np.nonzero(W), W[np.nonzero(W)])


@dataclass(frozen=True)
class Listener:
    """Everybody listens to client 0.

    n   clients
    """

    n: int
    period: ClassVar[int] = 1
    doubly_stochastic: ClassVar[bool] = True

    def W(self, t: int) -> Mixing:
        W = np.eye(self.n) / 2
        W[:, 0] += 0.5
        return from_dense(W)

    def spectral_gap(self) -> float:
        return 0.5


class TooMuch(Ring):
    """Rows that sum to more than one."""

    def W(self, t: int) -> Mixing:
        W = super().W(t)
        return W._replace(weight=1.1 * W.weight)


class InPairs(Ring):
    """Neighbours average two by two, and nobody else."""

    def W(self, t: int) -> Mixing:
        return from_dense(np.kron(np.eye(self.n // 2), np.full((2, 2), 0.5)))


class Restless(Ring):
    """Another one in every round, but period = 1."""

    def W(self, t: int) -> Mixing:
        return Ring(self.n, weights="lazy").W(0) if t % 2 else super().W(0)


@pytest.mark.parametrize(
    ("topology", "law"),
    [
        (Listener(5), "columns sum to one if it says so"),
        (Listener(5), "spectral gap is as stated"),
        (TooMuch(5), "rows of W average"),
        (Restless(5), "rounds repeat"),
        (InPairs(6), "everybody is reached"),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, str) else "",
)
def test_a_broken_topology_is_caught(topology: Any, law: str) -> None:
    assert law in check_topology(topology).broken
