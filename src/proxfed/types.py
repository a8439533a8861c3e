"""The types that everything else builds on. Read this file first.

    minimise over x in R^d      phi(x) = sum_i p_i f_i(x) + h(x)

Per-client arrays are always (clients, d), even for a single client; a point shared by all clients is (d,). An algorithm
receives `f` (this block of clients), `h` and, on graphs, `mix`. It never indexes the client axis, samples no data and
knows no network, so that the same file runs stacked in one process and in blocks over many.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    cast,
    runtime_checkable,
)

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypeVar

from proxfed.data.federated import Federated
from proxfed.errors import InputError, require
from proxfed.explained import explain
from proxfed.keyed_random import Ids, Key, keys

__all__ = [
    "AUTO",
    "LOCAL_STEPS",
    "Algorithm",
    "Block",
    "Compressor",
    "Constants",
    "Facts",
    "FloatOrAuto",
    "Graph",
    "Local",
    "Mean",
    "Measure",
    "Message",
    "Method",
    "Mix",
    "Mixing",
    "Needs",
    "Packed",
    "Participation",
    "Problem",
    "Regulariser",
    "Relay",
    "RowsApart",
    "Sends",
    "Smooth",
    "Smoothness",
    "SparseCompressor",
    "Star",
    "Stateless",
    "Topology",
    "When",
]

AUTO: Final = "auto"
"""Instead of a step size: the step is found while the algorithm runs."""

if TYPE_CHECKING:
    FloatOrAuto: TypeAlias = float | Any
else:
    FloatOrAuto = float | Literal["auto"]
"""A hyper-parameter that is a number, or "auto". Equations use it as a number, since nothing is computed before it is
found; a type checker sees a number, or Any."""

Mean = Callable[[Tensor], Tensor]
"""(c, d) -> (d,): the average over all clients of the network; used to evaluate a run, never by its steps."""

Message = Any
"""A message: a tensor (c, k), or (k,) from the server; a Packed, with one row from the server; or a tuple of these. An
algorithm's signatures say which of them it sends; it receives dense tensors."""

Mix = Callable[[Message], Tensor]
"""(c, d) -> (c, d): row i becomes sum_j w_ij x_j, over the graph of this round. x is a tensor, or a Packed, whose dense
value is mixed and whose bytes are sent over each edge."""


class Block(NamedTuple):
    """A named part of the flat parameter vector: x[..., start:stop], which has this shape."""

    name: str
    """Its name, such as 'fc1.weight'."""
    start: int
    """Its first coordinate."""
    stop: int
    """One past its last coordinate."""
    shape: tuple[int, ...]
    """The shape of the parameter."""


Better: TypeAlias = Literal["lower", "higher", ""]
"""Which values of a measure are better; '' if neither direction is better, or it is not known."""


@dataclass(frozen=True)
class Measure:
    """A measure of models, and which of its values are better: Measure("r2", "higher")."""

    name: str
    """Its name in rows and reports."""
    better: Better = ""
    """Which values are better: 'lower' or 'higher'; '': it has no direction."""

    def __post_init__(self) -> None:
        require(isinstance(self.name, str) and self.name != "", f"Measure: name = {self.name!r} must be a word")
        known = self.better in ("lower", "higher", "")
        require(known, f"Measure({self.name!r}): better = {self.better!r} must be 'lower', 'higher' or ''")


def directions(measures: Sequence[Measure | str]) -> dict[str, Better]:
    """{name: which values are better}; a bare name is a measure without a direction."""
    listed = not isinstance(measures, str) and all(isinstance(each, (Measure, str)) for each in measures)
    require(listed, f"measures = {measures!r:.80} must be a tuple, such as (Measure('r2', 'higher'),)")
    found = [Measure(each) if isinstance(each, str) else each for each in measures]
    return {measure.name: measure.better for measure in found}


