"""Mosaic: proximal Newton rounds in which curvature arrives in pieces and every message is compressed.

    server sends    q = C'(x - y), and two bytes
    everybody       y <- y + q,   u_i <- u_i + (Hh_i + l2 I) q
    client          D_i = C(grad f_i(y) - u_i),   u_i <- u_i + D_i
                    l_i = |R_i| for R_i = H_i - Hh_i,   H_i: the Hessian of f_i at y without l2
                    if asked, and l_i is not small: v = C(top eigenvector of R_i, times sqrt |l_i|),
                    Hh_i <- Hh_i + a v v' with the best a,   l_i anew
    client sends    D_i, l_i and, if there is one, the piece (a, v)
    server          c = mean u_i,   B = mean Hh_i + (l2 + delta) I, and a secant pair of the last step
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
curvature that was seen.

What travels: C(d) up and 1 byte, and in some rounds a piece, C(d) and 1 byte; C'(d) and 2 bytes down. The server reads
the messages one by one, so that they cannot be masked. Pieces are directions of a client's data (docs/explanation/
mosaic.md).
Reference: The authors of proxfed, "Mosaic: proximal Newton rounds with curvature in compressed pieces",
docs/explanation/mosaic.md, 2026; pieces of rank one: M. Safaryan, R. Islamov, X. Qian, P. Richtarik, "FedNL: Making
Newton-Type Methods Applicable to Federated Learning", ICML, 2022, arXiv:2106.02969.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import floor, inf, log2, sqrt
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxfed.algorithms.proximal_model import Metric, model_step
from proxfed.compressors.arrays import host
from proxfed.compressors.error_bounded import ErrorBoundedQuantiser
from proxfed.compressors.rows_apart import CurvaturePieces, QuantisedRows, factor_code, factor_of, size_code, size_of
from proxfed.keyed_random import Key, normals
from proxfed.types import Facts, Local, Message, Needs, Regulariser, Sends, Star

GRADES = (0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
"""q^2 of messages: half a byte says which."""

PIECES = 64
"""That a client keeps: when there is no room for more, it sends none."""

FULL = 1024
"""Up to this d the server has the mean of the Hh_i as a matrix; beyond, as so many pieces at most."""

LANCZOS = 12
"""Hessian products from which a client computes an eigenvector."""

INNER = 5000
"""Steps on the model of phi, at most."""

TOLERANCE = 1e-8
"""Of them: an entry that moves by less, relative to the longest way of one, stands still."""

LESS = 2.0**0.25
"""After a step that was too long, sigma stays above twice what it was then; that wears off by so much a round."""

PATIENCE = 12
"""Rounds that need not be good."""

FAR_BITS = 20.0
"""A piece must pay within the messages of so many further bits of accuracy."""

Times = Callable[[Tensor], Tensor]


class Client(NamedTuple):
    y: Tensor  # public: where gradients are taken
    u: Tensor  # what the server knows of the own gradient
    q: Tensor  # public: the last step
    kept_y: Tensor  # public: where the certified residual was least
    kept_u: Tensor  # what the server knew there
    P: Tensor  # (c, PIECES, d) pieces
    a: Tensor  # (c, PIECES) their factors
    pieces: Tensor  # (c,) how many of them there are


class Numbers(NamedTuple):
    """What the server remembers besides vectors."""

    l2: float
    round: float = 0.0
    sigma: float = 1.0  # delta is so many times the mean of the l_i
    least: float = 0.0  # what sigma does not fall below: it was too small
    delta: float = 0.0  # damping
    kappa: float = 0.99  # contraction of the last step
    l: float = 0.0  # mean of the l_i
    fall: float = 0.5  # what a piece leaves of it
    L: float = 0.0  # largest curvature seen
    nu: float = 0.0  # standard deviation of what compression hides of c
    noise: float = 0.0  # its square, in the norm of B^-1
    base_nu: float = 0.0  # both where the last step began
    base_noise: float = 0.0
    kept_e: float = inf  # bound of what was hidden at the kept point
    tau: float = 1.0  # how much of the last step is left
    tries: float = 0.0  # how often it was shortened
    back: float = 0.0  # quarters of an octave by which it is shortened next
    floor: float = 0.0  # least damping
    since: float = 0.0  # the last good round
    up: float = 1.0  # grade of the messages up
    down: float = 1.0  # and down
    ask: float = 1.0  # for a piece
    mark: float = 0.0  # this point is to be kept
    to_kept: float = 0.0  # the next step begins at the kept point
    used: float = 0.0  # pieces that the server has


class Server(NamedTuple):
    x: Tensor  # the model
    y: Tensor  # public
    c: Tensor  # mean of all u
    q: Tensor  # public: the last step
    Bq: Tensor  # what the model said that it would do to c
    base_c: Tensor  # c where it began
    kept_y: Tensor  # public: where the certified residual was least
    kept_c: Tensor
    H: Tensor  # (d, d) the mean of the Hh_i; (0, 0) where d is large: then
    P: Tensor  # (FULL, d) pieces
    a: Tensor  # (FULL,) and their factors
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
        y, d = h.prox(x0, 0.0), len(x0)
        zero, rows = torch.zeros_like(y), f.spread(y)
        own = torch.zeros_like(rows, memory_format=torch.contiguous_format)
        P = y.new_zeros(len(rows), PIECES, d)
        count = torch.zeros(len(rows), dtype=torch.int64, device=y.device)
        side, room = (d, 0) if d <= FULL else (0, FULL)
        server = Server(
            y, y, zero, zero, zero, zero, y, zero, y.new_zeros(side, side), y.new_zeros(room, d), y.new_zeros(room),
            y.new_zeros(2, d), y.new_tensor(Numbers(f.l2)),
        )  # fmt: skip
        return Client(rows, own, own, rows, own, P, P[:, :, 0], count), server

    # ---- down ----------------------------------------------------------------------------------------------------

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
        predicted = (self._known(s, n)(moved.double()) + n.l2 * moved.double()).to(moved)
        numbers = n._replace(tau=n.tau * left if n.back else 1.0, round=n.round + 1)
        s = s._replace(y=s.y + moved, c=s.c + predicted, q=q, Bq=left * s.Bq, numbers=s.numbers.new_tensor(numbers))
        return s, (sent, torch.from_numpy(control).to(s.x.device))

    def _known(self, s: Server, n: Numbers) -> Times:
        """p (d,) -> mean Hh_i p, in float64."""
        if s.H.numel():
            return lambda p: s.H.double() @ p
        P, a = s.P[: int(n.used)].double(), s.a[: int(n.used)].double()
        return lambda p: P.mT @ (a * (P @ p))

    # ---- clients -------------------------------------------------------------------------------------------------

    def client(self, own: Client, down: Message, f: Local, h: Regulariser) -> tuple[Client, Message]:
        sent, control = down
        first, second = (int(byte) for byte in control)
        up, ask, mark, to_kept = first & 15, first >> 4 & 1, first >> 5 & 1, first >> 6 & 1
        back, threshold = (second, 0) if first >> 7 else (0, second)
        y, u = own.y, own.u
        kept_y, kept_u = (y, u) if mark else (own.kept_y, own.kept_u)
        if to_kept:
            y, u = kept_y, kept_u
        q, moved, _ = _moved(own.q, sent, back)
        k = int(own.pieces.max()) if len(own.pieces) else 0
        P, a = own.P, own.a
        y = y + moved
        u = u + _pieces(P[:, :k], a[:, :k], moved.expand_as(u)) + f.l2 * moved
        D = self.compressor_up.within(f.full_grad(y) - u, GRADES[up])
        H, start = f.hessian(y), torch.from_numpy(normals(f.key, 2 * y.shape[1])).to(y)
        start, again = start.chunk(2, 1)

        def rest(V: Tensor) -> Tensor:
            return H(V) - f.l2 * V - _pieces(P, a, V)

        l, v, next_l = top_eigenvector(rest, start)
        code, count = np.zeros(len(y), np.uint8), own.pieces
        room = count < P.shape[1]
        send = room & (l > 0) & (l >= float(size_of(np.array(threshold)))) if ask else torch.zeros_like(room)
        packed = self.compressor_up.within((v * l.sqrt()[:, None]) * send[:, None], piece_grade(host(next_l / l)))
        if ask:  # all do the same work, whoever has a piece: it must not depend on who is in the block
            w = packed.dense
            size = (w * w).sum(1)
            best = torch.where(send & (size > 0), (w * rest(w)).sum(1) / size.square().clamp_min(1e-300), 0.0)
            code = factor_code(host(best))
            factor = torch.from_numpy(factor_of(code)).to(y)
            new = (torch.arange(P.shape[1], device=y.device) == count[:, None]) & (factor != 0)[:, None]
            P, a = torch.where(new[:, :, None], w[:, None], P), torch.where(new, factor[:, None], a)
            count = count + (factor != 0)
            l = top_eigenvector(rest, again)[0]
        E = self.pieces.pack(size_code(host(l)), code, packed)
        return Client(y, u + D.dense, q.expand_as(y), kept_y, kept_u, P, a, count), (D, E)

    # ---- server --------------------------------------------------------------------------------------------------

    def server(self, s: Server, up: tuple[Tensor, Tensor], h: Regulariser, share: float) -> Server:
        n, w, D, l, a, V = Numbers(*s.numbers.tolist()), *_read(up)
        c, y, q2 = s.c.double() + w @ D, s.y.double(), GRADES[int(n.up)]
        size = (D * D).sum(1)
        nu = sqrt(q2 * float(w.square() @ size))
        e = sqrt(q2) / (1 - sqrt(q2)) * float(w @ size.sqrt())
        mean_l = float(w @ l)
        before = float(w @ torch.maximum(l, a.abs() * (V * V).sum(1)))
        fall = min(max(mean_l / before, 0.1), 0.97) if before > 0 and bool((a != 0).any()) else n.fall
        if n.round == 1:
            alike = float(c @ c) > 0.9 * float(w @ size)
            n = n._replace(L=max(n.l2 + before + mean_l, 1e-12), sigma=1.0 if alike else float(w.norm()))
            pair = torch.zeros_like(s.pair)
        else:
            n, pair = self._measure(s, n, c, nu, q2 * float(w.square() @ size))
        s = self._with_pieces(s, n, w * a, V)
        n = n._replace(l=mean_l, fall=fall, nu=nu, used=n.used + (len(w) if bool((a != 0).any()) else 0))
        if n.back:
            return s._replace(c=c.to(s.c), numbers=s.numbers.new_tensor(n._replace(ask=0.0, mark=0.0, to_kept=0.0)))
        n = self._watched(s, n, c, e, h)
        if n.to_kept:
            y, c, pair = s.kept_y.double(), s.kept_c.double(), torch.zeros_like(s.pair)
        n = n._replace(sigma=min(n.sigma, 4 * n.L / max(n.l, 1e-300)))
        n = n._replace(delta=max(n.sigma * n.l, n.floor), base_nu=nu, base_noise=n.noise)
        if n.floor >= n.L:  # safe mode: that of the theorem
            n = n._replace(kappa=max(n.l2 / (8 * n.L), sqrt(GRADES[-1])))
        s = s._replace(c=c.to(s.c) if not n.to_kept else s.c, pair=pair)
        B = self._metric(s, n)
        p = model_step(B, y, c, h, INNER, TOLERANCE)
        q, down = self._step(B, (y + p).to(s.y) - y.to(s.y), n.kappa)
        up_grade = self._grade_up(B, p, n, float(w.norm()))
        ask = self._asks(n, len(s.y), len(w), s)
        n = n._replace(down=down, up=up_grade, ask=float(ask))
        return s._replace(x=(y + p).to(s.x), Bq=B(q.double()).to(s.q), numbers=s.numbers.new_tensor(n))

    def _measure(self, s: Server, n: Numbers, c: Tensor, nu: float, hidden: float) -> tuple[Numbers, Tensor]:
        """(what t says of sigma, kappa, L and the way back; the new secant pair), from what the last step did."""
        q, Bq, none = s.q.double(), s.Bq.double(), torch.zeros_like(s.pair)
        dg, qB = c - s.base_c.double(), float(q @ Bq)
        if qB <= 0:
            return n._replace(back=0.0, tries=0.0), none
        B = self._metric(s, n)
        noise, rest = hidden * float(B.mean_inverse), dg - Bq
        kappa = sqrt(max(float(rest @ B.solve(rest)) - n.base_noise - noise, 0) / qB)
        n = n._replace(kappa=min(max(kappa, n.kappa / 4, 0.01), 0.99), noise=noise)
        along, nz = float(dg @ q), nu + n.base_nu
        t, ray = n.tau * along / qB, along / float(q @ q)
        clear = float(dg.norm()) > 2 * nz
        if clear and ray > n.L:
            n = n._replace(L=1.05 * ray)
        far = t > 1.5 + n.tau * nz * float(q.norm()) / qB and n.tries < 12
        if far:
            shorter = min(max(-floor(-4 * log2(t)), 2), 26)
            sigma = max(2 * n.sigma, 0.5 * ray / max(n.l, 1e-300))
            least = 2 * n.delta / max(n.l, 1e-300)
            return n._replace(back=float(shorter), tries=n.tries + 1, sigma=sigma, least=least), none
        least = n.least / LESS
        sigma = 2 * n.sigma if t > 1.1 else max(n.sigma / 2, least) if t < 0.9 else n.sigma
        pair = torch.stack([q, dg]).to(s.pair) if along > 0.05 * qB and clear else none
        return n._replace(back=0.0, tries=0.0, sigma=sigma, least=least), pair

    def _with_pieces(self, s: Server, n: Numbers, a: Tensor, V: Tensor) -> Server:
        if not bool((a != 0).any()):
            return s
        if s.H.numel():
            return s._replace(H=(s.H.double() + (V * a[:, None]).mT @ V).to(s.H))
        where = slice(int(n.used), int(n.used) + len(a))
        P, factors = s.P.clone(), s.a.clone()
        P[where], factors[where] = V.to(P), a.to(factors)
        return s._replace(P=P, a=factors)

    def _metric(self, s: Server, n: Numbers) -> Metric:
        """B."""
        d, b, least = len(s.y), n.l2 + n.delta, max(n.l2 / 2, 1e-10 * n.L)
        pair = s.pair.double()
        if n.floor >= n.L:
            return Metric.of(n.L, pair.mT[:, :0], pair[:0, :0])
        known = self._known(s, n)
        step, change = pair
        Bs = known(step) + b * step
        there = float(step @ change) > 0 and float(step @ Bs) > 0.1 * least * float(step @ step)
        more = torch.stack([Bs, change], 1) if there else pair.mT[:, :0]
        M = torch.diag(torch.stack([-1 / (step @ Bs), 1 / (step @ change)])) if there else pair[:0, :0]
        if s.H.numel():
            return Metric.full(s.H.double() + b * torch.eye(d).to(pair) + more @ M @ more.mT, least)
        k = int(n.used)
        return Metric.of(
            b, torch.cat([s.P[:k].double().mT, more], 1), torch.block_diag(s.a[:k].double().diag(), M), least
        )

    def _watched(self, s: Server, n: Numbers, c: Tensor, e: float, h: Regulariser) -> Numbers:
        """Whether the round was good, and what is done if none is."""
        y, q = s.y.double(), s.q.double()
        G, least = _residual(y, c, n.L, h) + e, inf
        if n.kept_e < inf:
            least = _residual(s.kept_y.double(), s.kept_c.double(), n.L, h) + n.kept_e
        fell = -float(c @ q + h.value(y) - h.value(y - q)) - e * float(q.norm())
        good, mark = 0.9 * least > G or fell >= G * G / (100 * n.L), least > G
        n = n._replace(mark=float(mark), to_kept=0.0, kept_e=e if mark else n.kept_e)
        if good:
            return n._replace(since=0.0, floor=n.floor / 2 if n.floor > n.L / 256 else 0.0)
        if n.since < PATIENCE:
            return n._replace(since=n.since + 1)
        return n._replace(since=0.0, floor=min(max(4 * n.floor, n.L / 64), n.L), to_kept=float(not mark))

    def _step(self, B: Metric, step: Tensor, kappa: float) -> tuple[Tensor, float]:
        """(q, its grade): the coarsest that loses no more than the last step left."""
        allowed = min(max(kappa, 1e-3), sqrt(0.1)) * B.norm(step.double())
        for grade in range(1, len(GRADES)):
            q = self.compressor_down.within(step[None], GRADES[grade]).dense[0]
            if B.norm((q - step).double()) <= allowed:
                break
        return q, float(grade)

    def _grade_up(self, B: Metric, p: Tensor, n: Numbers, share: float) -> float:
        """Noise of the messages up passes through B^-1: what is asked of them is kappa, less that."""
        amplified = n.l * float(p.norm()) * sqrt(float(B.mean_inverse)) * share / max(B.norm(p), 1e-300)
        wanted = n.kappa * min(1.0, 0.5 / max(amplified, 1e-300))
        return float(max(1, next((k for k, q2 in enumerate(GRADES) if sqrt(q2) <= wanted), len(GRADES) - 1)))

    def _asks(self, n: Numbers, d: int, clients: int, s: Server) -> bool:
        """Whether a piece saves more bytes than it costs."""

        def message(q: float) -> float:
            return d * log2(1 / min(q, 0.32)) / 8 + 0.05 * d + 5

        def left(kappa: float) -> float:
            return FAR_BITS / log2(1 / kappa) * 2 * message(kappa)

        room = s.H.numel() > 0 or n.used + clients <= FULL
        return room and left(n.kappa) - left(max(n.fall * n.kappa, 0.01)) > message(0.1) + 1


def _moved(last: Tensor, sent: Tensor, back: int) -> tuple[Tensor, Tensor, float]:
    """(the step, what y moves by, what is left of the last step): the one that was sent, or the last one, shortened."""
    if not back:
        return sent, sent, 1.0
    left = 2.0 ** (-back / 4)
    return left * last, (left - 1) * last, left


def _pieces(P: Tensor, a: Tensor, V: Tensor) -> Tensor:
    """sum_k a_k p_k p_k' V of each client, (c, d)."""
    return ((a * (P @ V[:, :, None])[:, :, 0])[:, None] @ P)[:, 0]


