"""The cases of an experiment: the same algorithms in several settings, each with a run folder of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial

from proxfed.errors import nearest, require
from proxfed.harness.schema import Claim, Experiment, assign, override, parse, read_table
from proxfed.registry import Table


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
    settings = partial(_of_case, table, whole, where)
    chosen = _chosen(whole, where, quick, only)
    if variant is not None:
        form, some = "quick" if quick else "full", {*chosen, *_chosen(whole, where, quick, ())}
        changes = any(settings(name, layers) != settings(name, layers[:-1]) for name in some)
        require(changes, f"{where}: the variant {variant!r} changes nothing in the {form} form: it is the same run")
    cases = {}
    for name in chosen:
        own = settings(name, layers)
        for text in overrides:
            _check_changed(text.partition("=")[0], f"-c {text}")
            override(own, text)
        cases[name] = parse(own, f"{where}: case {name!r}" if whole.cases else where)
    return cases


def labels_by_case(source: str) -> dict[str, list[str]]:
    """What the algorithms are called, in every case of an experiment."""
    table, where = read_table(source)
    return _labels(table, parse(table, where), where)


def slug(case: str) -> str:
    """The folder of a case: 'MNIST MLP, IID' -> 'mnist-mlp-iid'."""
    return re.sub(r"[^\w.+]+", "-", case.lower()).strip("-.")


def _check_changed(key: str, where: str) -> None:
    """A form is changed by its settings; what is said about them is read from the file."""
    first = key.partition(".")[0]
    fixed = first in ("cases", "claims", "reported", "paper")
    require(not fixed, f"{where}: {first!r} is taken as the file has it; change the file, or the settings themselves")


Layers = Sequence[tuple[str, Table]]
"""Settings on top of those of a case, with where they stand."""


def _of_case(table: Table, whole: Experiment, where: str, name: str, layers: Layers = ()) -> Table:
    own = deepcopy({key: value for key, value in table.items() if key != "cases"})
    for key, value in whole.cases.get(name, {}).items():
        assign(own, key, value, f"{where}: cases.{name}: {key!r}")
    for place, layer in layers:
        for key, value in layer.items():
            _check_changed(key, f"{where}: {place}")
            assign(own, key, value, f"{where}: {place}: {key!r}")
    return own | {"case": name}


def _labels(table: Table, whole: Experiment, where: str) -> dict[str, list[str]]:
    cases = {name: _of_case(table, whole, where, name) for name in whole.cases or [whole.case]}
    return {name: [str(a.get("label", a.get("name"))) for a in own["algorithms"]] for name, own in cases.items()}


def _layers(whole: Experiment, where: str, quick: bool, variant: str | None) -> Layers:
    """The quick form and the variant."""
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
        for figure in whole.paper.figures:
            bars = figure.target is not None and (figure.log_x or figure.log_y)
            require(not bars, f"{where}: the figure {figure.name!r} has a target, so bars: they take no log_x or log_y")
        for name in whole.paper.departures:
            known = whole.paper.variants
            require(name in known, f"{where}: departures: there is no variant {name!r}; {nearest(name, known)}")
    for claim in whole.claims:
        _check_claim(claim, where)


def _check_names(whole: Experiment, table: Table, where: str) -> None:
    """Claims, reported numbers and figures speak of cases and labels that exist."""
    labels = _labels(table, whole, where)

    def check(cases: Sequence[str], named: Iterable[str], across: bool = False) -> None:
        """Of several cases, one must have the label; without cases, any of the file."""
        for case in cases:
            require(case in whole.cases, f"{where}: there is no case {case!r}; {nearest(case, whole.cases)}")
        known = across_names(labels) if across else dict.fromkeys(n for case in cases or labels for n in labels[case])
        for label in named:
            require(label in known, f"{where}: no algorithm has the label {label!r}; {nearest(label, known)}")

    for claim in whole.claims:
        for case in (claim.case, claim.lost_from):
            check([] if case is None else [case], claim_labels(claim), claim.across)
    for reported in whole.reported:
        check([] if reported.case is None else [reported.case], reported.values)
    if whole.paper is not None:
        check(whole.paper.quick_cases, ())
        for figure in whole.paper.figures:
            check(figure.cases, figure.labels)


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
    several = claim.within_factor is None or claim.label is None
    require(
        several, f"{where}: the claim {claim.says!r} asks for within_factor, which needs labels or order, not label"
    )
    alone = claim.diverges is None or not any(test is not None for test in (*tests[:4], claim.order, claim.target))
    require(alone, f"{where}: the claim {claim.says!r} asks for diverges, and for something else: make it two claims")
    two = claim.lost_from is None or (claim.case is not None and claim.target is None and claim.diverges is None)
    require(two, f"{where}: the claim {claim.says!r} has lost_from, which needs a case, and no target or diverges")
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
