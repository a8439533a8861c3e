"""The summary counts what holds, the pages say by which numbers, and the check sees what is wrong with them."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxfed.errors import InputError
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.papers import experiment_page, reproduce, results_page
from proxfed.papers.cli.site_links import on_page_markdown
from proxfed.papers.open_settings import open_settings
from proxfed.papers.results_format import Place
from proxfed.papers.results_store import keep, read, write
from proxfed.papers.verdicts import gather, reproduction

from support.cli import proxfed, refused
from support.toy_paper import fall, run, swapped

pytestmark = pytest.mark.usefixtures("toy_paper")

BOTH = ("IID", "very skewed")


def kept(tmp_path: Path) -> Path:
    """Where the runs were kept, if there are any."""
    if (tmp_path / "runs").exists():
        keep(tmp_path / "runs", tmp_path / "results", pytest.fail)
    return tmp_path / "results"


def summary(tmp_path: Path) -> str:
    results = kept(tmp_path)
    return results_page.summary(gather(results), results)


def page(tmp_path: Path, name: str = "toy/fig1") -> str:
    return experiment_page.page(reproduction(kept(tmp_path), name))


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


def counted(tmp_path: Path, experiment: str = "fig1") -> list[str]:
    """The forms of an experiment in the summary; its main claims that are confirmed, hold under another reading, are
    unknown, and were not run."""
    (line,) = lines(summary(tmp_path), f"| [{experiment}]")
    forms, _, confirmed, reading, scale, settings, unknown, not_run, *aside = (c.strip() for c in line.split("|")[3:-1])
    assert [scale, settings, *aside] == ["", "", "", ""]
    return [forms, confirmed, reading, unknown, not_run]


def command(capsys: Any, tmp_path: Path, name: str, *options: str) -> tuple[int, str, str]:
    return proxfed(capsys, "results", name, "--results", str(tmp_path / "results"), *options)


def check(capsys: Any, tmp_path: Path) -> tuple[int, str]:
    """The exit code of the check, and what it says."""
    code, _, told = command(capsys, tmp_path, "check", "--docs", str(tmp_path / "docs"))
    return code, told


def write_page(capsys: Any, tmp_path: Path, *options: str) -> Path:
    """docs/results.md, and perhaps more, of what was run; for what was not, the causes say what it takes."""
    for experiment, claim in (("fig1", "ours arrives*"), ("fig2", "*")):
        path = kept(tmp_path) / "toy" / f"{experiment}.causes.toml"
        if not path.exists():
            path.write_text(f'[[causes]]\nkind = "scale"\nclaims = ["{claim}"]\nevidence = "an hour"\n')
    assert command(capsys, tmp_path, "page", "--docs", str(tmp_path / "docs"), *options)[0] == 0
    return tmp_path / "docs" / "results.md"


# ---- the summary ----------------------------------------------------------------------------------------------------


def test_the_summary_counts_claims_and_names_what_was_never_run(tmp_path: Path) -> None:
    run(tmp_path / "runs")
    assert counted(tmp_path) == ["quick (3)", "0+1", "", "", "1"]
    assert counted(tmp_path, "fig2") == ["not run", "", "", "", "1"]
    text = summary(tmp_path)
    assert lines(text, "| [toy]") == ["| [toy](#toy) | 3 | 0+1 |  |  |  |  | 2 |  |  |"]
    assert lines(text, "| all") == ["| all | 3 | 0+1 |  |  |  |  | 2 |  |  |"]
    assert "| [fig1](../src/proxfed/papers/experiments/toy/fig1.toml) | Fig. 1 |" in text
    holds = "**1 of 3 main claims hold** (1 in a smaller form), 2 were not run."
    assert f"## toy\n\nA. Author, On toys\n\n{holds} Some hold: Fig. 1 (1 of 2). Not run: Table 2.\n" in text
    assert "Not run; `proxfed reproduce toy/fig2` runs it, where its data are." in page(tmp_path, "toy/fig2")
    assert "| not run | it was not looked at | Table 2 |" in page(tmp_path, "toy/fig2")


def test_a_paper_of_which_all_or_nothing_holds(tmp_path: Path) -> None:
    run(tmp_path / "runs", form="full", only=BOTH)
    holds = "2 of 3 main claims hold** (2 at the paper's scale), 1 was not run. All hold: Fig. 1. Not run: Table 2."
    assert holds in summary(tmp_path)
    run(tmp_path / "runs", form="full", only=BOTH, value=swapped)
    text = summary(tmp_path)
    assert "0 of 3 main claims hold**, 2 do not, 1 was not run. None hold: Fig. 1. Not run: Table 2." in text


def test_the_full_form_counts_where_it_can_tell(tmp_path: Path) -> None:
    run(tmp_path / "runs", value=swapped)
    run(tmp_path / "runs", form="full", only=BOTH)
    assert counted(tmp_path) == ["full (3), quick (3)", "2", "", "", ""]
    text = page(tmp_path)
    assert text.index("**Full form**") < text.index("**Quick form**")


def test_where_the_full_form_cannot_tell_the_quick_one_counts(tmp_path: Path) -> None:
    run(tmp_path / "runs")
    run(tmp_path / "runs", form="full", value=lambda label, seed, t: fall(label, seed, t) if label == "Ours" else None)
    assert counted(tmp_path) == ["full (3), quick (3)", "1+1", "", "", ""]


def test_the_summary_says_what_holds_with_another_choice(tmp_path: Path) -> None:
    """A variant counts that has all cases of the form."""
    run(tmp_path / "runs", form="full", only=BOTH, value=swapped)
    run(tmp_path / "runs", form="full", variant="slow")
    assert counted(tmp_path) == ["full (3)", "", "", "2", ""]
    run(tmp_path / "runs", form="full", variant="slow", only=("very skewed",))
    assert counted(tmp_path) == ["full (3)", "", "2", "", ""]


def test_another_choice_counts_with_three_seeds_and_in_the_cases_that_decided(tmp_path: Path) -> None:
    run(tmp_path / "runs", value=swapped)
    run(tmp_path / "runs", variant="slow", seeds=(0, 1))
    assert counted(tmp_path) == ["quick (3)", "", "", "0+1", "1"]
    run(tmp_path / "runs", variant="slow")
    assert counted(tmp_path) == ["quick (3)", "", "0+1", "", "1"]
    run(tmp_path / "runs", form="full", value=swapped)
    assert counted(tmp_path) == ["full (3), quick (3)", "", "", "2", ""], (
        "a quick variant says nothing of the full form"
    )


def test_fewer_seeds_in_a_case_that_did_not_decide_do_not_matter(tmp_path: Path) -> None:
    run(tmp_path / "runs", value=swapped)
    run(tmp_path / "runs", variant="slow")
    run(tmp_path / "runs", variant="slow", only=("very skewed",), seeds=(0,))
    assert counted(tmp_path) == ["quick (3)", "", "0+1", "", "1"]


def add(path: Path, text: str, *changes: tuple[str, str]) -> None:
    """More at the end of a file, after these changes."""
    told = path.read_text()
    for old, new in changes:
        told = told.replace(old, new)
    path.write_text(told + text)


def test_a_reading_is_one_variant_of_the_experiment_and_tells_its_price(tmp_path: Path, toy_paper: Path) -> None:
    """Of two variants, each with which another claim holds, one counts; with it a claim that holds does not."""
    claims = "".join(
        f'[[claims]]\nsays = "{says}"\nmeasure = "objective"\nlabel = "Ours"\n{key} = {bound}\n'
        for says, key, bound in (("below", "below", 0.3), ("above", "above", 0.4), ("between", "above", 0.1))
    )
    path = toy_paper / "toy" / "fig1.toml"
    add(path, '\n[paper.variants.fast]\n"algorithms.Ours.eta" = 0.9\n' + claims)
    run(tmp_path / "runs", value=lambda label, seed, t: 0.35)  # ours is not better; between
    assert counted(tmp_path) == ["quick (3)", "0+1", "", "0+3", "1"]
    run(tmp_path / "runs", variant="slow")  # 0.25: ours is better, below, between
    run(tmp_path / "runs", variant="fast", value=swapped)  # 0.5: above, between
    assert counted(tmp_path) == ["quick (3)", "0+1", "0+2", "0+1", "1"]
    assert "with `slow` 2 more of the experiment's main claims hold |" in page(tmp_path)
    run(tmp_path / "runs", variant="fast", value=lambda label, seed, t: 0.35)
    run(tmp_path / "runs", variant="slow", value=lambda label, seed, t: 0.09 if label == "Ours" else 1.0)
    assert "with `slow` 2 more of the experiment's main claims hold, and 1 fewer of those that hold" in page(tmp_path)


@pytest.mark.parametrize("quick", ['"data.name" = "mnist"', '"problem.model" = "mlp"'])
def test_another_data_set_or_model_is_another_experiment(tmp_path: Path, toy_paper: Path, quick: str) -> None:
    """It decides nothing about the paper's claims, and all about ours."""
    path = toy_paper / "toy" / "fig1.toml"
    ours = '[[claims]]\nsays = "ours: it is below 1"\nmeasure = "objective"\nlabel = "Ours"\nbelow = 1.0\n'
    add(path, ours, ("rounds = 20\n", f"rounds = 20\n{quick}\n"))
    run(tmp_path / "runs")
    line = lines(summary(tmp_path), "| [fig1]")[0]
    assert line.endswith("| quick (3) | 2 |  |  |  |  |  | 2 |  | 1/1 |")
    assert reproduction(kept(tmp_path), "toy/fig1").verdicts[0].found == "run on another data set or model only"


