"""Commands as a user gives them, run in this process."""

from __future__ import annotations

import sys

import pytest

from proxfed.cli import main as cli
from proxfed.report import terminal


def proxfed(capsys: pytest.CaptureFixture[str], *arguments: str, width: int = 200) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["proxfed", *arguments])
        patch.setattr(terminal.out, "width", width)
        patch.setattr(terminal.err, "width", 500)
        with pytest.raises(SystemExit) as end:
            cli.main()
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one sentence of a refusal."""
    got, _, said = proxfed(capsys, *arguments)
    assert got == code, said
    assert said.startswith("error: ")
    assert said.count("\n") == 1, f"not one line: {said}"
    return said
