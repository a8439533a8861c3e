"""What is fitted to the tables, as the table [model] of their file, the command line and `fit(...)` say it.

[model]
loss = "logistic"                          from the target, if it is not given
penalty = "l1"                             or {name = "elastic_net", l2 = 0.01}: settings, but not its weight
weight = 0.02                              of the penalty; otherwise it is chosen by cross-validation:
cv = "within"      folds = 5               rows of every organisation are held out; "organisation": all rows of one
rule = "one_se"                            the simplest model within one standard error of the best; or "best"
compress = {name = "top_k", fraction = 0.1}        what organisations send; without it, gradients as they are
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from proxfed.compressors import COMPRESSORS
from proxfed.errors import InputError, require
from proxfed.fit.model import linear_model
from proxfed.fit.solve import Solver
from proxfed.problems.linear.linear import Linear
from proxfed.problems.losses import CrossEntropy, Logistic, Loss, OneHot
from proxfed.problems.named_losses import LOSSES, find_loss
from proxfed.registry import arguments, build, look_up, settings_of
from proxfed.regularisers import L1, REGULARISERS, ElasticNet, GroupLasso, Nuclear, SparseGroup
from proxfed.tables.design import Design
from proxfed.tables.schema import Target
from proxfed.types import Problem, Regulariser
from proxfed.validation import STRICT, refuse_unless, sentence

Named = str | dict[str, Any]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

DEFAULT = {"number": "squared", "survival": "cox"}
ALIASES = {"softmax": "cross_entropy"}


class Settings(BaseModel):
    """How a model is fitted, chosen and judged."""

    model_config = STRICT

    loss: Named | None = None
    penalty: Named = "l1"
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    cv: Literal["within", "organisation"] | None = None
    folds: Annotated[int, Field(ge=2)] = 5
    rule: Literal["one_se", "best"] = "one_se"
    weights: Annotated[int, Field(ge=1)] | list[float] = 30
    """Of the path that cross-validation goes along: how many, or which, from the largest to the smallest."""
    smallest: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Of these weights, as a part of the largest; 0.001, or 0.01 where there are more features than rows."""
    compress: Named | None = None
    groups: dict[str, list[str]] | None = None
    """Of a group penalty, by the names of features; otherwise those that are made of one column."""
    class_weights: Literal["balanced"] | dict[str, Positive] | None = None
    """How much rows of a class count, by its name."""
    intercept: bool = True
    site_intercepts: bool = False
    """Every organisation has an intercept of its own, which it keeps; others predict with the mean of them."""
    tolerance: Positive = 1e-10
    """What may be left of the residual of the model, relative to the gradient at the start."""
    cv_tolerance: Positive = 1e-4
    """The same along the paths of cross-validation."""
    rounds: Annotated[int, Field(ge=1)] = 20_000
    """For one fit, at most."""
    alone: bool = True
    """Also fit a model to the rows of each organisation alone, to compare with."""
    repetitions: Annotated[int, Field(ge=0)] = 200
    """Of the bootstrap, from which intervals are; 0: none."""
    nested: bool = False
    """For every fold the weight is chosen again without it, so that the choice does not flatter the measures."""
    optimism: Annotated[int, Field(ge=0)] = 0
    """Draws of the rows from which the optimism of the model's own rows is estimated; 0: none, 50 to 200 otherwise."""
    stability: Annotated[int, Field(ge=0)] = 0
    """Halves of the rows to which the model is fitted again: how often is a feature chosen? 0: none, or 50 to 200."""
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    profile: str = "wan"
    """Devices and links on which seconds are computed."""
    seed: int = 0
    """Of the folds, the bootstrap, and a compressor that draws."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        both = self.weight is not None and self.cv is not None
        refuse_unless(not both, f"weight = {self.weight} and cv = {self.cv!r} exclude each other: give one of them")
        kept = self.site_intercepts
        refuse_unless(self.intercept or not kept, "site_intercepts = true needs intercept = true")
        refuse_unless(not (kept and self.compress), "site_intercepts and compress exclude each other")
        left = "site_intercepts and cv = 'organisation' exclude each other: one that is left out has no intercept"
        refuse_unless(not (kept and self.cv == "organisation"), left)
        chosen = self.weight is None and self.penalty not in ("zero", {"name": "zero"})
        refuse_unless(chosen or not self.nested, "nested = true: the weight is given, so nothing is chosen")
        again = "nested" if self.nested else "optimism" if self.optimism else "stability"
        refits = self.nested or self.optimism or self.stability
        refuse_unless(not (kept and self.optimism), "site_intercepts and optimism exclude each other")
        refuse_unless(not (refits and self.compress), f"{again} and compress exclude each other")
        return self

    @property
    def chosen_by(self) -> str:
        """How rows are held out."""
        return "organisation" if self.cv == "organisation" else "within"


def read_settings(table: Mapping[str, Any], where: str = "model") -> Settings:
    """The settings in a table, refused in one sentence."""
    try:
        return Settings.model_validate(dict(table))
    except ValidationError as e:
        raise InputError(f"{where}: {sentence(e, dict(table), _known)}") from e


def _known(path: Sequence[str]) -> Iterable[str]:
    return Settings.model_fields


# ---- from settings to a problem -------------------------------------------------------------------------------------


def solver_of(settings: Settings, tolerance: float, **more: Any) -> Solver:
    """For the model itself or along a path."""
    compressor = None if settings.compress is None else build(COMPRESSORS, _table(settings.compress), "compress")
    return Solver(tolerance, compressor, settings.rounds, settings.seed, **more)


def settings_for(base: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """The settings of a schema's [model]; those in `given` take precedence."""
    besides = "cv" if given.get("weight") is not None else "weight" if given.get("cv") is not None else ""
    return read_settings({key: value for key, value in base.items() if key != besides} | dict(given))


