"""Neural networks: any torch module over the clients' data, with its parameters flattened to rows.

    f_i(x) = (1/m_i) sum_j loss(network(x; A_ij), b_ij) + (l2/2) |x|^2

Random numbers of the network, such as dropout masks, are used in minibatch gradients only: each draw of a client has
its own. Values and full gradients use the network without them.

x is the concatenation of the parameter tensors, each a named block. The gradients of many clients are computed either
stacked (`batched.py`) or one client after the other on all cores (`loop.py`); this affects only the speed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proxfed.data.on_demand import OnDemand
from proxfed.data.sparse_rows import Features, SparseRows
from proxfed.errors import InputError, one_of, positive, require
from proxfed.keyed_random import Ids, Key
from proxfed.problems.empirical_risk import EmpiricalRisk
from proxfed.problems.fetched import Fetched
from proxfed.problems.losses import Loss, OneHot, Squared
from proxfed.problems.named_losses import LOSSES, find_loss
from proxfed.problems.neural.architectures import Make
from proxfed.problems.neural.batch_norm import remember
from proxfed.problems.neural.inputs import NORMALISATIONS, Affine, Inputs
from proxfed.problems.neural.loop import Loop, parameters
from proxfed.problems.neural.net import Net
from proxfed.problems.neural.network_clients import CHUNK, Clients
from proxfed.problems.own_loss import OwnLoss, OwnLossOfClasses, as_own
from proxfed.types import Block, Local, Smoothness

STATISTICS = 2048
"""Number of training samples, spread evenly over all clients' data, for the statistics of batch norm in evaluation."""


