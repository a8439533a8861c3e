"""What one organisation answers: sums over its rows, at points. The one place where a fit computes from rows.

    value     sum w l(s)            gradient  sum w l'(s) a            Hessian  sum w l''(s) a a'
    products  sum over clusters of u u', u being the sum of w l'(s) a over the rows of a cluster

s = a'x + offset; a are the features of a row, and 1 for an intercept that all organisations share. Products are what
standard errors need that do not trust the model. A survival time has no loss of its own: its u is Lin and Wei's score
residual (problems/linear/cox.py).

An intercept of the organisation's own never leaves it. At every point it is where the loss is least, and it is
eliminated as a block, which gives the derivatives of the profile likelihood (a: that of the intercept, b: all others):

    gradient  g_b        Hessian  H_bb - H_ba H_ab / H_aa        u_b - H_ba u_a / H_aa

For rows that a fold holds out, the intercept is that of the organisation's other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from proxfed.errors import require
from proxfed.fit.oracle import ALL, Gram, Part, Question, Sums
from proxfed.fit.own_rows import OwnRows, dense
from proxfed.problems.linear.cox import Cox, by_time
from proxfed.problems.losses import Huber, Logistic, Loss, OneHot, Poisson, Squared

FURTHEST = 30.0
"""Where an intercept ends that would be infinite, for rows that are held out."""


def answer(
    own: OwnRows, questions: Sequence[Question], factors: Tensor | None = None, own_intercepts: bool = False
) -> list[Sums]:
    """One for each; `factors`: (classes,) by which rows count more."""
    d = own.outputs * own.width if own_intercepts else own.d
    answers: list[Sums | None] = [None] * len(questions)
    for part in dict.fromkeys(q.part for q in questions):
        for order in (0, 1):  # a question for values alone need not wait for gradients
            where = [i for i, q in enumerate(questions) if q.part == part and min(q.order, 1) == order]
            asked = [questions[i] for i in where]
            for q in asked:
                require(q.x.shape == (d,), f"x has shape {tuple(q.x.shape)}, but d = {d}")
                require(not q.products or (q.order == 2 and not part.held_out), "products go with Hessians alone")
            if not own.loss.separate:
                found = _of_survival(own, asked, part)
            elif own_intercepts:
                found = _profiled(own, asked, part, order, factors)
            else:
                found = _separate(own, asked, part, order, factors, own.intercept)
            for i, each in zip(where, found, strict=True):
                answers[i] = each
    return [each for each in answers if each is not None]


def dominance(own: OwnRows, question: Question) -> float:
    """The largest share of one row in sum_i w_i e^(score), which sums of losses that grow so are made of; with
    products, that of one cluster in the sum of squares as well."""
    scores = [torch.zeros(0, dtype=torch.float64)]
    for rows, A in own.chunks(question.part, 1):
        shift = 0.0 if own.shift is None else own.shift[rows]
        scores.append(A @ question.x[: own.width] + shift + own.w[rows].log())
    share = torch.cat(scores).softmax(0)
    if not len(share):
        return 0.0
    most = float(share.max())
    if question.products == "cluster":
        place, count = own.cluster
        share = torch.zeros(count, dtype=torch.float64).index_add(0, place, share)
    squares = share.square()
    return max(most, float(squares.max() / squares.sum())) if question.products in ("row", "cluster") else most


def leverage(own: OwnRows, x: Tensor, factors: Tensor | None = None) -> float:
    """The largest share of one row in the curvature of the loss at the organisation's own intercept: where it is near
    1, this row alone says where the intercept is."""
    a = own_intercept(own, x, factors=factors)
    if not np.isfinite(a):
        return 0.0
    s = torch.cat([A @ x for _, A in own.chunks(ALL, 1)]) + a
    s = s if own.shift is None else s + own.shift
    curvature = own.loss.second(s[None, None], own.b[None])[0, 0, 0] * own.weights(factors)
    total = float(curvature.sum())
    return float(curvature.max()) / total if total > 0 else 1.0


# ---- losses of single rows -------------------------------------------------------------------------------------------


def _separate(
    own: OwnRows, asked: list[Question], part: Part, order: int, factors: Tensor | None, intercept: bool
) -> list[Sums]:
    if not asked:
        return []
    Q, q, p = len(asked), own.outputs, own.width
    d = q * (p + intercept)
    x = torch.stack([each.x for each in asked])
    W, bias = x[:, : q * p].reshape(Q * q, p), x[:, q * p :]
    values = torch.zeros(Q, dtype=torch.float64)
    gradients = torch.zeros(Q, d, dtype=torch.float64)
    hessians = {i: _square(each.columns, d) for i, each in enumerate(asked) if each.order > 1}
    products = {i: _Products(own, each, d) for i, each in enumerate(asked) if each.products}
    w = own.weights(factors)
    for rows, A in own.chunks(part, 4 * Q * q + (d if products else 0)):
        s = (W @ A.mT).view(Q, q, -1)
        if intercept:
            s += bias[:, :, None]
        if own.shift is not None:
            s += own.shift[rows]
        b, v = own.b[rows].expand(Q, -1), w[rows].expand(Q, -1)
        values += own.loss.weighted_value(s, b, v).sum(1)
        for i, H in hessians.items():
            second = own.loss.second(s[i : i + 1], b[:1])[0] * v[0]
            columns = asked[i].columns
            if columns is None:
                _add_hessian(H, A, second, intercept)
            else:
                _add_some(H, A, second, columns)
        if order:
            slope = own.loss.weighted_slope(s, b, v)
            gradients[:, : q * p] += (slope.reshape(Q * q, -1) @ A).view(Q, q * p)
            if intercept:
                gradients[:, q * p :] += slope.sum(2)
            for i, each in products.items():
                each.add(_row_by_row(slope[i], A, intercept), rows)
    return [
        Sums(
            float(values[i]),
            gradients[i] if order else None,
            _symmetric(hessians.get(i)),
            products[i].matrix if i in products else None,
        )
        for i in range(Q)
    ]


def _add_hessian(H: Tensor, A: Tensor, second: Tensor, intercept: bool) -> None:
    """The sum over rows of second[k, l] a a', a being a row's features and 1; the upper half of the blocks."""
    q, p = len(second), A.shape[1]
    for k in range(q):
        for l in range(k, q):
            c = second[k, l]
            if k == l:  # no curvature of a loss in one of its scores is below 0
                root = A * c.sqrt()[:, None]
                block = root.mT @ root
            else:
                block = A.mT @ (A * c[:, None])
            H[k * p : (k + 1) * p, l * p : (l + 1) * p] += block
            if intercept:
                edge = c @ A
                H[k * p : (k + 1) * p, q * p + l] += edge
                if k != l:
                    H[l * p : (l + 1) * p, q * p + k] += edge
                H[q * p + k, q * p + l] += c.sum()


def _add_some(H: Tensor, A: Tensor, second: Tensor, columns: Tensor) -> None:
    """The same, of these coordinates of x alone: sum over rows of second[k, l] a_i a_j."""
    q, p = len(second), A.shape[1]
    weight = columns < q * p
    output = torch.where(weight, columns // max(p, 1), columns - q * p)
    a = torch.ones(len(A), len(columns), dtype=torch.float64)
    a[:, weight] = A[:, columns[weight] % p] if p else a[:, weight]
    for k in output.unique().tolist():
        for m in output.unique().tolist():
            one, two = (output == k).nonzero()[:, 0], (output == m).nonzero()[:, 0]
            H[one[:, None], two] += a[:, one].mT @ (a[:, two] * second[k, m][:, None])


def _square(columns: Tensor | None, d: int) -> Tensor:
    k = d if columns is None else len(columns)
    return torch.zeros(k, k, dtype=torch.float64)


def _symmetric(H: Tensor | None) -> Tensor | None:
    """From its upper blocks; the diagonal ones are whole."""
    return None if H is None else torch.triu(H) + torch.triu(H, 1).mT


# ---- products --------------------------------------------------------------------------------------------------------


def _row_by_row(slope: Tensor, A: Tensor, intercept: bool) -> Tensor:
    """(m, d) w l'(s) a of every row, from (outputs, m) slopes."""
    of_weights = (slope.mT[:, :, None] * A[:, None, :]).reshape(len(A), -1)
    return torch.cat([of_weights, slope.mT], 1) if intercept else of_weights


