"""Predictions for tables do not wait for torch: not on the command line, not in Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.fitted import clinics_plain
from support.tables import CLINICS

WITHOUT = """
import sys
sys.modules["torch"] = None  # an import of it fails
"""
COMMAND = (
    WITHOUT
    + """
from proxfed.__main__ import main
sys.argv = ["proxfed", "predict", {model!r}, {file!r}, "--out", {out!r}]
main()
"""
)
PYTHON = (
    WITHOUT
    + """
import csv
from proxfed.fit import read_model
rows = list(csv.DictReader(open({file!r})))
frame = {{name: [row[name] for row in rows] for name in rows[0] if name != "ill"}}
open({out!r}, "w").write(" ".join(read_model({model!r}).predict(frame)))
"""
)


@pytest.mark.parametrize("script", [COMMAND, PYTHON], ids=["command line", "Python"])
def test_torch_is_not_imported(script: str, tmp_path: Path) -> None:
    found = clinics_plain()
    found.save(tmp_path / "model")
    out = tmp_path / "out"
    text = script.format(model=str(tmp_path / "model"), file=str(CLINICS / "west.csv"), out=str(out))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ill" in out.read_text()
