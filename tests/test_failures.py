"""What goes wrong is one sentence: a bug, Ctrl-C while starting, names that would do something to the terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from proxfed import Federated, Linear, Squared
from proxfed.errors import InputError
from proxfed.harness.results import Results
from proxfed.report.terminal import console, visible

from support.cli import proxfed, refused
from support.run_folders import folder, row, state
from support.small_experiment import small, write

EVIL = "\x1b]0;owned\x07\x1b[2J[red]a[/red] \u202eb"


def test_only_text_is_shown() -> None:
    assert visible(EVIL) == "?]0;owned??[2J[red]a[/red] ?b"
    assert visible("é 漢字 🙂\n\tx\u00a0") == "é 漢字 🙂\n\tx\u00a0"
    shown = console(width=80, force_terminal=True, color_system=None)
    with shown.capture() as captured:
        shown.print(EVIL)
    assert captured.get() == visible(EVIL.replace("\x07", "")) + "\n"  # a bell it leaves out itself


@pytest.mark.parametrize("command", ["report", "simulate"])
def test_names_in_a_strangers_folder_do_nothing(command: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """In rows, messages, settings and the folder's own name; a label that nobody could have written is refused."""
    config = {"name": EVIL, "algorithms": [{"label": "[red]a", "name": "fedavg", "eta": 0.1, "K": 1}], "seeds": [0]}
    ended = state("[red]a") | {"message": EVIL}
    path = folder(tmp_path / "run\x1b[2J", [row("[red]a", t=10)], [ended], config=config)
    code, out, err = proxfed(capsys, command, str(path))
    assert "\x1b" not in out + err
    assert "\u202e" not in out + err
    assert (code, "[red]a" in out) == ((0, True) if command == "report" else (2, False))
    evil = folder(tmp_path / "evil", [row(EVIL, t=10)], [state(EVIL)], config=config)
    code, out, err = proxfed(capsys, "report", str(evil))
    assert code == 2
    assert "is not the status of a task" in err


def test_an_unexpected_error_is_one_sentence_with_its_traceback_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("nobody\nthought of this")

    made = folder(tmp_path / "run", [row()], [state()])
    monkeypatch.setattr(Results, "read", fails)
    code, _, said = proxfed(capsys, "report", str(made))
    assert code == 1
    assert said.count("\n") == 1
    words = r"error: ZeroDivisionError: nobody \(.* is in (.*), and PROXFED_DEBUG=1 shows it\)\n"
    file = Path(re.fullmatch(words, said)[1])
    trace = file.read_text()
    file.unlink()
    assert trace.startswith("Traceback")
    assert "thought of this" in trace
    monkeypatch.setenv("PROXFED_DEBUG", "1")
    code, _, said = proxfed(capsys, "report", str(made))
    assert code == 1
    assert "Traceback" in said
    assert said.endswith("(this was not expected; the traceback is shown above; PROXFED_DEBUG is set)\n")


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_ctrl_c_while_starting_is_one_word(module: str, tmp_path: Path) -> None:
    """While the command line is imported, and while a command imports what it needs."""
    (tmp_path / f"{module}.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])}
    process = subprocess.Popen(
        [sys.executable, "-m", "proxfed", "run", "demo", "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # in the background of a shell it is ignored
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert said == "interrupted\n"
    assert process.returncode == 130


def test_output_that_nobody_reads_any_more_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "proxfed", "list"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 1


# ---- what a user may mistype ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--timeout", "nan"], "--timeout nan must be a number of seconds > 0"),
        (["--timeout", "-1"], "--timeout -1.0 must be a number of seconds > 0"),
        (["--checkpoint", "nan"], "--checkpoint nan must be a number of seconds >= 0"),
        (["--checkpoint", "-1"], "--checkpoint -1.0 must be a number of seconds >= 0"),
    ],
)
def test_seconds_that_are_none(
    change: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "small.toml", small(rounds=1))
    assert said in refused(capsys, "run", str(file), "--out", str(tmp_path / "run"), *change)
    assert not (tmp_path / "run").exists()


def test_names_of_files_that_no_system_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    file = write(tmp_path / "small.toml", small(rounds=1))
    for arguments in (
        ["run", str(file), "--out", str(tmp_path / long)],
        ["report", str(tmp_path / long)],
        ["predict", str(tmp_path / long), str(file)],
    ):
        code, _, said = proxfed(capsys, *arguments)
        assert code in (1, 2)
        assert "File name too long" in said
        assert "not expected" not in said


def test_an_empty_key_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = small(rounds=1, algorithms=[{"name": "fedavg", "eta": 0.1, "K": 1, "": 3}])
    assert "unknown key ''" in refused(capsys, "run", str(write(tmp_path / "small.toml", table)))


@pytest.mark.parametrize("rows", [3, 30])
def test_features_whose_squares_overflow_are_refused(rows: int) -> None:
    data = Federated(np.full((rows, 5), 1e300), np.ones(rows), [rows])
    with pytest.raises(InputError, match="the features are so large that their squares overflow"):
        Linear(data, Squared()).smoothness()
