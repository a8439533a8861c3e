"""Differential privacy of clients' messages: the rows' effect on a message is clipped and hidden in noise.

    r      the message of a client without rows: its round with grad f_i = 0, from public values only
    u      the message that this client would send
    sent   r + min(1, C/|u - r|) (u - r) + sigma C g,     g standard normal, rounded to a grid far finer than the noise

Changing a client's rows moves r + clip(u - r) by at most 2 C. So a message is a Gaussian mechanism with sigma/2
standard deviations of noise per unit of sensitivity, and `epsilon` is the privacy of T of them. This holds for
adaptive rounds, because each round is a function of the rows and of earlier messages.

A client may keep a state, such as a control variate, if it is a function of the messages sent (`Star.after`). By
induction over the rounds the state is then public: u and r differ only by the rows' effect in this round, and the same
bound holds. The server computes with the same noisy messages, so that sums which must agree still do, such as c and
the mean of SCAFFOLD's c_i. A state that depends on the rows in another way, such as the memory of error feedback,
would differ from the server's copy for good: such methods are refused.

In a simulation the noise is derived from the seed. Between organisations it is secret (silos/protection/privacy.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, inf, log2, sqrt
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from proxfed.keyed_random import Ids
from proxfed.types import Local

GRID = 2.0**-20
"""The grid, relative to the noise's standard deviation: low bits of floating point sums could reveal the summands."""


class Noise(Protocol):
    """The parameters by which a message is clipped and made noisy."""

    @property
    def clip(self) -> float: ...

    @property
    def noise(self) -> float: ...


class NoRows(Local):
    """f_i = 0 for clients without rows."""

    def __init__(self, t: int, ids: Ids, seed: int) -> None:
        self.t, self.ids, self.seed = t, ids, seed

    def full_grad(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(self.ids), x.shape[-1])

    def value(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(self.ids))


def privatise(u: Sequence[Tensor], r: Sequence[Tensor], privacy: Noise, g: np.ndarray) -> list[Tensor]:
    """The private version of u, the tensors (c, ...) of c clients' messages; r: the messages of clients without rows.

    g: (c, k) standard normal numbers, one per number that a client sends. Computed on the CPU, in float64.
    """
    moved = torch.cat([(a - b).cpu().double().flatten(1) for a, b in zip(u, r, strict=True)], 1)
    size = moved.norm(dim=1, keepdim=True)
    # A message that is not finite counts as one without rows: a refusal would reveal something about them.
    moved = torch.where(size.isfinite(), moved * (privacy.clip / size).clamp(max=1.0).nan_to_num(1.0), 0.0)
    deviation = privacy.noise * privacy.clip
    grid = 2.0 ** floor(log2(deviation)) * GRID
    noisy = torch.cat([b.cpu().double().flatten(1) for b in r], 1) + moved + deviation * torch.from_numpy(g)
    parts = torch.split((noisy / grid).round() * grid, [a[0].numel() for a in u], 1)
    return [part.view(a.shape).to(a) for part, a in zip(parts, u, strict=True)]


# ---- the account -----------------------------------------------------------------------------------------------------


def epsilon(releases: Mapping[float, float], delta: float) -> float:
    """The epsilon of this many messages for each noise sigma; infinite for messages without noise.

    Gaussian mechanisms compose into one, exactly (Dong, Roth and Su 2022, Corollary 3.3): mu^2 = sum_k (2/sigma_k)^2.
    """
    if any(times and noise <= 0 for noise, times in releases.items()):
        return inf
    return gaussian_epsilon(sqrt(sum(times * (2 / noise) ** 2 for noise, times in releases.items() if times)), delta)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon of a Gaussian mechanism whose sensitivity is mu standard deviations of its noise.

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)    (Balle and Wang 2018, Theorem 8)
    """
    if mu == 0 or _delta(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while _delta(mu, high) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(mu, middle) > delta else (low, middle)
    return high


def _delta(mu: float, e: float) -> float:
    log_phi = torch.special.log_ndtr(torch.tensor([mu / 2 - e / mu, -mu / 2 - e / mu], dtype=torch.float64))
    return float(log_phi[0].exp() - (e + log_phi[1]).exp())


def drowned(privacy: Noise, weights: Sequence[float], d: int, rounds: int) -> str:
    """A warning if the noise dominates the model; else ''.

    In a round all clients together move the server by at most C, and the noise of their mean has the norm
    sigma C sqrt(d sum p_i^2). Over T rounds the first grows as T, the second as sqrt(T).
    """
    ratio = privacy.noise * sqrt(d * sum(p * p for p in weights))
    if ratio < sqrt(rounds):
        return ""
    return (
        f"protection.privacy: noise = {privacy.noise:g} over {len(weights)} clients and {d} numbers moves the model "
        f"{ratio:.3g} times as far in a round as all rows together can, and {ratio / sqrt(rounds):.3g} times as far in "
        f"{rounds} rounds: the model will be noise; more clients, more rounds or less noise are needed"
    )
