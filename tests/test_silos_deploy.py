"""An experiment over sites with files of their own: the rows of the run folder are those of a run in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfed.data.federated import Federated
from proxfed.errors import InputError
from proxfed.harness.experiment import Experiment
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.silos.coordinator.deploy import deploy
from proxfed.silos.wire import job as wire_job
from proxfed.types import Problem

from support.csv_sites import ROWS, SITES, experiment, files, holders, in_one_place, same_rows


@pytest.mark.parametrize("reference", [False, True])
def test_rows_and_models_are_those_of_a_run_in_one_place(reference: bool, tmp_path: Path) -> None:
    files(tmp_path / "data")
    e = experiment(reference=reference)
    carrier = holders(tmp_path / "data", tmp_path / "disk")
    results = deploy(e, carrier, tmp_path / "out", progress=False)
    assert results.complete
    alone = in_one_place(e, tmp_path / "data", tmp_path / "alone")
    # The reference is solved with another bound on L_f; distances between peers are added up site by site.
    apart = {"gap", "error"} if reference else set[str]()
    same_rows(alone, RunFolder(tmp_path / "out"), apart | {"consensus"}) if not reference else _near(alone, tmp_path)
    last = RunFolder(tmp_path / "out").rows()[-1]
    assert last["wire_bytes"] > last["bytes_best"] > 0
    assert last["absent"] == 0
    assert not list((tmp_path / "disk").glob("*/*/*.safetensors"))  # nothing is kept of a run that is over


def test_an_experiment_needs_no_data_of_its_own(tmp_path: Path) -> None:
    files(tmp_path / "data")
    e, bare = experiment(), experiment(data={})
    half = deploy(
        bare, holders(tmp_path / "data", tmp_path / "disk"), tmp_path / "out", progress=False, stop=Stopping(4)
    )
    assert not half.complete
    again = holders(tmp_path / "data", tmp_path / "disk")
    results = deploy(bare, again, tmp_path / "out", resume=True, progress=False)
    assert results.complete
    assert RunFolder(tmp_path / "out").config()["data"] == {}
    assert results.report(tmp_path / "report.html").exists()
    same_rows(in_one_place(e, tmp_path / "data", tmp_path / "alone"), RunFolder(tmp_path / "out"), {"consensus"})


def _near(alone: RunFolder, tmp_path: Path) -> None:
    for x, y in zip(alone.rows(), RunFolder(tmp_path / "out").rows(), strict=True):
        assert y["gap"] == pytest.approx(x["gap"], rel=1e-6, abs=1e-9)
        assert y["objective"] == x["objective"]


class Stopping:
    """Asked to stop after so many rounds."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


@pytest.mark.parametrize("after", [1, 4, 9, 16])
def test_stopped_and_resumed_with_new_processes(after: int, tmp_path: Path) -> None:
    files(tmp_path / "data")
    e = experiment()
    deploy(e, holders(tmp_path / "data", tmp_path / "disk"), tmp_path / "out", progress=False, stop=Stopping(after))
    again = holders(tmp_path / "data", tmp_path / "disk")
    assert deploy(e, again, tmp_path / "out", resume=True, progress=False).complete
    same_rows(in_one_place(e, tmp_path / "data", tmp_path / "alone"), RunFolder(tmp_path / "out"), {"consensus"})


def test_begun_anew_with_force_is_another_run(tmp_path: Path) -> None:
    files(tmp_path / "data")
    e = experiment()
    carrier = holders(tmp_path / "data", tmp_path / "disk")
    deploy(e, carrier, tmp_path / "out", progress=False, stop=Stopping(3))
    with pytest.raises(InputError, match="holds a run already"):
        deploy(e, carrier, tmp_path / "out", progress=False)
    assert deploy(e, carrier, tmp_path / "out", force=True, progress=False).complete
    same_rows(in_one_place(e, tmp_path / "data", tmp_path / "alone"), RunFolder(tmp_path / "out"), {"consensus"})


def test_columns_in_another_order_and_classes_that_not_all_have(tmp_path: Path) -> None:
    names = [f"x{j}" for j in range(8)]
    files(tmp_path / "data", {"south": names[::-1]}, words=True)
    e = experiment(
        problem={"name": "softmax", "l2": 0.1, "weighting": "uniform"},
        algorithms=[{"name": "fedavg", "eta": 0.05, "K": 2}],
        regulariser={"name": "zero"},
    )
    carrier = holders(tmp_path / "data", tmp_path / "disk", held_out=0.25)
    results = deploy(e, carrier, tmp_path / "out", progress=False)
    row = results.rows[-1]
    sites = [row[f"accuracy_{site}"] for site in SITES]
    weights = [int(0.25 * m) for m in ROWS]
    assert row["accuracy"] == pytest.approx(np.average(sites, weights=weights))
    assert 0.3 < row["accuracy"] <= 1
    # without held-out rows the run is the one in one place, but for the last bits of exp
    carrier = holders(tmp_path / "data", tmp_path / "disk2")
    x = deploy(e, carrier, tmp_path / "all", progress=False).folder
    assert x is not None
    alone = in_one_place(e, tmp_path / "data", tmp_path / "alone")
    ours, theirs = RunFolder(x).models()[0]["fedavg/0"], alone.models()[0]["fedavg/0"]
    assert len(ours) == 3 * 8
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-13)


