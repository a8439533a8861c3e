"""Neural networks: any module over the clients' data, its parameters flattened to rows.

    f_i(x) = (1/m_i) sum_j loss(network(x; A_ij), b_ij) + (l2/2) |x|^2

x holds the parameter tensors one after the other, each a block with its name. How the gradients of many clients are
computed, stacked (`batched.py`) or one after the other over the cores (`loop.py`), changes the speed and nothing else.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from proxfed import keyed_random
from proxfed.data.federated import Federated
from proxfed.data.on_demand import OnDemand
from proxfed.data.sparse import Features, SparseRows
from proxfed.errors import InputError, nearest, one_of, positive, require
from proxfed.keyed_random import Ids, Key
from proxfed.problems.architectures import MODELS, Make
from proxfed.problems.base import DataProblem
from proxfed.problems.batch_norm import batch_norms, remember
from proxfed.problems.batched import Batched, dense_layers
from proxfed.problems.bfloat16 import warn_if_slow
from proxfed.problems.fetched import Fetched
from proxfed.problems.inputs import NORMALISATIONS, Affine, Inputs
from proxfed.problems.loop import Loop, parameters
from proxfed.problems.losses import Loss, OneHot, Squared
from proxfed.problems.network_clients import CHUNK, Clients, Engine
from proxfed.regularisers import Zero
from proxfed.types import Block, Local, Regulariser, Smoothness

STATISTICS = 2048
"""Training samples, spread evenly over all clients' data, whose statistics batch norm is evaluated with."""


