"""The report page: complete in itself, safe, and true to the result."""

from __future__ import annotations

import base64
import hashlib
import re

import numpy as np
import pytest
import torch

from proxfed import __version__
from proxfed.errors import InputError, RunError
from proxfed.harness.results import Models, Results
from proxfed.report.client_stats import ClientStats
from proxfed.report.columns import with_total
from proxfed.report.html_tables import pairs_html
from proxfed.report.page import render, write_report
from proxfed.types import Block

from support.run_folders import HOSTILE, Elements, data_of, folder, row, state, write


def test_page_is_small_for_a_large_experiment():
    draw = np.random.default_rng(5)
    names = ["gap", "error", "stationarity", "consensus", "objective", "accuracy", "nonzeros"]
    values = draw.random((10, 10, 2000, len(names))).tolist()
    start = with_total(row())
    rows = [
        {**start, "algorithm": f"algorithm {a}", "seed": s, "round": t, "gradients": 20 * t, "bytes_total": 4001 * t}
        | dict(zip(names, values[a][s][t], strict=True))
        for a in range(10)
        for s in range(10)
        for t in range(2000)
    ]
    status = [state(f"algorithm {a}", s, t=1999) for a in range(10) for s in range(10)]
    models = {f"algorithm {a}/0": draw.normal(size=100_000) for a in range(10)}
    kept = Models(lambda: ({k: torch.from_numpy(x) for k, x in models.items()}, [Block("x", 0, 100_000, (100_000,))]))
    page = render([Results(rows, status, models=kept)])
    assert len(page.encode()) < 2_000_000
    assert "of 2,000 for the longest curve" in page
    for made in data_of(page)["curves"]:
        assert (made["x"]["round"][0], made["x"]["round"][-1]) == (0, 1999)
        assert len(made["x"]["round"]) >= 100