class Local(ABC):
    """f_i of one block of clients during round t: their own data and their own randomness.

    Your own subclass implements `full_grad` and `value`; without a `grad` it has full gradients only.
    """

    t: int
    """The round."""
    ids: Ids
    """The clients of the block."""
    seed: int
    """The seed of the run."""

    @cached_property
    def key(self) -> Key:
        """One key per client, for the randomness of its messages in this round."""
        return keys(self.seed, "message", self.ids, self.t)

    @abstractmethod
    def full_grad(self, x: Tensor) -> Tensor:
        """Gradients (c, d) at x, (c, d) or (d,), over all of each client's data."""

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """f_i(x), (c,), over all of each client's data."""

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`value` and `full_grad` at the same x, possibly in one pass over the data."""
        return self.value(x), self.full_grad(x)

    def grad(self, x: Tensor, draw: int) -> Tensor:
        """Minibatch gradients (c, d) at x, (c, d) or (d,). Same draw, same minibatch."""
        return self.full_grad(x)

    def descend(self, y: Tensor, draws: range, eta: float) -> None:
        """y <- y - eta grad f_i(y) for each of the draws, in place on rows (c, d), without storing a gradient."""
        for draw in draws:
            y.sub_(self.grad(y, draw), alpha=eta)

    @property
    def l2(self) -> float:
        """Weight of |x|^2 / 2 inside every f_i, which is public."""
        return 0.0

    def hessian(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """V (c, d) -> (c, d): each row times the Hessian of f_i at x, (c, d) or (d,), over all data of the client."""
        raise InputError("Hessian products are not known for this f")

    def spread(self, x: Tensor) -> Tensor:
        """A shared point (d,) as one row per client, (c, d)."""
        return x.expand(len(self.ids), -1)


class Smoothness(NamedTuple):
    """Constants of the f_i and of f = sum p_i f_i."""

    L: float
    """The largest smoothness constant of any f_i."""
    L_f: float
    """The smoothness constant of f."""
    mu: float
    """The strong convexity constant of f."""
    mu_min: float = 0.0
    """The smallest strong convexity constant of any f_i."""


class Smooth(ABC):
    """f = sum_i p_i f_i on R^d: the losses of n clients, and everything computed from their data.

    Your own subclass has n and d, as fields or properties, and `local`. Everything else is optional: it has a default,
    or is refused in one sentence when it is needed. `f + h` is the problem.
    """

    n: int
    """Number of clients."""
    d: int
    """Length of x."""
    batch: int | None = None
    """Samples of a stochastic gradient; None: full gradients."""
    data: Federated | None = None
    """The clients' samples; None: not known."""
    l2: float | None = None
    """Weight of |x|^2 / 2 inside every f_i; None: it has no such term."""
    has_hessian: bool = False
    """Whether its `Local` offers Hessian products."""
    train_measures: bool = True
    """Whether to compute objective and stationarity at every evaluation, by passes over all training data."""

    @abstractmethod
    def local(self, t: int, ids: Ids, seed: int = 0) -> Local:
        """f_i of these clients in round t; must be thread-safe, as must its result."""

    def __add__(self, h: Regulariser) -> Problem[Self]:
        """f + h."""
        return Problem(self, h)

    def __getstate__(self) -> dict[str, Any]:
        """The fields without cached properties, which other processes compute again."""
        made = type(self)
        return {k: v for k, v in vars(self).items() if not isinstance(getattr(made, k, None), cached_property)}

    @cached_property
    def weights(self) -> Tensor:
        """p_i, (n,), summing to one."""
        return torch.full((self.n,), 1 / self.n, dtype=torch.float64)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The named parts of x, one after the other."""
        return (Block("x", 0, self.d, (self.d,)),)

    @property
    def gradient_size(self) -> int:
        """Numbers that a client's gradient reads, on average; decides whether threads are worth while."""
        return self.d

    def initial(self, seed: int) -> Tensor:
        """Where a run with this seed begins, (d,), unless the problem has an x0."""
        return torch.zeros(self.d, dtype=self.weights.dtype, device=self.weights.device)

    def value(self, x: Tensor) -> Tensor:
        """f(x), (), over all data."""
        return self.weights @ self.local(0, range(self.n)).value(x)

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of f at x, (d,), over all data."""
        return self.weights @ self.local(0, range(self.n)).full_grad(x)

    @property
    def measures(self) -> Sequence[Measure | str]:
        """The measures that `evaluate` returns, known in advance: Measure("r2", "higher").

        A bare name has no direction, so it cannot be used for tuning, stopping or comparing.
        """
        return ()

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """Measures on held-out data, such as accuracy; may be empty."""
        return {}

    @property
    def training_measures(self) -> Sequence[Measure | str]:
        """The measures that `training_score` returns, in the same way."""
        return ()

    def training_score(self, x: Tensor) -> dict[str, float]:
        """Measures on training data, such as 'train_loss'; may be empty."""
        return {}

    def smoothness(self) -> Smoothness:
        raise InputError(f"the smoothness of {self} is not known: give step sizes as numbers")

    @property
    def double(self) -> Smooth:
        """The same f, computed in float64."""
        return self

    @property
    def solvable(self) -> bool:
        """Whether it has a solver: `minimise`."""
        return type(self).minimise is not Smooth.minimise

    def minimise(self, h: Regulariser, x0: Tensor, tolerance: float = 1e-12) -> Tensor:
        """The minimiser of f + h, (d,), found from x0."""
        raise InputError(f"there is no solver for {self}")

    def fewer(self, samples: int) -> Smooth:
        """The same f with at most this many samples per client, for a cheap estimate."""
        return self

    def with_l2(self, l2: float) -> Self:
        """The same f with this weight of |x|^2 / 2 inside every f_i."""
        raise InputError(f"{self} has no l2")

    def __str__(self) -> str:
        return type(self).__name__


F = TypeVar("F", bound=Smooth, covariant=True, default=Smooth)


@dataclass(frozen=True, eq=False)
class Problem(Generic[F]):
    """phi = f + h, and the starting point. Problems with another h or x0 share f and its cached results."""

    f: F
    """The smooth part: the clients' losses on their data."""
    h: Regulariser
    """The regulariser."""
    x0: Tensor | None = None
    """The starting point, (d,); None: `f.initial(seed)`."""

    def __post_init__(self) -> None:
        require(isinstance(self.f, Smooth), f"Problem: f = {self.f!r:.80} is not a Smooth such as Linear(data, loss)")
        shown = self.h.__name__ if isinstance(self.h, type) else f"{self.h!r:.80}"
        what = "a class, not" if isinstance(self.h, type) else "not"
        require(isinstance(self.h, Regulariser), f"h = {shown} is {what} a regulariser such as L1(0.1)")
        if self.x0 is not None:
            x0, d = torch.as_tensor(self.x0).detach().to(self.f.weights), self.f.d
            require(x0.shape == (d,), f"x0 has shape {tuple(x0.shape)}, but d = {d}")
            object.__setattr__(self, "x0", x0)

    def start(self, seed: int) -> Tensor:
        """Where a run with this seed begins, (d,)."""
        return self.f.initial(seed) if self.x0 is None else self.x0.clone()

    def with_h(self, h: Regulariser) -> Self:
        """The same f with another regulariser."""
        return replace(self, h=h)

    def starting_at(self, x: Tensor) -> Self:
        """The same problem with the starting point x, (d,), for every seed."""
        return replace(self, x0=x)

    def value(self, x: Tensor) -> Tensor:
        """phi(x), ()."""
        return self.f.value(x) + self.h.value(x)

    def solve(self, tolerance: float = 1e-12) -> Tensor:
        """The minimiser of phi, (d,), computed in float64 whatever the dtype of f."""
        f = self.f.double
        return f.minimise(self.h, self.start(0).to(f.weights), tolerance).to(self.f.weights)

    def alpha_max(self) -> float:
        """The smallest weight of h for which the solution is zero in all coordinates that h penalises.

        Unpenalised coordinates, such as an intercept outside of h's blocks, take their optimal values.
        """
        f, h = self.f.double, self.h
        require(f.solvable, f"alpha_max is not known for {f}")
        require(h.thresholds, f"{type(h).__name__} has no weight from which on zero is the solution")
        x = f.minimise(h.held_at_zero(f.d), torch.zeros(f.d).to(f.weights))
        return h.weight_max(f.gradient(x))

    def __repr__(self) -> str:
        return f"{self.f!r} + {self.h!r}" if self.x0 is None else f"Problem({self.f!r}, {self.h!r}, x0=...)"

    def __str__(self) -> str:
        return f"{self.f} + {type(self.h).__name__}"


