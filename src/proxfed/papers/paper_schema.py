"""The part of an experiment's file about results: the paper, its figures, its numbers and its claims.

    [paper]       title, figure, the quick form, variants          [[paper.figures]]   pictures in the paper's axes
    [[reported]]  numbers that the paper prints                    [[claims]]          its statements about its results

A claim asks one thing of a measure: that it is `below` or `above` a number, `near` it, in `order`, `within_factor`, or
that it falls or rises with a `slope`; or that a run `diverges`. The kind of claim decides its keys.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Tag, TypeAdapter, ValidationError, model_validator

from proxfed.errors import InputError, nearest, require
from proxfed.harness.experiment import Experiment
from proxfed.registry import Table
from proxfed.validation import STRICT, refuse_unless, sentence


class Strict(BaseModel):
    """A part of a file."""

    model_config = STRICT


# ---- the paper ------------------------------------------------------------------------------------------------------


class Figure(Strict):
    """[[paper.figures]]: a picture in the paper's axes; one panel for each case."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    """The name of the files, NAME.svg and NAME.png."""
    y: str
    """A measure, a column of rows.csv."""
    x: str = "round"
    """'round', 'steps' (gradients of a client), 'bytes', 'sim_seconds' or any other column."""
    target: float | None = None
    """Given: bars instead of lines, with the place on `x` where the measure first reached this."""
    log_x: bool = False
    log_y: bool = False
    cases: list[str] = []
    """The cases shown; all if empty."""
    labels: list[str] = []
    """The algorithms shown; all if empty."""
    together: bool = False
    """All cases in one panel, with different labels."""

    @model_validator(mode="after")
    def _bars_are_linear(self) -> Self:
        bars = self.target is not None and (self.log_x or self.log_y)
        refuse_unless(not bars, f"the figure {self.name!r} has a target, so bars: they take no log_x or log_y")
        return self


class Paper(Strict):
    """[paper]: the paper of an experiment."""

    title: str
    section: str = ""
    """The section of the paper, such as 'Sec. 6.2.1'."""
    figure: str
    """The figure or table, with the paper's number."""
    quick: Table = {}
    """Settings of the quick form, by their dotted keys."""
    quick_cases: list[str] = []
    """The cases of the quick form; all if empty."""
    variants: dict[str, Table] = {}
    """Other choices for settings that the paper leaves open, each with a name: settings by their dotted keys, and in
    `cases` those of one case."""
    departures: list[str] = []
    """The variants that change settings that the paper states; they decide nothing about its claims."""
    departs: str = ""
    """How the file itself contradicts the paper, if it does; its forms then decide nothing about the paper's claims."""
    own_problem: bool = False
    """The paper has no such experiment: its statement is shown on a small problem of ours."""
    figures: list[Figure] = []

    @model_validator(mode="after")
    def _names(self) -> Self:
        for name in self.variants:
            plain = re.fullmatch(r"[\w.-]+", name) is not None  # it is part of a folder's name
            refuse_unless(plain, f"the variant {name!r} needs a name of letters, digits, '_', '-' and '.'")
        for name in self.departures:
            known = name in self.variants
            refuse_unless(known, f"departures: there is no variant {name!r}; {nearest(name, self.variants)}")
        for name, times in Counter(figure.name for figure in self.figures).items():
            refuse_unless(times == 1, f"two figures are called {name!r}: they would be one file")
        return self


# ---- numbers --------------------------------------------------------------------------------------------------------


class Quantity(Strict):
    """A number of a run: a measure at its end, or the place on an axis where the measure first reached a target."""

    measure: str
    """A measure, or an axis such as 'bytes'."""
    target: float | None = None
    """Given: the number is the place on `axis` where the measure first reached this; smaller is then better."""
    axis: str = "round"
    """Like `x` of a figure."""
    best: bool = False
    """Whether to use the best value in any round instead of the last one."""

    @model_validator(mode="after")
    def _best_of_rounds(self) -> Self:
        one = not self.best or self.target is None
        refuse_unless(one, f"of {self.measure} it is best = true or a target, not both")
        return self

    @property
    def counts(self) -> str:
        """The unit of the number: the measure, or the axis with a target."""
        return self.measure if self.target is None else self.axis

    @property
    def directed(self) -> bool:
        """Whether it needs to know which values of the measure are better."""
        return self.best or self.target is not None


