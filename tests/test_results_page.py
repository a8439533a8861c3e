"""The page says what is kept of the reproductions, and its check sees what is wrong with it."""

from __future__ import annotations

import shutil
import sys
import tomllib

import pytest

import proxfed.papers.reproduce
from proxfed.papers.reproduce import draw, select, verdicts

from support.toy_paper import fall, run, swapped

pytestmark = pytest.mark.usefixtures("toy_paper")


def made(tools, tmp_path) -> str:
    """The page about what was run."""
    pytest.importorskip("matplotlib")
    tools[0].keep(tmp_path / "runs", tmp_path / "results")
    assert tools[1].main(["--results", str(tmp_path / "results"), "--docs", str(tmp_path / "docs")]) == 0
    return (tmp_path / "docs" / "results.md").read_text()


def check(tools, tmp_path) -> int:
    return tools[1].main(["--check", "--results", str(tmp_path / "results"), "--docs", str(tmp_path / "docs")])


def lines(page: str, start: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(start)]


def test_the_summary_counts_claims_and_names_what_was_never_run(tools, tmp_path):
    run(tmp_path / "runs")
    page = made(tools, tmp_path)
    assert lines(page, "| [`toy/fig1`]") == ["| [`toy/fig1`](#toyfig1-fig-1) | Fig. 1 | quick (3) | 1 | 1 |  |  |  |"]
    assert lines(page, "| [`toy/fig2`]") == ["| [`toy/fig2`](#toyfig2-table-2) | Table 2 | not run |  | 1 |  |  |  |"]
    assert lines(page, "| all") == ["| all |  |  | 1 | 2 | 0 | 0 | 0 |"]
    assert "Not run; `proxfed reproduce toy/fig2` does it, where its data are." in page
    assert "| not run | nobody has looked |" in page


def test_the_full_form_counts_where_it_can_tell(tools, tmp_path):
    run(tmp_path / "runs", value=swapped)
    run(tmp_path / "runs", form="full", only=["IID", "very skewed"])
    page = made(tools, tmp_path)
    assert "| Fig. 1 | full (3), quick (3) | 2 |  |  |  |  |" in page
    assert page.index("**Full form**") < page.index("**Quick form**")


def test_where_the_full_form_cannot_tell_the_quick_one_counts(tools, tmp_path):
    run(tmp_path / "runs")
    run(tmp_path / "runs", form="full", value=lambda label, seed, t: fall(label, seed, t) if label == "Ours" else None)
    assert "| Fig. 1 | full (3), quick (3) | 2 |  |  |  |  |" in made(tools, tmp_path)


def test_the_summary_says_what_holds_with_another_choice(tools, tmp_path):
    """A variant counts that has all cases of the form."""
    both = ("IID", "very skewed")
    run(tmp_path / "runs", form="full", only=both, value=swapped)
    run(tmp_path / "runs", form="full", variant="slow")
    assert "| Fig. 1 | full (3) |  |  | 2 |  |  |" in made(tools, tmp_path)
    run(tmp_path / "runs", form="full", variant="slow", only=("very skewed",))
    assert "| Fig. 1 | full (3) |  |  | 2 | 2 |  |" in made(tools, tmp_path)


def test_another_choice_counts_with_three_seeds_and_in_the_cases_that_decided(tools, tmp_path):
    run(tmp_path / "runs", value=swapped)
    run(tmp_path / "runs", variant="slow", seeds=(0, 1))
    assert "| Fig. 1 | quick (3) |  | 1 | 1 |  |  |" in made(tools, tmp_path)
    run(tmp_path / "runs", variant="slow")
    assert "| Fig. 1 | quick (3) |  | 1 | 1 | 1 |  |" in made(tools, tmp_path)
    run(tmp_path / "runs", form="full", only=("IID", "very skewed"), value=swapped)
    assert "| Fig. 1 | full (3), quick (3) |  |  | 2 |  | 1 |" in made(tools, tmp_path)


def test_all_but_the_first_form_is_folded(tools, tmp_path):
    run(tmp_path / "runs")
    run(tmp_path / "runs", form="full", only=["IID", "very skewed"])
    run(tmp_path / "runs", variant="slow", value=swapped)
    page = made(tools, tmp_path)
    folded = [part.partition("</details>")[0] for part in page.split("<details>")[1:]]
    assert [text.split("\n")[1] for text in folded] == [
        "<summary>Quick form: 1 confirmed, 1 not run</summary>",
        "<summary>Another choice, slow, quick form: 1 not run, 1 not confirmed</summary>",
    ]
    assert "**Quick form**" in folded[0]
    assert "**Full form**" in page.partition("<details>")[0]