class Regulariser(ABC):
    """h: real-valued or an indicator, weakly convex with modulus `weak_convexity` (0: convex)."""

    @property
    def weak_convexity(self) -> float:
        return 0.0

    @property
    def indicator(self) -> bool:
        """It is 0 on a set and infinite elsewhere; its prox is the projection."""
        return False

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """h of each row: (..., d) -> (...)."""

    @abstractmethod
    def prox(self, v: Tensor, step: float) -> Tensor:
        """argmin_u step * h(u) + |u - v|^2 / 2, row by row. The only convention; needs step * weak_convexity < 1."""

    @property
    def thresholds(self) -> bool:
        """Whether a finite, large enough weight makes zero the solution."""
        return False

    def with_weight(self, weight: float) -> Regulariser:
        """The same regulariser with this weight and its other parameters unchanged."""
        raise InputError(f"{type(self).__name__} has no weight that could be changed")

    def weight_max(self, g: Tensor) -> float:
        """The smallest weight with which x = 0 minimises <g, x> + h(x), for g (d,); if h is not convex: near 0."""
        raise InputError(f"{type(self).__name__} has no weight from which on zero is the solution")

    def held_at_zero(self, d: int) -> Regulariser:
        """The limit of h for an infinite weight: x = 0 wherever the weight acts."""
        raise InputError(f"{type(self).__name__} has no weight from which on zero is the solution")


