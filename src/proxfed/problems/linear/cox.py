"""Cox's partial likelihood, stratified by client: a sample is compared only with samples of the same client.

    f_i(s) = - (1/m_i) sum over events j of v_j (s_j - log sum_{k in R_j} v_k exp(s_k))        R_j = {k: T_k >= T_j}

v are the weights of the client's m_i samples, with mean 1. A label is the time of an event, or minus the censoring time
(-0.0: at time 0). The samples of a client must be in the order of `by_time`, latest first, so that a risk set R_j
consists of the samples up to the last one tied with j: all sums over risk sets are then one cumulative sum. They are
kept as logarithms, so nothing overflows.

Reference: D. R. Cox, "Regression Models and Life-Tables", Journal of the Royal Statistical Society B, 1972; ties:
N. Breslow, "Covariance Analysis of Censored Survival Data", Biometrics, 1974; B. Efron, "The Efficiency of Cox's
Likelihood Function for Censored Data", Journal of the American Statistical Association, 1977.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.data.federated import Federated
from proxfed.data.survival import time_and_event
from proxfed.errors import one_of, require
from proxfed.problems.losses import TEST_LOSS, Loss
from proxfed.types import Measure


@dataclass(frozen=True)
class Cox(Loss):
    """Survival analysis: the score is the logarithm of a sample's hazard relative to samples of the same client."""

    ties: str = "breslow"
    """The treatment of ties: 'breslow', or 'efron', which is closer to the likelihood of untied events."""

    curvature: ClassVar[float] = inf  # in one score; `smoothness` bounds the curvature of a client's f_i
    measures: ClassVar[tuple[Measure | str, ...]] = (TEST_LOSS,)
    separate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        one_of(self, "ties", ("breslow", "efron"))

    def outputs(self, data: Federated) -> int:
        some = len(data.labels) == 0 or bool((~np.signbit(np.asarray(data.labels, float))).any())
        require(some, f"Cox regression needs events, but all labels of {data.name} are censored (below 0)")
        return 1

    def value(self, s: Tensor, b: Tensor) -> Tensor:
        return self.weighted_value(s, b, torch.ones_like(b))

    def slope(self, s: Tensor, b: Tensor) -> Tensor:
        return self.weighted_slope(s, b, torch.ones_like(b))

    def weighted_value(self, s: Tensor, b: Tensor, v: Tensor) -> Tensor:
        e = _Events.of(s[:, 0], b, v, self.ties)
        return e.weight * (e.log_S + torch.log1p(-e.c * e.share)) - e.event * v * s[:, 0]

    def weighted_slope(self, s: Tensor, b: Tensor, v: Tensor) -> Tensor:
        """v_k exp(s_k) (sum of a_j/S_j over j with k in R_j, less the tied events' c_j a_j/S_j) - event_k v_k."""
        e = _Events.of(s[:, 0], b, v, self.ties)
        a = e.weight / (1 - e.c * e.share)
        own = s[:, 0] + _log(v)
        at_risk = (a.log() - e.log_S).flip(-1).logcumsumexp(-1).flip(-1).gather(-1, e.first)
        tied = _sums(e.c * a, e.last).gather(-1, e.last)
        out = (own + at_risk).exp() - e.event * (own - e.log_S).exp() * tied - e.event * v
        return out[:, None]

    def hessian(self, s: Tensor, b: Tensor, v: Tensor, A: Tensor) -> Tensor:
        """The Hessian of one client's sum in the coefficients of s = A x, (p, p): the sum over events of the variance
        of the features in their risk sets."""
        e = _Events.of(s, b, v, self.ties)
        each = (self.weighted_slope(s[None, None], b[None], v[None])[0, 0] + e.event * v).clamp_min(0)
        root = A * each.sqrt()[:, None]
        seen, top = e.event > 0, s.max()
        own = (s - top + _log(v)).exp()[:, None] * A
        sums = own.cumsum(0)[e.last[seen]]
        if self.ties == "efron":
            tied = torch.zeros_like(own).index_add_(0, e.last, e.event[:, None] * own)[e.last[seen]]
            sums = sums - e.c[seen, None] * tied
        log_rest = e.log_S[seen] - top + torch.log1p(-e.c[seen] * e.share[seen])
        means = sums * ((-log_rest).exp() * e.weight[seen].sqrt())[:, None]
        return root.mT @ root - means.mT @ means

    def residuals(self, s: Tensor, b: Tensor, v: Tensor, A: Tensor) -> Tensor:
        """The score residuals (samples, p) of one client's samples in the coefficients of s = A x; their sum is the
        gradient. With z_j and S_j the mean of the features and the weight of the risk set of event j:

            r_k x_k - sum over j with k in R_j of v_k exp(s_k) a_j z_j / S_j - event_k v_k (x_k - z_k)

        Reference: D. Y. Lin and L. J. Wei, "The Robust Inference for the Cox Proportional Hazards Model", Journal of
        the American Statistical Association, 1989.
        """
        e = _Events.of(s, b, v, self.ties)
        top = s.max()
        risk, a = v * (s - top).exp(), e.weight

        def within(x: Tensor) -> Tensor:
            return torch.zeros_like(x).index_add_(0, e.last, x)[e.last]

        def at_risk(x: Tensor) -> Tensor:
            return x.flip(0).cumsum(0).flip(0)[e.first]

        own = risk[:, None] * A
        S = torch.where(a > 0, (e.log_S - top).exp() * (1 - e.c * e.share), 1)
        z = (own.cumsum(0)[e.last] - e.c[:, None] * within(e.event[:, None] * own)) / S[:, None]
        rate = (a / S)[:, None]
        hazard = risk[:, None] * (at_risk(rate) - e.event[:, None] * within(e.c[:, None] * rate))
        of_z = risk[:, None] * (at_risk(rate * z) - e.event[:, None] * within(e.c[:, None] * rate * z))
        mean_z = within(z * a[:, None]) / within(a)[:, None].clamp_min(1e-300)
        happened = (v * e.event)[:, None]
        return A * (hazard - happened) - of_z + happened * mean_z

    def smoothness(self, distance: Tensor, b: Tensor, v: Tensor) -> Tensor:
        """The Hessian of an event is the weighted variance of the features in its risk set. For any weights that is at
        most the largest squared distance of a sample in the set from any point: here, from the mean."""
        times, event = b.abs(), ~b.signbit()
        last = torch.searchsorted(-times, -times, right=True) - 1
        furthest = distance.cummax(-1).values.gather(-1, last)
        return (event * v * furthest).mean(-1)

    def score(self, s: Tensor, b: Tensor) -> dict[str, float]:
        return {"test_loss": float(self.value(s, b).mean())}

    def predict(self, s: Tensor) -> Tensor:
        """The scores, since Cox regression predicts no label."""
        return s[:, 0]


