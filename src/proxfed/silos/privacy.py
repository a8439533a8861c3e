"""Differential privacy at the holder: what rows do to a message is clipped, and hidden in noise that it alone knows.

    r      what a client without rows would send: its round with grad f_i = 0, from what the server told everybody
    u      what this client would send
    sent   r + min(1, C/|u - r|) (u - r) + sigma C g,     g standard normal, rounded to a grid far finer than the noise

Whatever a holder's rows are, they move r + clip(u - r) by at most 2 C. So the message of a round is a Gaussian
mechanism with sigma/2 standard deviations of noise to a unit of sensitivity, and T of them are as private as the
accountant says: for all rows of the holder together, and so for each of them. That holds for adaptive rounds, because
what is computed in one follows from the rows and from what was sent in earlier ones.

The noise is a stream of ChaCha20 under a secret of the site, for this run, round and question: nobody else can compute
it, and a question that is repeated gets the same answer, so that it cannot be averaged away. It is the one thing in a
run that does not follow from its seed.

What it does not cover: whatever else a holder tells, such as counts and measures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import floor, inf, isfinite, log2, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxfed.errors import InputError
from proxfed.harness.protection import Privacy
from proxfed.keyed_random import Ids
from proxfed.types import Local

GRID = 2.0**-20
"""Of the noise's standard deviation: the low bits of floating point numbers could tell what was added to what."""


class NoRows(Local):
    """f_i = 0, of clients without rows."""

    def __init__(self, t: int, ids: Ids, seed: int) -> None:
        self.t, self.ids, self.seed = t, ids, seed

    def full_grad(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(self.ids), x.shape[-1])

    def value(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(self.ids))


def privatise(u: list[Tensor], r: list[Tensor], privacy: Privacy, secret: bytes) -> list[Tensor]:
    """What is sent instead of u, the tensors of one client's message; r: those of a client without rows."""
    moved = [(a - b).double() for a, b in zip(u, r, strict=True)]
    size = sqrt(sum(float(m.square().sum()) for m in moved))
    moved = [m * min(1.0, privacy.clip / size) if size else m for m in moved]
    if not isfinite(size):  # as if it had no rows: a refusal would tell something of them
        moved = [torch.zeros_like(m) for m in moved]
    deviation = privacy.noise * privacy.clip
    grid = 2.0 ** floor(log2(deviation)) * GRID
    g = torch.from_numpy(gaussian(secret, sum(m.numel() for m in moved))).split([m.numel() for m in moved])
    noisy = [b.double() + m + deviation * z.view(m.shape) for b, m, z in zip(r, moved, g, strict=True)]
    return [((v / grid).round() * grid).to(a) for v, a in zip(noisy, u, strict=True)]


def gaussian(secret: bytes, count: int) -> NDArray[np.float64]:
    """Standard normal numbers from a stream of ChaCha20, by Box and Muller."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    half = (count + 1) // 2
    stream = Cipher(algorithms.ChaCha20(secret, bytes(16)), mode=None).encryptor().update(bytes(16 * half))
    u, v = ((np.frombuffer(stream, "<u8") >> 11) + 1).astype(np.float64).reshape(2, half) * 2.0**-53
    radius = np.sqrt(-2 * np.log(u))
    return np.concatenate([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)])[:count]


def epsilon(releases: Mapping[float, int], delta: float) -> float:
    """Of so many messages with each noise sigma; infinite for messages without noise."""
    try:
        from dp_accounting import GaussianDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ImportError as e:
        raise InputError("privacy needs the package dp-accounting: pip install 'proxfed[privacy]'") from e

    if any(times and noise <= 0 for noise, times in releases.items()):
        return inf
    accountant = RdpAccountant()
    for noise, times in releases.items():
        if times:
            accountant.compose(GaussianDpEvent(noise / 2), times)
    return float(accountant.get_epsilon(delta)) if any(releases.values()) else 0.0


def noises(lines: Iterable[Mapping[str, Any]]) -> Counter[float]:
    """What lines of an audit file say that left, by its noise; the same bytes again give nothing away."""
    return Counter({line["sha256"]: float(line["noise"]) for line in lines if "noise" in line}.values())