@dataclass(frozen=True)
class Packed:
    """A compressed message of a block of clients."""

    parts: dict[str, Tensor]
    """The tensors that are sent, each with the client axis in front."""
    dense: Tensor
    """The value that the receiver decodes, (c, d)."""
    nbytes: int
    """Bytes of all rows together as the papers count them (top-k: 4 for the index, one number for the value)."""
    best: int
    """Bytes of all rows together in the shortest available encoding: the exact output of `encode`."""
    compressor: Compressor
    """The compressor that packed the message; its `encode` and `decode` are used between processes."""


@runtime_checkable
class Compressor(Protocol):
    """v -> Packed. Contractive: E|C(v) - v|^2 <= q^2 |v|^2 with q^2 = `contraction(d)` < 1."""

    @property
    def unbiased(self) -> bool:
        """E C(v) = v."""

    def __call__(self, v: Tensor, key: Key) -> Packed: ...

    def contraction(self, d: int) -> float: ...

    def encode(self, packed: Packed) -> list[bytes]:
        """One message per client."""

    def decode(self, messages: Sequence[bytes], d: int, dtype: Any) -> Tensor:
        """The dense value (c, d), bit for bit the one that was packed."""


@runtime_checkable
class RowsApart(Compressor, Protocol):
    """A compressor whose messages the server reads one by one: as (clients, 1 + k), with their weights p_i in front.

    For servers that need more than a sum of vectors, such as a sum of outer products.
    """

    @property
    def beside(self) -> int:
        """Extra numbers in a row beside the d of a vector: k = d + beside."""


@runtime_checkable
class SparseCompressor(Compressor, Protocol):
    """A compressor that keeps some entries of a row: the cost of summing its messages does not depend on d."""

    def entries(self, messages: Sequence[bytes], d: int, dtype: Any) -> tuple[Tensor, Tensor]:
        """(distinct positions, values) of each message's entries, both (c, k); `decode` is zero elsewhere."""


class Mixing(NamedTuple):
    """The mixing matrix of one round as its non-zero entries: W[row[k], col[k]] = weight[k]."""

    n: int
    """Clients."""
    row: NDArray[np.int64]
    """The receiver of each entry."""
    col: NDArray[np.int64]
    """The sender of each entry."""
    weight: NDArray[np.float64]
    """The entries."""


@runtime_checkable
class Topology(Protocol):
    """A communication graph with mixing weights. It repeats after `period` rounds; None: drawn anew each round."""

    @property
    def n(self) -> int: ...

    @property
    def period(self) -> int | None: ...

    @property
    def doubly_stochastic(self) -> bool:
        """Whether the columns of W also sum to one, so that mixing preserves the mean."""

    def W(self, t: int) -> Mixing: ...

    def spectral_gap(self) -> float:
        """1 - |W - J|_2 (for changing graphs: one minus the mean contraction of a round)."""


