"""What one organisation answers, from its own rows: the one place where a fit looks at rows.

`Here` adds the answers of organisations whose tables lie here. Between organisations the holder of a table gives the
same answers, so that a model is the same wherever the tables lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from proxfed import keyed_random
from proxfed.data.federated import Federated
from proxfed.data.sparse_rows import Features, SparseRows
from proxfed.errors import require
from proxfed.fit.oracle import (
    NUMBER,
    Gram,
    Part,
    Question,
    Sums,
    Traffic,
    answer_bytes,
    gram_bytes,
    question_bytes,
)
from proxfed.problems.linear.cox import Cox, by_time
from proxfed.problems.losses import Huber, Logistic, Loss, OneHot, Squared
from proxfed.tables.folds import together

HESSIAN = 2000
"""Coordinates that a Hessian has at most, where nobody has to hide anything: 16 MB of each organisation."""

AT_A_TIME = 1 << 20
"""Numbers that a pass over the rows has in hand at once."""


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The rows of one organisation, and the sums over them that a fit asks for; all in float64."""

    features: Features
    """(m, p), prepared."""
    labels: np.ndarray
    """(m,) as the loss takes them."""
    loss: Loss
    intercept: bool = True
    classes: int | None = None
    """How many there are over all organisations, if labels are 0, 1, ...; None: they are numbers, times, or -1 and
    +1."""
    sample_weights: np.ndarray | None = None
    """(m,); None: every row counts 1."""
    folds: int = 0
    """How many there are over all organisations; 0: none."""
    fold: np.ndarray | None = None
    """(m,) that of each row; an organisation that is left out as a whole has all rows in its own."""
    share: float | None = None
    """What all its rows weigh together, if not what they are: 1 where every organisation counts the same."""

    @cached_property
    def outputs(self) -> int:
        """Scores of a row."""
        return int(self.classes or 0) if self.loss.classes else 1

    @cached_property
    def d(self) -> int:
        """Length of x."""
        return self.outputs * (int(self.features.shape[1]) + self.intercept)

    # ---- rows, by fold -----------------------------------------------------------------------------------------

    @cached_property
    def _order(self) -> np.ndarray | slice:
        """Rows by fold, so that a part is one slice or two."""
        return slice(None) if self.fold is None else np.argsort(self.fold, kind="stable")

    @cached_property
    def _A(self) -> Features:
        features = self.features if isinstance(self._order, slice) else self.features[self._order]
        return features if isinstance(features, SparseRows) else np.ascontiguousarray(features, np.float64)

    @cached_property
    def _b(self) -> Tensor:
        kind = torch.int64 if self.loss.classes else torch.float64
        return torch.tensor(np.asarray(self.labels)[self._order], dtype=kind)

    @cached_property
    def _kind(self) -> Tensor:
        """(m,) the class of each row, by number."""
        if self.classes is not None:
            return self._b.long()
        if isinstance(self.loss, Logistic):
            return (self._b > 0).long()
        return torch.zeros(len(self._b), dtype=torch.int64) if self.loss.separate else (~self._b.signbit()).long()

    @property
    def _kinds(self) -> int:
        if self.classes is not None:
            return self.classes
        return 1 if self.loss.separate and not isinstance(self.loss, Logistic) else 2

    @cached_property
    def _w(self) -> Tensor:
        """(m,) what each row weighs, before class weights."""
        m = len(self.labels)
        own = np.ones(m) if self.sample_weights is None else np.asarray(self.sample_weights, np.float64)
        if self.share is not None:
            own = own * (self.share / own.sum())
        return torch.from_numpy(np.ascontiguousarray(own[self._order]))

    def _weights(self, factors: Tensor | None) -> Tensor:
        return self._w if factors is None else self._w * factors[self._kind]

    @cached_property
    def _ends(self) -> np.ndarray:
        """(folds + 1,) where the rows of each fold begin, and the last one's end."""
        if self.fold is None:
            return np.array([0, len(self.labels)])
        return np.concatenate(([0], np.bincount(self.fold, minlength=self.folds).cumsum()))

    def _slices(self, part: Part) -> list[slice]:
        m = len(self.labels)
        if part.fold is None:
            return [slice(0, m)]
        known = self.fold is not None and 0 <= part.fold < self.folds
        require(known, f"fold = {part.fold} must be one of the {self.folds} that there are")
        a, b = (int(v) for v in self._ends[part.fold : part.fold + 2])
        return [slice(a, b)] if part.held_out else [slice(0, a), slice(b, m)]

    def rows(self, part: Part) -> int:
        """How many there are."""
        return sum(s.stop - s.start for s in self._slices(part))

    def _chunks(self, part: Part, width: int) -> Iterator[tuple[slice, Tensor]]:
        """(which rows, their features), some at a time."""
        step = max(64, AT_A_TIME // max(1, width + int(self.features.shape[1])))
        for whole in self._slices(part):
            for start in range(whole.start, whole.stop, step):
                some = slice(start, min(start + step, whole.stop))
                A = self._A[some]
                yield some, torch.from_numpy(A.toarray().astype(np.float64) if isinstance(A, SparseRows) else A)

    # ---- answers -----------------------------------------------------------------------------------------------

    def counts(self) -> Tensor:
        """(folds, classes) as `Organisations.counts` has them."""
        lines = [
            torch.bincount(self._kind[a:b], self._w[a:b], self._kinds)
            for a, b in zip(self._ends[:-1], self._ends[1:], strict=True)
        ]
        return torch.stack(lines)

    def answer(self, questions: Sequence[Question], factors: Tensor | None = None) -> list[Sums]:
        """One for each."""
        answers: list[Sums | None] = [None] * len(questions)
        for part in dict.fromkeys(q.part for q in questions):
            for order in (0, 1):  # a question for values alone need not wait for gradients
                where = [i for i, q in enumerate(questions) if q.part == part and min(q.order, 1) == order]
                if where:
                    found = self._answer([questions[i] for i in where], part, order, factors)
                    for i, each in zip(where, found, strict=True):
                        answers[i] = each
        return [each for each in answers if each is not None]

    def _answer(self, asked: list[Question], part: Part, order: int, factors: Tensor | None) -> list[Sums]:
        for q in asked:
            require(q.x.shape == (self.d,), f"x has shape {tuple(q.x.shape)}, but d = {self.d}")
        if self.loss.separate:
            return self._separate(asked, part, order, factors)
        if part.fold is None or not part.held_out:
            return [self._at_risk(q, part) for q in asked]
        every = [self._at_risk(q, Part()) for q in asked]
        without = [self._at_risk(q, Part(part.fold)) for q in asked]
        return [_less(a, b) for a, b in zip(every, without, strict=True)]

    def _separate(self, asked: list[Question], part: Part, order: int, factors: Tensor | None) -> list[Sums]:
        Q, q, p = len(asked), self.outputs, int(self.features.shape[1])
        x = torch.stack([each.x for each in asked])
        W, bias = x[:, : q * p].reshape(Q * q, p), x[:, q * p :]
        values = torch.zeros(Q, dtype=torch.float64)
        gradients = torch.zeros(Q, self.d, dtype=torch.float64)
        hessians = {i: self._blank(each) for i, each in enumerate(asked) if each.order > 1}
        w = self._weights(factors)
        for rows, A in self._chunks(part, 4 * Q * q):
            s = (W @ A.mT).view(Q, q, -1)
            if self.intercept:
                s += bias[:, :, None]
            b, v = self._b[rows].expand(Q, -1), w[rows].expand(Q, -1)
            values += self.loss.weighted_value(s, b, v).sum(1)
            for i, H in hessians.items():
                second = self.loss.second(s[i : i + 1], b[:1])[0] * v[0]
                columns = asked[i].columns
                if columns is None:
                    self._add_hessian(H, A, second)
                else:
                    self._add_some(H, A, second, columns)
            if order:
                slope = self.loss.weighted_slope(s, b, v)
                gradients[:, : q * p] += (slope.reshape(Q * q, -1) @ A).view(Q, q * p)
                if self.intercept:
                    gradients[:, q * p :] += slope.sum(2)
        return [Sums(float(values[i]), gradients[i] if order else None, _symmetric(hessians.get(i))) for i in range(Q)]

    def _add_hessian(self, H: Tensor, A: Tensor, second: Tensor) -> None:
        """The sum over rows of second[k, l] a a', a being a row's features and 1; the upper half of the blocks."""
        q, p = self.outputs, A.shape[1]
        for k in range(q):
            for l in range(k, q):
                c = second[k, l]
                if k == l:  # no curvature of a loss in one of its scores is below 0
                    root = A * c.sqrt()[:, None]
                    block = root.mT @ root
                else:
                    block = A.mT @ (A * c[:, None])
                H[k * p : (k + 1) * p, l * p : (l + 1) * p] += block
                if self.intercept:
                    edge = c @ A
                    H[k * p : (k + 1) * p, q * p + l] += edge
                    if k != l:
                        H[l * p : (l + 1) * p, q * p + k] += edge
                    H[q * p + k, q * p + l] += c.sum()

    def _add_some(self, H: Tensor, A: Tensor, second: Tensor, columns: Tensor) -> None:
        """The same, of these coordinates of x alone: sum over rows of second[k, l] a_i a_j."""
        q, p = self.outputs, A.shape[1]
        weight = columns < q * p
        output = torch.where(weight, columns // p, columns - q * p)
        a = torch.ones(len(A), len(columns), dtype=torch.float64)
        a[:, weight] = A[:, columns[weight] % p]
        for k in output.unique().tolist():
            for m in output.unique().tolist():
                one, two = (output == k).nonzero()[:, 0], (output == m).nonzero()[:, 0]
                H[one[:, None], two] += a[:, one].mT @ (a[:, two] * second[k, m][:, None])

    def _blank(self, question: Question) -> Tensor:
        k = self.d if question.columns is None else len(question.columns)
        return torch.zeros(k, k, dtype=torch.float64)

    def _at_risk(self, question: Question, part: Part) -> Sums:
        """Of survival, whose rows are compared with each other."""
        assert isinstance(self.loss, Cox)
        order = self._by_time(part)
        m, w = len(order), self._w[order]
        total = float(w.sum())
        x, zero = question.x, torch.zeros(self.d, dtype=torch.float64)
        if m == 0 or not total > 0:
            second = self._blank(question) if question.order > 1 else None
            return Sums(0.0, zero if question.order > 0 else None, second)
        A = self._A[order]
        A = torch.from_numpy(A.toarray().astype(np.float64) if isinstance(A, SparseRows) else A)
        s, b, v = (A @ x)[None, None], self._b[order][None], w[None] * (m / total)
        scale = total / m
        value = scale * float(self.loss.weighted_value(s, b, v).sum())
        if question.order == 0:
            return Sums(value)
        gradient = scale * (self.loss.weighted_slope(s, b, v)[0, 0] @ A)
        if question.order == 1:
            return Sums(value, gradient)
        some = A if question.columns is None else A[:, question.columns]
        return Sums(value, gradient, scale * self.loss.hessian(s[0, 0], b[0], v[0], some))

    def _by_time(self, part: Part) -> np.ndarray:
        rows = np.concatenate([np.arange(s.start, s.stop) for s in self._slices(part)])
        return rows[by_time(self._b[rows].numpy(), np.array([0, len(rows)]))]

    def grams(self, factors: Tensor | None = None) -> list[Gram]:
        """One for each fold."""
        known = isinstance(self.loss, (Squared, OneHot, Huber))
        require(known, f"loss = {type(self.loss).__name__}: only squared losses and Huber's have Gram matrices")
        w = self._weights(factors)
        folds = [Part(k, held_out=True) for k in range(self.folds)] if self.fold is not None else [Part()]
        return [self._gram(part, w) for part in folds]

    def _gram(self, part: Part, w: Tensor) -> Gram:
        p = int(self.features.shape[1])
        k, q = p + self.intercept, self.outputs
        matrix, products = (torch.zeros(n, k, dtype=torch.float64) for n in (k, q))
        weight = square = 0.0
        for rows, A in self._chunks(part, q):
            v, b = w[rows], self._b[rows]
            Y = torch.nn.functional.one_hot(b, q).double() if self.loss.classes else b[:, None]
            root = A * v.sqrt()[:, None]
            matrix[:p, :p] += root.mT @ root
            products[:, :p] += (Y * v[:, None]).mT @ A
            weight += float(v.sum())
            square += float(v @ Y.square().sum(1))
            if self.intercept:
                matrix[:p, p] += v @ A
                products[:, p] += v @ Y
        if self.intercept:
            matrix[p, :p] = matrix[:p, p]
            matrix[p, p] = weight
        return Gram(weight, square, products, matrix)


def _symmetric(H: Tensor | None) -> Tensor | None:
    """From its upper blocks; the diagonal ones are whole."""
    return None if H is None else torch.triu(H) + torch.triu(H, 1).mT


def _less(a: Sums, b: Sums) -> Sums:
    def less(one: Tensor | None, two: Tensor | None) -> Tensor | None:
        return None if one is None or two is None else one - two

    return Sums(a.value - b.value, less(a.gradient, b.gradient), less(a.hessian, b.hessian))


@dataclass(frozen=True, eq=False)
class Here:
    """Organisations whose tables lie here: their answers are added up, and what would travel is counted."""

    own: tuple[OwnRows, ...]
    names: tuple[str, ...]
    factors: Tensor | None = None
    """(classes,)"""
    spent: list[Traffic] = field(default_factory=lambda: [Traffic()])
    """So far, as one number; shared by all that were made of these organisations."""

    @property
    def folds(self) -> int:
        return self.own[0].folds

    @property
    def traffic(self) -> Traffic:
        return self.spent[0]

    @property
    def tells_grams(self) -> bool:
        return True

    @property
    def hessian_columns(self) -> int:
        return HESSIAN

    def _exchanged(self, up: int, down: int) -> None:
        n = len(self.own)
        self.spent[0] = self.spent[0] + Traffic(1, n * up, n * down)

    def weighing(self, factors: Tensor | None) -> Self:
        return replace(self, factors=factors)

    def counts(self) -> Tensor:
        found = sum((own.counts() for own in self.own[1:]), start=self.own[0].counts())
        self._exchanged(NUMBER * found.numel(), 0)
        return found

    def ask(self, questions: Sequence[Question]) -> list[Sums]:
        self._exchanged(answer_bytes(questions), question_bytes(questions))
        return added([own.answer(questions, self.factors) for own in self.own])

    def grams(self) -> list[Gram]:
        each = [own.grams(self.factors) for own in self.own]
        self._exchanged(gram_bytes(each[0]), 0)
        return [
            Gram(
                sum(g.weight for g in gs),
                sum(g.square for g in gs),
                torch.stack([g.products for g in gs]).sum(0),
                torch.stack([g.matrix for g in gs]).sum(0),
            )
            for gs in zip(*each, strict=True)
        ]


def added(answers: Sequence[Sequence[Sums]]) -> list[Sums]:
    """The answers of all organisations, question by question."""

    def total(parts: Sequence[Tensor | None]) -> Tensor | None:
        there = [part for part in parts if part is not None]
        return sum(there[1:], start=there[0]) if there else None

    return [
        Sums(sum(a.value for a in each), total([a.gradient for a in each]), total([a.hessian for a in each]))
        for each in zip(*answers, strict=True)
    ]


def own_rows(
    data: Federated,
    loss: Loss,
    *,
    intercept: bool,
    uniform: bool = False,
    folds: int = 0,
    fold: np.ndarray | None = None,
) -> tuple[OwnRows, ...]:
    """Of every organisation of some data; `fold` is that of each row."""
    return tuple(
        OwnRows(
            data.features[a:b],
            data.labels[a:b],
            loss,
            intercept,
            data.classes,
            None if data.sample_weights is None else data.sample_weights[a:b],
            folds,
            None if fold is None else fold[a:b],
            1.0 if uniform else None,
        )
        for a, b in zip(data.offsets, data.offsets[1:], strict=False)
    )


# ---- folds -----------------------------------------------------------------------------------------------------------


def strata_of(labels: np.ndarray, loss: Loss, classes: int | None) -> np.ndarray:
    """(m,) classes, or whether an event was seen, which every fold has its share of; of numbers, one for all."""
    if not loss.separate:
        return np.signbit(np.asarray(labels, np.float64)).astype(np.int64)
    known = classes is not None or isinstance(loss, Logistic)
    return np.asarray(labels).astype(np.int64) if known else np.zeros(len(labels), np.int64)


def drawn_folds(
    strata: np.ndarray, count: int, seed: int, organisation: int, units: np.ndarray | None = None
) -> np.ndarray:
    """(m,): the fold of each row of an organisation, by its number. Rows of a stratum, in random order, go round the
    folds, from a random one on; rows of a unit go together."""
    if units is not None:
        return together(units, strata, lambda names, highest: drawn_folds(highest, count, seed, organisation))
    words = keyed_random.words(
        keyed_random.keys(seed, "folds", range(organisation, organisation + 1), 0), len(strata) + 1
    )
    which = np.empty(len(strata), np.int64)
    which[np.lexsort((words[0][1:], strata))] = (np.arange(len(strata)) + int(words[0][0] % count)) % count
    return which