def test_targets_that_nobody_reaches_in_the_quick_form_are_named_below_it(tools, tmp_path):
    run(tmp_path / "runs", value=lambda label, seed, t: 1.0)
    assert "Not reached by anybody here: rounds to objective 0.6.\n" in made(tools, tmp_path)
    run(tmp_path / "runs", form="full", value=lambda label, seed, t: 1.0)
    assert "| 1 | 0.25 | > 100 | 7 |" in made(tools, tmp_path)  # the paper's own target is shown in any case


def test_what_departs_from_the_paper_is_no_other_choice(tools, tmp_path):
    path = tmp_path / "experiments" / "toy" / "fig1.toml"
    path.write_text(path.read_text().replace("quick_cases", 'departures = ["slow"]\nquick_cases'))
    run(tmp_path / "runs", value=swapped)
    run(tmp_path / "runs", variant="slow")
    page = made(tools, tmp_path)
    assert "<summary>Against the paper's setting, slow, quick form: 1 confirmed, 1 not run</summary>" in page
    assert "**Against the paper's setting, `slow`**, in the quick form: `algorithms.Ours.eta = 0.1`" in page
    assert "| Fig. 1 | quick (3) |  | 1 | 1 |  | 1 |" in page  # neither confirmed elsewhere nor varied
    assert "3 of 3 seeds, no open setting varied" in page


def test_to_call_a_claim_not_confirmed_takes_three_seeds_and_a_varied_setting(tools, tmp_path):
    early = "Early to call not confirmed:\n\n- ours is better \\| than theirs: "
    run(tmp_path / "runs", value=swapped, seeds=(0, 1))
    page = made(tools, tmp_path)
    assert "| Fig. 1 | quick (2) |  | 1 | 1 |  | 1 |" in page
    assert f"{early}2 of 3 seeds, no open setting varied\n" in page
    run(tmp_path / "runs", value=swapped)
    assert f"{early}3 of 3 seeds, no open setting varied\n" in made(tools, tmp_path)
    run(tmp_path / "runs", variant="slow", value=swapped, seeds=(0,))
    page = made(tools, tmp_path)
    assert "| Fig. 1 | quick (3) |  | 1 | 1 |  |  |" in page
    assert early not in page


def test_cases_with_fewer_seeds_are_named(tools, tmp_path):
    run(tmp_path / "runs", form="full")
    run(tmp_path / "runs", form="full", only=("very skewed",), seeds=(0,))
    page = made(tools, tmp_path)
    assert "| Fig. 1 | full (1 to 3) | 2 |" in page
    assert "at the paper's scale. Seeds 0, 1, 2, but 0 of very skewed; " in page


def test_ours_stands_beside_the_papers_numbers(tools, tmp_path):
    run(tmp_path / "runs")
    page = made(tools, tmp_path)
    assert lines(page, "| case ") == [
        "| case | algorithm | objective, ours | the paper's | rounds to objective 0.6, ours | the paper's |"
    ]
    assert lines(page, "| IID | Ours") == ["| IID | Ours | 0.25 (0.2475 .. 0.2525) | 0.25 | 10 | 7 |"]
    assert lines(page, "| IID | Theirs") == ["| IID | Theirs | 0.5 (0.495 .. 0.505) | 0.5 | 15 (15 .. 20) | > 99 |"]


def test_what_is_less_than_the_paper_is_said(tools, tmp_path):
    run(tmp_path / "runs")
    run(tmp_path / "runs", variant="slow")
    page = made(tools, tmp_path)
    settings = "`rounds = 20` instead of `100`, `algorithms.Ours.eta = 0.5` instead of `1.0`, 1 of the 2 cases"
    how = "Seeds 0, 1, 2; 3 clients with 12 samples in all; 40 s of computing"  # 6 times 20 rounds, 3 a second
    assert f"**Quick form**: {settings}. {how}" in page
    assert "Cases that were not run: very skewed." in page
    assert "**Another choice, `slow`**, in the quick form: `algorithms.Ours.eta = 0.1` instead of `1.0`." in page
    assert page.count("ours is better \\| than theirs") == 2
    assert "Not as the file has it now" not in page


def test_a_run_with_other_settings_is_said_to_be_one(tools, tmp_path):
    run(tmp_path / "runs")
    path = tmp_path / "experiments" / "toy" / "fig1.toml"
    path.write_text(path.read_text().replace("features = 4", "features = 5"))
    assert "Not as the file has it now: `data.features = 4`." in made(tools, tmp_path)


def test_settings_that_the_paper_leaves_open_are_listed(tools, tmp_path):
    page = made_without_runs(tools, tmp_path)
    assert lines(page, "- `") == [
        "- `data.features = 4`: the paper is silent",
        "- `algorithms.Ours.eta = 1.0`: as theirs",
    ]


def made_without_runs(tools, tmp_path) -> str:
    assert tools[1].main(["--results", str(tmp_path / "results"), "--docs", str(tmp_path / "docs")]) == 0
    return (tmp_path / "docs" / "results.md").read_text()