@runtime_checkable
class Participation(Protocol):
    """Which clients take part in round t."""

    def __call__(self, t: int, n: int, seed: int) -> Ids: ...


class Needs(NamedTuple):
    """An algorithm's requirements on a problem and a network; `run` checks them before it starts."""

    composite: bool = True  # takes prox steps; False: h enters through its subgradient
    convex: bool = False  # h must be convex
    everyone: bool = False  # full participation
    all_hear: bool = False  # clients absent from a round must also receive its message down, then or later
    contractive: bool = False  # its compressor must be contractive
    unbiased: bool = False  # its compressor must be unbiased
    largest_q2: float = 1.0  # the largest q^2 of a contractive compressor
    hessian: bool = False  # Hessian products of every f_i
    exact_downlink: bool = False  # its server relies on clients receiving its message exactly
    fixed_graph: bool = False  # the same W in every round
    symmetric: bool = False  # W = W'
    doubly_stochastic: bool = False  # the columns of W also sum to one, or it would not track the mean
    eigenvalues_above: float = -1.0  # all eigenvalues of W must be above this


class Sends(NamedTuple):
    """Vectors of d numbers sent in a round: from and to each participating client, or over each edge."""

    up: int = 0  # vectors from each client
    down: int = 0  # vectors to each client
    edge: int = 0  # vectors over each edge: the number of calls of `mix`
    numbers_up: int = 0  # single numbers besides
    numbers_down: int = 0  # single numbers besides
    bytes_down: int = 0  # single bytes besides
    rows_apart: bool = False  # the server reads the messages one by one; their sum is not enough
    compressed: tuple[str, ...] = ()  # the directions, such as "up", in which vectors travel as C(d)
    times: str = ""  # the hyper-parameter that multiplies all of these
    on_average: bool = False  # the numbers are averages over rounds that differ

    def __str__(self) -> str:
        """'C(d) up, 1 down, and 1 number up', '2 Q per edge'."""
        vectors = [("up", self.up, "up"), ("down", self.down, "down"), ("edge", self.edge, "per edge")]
        numbers = [("up", self.numbers_up), ("down", self.numbers_down)]
        parts = [f"{self._how_many(count, way)} {words}" for way, count, words in vectors if count]
        parts += [f"and {count} number{'s' * (count > 1)} {way}" for way, count in numbers if count]
        parts += [f"and {self.bytes_down} byte{'s' * (self.bytes_down > 1)} down"] if self.bytes_down else []
        return ", ".join(parts) + " on average" * self.on_average

    def _how_many(self, count: int, way: str) -> str:
        factors = [self.times, "C(d)" if way in self.compressed else ""]
        return " ".join(filter(None, [str(count) if count > 1 or not any(factors) else "", *factors]))


class When:
    """A condition on hyper-parameters: When(K=1); both of When(K=1, rho=0); either of When(rho=0) | When(alpha=0).

    Parameters
    ----------
    **values : Any
        The value that each named hyper-parameter must have.
    """

    def __init__(self, **values: Any) -> None:
        self.cases: tuple[dict[str, Any], ...] = (values,)

    def __or__(self, other: When) -> When:
        either = When()
        either.cases = (*self.cases, *other.cases)
        return either

    def holds(self, settings: Mapping[str, Any]) -> bool:
        return any(all(settings.get(name) == value for name, value in case.items()) for case in self.cases)

    def __bool__(self) -> bool:
        raise TypeError(f"{self}: whether that holds depends on the settings of an algorithm; ask its is_exact()")

    def __str__(self) -> str:
        """'K = 1 and rho = 0', 'rho = 0 or alpha = 0'."""
        words = [" and ".join(f"{name} = {value!r}" for name, value in case.items()) for case in self.cases]
        return " or ".join(words)


class Facts(NamedTuple):
    """Facts for choosing an algorithm; `is_exact` evaluates them for its hyper-parameters."""

    sends: Sends  # messages of a round
    exact: bool | When  # full gradients, heterogeneous convex data: if it converges, then to the solution
    step: str = "eta"  # the hyper-parameter that is the length of a gradient step; '': none
    exact_partial: bool | When = False  # also exact with partial participation; with `partial` if it has that field
    averaging: str = ""  # the hyper-parameter in (0, 1] that averages control variates over rounds; '': none
    variate: str = "c"  # the field of a client's state with its control variate, if there is one


