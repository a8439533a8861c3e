"""Sums over the rows of a site: losses, gradients and Hessians, counts, Gram matrices, and noisy products."""

from __future__ import annotations

import torch

from proxfed.errors import require
from proxfed.fit.own_rows import dense
from proxfed.fit.private import noisy
from proxfed.silos.protection.guard import withheld
from proxfed.silos.site.fit_rows import Answer, Answered, FitRows
from proxfed.silos.wire import fit_answers, fit_questions
from proxfed.silos.wire.message import Letter


def _sums(rows: FitRows, letter: Letter) -> Answered:
    questions, counts = fit_questions.read_sums(letter, rows.own.d, rows.own_d, rows.classes)
    losses = all(q.order == 0 and not q.products for q in questions)
    require(losses or not rows.fit.external, "a validation asks for losses, not for derivatives")
    strange = next((q for q in questions if (q.part.fold or 0) >= max(1, rows.fit.folds)), None)
    require(strange is None, f"a fold was asked for that is none of the {rows.fit.folds} of this job")
    words = ("value", "gradient", "hessian")
    parts = [words[q.order] for q in questions] + ["products" for q in questions if q.products]
    asked = rows.asked(letter, "sums", parts, len(questions))
    rows.wanted("hessian" if any(q.order > 1 for q in questions) else "sum", counts.factors)
    for products in {q.products for q in questions} - {""}:
        rows.holder.guard.infers(
            rows.own.cluster[1] if products == "cluster" else None, apart=products == "organisation"
        )
    points = {q.x.data_ptr(): q.x for q in questions}.values()
    rows.follow(points, counts)
    with withheld("a query failed"):
        rows.dominated(questions)
        return *rows.hidden(fit_answers.flat_sums(rows.here(counts).ask(questions)), letter), asked


def _counts(rows: FitRows, letter: Letter) -> Answered:
    fit_questions.read_plain(letter, rows.classes)
    asked = rows.asked(letter, "counts", ["counts"], max(1, rows.fit.folds))
    rows.wanted("count", None)
    with withheld("a query failed"):
        return *rows.hidden(rows.own.counts().flatten(), letter), asked


def _grams(rows: FitRows, letter: Letter) -> Answered:
    counts = fit_questions.read_plain(letter, rows.classes)
    asked = rows.asked(letter, "grams", ["grams"], max(1, rows.fit.folds))
    rows.wanted("gram", counts.factors)
    with withheld("a query failed"):
        return *rows.hidden(fit_answers.flat_grams(rows.here(counts).grams()), letter), asked


def _private(rows: FitRows, letter: Letter) -> Answered:
    fit_questions.read_plain(letter, rows.classes)
    assert rows.fit.private is not None
    asked = rows.asked(letter, "private", ["private"], 1)
    with withheld("a query failed"):
        M = rows.fit.private.products(dense(rows.own.features).numpy(), rows.own.labels)
        G = rows.link.normal(M, letter, 2 * rows.fit.private.noise)
        sent = noisy(M, rows.fit.private.noise, G)
        return *rows.hidden(fit_answers.half(torch.from_numpy(sent)), letter), asked


ANSWERS: dict[str, Answer] = {
    "sums": _sums,
    "counts": _counts,
    "grams": _grams,
    "private": _private,
}