class Reported(Quantity):
    """[[reported]]: numbers that the paper prints, by the labels of the algorithms."""

    values: dict[str, float | str]
    """A number, or '> 300': it did not reach the target in 300 rounds."""
    case: str | None = None


# ---- claims ---------------------------------------------------------------------------------------------------------


class _Claim(Strict):
    """The keys of all claims."""

    asks: ClassVar[str]
    """The key that makes it this kind of claim."""
    says: str
    """The paper's statement, in our words."""
    source: str = ""
    """The place of the statement, if it differs from the experiment's section."""
    case: str | None = None
    """The case of the claim; without one it must hold in every case."""
    beside: str = ""
    """Another experiment of the paper to compare with, in the same cases, on the same data and after as many rounds;
    its algorithms are written 'EXPERIMENT/label'."""
    across: bool = False
    """The labels are in different cases; a label that is in several cases is written 'case: label'."""
    form: Literal["full", "any"] = "any"
    """'full': it needs the rounds or the scale of the full form."""
    minor: bool = False
    """It follows from the settings alone, or nearly; such claims are counted separately."""

    @property
    def rank(self) -> str:
        """'main', 'minor', or 'ours' (our claim, not the paper's)."""
        return "ours" if self.says.startswith("ours:") else "minor" if self.minor else "main"

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, table: Any) -> Any:
        if isinstance(table, dict):
            claim = f"the claim {table.get('says', '')!r}"
            named = sum(key in table for key in ("label", "order", "labels"))
            refuse_unless(named == 1, f"{claim} needs exactly one of label, order and labels")
            for key in (key for key in table if key in claim_keys()):
                close = nearest(key, cls.model_fields)
                mine = key in cls.model_fields
                refuse_unless(mine, f"{claim} asks for {cls.asks}, which takes no {key!r}; {close}")
        return table

    @model_validator(mode="after")
    def _compares(self) -> Self:
        claim, others = f"the claim {self.says!r}", self.names_beside
        refuse_unless(not self.beside or not self.across, f"{claim} has beside and across, of which one is enough")
        written = f"labels such as '{self.beside}/FedAvg'"
        refuse_unless(not self.beside or bool(others), f"{claim} has beside = {self.beside!r}, which needs {written}")
        return self

    @property
    def names(self) -> list[str]:
        """The labels of the claim."""
        raise NotImplementedError

    @property
    def names_beside(self) -> list[str]:
        """The labels of the other experiment, without its name."""
        start = f"{self.beside}/"
        return [name.removeprefix(start) for name in self.names if self.beside and name.startswith(start)]

    @property
    def names_here(self) -> list[str]:
        """The labels of this experiment."""
        return [name for name in self.names if not (self.beside and name.startswith(f"{self.beside}/"))]


class _OfLabels(_Claim):
    """A claim about one algorithm, or about each of several."""

    label: str | None = None
    labels: list[str] | None = Field(None, min_length=2)

    @property
    def names(self) -> list[str]:
        return self.labels or [str(self.label)]


class _Measured(_Claim, Quantity):
    """A claim about a measure: at the end, in a round, on the way to a target, or lost from another case."""

    measure: str = "objective"
    round: int | None = Field(None, ge=1)
    """The round of the claim; the last one if not given."""
    steps: int | None = Field(None, ge=1)
    """The same in gradients per client, for algorithms with rounds of different lengths."""
    lost_from: str | None = None
    """Given: the claim is about the loss of the measure relative to this case; smaller is then better."""

    @model_validator(mode="after")
    def _one_number(self) -> Self:
        claim = f"the claim {self.says!r}"
        one = sum(key is not None for key in (self.target, self.round, self.steps)) < 2
        refuse_unless(one, f"{claim} takes only one of target, round and steps")
        all_of_them = not self.best or self.place is None
        refuse_unless(all_of_them, f"{claim} has a round and best = true, which speaks of all rounds")
        two = self.lost_from is None or (self.case is not None and self.target is None)
        refuse_unless(two, f"{claim} has lost_from, which needs a case, and no target")
        return self

    @property
    def place(self) -> tuple[str, int] | None:
        """The place and axis of the measure; None: at the end, or on the way to a target."""
        if self.steps is not None:
            return "steps", self.steps
        return None if self.round is None else ("round", self.round)

    @property
    def counts(self) -> str:
        return super().counts if self.lost_from is None else f"{self.measure} lost"

    @property
    def directed(self) -> bool:
        return super().directed or self.lost_from is not None


