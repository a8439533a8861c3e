"""The cases of an experiment: the same algorithms in several settings, each with a run folder of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy

from proxfed.components import Table
from proxfed.config import Claim, Experiment, assign, override, parse, read_table
from proxfed.errors import nearest, require


def read_cases(
    source: str,
    overrides: Iterable[str] = (),
    *,
    quick: bool = False,
    variant: str | None = None,
    only: Sequence[str] = (),
) -> dict[str, Experiment]:
    """An experiment's cases by name, `only` some of them if given; without [cases] it is one case, called ''.

    What is set later wins: the file, the case, the quick form, the variant, `key=value` overrides.
    """
    table, where = read_table(source)
    whole = parse(table, where)
    _check(whole, where)
    if not whole.case:  # one of several cases, recorded by itself, does not know the others
        _check_names(whole, table, where)
    layers = _layers(whole, where, quick, variant)
    cases = {}
    for name in _chosen(whole, where, quick, only):
        own = _of_case(table, whole, name, where)
        for place, layer in layers:
            for key, value in layer.items():
                _check_changed(key, f"{where}: {place}")
                assign(own, key, value, f"{where}: {place}: {key!r}")
        for text in overrides:
            _check_changed(text.partition("=")[0], f"-c {text}")
            override(own, text)
        cases[name] = parse(own, f"{where}: case {name!r}" if whole.cases else where)
    return cases


def labels_by_case(source: str) -> dict[str, list[str]]:
    """What the algorithms are called, in every case of an experiment."""
    table, where = read_table(source)
    whole = parse(table, where)
    return {name: _labels(_of_case(table, whole, name, where)) for name in whole.cases or [whole.case]}


def slug(case: str) -> str:
    """The folder of a case: 'MNIST MLP, IID' -> 'mnist-mlp-iid'."""
    return re.sub(r"[^\w.+]+", "-", case.lower()).strip("-.")


def _check_changed(key: str, where: str) -> None:
    """A form is changed by its settings; what is said about them is read from the file."""
    first = key.partition(".")[0]
    fixed = first in ("cases", "claims", "reported", "paper")
    require(not fixed, f"{where}: {first!r} is taken as the file has it; change the file, or the settings themselves")


def _of_case(table: Table, whole: Experiment, name: str, where: str) -> Table:
    own = deepcopy({key: value for key, value in table.items() if key != "cases"})
    for key, value in whole.cases.get(name, {}).items():
        assign(own, key, value, f"{where}: cases.{name}: {key!r}")
    return own | {"case": name}


def _layers(whole: Experiment, where: str, quick: bool, variant: str | None) -> list[tuple[str, Table]]:
    """The settings of the quick form and of a variant, with where they stand."""
    layers = []
    if quick and whole.paper is not None:
        layers.append(("paper.quick", whole.paper.quick))
    if variant is not None:
        known = {} if whole.paper is None else whole.paper.variants
        require(variant in known, f"{where} has no variant {variant!r}; {nearest(variant, known)}")
        layers.append((f"paper.variants.{variant}", known[variant]))
    return layers


def _chosen(whole: Experiment, where: str, quick: bool, only: Sequence[str]) -> list[str]:
    """The cases that are meant, in the order of the file; their folder's name will do."""
    names = list(whole.cases or [whole.case])
    for name in only:
        known = slug(name) in map(slug, names)
        require(known, f"{where} has no case {name!r}; {nearest(name, names) if whole.cases else 'it has none'}")
    few = only or (whole.paper.quick_cases if quick and whole.paper is not None else ())
    return [name for name in names if slug(name) in map(slug, few)] if few else names


# ---- what the parts of a file say of each other ----------------------------------------------------------------------