class _Products:
    """The sum over clusters of u u', from rows that come some at a time."""

    def __init__(self, own: OwnRows, question: Question, d: int) -> None:
        self.columns = question.columns
        k = d if self.columns is None else len(self.columns)
        self.place: Tensor | None = None
        self.total = torch.zeros(k, k, dtype=torch.float64)
        self.u = torch.zeros(0, k, dtype=torch.float64)
        if question.products != "row":
            one = torch.zeros(len(own.labels), dtype=torch.int64), 1
            self.place, count = one if question.products == "organisation" else own.cluster
            self.u = torch.zeros(count, k, dtype=torch.float64)

    def add(self, u: Tensor, rows: slice | Tensor) -> None:
        u = u if self.columns is None else u[:, self.columns]
        if self.place is None:
            self.total += u.mT @ u
        else:
            self.u.index_add_(0, self.place[rows], u)

    @property
    def matrix(self) -> Tensor:
        return self.total if self.place is None else self.u.mT @ self.u


# ---- an intercept of the organisation's own --------------------------------------------------------------------------


def own_intercept(own: OwnRows, x: Tensor, part: Part = ALL, factors: Tensor | None = None) -> float:
    """What the organisation adds to every score at x, from the rows that a fold is fitted to; infinite if all of them
    have the same outcome."""
    part = Part(part.fold) if part.fold is not None else ALL
    rows = torch.cat([torch.arange(s.start, s.stop) for s in own.slices(part)])
    require(len(rows) > 0, "an organisation without rows to fit to has no intercept of its own")
    s = torch.cat([A @ x for _, A in own.chunks(part, 1)])
    s = s if own.shift is None else s + own.shift[rows]
    b, w = own.b[rows], own.weights(factors)[rows]
    if isinstance(own.loss, (Logistic, Poisson)):
        some = b[w > 0] > 0
        if not some.any():
            return -np.inf
        if isinstance(own.loss, Logistic) and some.all():
            return np.inf

    def derivative(a: float) -> tuple[float, float]:
        t = (s + a)[None, None]
        second = own.loss.second(t, b[None])[0, 0, 0]
        return float(own.loss.slope(t.clone(), b[None])[0, 0] @ w), float(second @ w)

    return root(derivative)


