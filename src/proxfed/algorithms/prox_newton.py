"""Proximal quasi-Newton rounds: the server estimates the curvature of f from the gradients that it receives.

    server sends    a trial point y
    client sends    grad f_i(y), f_i(y)
    server          if phi(y) <= phi(x) + sigma t D, where y = x + t p:
                        remember (y - x, grad f(y) - grad f(x)),   x <- y
                        p = argmin_p <grad f(x), p> + <p, B p>/2 + h(x + p),   t = 1
                        D = <grad f(x), p> + h(x + p) - h(x)
                    else t <- t/2
                    y = x + t p

B is the limited-memory BFGS matrix of the last pairs, and a multiple of I before there are any. The server minimises
the model of phi approximately, by some steps of FISTA with the prox of h, without communication. The line search is on
the objective, so there is no step size to choose; `curvature` only sets the start.

What travels: one vector down; one vector and one number up.
Reference: J. D. Lee, Y. Sun, M. A. Saunders, "Proximal Newton-Type Methods for Minimizing Composite Functions", SIAM
Journal on Optimization, 2014, arXiv:1206.1623; B: R. H. Byrd, J. Nocedal, R. B. Schnabel, "Representations of
Quasi-Newton Matrices and their Use in Limited Memory Methods", Mathematical Programming, 1994.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxfed.algorithms.proximal_model import model_step
from proxfed.errors import at_least_one, positive
from proxfed.keyed_random import Key
from proxfed.types import Constants, Facts, Local, Needs, Regulariser, Sends, Star, Stateless

SIGMA = 1e-4
"""A step is accepted if phi decreases by at least this part of the decrease that its model predicts."""

INNER = 50
"""Steps on the model of phi: more of them cost time at the server and saved no rounds in our runs."""


class State(NamedTuple):
    x: Tensor  # the model
    y: Tensor  # the trial point
    g: Tensor  # gradient at x
    phi: Tensor  # objective at x; infinite before the first round
    p: Tensor  # direction
    D: Tensor  # the decrease it predicts
    t: Tensor  # step along it
    S: Tensor  # (memory, d) steps, the last ones first
    Y: Tensor  # (memory, d) changes of the gradient
    pairs: Tensor  # the number of pairs


@dataclass(frozen=True)
class ProxNewton(Star[Stateless, State]):
    """Proximal quasi-Newton with a server: few rounds, and no step size."""

    curvature: float = 1.0
    """Initial curvature of f: a smoothness constant, or a guess."""
    memory: int = 10
    """The number of stored pairs."""

    needs: ClassVar[Needs] = Needs(convex=True, everyone=True)
    facts: ClassVar[Facts] = Facts(Sends(up=1, down=1, numbers_up=1), exact=True, step="")

    def __post_init__(self) -> None:
        positive(self, "curvature")
        at_least_one(self, "memory")

    def largest_prox_step(self) -> float:
        return inf  # the prox step of the model of phi while f looks flat

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, State]:
        return (), self.begin(x0, h)

    def begin(self, x0: Tensor, h: Regulariser) -> State:
        """Before the first gradient: at x0, or the nearest feasible point of h."""
        x, empty, one = h.prox(x0, 0.0), x0.new_zeros(self.memory, len(x0)), x0.new_ones(())
        return State(x, x, 0 * x, inf * one, 0 * x, 0 * one, one, empty, empty, 0 * one)

    def down(self, s: State, key: Key) -> tuple[State, Tensor]:
        return s, s.y

    def client(self, own: Stateless, y: Tensor, f: Local, h: Regulariser) -> tuple[Stateless, tuple[Tensor, Tensor]]:
        value, g = f.value_and_grad(y)
        return own, (g, value[:, None])

    def server(self, s: State, up: tuple[Tensor, Tensor], h: Regulariser, share: float) -> State:
        g, f = up[0], up[1][0]
        phi = f + h.value(s.y)
        rounding = 10 * torch.finfo(phi.dtype).eps * (f.abs() + 1)
        if not phi <= s.phi + SIGMA * s.t * s.D + rounding:
            return s._replace(y=s.x + s.t / 2 * s.p, t=s.t / 2)
        S, Y, pairs = self._remember(s, s.y - s.x, g - s.g)
        B = LBFGS.of(self.curvature, S[: int(pairs)], Y[: int(pairs)])
        p = model_step(B, s.y, g, h, INNER)
        D = torch.dot(g, p) + h.value(s.y + p) - h.value(s.y)
        return State(s.y, s.y + p, g, phi, p, D, torch.ones_like(s.t), S, Y, pairs)

    def _remember(self, s: State, step: Tensor, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not torch.dot(step, change) > 1e-12 * step.norm() * change.norm():  # also before the first round
            return s.S, s.Y, s.pairs
        S, Y = (torch.cat([new[None], old[:-1]]) for new, old in ((step, s.S), (change, s.Y)))
        return S, Y, (s.pairs + 1).clamp_max(self.memory)

    @classmethod
    def theory(cls, c: Constants, memory: int = 10) -> ProxNewton:
        """The initial curvature L_f."""
        return cls(c.smoothness.L_f, memory)


class LBFGS(NamedTuple):
    """B = b I + U M U'."""

    b: Tensor
    U: Tensor  # (d, 2 pairs)
    M: Tensor
    largest: Tensor  # eigenvalue

    @classmethod
    def of(cls, curvature: float, S: Tensor, Y: Tensor) -> LBFGS:
        """From steps and changes of the gradient, the last ones first; without any, curvature I."""
        if len(S) == 0:
            b = S.new_tensor(curvature)
            return cls(b, S.mT, S @ S.mT, b)
        S, Y = S.flip(0), Y.flip(0)
        SY = S @ Y.mT
        b = torch.dot(Y[-1], Y[-1]) / SY[-1, -1]
        lower, diagonal = SY.tril(-1), SY.diagonal().diag()
        inside = torch.cat([torch.cat([b * S @ S.mT, lower], 1), torch.cat([lower.mT, -diagonal], 1)])
        U = torch.cat([b * S, Y]).mT
        M = -torch.linalg.inv(inside)
        R = torch.linalg.qr(U, mode="r").R
        small = R @ M @ R.mT
        return cls(b, U, M, b + torch.linalg.eigvalsh((small + small.mT) / 2)[-1].clamp_min(0))

    def __call__(self, p: Tensor) -> Tensor:
        return self.b * p + self.U @ (self.M @ (self.U.mT @ p))
