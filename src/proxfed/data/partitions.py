"""Partitions: how samples are split among clients. A partition returns each client's sample indices.

Argument names are the same as in flwr-datasets if it has the same partitioner.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from proxfed.errors import InputError, at_least_one, one_of, positive, require, whole
from proxfed.keyed_random import generator
from proxfed.registry import Registry

Parts = list[np.ndarray]
"""Each client's sample indices, ascending."""

NOBODY = -1
ATTEMPTS = 1000


class Partition(Protocol):
    """labels (N,) and, for natural clients, groups (N,) -> each client's indices."""

    def __call__(self, labels: np.ndarray, groups: np.ndarray | None = None) -> Parts: ...


@dataclass(frozen=True)
class IID:
    """Equal shares (up to one sample) at random."""

    num_partitions: int
    """Clients."""
    seed: int = 0
    """Of the draw."""

    def __post_init__(self) -> None:
        at_least_one(self, "num_partitions")

    def __call__(self, labels: np.ndarray, groups: np.ndarray | None = None) -> Parts:
        N, n = len(labels), self.num_partitions
        _enough(self, N, n)
        return _by_owner(generator(self.seed, "partition").permutation(N) * n // N, n)


@dataclass(frozen=True)
class DirichletByClass:
    """Each class k is split over the clients in proportions p_k ~ Dir_n(alpha); drawn again if a client has too little.

    Sizes differ. Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019.
    """

    num_partitions: int
    """Clients."""
    alpha: float
    """Concentration: small is skewed, large is nearly IID."""
    min_partition_size: int = 10
    """The smallest allowed number of samples per client."""
    seed: int = 0
    """Of the draw."""

    def __post_init__(self) -> None:
        at_least_one(self, "num_partitions", "min_partition_size")
        positive(self, "alpha")

    def __call__(self, labels: np.ndarray, groups: np.ndarray | None = None) -> Parts:
        n = self.num_partitions
        _enough(self, len(labels), n * self.min_partition_size)
        by_class = _shuffled_classes(labels, rng := generator(self.seed, "partition"))
        stock = np.array([len(samples) for samples in by_class])
        for _ in range(ATTEMPTS):
            shares = np.cumsum(rng.dirichlet(np.full(n, self.alpha), len(stock)), axis=1)
            shares[:, -1] = 1  # rounding must not lose the last sample of a class
            counts = np.diff((shares * stock[:, None]).astype(np.int64), axis=1, prepend=0)
            if counts.sum(0).min() >= self.min_partition_size:
                break
        else:
            raise InputError(
                f"DirichletByClass: with alpha = {self.alpha} no draw in {ATTEMPTS} gave each of num_partitions = {n} "
                f"clients min_partition_size = {self.min_partition_size} of the {len(labels)} samples; "
                "raise alpha or lower one of the other two"
            )
        owner = np.empty(len(labels), np.int64)
        for samples, count in zip(by_class, counts, strict=True):
            owner[samples] = np.repeat(np.arange(n), count)
        return _by_owner(owner, n)


@dataclass(frozen=True)
class DirichletByClient:
    """Each client draws label proportions ~ Dir_C(alpha) and takes N // n samples by them, as long as a class lasts.

    Equal sizes; the N mod n remaining samples are left out. Hsu, Qi, Brown, "Measuring the Effects of Non-Identical
    Data Distribution", 2019, by the process of FedDyn's code: repeatedly, a random client that is not full draws a
    label, and redraws if that class is used up.
    """

    num_partitions: int
    """Clients."""
    alpha: float
    """Concentration: small is skewed, large is nearly IID."""
    seed: int = 0
    """Of the draw."""

    def __post_init__(self) -> None:
        at_least_one(self, "num_partitions")
        positive(self, "alpha")

    def __call__(self, labels: np.ndarray, groups: np.ndarray | None = None) -> Parts:
        n, size = self.num_partitions, len(labels) // self.num_partitions
        _enough(self, len(labels), n)
        by_class = _shuffled_classes(labels, rng := generator(self.seed, "partition"))
        priors = rng.dirichlet(np.full(len(by_class), self.alpha), n)
        # The next client is uniform among those that are not full, like the next of n Poisson clocks to ring.
        arrivals = rng.exponential(size=(n, size)).cumsum(axis=1)
        clients = arrivals.ravel().argsort() // size
        drawn = _draw_until_used_up(priors, clients, np.array([len(samples) for samples in by_class]), rng)
        owner = np.full(len(labels), NOBODY)
        for k, samples in enumerate(by_class):
            takers = clients[drawn == k]
            owner[samples[: len(takers)]] = takers
        return _by_owner(owner, n)


def _draw_until_used_up(
    priors: np.ndarray, clients: np.ndarray, stock: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The class taken at each turn, in order. All turns are drawn at once and repaired, one used-up class at a time.

    Draws after their class was used up are redrawn from the remaining classes, as if drawn in order. Each repair can
    only use up further classes, so there are at most as many repairs as classes.
    """
    C, left = len(stock), np.ones(len(stock), bool)
    small = np.min_scalar_type(C)  # a narrow type is sorted by counting

    def draw(turns: np.ndarray) -> np.ndarray:
        # A client whose own classes are used up takes from the others.
        weights = np.where(left, priors + 1e-12, 0)
        bounds = weights.cumsum(axis=1)
        own = bounds[clients[turns]]
        u = rng.random(len(turns)) * own[:, -1]
        return np.minimum((own <= u[:, None]).sum(1), np.flatnonzero(left)[-1]).astype(small)

    drawn = draw(np.arange(len(clients)))
    while True:
        order = drawn.argsort(kind="stable")
        count = np.bincount(drawn, minlength=C)
        start = count.cumsum() - count
        over = np.flatnonzero(count > stock)
        if len(over) == 0:
            return drawn
        first = order[start[over] + stock[over]]  # the turn at which each of these classes runs dry
        k = over[first.argmin()]
        left[k] = False
        late = order[start[k] + stock[k] : start[k] + count[k]]
        drawn[late] = draw(late)


@dataclass(frozen=True)
class ClassesPerClient:
    """Each client holds x of the C classes; the holders of a class share its samples evenly.

    Z. Yang et al. (FedNAG) leave the assignment open. Samples of a class that no client holds are left out.
    """

    num_partitions: int
    """Clients."""
    num_classes_per_partition: int
    """x."""
    seed: int = 0
    """Of the draws."""
    class_assignment_mode: str = "deterministic"
    """'deterministic': client i holds the classes (i x + j) mod C, j < x, so that all are held as soon as n x >= C;
    'sliding': the classes (i + j) mod C, so that neighbours share all but one, and n + x - 1 are held; 'random': each
    client draws its own."""

    def __post_init__(self) -> None:
        at_least_one(self, "num_partitions", "num_classes_per_partition")
        one_of(self, "class_assignment_mode", ("deterministic", "sliding", "random"))

    def __call__(self, labels: np.ndarray, groups: np.ndarray | None = None) -> Parts:
        n, x = self.num_partitions, self.num_classes_per_partition
        rng = generator(self.seed, "partition")
        by_class = _shuffled_classes(labels, rng)
        C = len(by_class)
        require(x <= C, f"ClassesPerClient: num_classes_per_partition = {x} but the data have {C} classes")
        holders: list[list[int]] = [[] for _ in range(C)]
        for i in range(n):
            for k in self._classes(i, C, rng):
                holders[k].append(i)
        owner = np.full(len(labels), NOBODY)
        for samples, share in zip(by_class, holders, strict=True):
            if share:
                owner[samples] = np.array(share)[np.arange(len(samples)) * len(share) // len(samples)]
        return _without_empty(self, _by_owner(owner, n))

    def _classes(self, i: int, C: int, rng: np.random.Generator) -> np.ndarray:
        """The classes of client i."""
        x = self.num_classes_per_partition
        if self.class_assignment_mode == "random":
            return rng.choice(C, x, replace=False)
        first = i if self.class_assignment_mode == "sliding" else i * x
        return (first + np.arange(x)) % C


@dataclass(frozen=True)
class Shards:
    """Samples sorted by label are cut into n s equal shards; each client gets s of them (McMahan et al., 2017)."""

    num_partitions: int
    """Clients."""
    num_shards_per_partition: int = 2
    """s."""
    seed: int = 0
    """Of the draw."""

    def __post_init__(self) -> None:
        at_least_one(self, "num_partitions", "num_shards_per_partition")

    def __call__(self, labels: np.ndarray, groups: np.ndarray | None = None) -> Parts:
        N, shards = len(labels), self.num_partitions * self.num_shards_per_partition
        _enough(self, N, shards)
        rng = generator(self.seed, "partition")
        by_label = np.concatenate(_shuffled_classes(labels, rng))
        owner = np.empty(N, np.int64)
        owner[by_label] = rng.permutation(shards)[np.arange(N) * shards // N] // self.num_shards_per_partition
        return _by_owner(owner, self.num_partitions)


@dataclass(frozen=True)
class Sizes:
    """A given number of random samples per client; the rest is left out."""

    partition_sizes: tuple[int, ...]
    """Each client's number of samples."""
    seed: int = 0
    """Of the draw."""

    def __post_init__(self) -> None:
        sizes = tuple(self.partition_sizes)
        object.__setattr__(self, "partition_sizes", sizes)  # a configuration file has lists
        require(len(sizes) > 0, f"Sizes: partition_sizes = {sizes!r} must have the size of at least one client")
        for i, size in enumerate(sizes):
            require(whole(size) and size >= 1, f"Sizes: partition_sizes[{i}] = {size!r} must be a whole number >= 1")

    def __call__(self, labels: np.ndarray, groups: np.ndarray | None = None) -> Parts:
        n, total = len(self.partition_sizes), sum(self.partition_sizes)
        require(total <= len(labels), f"Sizes: partition_sizes add up to {total}, but there are {len(labels)} samples")
        owner = np.full(len(labels), NOBODY)
        chosen = generator(self.seed, "partition").permutation(len(labels))[:total]
        owner[chosen] = np.repeat(np.arange(n), self.partition_sizes)
        return _by_owner(owner, n)


@dataclass(frozen=True)
class NaturalPartition:
    """One client per id in the data's own column of owners (writers, hospitals), in the order of the ids."""

    def __call__(self, labels: np.ndarray, groups: np.ndarray | None = None) -> Parts:
        if groups is None:
            raise InputError("NaturalPartition: these data have no column with the owner of each sample")
        require(len(groups) == len(labels), f"NaturalPartition: {len(groups)} ids for {len(labels)} samples")
        ids, owner = np.unique(groups, return_inverse=True)
        return _by_owner(owner, len(ids))


PARTITIONS: Registry[type] = Registry(
    "partitions",
    {
        "iid": IID,
        "dirichlet_by_class": DirichletByClass,
        "dirichlet_by_client": DirichletByClient,
        "classes_per_client": ClassesPerClient,
        "shards": Shards,
        "sizes": Sizes,
        "natural": NaturalPartition,
    },
)


def _by_owner(owner: np.ndarray, n: int) -> Parts:
    """The samples of clients 0..n-1; those of NOBODY are left out."""
    order = owner.argsort(kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(n + 1))
    return [order[start:stop] for start, stop in pairwise(bounds)]


def _shuffled_classes(labels: np.ndarray, rng: np.random.Generator) -> Parts:
    """The samples of each class that occurs, in random order."""
    values, which = np.unique(labels, return_inverse=True)
    order = rng.permutation(len(labels))
    return [order[part] for part in _by_owner(which[order], len(values))]


def _enough(partition: Partition, have: int, need: int) -> None:
    require(have >= need, f"{partition}: needs at least {need} samples, but there are {have}")


def _without_empty(partition: Partition, parts: Parts) -> Parts:
    for i, part in enumerate(parts):
        require(len(part) > 0, f"{partition}: client {i} would hold no samples")
    return parts
