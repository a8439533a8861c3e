"""FedNL: Newton steps with Hessians that the server learns in pieces of rank one.

    client sends    grad f_i(x),   S_i = e v v',   l_i = |R_i|        e, v: the top eigenpair of R_i = H_i - Hh_i
                    Hh_i <- Hh_i + alpha S_i
    server          x <- x - (Hh + l I)^-1 mean grad f_i(x),   Hh <- Hh + alpha mean S_i

H_i is the Hessian of f_i at x, Hh the mean of the Hh_i and l that of the l_i: the paper's Option 2 with its compressor
Rank-1. Hh_i begins at 0, as in one of the authors' experiments; they also begin it with the whole Hessian. The norm of
l_i is that of their code (github.com/Rustem-Islamov/FedNL-Public), the largest eigenvalue by size. Gradients and models
travel as they are: compressing them needs the variant FedNL-BC, which is not here. For h = 0 only, like the paper.

What travels: two vectors and two numbers up, one vector down. The server reads the messages one by one.
Reference: M. Safaryan, R. Islamov, X. Qian, P. Richtarik, "FedNL: Making Newton-Type Methods Applicable to Federated
Learning", ICML, 2022, arXiv:2106.02969.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from proxfed.algorithms.curvature_pieces import top_eigenvector
from proxfed.compressors.rows_apart import DenseRows
from proxfed.errors import up_to_one
from proxfed.keyed_random import Key, normals
from proxfed.types import Facts, Local, Message, Needs, Regulariser, Sends, Star


class Client(NamedTuple):
    Hh: Tensor  # (c, d, d) what the server knows of the own Hessian


class Server(NamedTuple):
    x: Tensor  # the model
    Hh: Tensor  # (d, d) mean of all Hh


@dataclass(frozen=True)
class FedNL(Star[Client, Server]):
    """Newton's method with compressed Hessians and whole gradients, with a server."""

    alpha: float = 1.0
    """How much of a piece is learned, in (0, 1]; 1 for compressors such as this one that only leave out."""
    pieces: DenseRows = field(init=False, default=DenseRows())
    """How pieces of curvature travel: as they are, each client's apart."""

    needs: ClassVar[Needs] = Needs(composite=False, convex=True, everyone=True, hessian=True)
    facts: ClassVar[Facts] = Facts(Sends(up=2, down=1, numbers_up=2, rows_apart=True), exact=True, step="")

    def __post_init__(self) -> None:
        up_to_one(self, "alpha")

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        Hh = x0.new_zeros(len(x0), len(x0))
        return Client(Hh.expand(len(f.ids), -1, -1).clone()), Server(x0, Hh)

    def down(self, s: Server, key: Key) -> tuple[Server, Tensor]:
        return s, s.x

    def client(self, own: Client, x: Tensor, f: Local, h: Regulariser) -> tuple[Client, Message]:
        H = f.hessian(x)

        def rest(V: Tensor) -> Tensor:
            return H(V) - (own.Hh @ V[:, :, None])[:, :, 0]

        d = x.shape[-1]
        l, v, _ = top_eigenvector(rest, torch.from_numpy(normals(f.key, d)).to(x), steps=d)
        e = (v * rest(v)).sum(1)
        Hh = own.Hh + self.alpha * (e[:, None] * v)[:, :, None] * v[:, None]
        return Client(Hh), (f.full_grad(x), self.pieces(torch.cat([l[:, None], e[:, None], v], 1), f.key))

    def server(self, s: Server, up: tuple[Tensor, Tensor], h: Regulariser, share: float) -> Server:
        g, E = up
        w, l, e, v = E[:, 0], E[:, 1], E[:, 2], E[:, 3:]
        B = s.Hh + (w @ l) * torch.eye(len(g)).to(g)
        return Server(s.x - torch.linalg.solve(B, g), s.Hh + self.alpha * (v * (w * e)[:, None]).mT @ v)
