"""The page of the papers' elements: every element has a place that exists, or a reason why it has none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "proxfed"
PAGE = ROOT / "docs" / "papers.md"


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "|---" not in line]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row != ["element", "where", "verdict"]]


def test_there_are_rows_for_all_papers() -> None:
    assert len(rows()) > 70
    headings = re.findall(r"^## (.+)", PAGE.read_text(), re.MULTILINE)
    assert headings[:5] == ["DEPOSITUM", "FedCEF", "DFedADMM and DFedADMM-SAM", "FedNAG", "FedComposite"]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_an_element_is_where_the_page_says_or_has_a_reason(row: list[str]) -> None:
    assert len(row) == 3
    _, where, verdict = row
    assert verdict.startswith(("exact", "differs", "not there: "))
    assert bool(where) != verdict.startswith("not there")
    if "differs" in verdict:
        assert re.search(r"differs[^:]*: .{20,}", verdict)  # how, and why
    paths = re.findall(r"`([\w/]+\.(?:py|toml))`", row[1] + row[2])
    assert paths or not where
    for path in paths:
        base = ROOT if path.startswith(("benchmarks/", "tests/")) else SOURCE
        assert (base / path).exists(), path


def test_errata_that_the_page_names_are_on_the_theory_page() -> None:
    theory = (ROOT / "docs" / "theory.md").read_text()
    named = set(re.findall(r"\b[ET]\d\d[.\w]+\b", PAGE.read_text()))
    assert named
    assert {name for name in named if f"**{name}" not in theory} == set()
