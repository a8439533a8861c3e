"""The expected cost of a run: the samples that follow from its settings, at the speed of stored runs.

    samples = rounds x clients per round x local steps x samples per step
    seconds = samples x seconds per sample, on one core

The seconds per sample are from stored results of the same algorithm in the same experiment, in any form, if it trained
the same model; otherwise from a table; otherwise the fewest of all stored runs of the model. Not counted are
evaluation, other work of an algorithm (the second gradient of a method that perturbs its point is in stored runs, but
not in the table), and other machines. It is accurate enough for an order, and to tell hours from weeks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from proxfed.papers import results_store
from proxfed.papers.results_format import KeptRun
from proxfed.registry import Table
from proxfed.types import LOCAL_STEPS

SECONDS = {
    "dfedadmm_cnn": 1.3e-3,
    "fedcef_cifar_cnn": 6.7e-3,
    "resnet18": 6.6e-3,
    "resnet18_group_norm": 6.5e-3,
    "vgg16": 2.6e-2,
}
"""For models in full forms only: the gradient at one 32x32 image, timed on one core in batches of 64."""


class Cost(NamedTuple):
    """The expected cost of a run."""

    seconds: float | None
    """Seconds on one core; None: not known."""
    known_from: str


@dataclass
class Speeds:
    """Seconds per sample, from stored results."""

    own: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    """By experiment, model and label."""
    any: dict[str, list[float]] = field(default_factory=dict)
    """By model."""

    @classmethod
    def read(cls, results: Path, names: Iterable[str]) -> Speeds:
        """The speeds of these experiments."""
        speeds = cls()
        for name in names:
            for run in results_store.read(results, name).values():
                speeds.learn(name, run)
        return speeds

    def learn(self, name: str, run: KeptRun) -> None:
        """From a stored run of an experiment."""
        model, threads = _model(run.settings), run.versions.get("threads", 1)
        for label in run.results.labels():
            spent = [rows[-1]["wall_seconds"] for rows in run.results.histories(label).values()]
            rounds = [rows[-1]["round"] for rows in run.results.histories(label).values()]
            count = samples(run.settings, label, len(run.sizes), sum(run.sizes))
            asked = _asked(run.settings, label, "rounds", 0)
            if count and asked and sum(rounds):
                speed = threads * sum(map(float, spent)) / (count * sum(rounds) / asked)
                self.own.setdefault((name, model, label), []).append(speed)
                self.any.setdefault(model, []).append(speed)

    def cost(self, name: str, settings: Table, clients: int, held: int, seeds: int) -> Cost:
        """The cost for settings by dotted keys, numbers of clients and samples, and seeds."""
        model, total, sources = _model(settings), 0.0, set()
        for label in settings["algorithms"]:
            speed, source = self._speed(name, model, label)
            if speed is None:
                return Cost(None, source)
            total += seeds * speed * samples(settings, label, clients, held)
            sources.add(source)
        return Cost(total, max(sources, key=_SOURCES.index))

    def _speed(self, name: str, model: str, label: str) -> tuple[float | None, str]:
        if speeds := self.own.get((name, model, label)):
            return median(speeds), OWN
        if model in SECONDS:
            return SECONDS[model], TABLE
        speeds = self.any.get(model)
        return (min(speeds), OTHERS) if speeds else (None, NOTHING)


OWN, TABLE, OTHERS, NOTHING = "runs of it", "a timed gradient", "runs of its model", "nothing"
_SOURCES = (OWN, TABLE, OTHERS, NOTHING)
"""From the best to the worst."""


def samples(settings: Mapping[str, Any], label: str, clients: int, held: int) -> float:
    """The number of per-sample gradients of an algorithm in a run, if each of its steps takes one gradient."""
    own = held / max(clients, 1)  # samples per client
    batch = min(_asked(settings, label, "problem.batch", None) or own, own)
    steps, epochs = (_first(settings, label, [f"{key}{what}" for key in LOCAL_STEPS]) for what in ("", ".mean_epochs"))
    taken = epochs * own if epochs is not None else (1 if steps is None else steps) * batch
    m, p = (_asked(settings, label, f"participation.{key}", None) for key in ("m", "p"))
    taking_part = m if m is not None else clients * (1.0 if p is None else p)
    return float(_asked(settings, label, "rounds", 0) * taking_part * taken)


def _asked(settings: Mapping[str, Any], label: str, key: str, otherwise: Any) -> Any:
    """A setting of an algorithm, or otherwise the common one."""
    return settings.get(f"algorithms.{label}.{key}", settings.get(key, otherwise))


def _first(settings: Mapping[str, Any], label: str, keys: Iterable[str]) -> Any:
    """The first of these settings that exists."""
    return next((value for key in keys if (value := _asked(settings, label, key, None)) is not None), None)


def _model(settings: Mapping[str, Any]) -> str:
    return str(settings.get("problem.model", settings.get("problem.name")))
