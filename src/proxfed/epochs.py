"""Local steps as passes over a client's own samples: K_i = epochs * ceil(samples of client i / batch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from proxfed.errors import InputError, at_least_one, require
from proxfed.explained import explain

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from proxfed.types import Smooth

__all__ = ["Epochs", "Steps", "at_steps", "epochs_of", "local_steps"]

A = TypeVar("A")


@dataclass(frozen=True)
class Epochs:
    """Local steps as passes over each client's own samples: a client that holds more takes more steps."""

    epochs: int
    """Passes over the client's own samples in a round."""

    def __post_init__(self) -> None:
        at_least_one(self, "epochs")

    def steps(self, f: Smooth, where: str = "Epochs") -> NDArray[np.int64]:
        """(n,) local steps of each client: epochs * ceil(samples / batch)."""
        data, batch = f.data, f.batch
        if batch is None or data is None:
            raise InputError(f"{where}: epochs need minibatches of a data set; give the problem a batch")
        here = data.window is None
        require(here, f"{where}: between organisations, epochs would tell how many rows a site has; give a number")
        return self.of(data.sizes, batch)

    def of(self, sizes: Sequence[int] | NDArray[np.int64], batch: int) -> NDArray[np.int64]:
        """The same of clients that hold so many samples."""
        import numpy as np  # the command line reads this file, and does not wait for it

        return self.epochs * -(-np.asarray(sizes, np.int64) // batch)


if TYPE_CHECKING:
    Steps: TypeAlias = int | Any
else:
    Steps = int | Epochs
"""Local steps of a round, of an algorithm that reads them in `client` alone: a number, or Epochs. `client` always finds
the number there: to a type checker it is a number, or Any."""


def local_steps(owner: Any, name: str) -> None:
    """The named field of `owner` is a whole number >= 1, or Epochs."""
    if not isinstance(getattr(owner, name), Epochs):
        at_least_one(owner, name)


def epochs_of(algorithm: Any) -> Epochs | None:
    """The Epochs among its hyper-parameters, or among those of an algorithm within it; None: there are none."""
    names = [f.name for f in fields(algorithm)] if is_dataclass(algorithm) else []
    for value in (getattr(algorithm, name) for name in names):
        if (found := value if isinstance(value, Epochs) else epochs_of(value)) is not None:
            return found
    return None


def at_steps(algorithm: A, K: int) -> A:
    """The algorithm with a number in the place of its Epochs."""
    given: Any = algorithm
    values = {f.name: getattr(given, f.name) for f in fields(given)}
    changed = {
        name: K if isinstance(value, Epochs) else at_steps(value, K)
        for name, value in values.items()
        if isinstance(value, Epochs) or epochs_of(value) is not None
    }
    return replace(given, **changed)


explain(__name__)