def test_what_contradicts_the_paper_decides_nothing(tmp_path: Path, toy_paper: Path) -> None:
    add(toy_paper / "toy" / "fig1.toml", "", ("quick_cases", 'departs = "eta is 2 there"\nquick_cases'))
    run(tmp_path / "runs")
    run(tmp_path / "runs", form="full", only=BOTH)
    assert counted(tmp_path) == ["full (3), quick (3)", "", "", "", "2"]
    assert reproduction(kept(tmp_path), "toy/fig1").verdicts[0].found == "eta is 2 there"


def test_what_is_shown_on_a_problem_of_ours_is_counted_apart(tmp_path: Path, toy_paper: Path) -> None:
    add(toy_paper / "toy" / "fig1.toml", "", ("quick_cases", "own_problem = true\nquick_cases"))
    run(tmp_path / "runs", form="full", only=BOTH)
    assert counted(tmp_path) == ["full (3)", "0+0+2", "", "", ""]


def test_the_check_asks_for_a_full_form_before_settings_and_for_what_a_run_takes(capsys: Any, tmp_path: Path) -> None:
    run(tmp_path / "runs", value=swapped)
    results = kept(tmp_path)
    (results / "toy" / "fig1.md").write_text("So it is.\n")
    cause = '[[causes]]\nkind = "settings"\nclaims = ["ours is better*"]\nevidence = "a loop agrees"\n'
    (results / "toy" / "fig1.causes.toml").write_text(cause)
    (results / "toy.md").write_text("a\n" * 6)
    write_page(capsys, tmp_path)
    told = check(capsys, tmp_path)[1].splitlines()
    assert told == [
        "results/toy.md: its first paragraph, on the first screen, has more than 5 lines",
        "toy/fig1: the cause of 'ours is better | than theirs' is 'settings', which needs a full form",
        "toy/fig1: 'ours arrives at 0.01' was not run, and no cause says what it takes",
    ]


