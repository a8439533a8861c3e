"""Three sites with site.toml and keys, and a coordinator, all in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxfed.silos.coordinator.coordinator import Coordinator
from proxfed.silos.protection.guard import Guard
from proxfed.silos.protection.keyring import SiteKey, fingerprint
from proxfed.silos.protection.site_guard import SiteGuard
from proxfed.silos.site.config import Site, parse_site
from proxfed.silos.site.holder import Holder
from proxfed.silos.site.rows import Rows, agree
from proxfed.silos.wire.carrier import Direct
from proxfed.silos.wire.exchange import Exchange
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Letter

SITES = ("lyon", "oslo", "turin")
PROBLEM = {"name": "logistic", "l2": 0.01, "weighting": "uniform"}
FULL = {"participation": {"name": "full"}}


def algorithm(name: str, **settings: Any) -> dict[str, Any]:
    return {"name": name, "label": name, **FULL, **settings}


FEDAVG = algorithm("fedavg", eta=0.1, K=3)


def rows(k: int, d: int = 6) -> Rows:
    """Of site k, all of the same size."""
    rng = np.random.default_rng(k)
    A = rng.standard_normal((40, d))
    y = np.where(A @ np.linspace(-1, 1, d) + rng.standard_normal(len(A)) > 0, 1.0, -1.0)
    return Rows(A, y, [len(y)])


def site(folder: Path, name: str, tables: Mapping[str, Any] | None = None) -> Site:
    """With its key, and its partners' under [partners] unless that is given."""
    for each in SITES:
        (folder / each).mkdir(parents=True, exist_ok=True)
        if not (folder / each / "site.key").exists():
            SiteKey.create(folder / each / "site.key")
    pinned = {o: fingerprint(SiteKey.read(folder / o / "site.key").public) for o in SITES if o != name}
    table = {"name": name, "data": {"path": "rows.csv", "label": "y"}, "partners": pinned, **(tables or {})}
    return parse_site(table, "site.toml", folder / name)


class Sites:
    """The holders; `seen` is all that went back to the coordinator: (site, question, answer)."""

    def __init__(
        self, folder: Path, tables: Mapping[str, Any] | None = None, guarded: bool = True, d: int = 6,
        hold: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.tables, self.guarded, self.d = folder, tables, guarded, d
        self.hold = hold or {name: k for k, name in enumerate(SITES)}
        self.seen: list[tuple[str, bytes, bytes]] = []
        self.start()

    def start(self) -> None:
        """Anew from what is on the disk, as after a crash."""
        self.holders = {name: self._holder(name) for name in SITES}

    def _holder(self, name: str) -> Holder:
        guard: Guard = SiteGuard(site(self.folder, name, self.tables)) if self.guarded else Guard()
        return Holder(name, rows(self.hold[name], self.d), self.folder / name / "state", guard)

    def _answer(self, name: str) -> Callable[[bytes], bytes]:
        def answer(question: bytes) -> bytes:
            said = self.holders[name].answer(question)
            self.seen.append((name, question, said))
            return said

        return answer

    def exchange(self, carrier: Any = None) -> Exchange:
        return Exchange(carrier or Direct({name: self._answer(name) for name in SITES}))

    def job(self, algorithm: Mapping[str, Any] = FEDAVG, protection: Any = None, **more: Any) -> Job:
        """What the sites are told, after they have said hello."""
        hello = Letter("hello", "").encode()
        said = {name: json.loads(Letter.decode(holder.answer(hello)).body) for name, holder in self.holders.items()}
        experiment = {"problem": PROBLEM, "regulariser": {"name": "l1", "weight": 0.01}, "dtype": "float64"} | more
        if protection is not None:
            experiment["protection"] = protection
        introductions = {name: told["introduction"] for name, told in said.items() if told["introduction"]}
        schema = agree({name: told["schema"] for name, told in said.items()})
        return Job(
            experiment, SITES, (1, 1, 1), (1 / 3, 1 / 3, 1 / 3), schema, "nonce", algorithm=dict(algorithm),
            label="run", introductions=introductions,
        )  # fmt: skip

    def coordinator(self, algorithm: Mapping[str, Any] = FEDAVG, protection: Any = None, **more: Any) -> Coordinator:
        return Coordinator(self.job(algorithm, protection), self.exchange(), **more)

    def bodies(self, t: int) -> dict[str, bytes]:
        """What came back in round t, site by site."""
        letters = [(name, Letter.decode(answer)) for name, _, answer in self.seen]
        return {name: letter.body for name, letter in letters if letter.round == t and letter.body}


def after(coordinator: Coordinator, rounds: int) -> Coordinator:
    for t in range(1, rounds + 1):
        coordinator.round(t)
    return coordinator


def states(sites: Sites, run: str, t: int) -> dict[str, torch.Tensor]:
    """What all holders have on their disks after round t."""
    from proxfed.silos.site.store import Store

    found = {}
    for name in SITES:
        slot = Store(sites.folder / name / "state" / run).slots()[t]
        found |= {f"{name} {key}": value for key, value in slot.tensors.items()}
    return found
