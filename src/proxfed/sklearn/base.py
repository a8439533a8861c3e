"""The base of all estimators: rows are divided among their organisations, and a linear model is fitted.

Parameters are fields of dataclasses: the constructor only stores them, as scikit-learn requires. Refusals are
InputErrors that are also ValueErrors, as scikit-learn expects from an estimator.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from proxfed.data.federated import Federated
from proxfed.errors import InputError, require
from proxfed.fit.inference.regression import Intercept
from proxfed.fit.inference.result import INTERCEPT
from proxfed.fit.inference.wald import Coefficient
from proxfed.fit.model import linear_model
from proxfed.fit.solve import Fit, Solver, Traffic, Unfinished
from proxfed.problems.linear.linear import Linear
from proxfed.problems.losses import Loss
from proxfed.problems.neural.loop import parameters
from proxfed.regularisers import ElasticNet
from proxfed.sklearn.intervals import by_organisation, intervals
from proxfed.types import Compressor, Problem, Regulariser

FLOATS = (np.float64, np.float32)
"""The allowed types of X; all computations are in float64."""


class RefusedValue(InputError, ValueError):
    """An InputError that scikit-learn sees as a ValueError."""


@contextmanager
def refusals() -> Iterator[None]:
    """Turns refusals into ValueErrors."""
    try:
        yield
    except InputError as e:
        raise RefusedValue(str(e)) from e


@dataclass(eq=False, repr=False)
class FederatedLinear(BaseEstimator):
    """A linear model, fitted by federated rounds to the rows of all organisations."""

    _: KW_ONLY
    fit_intercept: bool = True
    """Whether to fit an unpenalised intercept; False: the model goes through zero."""
    compressor: Compressor | None = None
    """Compressor of the messages, such as TopK(fraction=0.1); None: uncompressed gradients, in fewer rounds."""
    tol: float = 1e-10
    """Tolerance of the norm of the prox-gradient map, relative to the gradient at the start."""
    max_iter: int = 1000
    """The most rounds; compressed gradients and unscaled features need more of them."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit to rows X (m, p), dense or sparse, and y (m,).

        sample_weight   (m,) the weight of each row in the mean; rows of weight 0 are ignored
        groups          (m,) the organisation of each row, by name or number; None: a single organisation

        `groups` does not change the model, only the communication: `n_iter_` rounds, and `bytes_` in both directions
        over all `organisations_`.
        """
        X, y = validate_data(self, X, y, dtype=FLOATS, accept_sparse="csr", **self._checks())
        names, owner = _organisations(groups, X)
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
            kept = np.flatnonzero(weight)
            X, y, owner, sample_weight = X[kept], y[kept], owner[kept], weight[kept]
        order = np.argsort(owner, kind="stable")
        present, sizes = np.unique(owner, return_counts=True)
        self.organisations_ = names[present]
        centre, before = self._centre(X, sample_weight, len(sizes))
        with refusals():
            labels, classes = self._labels(y[order])
            data = Federated(
                X[order] if issparse(X) else X[order] - centre,
                labels,
                sizes,
                classes=classes,
                feature_names=getattr(self, "feature_names_in_", None),
                sample_weights=None if sample_weight is None else sample_weight[order],
            )
            model = self._model(data)
            fit = self._solve(model)
        traffic = before + fit.traffic
        self.n_iter_, self.bytes_ = traffic.rounds, traffic.bytes_up + traffic.bytes_down
        parts = {name: part.numpy().copy() for name, part in parameters(fit.x, model.f.blocks).items()}
        self.coef_, intercept = self._shaped(parts["weight"], parts.get("bias", np.zeros(len(parts["weight"]))))
        self.intercept_ = intercept - self.coef_ @ centre
        return self

    def inference(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        groups: Any = None,
        *,
        site_intercepts: bool = False,
        errors: str = "model",
        level: float = 0.95,
        adjust: str = "holm",
    ) -> list[Coefficient]:
        """Debiased coefficients with standard errors, intervals and p-values, from the training rows.

        Parameters
        ----------
        X, y, sample_weight, groups : array-like
                The same as in `fit`.
        site_intercepts : bool
                Whether every organisation has its own intercept, which it keeps.
        errors : str
            "model": correct if the model is; "robust": the sandwich estimator (HC1).
        level : float
                Confidence level of the intervals.
        adjust : str
            Adjustment of p-values for multiple comparisons: none, bonferroni, holm or bh.

        Returns
        -------
        list of Coefficient
            With name, estimate, error, low, high, p, adjusted and ratio; a shared intercept is the last.
        """
        check_is_fitted(self)
        X, y = validate_data(self, X, y, dtype=FLOATS, reset=False, **self._checks())
        _, owner = _organisations(groups, X)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        with refusals():
            require(bool(self.fit_intercept), "fit_intercept = False: a model through zero has no intervals here")
            labels, classes = self._labels(y)
            require(classes is None, f"{classes} classes: intervals are for two")
            names = [*getattr(self, "feature_names_in_", [f"x{j}" for j in range(X.shape[1])]), INTERCEPT]
            x = np.append(np.ravel(self.coef_), [] if site_intercepts else np.ravel(self.intercept_))
            rows = by_organisation(owner, X.astype(np.float64), labels, weight)
            kind: Intercept = "own" if site_intercepts else "shared"
            return intervals(self._loss(), x, rows, names, kind, errors, level, adjust)

    def _centre(self, X: np.ndarray, weight: np.ndarray | None, organisations: int) -> tuple[np.ndarray, Traffic]:
        """The mean of the features over all organisations, and the communication to compute it.

        With a free intercept, centring the features does not change the model; but features with means far from zero
        are nearly collinear, which takes many rounds. Sparse features are not centred, since they would become dense.
        """
        p = X.shape[1]
        if not self.fit_intercept or issparse(X):
            return np.zeros(p), Traffic()
        centre = np.average(X.astype(np.float64), 0, weight)
        size = organisations * centre.itemsize
        return centre, Traffic(1, (p + 1) * size, p * size)  # sums, and the sum of the weights

    def _checks(self) -> dict[str, Any]:
        """Further checks of X and y by scikit-learn."""
        return {"y_numeric": True}

    def _labels(self, y: np.ndarray) -> tuple[np.ndarray, int | None]:
        """(labels for the loss, number of classes)."""
        return y.astype(np.float64), None

    def _model(self, data: Federated, **options: Any) -> Problem[Linear]:
        return linear_model(data, self._loss(), self._penalty(), intercept=bool(self.fit_intercept), **options)

    @abstractmethod
    def _loss(self) -> Loss | str: ...

    @abstractmethod
    def _penalty(self) -> Regulariser: ...

    def _solver(self, tolerance: float) -> Solver:
        return Solver(tolerance, self.compressor, self.max_iter)

    def _solve(self, model: Problem[Linear]) -> Fit:
        return self._finish(lambda: self._solver(self.tol).fit(model))

    def _finish(self, make: Callable[[], Fit]) -> Fit:
        """The result, or the unconverged one with a warning."""
        try:
            return make()
        except Unfinished as e:
            hint = "scale the features, or set a larger max_iter or tol"
            warnings.warn(f"{e.reached}: {hint}", ConvergenceWarning, stacklevel=4)
            return e.fit

    def _shaped(self, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, Any]:
        """coef_ and intercept_ in scikit-learn's shapes, from (outputs, p) and (outputs,)."""
        return weight[0], bias[0]

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=FLOATS, accept_sparse="csr", reset=False)
        return X @ self.coef_.T + self.intercept_


