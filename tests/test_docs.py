"""What the documentation shows runs as it stands."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from proxfed import Depositum, DFedADMM, FedCEF, FedComposite, FedNAG, __version__

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.name}-{k}")
    for page in PAGES
    for k, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")


@pytest.mark.parametrize("code", BLOCKS)
def test_python_blocks_run(code: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path, timeout=300)


def test_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(page.read_text()) if "://" not in link]
    assert links
    assert [f"{page.relative_to(ROOT)}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_the_citation_has_the_version_and_the_papers_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in citation
    for algorithm in (Depositum, FedCEF, DFedADMM, FedNAG, FedComposite):
        reference = inspect.getdoc(inspect.getmodule(algorithm)).split("Reference: ")[1].replace("\n", " ")
        authors, title = re.match(r'(.*?), "(.*?)"', reference).groups()
        assert title in citation
        block = citation.split(title)[1].split("- type")[0]
        assert (
            ", ".join(" ".join(who) for who in re.findall("given-names: (.*?), family-names: (.*?) ", block)) == authors
        )


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
