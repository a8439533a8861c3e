"""What the documentation shows runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.name}-{k}")
    for page in PAGES
    for k, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]
LINKS = [
    pytest.param(page, link, id=f"{page.name}-{link}")
    for page in PAGES
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    if "://" not in link and not (page.name == "results.md" and link.startswith("results/"))
]
"""Of pages that are in the repository; those that results.md leads to are built (test_results_page.py)."""


@pytest.mark.parametrize("code", BLOCKS)
def test_python_blocks_run(code: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path, timeout=300)


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_links_lead_somewhere(page: Path, link: str) -> None:
    assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(script: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(script)], check=True, cwd=tmp_path, timeout=300)


@pytest.mark.parametrize("page", [p for p in PAGES if "```toml" in p.read_text()], ids=lambda p: p.name)
def test_toml_blocks_run(page: Path, tmp_path: Path) -> None:
    for k, table in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)):
        (tmp_path / "shown.toml").write_text(table)
        command = [
            sys.executable,
            "-m",
            "proxfed",
            "run",
            str(tmp_path / "shown.toml"),
            "--out",
            str(tmp_path / f"{k}"),
        ]
        few = ["-c", "rounds=2", "-c", "seeds=[0]", "-c", "reference=false"]
        subprocess.run([*command, *few], check=True, timeout=300, capture_output=True)
