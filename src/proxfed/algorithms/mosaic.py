"""Mosaic: proximal Newton rounds in which curvature arrives in pieces and every message is compressed.

    server sends    q = C'(x - y), and two bytes
    everybody       y <- y + q,   u_i <- u_i + (Hh_i + l2 I) q
    client          D_i = C(grad f_i(y) - u_i),   u_i <- u_i + D_i
                    l_i = |R_i| for R_i = H_i - Hh_i,   H_i: the Hessian of f_i at y without l2
                    if asked, and l_i is not small: v = C(top eigenvector of R_i, times sqrt |l_i|),
                    Hh_i <- Hh_i + a v v' with the best a,   l_i anew
    client sends    D_i, l_i and, if there is one, the piece (a, v)
    server          c = mean u_i,   B = [mean Hh_i]+ + (l2 + delta) I, and a secant pair of the last step
                    x = argmin <c, x - y> + |x - y|_B^2/2 + h(x)

y, Hh_i and u_i, what the server knows of client i's gradient, are public: everybody computes them from the same
messages. The known curvature predicts how gradients change, and only what it did not predict is sent. There is nothing
to choose. What a step did to the gradients, dg = c - c_old against the model's B q, says all:

    t = <dg, q>/|q|_B^2                    sigma <- 2 sigma if t > 1.1, sigma/2 if t < 0.9;   delta = sigma mean l_i
    kappa = |dg - B q|_{B^-1} / |q|_B      the contraction of the last step, less the known noise of coding. q is as
                                           coarse as kappa allows, so is C, less what B^-1 makes of its noise
    t > 1.5                                everybody goes back to y_old + q/t: two bytes and no vector
    a piece                                is asked for if it saves more bytes than it costs, at this kappa

The watch: G = L |y - prox_{h/L}(y - c/L)| + |e|, where |e| bounds what compression hides of the mean gradient, bounds
the norm of a subgradient of phi near y. A round is good if G is below 0.9 of the least so far, or if phi fell for
certain by G^2/(100 L): f is convex, so that phi(y) <= phi(y - q) + <grad f(y), q> + h(y) - h(y - q). After PATIENCE
rounds that are not, everybody returns to the point with the least G, and delta is at least L/64; then L/16, L/4, and
last B = L I with fine messages: the proximal gradient method, for which docs/theory.md has a proof. L is the largest
curvature that was seen. [.]+ drops negative eigenvalues: H_i has none, quantised pieces may.

The model is x if the last step left less than half of the way and the next one is less than half as long. Otherwise
nothing is known of x yet, and the model is the best y: the last of which phi is certainly no more than at the best y
before, by the same inequality along one step or more, or whose G was the least so far.

What travels: C(d) up and 1 byte, and in some rounds a piece, C(d) and 1 byte; C'(d) and 2 bytes down. The server reads
the messages one by one, so that they cannot be masked. Pieces are directions of a client's data (docs/explanation/
mosaic.md).
Reference: The authors of proxfed, "Mosaic: proximal Newton rounds with curvature in compressed pieces",
docs/explanation/mosaic.md, 2026; pieces of rank one: M. Safaryan, R. Islamov, X. Qian, P. Richtarik, "FedNL: Making
Newton-Type Methods Applicable to Federated Learning", ICML, 2022, arXiv:2106.02969.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, sqrt
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.algorithms.curvature_pieces import GRADES, Known, Pieces, best_factor, piece_grade, top_eigenvector
from proxfed.algorithms.mosaic_control import SURE, Heard, Numbers, residual
from proxfed.algorithms.proximal_model import Metric, model_step
from proxfed.compressors.arrays import host
from proxfed.compressors.error_bounded import ErrorBoundedQuantiser
from proxfed.compressors.rows_apart import CurvaturePieces, QuantisedRows, factor_code, factor_of, size_code, size_of
from proxfed.keyed_random import Key, normals
from proxfed.types import Facts, Local, Message, Needs, Regulariser, Sends, Star

INNER = 5000
"""Steps on the model of phi, at most."""

TOLERANCE = 1e-8
"""Of them: an entry that moves by less, relative to the longest way of one, stands still."""


class Client(NamedTuple):
    y: Tensor  # public: where gradients are taken
    u: Tensor  # what the server knows of the own gradient
    q: Tensor  # public: the last step
    kept_y: Tensor  # public: where the certified residual was least
    kept_u: Tensor  # what the server knew there
    pieces: Pieces  # of curvature


class Server(NamedTuple):
    x: Tensor  # where the model of phi is least
    best: Tensor  # the best y, as far as that is known
    y: Tensor  # public
    c: Tensor  # mean of all u
    q: Tensor  # public: the last step
    Bq: Tensor  # what the model said that it would do to c
    base_c: Tensor  # c where it began
    kept_y: Tensor  # public: where the certified residual was least
    kept_c: Tensor
    known: Known  # mean of the Hh_i
    pair: Tensor  # (2, d) step and change of the gradient of the secant in B, or zeros
    numbers: Tensor


@dataclass(frozen=True)
class Mosaic(Star[Client, Server]):
    """Composite Newton with everything compressed and nothing to choose, for f with Hessian products."""

    compressor_up: QuantisedRows = field(init=False, default=QuantisedRows(GRADES[-1]))
    """Of gradients: multiples of a step, as coarse as the server asks for."""
    compressor_down: ErrorBoundedQuantiser = field(init=False, default=ErrorBoundedQuantiser(GRADES[-1]))
    """Of steps."""
    pieces: CurvaturePieces = field(init=False, default=CurvaturePieces(GRADES[-1]))
    """Of curvature."""

    needs: ClassVar[Needs] = Needs(convex=True, everyone=True, hessian=True)
    facts: ClassVar[Facts] = Facts(
        Sends(up=1, down=1, bytes_down=2, compressed=("up", "down"), rows_apart=True), exact=True, step=""
    )

    def largest_prox_step(self) -> float:
        return inf  # 1/L, whatever the largest curvature is that was seen

    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        y = h.prox(x0, 0.0)
        zero, rows = torch.zeros_like(y), f.spread(y)
        own, pair = torch.zeros_like(rows, memory_format=torch.contiguous_format), y.new_zeros(2, len(y))
        server = Server(y, y, y, zero, zero, zero, zero, y, zero, Known.nothing(y), pair, y.new_tensor(Numbers(f.l2)))
        return Client(rows, own, own, rows, own, Pieces.none(rows)), server

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        n = Numbers(*s.numbers.tolist())
        step = torch.zeros_like(s.x) if n.round == 0 or n.back else s.x - (s.kept_y if n.to_kept else s.y)
        sent = self.compressor_down.within(step[None], GRADES[int(n.down)])
        first = int(n.up) + 16 * int(n.ask) + 32 * int(n.mark) + 64 * int(n.to_kept) + 128 * (n.back > 0)
        control = np.array([first, int(n.back) or size_code(np.array(0.5 * n.l))], np.uint8)
        if n.mark:
            s = s._replace(kept_y=s.y, kept_c=s.c)
        if n.to_kept:
            s = s._replace(y=s.kept_y, c=s.kept_c)
        q, moved, left = _moved(s.q, sent.dense[0], int(n.back))
        if not n.back:
            s = s._replace(base_c=s.c)
        predicted = (s.known(moved.double()) + n.l2 * moved.double()).to(moved)
        numbers = n._replace(tau=n.tau * left if n.back else 1.0, round=n.round + 1)
        s = s._replace(y=s.y + moved, c=s.c + predicted, q=q, Bq=left * s.Bq, numbers=s.numbers.new_tensor(numbers))
        return s, (sent, torch.from_numpy(control).to(s.x.device))

    def client(self, own: Client, down: Message, f: Local, h: Regulariser) -> tuple[Client, Message]:
        sent, control = down
        first, second = (int(byte) for byte in control)
        up, ask, mark, to_kept = first & 15, first >> 4 & 1, first >> 5 & 1, first >> 6 & 1
        back, threshold = (second, 0) if first >> 7 else (0, second)
        y, u, pieces = own.y, own.u, own.pieces
        kept_y, kept_u = (y, u) if mark else (own.kept_y, own.kept_u)
        if to_kept:
            y, u = kept_y, kept_u
        q, moved, _ = _moved(own.q, sent, back)
        y = y + moved
        u = u + pieces(moved.expand_as(u)) + f.l2 * moved
        D = self.compressor_up.within(f.full_grad(y) - u, GRADES[up])
        H, start = f.hessian(y), torch.from_numpy(normals(f.key, 2 * y.shape[1])).to(y)
        start, again = start.chunk(2, 1)

        def rest(V: Tensor) -> Tensor:
            return H(V) - f.l2 * V - pieces(V)

        l, v, next_l = top_eigenvector(rest, start)
        code, send = np.zeros(len(y), np.uint8), torch.zeros_like(pieces.room)
        if ask:
            send = pieces.room & (l > 0) & (l >= float(size_of(np.array(threshold))))
        packed = self.compressor_up.within((v * l.sqrt()[:, None]) * send[:, None], piece_grade(host(next_l / l)))
        if ask:  # all do the same work, whoever has a piece: it must not depend on who is in the block
            code = factor_code(host(torch.where(send, best_factor(packed.dense, rest), 0.0)))
            pieces = pieces.with_one(packed.dense, torch.from_numpy(factor_of(code)).to(y))
            l = top_eigenvector(rest, again)[0]
        E = self.pieces.pack(size_code(host(l)), code, packed)
        return Client(y, u + D.dense, q.expand_as(y), kept_y, kept_u, pieces), (D, E)

    def server(self, s: Server, up: tuple[Tensor, Tensor], h: Regulariser, share: float) -> Server:
        n, (w, D, l, a, V) = Numbers(*s.numbers.tolist()), _read(up)
        c, size, q2, some = s.c.double() + w @ D, (D * D).sum(1), GRADES[int(n.up)], bool((a != 0).any())
        bound = sqrt(q2) / (1 - sqrt(q2)) * float(w @ size.sqrt())
        heard = Heard(float(w @ l), q2 * float(w.square() @ size), bound, len(w), float(w.norm()))
        before = float(w @ torch.maximum(l, a.abs() * (V * V).sum(1)))
        pair = torch.zeros_like(s.pair)
        if n.round == 1:
            n = n.first(heard, before + heard.l, alike=float(c @ c) > 0.9 * float(w @ size))
        else:
            q, dg = s.q.double(), c - s.base_c.double()
            n, secant = n.measured(heard, q, s.Bq.double(), dg, self._metric(s, n))
            pair = torch.stack([q, dg]).to(pair) if secant else pair
        if some:
            s = s._replace(known=s.known.plus(w * a, V))
            n = n._replace(fall=min(max(heard.l / before, 0.1), 0.97))
        n = n._replace(l=heard.l, nu=heard.nu)
        if n.back:
            n = n._replace(ask=0.0, mark=0.0, to_kept=0.0, sure=0.0)
            return s._replace(c=c.to(s.c), numbers=s.numbers.new_tensor(n))
        above = min(-_fell(s.y, s.best - s.y, c, heard.e, h), n.above - _fell(s.y, -s.q, c, heard.e, h))
        n = self._watched(s, n, c, heard.e, h).damped(heard)
        if n.mark or above <= 0:
            s, above = s._replace(best=s.y), 0.0
        n = n._replace(above=inf if n.to_kept else above)
        y = s.y.double()
        if n.to_kept:
            y, c, pair = s.kept_y.double(), s.kept_c.double(), torch.zeros_like(pair)
        s = s._replace(c=s.c if n.to_kept else c.to(s.c), pair=pair)
        B = self._metric(s, n)
        p = model_step(B, y, c, h, INNER, TOLERANCE)
        q, down = self._step(B, (y + p).to(s.y) - y.to(s.y), n.kappa)
        ask = s.known.has_room(len(w)) and n.asks(len(y))
        sure = n.sure and not n.to_kept and B.norm(p) <= SURE * B.norm(s.q.double())
        n = n._replace(down=down, up=n.grade_up(B, p, heard.share), ask=float(ask), sure=float(sure))
        return s._replace(x=(y + p).to(s.x), Bq=B(q.double()).to(s.q), numbers=s.numbers.new_tensor(n))

    def model(self, s: Server, h: Regulariser) -> Tensor:
        """x, if the last model was nearly right and the new step is short; else the best y that is known."""
        return s.x if Numbers(*s.numbers.tolist()).sure else s.best

    def _metric(self, s: Server, n: Numbers) -> Metric:
        """B."""
        pair = s.pair.double()
        if n.safe:
            return Metric.of(n.L, pair.mT[:, :0], pair[:0, :0])
        return s.known.metric(n.l2 + n.delta, pair, max(n.l2 / 2, 1e-10 * n.L))

    def _watched(self, s: Server, n: Numbers, c: Tensor, e: float, h: Regulariser) -> Numbers:
        """After the certified residual here and at the kept point, and the certain fall of phi, have been compared."""
        y, least = s.y.double(), inf
        if n.kept_e < inf:
            least = residual(s.kept_y.double(), s.kept_c.double(), n.L, h) + n.kept_e
        return n.watched(residual(y, c, n.L, h) + e, least, _fell(s.y, -s.q, c, e, h), e)

    def _step(self, B: Metric, step: Tensor, kappa: float) -> tuple[Tensor, float]:
        """(q, its grade): the coarsest that loses no more than the last step left."""
        allowed = min(max(kappa, 1e-3), sqrt(0.1)) * B.norm(step.double())
        for grade in range(1, len(GRADES)):
            q = self.compressor_down.within(step[None], GRADES[grade]).dense[0]
            if B.norm((q - step).double()) <= allowed:
                break
        return q, float(grade)


def _moved(last: Tensor, sent: Tensor, back: int) -> tuple[Tensor, Tensor, float]:
    """(the step, what y moves by, what is left of the last step): the one that was sent, or the last one, shortened."""
    if not back:
        return sent, sent, 1.0
    left = 2.0 ** (-back / 4)
    return left * last, (left - 1) * last, left


def _fell(y: Tensor, way: Tensor, c: Tensor, e: float, h: Regulariser) -> float:
    """A lower bound of phi(y + way) - phi(y): f is convex, and c within e of its gradient at y."""
    y, way = y.double(), way.double()
    return float(c @ way + h.value(y + way) - h.value(y)) - e * float(way.norm())


def _read(up: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Weights, gradients' rests, l, a, v: of all clients, in float64."""
    D, E = (rows.double() for rows in up)
    return D[:, 0], D[:, 1:], E[:, 1], E[:, 2], E[:, 3:]
