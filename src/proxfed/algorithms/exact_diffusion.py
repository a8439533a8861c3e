"""Exact diffusion (D2): decentralised gradient descent that corrects its own bias.

    psi_new = x - eta grad f(x)
    x <- W' (psi_new + x - psi),   psi <- psi_new                          W' = (I + W)/2, or W for D2

from psi = x0. In two-step form x'' = W'(2 x' - x - eta grad f(x') + eta grad f(x)): the mean moves by the mean
gradient, and with full gradients all x_i reach the exact solution whatever the data, for a fixed and symmetric W.
With W itself (D2) all its eigenvalues must exceed -1/3, which an even ring violates.

What travels: one vector over each edge of a round.
Reference: K. Yuan, B. Ying, X. Zhao, A. H. Sayed, "Exact Diffusion for Distributed Optimization and Learning",
arXiv:1702.05122, 2017; H. Tang, X. Lian, M. Yan, C. Zhang, J. Liu, "D2: Decentralized Training over Decentralized
Data", ICML 2018, arXiv:1803.07068.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from proxfed.schedules import Step, at, first, positive_step
from proxfed.types import Facts, Graph, Local, Mean, Mix, Needs, Regulariser, Sends


class State(NamedTuple):
    x: Tensor  # the model
    psi: Tensor  # the last gradient step


@dataclass(frozen=True)
class ExactDiffusion(Graph[State]):
    """Bias-corrected decentralised SGD (exact diffusion, D2) on a fixed graph."""

    eta: Step
    """Step size."""
    lazy: bool = True
    """Mix with (I + W)/2 (exact diffusion); False: with W (D2)."""

    needs: ClassVar[Needs] = Needs(composite=False, fixed_graph=True, symmetric=True)
    facts: ClassVar[Facts] = Facts(Sends(edge=1), exact=True)

    def __post_init__(self) -> None:
        positive_step(self, "eta")

    def requires(self) -> Needs:
        return self.needs if self.lazy else self.needs._replace(eigenvalues_above=-1 / 3)

    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        x = f.spread(x0)
        return State(x, x)

    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        psi = s.x - at(self.eta, f.t) * f.grad(s.x, 0)
        phi = psi + s.x - s.psi
        return State((phi + mix(phi)) / 2 if self.lazy else mix(phi), psi)

    def carried(self, s: State, to: ExactDiffusion) -> State:
        return s._replace(psi=s.x.lerp(s.psi, first(to.eta) / first(self.eta)))

    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        return mean(s.x)