def test_what_departs_from_the_paper_is_no_other_choice(tmp_path: Path, toy_paper: Path) -> None:
    path = toy_paper / "toy" / "fig1.toml"
    path.write_text(path.read_text().replace("quick_cases", 'departures = ["slow"]\nquick_cases'))
    run(tmp_path / "runs", value=swapped)
    run(tmp_path / "runs", variant="slow")
    text = page(tmp_path)
    assert "<summary>Against the paper's setting, slow, quick form: 1 confirmed, 1 not run</summary>" in text
    assert "**Against the paper's setting, `slow`**, in the quick form: `algorithms.Ours.eta = 0.1`" in text
    assert counted(tmp_path) == ["quick (3)", "", "", "0+1", "1"]
    assert "nothing varied" in text


def test_a_claim_whose_cause_is_not_known_says_what_was_tried(tmp_path: Path) -> None:
    unknown = "| unknown | ours is better \\| than theirs | "
    run(tmp_path / "runs", value=swapped)
    assert f"{unknown}nothing varied |" in page(tmp_path)
    run(tmp_path / "runs", variant="slow", value=swapped, seeds=(0,))
    assert f"{unknown}varied: `slow` |" in page(tmp_path)


@pytest.mark.parametrize("value", [fall, swapped])
def test_fewer_than_three_seeds_decide_nothing(tmp_path: Path, value: Any) -> None:
    run(tmp_path / "runs", value=value, seeds=(0, 1))
    assert counted(tmp_path) == ["quick (2)", "", "", "", "2"]
    run(tmp_path / "runs")
    run(tmp_path / "runs", form="full", value=value, seeds=(0, 1))
    assert counted(tmp_path) == ["full (2), quick (3)", "0+1", "", "", "1"]


