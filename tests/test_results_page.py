"""What is kept of a reproduction says the same as the run, and the page says what is kept."""

from __future__ import annotations

import gzip
import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import proxfed.config
import proxfed.reproduce
from proxfed.cases import read_cases, slug
from proxfed.data.holdings import Holdings
from proxfed.errors import InputError
from proxfed.record import RunFolder
from proxfed.reproduce import draw, select, verdicts

TOOLS = Path(__file__).parents[1] / "tools"

FIG1 = """
name = "toy-fig1"
description = "A toy."
rounds = 100
seeds = [0, 1, 2]

[paper]
title = "A. Author, On toys"
figure = "Fig. 1"
quick_cases = ["IID"]

[paper.quick]
rounds = 20
"algorithms.Ours.eta" = 0.5

[paper.variants.slow]
"algorithms.Ours.eta" = 0.1

[[paper.figures]]
name = "loss"
y = "objective"
log_y = true

[[paper.figures]]
name = "never"
y = "accuracy"

[cases.IID]
"data.clients" = 3

[cases."very skewed"]
"data.clients" = 6

[[claims]]
says = "ours is better | than theirs"
measure = "objective"
order = ["Ours", "Theirs"]

[[claims]]
says = "ours arrives at 0.01"
label = "Ours"
measure = "objective"
below = 0.01
form = "full"

[[reported]]
measure = "objective"
case = "IID"
values = { Ours = 0.25, Theirs = 0.5 }

[[reported]]
measure = "objective"
target = 0.6
values = { Ours = 7, Theirs = "> 99" }

[data]
name = "synthetic_binary"
features = 4           # ours: the paper is silent

[problem]
name = "logistic"

[[algorithms]]
name = "fedavg"
label = "Theirs"
eta = 1.0

[[algorithms]]
name = "fedavg"
label = "Ours"
eta = 1.0              # ours: as theirs
"""

FIG2 = """
name = "toy-fig2"
rounds = 5
[paper]
title = "A. Author, On toys"
figure = "Table 2"
[[claims]]
says = "nobody has looked"
label = "Ours"
measure = "objective"
above = 0
[data]
name = "synthetic_binary"
[problem]
name = "logistic"
[[algorithms]]
name = "fedavg"
label = "Ours"
"""


@pytest.fixture(autouse=True)
def shipped(tmp_path, monkeypatch):
    """Two experiments of one paper, instead of those that come with the package."""
    found = {}
    for name, text in (("toy/fig1", FIG1), ("toy/fig2", FIG2)):
        path = tmp_path / "experiments" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        found[name] = path
    for module in (proxfed.config, proxfed.reproduce):
        monkeypatch.setattr(module, "shipped", lambda: found)


@pytest.fixture
def tools(monkeypatch, shipped):
    """The two scripts, which see these experiments."""
    monkeypatch.syspath_prepend(str(TOOLS))
    import keep_results
    import make_results

    yield keep_results, make_results
    for name in ("keep_results", "make_results", "kept"):
        sys.modules.pop(name, None)


def fall(label: str, seed: int, t: int) -> float:
    """What the made-up runs find: ours is at 1/4 after 20 rounds, theirs at 1/2, and seed 1 is in the middle."""
    return {"Ours": 0.25, "Theirs": 0.5}[label] ** (t / 20) * (1 + (seed - 1) / 100)


def swapped(label: str, seed: int, t: int) -> float:
    """Theirs is the better one."""
    return fall("Ours" if label == "Theirs" else "Theirs", seed, t)


