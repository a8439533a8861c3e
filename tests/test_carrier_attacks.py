"""The six worst attacks of a coordinator, over NVIDIA FLARE with real processes (`make test-carriers`).

tests/test_silos_attacks.py has the same and others in one process. Here sites are `proxfed silo` with their own files,
and the coordinator's hand-made letters go through couriers, TLS and sockets. Each test says what the attack yields.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from proxfed.harness.experiment import Experiment, parse
from proxfed.silos.coordinator.deploy import deploy, handshake
from proxfed.silos.protection.keyring import SiteKey, fingerprint
from proxfed.silos.wire.job import Job
from proxfed.silos.wire.message import Letter, pack

SITES = ("lyon", "oslo", "turin")
PATIENCE = 120.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of other people's code
    pytest.mark.skipif(sys.platform != "linux", reason="only there do processes end with their parents"),
    pytest.mark.skipif(importlib.util.find_spec("nvflare") is None, reason="NVIDIA FLARE is not installed"),
]


def experiment(**over: Any) -> Experiment:
    table = {
        "name": "x", "rounds": 3, "data": {"name": "synthetic_binary"},
        "problem": {"name": "logistic", "intercept": True, "weighting": "uniform"},
        "protection": {"secure_aggregation": True},
        "algorithms": [{"name": "fedavg", "eta": 0.1, "K": 2}],
    }  # fmt: skip
    return parse(table | over, "x")


class Federation:
    """Three sites that want masks, and a coordinator that does as it likes."""

    def __init__(self, desk: Any) -> None:
        self.desk = desk
        self.life = 1

    def job(self, e: Experiment) -> Job:
        table = {"label": "it", "participation": {"name": "full"}} | e.algorithms[0]
        return handshake(e, self.desk, say=lambda line: None).job.of(table, "it", 0)

    def ask(self, letter: Letter, *sites: str) -> dict[str, Letter]:
        data = replace(letter, life=self.life).encode()
        return {s: Letter.decode(a) for s, a in self.desk.ask(dict.fromkeys(sites or SITES, data), PATIENCE).items()}

    def tell(self, job: Job) -> dict[str, Letter]:
        return self.ask(Letter("job", job.digest, body=job.encode()))

    def point(self, job: Job, x: Any, *parts: str) -> dict[str, Letter]:
        form, body = pack((torch.as_tensor(x, dtype=torch.float64),), ())
        return self.ask(Letter("query", job.digest, 0, 0, {"what": "point", "parts": list(parts), "form": form}, body))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    from proxfed.silos.carriers.desk import Desk
    from proxfed.silos.carriers.loopback import Loopback
    from proxfed.silos.carriers.nvflare_carrier import Flare

    folder = tmp_path_factory.mktemp("attacks")
    for name in SITES:
        (folder / name).mkdir()
        SiteKey.create(folder / name / "site.key")
    keys = {name: fingerprint(SiteKey.read(folder / name / "site.key").public) for name in SITES}
    for k, name in enumerate(SITES):
        rng = np.random.default_rng(k)
        A = rng.standard_normal((200, 4))
        y = np.where(A.sum(1) + rng.standard_normal(200) > 0, 1, -1)
        lines = [",".join(map(str, [*row, label])) for row, label in zip(A.tolist(), y, strict=True)]
        (folder / name / "p.csv").write_text("\n".join(["a,b,c,d,y", *lines]) + "\n")
        table = {
            "name": name, "data": {"path": "p.csv", "label": "y", "held_out": 0.4}, "limits": {"rows": 50},
            "require": {"secure_aggregation": True, "sites": 3},
            "partners": {other: key for other, key in keys.items() if other != name},
        }  # fmt: skip
        (folder / name / "site.toml").write_text(tomli_w.dumps(table))
    silo = [sys.executable, "-m", "proxfed", "silo", "--site"]
    before = dict(os.environ)
    with Loopback(folder, SITES, "nvflare", lambda name: [*silo, str(folder / name / "site.toml")]) as lab:
        os.environ.update(lab.environment)
        try:
            with Desk(SITES, folder / "desk", Flare(lab.kit, "attacks")) as desk:
                yield Federation(desk)
        finally:
            os.environ.clear()
            os.environ.update(before)


def refused(answers: dict[str, Letter], why: str) -> None:
    assert {*answers} == {*SITES}
    for letter in answers.values():
        assert letter.kind == "refused", letter.head
        assert why in letter.head["why"]
        assert letter.body == b""


def test_a1_a_batch_of_one_row(federation: Federation) -> None:
    """Yields nothing."""
    e = experiment(problem={"name": "logistic", "intercept": True, "batch": 1, "weighting": "uniform"})
    refused(federation.tell(federation.job(e)), "gradients of some rows only are not told")


def test_a2_weights_that_leave_one_site(federation: Federation) -> None:
    """Yields nothing."""
    job = replace(federation.job(experiment()), weights=(1.0 - 2e-14, 1e-14, 1e-14))
    refused(federation.tell(job), "the job's weights differ")


def test_a3_partners_that_the_coordinator_made_up(federation: Federation, tmp_path: Path) -> None:
    """Yields nothing, whether they are new or have a partner's name."""
    job = federation.job(experiment())
    ghost = SiteKey.create(tmp_path / "ghost.key").introduction().hex()
    for named, k in (("ghost", 1), ("oslo", 2)):
        sites = ("lyon", named, "turin")
        said = job.introductions | {named: ghost}
        lie = replace(job, sites=sites, introductions={site: said[site] for site in sites}, audits={}, nonce=str(k))
        answers = federation.ask(Letter("job", lie.digest, body=lie.encode()), "lyon")
        first = federation.ask(Letter("round", lie.digest, 0, 0, {"after": -1}), "lyon")
        kinds = answers["lyon"].kind, first["lyon"].kind
        assert "answer" not in kinds[1:]
        if named == "ghost":
            assert kinds == ("refused", "unknown")
            assert "ghost: not among its [partners]" in answers["lyon"].head["why"]
        else:
            assert "came with the key" in first["lyon"].head["why"]


def test_a4_measures_on_test_rows(federation: Federation) -> None:
    """Yields accuracy and loss to what five rows make, and not how many rows there are."""
    job = federation.job(experiment())
    federation.tell(job)
    for x in np.eye(5)[:2]:
        for answer in federation.point(job, x, "test").values():
            assert answer.kind == "answer", answer.head
            assert answer.head["rows"] == 0
            step = 5 / 80
            for value in answer.head["test"].values():
                assert round(value / step) * step == pytest.approx(value, abs=1e-9)


def test_a5_a_gradient_at_a_threshold_model(federation: Federation) -> None:
    """Yields nothing: the model is too large, or too far from those before."""
    job = federation.job(experiment())
    federation.tell(job)
    refused(federation.point(job, [1e6, 0, 0, 0, -1e6], "gradient"), "limits.norm = 100")
    refused(federation.point(job, [50.0, 0, 0, 0, 0], "gradient"), "limits.step = 10")


def test_a6_other_bits_of_the_fixed_point(federation: Federation) -> None:
    """Yields nothing."""
    e = experiment(protection={"secure_aggregation": True, "fraction_bits": 52})
    refused(federation.tell(federation.job(e)), "protection.fraction_bits = 52, and require.fraction_bits = 40")


def test_after_all_that_an_honest_job_is_carried_out(federation: Federation, tmp_path: Path) -> None:
    results = deploy(experiment(), federation.desk, tmp_path / "run", say=lambda line: None, progress=False)
    assert results.complete
