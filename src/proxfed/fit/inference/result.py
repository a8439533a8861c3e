"""What inference finds, as the tables that a journal takes: CSV, LaTeX, Markdown, JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from proxfed.errors import require
from proxfed.explained import explain
from proxfed.fit.inference.heterogeneity import Agreement
from proxfed.fit.inference.tests_of_terms import Test
from proxfed.fit.inference.wald import Coefficient
from proxfed.report.markdown import plain_text
from proxfed.report.markdown import table as markdown_table

__all__ = ["Forest", "Inference"]


@dataclass(frozen=True)
class Forest:
    """A line of a forest plot: one organisation's own estimate of a coefficient."""

    name: str
    """Of the coefficient."""
    organisation: str
    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class RandomIntercepts:
    """How the intercepts of organisations are distributed."""

    tau: float
    """Their standard deviation."""
    statistic: float
    """Twice the logarithm of the likelihood ratio against tau = 0."""
    p: float
    shifts: dict[str, float] = field(default_factory=dict)
    """What every organisation adds to the shared intercept, shrunken towards 0: it keeps that."""


@dataclass(frozen=True, eq=False)
class Inference:
    """Coefficients in the units of their columns, with their uncertainty, and how organisations agree on them."""

    title: str
    loss: str
    method: str
    """'maximum likelihood' or 'debiased'."""
    errors: str
    """What standard errors are made of: 'model', 'robust', or 'clustered by ...'."""
    level: float
    """Of the intervals."""
    ratio: str
    """What exp(coefficient) is called; '' where it has no meaning."""
    coefficients: tuple[Coefficient, ...]
    covariance: np.ndarray
    """(k, k) of these, in their order."""
    organisations: tuple[str, ...]
    site_intercepts: bool
    """Every organisation has an intercept of its own, which it keeps."""
    rows: int
    parameters: int
    """With the intercepts that organisations keep."""
    log_likelihood: float
    """NaN where the loss is none; of survival times, the partial one; without terms that no coefficient changes."""
    deviance: float
    dispersion: float
    """1 where it is not estimated."""
    adjustment: str
    """How `adjusted` p-values are adjusted."""
    terms: tuple[Test, ...] = ()
    """The table of deviance: every column left out in turn."""
    sites: Test | None = None
    """Of the hypothesis that one intercept serves all organisations."""
    agreement: tuple[Agreement, ...] = ()
    """Heterogeneity of the coefficients between organisations."""
    forest: tuple[Forest, ...] = ()
    left_out: tuple[str, ...] = ()
    """Features that are combinations of others."""
    notes: tuple[str, ...] = ()
    exchanges: int = 0
    """How often all organisations were asked for sums."""
    own_intercepts: dict[str, float | None] = field(default_factory=dict)
    """What organisations keep, where their tables lie here; None: infinite, all its rows have the same outcome."""
    random: RandomIntercepts | None = None
    """The distribution of the intercepts; None: they are no draws."""

    def __getitem__(self, name: str) -> Coefficient:
        found = next((line for line in self.coefficients if line.name == name), None)
        require(found is not None, f"no coefficient is called {name!r}; they are {', '.join(self.names)}")
        assert found is not None
        return found

    @property
    def names(self) -> list[str]:
        """Of the coefficients."""
        return [line.name for line in self.coefficients]

    @property
    def aic(self) -> float:
        """Akaike's criterion, up to what no coefficient changes."""
        return 2 * self.parameters - 2 * self.log_likelihood

    def cells(self, short: bool = False) -> tuple[list[str], list[list[str]]]:
        """(head, lines) of the table of coefficients; `short`: of two intervals, only the ratio's."""
        interval = f"{100 * self.level:g} % interval"
        short = short and bool(self.ratio)
        head = ["", "estimate", "SE" if short else "standard error", *([] if short else [interval]), "p"]
        head += [f"p, {self.adjustment}"] if self.adjustment != "none" else []
        head += [self.ratio, interval] if self.ratio else []
        lines = []
        for c in self.coefficients:
            reach = [] if short else [f"{number(c.low)} to {number(c.high)}"]
            line = [c.name, number(c.estimate), number(c.error), *reach, p_value(c.p)]
            if self.adjustment != "none":
                line.append("" if c.adjusted is None else p_value(c.adjusted))
            if self.ratio:
                low, high = c.ratio_interval
                free = c.name != INTERCEPT
                line += [number(c.ratio), f"{number(low)} to {number(high)}"] if free else ["", ""]
            lines.append(line)
        return head, lines

    def term_cells(self) -> tuple[list[str], list[list[str]]]:
        """The table of deviance."""
        F = any(test.residual_df is not None for test in self.terms)
        head = ["left out", "df", "F" if F else "deviance", "p"]
        return head, [[t.name, str(t.df), number(t.statistic), p_value(t.p)] for t in self.terms]

    def agreement_cells(self) -> tuple[list[str], list[list[str]]]:
        """Heterogeneity over k organisations: joint, meta-analytic and one-step estimates beside each other."""
        head = ["", "k", "Q", "p", "I2", "tau", "joint", "meta", "one step"]
        lines = [
            [
                a.name,
                str(a.organisations),
                number(a.Q),
                p_value(a.p),
                f"{100 * a.I2:.0f} %",
                *(number(v) for v in (a.tau, self[a.name].estimate, a.meta, a.one_step)),
            ]
            for a in self.agreement
        ]
        return head, lines

    def sentences(self) -> list[str]:
        """What was fitted, to what, with which errors."""
        how = "an intercept for every organisation, kept there" if self.site_intercepts else "one intercept for all"
        how = "random intercepts" if self.random else how
        how = "every organisation a stratum" if self.loss == "cox" else how
        lines = [
            f"{self.title}: {len(self.organisations)} organisations, {self.rows:,} rows; {self.loss}, {self.method}, "
            f"{how}; standard errors: {self.errors}."
        ]
        if self.random is not None:
            r = self.random
            lines.append(
                f"Intercepts of organisations have standard deviation tau = {number(r.tau)}; against tau = 0: "
                f"likelihood ratio {number(r.statistic)}, {said_p(r.p)}."
            )
            each = ", ".join(f"{name} {shift:+.3g}" for name, shift in r.shifts.items())
            lines.append(f"What each adds to the intercept, shrunken towards 0: {each}.")
        if self.sites is not None:
            t = self.sites
            lines.append(
                f"One intercept for all organisations against one for each: {number(t.statistic)} on {t.df} degrees of "
                f"freedom, {said_p(t.p)}."
            )
        return lines

    # ---- files ------------------------------------------------------------------------------------------------------

    def csv(self) -> str:
        """A line for each coefficient, with all digits."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        head = ["name", "estimate", "standard_error", "low", "high", "p", "p_adjusted"]
        lines.writerow(head + (["ratio", "ratio_low", "ratio_high"] if self.ratio else []))
        for c in self.coefficients:
            name = "'" + c.name if c.name[:1] in ("=", "+", "-", "@") else c.name  # not a formula in a spreadsheet
            line = [name, c.estimate, c.error, c.low, c.high, c.p, "" if c.adjusted is None else c.adjusted]
            lines.writerow(line + ([c.ratio, *c.ratio_interval] if self.ratio else []))
        return text.getvalue()

    def latex(self) -> str:
        """A tabular in the style of booktabs."""
        head, lines = self.cells()
        rows = [" & ".join(map(_tex, line)) + r" \\" for line in [head, *lines]]
        form = "l" + "r" * (len(head) - 1)
        top = rf"\begin{{tabular}}{{{form}}}"
        return "\n".join([top, r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"

    def markdown(self) -> str:
        """The table of coefficients."""
        head, lines = self.cells()
        return markdown_table(head, [[plain_text(cell) for cell in line] for line in lines])

    def plain(self) -> dict[str, Any]:
        """As JSON has it: all but the covariance's units, NaN as null."""
        found = {key: value for key, value in asdict(self).items() if key != "covariance"}
        found["covariance"] = self.covariance.tolist()
        return _finite(found)

    def json(self) -> str:
        """The same as text."""
        return json.dumps(self.plain(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


INTERCEPT = "(intercept)"


def number(x: float) -> str:
    """About three digits that mean something."""
    if x != x:
        return "–"
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    return f"{x:.3f}" if 0.0995 <= abs(x) < 100 else f"{x:.3g}"


def p_value(p: float) -> str:
    """As journals have it."""
    return "–" if p != p else "< 0.001" if p < 0.001 else f"{p:.3f}"


def said_p(p: float) -> str:
    """In a sentence."""
    return f"p {p_value(p)}" if p < 0.001 else f"p = {p_value(p)}"


def _tex(text: str) -> str:
    special = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    text = "".join(special.get(sign, sign) for sign in text)
    return text.replace("<", "$<$").replace(">", "$>$").replace("–", "--")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


explain(__name__)