def run(out: Path, form="quick", variant=None, only=("IID",), value=fall, seeds=(0, 1, 2)) -> None:
    """The folders that a reproduction of toy/fig1 would leave."""
    cases = read_cases("toy/fig1", quick=form == "quick", variant=variant, only=only)
    for case, experiment in cases.items():
        called = form + (f"+{variant}" if variant else "")
        folder = RunFolder(out / "toy-fig1" / called / slug(case))
        config = experiment.model_dump(exclude_none=True) | {"seeds": list(seeds)}
        folder.create(config)
        folder.start_rows(["accuracy"])
        folder.write_clients(Holdings(np.array([5, 5, 2]), np.array([[5, 0], [5, 0], [0, 2]]), ("-1", "+1")))
        for label in ("Theirs", "Ours"):
            for seed in seeds:
                for t in range(0, experiment.rounds + 1, 5):
                    numbers = {"gradients": 3 * t, "bytes_up": 123_456_789 * t, "wall_seconds": t / 3}
                    folder.append({"run": "toy", "algorithm": label, "seed": seed, "round": t, **numbers,
                                   "objective": value(label, seed, t)})  # fmt: skip
        folder.write_status([
            {"algorithm": a, "seed": s, "status": "finished", "round": experiment.rounds, "message": ""}
            for a in ("Theirs", "Ours") for s in seeds
        ])  # fmt: skip


# ---- what is kept ---------------------------------------------------------------------------------------------------


def test_what_is_kept_reads_like_the_run_to_six_digits(tools, tmp_path):
    run(tmp_path / "runs")
    (kept,) = tools[0].keep(tmp_path / "runs", tmp_path / "results")
    assert kept == tmp_path / "results" / "toy-fig1" / "quick" / "iid"
    before, after = RunFolder(tmp_path / "runs" / "toy-fig1" / "quick" / "iid"), RunFolder(kept)
    assert (after.config(), after.versions(), after.status()) == (before.config(), before.versions(), before.status())
    assert after.clients().sizes.tolist() == [5, 5, 2]
    assert len(after.rows()) == len(before.rows())
    for a, b in zip(after.rows(), before.rows(), strict=True):
        filled = {name: value for name, value in b.items() if value is not None}
        assert a.keys() == filled.keys()
        for name, value in filled.items():
            assert a[name] == (value if isinstance(value, str) else pytest.approx(value, rel=5e-6)), name
            assert type(a[name]) is type(value)
        assert (a["seed"], a["round"]) == (b["seed"], b["round"])


def test_claims_are_judged_the_same_on_what_is_kept(tools, tmp_path):
    run(tmp_path / "runs")
    tools[0].keep(tmp_path / "runs", tmp_path / "results")
    found = [
        [(v.status, v.found) for v in verdicts(select("toy/fig1", tmp_path / where, quick=True)[0], True)]
        for where in ("runs", "results")
    ]
    assert found[0] == found[1]
    assert found[0][0] == ("confirmed", "holds in 1 of 1 cases, 1 more not run; [IID] Ours: 0.25, Theirs: 0.5")


def test_keeping_twice_changes_nothing_and_is_small(tools, tmp_path):
    run(tmp_path / "runs")
    (kept,) = tools[0].keep(tmp_path / "runs", tmp_path / "results")
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    tools[0].keep(tmp_path / "runs", tmp_path / "results")
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert before.keys() == {"config.toml", "rows.csv.gz", "status.json", "versions.json", "clients.json"}
    assert before["rows.csv.gz"][4:8] == bytes(4)  # no time inside
    header, *rest = gzip.decompress(before["rows.csv.gz"]).decode().splitlines()
    assert "accuracy" not in header.split(",")
    assert max(map(len, rest)) < 80