def test_a_case_with_fewer_seeds_is_shown_and_not_counted(tmp_path: Path) -> None:
    run(tmp_path / "runs", form="full")
    run(tmp_path / "runs", form="full", only=("very skewed",), value=swapped, seeds=(0,))
    assert counted(tmp_path) == ["full (1 to 3)", "2", "", "", ""]
    assert "| **not confirmed** | ours is better \\| than theirs | Fig. 1 | holds in 1 of 2 cases" in page(tmp_path)


def test_where_the_file_asks_for_one_seed_it_decides(tmp_path: Path, toy_paper: Path) -> None:
    path = toy_paper / "toy" / "fig1.toml"
    path.write_text(path.read_text().replace("seeds = [0, 1, 2]", "seeds = [0]"))
    run(tmp_path / "runs", seeds=(0,))
    assert counted(tmp_path) == ["quick (1)", "0+1", "", "", "1"]


def test_a_cause_that_somebody_found_is_counted_and_shown_with_its_evidence(capsys: Any, tmp_path: Path) -> None:
    run(tmp_path / "runs", value=swapped)
    file = kept(tmp_path) / "toy" / "fig1.causes.toml"
    file.write_text('[[causes]]\nkind = "scale"\nclaims = ["ours is better*"]\nevidence = "with 9 clients it holds"\n')
    assert "| 2 |  |  | 0+1 |  |  | 1 |" in lines(summary(tmp_path), "| [fig1]")[0]
    assert "| needs the paper's scale | ours is better \\| than theirs | with 9 clients it holds |" in page(tmp_path)
    run(tmp_path / "runs", variant="slow")
    reading = "with `slow` 1 more of the experiment's main claims hold"
    assert f"| holds under another reading | ours is better \\| than theirs | {reading} |" in page(tmp_path)
    file.write_text(file.read_text().replace("ours is better*", "nobody says this"))
    write_page(capsys, tmp_path)
    assert "a cause is written down of ['nobody says this'], which no claim needs" in check(capsys, tmp_path)[1]
    file.write_text(file.read_text().replace("scale", "bad luck"))
    told = refused(capsys, "results", "show", "toy", "--results", str(tmp_path / "results"))
    assert "causes.0.kind = 'bad luck' is not allowed" in told


def test_claims_with_the_same_cause_stand_together(capsys: Any, tmp_path: Path) -> None:
    run(tmp_path / "runs", form="full", only=BOTH, value=swapped)
    file = kept(tmp_path) / "toy" / "fig1.causes.toml"
    file.write_text('[[causes]]\nkind = "scale"\nclaims = ["*"]\nevidence = "too\\nfew"\n')
    row = "| needs the paper's scale | ours is better \\| than theirs<br>ours arrives at 0.01 | too few |"
    assert row in page(tmp_path)
    told = command(capsys, tmp_path, "show", "toy")[1]
    assert told.count("needs the paper's scale: too few") == 1
    assert [line.strip() for line in told.splitlines() if line.lstrip().startswith("- ")] == [
        "- ours is better | than theirs",
        "- ours arrives at 0.01",
    ]


