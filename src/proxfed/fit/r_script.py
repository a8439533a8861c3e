"""A fitted model as a plain R script: the same predictions from base R alone, to be read line by line.

    Rscript model.R rows.csv predictions.csv

Columns are read as text, as the schema reads them: words that mean missing, numbers with their signs, categories by
their words. Features are in the units of the columns, so that coefficients are those of `coefficients.csv`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from proxfed.errors import require
from proxfed.fit.model_file import Model
from proxfed.tables.cells import number_codes
from proxfed.tables.column_kinds import Boolean, Category, Date, Number, words_of
from proxfed.tables.preparation import Preparation

HEAD = """\
# {name}: predictions as those of proxfed, by base R.
# Rscript model.R rows.csv predictions.csv

# Without spaces around it, and whole numbers without .0 at the end.
plain <- function(x) sub("^(-?(0|[1-9][0-9]*))[.]0*$", "\\\\1", trimws(x))
known <- function(x, gaps) ifelse(is.element(x, gaps), NA, x)
filled <- function(x, value) ifelse(is.na(x), value, x)
is_one <- function(x, words) ifelse(is.element(x, words), 1, 0)
"""

FOOT = """
args <- commandArgs(trailingOnly = TRUE)
if (length(args) == 2) {
  rows <- read.csv(args[1], colClasses = "character", check.names = FALSE, na.strings = NULL, strip.white = TRUE)
  write.csv(scored(rows), args[2], row.names = FALSE)
}
"""


def r_script(model: Model) -> str:
    """The text of model.R; refused where a column is read in a way that base R has no short words for."""
    made = model.prepare
    lines = [HEAD.format(name=" ".join(model.name.split())), "scored <- function(d) {"]
    features = [line for name in made.schema.inputs for line in _column(made, name)]
    lines += [f"  {line}" for line in features]
    places = {name: _feature(k) for k, name in enumerate(model.features)}
    for each in made.products:
        lines.append(f"  {places[each.name]} <- {_feature(each.one)} * {_feature(each.other)}")
    scores = []
    for k, row in enumerate(model.original.coef):
        terms = [f"{_number(c)} * {places[name]}" for name, c in zip(model.features, row, strict=True) if c]
        start = f"{_number(model.original.intercept[k])} + 0 * seq_len(nrow(d))"
        lines.append(f"  s{k + 1} <- " + " +\n    ".join([start, *terms]))
        scores.append(f"s{k + 1}")
    lines += [f"  {line}" for line in _predicted(model, scores)]
    return "\n".join([*lines, "}", FOOT])


def _predicted(model: Model, scores: Sequence[str]) -> Iterator[str]:
    name, target = model.loss["name"], model.prepare.schema.target
    back = {"log": "exp(s1)", "log1p": "expm1(s1)"}.get("" if target is None else target.transform, "s1")
    if name == "logistic":
        yield f"p <- 1 / (1 + exp(-{scores[0]}))"
        one, other = map(_text, model.classes)
        yield f"data.frame(score = s1, probability = p, prediction = ifelse(s1 > 0, {other}, {one}))"
    elif name in ("cross_entropy", "one_hot"):
        yield f"s <- cbind({', '.join(scores)})"
        yield f'data.frame(s, prediction = {_texts(model.classes)}[max.col(s, ties.method = "first")])'
    else:
        yield f"data.frame(score = s1, prediction = {'exp(s1)' if name in ('poisson', 'cox') else back})"


def _column(made: Preparation, name: str) -> Iterator[str]:
    """The features of a column, each a vector."""
    schema, column = made.schema, made.schema.inputs[name]
    places = {feature.name: _feature(k) for k, feature in enumerate(made.features)}
    gaps = _texts([*words_of(schema.table.missing), *words_of(column.missing)])
    there = f"known(plain(d[[{_text(name)}]]), {gaps})"
    yield f"x <- {there}" if not column.optional else f"x <- if (is.null(d[[{_text(name)}]])) NA else {there}"
    if isinstance(column, Category):
        yield from _category(made, name, column, places)
    elif isinstance(column, Boolean):
        yes, no = ([word.casefold() for word in words_of(words)] for words in (column.yes, column.no))
        yield "x <- tolower(x)"
        yield f"x <- ifelse(is.element(x, {_texts(yes)}), 1, ifelse(is.element(x, {_texts(no)}), 0, NA))"
        yield from _filled(made, name, "x", places)
    elif isinstance(column, Date):
        formats = [column.format] if isinstance(column.format, str) else column.format
        one = len(formats) == 1 and column.parts == ["days"] and re.search("%y|%b|%B", formats[0]) is None
        require(
            one, f"columns.{name}: model.R reads dates of one format with years of four digits, and their days only"
        )
        yield f"x <- as.numeric(as.Date(x, {_text(formats[0])}) - as.Date({_text(str(column.origin))}))"
        yield from _filled(made, f"{name} days", "x", places)
    else:
        yield from _of_number(made, name, column, places)
    if column.indicator:
        yield f"{places[f'{name} missing']} <- ifelse(is.na(x), 1, 0)"


def _category(made: Preparation, name: str, column: Category, places: dict[str, str]) -> Iterator[str]:
    if column.impute == "mode":
        words = column.names[made.modes[name]] or ("other",)
        yield f"x <- filled(x, {_text(words[0])})"
    for category, words in column.names.items():
        if category != column.reference:
            others = [word for known in column.names.values() for word in known]
            other = category == "other" and column.unseen == "other" and not words
            test = f"ifelse(is.na(x), 0, 1 - is_one(x, {_texts(others)}))" if other else f"is_one(x, {_texts(words)})"
            yield f"{places[f'{name}={category}']} <- {test}"
    if column.unseen != "other":
        yield f"x <- known(x, setdiff(x, {_texts([w for words in column.names.values() for w in words])}))"


def _of_number(made: Preparation, name: str, column: Number, places: dict[str, str]) -> Iterator[str]:
    for sign in (column.currency, column.thousands):
        if sign:
            yield f'x <- gsub({_text(sign)}, "", x, fixed = TRUE)'
    if column.decimal != ".":
        yield f'x <- gsub({_text(column.decimal)}, ".", x, fixed = TRUE)'
    yield "x <- as.numeric(x)"
    codes = number_codes([*made.schema.table.missing, *column.missing])
    if codes:
        yield f"x <- known(x, c({', '.join(map(_number, codes))}))"
    if column.clip is not None:
        yield f"x <- pmin(pmax(x, {_number(column.clip[0])}), {_number(column.clip[1])})"
    called = {"none": name, "log": f"log({name})", "log1p": f"log(1+{name})"}[column.transform]
    if column.transform != "none":
        yield f"x <- {column.transform}(x)"
    if column.period is not None:
        turn = f"2 * pi / {_number(column.period)}"
        for f in ("sin", "cos"):
            yield from _filled(made, f"{f}({called})", f"{f}({turn} * x)", places)
        return
    yield from _filled(made, called, "x", places)
    for k in range(2, column.polynomial + 1):
        yield from _filled(made, f"{called}^{k}", f"x^{k}", places)
    if column.knots is not None:
        *inner, before, last = column.knots
        wide, size = _number(last - before), _number((last - column.knots[0]) ** 2)
        for t in inner:
            bend = f"pmax(x - {_number(t)}, 0)^3 - pmax(x - {_number(before)}, 0)^3 * {_number(last - t)} / {wide}"
            bend += f" + pmax(x - {_number(last)}, 0)^3 * {_number(before - t)} / {wide}"
            yield from _filled(made, f"{called} from {t:g}", f"({bend}) / {size}", places)


def _filled(made: Preparation, feature: str, value: str, places: dict[str, str]) -> Iterator[str]:
    """A feature that is not left out, with its gaps filled."""
    if feature in places:
        of = made.parameters[feature].impute
        yield f"{places[feature]} <- " + (value if of is None else f"filled({value}, {_number(of)})")


def _feature(k: int) -> str:
    return f"f{k + 1}"


def _number(value: float) -> str:
    """With all digits; in brackets below 0."""
    text = repr(float(value))
    return f"({text})" if text.startswith("-") else text


def _text(value: Any) -> str:
    """A string of R; what JSON escapes, R reads the same."""
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _texts(words: Iterable[Any]) -> str:
    return f"c({', '.join(map(_text, words))})"
