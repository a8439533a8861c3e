"""The cases of an experiment: the same algorithms in several settings, each with a run folder of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from copy import deepcopy

from proxfed.errors import nearest, require
from proxfed.harness.overrides import assign, override
from proxfed.harness.paper_schema import check_names
from proxfed.harness.schema import Experiment, parse, read_table
from proxfed.registry import Table, label_of

Layers = Sequence[tuple[str, Table]]
"""Settings on top of those of a case, with where they stand."""


class ExperimentFile:
    """An experiment's file, read and checked once: its cases in any form."""

    def __init__(self, source: str) -> None:
        self.table, self._where = read_table(source)
        """As it stands."""
        self.whole = parse(self.table, self._where)
        """With all its cases."""
        self._check_cases()
        e = self.whole
        says = e.claims or e.reported or e.paper
        if says and not e.case:  # the config.toml of a run has one case, and the claims about all of them
            check_names(e.claims, e.reported, e.paper, self.labels(), self._where)

    def cases(
        self,
        overrides: Iterable[str] = (),
        *,
        quick: bool = False,
        variant: str | None = None,
        only: Sequence[str] = (),
    ) -> dict[str, Experiment]:
        """The cases by name, `only` some of them if given; without [cases] there is one, called ''.

        What is set later wins: the file, the case, the quick form, the variant, `key=value` overrides.
        """
        layers, chosen, overrides = self._layers(quick, variant), self._chosen(quick, only), list(overrides)
        if not (self.whole.cases or layers or overrides):
            return {self.whole.case: self.whole}
        if variant is not None:
            form, some = "quick" if quick else "full", {*chosen, *self._chosen(quick, ())}
            changes = any(self._settings(name, layers) != self._settings(name, layers[:-1]) for name in some)
            same = f"the variant {variant!r} changes nothing in the {form} form: it is the same run"
            require(changes, f"{self._where}: {same}")
        cases = {}
        for name in chosen:
            own = self._settings(name, layers)
            for text in overrides:
                _check_changed(text.partition("=")[0], f"-c {text}")
                override(own, text)
            cases[name] = parse(own, f"{self._where}: case {name!r}" if self.whole.cases else self._where)
        return cases

    def labels(self) -> dict[str, list[str]]:
        """What the algorithms are called, in every case."""
        cases = {name: self._settings(name) for name in self.whole.cases or [self.whole.case]}
        return {name: [label_of(algorithm) for algorithm in own["algorithms"]] for name, own in cases.items()}

    def _settings(self, name: str, layers: Layers = ()) -> Table:
        """Of one case."""
        own = deepcopy({key: value for key, value in self.table.items() if key != "cases"})
        for key, value in self.whole.cases.get(name, {}).items():
            assign(own, key, value, f"{self._where}: cases.{name}: {key!r}")
        for place, layer in layers:
            for key, value in layer.items():
                _check_changed(key, f"{self._where}: {place}")
                assign(own, key, value, f"{self._where}: {place}: {key!r}")
        return own | {"case": name}

    def _layers(self, quick: bool, variant: str | None) -> Layers:
        """The quick form and the variant."""
        layers, paper = [], self.whole.paper
        if quick and paper is not None:
            layers.append(("paper.quick", paper.quick))
        if variant is not None:
            known = {} if paper is None else paper.variants
            require(variant in known, f"{self._where} has no variant {variant!r}; {nearest(variant, known)}")
            layers.append((f"paper.variants.{variant}", known[variant]))
        return layers

    def _chosen(self, quick: bool, only: Sequence[str]) -> list[str]:
        """The cases that are meant, in the order of the file; their folder's name will do."""
        names, paper = list(self.whole.cases or [self.whole.case]), self.whole.paper
        for name in only:
            close = nearest(name, names) if self.whole.cases else "it has none"
            require(slug(name) in map(slug, names), f"{self._where} has no case {name!r}; {close}")
        few = only or (paper.quick_cases if quick and paper is not None else ())
        return [name for name in names if slug(name) in map(slug, few)] if few else names

    def _check_cases(self) -> None:
        """Every case has a folder of its own."""
        slugs = list(map(slug, self.whole.cases))
        for name in self.whole.cases:
            require(slug(name) != "", f"{self._where}: the case {name!r} needs a name with letters or digits")
            alone = slugs.count(slug(name)) == 1
            require(alone, f"{self._where}: another case has nearly the same name as {name!r}")


def read_cases(
    source: str,
    overrides: Iterable[str] = (),
    *,
    quick: bool = False,
    variant: str | None = None,
    only: Sequence[str] = (),
) -> dict[str, Experiment]:
    """The cases of a file or a shipped experiment."""
    return ExperimentFile(source).cases(overrides, quick=quick, variant=variant, only=only)


def slug(case: str) -> str:
    """The folder of a case: 'MNIST MLP, IID' -> 'mnist-mlp-iid'."""
    return re.sub(r"[^\w.+]+", "-", case.lower()).strip("-.")


def _check_changed(key: str, where: str) -> None:
    """A form is changed by its settings; what is said about them is read from the file."""
    first = key.partition(".")[0]
    fixed = first in ("cases", "claims", "reported", "paper")
    require(not fixed, f"{where}: {first!r} is taken as the file has it; change the file, or the settings themselves")