class Constants(NamedTuple):
    """The constants from which step sizes of the theory are computed."""

    smoothness: Smoothness  # of f and the f_i
    n: int  # clients
    d: int  # length of x
    rounds: int  # of the run
    weak_convexity: float  # of h
    psi: float  # |W - J|_2, 0 on a star


LOCAL_STEPS = ("K", "tau", "T0")
"""The names of hyper-parameters that are the number of local steps of a round."""


class Method(ABC):
    """Base of all algorithms. Hyper-parameters are fields; states are NamedTuples of tensors, possibly nested."""

    needs: ClassVar[Needs]
    facts: ClassVar[Facts]
    theory: ClassVar[Callable[..., Any] | None] = None
    """A class method (c: Constants, ...) -> the algorithm with the step sizes of its theorem; None: there is none."""

    @classmethod
    def reference(cls) -> str:
        """Its paper: the paragraph 'Reference:' in the docstring of the class, or else of its file."""
        docs = (inspect.getdoc(cls) or "", inspect.getdoc(inspect.getmodule(cls)) or "")
        found = next((doc.partition("Reference:")[2] for doc in docs if "Reference:" in doc), "")
        return " ".join(found.partition("\n\n")[0].split())

    def tied(self, s: float) -> dict[str, float]:
        """Other hyper-parameters that may be "auto", for local steps of length s: mostly penalties."""
        return {}

    def steps_for(self, s: float) -> dict[str, float]:
        """All hyper-parameters that may be "auto", for local steps of length s."""
        return ({self.facts.step: s} if hasattr(self, self.facts.step) else {}) | self.tied(s)

    def known_step(self, L: float, rho: float) -> float | None:
        """A local step that needs no search, for L-smooth f_i and h with the modulus rho of weak convexity.

        None: "auto" is to be found.
        """
        return None

    def advice(self, s: Smoothness) -> str:
        """What to try where a run was slow, given the constants of f; empty if nothing better is known."""
        return ""

    @property
    def to_find(self) -> tuple[str, ...]:
        """The hyper-parameters that are "auto"; `engine/race.py` finds them."""
        return tuple(name for name in self.steps_for(1.0) if getattr(self, name) == AUTO)

    def resolve(self, **steps: float) -> Self:
        """The same algorithm with these numbers instead of "auto"."""
        name, here = type(self).__name__, self.to_find
        wrong = next((step for step in steps if step not in here), None)
        require(wrong is None, f"{name}: {wrong} cannot be resolved: it is not 'auto'")
        require(is_dataclass(self), f"{name} must be a dataclass to have steps that are 'auto'")
        return cast(Self, replace(cast(Any, self), **steps))

    def with_local_steps(self, s: float) -> Self:
        """The same algorithm with every "auto" derived from local steps of length s."""
        steps = self.steps_for(s)
        return self.resolve(**{name: steps[name] for name in self.to_find})

    @property
    def example(self) -> Self:
        """An algorithm without "auto": itself, or with steps so short that every regulariser allows them."""
        return self.with_local_steps(1e-9) if self.to_find else self

    def requires(self) -> Needs:
        """Its needs with these hyper-parameters, if they differ from `needs`."""
        return self.needs

    def sends(self) -> Sends:
        """Its messages with these hyper-parameters, if they differ from `facts.sends`."""
        return self.facts.sends

    def is_exact(self, partial: bool = False) -> bool:
        """`facts.exact`, or `facts.exact_partial`, with these hyper-parameters."""
        fact = self.facts.exact_partial if partial else self.facts.exact
        return fact.holds(vars(self)) if isinstance(fact, When) else fact

    def largest_prox_step(self) -> float:
        """The largest step passed to h.prox; inf if it grows with the rounds. Required of composite algorithms."""
        if self.needs.composite:
            raise NotImplementedError(f"{type(self).__name__} takes prox steps, so it needs a largest_prox_step()")
        return 0.0