def given_weight(asked: Settings) -> float | None:
    """The weight of the penalty if it is given; 0 without a penalty; None if it is to be chosen."""
    return 0.0 if asked.penalty in ("zero", {"name": "zero"}) else asked.weight


def loss_of(settings: Settings, target: Target) -> Loss:
    """The loss that is named, or the usual one of this target; refused where the target is of another kind."""
    default = DEFAULT.get(target.kind, "logistic" if len(target.names) == 2 else "cross_entropy")
    given = default if settings.loss is None else settings.loss
    if isinstance(given, dict):
        given = given | {"name": ALIASES.get(given.get("name", ""), given.get("name", ""))}
    else:
        given = ALIASES.get(given, given)
    loss = find_loss(given)
    name = next((k for k, v in LOSSES.items() if type(v) is type(loss)), "")
    what = {"classes": f"{len(target.names)} classes", "number": "a number", "survival": "a time and an event"}
    said = f"loss = {name!r} does not fit the target, which is {what[target.kind]}; the usual one is {default!r}"
    require(loss_fits(loss, target), said)
    return loss


def loss_fits(loss: Loss, target: Target) -> bool:
    """Whether this is a loss of such a target."""
    if target.kind == "classes":
        return isinstance(loss, (CrossEntropy, OneHot)) or (isinstance(loss, Logistic) and len(target.names) == 2)
    return (target.kind == "survival") != loss.separate and not (loss.classes or isinstance(loss, Logistic))


def problem_of(settings: Settings, made: Design) -> Problem[Linear]:
    """The model of these tables, with a penalty of weight 1 or the weight that is given."""
    target = made.tables.schema.target
    assert target is not None
    loss = loss_of(settings, target)
    data = made.federated(signed=isinstance(loss, Logistic))
    weights = settings.class_weights
    if isinstance(weights, dict):
        weights = by_label(weights, made.classes, isinstance(loss, Logistic))
    options: dict[str, Any] = {"class_weights": weights, "intercept": settings.intercept}
    bare = linear_model(data, loss, **options)
    penalty = penalty_of(settings, bare.f.blocks[0].shape, made.preparation.groups)
    return linear_model(data, loss, penalty, groups=settings.groups, **options)


def penalty_of(settings: Settings, shape: tuple[int, ...], groups: tuple[int, ...]) -> Regulariser:
    """The regulariser that is named, on weights of this shape (outputs, features)."""
    table = _table(settings.penalty)
    weight = 1.0 if settings.weight is None else settings.weight
    if table == {"name": "zero"}:  # the weight is 0, so it need not be chosen
        return L1(0.0)
    make: Any = look_up(REGULARISERS, table, "penalty")
    names = {field.name for field in fields(make)} if hasattr(make, "__dataclass_fields__") else set()
    own = "l1" if issubclass(make, ElasticNet) else "weight"
    known = ", ".join(name for name, each in REGULARISERS.items() if {"weight", "l1"} & {f.name for f in fields(each)})
    require(own in names, f"penalty = {table['name']!r} has no weight that could be chosen; those with one are {known}")
    require(own not in table, f"penalty.{own}: the weight stands beside the penalty, weight = {table.get(own)!r}")
    fixed: dict[str, Any] = {own: weight}
    if issubclass(make, (GroupLasso, SparseGroup)) and "size" not in table and "labels" not in table:
        fixed["labels"] = groups * shape[0]
    if issubclass(make, Nuclear):
        fixed["shape"] = shape
    return make(**fixed, **arguments(make, settings_of(table), "penalty", set(fixed)))


def _table(named: Named) -> dict[str, Any]:
    return {"name": named} if isinstance(named, str) else named


def by_label(weights: Mapping[str, float], classes: Sequence[str], signed: bool) -> dict[str, float]:
    """By the labels of the data instead of the names of the classes."""
    strange = next((name for name in weights if name not in classes), None)
    require(strange is None, f"class_weights: {strange!r} is not a class; they are {', '.join(classes)}")
    labels = {name: 2 * k - 1 if signed else k for k, name in enumerate(classes)}
    return {str(labels[name]): weight for name, weight in weights.items()}