def test_page_loads_nothing(tmp_path):
    config = {"name": "n", "description": "see https://example.org/paper", "problem": {"clients": 4}}
    models = {"fedavg/0": np.ones(3)}
    page = write(tmp_path, folder(tmp_path / "run", [row(t=t) for t in range(5)], [state()], models, config=config))
    elements = Elements(page).elements
    for tag, attributes in elements:
        assert not {"src", "srcset", "action", "data", "background", "poster", "style"} & set(attributes), tag
        assert attributes.get("href", "data:,").startswith("data:")
        assert not [name for name in attributes if name.startswith("on")]
    assert not {"img", "iframe", "object", "embed", "base"} & {tag for tag, _ in elements}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon", page)
    policy = next(a["content"] for tag, a in elements if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "<noscript>" in page


def test_the_policy_names_the_script_that_is_in_the_page(tmp_path):
    page = write(tmp_path, folder(tmp_path / "run", [row()], [state()]))
    script = re.search(r"<script>(.*)</script>", page, re.S)[1]
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in page


def test_hostile_names_stay_text(tmp_path):
    config = {
        "name": HOSTILE, "description": HOSTILE, "problem": {"clients": 4, HOSTILE: HOSTILE},
        "algorithms": [{"label": HOSTILE, "name": "x", HOSTILE: 1.0}],
    }  # fmt: skip
    rows = [row(HOSTILE, t=t, run=HOSTILE) for t in range(3)]
    status = [{**state(HOSTILE, status="diverged"), "message": HOSTILE}]
    page = write(
        tmp_path, folder(tmp_path / "run", rows, status, {f"{HOSTILE}/0": np.ones(2)}, [(HOSTILE, 0, 2, (2,))], config)
    )
    parsed = Elements(page)
    assert [tag for tag, _ in parsed.elements].count("script") == 2
    assert parsed.texts.count(HOSTILE) >= 4
    made = data_of(page)
    assert made["curves"][0]["label"] == made["models"][0]["label"] == made["models"][0]["blocks"][0]["name"] == HOSTILE


def test_table_on_the_page_has_the_numbers_of_the_result(tmp_path):
    rows = [row(a, s, t, gap=(s + 1) * 0.5**t) for a in ("a", "b") for s in range(3) for t in range(6)]
    status = [state(a, s, t=5) for a in ("a", "b") for s in range(3)]
    page = write(tmp_path, folder(tmp_path / "run", rows, status, held=ClientStats(np.array([5, 5, 5, 5]))))
    values = re.findall(r'data-value="([^"]+)"', page)
    assert values.count(repr(2 * 0.5**5)) == 2
    assert values.count(repr(20 * 5 / 4)) == 2  # gradients per client


def test_the_page_offers_its_table_as_latex_and_csv_and_says_how_it_was_made(tmp_path):
    rows = [row(a, s, t, gap=(s + 1) * 0.5**t) for a in ("a & b", "b") for s in range(2) for t in range(6)]
    run = Results.read(folder(tmp_path / "run", rows, [state(a, s, t=5) for a in ("a & b", "b") for s in range(2)]))
    page = run.report(tmp_path / "page.html", "proxfed run '<x>'").read_text()
    (table,) = data_of(page)["tables"]
    assert table["latex"] == run.to_latex() + "\n"
    assert table["csv"] == run.to_csv()
    footer = re.search("<footer>(.*)</footer>", page)[1]
    assert "<code>proxfed run &#x27;&lt;x&gt;&#x27;</code>" in footer
    assert re.search(rf"Page written \d{{4}}-\d\d-\d\d \d\d:\d\d UTC with proxfed {__version__}", footer)


def test_the_columns_that_matter_come_first(tmp_path):
    """After the name what was reached and its bytes, for a phone; the status only if something is not finished."""
    rows = [row(a, t=t) for a in ("a", "b") for t in range(3)]
    heads = re.compile(r'<th scope="col"[^>]*><button type="button">([^<]*)</button>')
    done = write(tmp_path, folder(tmp_path / "done", rows, [state("a", t=2), state("b", t=2)]))
    assert heads.findall(done)[:4] == ["algorithm", "gap", "bytes, total", "rounds"]
    lost = write(tmp_path, folder(tmp_path / "lost", rows, [state("a", t=2), state("b", t=2, status="diverged")]))
    assert heads.findall(lost)[:2] == ["algorithm", "status"]


def test_missing_columns_are_not_offered(tmp_path):
    rows = [row(t=t, objective=None, gap=None, recall=0.1 * t) for t in range(4)]
    made = data_of(write(tmp_path, folder(tmp_path / "run", rows, [state()], measures=["recall"])))
    assert [column["name"] for column in made["measures"]] == ["recall"]
    names = [column["name"] for column in made["progress"]]
    assert "bytes_edge" not in names  # all zero
    assert "sim_seconds" not in names
    assert {"round", "gradients", "bytes_total", "bytes_up", "wall_seconds"} <= set(names)


def test_bytes_that_only_repeat_the_total_are_not_offered(tmp_path):
    rows = [row(t=t, bytes_up=0, bytes_down=0, bytes_edge=9 * t, bytes_best=9 * t, sim_seconds=t) for t in range(4)]
    made = data_of(write(tmp_path, folder(tmp_path / "run", rows, [state()], measures=["sim_seconds"])))
    names = [column["name"] for column in made["progress"]]
    assert [name for name in names if name.startswith("bytes")] == ["bytes_total"]
    assert "sim_seconds" in names


def test_diverged_runs_are_marked(tmp_path):
    rows = [row("good", t=t) for t in range(10)] + [row("bad", t=t, gap=10.0**t) for t in range(4)]
    rows.append(row("bad", t=4, gap=float("nan"), objective=float("inf")))
    models = {"good/0": np.ones(3), "bad/0": np.array([np.nan, np.inf, 1])}
    status = [state("good", t=9), state("bad", status="diverged", t=4)]
    page = write(tmp_path, folder(tmp_path / "run", rows, status, models))
    made = data_of(page)
    assert [c["crosses"] for c in made["curves"]] == [[], [4]]
    assert [m["finite"] for m in made["models"]] == [True, False]
    assert '<td class="bad">diverged in round 4</td>' in page


def test_a_single_row_and_no_row_at_all(tmp_path):
    made = data_of(write(tmp_path, folder(tmp_path / "one", [row()], [state(status="running", t=0)])))
    assert made["curves"][0]["middle"]["gap"] == [1]
    made = data_of(write(tmp_path, folder(tmp_path / "none", [], [state(status="running", t=0)])))
    assert made["curves"] == []


def test_the_page_says_how_many_seeds_have_finished(tmp_path):
    """The status names only those that have begun."""
    page = write(tmp_path, folder(tmp_path / "run", [row()], [state()], config={"name": "n", "seeds": [0, 1, 2]}))
    assert '<td class="text">1 of 3 seeds finished</td>' in page


def test_two_folders_in_one_report(tmp_path):
    def run(name, algorithm, t):
        return folder(tmp_path / name, [row(algorithm, t=t)], [state(algorithm, t=t)], {f"{algorithm}/0": np.ones(2)})

    made = data_of(write(tmp_path, run("one", "a", 3), run("two", "b", 4)))
    assert [c["label"] for c in made["curves"]] == ["a", "b"]
    made = data_of(write(tmp_path, run("three", "a", 3), run("four", "a", 4)))
    assert [(c["label"], c["x"]["round"]) for c in made["curves"]] == [("three: a", [3]), ("four: a", [4])]
    assert [m["label"] for m in made["models"]] == ["three: a", "four: a"]
    assert len({c["colour"] for c in made["curves"]}) == 2
    again = [tmp_path / "three", tmp_path / "three"]
    assert len({c["label"] for c in data_of(write(tmp_path, *again))["curves"]}) == 2


def test_the_first_seed_is_shown_and_labels_may_have_slashes(tmp_path):
    models = {"a/b/7": np.zeros(3), "a/b/3": np.array([1.0, 0, 0])}
    rows, status = [row("a/b", seed=s) for s in (7, 3)], [state("a/b", s) for s in (7, 3)]
    (model,) = data_of(write(tmp_path, folder(tmp_path / "run", rows, status, models)))["models"]
    assert (model["seed"], model["nonzeros"], model["label"]) == (3, 1, "a/b")


def test_bad_requests_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(InputError, match="at least one run"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(InputError, match="not a readable run folder"):
        Results.read(tmp_path / "nowhere")
    made = folder(tmp_path / "run", [row()], [state()])
    with pytest.raises(RunError, match="cannot write the report"):
        Results.read(made).report(tmp_path / "missing" / "report.html")


def test_lists_of_tables_have_a_line_for_each() -> None:
    devices = [{"seconds_per_step": 0.5, "clients": [1, 2]}, {"seconds_per_step": {"name": "normal", "mean": 2.0}}]
    page = pairs_html({"time": {"profile": "lan", "devices": devices}})
    assert '<th scope="row">time.devices[0]</th><td class="text">seconds_per_step = 0.5, clients = [1, 2]</td>' in page
    assert '<th scope="row">time.devices[1]</th><td class="text">seconds_per_step = normal (mean = 2.0)</td>' in page
    assert '<th scope="row">time.profile</th><td class="text">lan</td>' in page


def test_settings_that_are_empty_are_left_out() -> None:
    page = pairs_html({"case": "", "claims": [], "time": {"devices": []}, "rounds": 0, "reference": False})
    assert page.count("<tr>") == 2
    assert '<th scope="row">rounds</th><td class="text">0</td>' in page
    assert '<th scope="row">reference</th><td class="text">false</td>' in page
