"""Sums over an organisation's rows for losses that are sums over single rows: values, gradients, Hessians, products."""

from __future__ import annotations

import torch
from torch import Tensor

from proxfed.fit.oracle import Part, Question, Sums
from proxfed.fit.own_products import Products, row_by_row, zeros
from proxfed.fit.own_rows import OwnRows


def separate(
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
    hessians = {i: zeros(each.columns, d) for i, each in enumerate(asked) if each.order > 1}
    products = {i: Products(own, each, d) for i, each in enumerate(asked) if each.products}
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
                each.add(row_by_row(slope[i], A, intercept), rows)
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
    """The same sum, for these coordinates of x only: second[k, l] a_i a_j over rows."""
    q, p = len(second), A.shape[1]
    weight = columns < q * p
    output = torch.where(weight, columns // max(p, 1), columns - q * p)
    a = torch.ones(len(A), len(columns), dtype=torch.float64)
    a[:, weight] = A[:, columns[weight] % p] if p else a[:, weight]
    for k in output.unique().tolist():
        for m in output.unique().tolist():
            one, two = (output == k).nonzero()[:, 0], (output == m).nonzero()[:, 0]
            H[one[:, None], two] += a[:, one].mT @ (a[:, two] * second[k, m][:, None])


def _symmetric(H: Tensor | None) -> Tensor | None:
    """From its upper blocks; the diagonal ones are whole."""
    return None if H is None else torch.triu(H) + torch.triu(H, 1).mT
