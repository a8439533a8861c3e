"""The check that all ranks of a run have the same settings, data and versions; otherwise the model would be wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from proxfed.engine import ranks
from proxfed.harness.settings_diff import by_key
from proxfed.harness.study import Study
from proxfed.machine import versions
from proxfed.registry import plain
from proxfed.report.client_stats import ClientStats

Asked = tuple[Study, Collection[str], int | None]
"""A study, the labels to run, and the last round."""


def require_alike(studies: Iterable[Asked]) -> None:
    """Raise an error on all ranks if the studies differ between them."""
    about: dict[str, Any] = {f"versions.{k}": v for k, v in versions().items() if k not in ("threads", "processor")}
    for place, (study, only, until) in enumerate(studies):
        where = f"study {place + 1}: " if place else ""
        about |= {f"{where}{key}": plain(value) for key, value in by_key(study.settings).items()}
        about |= {f"{where}--only": sorted(only), f"{where}until": until}
        about |= {f"{where}{key}": value for key, value in _data(study).items()}
    ranks.agree(about)


def _data(study: Study) -> dict[str, Any]:
    """Digests of the clients' data and of the starting point."""
    digests: dict[str, Any] = {}
    problems = {id(p): p for p in (study.problem, *(e.problem for e in study.complete.values()))}
    for k, p in enumerate(problems.values()):
        name = f"the data of problem {k + 1}" if k else "the data"
        if p.f.data is not None:
            stats = ClientStats.of(p.f.data)
            digests[f"{name}, samples of each client"] = plain(stats.sizes)
            digests[f"{name}, checksum"] = stats.checksum
        digests[f"the start of problem {k + 1}" if k else "the start"] = None if p.x0 is None else plain(p.x0)
    return digests
