"""The base of every f over clients' data: fields and their checks, sizes and weights, scores and labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from proxfed.data.federated import Dataset, Federated, as_features
from proxfed.data.on_demand import OnDemand
from proxfed.data.sparse_rows import Features, SparseRows
from proxfed.errors import InputError, at_least_one, non_negative, one_of, require
from proxfed.keyed_random import Ids
from proxfed.machine import device_here
from proxfed.problems.losses import Loss
from proxfed.types import Better, Measure, Smooth, directions

Samples = np.ndarray | SparseRows | Tensor

TRAINING = 10_000
"""Number of training samples, spread evenly over all clients' data, for 'train_loss' and 'train_accuracy'."""

DTYPES = {"float32": torch.float32, "float64": torch.float64}

CACHE = 1 << 17
"""Numbers of the clients' data that a full gradient reads at a time, so that both its products find them cached."""


class Piece(NamedTuple):
    """Some clients of one size: their positions among the ids, and the positions of their samples in the data."""

    where: slice | np.ndarray
    rows: slice | np.ndarray
    m: int


@dataclass(frozen=True, eq=False)
class EmpiricalRisk(Smooth):
    """f_i(x) = (1/m_i) sum_j loss(model(x; A_ij), b_ij) + (l2/2) |x|^2."""

    data: Federated = field()  # without a default, unlike that of a Smooth
    _: KW_ONLY
    l2: float = 0.0
    """Weight of (l2/2) |x|^2 inside every f_i."""
    batch: int | None = None
    """Samples of a stochastic gradient; None: full gradients."""
    weighting: str = "size"
    """p_i: 'size' for the client's share of all samples, counted with their weights; 'uniform': all count the same."""
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    """The device of tensors and gradients: 'cpu', 'cuda', 'mps', ...; 'auto': the first one available of cuda, mps
    (which has no float64) and cpu."""
    own_measures: Mapping[str, tuple[Callable[[np.ndarray, np.ndarray], float], Better]] = field(default_factory=dict)
    """Your own measures on test data: {name: (function of labels and predictions, "higher" or "lower")}, for example
    from sklearn.metrics."""
    numbers: np.ndarray | None = field(default=None, repr=False)
    """If these are only some of the clients (`over`): their numbers among all, which key their randomness."""

    def numbered(self, ids: Ids) -> Ids:
        """The numbers of these clients among all clients."""
        return ids if self.numbers is None else self.numbers[np.asarray(ids, np.int64)]

    def check(self) -> None:
        """Refuse invalid values of these fields, and replace names by the objects that they stand for."""
        name = type(self).__name__
        if not isinstance(self.data, Federated):
            given = isinstance(self.data, Dataset)
            what = "not split among clients yet" if given else "not a Federated, as load(...) returns"
            makers = "Federated.of and Federated.split make one"
            raise InputError(f"{name}: data = {_short(self.data)} is {what}; {makers}")
        non_negative(self, "l2")
        self._check_own_measures()
        one_of(self, "weighting", ("uniform", "size"))
        if self.batch is not None:
            at_least_one(self, "batch")
        dtype = DTYPES.get(self.dtype, self.dtype) if isinstance(self.dtype, str) else self.dtype
        require(dtype in DTYPES.values(), f"{name}: dtype = {self.dtype!r} is not one of {', '.join(DTYPES)}")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "device", device_here(self.device, dtype))

    def _check_own_measures(self) -> None:
        own, form = self.own_measures, '{"f1": (f1_score, "higher")}'
        require(isinstance(own, Mapping), f"own_measures = {own!r:.60} must be a dict such as {form}")
        for name, pair in own.items():
            fits = isinstance(pair, tuple) and len(pair) == 2 and callable(pair[0])
            require(fits, f"own_measures: {name!r} must be a function and a direction, as in {form}, not {pair!r:.60}")
            Measure(name, pair[1])

    # ---- shapes ------------------------------------------------------------------------------------------------

    @cached_property
    def d(self) -> int:  # type: ignore[override]
        return self.blocks[-1].stop

    @cached_property
    def n(self) -> int:  # type: ignore[override]
        return len(self.data) if self.data.window is None else len(self.data.window.weights)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(n,): the clients' numbers of samples; 0 if a client's samples are remote."""
        sizes = np.zeros(self.n, np.int64)
        sizes[self.data.here.start : self.data.here.stop] = self.data.sizes
        return sizes

    @cached_property
    def offsets(self) -> np.ndarray:
        """(n+1,)"""
        return np.concatenate(([0], np.cumsum(self.sizes))).astype(np.int64)

    def pieces(self, ids: Ids) -> list[Piece]:
        """Clients grouped by size, without padding, in pieces that fit in the cache."""
        who, pieces, width = np.asarray(ids, np.int64), [], prod(self.data.features.shape[1:])
        for m in np.unique(self.sizes[who]).tolist():
            same = np.flatnonzero(self.sizes[who] == m)
            count = min(max(1, len(same) * m * width // CACHE), len(same))
            for where in np.array_split(same, count):
                rows = (self.offsets[who[where], None] + np.arange(m)).reshape(-1)
                pieces.append(Piece(_together(where), _together(rows), m))
        return pieces

    @cached_property
    def weights(self) -> Tensor:
        """p_i, which sum to 1."""
        if self.data.window is not None:
            return torch.as_tensor(self.data.window.weights, dtype=self.dtype, device=self.device)
        p = np.ones(self.n) if self.weighting == "uniform" else self.weight_sums
        return torch.as_tensor(p / p.sum(), dtype=self.dtype, device=self.device)

    def _everybody(self, what: str) -> None:
        """Refuse `what`, which needs the samples of all clients, if some are remote or read on demand."""
        require(self.data.window is None, f"{what} needs the samples of all clients, but some are remote")
        here = not isinstance(self.data, OnDemand)
        require(here, f"{what} needs the samples of all clients, but {self.data.name} reads them on demand")

    def over(self, ids: Ids) -> Self:
        """The f of these clients alone, numbered from 0; their samples are read now."""
        assert isinstance(self.data, OnDemand)
        data = self.data.some(ids)
        try:
            self.criterion.outputs(data)
        except InputError as e:
            bad = next((i for i in ids if not self._fits_loss(i)), None)
            raise e if bad is None else InputError(f"{e} ({self.data.named(bad)})") from e
        return replace(self, data=data, numbers=np.asarray(ids, np.int64))

    def _fits_loss(self, i: int) -> bool:
        assert isinstance(self.data, OnDemand)
        try:
            self.criterion.outputs(self.data.some([i]))
        except InputError:
            return False
        return True

    @cached_property
    def weight_sums(self) -> np.ndarray:
        """The total weight of the samples of each local client."""
        return self.data.weight_sums

    @property
    @abstractmethod
    def criterion(self) -> Loss:
        """The loss, adapted to these data."""

    # ---- on test data ------------------------------------------------------------------------------------------

    @abstractmethod
    def _tested(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(scores (1, outputs, M), labels (1, M)) of the test samples."""

    @property
    def _by_client(self) -> dict[str, Better]:
        """The measures that are also known per client; empty if test samples do not belong to clients."""
        known = self.data.test_clients is not None and self.criterion.separate
        return directions(self.criterion.measures) if known else {}

    @property
    def measures(self) -> tuple[Measure | str, ...]:
        """The measures of the loss, and your own. If clients have test samples, also the worst client's value of the
        loss's first measure, and its standard deviation over clients."""
        if self.data.test is None:
            return ()
        first = [Measure(name, better) for name, better in self._by_client.items() if better][:1]
        spread = [
            m for each in first for m in (Measure(_worst(each.name), each.better), Measure(_spread(each.name), "lower"))
        ]
        own = [Measure(name, better) for name, (_, better) in self.own_measures.items()]
        return (*self.criterion.measures, *spread, *own)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """The measures on the test data."""
        if self.data.test is None:
            return {}
        s, b = self._tested(x)
        out = self.criterion.score(s, b)
        if first := next((name for name, better in self._by_client.items() if better), None):
            values = np.array([found[first] for found in self._of_clients(s, b).values()])
            worst = values.min() if self._by_client[first] == "higher" else values.max()
            out |= {_worst(first): float(worst), _spread(first): float(values.std())}
        if self.own_measures:
            labels, predicted = self.data.test[1], self._decide(s[0].mT).cpu().numpy()
            out |= {name: float(of(labels, predicted)) for name, (of, _) in self.own_measures.items()}
        return out

    def _of_clients(self, s: Tensor, b: Tensor) -> dict[int, dict[str, float]]:
        owners = self.data.test_clients
        assert owners is not None
        found = {}
        for i in np.unique(owners[owners >= 0]).tolist():
            rows = torch.from_numpy(np.flatnonzero(owners == i)).to(b.device)
            found[i] = self.criterion.score(s[..., rows], b[..., rows])
        return found

    def by_client(self, x: Tensor) -> dict[str, dict[str, float]]:
        """{client's name: the measures of the loss on its own test samples}."""
        given = self.data.test_clients is not None
        require(given, f"{self.data.name}: its test samples do not belong to clients (Federated.of: test, held_out)")
        require(self.criterion.separate, f"loss = {self.criterion!r} has no value per client")
        names = self.data.client_names or tuple(map(str, range(self.n)))
        return {names[i]: found for i, found in self._of_clients(*self._tested(x)).items()}

    def confusion(self, x: Tensor) -> np.ndarray:
        """The confusion matrix (classes, classes): test samples by true class (row) and predicted class (column)."""
        if self.data.test is None:
            raise InputError(f"{self.data.name} has no test samples")
        truth, predicted = self.data.test[1], self._decide(self._tested(x)[0][0].mT).cpu().numpy()
        count = self.data.classes
        if count is None:
            signs = bool(np.isin(truth, (-1, 1)).all() and np.isin(predicted, (-1, 1)).all())
            require(signs, f"{self.data.name} has numbers as labels, not classes: there is no confusion matrix")
            truth, predicted, count = truth > 0, predicted > 0, 2
        pairs = np.asarray(truth, np.int64) * count + np.asarray(predicted, np.int64)
        return np.bincount(pairs, minlength=count**2).reshape(count, count)

    # ---- on training data --------------------------------------------------------------------------------------

    @property
    def training_measures(self) -> tuple[Measure, ...]:
        here = self.data.window is None and not isinstance(self.data, OnDemand)
        found = directions(self.criterion.measures) if here and self.criterion.separate else {}
        return tuple(Measure(_of_training(name), better) for name, better in found.items())

    def training_score(self, x: Tensor) -> dict[str, float]:
        """The loss, without l2 and h, and the accuracy: means over at most `TRAINING` samples of all clients."""
        total = len(self.data.labels)
        k = min(TRAINING, total)
        rows = np.arange(k) * total // k
        scores = self._apply(x, np.asarray(self.data.features[rows]))
        found = self.criterion.score(scores.mT[None], self._labels(self.data.labels[rows])[None])
        return {_of_training(name): value for name, value in found.items()}

    @abstractmethod
    def _labels(self, labels: np.ndarray) -> Tensor:
        """The labels as a tensor of the dtype that the loss takes."""

    # ---- variants of the same f --------------------------------------------------------------------------------

    def over_rows(self, data: Federated) -> Self:
        """The same model over other data of the same kind."""
        return replace(self, data=data)

    def with_l2(self, l2: float) -> Self:
        return replace(self, l2=l2)

    # ---- using the model x -------------------------------------------------------------------------------------

    @abstractmethod
    def module(self, x: Tensor) -> nn.Module:
        """The model with the parameters x, in evaluation mode."""

    def state_dict(self, x: Tensor) -> dict[str, Tensor]:
        """The parameters x by their names, and the module's buffers."""
        return self.module(x).state_dict()

    def scores(self, x: Tensor, X: Samples) -> Samples:
        """The model's scores (k, outputs) for samples X, (k, ...): features as in the data set, before any scaling.
        Arrays give arrays, tensors give tensors."""
        return _like(X, self._apply(x, _array(X)))

    def predict(self, x: Tensor, X: Samples) -> Samples:
        """The model's labels (k,) for samples X: classes as in the data set, or numbers."""
        return _like(X, self._decide(self._apply(x, _array(X))))

    @abstractmethod
    def _apply(self, x: Tensor, X: Features) -> Tensor:
        """Scores (k, outputs)."""

    def _decide(self, scores: Tensor) -> Tensor:
        """Labels (k,)."""
        return self.criterion.predict(scores.mT[None])[0]

    def _fits(self, X: Features, shape: tuple[int, ...]) -> Features:
        fits = X.ndim > 1 and X.shape[1:] == shape
        require(
            fits, f"X has shape {X.shape}, but samples of {self.data.name} have shape {shape}, so it must be (k, ...)"
        )
        return X


def _worst(name: str) -> str:
    return f"{name}_worst_client"


def _spread(name: str) -> str:
    return f"{name}_spread"


def _together(index: np.ndarray) -> slice | np.ndarray:
    """Consecutive indices as a slice, which makes a view instead of a copy."""
    consecutive = len(index) > 0 and bool((np.diff(index) == 1).all())
    return slice(int(index[0]), int(index[-1]) + 1) if consecutive else index


def _of_training(name: str) -> str:
    """'test_loss' -> 'train_loss'."""
    return f"train_{name.removeprefix('test_')}"


def _array(X: Samples) -> Features:
    return X.detach().cpu().numpy() if isinstance(X, Tensor) else as_features(X)


def _like(X: Samples, result: Tensor) -> Samples:
    result = result.detach()
    return result if isinstance(X, Tensor) else result.cpu().numpy()


def _short(value: Any) -> str:
    shown = value.__name__ if isinstance(value, type) else repr(value)
    return shown if len(shown) <= 40 else f"a {type(value).__name__}"