Client = TypeVar("Client")
Server = TypeVar("Server")
State = TypeVar("State")

Stateless = tuple[()]
"""The state of clients that keep nothing from round to round."""


class Star(Method, Generic[Client, Server]):
    """An algorithm with a server. If the server's state has a field `x`, this is its message and the model."""

    @abstractmethod
    def init(self, x0: Tensor, f: Local, h: Regulariser) -> tuple[Client, Server]:
        """(client states, server state)."""

    def down(self, s: Server, key: Key) -> tuple[Server, Message]:
        """The server's message to each client that takes part: (new state, message down)."""
        return s, s.x  # type: ignore[attr-defined]

    @abstractmethod
    def client(self, own: Client, down: Message, f: Local, h: Regulariser) -> tuple[Client, Message]:
        """A client's round: (new state, message up)."""

    def after(self, own: Client, down: Message, up: Message, h: Regulariser) -> Client | None:
        """The new state of a client that sent `up`, if it is a function of `up` and of public values; else None.

        Used if messages get noise: a state computed from the noisy message agrees with the server's, and contains no
        more information about the rows than was sent (engine/noise.py).
        """
        return None

    def hear(self, own: Client, down: Message) -> Client:
        """The state of a client that was absent from a round after it receives the message down (`all_hear`)."""
        return own

    @abstractmethod
    def server(self, s: Server, up: Message, h: Regulariser, share: float) -> Server:
        """The new server state from the weighted mean of the messages; share: the sum of p_i over participants."""

    def carried(self, own: Client, s: Server, h: Regulariser, to: Self) -> tuple[Client, Server]:
        """The states from which `to`, the same algorithm with other steps, continues. Models and gradients stay; points
        one step away from a model are moved to one new step away, so that a solution stays a fixed point."""
        return own, s

    def model(self, s: Server, h: Regulariser) -> Tensor:
        """The point (d,) that is evaluated and saved."""
        return s.x  # type: ignore[attr-defined,no-any-return]

    def shown(self, own: Client, s: Server) -> dict[str, Tensor]:
        """More rows (c, d) by name that measures can use, beside the fields of the clients' states."""
        return {}


class Relay(Star[Client, Server]):
    """A Star that defines the message of a tree node to its parent, so that every edge of a tree is compressed.

    Any Star runs along a spanning tree of a graph with the server at its root: the nodes add up messages. Sums of
    compressed messages are dense. A Relay compresses the sums instead: its `client` returns an uncompressed message,
    and `relay` compresses it, with a plain server as well as on a tree.
    """

    @abstractmethod
    def relay(self, own: Client, up: Tensor, below: Tensor | float, key: Key | None) -> tuple[Client, Message]:
        """A node's message to its parent, from the message of `client` and the sum of its children's messages.

        `below` is 0 without children. At the root, where the server is, `key` is None: no edge is crossed.
        """


class Graph(Method, Generic[State]):
    """An algorithm without a server. A step is one communication round; the field `x` of its state is the iterate."""

    @abstractmethod
    def init(self, x0: Tensor, f: Local, h: Regulariser, mix: Mix) -> State:
        """The clients' states."""

    def before_mix(self, s: State, f: Local, h: Regulariser) -> State:
        """The part of a round before the first `mix`, which clients compute on their own. Returns the new states.

        `step` could do the same. Done here, blocks store their states before they wait for each other, which saves
        memory.
        """
        return s

    @abstractmethod
    def step(self, s: State, f: Local, h: Regulariser, mix: Mix) -> State:
        """The rest of the round: gradients, prox steps and calls of `mix`."""

    def carried(self, s: State, to: Self) -> State:
        """The states from which `to`, the same algorithm with other steps, continues. Models and gradients stay; points
        one step away from a model are moved to one new step away, so that a solution stays a fixed point."""
        return s

    @abstractmethod
    def model(self, s: State, h: Regulariser, mean: Mean) -> Tensor:
        """The point (d,) that is evaluated and saved, from averages over the network."""

    def shown(self, s: State) -> dict[str, Tensor]:
        """More rows (c, d) by name that measures can use, beside the fields of the state."""
        return {}


Algorithm = Star[Any, Any] | Graph[Any]


explain(__name__)