def test_the_summary_and_the_terminal_have_what_is_said_of_a_paper(capsys: Any, tmp_path: Path) -> None:
    run(tmp_path / "runs")
    (kept(tmp_path) / "toy.md").write_text("It is a toy.\n\nPlay with it.\n")
    assert "**[toy](#toy)** It is a toy.\n\n| paper |" in summary(tmp_path), "the first paragraph, on the first screen"
    assert "A. Author, On toys\n\nPlay with it.\n\n**1 of 3 main claims hold**" in summary(tmp_path)
    assert command(capsys, tmp_path, "show", "toy")[1].startswith("A. Author, On toys\nIt is a toy.\n")
    assert "It is a toy." not in command(capsys, tmp_path, "show", "toy/fig1")[1]


def test_the_sentence_about_a_paper_counts_ours_where_it_has_no_main_claims(tmp_path: Path, toy_paper: Path) -> None:
    for path in (toy_paper / "toy").glob("*.toml"):
        path.write_text(path.read_text().replace('says = "', 'says = "ours: '))
    run(tmp_path / "runs")
    assert "**1 of 3 claims of ours hold**, 2 were not run. Some hold: Fig. 1 (1 of 2)." in summary(tmp_path)


def test_minor_claims_and_ours_are_counted_apart(tmp_path: Path, toy_paper: Path) -> None:
    path = toy_paper / "toy" / "fig1.toml"
    path.write_text(
        path.read_text()
        .replace('says = "ours is better', 'minor = true\nsays = "ours is better')
        .replace('says = "ours arrives', 'says = "ours: it arrives')
    )
    run(tmp_path / "runs")
    assert lines(summary(tmp_path), "| [fig1]")[0].endswith("| quick (3) |  |  |  |  |  |  |  | 1/1 | 0/1 |")


# ---- the page of an experiment --------------------------------------------------------------------------------------


def test_all_but_the_first_form_is_folded(tmp_path: Path) -> None:
    run(tmp_path / "runs")
    run(tmp_path / "runs", form="full", only=BOTH)
    run(tmp_path / "runs", variant="slow", value=swapped)
    text = page(tmp_path)
    folded = [part.partition("</details>")[0] for part in text.split("<details>")[1:]]
    assert [part.split("\n")[1] for part in folded] == [
        "<summary>Quick form: 1 confirmed, 1 not run</summary>",
        "<summary>Another choice, slow, quick form: 1 not confirmed, 1 not run</summary>",
    ]
    assert "**Quick form**" in folded[0]
    assert "**Full form**" in text.partition("<details>")[0]


def test_targets_that_no_algorithm_reaches_in_the_quick_form_are_named_below_it(tmp_path: Path) -> None:
    run(tmp_path / "runs", value=lambda label, seed, t: 1.0)
    assert "Targets that no algorithm reached here: rounds to objective 0.6.\n" in page(tmp_path)
    run(tmp_path / "runs", form="full", value=lambda label, seed, t: 1.0)
    assert "| 1 | 0.25 | > 100 | 7 |" in page(tmp_path)  # the paper's own target is shown in any case


def test_cases_with_fewer_seeds_are_named(tmp_path: Path) -> None:
    run(tmp_path / "runs", form="full")
    run(tmp_path / "runs", form="full", only=("very skewed",), seeds=(0,))
    assert counted(tmp_path) == ["full (1 to 3)", "2", "", "", ""]
    assert "at the paper's scale. Seeds 0, 1, 2, but 0 of very skewed; " in page(tmp_path)


