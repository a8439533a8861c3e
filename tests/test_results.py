"""What came out, and the ways to look at it: finished, diverged, stopped or not begun, with any label."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from proxfed import Diverged, Entry, Results, compare, files, run
from proxfed.algorithms import Depositum, FedAvg
from proxfed.engine.run import Run
from proxfed.errors import InputError
from proxfed.harness.build import build_study
from proxfed.harness.execute import Execution
from proxfed.harness.experiment import parse
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.plan import open_folder
from proxfed.harness.study import Study
from proxfed.report.client_stats import ClientStats
from proxfed.topologies import Ring

from support.cli import proxfed
from support.run_folders import Elements
from support.small_experiment import small, write
from support.toy_problems import problem

QUIET: dict[str, Any] = {"progress": False, "jobs": 1}
HOSTILE = ["[red]b", "<script>alert('x')<b>", "$5 & 6_7^8~{9}#%", r"back\slash \alpha", 'a "b", c', "été 中"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Finished, diverged, stopped on the way and not begun, in this order."""
    wild = FedAvg(eta=1e9, K=3)
    entries = {"good": FedAvg(0.1, 1), "wild": wild, "slow": Entry(FedAvg(0.1, 1), rounds=9), "last": FedAvg(0.2, 1)}
    study = Study(problem(), entries, 5, name="mixed", targets={"objective": [1.4, -1]})
    open_folder(study, folder := RunFolder(tmp_path_factory.mktemp("results") / "mixed"), True, False)
    seen: list[Any] = []
    Execution(study, folder, watch=seen.append, stop=lambda: (seen[-1].label, seen[-1].round) == ("slow", 3)).run()
    return Results.read(folder)


def test_status_and_table_of_runs_that_ended_differently(mixed: Results) -> None:
    assert {s["algorithm"]: s["status"] for s in mixed.status} == {
        "good": "finished",
        "wild": "diverged",
        "slow": "stopped",
    }
    assert not mixed.complete
    table = {entry["algorithm"]: entry for entry in mixed.table()}
    assert table["good"]["status"] == "finished"
    assert re.fullmatch(r"diverged in round \d", table["wild"]["status"])
    assert table["slow"]["status"] == "stopped, round 3"
    assert "last" not in table
    assert {*mixed.models} == {("good", 0), ("wild", 0)}
    assert mixed.diverged("wild") == {0: table["wild"]["rounds"]}
    assert mixed.histories("slow") == {}
    assert [row["round"] for row in mixed.histories("good")[0]] == list(range(6))
    json.dumps(mixed.table())


def test_a_model_that_is_not_there_is_told(mixed: Results) -> None:
    with pytest.raises(InputError, match=r"no model of \('slow', 0\); there are: \['good', 0\], \['wild', 0\]"):
        mixed.models["slow", 0]
    with pytest.raises(InputError, match="there are: none yet"):
        Results([]).models["a", 0]


def test_every_way_to_look_at_it_names_all(mixed: Results, tmp_path: Path) -> None:
    page = mixed.report(tmp_path / "page.html").read_text()
    for shown in (str(mixed), repr(mixed), mixed._repr_html_(), mixed.to_latex(), page):
        for word in ("good", "wild", "slow", "diverged in round", "stopped, round 3"):
            assert word in shown
    assert "Did not reach" in str(mixed)


def test_nothing_yet(tmp_path: Path) -> None:
    """A folder where no task has begun can be looked at."""
    study = Study(problem(), {"a": FedAvg(0.1, 1)}, 2, name="new")
    open_folder(study, folder := RunFolder(tmp_path / "new"), True, False)
    none = Results.read(folder)
    assert (list(none.rows), list(none.status), len(none.models), none.complete) == ([], [], 0, False)
    for shown in (str(none), none._repr_html_(), none.to_latex()):
        assert isinstance(shown, str)
    none.report(tmp_path / "page.html")


def test_pandas(mixed: Results) -> None:
    pandas = pytest.importorskip("pandas")
    frame = mixed.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == len(mixed.rows)
    assert list(frame["round"]) == [row["round"] for row in mixed.rows]


def test_without_pandas(mixed: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"needs pandas, which is not installed: pip install pandas"):
        mixed.to_pandas()
    with pytest.raises(InputError, match="needs pandas"):
        run(problem(), FedAvg(0.1, 1), 1).to_pandas()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("hostile") / "run"
    algorithms = {label: FedAvg(0.1 + k / 10, 1) for k, label in enumerate(HOSTILE)}
    return compare(problem(), algorithms, 2, targets={"objective": 0.5}, out=out, **QUIET)


def test_hostile_labels_are_kept_as_they_are(hostile: Results) -> None:
    assert hostile.complete
    assert hostile.labels() == HOSTILE
    assert [entry["algorithm"] for entry in hostile.table()] == HOSTILE
    assert {*hostile.models} == {(label, 0) for label in HOSTILE}
    algorithms = {label: FedAvg(0.1 + k / 10, 1) for k, label in enumerate(HOSTILE)}
    again = compare(problem(), algorithms, 2, targets={"objective": 0.5}, out=hostile.folder, **QUIET)
    assert again.rows == hostile.rows


def test_hostile_labels_on_a_terminal(hostile: Results, capsys: Any) -> None:
    code, said, complaint = proxfed(capsys, "report", str(hostile.folder), width=300)
    assert code == 0, complaint
    for label in HOSTILE:
        assert label in str(hostile)
        assert label in said


def test_hostile_labels_in_html(hostile: Results, tmp_path: Path) -> None:
    for page in (hostile._repr_html_(), hostile.report(tmp_path / "page.html").read_text()):
        assert "<script>alert" not in page
        found = Elements(page)
        for label in HOSTILE:
            assert any(label in text for text in found.texts), label