def test_seeds_that_were_run_later_are_added_to_those_that_are_kept(tools, tmp_path):
    for where, seeds in {"first": (1,), "later": (0, 2), "all": (0, 1, 2)}.items():
        run(tmp_path / where, seeds=seeds)
        tools[0].keep(tmp_path / where, tmp_path / ("whole" if where == "all" else "parts"))
    parts, whole = (RunFolder(tmp_path / name / "toy-fig1" / "quick" / "iid") for name in ("parts", "whole"))
    assert parts.config() == whole.config()
    assert parts.finished()
    for entries in (RunFolder.status, RunFolder.rows):
        assert sorted(entries(parts), key=str) == sorted(entries(whole), key=str)
    run(tmp_path / "again", seeds=(2,), value=swapped)
    again = RunFolder(tmp_path / "again" / "toy-fig1" / "quick" / "iid")
    again.write_config(again.config() | {"description": "In other words."})
    tools[0].keep(tmp_path / "again", tmp_path / "parts")
    new = [row["seed"] for row in parts.rows() if row not in whole.rows()]
    assert set(new) == {2}
    assert len(parts.rows()) == len(whole.rows())


def test_seeds_with_other_settings_or_versions_are_not_mixed(tools, tmp_path):
    run(tmp_path / "first", seeds=(0, 1))
    run(tmp_path / "later", seeds=(2,))
    later = RunFolder(tmp_path / "later" / "toy-fig1" / "quick" / "iid")
    for name, changed in [("config", later.config() | {"rounds": 19}), ("versions", later.versions() | {"torch": "9"})]:
        text = json.dumps(changed) if name == "versions" else tomli_w.dumps(changed)
        file = next(later.path.glob(f"{name}.*"))
        before = file.read_text()
        file.write_text(text)
        tools[0].keep(tmp_path / "first", tmp_path / "results")
        (kept,) = tools[0].keep(tmp_path / "later", tmp_path / "results")
        assert {row["seed"] for row in RunFolder(kept).rows()} == {2}
        assert RunFolder(kept).config()["seeds"] == [2]
        file.write_text(before)


@pytest.mark.parametrize("status", ["running", "stopped", None])
def test_an_unfinished_run_is_left_out_and_said(tools, tmp_path, capsys, status):
    run(tmp_path / "runs", only=["IID", "very skewed"])
    folder = RunFolder(tmp_path / "runs" / "toy-fig1" / "quick" / "iid")
    last = [] if status is None else [{**folder.status()[-1], "status": status}]
    folder.write_status([*folder.status()[:-1], *last])
    assert [path.name for path in tools[0].keep(tmp_path / "runs", tmp_path / "results")] == ["very-skewed"]
    assert "iid is not finished" in capsys.readouterr().err


def test_rows_that_are_damaged_are_said_to_be(tools, tmp_path):
    run(tmp_path / "runs")
    (kept,) = tools[0].keep(tmp_path / "runs", tmp_path / "results")
    whole = (kept / "rows.csv.gz").read_bytes()
    for broken in (whole[:-9], b"no gzip at all", whole[:20] + b"\0\0\0" + whole[23:]):
        (kept / "rows.csv.gz").write_bytes(broken)
        with pytest.raises(InputError, match=r"rows\.csv\.gz is damaged"):
            RunFolder(kept).rows()
    with pytest.raises(InputError, match="no run folder"):
        tools[0].keep(tmp_path / "empty", tmp_path / "results")


# ---- the page -------------------------------------------------------------------------------------------------------


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
    assert "Not run; `proxfed reproduce toy/fig2` does it." in page
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
    assert (
        f"**Quick form**: {settings}. Seeds 0, 1, 2; 40 s of computing" in page
    )  # 6 runs of 20 rounds, 3 rounds a second
    assert "Cases that were not run: very skewed." in page
    assert "**Another choice, `slow`**, in the quick form: `algorithms.Ours.eta = 0.1` instead of `1.0`." in page
    assert page.count("ours is better \\| than theirs") == 2
    assert "Not as the file has it now" not in page


def test_a_run_with_other_settings_is_said_to_be_one(tools, tmp_path, shipped):
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
    assert "toy-fig1/quick+gone is not of a form" in capsys.readouterr().err


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
    monkeypatch.setattr(proxfed.reproduce, "available", lambda: False)
    assert draw(part) == []
    assert [v.status for v in verdicts(part, True)] == ["confirmed", "not run"]