def test_ours_stands_beside_the_papers_numbers(tmp_path: Path) -> None:
    run(tmp_path / "runs")
    text = page(tmp_path)
    assert lines(text, "| case ") == [
        "| case | algorithm | objective, ours | the paper's | rounds to objective 0.6, ours | the paper's |"
    ]
    assert lines(text, "| IID | Ours") == ["| IID | Ours | 0.25 (0.2475 .. 0.2525) | 0.25 | 10 | 7 |"]
    assert lines(text, "| IID | Theirs") == ["| IID | Theirs | 0.5 (0.495 .. 0.505) | 0.5 | 15 (15 .. 20) | > 99 |"]


def test_the_best_of_all_rounds_stands_beside_the_last_one(tmp_path: Path, toy_paper: Path) -> None:
    path = toy_paper / "toy" / "fig1.toml"
    path.write_text(path.read_text().replace('measure = "objective"\ncase', 'best = true\nmeasure = "objective"\ncase'))
    run(tmp_path / "runs", value=lambda label, seed, t: 0.1 if t == 15 else fall(label, seed, t))
    text = page(tmp_path)
    (head,) = lines(text, "| case ")
    assert head.startswith("| case | algorithm | best objective, ours | the paper's | objective |")
    assert lines(text, "| IID | Ours")[0].startswith("| IID | Ours | 0.1 | 0.25 | 0.25 (0.2475 .. 0.2525) |")


def test_each_form_names_the_command_that_makes_it_again(capsys: Any, tmp_path: Path) -> None:
    run(tmp_path / "runs")
    run(tmp_path / "runs", form="full", only=("very skewed",))
    run(tmp_path / "runs", variant="slow", seeds=(0,))
    commands = re.findall(r"Run it again: `proxfed reproduce (.+?)`", page(tmp_path))
    assert commands == [
        "toy/fig1 --full --case 'very skewed'",
        "toy/fig1 --quick",
        "toy/fig1 --quick --variant slow --seeds 1",
    ]
    told = command(capsys, tmp_path, "show", "toy/fig1")[1]
    assert "`proxfed reproduce toy/fig1 --quick` runs the quick form again." in told


def test_the_command_of_a_form_runs_that_form(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "runs")
    run(tmp_path / "runs", form="full", only=("very skewed",))
    run(tmp_path / "runs", variant="slow", seeds=(0,))
    entry = reproduction(kept(tmp_path), "toy/fig1")
    for form in [*entry.forms, *entry.variants]:
        asked: dict[str, Any] = {}

        def instead(what: str, out: Path, asked: dict[str, Any] = asked, **how: Any) -> list[Any]:
            asked |= how
            raise InputError("enough")

        monkeypatch.setattr(reproduce, "select", instead)
        _, *words = shlex.split(entry.command(form))
        assert proxfed(capsys, *words)[0] == 2
        assert (asked["quick"], asked["variant"] or "") == (form.quick, form.variant)
        assert {*asked["cases"]} <= {*form.runs}


def test_a_form_of_which_one_algorithm_is_kept_is_made_again_with_that_one(tmp_path: Path) -> None:
    run(tmp_path / "runs")
    results = kept(tmp_path)
    found = {
        place: replace(one, rows=[row for row in one.rows if row["algorithm"] == "Ours"])
        for place, one in read(results, "toy/fig1").items()
    }
    write(results, "toy/fig1", found)
    assert "`proxfed reproduce toy/fig1 --quick --only Ours`" in experiment_page.page(reproduction(results, "toy/fig1"))


def test_an_experiment_of_which_only_a_variant_was_run_has_a_page(tmp_path: Path) -> None:
    run(tmp_path / "runs", variant="slow")
    text = page(tmp_path)
    assert "Not run; `proxfed reproduce toy/fig1` runs it, where its data are." in text
    assert "<summary>Another choice, slow, quick form: 1 confirmed, 1 not run</summary>" in text


