"""Synthetic data in which every client has its own model: Synthetic(alpha, beta).

    u_i ~ N(0, alpha^2)     B_i ~ N(0, beta^2)     m_i ~ N(B_i, 1)^d
    W_i ~ N(u_i, 1)^(d x C)     b_i ~ N(u_i, 1)^C     x ~ N(m_i, diag(j^-1.2))     y = argmax(x W_i + b_i)

From T. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020.
alpha and beta are standard deviations, as in the authors' generator. u_i shifts all logits of a sample equally, so
alpha does not affect the labels of `synthetic`; it does affect those of `synthetic_binary`, which has one logit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from proxfed.data.federated import Federated, Samples
from proxfed.errors import require
from proxfed.keyed_random import generator


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    clients: int = 30,
    features: int = 60,
    classes: int = 10,
    seed: int = 0,
    iid: bool = False,
) -> Federated:
    """Synthetic(alpha, beta): classes from a linear model per client, log-normal sizes, a tenth of each held out.

    The numbers equal those of the authors' scripts after `np.random.seed(seed)` and `random.seed(seed)`. `iid`: all
    clients share one W, b ~ N(0, 1) and all means are zero; alpha and beta are not used.
    """
    _check(seed, {"alpha": alpha, "beta": beta}, {"clients": clients, "features": features, "classes": classes})
    rng, order = np.random.RandomState(seed), random.Random(seed)
    sizes = (rng.lognormal(4, 2, clients).astype(int) + 50).tolist()
    draw = _alike(rng, sizes, features, classes) if iid else _unlike(rng, sizes, features, classes, alpha, beta)
    train, test = [], []
    for x, logits in draw:
        rows = list(range(len(x)))
        order.shuffle(rows)
        x, y, kept = x[rows], logits[rows].argmax(1), int(0.9 * len(rows))
        train.append((x[:kept], y[:kept]))
        test.append((x[kept:], y[kept:]))
    held_out = (np.concatenate([x for x, _ in test]), np.concatenate([y for _, y in test]))
    name = "synthetic(iid)" if iid else f"synthetic({alpha:g}, {beta:g})"
    return Federated.from_clients(train, held_out, classes, name)


def synthetic_binary(
    alpha: float = 10.0,
    beta: float = 10.0,
    clients: int = 30,
    samples: int = 2000,
    features: int = 60,
    unit_rows: bool = True,
    labels: Literal["sign", "argmax"] = "sign",
    seed: int = 0,
) -> Federated:
    """The same with labels -1/+1 and equally many samples per client, as in Zhang, Hu, Johansson's experiments.

    With large alpha and beta, such as 10 in that paper, nearly every client has samples of one class only, with nearly
    the same direction, which makes the problem easier than it looks. `synthetic_shifted` has both classes everywhere.

    `labels`: "sign" of one logit w_i.x + b_i, or "argmax" of two. `unit_rows`: each x is scaled to length one after
    labelling; otherwise the logistic loss has a smoothness constant in the thousands.
    """
    _check(seed, {"alpha": alpha, "beta": beta}, {"clients": clients, "samples": samples, "features": features})
    require(labels in ("sign", "argmax"), f"synthetic_binary: labels = {labels!r} is not one of 'sign', 'argmax'")
    rng = np.random.RandomState(seed)
    parts: list[Samples] = []
    for x, logits in _unlike(rng, [samples] * clients, features, 1 if labels == "sign" else 2, alpha, beta):
        margin = logits[:, 0] if labels == "sign" else logits[:, 0] - logits[:, 1]
        if unit_rows:
            x = x / np.linalg.norm(x, axis=1, keepdims=True)
        parts.append((x, np.where(margin >= 0, 1.0, -1.0)))
    return Federated.from_clients(parts, name=f"synthetic_binary({alpha:g}, {beta:g})")


def synthetic_shifted(
    clients: int = 30,
    samples: int = 300,
    features: int = 60,
    feature_shift: float = 0.4,
    scale_shift: float = 0.5,
    model_shift: float = 0.6,
    informative: float = 0.4,
    unit_rows: bool = True,
    seed: int = 0,
) -> Federated:
    """Random labels -1/+1 from clients with heterogeneous features, scales and models; each has both classes.

        w ~ 2 N(0, 1) where informative, else 0     w_i ~ w + model_shift N(0, 1)       s_j = j^-0.4
        x ~ feature_shift s N(0, 1) + s exp(scale_shift N(0, 1)) N(0, 1)    P(y = 1) = 1 / (1 + exp(-x.w_i))

    The first two normals of x are drawn once per client. With all shifts 0 clients are identically distributed.
    `informative`: the fraction of features that the common model uses. `unit_rows`: each x is scaled to length one
    after labelling.
    """
    shifts = {"feature_shift": feature_shift, "scale_shift": scale_shift, "model_shift": model_shift}
    _check(seed, shifts, {"clients": clients, "samples": samples, "features": features})
    require(samples >= 2, f"synthetic_shifted: samples = {samples} must be at least 2, one of each class")
    require(0 < informative <= 1, f"synthetic_shifted: informative = {informative!r} must be in (0, 1]")
    s = np.arange(1, features + 1) ** -0.4
    common = generator(seed, "synthetic_shifted: model")
    w = 2 * common.standard_normal(features) * (common.random(features) < informative)
    parts: list[Samples] = []
    for i in range(clients):
        rng = generator(seed, "synthetic_shifted: client", i)
        w_i = w + model_shift * rng.standard_normal(features)
        mean, scale = (
            feature_shift * s * rng.standard_normal(features),
            s * np.exp(scale_shift * rng.standard_normal(features)),
        )
        x = mean + scale * rng.standard_normal((samples, features))
        margin = x @ w_i
        y = np.where(rng.random(samples) < 1 / (1 + np.exp(-margin)), 1.0, -1.0)
        if abs(y.sum()) == samples:  # all labels are equal by chance: flip the least certain one
            y[np.abs(margin).argmin()] *= -1
        parts.append((x / np.linalg.norm(x, axis=1, keepdims=True) if unit_rows else x, y))
    return Federated.from_clients(parts, name=f"synthetic_shifted({feature_shift:g}, {scale_shift:g}, {model_shift:g})")


def _unlike(
    rng: np.random.RandomState, sizes: Sequence[int], d: int, C: int, alpha: float, beta: float
) -> Iterator[Samples]:
    """(x, x W_i + b_i) of each client. The order of the draws is part of the definition."""
    u, B = rng.normal(0, alpha, len(sizes)), rng.normal(0, beta, len(sizes))
    means = rng.normal(B[:, None], 1, (len(sizes), d))
    for i, size in enumerate(sizes):
        W, b = rng.normal(u[i], 1, (d, C)), rng.normal(u[i], 1, C)
        x = _normal(rng, means[i], size)
        yield x, x @ W + b


def _alike(rng: np.random.RandomState, sizes: Sequence[int], d: int, C: int) -> Iterator[Samples]:
    W, b = rng.normal(0, 1, (d, C)), rng.normal(0, 1, C)
    for size in sizes:
        x = _normal(rng, np.zeros(d), size)
        yield x, x @ W + b


def _normal(rng: np.random.RandomState, mean: np.ndarray, size: int) -> np.ndarray:
    """The same draws as rng.multivariate_normal(mean, diag(j^-1.2), size), without factorising the diagonal matrix."""
    deviation = np.sqrt(np.arange(1, len(mean) + 1) ** -1.2)
    return rng.standard_normal((size, len(mean))) * deviation + mean


def _check(seed: int, deviations: Mapping[str, float], counts: Mapping[str, int]) -> None:
    require(0 <= seed < 2**32, f"synthetic: seed = {seed!r} must be at least 0 and below 2^32")
    for name, value in deviations.items():
        require(0 <= value < np.inf, f"synthetic: {name} = {value!r} must be a finite number >= 0")
    for name, count in counts.items():
        require(isinstance(count, int) and count >= 1, f"synthetic: {name} = {count!r} must be a whole number >= 1")