def test_open_settings_are_found_under_any_heading(tools):
    text = """
top = 1 # ours: a
[cases."two words"]
"data.alpha" = [1, 2]   #ours: b # with a sign
plain = 2 # not ours
[[claims]]
says = "x"
[[claims]]
target = 0.5 # ours: c
"""
    assert sys.modules["kept"].left_open(tomllib.loads(text), text) == [
        ("top", "1", "a"),
        ("cases.two words.data.alpha", "[1, 2]", "b # with a sign"),
        ("claims.2.target", "0.5", "c"),
    ]


def test_figures_are_drawn_for_what_has_values_and_old_ones_go(tools, tmp_path):
    run(tmp_path / "runs")
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "old.svg").write_text("")
    page = made(tools, tmp_path)
    assert [path.name for path in (tmp_path / "docs" / "results").iterdir()] == ["toy-fig1-loss.svg"]
    assert "![toy-fig1-loss](results/toy-fig1-loss.svg)" in page
    assert "never" not in page.replace("never run", "")


def test_the_check_sees_a_page_that_is_not_up_to_date(tools, tmp_path, capsys):
    run(tmp_path / "runs")
    page = made(tools, tmp_path)
    assert check(tools, tmp_path) == 0
    (tmp_path / "docs" / "results.md").write_text(page + "\n")
    assert check(tools, tmp_path) == 1
    assert "results.md is not up to date" in capsys.readouterr().err
    (tmp_path / "docs" / "results.md").write_text(page)
    (tmp_path / "docs" / "results" / "toy-fig1-loss.svg").unlink()
    assert check(tools, tmp_path) == 1
    assert "toy-fig1-loss.svg is missing" in capsys.readouterr().err


def test_the_check_sees_results_of_a_form_that_is_not_there(tools, tmp_path, capsys):
    run(tmp_path / "runs")
    made(tools, tmp_path)
    (tmp_path / "results" / "toy-fig1" / "quick").rename(tmp_path / "results" / "toy-fig1" / "quick+gone")
    made_without_runs(tools, tmp_path)
    assert check(tools, tmp_path) == 1
    assert "toy-fig1/quick+gone/iid is not of a form" in capsys.readouterr().err


def test_the_check_sees_results_of_a_case_that_is_not_there(tools, tmp_path, capsys):
    run(tmp_path / "runs")
    made(tools, tmp_path)
    shutil.copytree(*(tmp_path / "results" / "toy-fig1" / "quick" / case for case in ("iid", "gone")))
    assert check(tools, tmp_path) == 1
    assert "toy-fig1/quick/gone is not of a form" in capsys.readouterr().err


def test_a_claim_that_does_not_hold_needs_a_paragraph(tools, tmp_path, capsys):
    run(tmp_path / "runs", value=swapped)
    page = made(tools, tmp_path)
    assert "| **not confirmed** | ours is better \\| than theirs |" in page
    assert check(tools, tmp_path) == 1
    said = capsys.readouterr().err
    assert "toy/fig1 (quick): the claim 'ours is better | than theirs' is not confirmed" in said
    assert "results/toy-fig1/notes.md" in said
    (tmp_path / "results" / "toy-fig1" / "notes.md").write_text("We had them the other way round.\n")
    assert "\nWe had them the other way round.\n" in made(tools, tmp_path)
    assert check(tools, tmp_path) == 0


# ---- reproduce ------------------------------------------------------------------------------------------------------


def test_a_reproduction_draws_its_figures_into_the_folder_of_its_form(tmp_path):
    pytest.importorskip("matplotlib")
    run(tmp_path / "runs", form="full", only=["IID", "very skewed"])
    (part,) = select("toy/fig1", tmp_path / "runs", quick=False)
    assert draw(part) == [tmp_path / "runs" / "toy-fig1" / "full" / "loss.svg"]
    text = (part.folder / "loss.svg").read_text()
    assert ">IID<" in text
    assert ">very skewed<" in text
    assert (part.folder / "loss.png").exists()


def test_a_figure_also_shows_the_cases_that_were_run_before(tmp_path):
    pytest.importorskip("matplotlib")
    run(tmp_path / "runs", form="full", only=["IID", "very skewed"])
    (part,) = select("toy/fig1", tmp_path / "runs", quick=False, cases=["very skewed"])
    (svg,) = draw(part)
    assert svg.read_text().index(">IID<") < svg.read_text().index(">very skewed<")


def test_without_matplotlib_a_reproduction_has_no_figures_and_goes_on(tmp_path, monkeypatch):
    run(tmp_path / "runs")
    (part,) = select("toy/fig1", tmp_path / "runs", quick=True)
    monkeypatch.setattr(proxfed.papers.reproduce, "available", lambda: False)
    assert draw(part) == []
    assert [v.status for v in verdicts(part, True)] == ["confirmed", "not run"]