def _profiled(own: OwnRows, asked: list[Question], part: Part, order: int, factors: Tensor | None) -> list[Sums]:
    d = own.outputs * own.width
    with_own: list[Question] = []
    silent = []
    for q in asked:
        a = own_intercept(own, q.x, part, factors)
        silent.append(not np.isfinite(a) and not part.held_out)  # all its rows fit, whatever the coefficients are
        columns = None if q.columns is None else torch.cat([q.columns, torch.tensor([d])])
        x = torch.cat([q.x, q.x.new_tensor([_at_most(own, q.x, a)])])
        with_own.append(q._replace(x=x, columns=columns))
    found = _separate(own, with_own, part, order, factors, True)
    return [_eliminated(one, no) for one, no in zip(found, silent, strict=True)]


def _at_most(own: OwnRows, x: Tensor, a: float) -> float:
    """An intercept that a computer can add."""
    if np.isfinite(a):
        return a
    s = torch.cat([A @ x for _, A in own.chunks(ALL, 1)])
    s = s if own.shift is None else s + own.shift
    return FURTHEST - float(s.min()) if a > 0 else -FURTHEST - float(s.max())


def _eliminated(found: Sums, silent: bool) -> Sums:
    """Without the last coordinate, the organisation's own intercept."""
    value, g, H, M = found
    if silent:
        value, g, H, M = 0.0, *(None if part is None else torch.zeros_like(part) for part in (g, H, M))
    if H is None or g is None:
        return Sums(value, None if g is None else g[:-1])
    mass = float(H[-1, -1])
    z = H[:-1, -1] / mass if mass > 1e-9 else torch.zeros_like(H[:-1, -1])
    T = torch.cat([torch.eye(len(z), dtype=H.dtype), -z[:, None]], 1)
    less = H[:-1, :-1] - torch.outer(z, H[-1, :-1]) if mass > 1e-9 else torch.zeros_like(H[:-1, :-1])
    return Sums(value, g[:-1], less, None if M is None else T @ M @ T.mT)


def check_one_score(loss: Loss) -> None:
    """Refused if there cannot be an intercept for each organisation."""
    fits = loss.separate and not loss.classes
    require(fits, "site_intercepts are for losses with one score: logistic, squared, huber and poisson")