def test_hostile_labels_in_latex(hostile: Results) -> None:
    """No sign is left that LaTeX would read as anything but itself."""
    lines = hostile.to_latex().splitlines()[4:-2]
    assert len(lines) == len(HOSTILE)
    assert lines[0].startswith("{}[red]b &")  # or it would be an option of the \\\\ before it
    columns = {len(re.findall(r"(?<!\\)&", line)) for line in lines}
    assert len(columns) == 1
    (line,) = (line for line in lines if "6" in line and "asciitilde" in line)
    assert line.startswith(r"\$5 \& 6\_7\textasciicircum 8\textasciitilde \{9\}\#\% &")
    (line,) = (line for line in lines if "slash" in line and "back" in line and "alpha" in line)
    assert line.startswith(r"back\textbackslash slash \textbackslash alpha &")


# ---- one run in memory ----------------------------------------------------------------------------------------------


def test_a_run_that_finishes() -> None:
    done = run(problem(), FedAvg(0.1, 2), 7, every=3)
    assert (done.status, done.message) == ("finished", "")
    assert [row["round"] for row in done.rows] == [0, 3, 6, 7]
    assert torch.equal(done.model, done.state.server.x)
    kept = compare(problem(), {"a": FedAvg(0.1, 2)}, 7, every=3, **QUIET)
    assert torch.equal(kept.models["a", 0], done.model)
    for one, other in zip(done.rows, kept.rows, strict=True):
        assert {k: v for k, v in one.items() if k != "wall_seconds"}.items() <= other.items()
    assert "finished: round 7" in repr(done)


def test_a_run_that_diverges_says_so_or_throws() -> None:
    wild = FedAvg(eta=1e9, K=3)
    done = run(problem(), wild, 20)
    assert done.status == "diverged"
    assert re.fullmatch(r"diverged: the model has norm .* in round \d+; try smaller steps", done.message)
    with pytest.raises(Diverged, match="try smaller steps") as thrown:
        run(problem(), wild, 20, throw=True)
    assert torch.equal(thrown.value.result.model, done.model)
    assert len(thrown.value.result.rows) == len(done.rows)
    kept = compare(problem(), {"a": wild}, 20, **QUIET)
    assert kept.status[0]["message"] == done.message


@pytest.mark.parametrize("every", [1, 4, 10])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("algorithm", [FedAvg(0.1, 2), Depositum(0.1)])
def test_ctrl_c_returns_what_there_is(every: int, number: int, algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is that of the last round, whether that was measured or not."""
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    graph = Ring(5) if isinstance(algorithm, Depositum) else None

    real = Run.round

    def interrupted(run: Run, t: int) -> None:
        real(run, t)
        if t == 6:
            signal.raise_signal(number)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "round", interrupted)
        stopped = run(problem(), algorithm, 20, topology=graph, every=every)
    assert (stopped.status, stopped.message) == ("stopped", "stopped by a signal after round 6 of 20")
    assert [row["round"] for row in stopped.rows] == list(range(0, 7, every))
    assert torch.equal(stopped.model, run(problem(), algorithm, 6, topology=graph).model)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("words", [["run", "--force"], ["run", "--resume"], ["run", "--resume", "more"], ["report"]])
def test_a_command_reads_no_state_of_a_file_twice(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, seen = tmp_path / "run", Counter[tuple[str, int]]()
    asked = ["run", str(write(tmp_path / "small.toml", small(rounds=2, seeds=[0]))), "--out", str(out), "--jobs", "1"]
    assert proxfed(capsys, *asked)[0] == 0
    read = files.read

    def watched(path: Path, most: int = files.LARGEST_TEXT) -> bytes:
        seen[Path(path).name, Path(path).stat().st_ino] += 1  # a file that is replaced is another one
        return read(path, most)

    monkeypatch.setattr(files, "read", watched)
    more = ["-c", "seeds=[0, 1]"] if "more" in words else []
    given = [*asked, words[1], *more] if words[0] == "run" else ["report", str(out), "--out", str(tmp_path / "a.html")]
    assert proxfed(capsys, *given)[0] == 0
    names, written = {name for name, _ in seen}, {"config.toml", "versions.json", "clients.json", "status.json"}
    assert "rows.csv" in names
    # What it has written itself it knows; what it replaces must be a run.
    assert names & written == ({"config.toml"} if "--force" in words else written)
    assert max(seen.values()) == 1, seen


def test_what_was_written_is_known_as_a_reader_finds_it(tmp_path: Path) -> None:
    """Numbers, lists and nested tables of settings, versions, clients, status, rows and models."""
    e = parse(small(rounds=2, seeds=[3], measures=["consensus_x"], targets={"objective": [0.5]}), "small")
    study = build_study(e)
    open_folder(study, here := RunFolder(tmp_path / "run"), True, False)
    Execution(study, here, only=["fedcef", "pledge, tree"]).run()
    known, found = here.contents(), RunFolder(tmp_path / "run").contents()
    for mine, theirs in zip(known, found, strict=True):
        if isinstance(mine, ClientStats):
            assert isinstance(theirs, ClientStats)
            assert mine.table() == theirs.table()
        else:
            assert mine == theirs
    models, blocks = here.models()
    again, same = RunFolder(tmp_path / "run").models()
    assert blocks == same
    assert models.keys() == again.keys()
    assert all(torch.equal(models[name], again[name]) for name in models)


def test_the_second_ctrl_c_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupted(run: Run, t: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(problem(), FedAvg(0.1, 2), 20)
    assert signal.getsignal(signal.SIGINT) == before