class _Events(NamedTuple):
    """Intermediate results that value and slope share, each (c, samples)."""

    event: Tensor
    first: Tensor  # position of the first sample with the same time
    last: Tensor  # position of the last one, where the risk set ends
    log_S: Tensor  # log of the sum of v exp(s) over the risk set
    weight: Tensor  # of the events, 0 elsewhere; with Efron the mean over tied events
    share: Tensor  # share of the tied events in S
    c: Tensor  # the part of the tied events removed from S: 0 with Breslow, 0, 1/d, ... (d-1)/d with Efron

    @classmethod
    def of(cls, s: Tensor, b: Tensor, v: Tensor, ties: str) -> _Events:
        earlier, event = -b.abs(), (~b.signbit()).to(s)
        first, last = torch.searchsorted(earlier, earlier), torch.searchsorted(earlier, earlier, right=True) - 1
        log_S = (s + _log(v)).logcumsumexp(-1).gather(-1, last)
        weight = event * v
        if ties == "breslow":
            return cls(event, first, last, log_S, weight, torch.zeros_like(s), torch.zeros_like(s))
        d = _sums(event, last).gather(-1, last).clamp_min(1)
        share = _sums(weight * (s - log_S).exp(), last).gather(-1, last)
        gone = event.cumsum(-1) - event - (event.cumsum(-1) - event).gather(-1, first)
        mean = event * _sums(weight, last).gather(-1, last) / d
        return cls(event, first, last, log_S, mean, share, event * gone / d)


def _sums(x: Tensor, last: Tensor) -> Tensor:
    """Sums over samples with the same time, at the position of the last one."""
    return torch.zeros_like(x).scatter_add_(-1, last, x)


def by_time(labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The rows of each client, latest first."""
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return np.lexsort((-time_and_event(labels)[0], owner))


def _log(v: Tensor) -> Tensor:
    """The logarithm of weights, finite even at 0, so that a sum and its divisor are never both infinite."""
    return v.clamp_min(torch.finfo(v.dtype).tiny).log()
