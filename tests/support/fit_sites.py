"""Hospitals with tables of words and gaps, each with its site.toml and key, and what a fit asks of them, in this
process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from proxfed.files import replace
from proxfed.silos.protection.keyring import SiteKey, fingerprint
from proxfed.silos.site.config import read_site
from proxfed.silos.site.from_config import holder
from proxfed.silos.site.holder import Holder

SITES = ("lyon", "oslo", "turin")

TARGETS: dict[str, dict[str, Any]] = {
    "logistic": {"column": "y", "classes": ["well", "ill"]},
    "cross_entropy": {"column": "y", "classes": ["none", "some", "much"]},
    "squared": {"column": "y"},
    "huber": {"column": "y"},
    "poisson": {"column": "y"},
    "cox": {"time": "time", "event": "event"},
}

COLUMNS = {
    "age": {"kind": "number", "range": [0, 120]},
    "chol": {"kind": "number", "range": [0, 900], "missing": [0], "indicator": True},
    "sex": {"kind": "category", "categories": ["f", "m"], "reference": "f"},
    "stage": {"kind": "category", "categories": ["I", "II", "III"], "impute": "mode"},
    "rate": {"kind": "number", "range": [0, 300]},
}


def table(k: int, loss: str, rows: int) -> str:
    """The file of hospital k: some gaps, hospitals that differ, an outcome of the kind that the loss is of."""
    rng = np.random.default_rng([k, 7])
    age, rate = rng.normal(55 + 3 * k, 12, rows).clip(18, 100).round(), rng.normal(140, 20, rows).clip(60, 220).round()
    chol, sex = rng.normal(220, 40, rows).clip(100, 500).round(), rng.integers(2, size=rows)
    stage = rng.integers(3, size=rows)
    score = (age - 55) / 12 - (rate - 140) / 30 + 0.8 * sex + 0.3 * (stage - 1) + rng.logistic(0, 1, rows)
    match loss:
        case "logistic":
            head, y = "y", [("well", "ill")[int(s > 0.3)] for s in score]
        case "cross_entropy":
            head, y = "y", [("none", "some", "much")[int(s > -0.7) + int(s > 1.2)] for s in score]
        case "poisson":
            head, y = "y", [str(v) for v in rng.poisson(np.exp((0.5 + 0.3 * score).clip(-3, 3)))]
        case "cox":
            time = rng.exponential(np.exp(-0.4 * score)) + 0.01
            seen = rng.random(rows) < 0.7
            head, y = "time,event", [f"{t:.4f},{int(e)}" for t, e in zip(time, seen, strict=True)]
        case _:
            head, y = "y", [f"{3 * s + 2 * k:.3f}" for s in score]
    gaps = rng.random((rows, 2)) < 0.1
    lines = [
        f"{'' if g[0] else int(a)},{0 if g[1] else int(c)},{'fm'[s]},{('I', 'II', 'III')[t]},{int(r)},{v}"
        for a, c, s, t, r, v, g in zip(age, chol, sex, stage, rate, y, gaps, strict=True)
    ]
    return "\n".join([f"age,chol,sex,stage,rate,{head}", *lines, ""])


def schema(loss: str, files: list[str], **model: Any) -> str:
    """What the hospitals have agreed on; columns that a fit is not to see are none."""
    plain: dict[str, Any] = {"source": {"files": files}, "table": {"name": "hospitals"}, "target": TARGETS[loss]}
    return tomli_w.dumps(plain | {"columns": COLUMNS} | ({"model": model} if model else {}))


class Hospitals:
    """Their folders, and holders that are made anew from their disks."""

    def __init__(
        self, folder: Path, loss: str = "logistic", rows: int = 240, site: Mapping[str, Any] | None = None,
        names: tuple[str, ...] = SITES,
    ) -> None:  # fmt: skip
        self.folder, self.loss, self.names = folder, loss, names
        self.letters: list[tuple[str, bytes, bytes]] = []
        for k, name in enumerate(names):
            (folder / name).mkdir(parents=True)
            (folder / name / f"{name}.csv").write_text(table(k, loss, rows))
            (folder / name / "schema.toml").write_text(schema(loss, [f"{name}.csv"]))
            SiteKey.create(folder / name / "site.key")
        self.write(site or {})
        (folder / "tables.toml").write_text(schema(loss, [f"{name}/{name}.csv" for name in names]))
        self.start()

    def write(self, site: Mapping[str, Any]) -> None:
        """site.toml of all, with tables that are given."""
        keys = {name: fingerprint(SiteKey.read(self.folder / name / "site.key").public) for name in self.names}
        for name in self.names:
            own = {
                "name": name,
                "data": {"schema": "schema.toml"},
                "partners": {other: key for other, key in keys.items() if other != name},
                **site,
            }
            own["allow"] = {"counts": True} | dict(own.get("allow", {}))
            replace(self.folder / name / "site.toml", tomli_w.dumps(own).encode())

    def start(self) -> None:
        """All anew from what is on the disks, as after a crash."""
        self.holders: dict[str, Holder] = {name: self.holder(name) for name in self.names}

    def holder(self, name: str) -> Holder:
        return holder(read_site(self.folder / name / "site.toml"))

    # ---- as a carrier ----------------------------------------------------------------------------------------------

    @property
    def sites(self) -> tuple[str, ...]:
        return self.names

    def ask(self, questions: Mapping[str, bytes], deadline: float | None = None) -> dict[str, bytes]:
        answers = {site: self.holders[site].answer(question) for site, question in questions.items()}
        self.letters += [(site, questions[site], answer) for site, answer in answers.items()]
        return answers
