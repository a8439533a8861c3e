"""The cases of an experiment: all refused or none, then carried out one after the other, each in its run folder."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from proxfed.errors import MissingData
from proxfed.harness.build import build_study
from proxfed.harness.compare import run_study
from proxfed.harness.execute import check_folder, check_labels
from proxfed.harness.results import Results
from proxfed.harness.schema import Experiment
from proxfed.harness.study import Study

KEPT_BYTES = 1 << 30
"""Of data that are kept from the check of a case until it is run; the data of later cases are loaded again."""


@dataclass
class Plan:
    """What is going to be run, checked."""

    cases: dict[str, Experiment]
    folders: dict[str, Path]
    data: str | None = None
    """The data directory."""
    resume: bool = False
    """Go on with the cases that have begun."""
    force: bool = False
    """Replace what is there."""
    leave_out: bool = False
    """Whether cases whose data are not there are left out, instead of refused; `missing` says why."""
    only: Collection[str] = ()
    missing: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be run before the first case begins."""
        self._built: dict[str, Study] = {}
        room = KEPT_BYTES
        for name, experiment in self.cases.items():
            try:
                study = build_study(experiment, self.data)
            except MissingData as e:
                if not self.leave_out:
                    raise
                self.missing[name] = str(e)
                continue
            study.check()
            check_labels(study, self.only)
            check_folder(study, self.folders[name], self.resume, self.force)
            room -= _nbytes(study)
            if room > 0 or not self._built:
                self._built[name] = study

    def run(
        self, stop: Callable[[], bool], *, jobs: int | None = None, ranks: int = 1, progress: bool = True,
        checkpoint_seconds: float = 5.0, timeout: float = 60.0,
    ) -> dict[str, Results]:  # fmt: skip
        """What came out, case by case; a case that was asked to stop on the way is the last."""
        found = {}
        for name in (name for name in self.cases if name not in self.missing):
            study = self._built.pop(name, None) or build_study(self.cases[name], self.data)
            found[name] = run_study(
                study,
                self.folders[name],
                resume=self.resume,
                force=self.force,
                only=self.only,
                jobs=jobs,
                ranks=ranks,
                progress=progress,
                title=name,
                stop=stop,
                checkpoint_seconds=checkpoint_seconds,
                timeout=timeout,
            )
            if stop():
                break
        return found


def _nbytes(study: Study) -> int:
    data = getattr(study.problem, "data", None)
    return 0 if data is None else int(data.features.nbytes)
