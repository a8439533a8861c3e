"""Tables with words and gaps between organisations: the shipped example as it is, files that change, one build."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed.errors import InputError
from proxfed.harness.build import build_study
from proxfed.harness.compare import compare
from proxfed.harness.experiment import parse
from proxfed.silos.coordinator.deploy import deploy
from proxfed.silos.site import holder as holding
from proxfed.silos.site.config import read_site
from proxfed.silos.site.from_config import SiteFiles, holder
from proxfed.silos.wire.carrier import Direct
from proxfed.silos.wire.message import Letter
from proxfed.tables import load_tables, read_schema

from support.cli import proxfed, refused
from support.tables import EXAMPLES

HEART = EXAMPLES / "heart-disease.toml"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def patients(k: int, rows: int = 60) -> str:
    """Of hospital k, as the files of the UCI repository have them: no header, '?' for what was not measured."""
    rng = np.random.default_rng(k)
    lines = []
    for _ in range(rows):
        age, rate = int(rng.integers(30, 80)), int(rng.integers(80, 200))
        ill = int(age - rate / 3 + rng.normal(0, 8) > 8) * int(rng.integers(1, 5))
        values: list[Any] = [age, int(rng.integers(2)), int(rng.integers(1, 5)), int(rng.integers(90, 180))]
        values += [0 if rng.random() < 0.2 else int(rng.integers(120, 400)), "?" if rng.random() < 0.1 else 1]
        values += [int(rng.integers(3)), rate, int(rng.integers(2)), round(float(rng.uniform(0, 4)), 1)]
        lines.append(",".join(map(str, [*values, "?", "?", "?", ill])))
    return "\n".join(lines) + "\n"


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Four sites, each of which has joined the shipped schema with its own file."""
    data = tmp_path / "data" / "heart-disease"
    data.mkdir(parents=True)
    for k, name in enumerate(HOSPITALS):
        (data / f"processed.{name}.data").write_text(patients(k))
        (tmp_path / name).mkdir()
        file, to = data / f"processed.{name}.data", tmp_path / name / "site.toml"
        arguments = HEART, "--data", file, "--name", name, "--out", to
        code, _, said = proxfed(capsys, "site", "join", *map(str, arguments))
        assert code == 0, said
        text = to.read_text().replace("counts = false", "counts = true")
        to.write_text(text.replace("secure_aggregation = true", "secure_aggregation = false"))
    monkeypatch.setenv("PROXFED_DATA", str(tmp_path / "data"))
    return tmp_path


def carrier(folder: Path) -> Direct:
    return Direct({name: holder(read_site(folder / name / "site.toml")).answer for name in HOSPITALS})


def experiment(**more: Any) -> Any:
    table = {
        "name": "heart",
        "rounds": 3,
        "data": {"name": "tables", "schema": str(HEART)},  # the rows of the sites take its place
        "problem": {"name": "logistic", "l2": 0.01, "intercept": True, "weighting": "uniform"},
        "regulariser": {"name": "l1", "weight": 0.01},
        "algorithms": [{"name": "fedcomposite", "eta": 0.1, "tau": 3}],
    }
    return parse(table | more, "heart.toml")


def test_the_shipped_example_deploys_as_it_is_and_is_the_simulated_run(hospitals: Path) -> None:
    deployed = deploy(experiment(), carrier(hospitals), hospitals / "run", progress=False, say=lambda line: None)
    tables = load_tables(HEART)
    study = build_study(experiment(), data=tables)
    alone = compare(study.problem, {"fedcomposite": study.entries["fedcomposite"].algorithm}, 3)
    assert list(read_schema(HEART).inputs) != sorted(read_schema(HEART).inputs)
    np.testing.assert_array_equal(deployed.models["fedcomposite", 0], alone.models["fedcomposite", 0])


def test_what_join_writes_is_the_agreement_with_a_source_of_its_own(hospitals: Path) -> None:
    ours = [read_schema(hospitals / name / "schema.toml") for name in HOSPITALS]
    assert {schema.digest for schema in ours} == {read_schema(HEART).digest}
    assert ours[0].source.names == read_schema(HEART).source.names
    assert {str(schema.source.files) for schema in ours} == {
        str([f"../data/heart-disease/processed.{name}.data"]) for name in HOSPITALS
    }


