"""The file of a paper's experiment: its facts about the paper, and its cases in every form and variant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from proxfed.errors import nearest, require
from proxfed.harness.experiment import Experiment, ExperimentFile, Layers
from proxfed.papers.paper_schema import Claim, Paper, read_said
from proxfed.registry import Table


class PaperFile(ExperimentFile):
    """The file, read and checked once."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._source = source
        said = read_said(self.whole, self._where)
        self.paper = said.paper or Paper(title=source.partition("/")[0], figure="")
        self.reported, self.claims = said.reported, said.claims
        self._check_beside()

    @cached_property
    def labels_beside(self) -> dict[str, dict[str, list[str]]]:
        """The labels, by case, of other experiments in claims; they are in the same folder."""
        folder, slash, _ = self._source.rpartition("/")
        ending = ".toml" if self._source.endswith(".toml") else ""
        others = dict.fromkeys(claim.beside for claim in self.claims if claim.beside)
        return {other: ExperimentFile(f"{folder}{slash}{other}{ending}").labels() for other in others}

    def _check_beside(self) -> None:
        """Refuse labels that are not in the other experiment."""
        for claim in self.claims:
            known = {label for some in self.labels_beside.get(claim.beside, {}).values() for label in some}
            for label in claim.names_beside:
                no_such = f"the claim {claim.says!r}: {claim.beside} has no algorithm with the label {label!r}"
                require(label in known, f"{self._where}: {no_such}; {nearest(label, known)}")

    def where(self, claim: Claim) -> str:
        """The place in the paper: its section, and its table or figure; '' for a claim of ours."""
        if claim.rank == "ours":
            return ""
        return claim.source or ", ".join(filter(None, (self.paper.section, self.paper.figure)))

    def form(
        self,
        overrides: Iterable[str] = (),
        *,
        quick: bool = False,
        variant: str | None = None,
        only: Sequence[str] = (),
    ) -> dict[str, Experiment]:
        """The cases of a form by name; the quick form, the variant and `overrides` override the file."""
        layers, few = self._layers(quick, variant), self.paper.quick_cases if quick else ()
        if variant is not None:
            some = {*self._chosen(only or few), *self._chosen(few)}
            changes = any(self._settings(name, layers) != self._settings(name, layers[:-1]) for name in some)
            same = f"the variant {variant!r} changes nothing in the {'quick' if quick else 'full'} form"
            require(changes, f"{self._where}: {same}: it is the same run")
        return self.cases(overrides, only or few, layers)

    @cached_property
    def other_problems(self) -> set[str]:
        """The cases whose quick form is another experiment, with other data or another model, not a smaller scale."""
        every = list(self.whole.cases)
        small, full = (self.form(quick=quick, only=every) for quick in (True, False))
        return {case for case in full if _problem(small[case]) != _problem(full[case])}

    def _settings(self, name: str, layers: Layers = ()) -> Table:
        """The settings of one case; a layer may have its own settings for it."""
        own = [(place, layer | layer.get("cases", {}).get(name, {})) for place, layer in layers]
        return super()._settings(name, [(place, {k: v for k, v in o.items() if k != "cases"}) for place, o in own])

    def _layers(self, quick: bool, variant: str | None) -> Layers:
        """The quick form and the variant."""
        layers = [("paper.quick", self.paper.quick)] if quick else []
        if variant is not None:
            known = self.paper.variants
            require(variant in known, f"{self._where} has no variant {variant!r}; {nearest(variant, known)}")
            layers.append((f"paper.variants.{variant}", known[variant]))
        return layers


def _problem(e: Experiment) -> tuple[object, ...]:
    return e.data.get("name"), e.problem.get("name"), e.problem.get("model")
