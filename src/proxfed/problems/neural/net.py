"""A network apart from the clients' data: its module, the blocks of x, and how gradients are computed."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proxfed import keyed_random
from proxfed.errors import InputError, nearest, require
from proxfed.problems.losses import Loss
from proxfed.problems.neural.architectures import MODELS, Make
from proxfed.problems.neural.batch_norm import batch_norms
from proxfed.problems.neural.batched import Batched, dense_layers
from proxfed.problems.neural.bfloat16 import warn_if_slow
from proxfed.problems.neural.loop import Loop
from proxfed.problems.neural.network_clients import Engine
from proxfed.types import Block


@dataclass(frozen=True)
class Net:
    """What several f over different rows share. Two are equal if they are of the same model and settings."""

    model: str | Make | type[nn.Module] | nn.Module
    shape: tuple[int, ...]
    """Of a sample."""
    outputs: int
    """What the network gives for a sample: a score for each class, or one number."""
    loss: Loss
    dtype: torch.dtype
    device: str
    mechanism: str
    bfloat16: bool

    @property
    def name(self) -> str:
        return f"the model {self.model!r}" if isinstance(self.model, str) else "the model"

    def check(self, data: str) -> None:
        """It has parameters, takes the samples of these data, gives the scores that they need, and is a function of x
        and the samples alone."""
        require(len(self.blocks) > 0, f"{self.name} has no parameters to train")
        module = copy.deepcopy(self.template)
        samples = torch.zeros(2, *self.shape, dtype=self.dtype, device=self.device)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                scores = module.eval()(samples)
                before = _random_states()
                first, second = (module.train()(samples) for _ in range(2))
                drawn = before != _random_states()
        except (RuntimeError, ValueError) as e:
            why = str(e).splitlines()[0]
            raise InputError(f"{self.name} does not fit: samples of {data} have shape {self.shape} ({why})") from e
        require(
            scores.shape == (2, self.outputs),
            f"{self.name} gives scores of shape {tuple(scores.shape[1:])} for a sample, "
            f"but {data} needs ({self.outputs},)",
        )
        kinds = "as dropout does, that are not keyed by client and round: leave them out"
        require(not drawn, f"{self.name} draws random numbers in training, {kinds}")
        same = torch.allclose(first, second, equal_nan=True)
        require(same, f"{self.name} gives other scores for the same samples a second time: only they may matter")
        self.engine  # noqa: B018  the mechanism must fit the network

    def make(self, seed: int) -> nn.Module:
        """A new module; its parameters depend on the seed alone, and no other random numbers depend on them."""
        channels, side = (*self.shape, 1)[:2]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(keyed_random.keys(seed, "start", [0], 0)[0] >> np.uint64(1)))
            return new_module(self.model, channels, side, self.outputs).to(self.device, self.dtype)

    def initial(self, seed: int) -> Tensor:
        """x of a new module."""
        values = dict(self.make(seed).named_parameters())
        return torch.cat([values[block.name].detach().reshape(-1) for block in self.blocks])

    @cached_property
    def template(self) -> nn.Module:
        """The network; what it holds beside the parameters, such as constants, is the same in every run."""
        return self.make(0)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """One for each parameter that is trained."""
        blocks, end = [], 0
        for name, p in self.template.named_parameters():
            if p.requires_grad:
                blocks.append(Block(name, end, end + p.numel(), tuple(p.shape)))
                end = blocks[-1].stop
        return tuple(blocks)

    @cached_property
    def engine(self) -> Engine:
        layers = None if self.mechanism == "loop" or self.bfloat16 else dense_layers(self.template, self.blocks)
        if layers is not None:
            return Batched(layers, self.loss, self.blocks)
        require(self.mechanism != "batched", f"{self.name} is not a dense network: only those can be batched")
        if self.bfloat16:
            warn_if_slow(self.device)
        return Loop(self.template, self.blocks, self.loss, self.bfloat16)

    @cached_property
    def alone(self) -> bool:
        """A batch may have one sample: there is no batch norm."""
        return not batch_norms(self.template)


def _random_states() -> tuple[Any, ...]:
    """Of the generators that a module's `forward` may draw from without being given one."""
    return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state(legacy=False))


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
