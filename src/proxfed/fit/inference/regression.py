"""A regression without a penalty, as all organisations answer for it: sums at a point, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch

from proxfed.fit.objective import Objective, Shape
from proxfed.fit.oracle import Organisations, Question, Size, Sums
from proxfed.problems.losses import Huber, Loss, Squared

Array = np.ndarray
Intercept = Literal["shared", "own", "none"]


class At(NamedTuple):
    """Sums over the rows of all organisations at a point."""

    value: float
    gradient: Array
    """(d,)"""
    hessian: Array
    """(d, d)"""
    products: Array | None = None
    """(d, d) of the gradients of clusters."""

    @classmethod
    def of(cls, sums: Sums) -> At:
        assert sums.gradient is not None
        assert sums.hessian is not None
        products = None if sums.products is None else sums.products.numpy()
        return cls(sums.value, sums.gradient.numpy(), sums.hessian.numpy(), products)


@dataclass(frozen=True, eq=False)
class Regression:
    """What is regressed: organisations, their loss, and how many rows they have."""

    objective: Objective
    size: Size
    intercept: Intercept = "shared"
    """One for all, the last coefficient; or one for each organisation, which it keeps; or none."""
    products: str = "row"
    """What a cluster is, as `Question.products` has it; '': no products are asked for."""

    @classmethod
    def of(
        cls,
        organisations: Organisations,
        loss: Loss,
        features: int,
        intercept: Intercept = "shared",
        products: str = "row",
    ) -> Regression:
        """Two exchanges: how many rows there are, and what they weigh."""
        organisations = organisations.adding_intercepts() if intercept == "own" else organisations
        shape = Shape(1, features, intercept == "shared")
        return cls(Objective.of(organisations, loss, shape), organisations.size(), intercept, products)

    @property
    def d(self) -> int:
        """How many coefficients are asked for: with a shared intercept as the last."""
        return self.objective.d

    @property
    def loss(self) -> Loss:
        return self.objective.loss

    @property
    def dispersed(self) -> bool:
        """The dispersion is estimated; otherwise it is 1."""
        return isinstance(self.loss, Squared)

    @property
    def likelihood(self) -> bool:
        """The loss is minus a log-likelihood, so that the inverse Hessian is a covariance."""
        return not isinstance(self.loss, Huber)

    @property
    def intercepts(self) -> int:
        """Of organisations' own, which are parameters as well."""
        return len(self.objective.organisations.names) if self.intercept == "own" else 0

    @property
    def clusters(self) -> float:
        """How many there are."""
        each = {"cluster": self.size.clusters, "organisation": float(len(self.objective.organisations.names))}
        return each.get(self.products, self.size.rows)

    @property
    def informative(self) -> float:
        """Rows; of two outcomes those of the rarer one, of survival times the events."""
        if not self.loss.separate:
            return float(self.size.kinds[1])
        return float(self.size.kinds.min()) if len(self.size.kinds) > 1 else self.size.rows

    @property
    def traffic(self) -> int:
        """Exchanges so far."""
        return self.objective.organisations.traffic.rounds

    def ask(self, x: Array, products: bool = False) -> At:
        """One exchange: x to all of them, and the sum of what they answer."""
        question = Question(torch.from_numpy(np.array(x, float)), order=2, products=self.products if products else "")
        (sums,) = self.objective.organisations.ask([question])
        return At.of(sums)