def test_what_is_less_than_the_paper_is_said(tmp_path: Path) -> None:
    run(tmp_path / "runs")
    run(tmp_path / "runs", variant="slow")
    text = page(tmp_path)
    settings = "`rounds = 20` instead of `100`, `algorithms.Ours.eta = 0.5` instead of `1.0`, 1 of the 2 cases"
    how = "Seeds 0, 1, 2; 3 clients with 12 samples in all; 40 s of computing"  # 6 times 20 rounds, 3 a second
    assert f"**Quick form**: {settings}. {how}" in text
    assert "Cases that were not run: very skewed." in text
    assert "**Another choice, `slow`**, in the quick form: `algorithms.Ours.eta = 0.1` instead of `1.0`." in text
    assert text.count("ours is better \\| than theirs") == 2
    assert "the file no longer has" not in text


def test_a_run_with_settings_that_the_file_has_changed_since_is_said_to_be_one(tmp_path: Path, toy_paper: Path) -> None:
    run(tmp_path / "runs")
    path = toy_paper / "toy" / "fig1.toml"
    path.write_text(path.read_text().replace("features = 4", "features = 5"))
    assert "Run with settings that the file no longer has: `data.features = 4`." in page(tmp_path)


def test_the_check_sees_rows_that_no_command_makes_again(capsys: Any, tmp_path: Path, toy_paper: Path) -> None:
    run(tmp_path / "runs")
    write_page(capsys, tmp_path)
    path = toy_paper / "toy" / "fig1.toml"
    path.write_text(path.read_text().replace("features = 4", "features = 5"))
    code, told = check(capsys, tmp_path)
    again = "rows are kept of data.features = 4, and the file now has 5: run it again"
    assert (code, told) == (1, f"toy/fig1 (quick, IID): {again}\n")


def test_settings_that_the_paper_leaves_open_are_listed(tmp_path: Path) -> None:
    assert lines(page(tmp_path), "- `") == [
        "- `data.features = 4`: the paper is silent",
        "- `algorithms.Ours.eta = 1.0`: as theirs",
    ]


def test_open_settings_are_found_under_any_heading() -> None:
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
    assert open_settings(tomllib.loads(text), text) == [
        ("top", "1", "a"),
        ("cases.two words.data.alpha", "[1, 2]", "b # with a sign"),
        ("claims.2.target", "0.5", "c"),
    ]


# ---- files and commands ---------------------------------------------------------------------------------------------