@dataclass(frozen=True, eq=False)
class Neural(EmpiricalRisk):
    """f of a neural network over the clients' data."""

    model: str | Make | type[nn.Module] | nn.Module
    """A name of the registry `MODELS`, a function (channels, side, classes) -> module, or a module class without
    arguments: the initial parameters then depend on the seed. Or a module: it is copied, and every run starts from its
    parameters."""
    loss: Loss | str | Callable[..., Any] = "cross_entropy"
    """An object such as CrossEntropy(), or its name: 'squared', 'logistic', 'cross_entropy', 'one_hot', 'mse'. With
    'squared' a class is one-hot: |s - e_b|^2 / 2; 'mse' is the mean over the outputs instead, as in torch's MSELoss. Or
    a function or module of (scores, labels), such as nn.CrossEntropyLoss(weight=...): f_i is its mean over samples."""
    _: KW_ONLY
    batch: int | None = None
    """Samples of a stochastic gradient, in shuffled epochs; None: full gradients."""
    clip: float | None = None
    """Gradient clipping: the largest norm of a client's gradient of the loss, before weight decay."""
    normalise: str = "unit"
    """'unit' scales bytes to 0 .. 1; 'standard' gives each channel mean 0 and variance 1 over all training data."""
    augment: str | None = None
    """'crop_flip': minibatches of images are padded by 4, cropped at random and mirrored every other time."""
    dtype: torch.dtype = torch.float32
    """float32 by default, for speed."""
    channels_last: bool = True
    """Whether images have the channels as the last axis in memory, which is fastest for convolutions on a CPU."""
    bfloat16: bool = False
    """Whether forward and backward use torch's autocast to bfloat16; x and the gradients keep their dtype. A warning
    says if this is slower, as on a CPU without bfloat16."""
    mechanism: str = "auto"
    """How clients' gradients are computed: 'batched' (dense networks only), 'loop', or 'auto', the faster one."""
    train_measures: bool = False
    """Whether to compute objective and stationarity at every evaluation, by passes over all training data."""
    net: Net = field(default=None, repr=False)  # type: ignore[assignment]
    """Made from the fields above, and shared by the same f over other data."""

    def __post_init__(self) -> None:
        self.check()
        object.__setattr__(self, "loss", as_own(self.loss) or find_loss(self.loss))
        plain = self.data.sample_weights is None
        require(plain, f"Neural: {self.data.name} has sample weights, which only linear models take")
        dense = not isinstance(self.data.features, SparseRows)
        require(dense, f"Neural: {self.data.name} has sparse features, which only linear models take")
        require(
            self.criterion.separate, f"Neural: loss = {self.loss!r} is for linear models: it needs all samples at once"
        )
        if isinstance(self.model, nn.Module) and (self.net is None or self.model is not self.net.model):
            object.__setattr__(self, "model", copy.deepcopy(self.model))  # the caller may train the original further
        one_of(self, "normalise", NORMALISATIONS)
        if self.normalise == "standard":
            self._everybody("normalise = 'standard'")
        one_of(self, "augment", (None, "crop_flip"))
        one_of(self, "mechanism", ("auto", "batched", "loop"))
        if self.clip is not None:
            positive(self, "clip")
        if self.augment is not None:
            require(self.batch is not None, f"augment = {self.augment!r} changes minibatches: give a batch")
            images = f"takes images, but samples of {self.data.name} have shape {self.shape}"
            require(len(self.shape) == 3, f"augment = {self.augment!r} {images}")
        net = Net(
            self.model, self.shape, self.outputs, self.criterion, self.dtype, self.device, self.mechanism,
            self.bfloat16, self._whole,
        )  # fmt: skip
        if net != self.net:
            net.check(self.data.name, int(np.max(self.data.features, initial=0)) if self._whole else 0)
            object.__setattr__(self, "net", net)
        if not self.net.alone:
            self._check_batch_norm()

    def _check_batch_norm(self) -> None:
        require(self.batch != 1, f"{self.net.name} has batch norm, which needs batches of at least 2")
        read = not isinstance(self.data, OnDemand)
        require(read, f"{self.net.name} has batch norm, which needs all clients' samples, but they are read on demand")
        alone = next((i for i in self.data.here if self.sizes[i] == 1), None)
        require(alone is None, f"{self.net.name} has batch norm, but client {alone} has a single sample")

    # ---- shapes ------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        return tuple(self.data.features.shape[1:])

    @property
    def _whole(self) -> bool:
        """Whether samples are whole numbers, such as tokens; bytes are images."""
        dtype = np.asarray(self.data.features).dtype
        return self.normalise == "unit" and dtype.kind in "iu" and dtype != np.uint8

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """One block per trained parameter."""
        return self.net.blocks

    # ---- data --------------------------------------------------------------------------------------------------

    @cached_property
    def _signs(self) -> bool:
        """Whether labels are -1 and +1: two classes."""
        return self.data.classes is None and bool(np.isin(self.data.labels, (-1, 1)).all())

    @cached_property
    def _classes(self) -> int | None:
        return 2 if self._signs else self.data.classes

    @cached_property
    def criterion(self) -> Loss:
        assert isinstance(self.loss, Loss)  # found by its name
        if isinstance(self.loss, OwnLoss) and self.loss.width is None and self._classes is not None:
            return OwnLossOfClasses(self.loss.call)
        return OneHot() if isinstance(self.loss, Squared) and self._classes is not None else self.loss

    @cached_property
    def outputs(self) -> int:
        """Outputs per sample: a score per class, or one number."""
        if not self.criterion.classes:
            return self.criterion.outputs(self.data)
        name = next((name for name, loss in LOSSES.items() if loss == self.loss), type(self.loss).__name__)
        numbers = f"loss = {name!r} takes classes, but {self.data.name} has numbers: 'squared' fits those"
        require(self._classes is not None, numbers)
        return self._classes or 0

    def _labels(self, labels: np.ndarray) -> Tensor:
        if not self.criterion.classes:
            return torch.tensor(labels, dtype=self.dtype, device=self.device)
        return torch.tensor(labels > 0 if self._signs else labels, dtype=torch.int64, device=self.device)

    @cached_property
    def _affine(self) -> Affine:
        return NORMALISATIONS[self.normalise](np.asarray(self.data.features))

    def _inputs(self, features: np.ndarray) -> Inputs:
        channels_last = self.channels_last and isinstance(self.net.engine, Loop)
        return Inputs.of(features, self._affine, self.net.takes, self.device, channels_last)

    @cached_property
    def A(self) -> Inputs:
        return self._inputs(np.asarray(self.data.features))

    @cached_property
    def b(self) -> Tensor:
        return self._labels(self.data.labels)

    def samples(self, rows: np.ndarray, key: Key | None = None) -> tuple[Tensor, Tensor]:
        """The samples (g * m, ...) of rows (g, m), and their labels (g, m)."""
        index = torch.from_numpy(rows.reshape(-1)).to(self.device)
        return self.A(index, key), self.b.index_select(0, index).view(rows.shape)

    @cached_property
    def _test(self) -> tuple[Inputs, Tensor] | None:
        if self.data.test is None:
            return None
        features, labels = self.data.test
        return self._inputs(np.asarray(features)), self._labels(labels)

    # ---- the protocol ------------------------------------------------------------------------------------------

    def local(self, t: int, ids: Ids, seed: int = 0) -> Local:
        if isinstance(self.data, OnDemand):
            return Fetched(self, t, ids, seed)
        self.A, self.b  # noqa: B018  made before several threads ask for them
        return Clients(self, t, ids, seed)

    def initial(self, seed: int) -> Tensor:
        return self.net.initial(seed)

    def smoothness(self) -> Smoothness:
        raise InputError("the smoothness of a neural network is not known: give step sizes as numbers")

    def fewer(self, samples: int) -> Neural:
        if self.sizes.max() <= samples:
            return self
        other = self.over_rows(self.data.thinned(samples))
        other.__dict__.update(weights=self.weights, _affine=self._affine)  # computed from all samples
        return other

    def _tested(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert self._test is not None
        A, b = self._test
        return self._forward(x, A).mT[None], b[None]

    # ---- using the model x -------------------------------------------------------------------------------------

    def module(self, x: Tensor) -> nn.Module:
        """The network with these parameters, in eval mode; batch norm has the statistics of training data at x.

        Its inputs must be normalised like the training data; `scores` and `predict` do that themselves.
        """
        module = copy.deepcopy(self.net.template).eval()
        values = {name: part.to(self.device, self.dtype) for name, part in parameters(x, self.blocks).items()}
        module.load_state_dict(values, strict=False)
        if not self.net.alone:
            k = min(STATISTICS, len(self.A))
            remember(module, self.A(torch.arange(k, device=self.device) * len(self.A) // k))
        return module

    def _forward(self, x: Tensor, A: Inputs) -> Tensor:
        """Scores (k, outputs), computed in chunks."""
        module = self.module(x)
        with torch.no_grad():
            return torch.cat([module(A(rows)) for rows in torch.arange(len(A), device=self.device).split(CHUNK)])

    def _apply(self, x: Tensor, X: Features) -> Tensor:
        return self._forward(x, self._inputs(np.asarray(self._fits(X, self.shape))))

    def _decide(self, scores: Tensor) -> Tensor:
        labels = super()._decide(scores)
        return 2 * labels - 1 if self._signs and self.criterion.classes else labels