def root(derivative: Callable[[float], tuple[float, float]]) -> float:
    """Where an increasing function is 0, by Newton's method inside a bracket; it is given with its derivative."""
    low, high, a, reach = -np.inf, np.inf, 0.0, 10.0
    for _ in range(200):
        g, h = derivative(a)
        if g == 0:
            return a
        low, high = (a, high) if g < 0 else (low, a)
        step = a - g / h if h > 0 else np.inf
        if not low < step < high or abs(step - a) > 10:
            bracketed = np.isfinite(low) and np.isfinite(high)
            step = (low + high) / 2 if bracketed else a + (reach if g < 0 else -reach)
            reach *= 2
        if abs(step - a) <= 1e-15 * max(1.0, abs(a)):
            return float(step)
        a = float(step)
    return a


# ---- survival --------------------------------------------------------------------------------------------------------


def _of_survival(own: OwnRows, asked: list[Question], part: Part) -> list[Sums]:
    """Rows are compared with each other: those that are held out have what all rows have less what the others have."""
    if part.fold is None or not part.held_out:
        return [_at_risk(own, q, part) for q in asked]
    every = [_at_risk(own, q, ALL) for q in asked]
    without = [_at_risk(own, q, Part(part.fold)) for q in asked]
    return [_less(a, b) for a, b in zip(every, without, strict=True)]


def _at_risk(own: OwnRows, question: Question, part: Part) -> Sums:
    assert isinstance(own.loss, Cox)
    rows = np.concatenate([np.arange(s.start, s.stop) for s in own.slices(part)])
    order = rows[by_time(own.b[rows].numpy(), np.array([0, len(rows)]))]
    m, w = len(order), own.w[order]
    total = float(w.sum())
    x, columns = question.x, question.columns
    if m == 0 or not total > 0:
        second = _square(columns, own.d) if question.order > 1 else None
        third = _square(columns, own.d) if question.products else None
        return Sums(0.0, torch.zeros(own.d, dtype=torch.float64) if question.order > 0 else None, second, third)
    A = dense(own.A[order])
    s, b, v = A @ x, own.b[order], w * (m / total)
    s = s if own.shift is None else s + own.shift[order]
    scale = total / m
    value = scale * float(own.loss.weighted_value(s[None, None], b[None], v[None]).sum())
    if question.order == 0:
        return Sums(value)
    gradient = scale * (own.loss.weighted_slope(s[None, None], b[None], v[None])[0, 0] @ A)
    if question.order == 1:
        return Sums(value, gradient)
    hessian = scale * own.loss.hessian(s, b, v, A if columns is None else A[:, columns])
    if not question.products:
        return Sums(value, gradient, hessian)
    products = _Products(own, question, own.d)
    products.add(scale * own.loss.residuals(s, b, v, A), torch.from_numpy(order))
    return Sums(value, gradient, hessian, products.matrix)


def _less(a: Sums, b: Sums) -> Sums:
    def less(one: Tensor | None, two: Tensor | None) -> Tensor | None:
        return None if one is None or two is None else one - two

    return Sums(a.value - b.value, less(a.gradient, b.gradient), less(a.hessian, b.hessian))


# ---- squared losses --------------------------------------------------------------------------------------------------


def grams(own: OwnRows, factors: Tensor | None = None) -> list[Gram]:
    """One for each fold, of squared losses."""
    known = isinstance(own.loss, (Squared, OneHot, Huber))
    require(known, f"loss = {type(own.loss).__name__}: only squared losses and Huber's have Gram matrices")
    folds = [Part(k, held_out=True) for k in range(own.folds)] if own.fold is not None else [ALL]
    return [_gram(own, part, own.weights(factors)) for part in folds]


def _gram(own: OwnRows, part: Part, w: Tensor) -> Gram:
    p, q = own.width, own.outputs
    k = p + own.intercept
    matrix, products = (torch.zeros(n, k, dtype=torch.float64) for n in (k, q))
    weight = square = 0.0
    for rows, A in own.chunks(part, q):
        v, b = w[rows], own.b[rows]
        Y = torch.nn.functional.one_hot(b, q).double() if own.loss.classes else b[:, None]
        Y = Y if own.shift is None else Y - own.shift[rows, None]
        root_A = A * v.sqrt()[:, None]
        matrix[:p, :p] += root_A.mT @ root_A
        products[:, :p] += (Y * v[:, None]).mT @ A
        weight += float(v.sum())
        square += float(v @ Y.square().sum(1))
        if own.intercept:
            matrix[:p, p] += v @ A
            products[:, p] += v @ Y
    if own.intercept:
        matrix[p, :p] = matrix[:p, p]
        matrix[p, p] = weight
    return Gram(weight, square, products, matrix)
