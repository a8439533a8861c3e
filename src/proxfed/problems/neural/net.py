"""A network without data: its module, the blocks of x, and the computation of gradients."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

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
from proxfed.problems.neural.keyed_draws import KeyedDraws
from proxfed.problems.neural.loop import Loop
from proxfed.problems.neural.network_clients import Engine
from proxfed.types import Block

TRIED = (RuntimeError, ValueError, IndexError, TypeError)
"""Exceptions that a module may raise if samples do not fit."""


class Tried(NamedTuple):
    """The results of a trial forward and backward pass."""

    values: Tensor
    """The scores."""
    draws: bool
    """Whether torch drew random numbers, which can be keyed."""
    foreign: bool
    """Whether other random numbers were drawn, which cannot be keyed."""


@dataclass(frozen=True)
class Net:
    """The part that several f over different data share. Two are equal if model and settings are equal."""

    model: str | Make | type[nn.Module] | nn.Module
    shape: tuple[int, ...]
    """The shape of a sample."""
    outputs: int
    """Outputs per sample: a score per class, or one number."""
    loss: Loss
    dtype: torch.dtype
    device: str
    mechanism: str
    bfloat16: bool
    whole: bool = False
    """Whether samples are whole numbers, such as tokens."""

    @property
    def name(self) -> str:
        return f"the model {self.model!r}" if isinstance(self.model, str) else "the model"

    def check(self, data: str, largest: int = 0) -> None:
        """Check that it has parameters, accepts the samples, returns scores of the right shape, and is a function of x,
        the samples and a key alone.

        largest: the largest whole number in the samples, which an embedding must have.
        """
        require(len(self.blocks) > 0, f"{self.name} has no parameters to train")
        samples = self._two_samples(self.takes)
        if not self.takes.is_floating_point:
            samples[1] = largest
        try:
            module = copy.deepcopy(self.template)
            scores = _tried(module.eval(), samples)
            first, second = (_tried(module.train(), samples) for _ in range(2))
        except TRIED as e:
            why = str(e).splitlines()[0]
            raise InputError(f"{self.name} does not fit: samples of {data} have shape {self.shape} ({why})") from e
        shape = tuple(scores.values.shape)
        wants = f"but {data} needs ({self.outputs},)"
        require(shape == (2, self.outputs), f"{self.name} gives scores of shape {shape[1:]} for a sample, {wants}")
        foreign = "in NumPy, Python or a backward pass, which are not keyed by client and round: use torch's in forward"
        require(not first.foreign, f"{self.name} draws random numbers {foreign}")
        require(not scores.draws, f"{self.name} draws random numbers in eval mode: it must do so in training alone")
        same = torch.allclose(first.values, second.values, equal_nan=True)
        require(same, f"{self.name} gives different scores for the same samples: they must depend on nothing else")
        self.engine  # noqa: B018  the mechanism must fit the network

    def _two_samples(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(2, *self.shape, dtype=dtype, device=self.device)

    @cached_property
    def draws(self) -> bool:
        """Whether it draws random numbers in training, as dropout does."""
        return _tried(copy.deepcopy(self.template).train(), self._two_samples(self.takes)).draws

    @cached_property
    def takes(self) -> torch.dtype:
        """The dtype of samples: whole numbers are not converted if the network accepts them."""
        if not self.whole:
            return self.dtype
        try:
            _tried(copy.deepcopy(self.template).eval(), self._two_samples(torch.int64))
        except TRIED:
            try:
                _tried(copy.deepcopy(self.template).eval(), self._two_samples(self.dtype))
            except TRIED:
                return torch.int64  # it accepts neither; `check` shows the error for this one
            return self.dtype
        return torch.int64

    def make(self, seed: int) -> nn.Module:
        """A new module; its parameters depend on the seed alone, and torch's generator is left unchanged."""
        channels, side = (*self.shape, 1)[:2]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(keyed_random.keys(seed, "start", [0], 0)[0] >> np.uint64(1)))
            return new_module(self.model, channels, side, self.outputs).to(self.device, self.dtype)

    def initial(self, seed: int) -> Tensor:
        """The parameters x of a new module."""
        values = dict(self.make(seed).named_parameters())
        return torch.cat([values[block.name].detach().reshape(-1) for block in self.blocks])

    @cached_property
    def template(self) -> nn.Module:
        """The network; its buffers and constants are the same in every run."""
        return self.make(0)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """One block per trained parameter."""
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
        return Loop(self.template, self.blocks, self.loss, self.bfloat16, self.draws)

    @cached_property
    def alone(self) -> bool:
        """Whether a batch may have a single sample, which batch norm does not allow."""
        return not batch_norms(self.template)


def _tried(module: nn.Module, samples: Tensor) -> Tried:
    """A forward and a backward pass with a fixed key."""
    before, draws = _random_states(), KeyedDraws(np.array([1], np.uint64))
    with draws, torch.enable_grad():
        values = module(samples)
        count = draws.count
        if values.requires_grad:
            values.sum().backward()
    return Tried(values.detach(), count > 0, draws.count > count or before != _random_states())


def _random_states() -> tuple[Any, ...]:
    """The states of the global generators that a module's `forward` may draw from."""
    return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state(legacy=False))


def new_module(model: Any, channels: int, side: int, classes: int) -> nn.Module:
    """The module for a `model`, initialised with torch's random numbers."""
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
