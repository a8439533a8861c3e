"""Classification: log-odds for two classes, softmax regression for more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy.special import log_expit, log_softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from proxfed.data.federated import Federated
from proxfed.errors import require
from proxfed.problems.linear.linear import Linear
from proxfed.problems.losses import Logistic, Loss, Softmax
from proxfed.sklearn.base import FederatedLinear, Penalised
from proxfed.types import Problem


@dataclass(eq=False, repr=False)
class Classifier(ClassifierMixin, FederatedLinear):
    """The mean logistic loss, or cross-entropy, and a penalty."""

    _: KW_ONLY
    class_weight: Mapping[Any, float] | str | None = None
    """A number by class, or 'balanced', with classes counted over all organisations."""

    def _checks(self) -> dict[str, Any]:
        return {}

    def _labels(self, y: np.ndarray) -> tuple[np.ndarray, int | None]:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        require(
            len(self.classes_) > 1, f"there is only one class, {_listed(self.classes_)}, in y (rows of weight 0 apart)"
        )
        return (2.0 * codes - 1, None) if self._two else (codes, len(self.classes_))

    @property
    def _two(self) -> bool:
        return len(self.classes_) == 2

    def _loss(self) -> Loss:
        return Logistic() if self._two else Softmax()

    def _model(self, data: Federated, **options: Any) -> Problem[Linear]:
        return super()._model(data, class_weights=self._class_weights(), **options)

    def _class_weights(self) -> dict[str, float] | str | None:
        """Class weights by the labels of the loss."""
        given = self.class_weight
        if not isinstance(given, Mapping):
            return given
        codes = (-1, 1) if self._two else range(len(self.classes_))
        named = dict(zip(self.classes_.tolist(), codes, strict=True))
        unknown, without = ([c for c in a if c not in b] for a, b in ((given, named), (named, given)))
        require(
            not (unknown and without), f"class_weight: y has no class {_listed(unknown[:1])}, only {_listed(named)}"
        )
        zero = [c for c in named if given.get(c, 1) == 0]
        require(not zero, f"class_weight: {_listed(zero)} has weight 0; leave these rows out instead")
        return {str(code): float(given[c]) for c, code in named.items() if c in given}

    def _shaped(self, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return weight, bias

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the second class, (m,); for more than two classes, scores (m, classes)."""
        scores = self._scores(X)
        return scores[:, 0] if self._two else scores

    def predict(self, X: Any) -> np.ndarray:
        """(m,) the classes with the highest scores."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(1)]

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """(m, classes)."""
        scores = self.decision_function(X)
        return log_softmax(scores, 1) if scores.ndim > 1 else log_expit(np.column_stack([-scores, scores]))

    def predict_proba(self, X: Any) -> np.ndarray:
        """(m, classes)."""
        return np.exp(self.predict_log_proba(X))


@dataclass(eq=False, repr=False)
class FederatedLogisticRegression(Classifier, Penalised):
    """Logistic and softmax regression; scikit-learn's `LogisticRegression(C=1/((l1 + l2) * m), l1_ratio=l1/(l1 + l2))`
    for m rows (or the sum of their weights)."""


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(repr(v.item() if isinstance(v, np.generic) else v) for v in values)
