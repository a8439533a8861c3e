"""What all ranks of a run must have in common, or they would train to a wrong model: settings, data and versions."""

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
"""A study, the labels that are run, and the round until which."""


def require_alike(asked: Iterable[Asked]) -> None:
    """Refuse, on all ranks, what is not the same on all of them."""
    about: dict[str, Any] = {f"versions.{k}": v for k, v in versions().items() if k not in ("threads", "processor")}
    for place, (study, only, until) in enumerate(asked):
        where = f"study {place + 1}: " if place else ""
        about |= {f"{where}{key}": plain(value) for key, value in by_key(study.settings).items()}
        about |= {f"{where}--only": sorted(only), f"{where}until": until}
        about |= {f"{where}{key}": value for key, value in _data(study).items()}
    ranks.agree(about)


def _data(study: Study) -> dict[str, Any]:
    """Digests of who holds what, and of where it begins."""
    said: dict[str, Any] = {}
    problems = {id(p): p for p in (study.problem, *(e.problem for e in study.complete.values()))}
    for k, p in enumerate(problems.values()):
        name = f"the data of problem {k + 1}" if k else "the data"
        if p.f.data is not None:
            stats = ClientStats.of(p.f.data)
            said[f"{name}, samples of each client"] = plain(stats.sizes)
            said[f"{name}, checksum"] = stats.checksum
        said[f"the start of problem {k + 1}" if k else "the start"] = None if p.x0 is None else plain(p.x0)
    return said