def _read(up: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Weights, gradients' rests, l, a, v: of all clients, in float64."""
    D, E = (rows.double() for rows in up)
    return D[:, 0], D[:, 1:], E[:, 1], E[:, 2], E[:, 3:]


def _residual(y: Tensor, c: Tensor, L: float, h: Regulariser) -> float:
    """The norm of the prox-gradient map."""
    return L * float((y - h.prox(y - c / L, 1 / L)).norm())


def piece_grade(ratio: np.ndarray) -> np.ndarray:
    """(c,): q^2 of a piece, whose q is about half of what the second eigenvalue is of the first."""
    q = np.maximum(0.5 * np.nan_to_num(ratio), 2e-3)
    grade = np.argmax(np.sqrt(np.array(GRADES))[None] <= q[:, None], 1)
    found: np.ndarray = np.array(GRADES)[np.clip(grade, 2, 5)]
    return found


def top_eigenvector(times: Times, start: Tensor, steps: int = LANCZOS) -> tuple[Tensor, Tensor, Tensor]:
    """(|e_1|, its vector, |e_2|), (c,), (c, d), (c,), of symmetric matrices, by the size of their eigenvalues: Lanczos'
    iteration from rows `start`, (c, d), with all vectors kept orthogonal."""
    k, d = min(steps, start.shape[1]), start.shape[1]
    v = start / start.norm(dim=1, keepdim=True)
    V, T = start.new_zeros(len(start), k, d), start.new_zeros(len(start), k, k)
    for j in range(k):
        V[:, j] = v
        w = times(v)
        for _ in range(2):
            part = V[:, : j + 1] @ w[:, :, None]
            w = w - (part.mT @ V[:, : j + 1])[:, 0]
            T[:, : j + 1, j] += part[:, :, 0]
        size = w.norm(dim=1, keepdim=True)
        v = torch.where(size > torch.finfo(w.dtype).tiny, w / size.clamp_min(torch.finfo(w.dtype).tiny), 0.0)
    e, Z = torch.linalg.eigh(T.triu() + T.triu(1).mT)
    order = e.abs().argsort(1, descending=True)
    sizes = e.abs().gather(1, order)
    best = Z.gather(2, order[:, None, :1].expand(-1, k, 1)).mT
    vector = (best @ V)[:, 0]
    vector = vector / vector.norm(dim=1, keepdim=True).clamp_min(torch.finfo(vector.dtype).tiny)
    return sizes[:, 0], vector, sizes[:, 1] if k > 1 else sizes[:, 0]