def test_theory_and_weight_decay(tmp_path: Path) -> None:
    files(tmp_path / "data")
    e = experiment(
        algorithms=[
            {"name": "fedcomposite", "theory": True, "tau": 2},
            {"name": "fedavg", "eta": 0.02, "K": 2, "weight_decay": 0.5},
        ],
        regulariser={"name": "zero"},
    )
    carrier = holders(tmp_path / "data", tmp_path / "disk")
    assert deploy(e, carrier, tmp_path / "out", progress=False).complete
    alone = in_one_place(e, tmp_path / "data", tmp_path / "alone")
    ours, theirs = RunFolder(tmp_path / "out"), alone
    assert (ours.models()[0]["fedavg/0"] == theirs.models()[0]["fedavg/0"]).all()


def test_a_run_of_two_algorithms_is_one_build_per_site_and_one_at_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path / "data")
    built: list[int] = []
    real = wire_job.build_problem

    def building(*given: Any, data: Federated) -> Problem:
        built.append(len(data.labels))
        return real(*given, data=data)

    monkeypatch.setattr(wire_job, "build_problem", building)
    e = experiment(algorithms=[{"name": "fedavg", "eta": 0.02, "K": k, "label": f"K{k}"} for k in (1, 2)])
    assert deploy(e, holders(tmp_path / "data", tmp_path / "disk"), tmp_path / "out", progress=False).complete
    assert sorted(built) == [0, *sorted(ROWS)]


# ---- what does not fit -----------------------------------------------------------------------------------------------


def refused(tmp_path: Path, sentence: str, e: Experiment | None = None, carrier: Any = None) -> None:
    with pytest.raises(InputError, match=sentence):
        deploy(e or experiment(), carrier, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_sites_whose_columns_differ(tmp_path: Path) -> None:
    names = [f"x{j}" for j in range(8)]
    files(tmp_path / "data", {"west": names[:-1]})
    refused(tmp_path, "west: has no column 'x7', unlike north", carrier=holders(tmp_path / "data", tmp_path / "disk"))


def test_sites_whose_labels_differ(tmp_path: Path) -> None:
    files(tmp_path / "data")
    files(tmp_path / "words", words=True)
    (tmp_path / "data" / "west.csv").write_bytes((tmp_path / "words" / "west.csv").read_bytes())
    carrier = holders(tmp_path / "data", tmp_path / "disk")
    refused(tmp_path, "west: labels = 'words', but north has 'numbers'", carrier=carrier)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"algorithms": [{"name": "fedavg", "eta": "auto", "K": 2}]}, "eta = .auto.: steps that are found on the way"),
        (
            {
                "algorithms": [
                    {
                        "name": "fedavg",
                        "eta": 0.1,
                        "K": 2,
                        "topology": {"name": "spanning_tree", "of": {"name": "ring"}},
                    }
                ]
            },
            "there is no tree",
        ),
        ({"problem": {"name": "least_squares", "class_weights": "balanced"}}, "needs the samples of all clients"),
        (
            {"problem": {"name": "logistic"}},
            "^north refuses: its rows do not fit the job; the log of the site says why$",
        ),
        ({"measures": ["accuracy_x"]}, "accuracy_x"),
        ({"algorithms": [{"name": "fedavg", "eta": 0.1, "K": {"epochs": 2}}]}, "epochs"),
        *(
            (
                {
                    "problem": {"name": "least_squares", "batch": 8},
                    "algorithms": [{"name": "fedavg", "eta": 0.1, "K": {kind: 2}}],
                },
                "algorithms.fedavg.K: between organisations, epochs need the sizes of all sites; give a number",
            )
            for kind in ("epochs", "mean_epochs")
        ),
        ({"problem": {"name": "network", "model": "./mine.py:Net"}}, "brings no code of its own"),
    ],
    ids=["auto", "tree", "balanced", "rows", "accuracy_x", "epochs", "own_epochs", "mean_epochs", "code"],
)
def test_what_cannot_be_done_between_organisations_is_said_before_anything_is_written(
    more: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    files(tmp_path / "data")
    refused(tmp_path, sentence, experiment(**more), holders(tmp_path / "data", tmp_path / "disk"))