class Bounded(_OfLabels, _Measured):
    """Every value is below a number, above one, or between two."""

    asks = "below or above"
    below: float | None = None
    above: float | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        some = self.below is not None or self.above is not None
        every = "below, above, near, within_factor, slope, diverges, order"
        refuse_unless(some, f"the claim {self.says!r} needs one of {every}")
        return self


class Near(_OfLabels, _Measured):
    """Every value differs from the number that the paper reports by at most a tolerance."""

    asks = "near"
    near: float
    tolerance: float = Field(gt=0)


class WithinFactor(_Measured):
    """The values differ by no more than a factor."""

    asks = "within_factor"
    labels: list[str] = Field(min_length=2)
    within_factor: float = Field(ge=1)

    @property
    def names(self) -> list[str]:
        return self.labels


class Order(_Measured):
    """The values are in an order, from the best to the worst."""

    asks = "order"
    order: list[str] = Field(min_length=2)
    factor: float | None = Field(None, gt=0)
    """Given: each is better than the next by at least this factor; below 1: worse by no more than 1/factor."""
    factor_most: float = Field(math.inf, gt=0)
    """And by no more than this one."""

    @model_validator(mode="after")
    def _range(self) -> Self:
        ordered = self.factor_most == math.inf or (self.factor or math.inf) <= self.factor_most
        says = f"the claim {self.says!r} has factor_most = {self.factor_most:g}"
        refuse_unless(ordered, f"{says}, which needs a factor that is not larger")
        return self

    @property
    def names(self) -> list[str]:
        return self.order

    @property
    def directed(self) -> bool:
        return True