def test_a_page_is_written_for_every_link_with_the_figures_that_have_values(capsys: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run(tmp_path / "runs")
    folder = tmp_path / "docs" / "results"
    (folder / "toy").mkdir(parents=True)
    for old in ("old.svg", "old.md"):
        (folder / "toy" / old).write_text("")
    text = write_page(capsys, tmp_path, "--experiments").read_text()
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {"toy/fig1.md", "toy/fig2.md", "toy/fig1-loss.svg"}
    links = re.findall(r"\]\(([^)#]+)\)", on_page_markdown(text))
    assert links == ["results/toy/fig1.md", "results/toy/fig2.md"]
    shown = (folder / "toy" / "fig1.md").read_text()
    assert "![fig1-loss](fig1-loss.svg)" in shown
    assert "never.svg" not in shown
    assert "[all results](../../results.md)" in shown


def test_without_being_asked_only_the_summary_is_written(capsys: Any, tmp_path: Path) -> None:
    run(tmp_path / "runs")
    assert write_page(capsys, tmp_path).read_text() == summary(tmp_path)
    assert [path.name for path in (tmp_path / "docs").iterdir()] == ["results.md"]


def test_the_check_sees_a_summary_that_is_not_up_to_date(capsys: Any, tmp_path: Path) -> None:
    run(tmp_path / "runs")
    path = write_page(capsys, tmp_path)
    assert check(capsys, tmp_path) == (0, "")
    path.write_text(path.read_text() + "\n")
    code, told = check(capsys, tmp_path)
    assert code == 1
    assert "results.md is not up to date: run `make results`" in told
    path.unlink()
    assert check(capsys, tmp_path)[0] == 1


@pytest.mark.parametrize("place", [Place("quick", "gone", "IID"), Place("quick", "", "gone"), Place("fast", "", "IID")])
def test_the_check_sees_results_of_a_form_or_a_case_that_is_not_there(
    capsys: Any, tmp_path: Path, place: Place
) -> None:
    run(tmp_path / "runs")
    write_page(capsys, tmp_path)
    found = read(tmp_path / "results", "toy/fig1")
    write(tmp_path / "results", "toy/fig1", found | {place: next(iter(found.values()))})
    assert check(capsys, tmp_path) == (1, f"toy/fig1: results are kept of {place}, which its file does not have\n")


def test_a_claim_that_does_not_hold_needs_a_paragraph(capsys: Any, tmp_path: Path) -> None:
    run(tmp_path / "runs", value=swapped)
    write_page(capsys, tmp_path)
    assert "| **not confirmed** | ours is better \\| than theirs |" in page(tmp_path)
    code, told = check(capsys, tmp_path)
    assert code == 1
    assert "toy/fig1 (quick): the claim 'ours is better | than theirs' is not confirmed; " in told
    assert "results/toy/fig1.md must say why" in told
    (tmp_path / "results" / "toy" / "fig1.md").write_text("We had them the other way round.\n")
    assert "\nWe had them the other way round.\n" in page(tmp_path)
    assert check(capsys, tmp_path) == (0, "")


def test_runs_are_kept_by_a_command_that_says_what_it_leaves_out(capsys: Any, tmp_path: Path) -> None:
    run(tmp_path / "runs")
    run(tmp_path / "runs", variant="slow", seeds=(0,))
    RunFolder(tmp_path / "runs" / "toy-fig1" / "quick" / "iid").write_status([])
    code, told, warned = command(capsys, tmp_path, "keep", str(tmp_path / "runs"))
    assert code == 0
    assert told.startswith("kept 1 run of toy/fig1 in ")
    assert "iid is left out: it is not finished" in warned
    assert list(read(tmp_path / "results", "toy/fig1")) == [Place("quick", "slow", "IID")]


def test_what_holds_for_a_paper_is_shown_on_a_terminal(capsys: Any, tmp_path: Path) -> None:
    run(tmp_path / "runs", value=swapped)
    kept(tmp_path)
    code, told, _ = command(capsys, tmp_path, "show", "toy")
    assert code == 0
    assert told.startswith("A. Author, On toys\n")
    assert [line.split() for line in lines(told, "fig1")[:1]] == [["fig1", "2", "0+1", "1"]]
    assert [line.split() for line in lines(told, "all")] == [["all", "3", "0+1", "2"]]
    assert "unknown: nothing varied" in lines(told, "fig1")[1]
    assert "arrives at 0.01" not in told  # which was not run
    code, told, _ = command(capsys, tmp_path, "show")
    assert code == 0
    assert [line.split() for line in lines(told, "toy")] == [["toy", "3", "0+1", "2"]]


def test_what_holds_for_an_experiment_is_shown_with_its_numbers(capsys: Any, tmp_path: Path) -> None:
    run(tmp_path / "runs")
    kept(tmp_path)
    code, told, _ = command(capsys, tmp_path, "show", "toy/fig1")
    assert code == 0
    (line,) = lines(told, "confirmed")
    assert "ours is better | than theirs" in line
    assert "[IID] Ours: 0.25, Theirs: 0.5" in line
    assert "ours arrives at 0.01" in told
    code, told, _ = command(capsys, tmp_path, "show", "toy", "--format", "json")
    table = json.loads(told)
    assert table.keys() == {"toy/fig1", "toy/fig2"}
    assert table["toy/fig1"]["counts"]["main"] == {"confirmed, smaller": 1, "not run": 1}
    assert [claim["status"] for claim in table["toy/fig1"]["claims"]] == ["confirmed", "not run"]


def test_what_cannot_be_shown_is_refused(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    where = ("--results", str(tmp_path / "results"))
    assert "did you mean 'toy'?" in refused(capsys, "results", "show", "tay", *where)
    assert "there is no experiment 'toy/fig3'" in refused(capsys, "results", "show", "toy/fig3", *where)
    for name in (["show", "toy"], ["page"], ["check"]):
        told = refused(capsys, "results", *name, "--results", str(tmp_path / "nowhere"))
        assert "nowhere: run this in a checkout of the repository, or give --results DIR" in told