def _check(whole: Experiment, where: str) -> None:
    """Every case has a folder of its own, and every claim says something that can be judged."""
    slugs = list(map(slug, whole.cases))
    for name in whole.cases:
        require(slug(name) != "", f"{where}: the case {name!r} needs a name with letters or digits")
        require(slugs.count(slug(name)) == 1, f"{where}: another case has nearly the same name as {name!r}")
    for variant in whole.paper.variants if whole.paper is not None else ():
        plain = re.fullmatch(r"[\w.-]+", variant) is not None  # it is part of a folder's name
        require(plain, f"{where}: the variant {variant!r} needs a name of letters, digits, '_', '-' and '.'")
    if whole.paper is not None:
        figures = [figure.name for figure in whole.paper.figures]
        for name in figures:
            require(figures.count(name) == 1, f"{where}: two figures are called {name!r}: they would be one file")
        for name in whole.paper.departures:
            known = whole.paper.variants
            require(name in known, f"{where}: departures: there is no variant {name!r}; {nearest(name, known)}")
    for claim in whole.claims:
        _check_claim(claim, where)


def _check_names(whole: Experiment, table: Table, where: str) -> None:
    """Claims, reported numbers and figures speak of cases and labels that exist."""
    labels = {name: _labels(_of_case(table, whole, name, where)) for name in whole.cases or [""]}
    anywhere = {label for some in labels.values() for label in some}

    def check(cases: Iterable[str], named: Iterable[str], known: Iterable[str] | None = None) -> None:
        for case in cases:
            require(case in whole.cases, f"{where}: there is no case {case!r}; {nearest(case, whole.cases)}")
            known = labels[case] if known is None else known
        for label in named:
            allowed = anywhere if known is None else known
            require(label in allowed, f"{where}: no algorithm has the label {label!r}; {nearest(label, allowed)}")

    for claim in whole.claims:
        one = [] if claim.case is None else [claim.case]
        check(one, claim_labels(claim), across_names(labels) if claim.across else None)
    for reported in whole.reported:
        check([] if reported.case is None else [reported.case], reported.values)
    if whole.paper is not None:
        check(whole.paper.quick_cases, ())
        for figure in whole.paper.figures:
            check(figure.cases, figure.labels, anywhere)


def _labels(table: Table) -> list[str]:
    return [str(algorithm.get("label", algorithm.get("name"))) for algorithm in table["algorithms"]]


def claim_labels(claim: Claim) -> list[str]:
    """The labels that a claim speaks of."""
    return [claim.label] if claim.label is not None else claim.order or claim.labels or []


def across_names(labels: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, str]]:
    """Names of what stands in different cases: 'case: label', or the label alone if no other case has it."""
    times = Counter(label for some in labels.values() for label in some)
    pairs = [(case, label) for case, some in labels.items() for label in some]
    alone = {label: (case, label) for case, label in pairs if times[label] == 1}
    return alone | {f"{case}: {label}": (case, label) for case, label in pairs}


def _check_claim(claim: Claim, where: str) -> None:
    given = [claim.label, claim.order, claim.labels]
    one = sum(names is not None for names in given) == 1
    require(one, f"{where}: the claim {claim.says!r} needs exactly one of label, order and labels")
    tests = [claim.below, claim.above, claim.near, claim.within_factor, claim.diverges, claim.order]
    some = any(test is not None for test in tests)
    require(some, f"{where}: the claim {claim.says!r} needs one of below, above, near, within_factor, diverges, order")
    alone = claim.diverges is None or not any(test is not None for test in (*tests[:4], claim.order, claim.target))
    require(alone, f"{where}: the claim {claim.says!r} asks for diverges, and for something else: make it two claims")
    one = claim.target is None or claim.round is None
    require(one, f"{where}: the claim {claim.says!r} has a target and a round, of which one is enough")
    require(
        (claim.near is None) == (claim.tolerance is None),
        f"{where}: the claim {claim.says!r} needs near and tolerance together",
    )
    require(
        claim.quick_target is None or (claim.target is not None and claim.form == "any"),
        f"{where}: the claim {claim.says!r} has a quick_target, which needs a target and a quick form that judges it",
    )