def test_a_table_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.data").write_text(patients(0, 30).replace("?,?,?,", "?,?,?,9", 1))
    said = refused(capsys, "site", "join", str(HEART), "--data", "bad.data")
    assert "bad.data, column 'num'" in said
    assert not Path("site.toml").exists()
    assert not Path("site.key").exists()
    assert "no such file" in refused(capsys, "site", "join", str(HEART), "--data", "none.data")


def test_rows_that_change_under_a_running_site_are_read_again_and_end_its_runs(hospitals: Path) -> None:
    asking = carrier(hospitals)
    seen, file = [], hospitals / "data" / "heart-disease" / "processed.va.data"

    class Changing(Direct):
        """After so many exchanges somebody replaces a file, or the schema."""

        left = 8

        def ask(self, questions: Any, deadline: float | None = None) -> dict[str, bytes]:
            Changing.left -= 1
            if Changing.left == 0:
                file.write_text(patients(7))
            seen.append(Changing.left)
            return super().ask(questions, deadline)

    with pytest.raises(InputError, match="va refuses: the rows are not those that the run was begun with"):
        deploy(experiment(), Changing(asking.holders), hospitals / "run", progress=False, say=lambda line: None)
    assert min(seen) <= 0
    deploy(experiment(), asking, hospitals / "run", force=True, progress=False, say=lambda line: None)


def test_a_site_sees_that_its_files_change_or_are_gone_and_says_no_path(
    hospitals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = read_site(hospitals / "va" / "site.toml")
    here = holder(site)
    hello = Letter("hello", "", head={"weights": True})
    before = Letter.decode(here.answer(hello.encode())).body
    stamp = SiteFiles(site).stamp()
    file, schema = hospitals / "data" / "heart-disease" / "processed.va.data", hospitals / "va" / "schema.toml"
    file.write_text(patients(7, 61))
    assert SiteFiles(site).stamp() != stamp
    assert Letter.decode(here.answer(hello.encode())).body != before
    schema.write_text(schema.read_text().replace("range = [\n    50,\n    250,\n]", "range = [1, 250]"))
    after = Letter.decode(here.answer(hello.encode())).body
    file.unlink()
    with caplog.at_level(logging.ERROR):
        gone = Letter.decode(here.answer(hello.encode()))
    assert (gone.kind, gone.head["why"]) == ("refused", "its rows cannot be read now; the log of the site says why")
    assert "processed.va.data" in caplog.text
    file.write_text(patients(7, 61))
    introduced = len(b'"introduction":"') + 96  # a new salt every time
    assert len(Letter.decode(here.answer(hello.encode())).body) == len(after) > introduced


def test_a_site_builds_its_problem_once_for_all_jobs_of_a_family(
    hospitals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds belong to the job of an algorithm, measures to that of the problem."""
    built: list[str] = []
    real = holding.problem_of
    monkeypatch.setattr(holding, "problem_of", lambda job, data: built.append(data.name) or real(job, data))
    algorithms = [{"name": "fedcomposite", "eta": 0.1, "tau": 3}, {"name": "scaffold", "eta": 0.1, "K": 2}]
    e = experiment(algorithms=algorithms, seeds=[0, 1])
    deploy(e, carrier(hospitals), hospitals / "run", progress=False, say=lambda line: None)
    assert built == ["the rows of this site"] * len(HOSPITALS)


def test_a_weight_decay_of_its_own_takes_one_more_and_no_more(hospitals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured with a problem of its own, round after round."""
    built: list[str] = []
    real = holding.problem_of
    monkeypatch.setattr(holding, "problem_of", lambda job, data: built.append(data.name) or real(job, data))
    algorithms = [
        {"name": "fedavg", "eta": 0.1, "K": 3},
        {"name": "fedavg", "label": "b", "eta": 0.1, "K": 3, "weight_decay": 0.1},
    ]
    e = experiment(algorithms=algorithms, regulariser={"name": "zero"})
    deploy(e, carrier(hospitals), hospitals / "run", progress=False, say=lambda line: None)
    assert len(built) == 2 * len(HOSPITALS)