@dataclass(eq=False, repr=False)
class Penalised(FederatedLinear):
    """With l1 |w|_1 + (l2/2) |w|^2, or any other penalty."""

    l1: float = 0.01
    l2: float = 0.0
    _: KW_ONLY
    penalty: Regulariser | None = None
    """Any regulariser instead of l1 and l2, such as GroupLasso(0.1, size=1) or MCP(0.1)."""
    feature_groups: Mapping[str, Sequence[str]] | Mapping[str, str] | None = None
    """Groups of a GroupLasso or SparseGroup, {group: features} or {feature: group}, by the names of the columns of X
    (x0, x1, ... if they have none)."""

    def _penalty(self) -> Regulariser:
        if self.penalty is None:
            return l1_and_l2(self.l1, self.l2)
        defaults = {field.name: field.default for field in fields(self)}
        for name in ("l1", "l2"):
            value = getattr(self, name)
            require(value == defaults[name], f"{name} = {value!r} and penalty = {self.penalty!r}: give one of them")
        return self.penalty

    def _model(self, data: Federated, **options: Any) -> Problem[Linear]:
        return super()._model(data, groups=self.feature_groups, **options)


def l1_and_l2(l1: float, l2: float) -> Regulariser:
    """As Python floats: a NumPy grid may have whole numbers."""
    return ElasticNet(*(float(v) if isinstance(v, np.number) else v for v in (l1, l2)))


def _organisations(groups: Any, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(names of the organisations, the organisation of each row)."""
    if groups is None:
        return np.zeros(1, np.int64), np.zeros(X.shape[0], np.int64)
    given = column_or_1d(groups)
    check_consistent_length(X, given)
    try:
        for row, name in enumerate(given.tolist()):
            if name is None or not name == name:
                raise RefusedValue(f"groups: row {row} has no organisation")
        return np.unique(given, return_inverse=True)
    except TypeError as e:  # not comparable, such as names and numbers, or pandas' NA
        raise RefusedValue("groups must be a name for each row, or a number for each row") from e