class Slope(_OfLabels, _Measured):
    """The exponent of a power law that is fitted to a measure, by least squares of logarithms, is between two numbers.

    Along a run: the measure against the axis. With `at`: the measures of several labels against these numbers.
    """

    asks = "slope"
    slope: list[float] = Field(min_length=2, max_length=2)
    """The least and the largest: [-1.2, -0.8] for a measure that falls like one over the axis."""
    at: list[float] | None = None
    """Given: the labels are points, at these numbers, such as batch sizes."""
    exponential: bool = False
    """The logarithm of the measure against the axis itself: linear convergence, with rate exp(slope)."""
    since: float = 0.0
    """Rows before this place on the axis are left out."""
    until: float = float("inf")
    """And those after this one."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        claim, low, high = f"the claim {self.says!r}", *self.slope
        refuse_unless(low <= high, f"{claim} has slope = {self.slope}, whose first number must not be the larger one")
        fits = self.target is None and self.lost_from is None and (self.at is not None or self.place is None)
        refuse_unless(fits, f"{claim} asks for slope, which takes no target and no lost_from, and a round only with at")
        refuse_unless(self.at is not None or not self.best, f"{claim} asks for slope, which takes best only with at")
        if self.at is not None:
            same = len(self.at) == len(self.names) and len(set(self.at)) > 1
            refuse_unless(same, f"{claim} has at = {self.at}, which must be a number for each label, not all the same")
            positive = self.exponential or min(self.at) > 0
            refuse_unless(positive, f"{claim} has at = {self.at}, which must be > 0 without exponential")
        return self


class Diverges(_OfLabels):
    """Every seed diverges, or none does."""

    asks = "diverges"
    diverges: bool
    measure: ClassVar[str] = "round"
    """It needs rows, but no measure."""
    axis: ClassVar[str] = "round"
    directed: ClassVar[bool] = False


def _kind(claim: Any) -> str:
    """The kind of a claim, from its keys."""
    if not isinstance(claim, dict):
        return type(claim).__name__
    kinds = {"diverges": Diverges, "within_factor": WithinFactor, "near": Near, "tolerance": Near, "order": Order}
    kinds |= {"slope": Slope, "at": Slope}
    return next((kind.__name__ for key, kind in kinds.items() if key in claim), Bounded.__name__)


Claim = Annotated[
    Annotated[Bounded, Tag("Bounded")]
    | Annotated[Near, Tag("Near")]
    | Annotated[WithinFactor, Tag("WithinFactor")]
    | Annotated[Order, Tag("Order")]
    | Annotated[Slope, Tag("Slope")]
    | Annotated[Diverges, Tag("Diverges")],
    Discriminator(_kind),
]
"""[[claims]]: a testable statement of a paper about its results (papers/claims.py)."""


def make_claim(**keys: Any) -> Claim:
    """A claim of the kind that its keys imply."""
    adapter: TypeAdapter[Claim] = TypeAdapter(Claim)
    return adapter.validate_python(keys)


def claim_keys() -> set[str]:
    """Every key that some kind of claim takes."""
    return {key for kind in (Bounded, Near, WithinFactor, Order, Slope, Diverges) for key in kind.model_fields}


# ---- a whole file --------------------------------------------------------------------------------------------


def across_names(labels: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, str]]:
    """Names of algorithms in different cases: 'case: label', or the label alone if no other case has it."""
    times = Counter(label for some in labels.values() for label in some)
    pairs = [(case, label) for case, some in labels.items() for label in some]
    alone = {label: (case, label) for case, label in pairs if times[label] == 1}
    return alone | {f"{case}: {label}": (case, label) for case, label in pairs}


class Said(Strict):
    """The whole part of a file about results."""

    paper: Paper | None = None
    reported: list[Reported] = []
    claims: list[Claim] = []

    def asked(self, case: str) -> list[tuple[str, str, bool]]:
        """(where, measure or axis, whether it needs a direction) of claims, reported numbers and figures in a case."""
        figures = self.paper.figures if self.paper is not None else []
        asked = [
            *(("claims", c.measure, c.axis, c.directed) for c in self.claims if c.case in (None, case)),
            *(("reported", r.measure, r.axis, r.directed) for r in self.reported if r.case in (None, case)),
            *(("paper.figures", f.y, f.x, f.target is not None) for f in figures if not f.cases or case in f.cases),
        ]
        return [each for where, y, x, directed in asked for each in ((where, y, directed), (where, x, False))]

    def check_names(self, labels: Mapping[str, Sequence[str]], where: str) -> None:
        """Refuse unknown cases and labels; `labels` are the labels of each case."""
        known_cases = [case for case in labels if case]

        def check(cases: Iterable[str | None], named: Iterable[str], across: bool = False) -> None:
            """Of several cases, one must have the label; without cases, any of the file."""
            asked = [case for case in cases if case is not None]
            for case in asked:
                require(case in known_cases, f"{where}: there is no case {case!r}; {nearest(case, known_cases)}")
            within = dict.fromkeys(label for case in asked or labels for label in labels[case])
            known = across_names(labels) if across else within
            for label in named:
                require(label in known, f"{where}: no algorithm has the label {label!r}; {nearest(label, known)}")

        for claim in self.claims:
            check([claim.case], claim.names_here, claim.across)
            if isinstance(claim, _Measured):
                check([claim.lost_from], claim.names_here, claim.across)
        for numbers in self.reported:
            check([numbers.case], numbers.values)
        if self.paper is not None:
            for layer in (self.paper.quick, *self.paper.variants.values()):
                check(layer.get("cases", ()), ())
            check(self.paper.quick_cases, ())
            for figure in self.paper.figures:
                check(figure.cases, figure.labels)


def read_said(e: Experiment, where: str) -> Said:
    """Parses the file of an experiment."""
    tables = e.model_dump(include=set(Said.model_fields))
    try:
        return Said(**tables)
    except ValidationError as error:
        raise InputError(f"{where}: {sentence(error, tables, _known)}") from error


def _known(path: Sequence[str]) -> Iterable[str]:
    """The keys that are allowed at the end of a path such as paper.figures.0."""
    known = {"paper": Paper.model_fields, "figures": Figure.model_fields, "reported": Reported.model_fields}
    return next((known[part] for part in reversed(path) if part in known), claim_keys())