@dataclass(frozen=True, eq=False)
class Model(DataProblem):
    """A neural network over the clients' data."""

    data: Federated = field()  # without a default, unlike that of a Problem
    model: str | Make | type[nn.Module] | nn.Module = field()
    """A name of the registry `MODELS`, a function (channels, side, classes) -> module, or a class of modules without
    arguments: then the first parameters depend on the seed. Or a module: it is copied, and every run begins with the
    parameters that it has."""
    loss: Loss | str = "cross_entropy"
    """An object such as CrossEntropy(), or its name: 'squared', 'logistic', 'cross_entropy', 'one_hot', 'mse'. With
    'squared' a class is one-hot: |s - e_b|^2 / 2; 'mse' has the mean over the outputs instead, as torch's MSELoss."""
    h: Regulariser = Zero()
    l2: float = 0.0
    """Weight of (l2/2) |x|^2 inside every f_i."""
    batch: int | None = None
    """Samples of a stochastic gradient, in shuffled epochs; None: full gradients."""
    weighting: str = "uniform"
    """p_i: 'uniform', or 'size' for the client's part of all samples."""
    clip: float | None = None
    """Largest norm of a client's gradient of the loss; longer ones are scaled down, before the weight decay."""
    normalise: str = "unit"
    """'unit': bytes become 0 .. 1; 'standard': each channel gets mean 0 and variance 1 over all training data."""
    augment: str | None = None
    """'crop_flip': minibatches of images are padded by 4, cropped at random and mirrored every other time."""
    dtype: torch.dtype = torch.float32
    """float32 by default: networks need the speed more than the digits."""
    device: str = "cpu"
    channels_last: bool = True
    """Images with the channels as the last axis in memory, which convolutions on a CPU like best."""
    bfloat16: bool = False
    """Forward and backward in bfloat16 where torch finds it safe; x and the gradients keep their dtype. Where that is
    slower, as on a CPU that does not know bfloat16, a warning says so."""
    mechanism: str = "auto"
    """How clients' gradients are computed: 'batched', for dense networks, 'loop', or 'auto': the faster one."""
    train_measures: bool = False
    """Objective and stationarity at every evaluation, which cost passes over all training data."""
    x0: Tensor | None = None
    """Where it begins; None: at the parameters that the module is made with."""

    _without_samples: ClassVar[tuple[str, ...]] = (
        *DataProblem._without_samples, "template", "engine", "alone", "outputs", "_signs", "_classes", "_affine"
    )  # fmt: skip

    def __post_init__(self) -> None:
        self.check()
        plain = self.data.sample_weights is None
        require(plain, f"Model: {self.data.name} has sample weights, which only linear models take")
        dense = not isinstance(self.data.features, SparseRows)
        require(dense, f"Model: {self.data.name} has sparse features, which only linear models take")
        require(
            self.criterion.separate, f"Model: loss = {self.loss!r} is for linear models: it needs all samples at once"
        )
        if isinstance(self.model, nn.Module):  # its owner may go on with it
            object.__setattr__(self, "model", copy.deepcopy(self.model))
        one_of(self, "normalise", NORMALISATIONS)
        if self.normalise == "standard":
            self._everybody("normalise = 'standard'")
        one_of(self, "augment", (None, "crop_flip"))
        one_of(self, "mechanism", ("auto", "batched", "loop"))
        if self.clip is not None:
            positive(self, "clip")
        if self.augment is not None:
            require(self.batch is not None, f"augment = {self.augment!r} changes minibatches: give a batch")
            require(len(self.shape) == 3, f"augment = {self.augment!r} takes images, but {self._samples}")
        require(len(self.blocks) > 0, f"{self._name} has no parameters to train")
        self._check_module()
        self.engine  # noqa: B018  the mechanism must fit the network
        if self.x0 is not None:
            self._check_x0(self.x0)

    def _check_module(self) -> None:
        """The network takes the samples, gives a score for each class, and is a function of x and the samples alone."""
        module = copy.deepcopy(self.template).eval()
        try:
            with torch.no_grad():
                scores = module(torch.zeros(2, *self.shape, dtype=self.dtype, device=self.device))
        except (RuntimeError, ValueError) as e:
            raise InputError(f"{self._name} does not fit: {self._samples} ({str(e).splitlines()[0]})") from e
        require(
            scores.shape == (2, self.outputs),
            f"{self._name} gives scores of shape {tuple(scores.shape[1:])} for a sample, "
            f"but {self.data.name} needs ({self.outputs},)",
        )
        drops = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in module.modules())
        require(not drops, f"{self._name} has dropout, whose randomness is not keyed by client and round: leave it out")
        if batch_norms(module):
            require(self.batch != 1, f"{self._name} has batch norm, which needs batches of at least 2")
            read = not isinstance(self.data, OnDemand)
            require(
                read, f"{self._name} has batch norm, with statistics of all clients' samples, which are read on demand"
            )
            alone = next((i for i in self.data.here if self.sizes[i] == 1), None)
            require(alone is None, f"{self._name} has batch norm, but client {alone} has a single sample")

    @property
    def _name(self) -> str:
        return f"the model {self.model!r}" if isinstance(self.model, str) else "the model"

    @property
    def _samples(self) -> str:
        return f"samples of {self.data.name} have shape {self.shape}"

    # ---- shapes ------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample."""
        return tuple(self.data.features.shape[1:])

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """One for each parameter that is trained."""
        blocks, end = [], 0
        for name, p in self.template.named_parameters():
            if p.requires_grad:
                blocks.append(Block(name, end, end + p.numel(), tuple(p.shape)))
                end = blocks[-1].stop
        return tuple(blocks)

    # ---- data --------------------------------------------------------------------------------------------------

    @cached_property
    def _signs(self) -> bool:
        """Labels are -1 and +1: two classes."""
        return self.data.classes is None and bool(np.isin(self.data.labels, (-1, 1)).all())

    @cached_property
    def _classes(self) -> int | None:
        return 2 if self._signs else self.data.classes

    @cached_property
    def criterion(self) -> Loss:
        assert isinstance(self.loss, Loss)  # `check` has found it by its name
        return OneHot() if isinstance(self.loss, Squared) and self._classes is not None else self.loss

    @cached_property
    def outputs(self) -> int:
        """What the network gives for a sample: a score for each class, or one number."""
        if not self.criterion.classes:
            return self.criterion.outputs(self.data)
        require(self._classes is not None, f"cross_entropy needs classes, but {self.data.name} has numbers")
        return self._classes or 0

    def _labels(self, labels: np.ndarray) -> Tensor:
        if not self.criterion.classes:
            return torch.tensor(labels, dtype=self.dtype, device=self.device)
        return torch.tensor(labels > 0 if self._signs else labels, dtype=torch.int64, device=self.device)

    @cached_property
    def _affine(self) -> Affine:
        return NORMALISATIONS[self.normalise](np.asarray(self.data.features))

    def _inputs(self, features: np.ndarray) -> Inputs:
        channels_last = self.channels_last and isinstance(self.engine, Loop)
        return Inputs.of(features, self._affine, self.dtype, self.device, channels_last)

    @cached_property
    def A(self) -> Inputs:
        return self._inputs(np.asarray(self.data.features))

    @cached_property
    def b(self) -> Tensor:
        return self._labels(self.data.labels)

    def samples(self, rows: np.ndarray, key: Key | None = None) -> tuple[Tensor, Tensor]:
        """The samples of rows (g, m): (g * m, ...), and their labels (g, m)."""
        index = torch.from_numpy(rows.reshape(-1)).to(self.device)
        return self.A(index, key), self.b.index_select(0, index).view(rows.shape)

    @cached_property
    def _test(self) -> tuple[Inputs, Tensor] | None:
        if self.data.test is None:
            return None
        features, labels = self.data.test
        return self._inputs(np.asarray(features)), self._labels(labels)

    # ---- the network -------------------------------------------------------------------------------------------

    def _make(self, seed: int) -> nn.Module:
        """A new module; its parameters depend on the seed alone, and nobody else's random numbers on them."""
        channels, side = (*self.shape, 1)[:2]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(keyed_random.keys(seed, "start", [0], 0)[0] >> np.uint64(1)))
            return new_module(self.model, channels, side, self.outputs).to(self.device, self.dtype)

    @cached_property
    def template(self) -> nn.Module:
        """The network; what it holds beside the parameters, such as constants, is the same in every run."""
        return self._make(0)

    @cached_property
    def engine(self) -> Engine:
        layers = None if self.mechanism == "loop" or self.bfloat16 else dense_layers(self.template, self.blocks)
        if layers is not None:
            return Batched(layers, self.criterion, self.blocks)
        require(self.mechanism != "batched", f"{self._name} is not a dense network: only those can be batched")
        if self.bfloat16:
            warn_if_slow(self.device)
        return Loop(self.template, self.blocks, self.criterion, self.bfloat16)

    @cached_property
    def alone(self) -> bool:
        """A batch may have one sample: there is no batch norm."""
        return not batch_norms(self.template)

    # ---- the protocol ------------------------------------------------------------------------------------------

    def local(self, t: int, ids: Ids, seed: int = 0) -> Local:
        if isinstance(self.data, OnDemand):
            return Fetched(self, t, ids, seed)
        self.A, self.b  # noqa: B018  made before several threads ask for them
        return Clients(self, t, ids, seed)

    def initial(self, seed: int) -> Tensor:
        values = dict(self._make(seed).named_parameters())
        return torch.cat([values[block.name].detach().reshape(-1) for block in self.blocks])

    def smoothness(self) -> Smoothness:
        raise InputError("the smoothness of a neural network is not known: give step sizes as numbers")

    def fewer(self, samples: int) -> Model:
        if self.sizes.max() <= samples:
            return self
        other = self._with(data=self.data.thinned(samples))
        other.__dict__.update(weights=self.weights, _affine=self._affine)  # those of all samples
        return other

    @property
    def measures(self) -> tuple[str, ...]:
        return () if self.data.test is None else self.criterion.measures

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """Accuracy and loss on the test data."""
        if self._test is None:
            return {}
        A, b = self._test
        return self.criterion.score(self._forward(x, A).mT[None], b[None])

    # ---- from x back to the user -------------------------------------------------------------------------------

    def module(self, x: Tensor) -> nn.Module:
        """The network with these parameters, in eval mode. Batch norm: with the statistics of training data under x.

        It takes samples that are normalised as the problem says, which `scores` and `predict` see to.
        """
        module = copy.deepcopy(self.template).eval()
        values = {name: part.to(self.device, self.dtype) for name, part in parameters(x, self.blocks).items()}
        module.load_state_dict(values, strict=False)
        if not self.alone:
            k = min(STATISTICS, len(self.A))
            remember(module, self.A(torch.arange(k, device=self.device) * len(self.A) // k))
        return module

    def _forward(self, x: Tensor, A: Inputs) -> Tensor:
        """Scores (k, outputs), a chunk at a time."""
        module = self.module(x)
        with torch.no_grad():
            return torch.cat([module(A(rows)) for rows in torch.arange(len(A), device=self.device).split(CHUNK)])

    def _apply(self, x: Tensor, X: Features) -> Tensor:
        return self._forward(x, self._inputs(np.asarray(self._fits(X, self.shape))))

    def _decide(self, scores: Tensor) -> Tensor:
        labels = super()._decide(scores)
        return 2 * labels - 1 if self._signs and self.criterion.classes else labels


def new_module(model: Any, channels: int, side: int, classes: int) -> nn.Module:
    """What a `model` stands for; random numbers are torch's."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if isinstance(model, type) and issubclass(model, nn.Module):
        return _called(model, ())
    known = callable(model) or model in MODELS
    require(known, f"there is no model {model!r}; {nearest(str(model), MODELS)}")
    return _called(MODELS[model] if isinstance(model, str) else model, (channels, side, classes))


def _called(make: Callable[..., Any], arguments: tuple[int, ...]) -> nn.Module:
    try:
        inspect.signature(make).bind(*arguments)
    except TypeError as e:
        takes = "no arguments" if not arguments else "(channels, side, classes)"
        raise InputError(f"model = {make} must take {takes}: {e}") from e
    module = make(*arguments)
    require(isinstance(module, nn.Module), f"model: the function gives a {type(module).__name__}, not an nn.Module")
    return module
