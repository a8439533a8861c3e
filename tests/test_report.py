"""The table has the right numbers, and the page is small, whole by itself, and safe whatever a run is called."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from proxfed.data.holdings import Holdings
from proxfed.errors import InputError, RunError
from proxfed.record import RunFolder
from proxfed.report import result_table, rich_table, write_report
from proxfed.report.columns import MEASURES, PROGRESS, show, with_total
from proxfed.report.curves import make_curve, thin
from proxfed.report.holdings import pictures
from proxfed.report.page import Run, render
from proxfed.report.pattern import CELLS, images
from proxfed.report.tables import pairs_html

HOSTILE = "<script>alert('x')</script> & \"co\" </td>"


def row(algorithm="fedavg", seed=0, t=0, **values):
    """A row as RunFolder reads it; every measure can be given or left out."""
    made = {
        "run": "r", "algorithm": algorithm, "seed": seed, "round": t, "gradients": 20 * t, "proxes": 2 * t,
        "bytes_up": 1000 * t, "bytes_down": 3000 * t, "bytes_edge": 0, "bytes_best": 3500 * t, "wall_seconds": 0.01 * t,
        "objective": 1 + 0.9**t, "gap": 0.9**t,
    }  # fmt: skip
    return made | values


def state(algorithm="fedavg", seed=0, status="finished", t=10):
    return {"algorithm": algorithm, "seed": seed, "status": status, "round": t, "message": ""}


def folder(path: Path, rows, status, models=None, blocks=(), config=None, measures=("accuracy",), held=None) -> Path:
    """A real run folder."""
    made = RunFolder(path)
    made.create(config or {"name": path.name, "problem": {"clients": 4}})
    made.start_rows(measures)
    with (path / "rows.csv").open("a", newline="") as f:
        csv.writer(f, lineterminator="\n").writerows([r.get(c) for c in made.columns] for r in rows)
    made.write_status(list(status))
    if held is not None:
        made.write_clients(held)
    if models:
        made.write_models({k: torch.as_tensor(v) for k, v in models.items()}, blocks)
    return path


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def write(tmp_path: Path, *folders: Path) -> str:
    write_report(list(folders), tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


class Elements(HTMLParser):
    """All elements of a page with their attributes, and the texts of its cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, text):
        self.texts.append(text)


# ---- the table ------------------------------------------------------------------------------------------------------


def test_numbers_are_medians_over_the_seeds_at_the_last_round():
    draw = np.random.default_rng(1)
    rows = [
        row(algorithm, seed, t, gap=draw.random(), nonzeros=int(draw.integers(99)), wall_seconds=draw.random())
        for algorithm in ("a", "b")
        for seed in range(4)
        for t in (0, 5, 10)
    ]
    status = [state(algorithm, seed) for algorithm in ("a", "b") for seed in range(4)]
    table = result_table(rows, status, clients=4)
    assert [entry["algorithm"] for entry in table] == ["a", "b"]
    for entry in table:
        last = [r for r in rows if r["algorithm"] == entry["algorithm"] and r["round"] == 10]
        for name in ("gap", "nonzeros", "wall_seconds", "objective", "bytes_up", "bytes_down", "bytes_best"):
            assert entry[name] == statistics.median(r[name] for r in last)
        assert entry["bytes_total"] == 10 * (1000 + 3000)
        assert entry["gradients_per_client"] == 200 / 4
        assert (entry["rounds"], entry["seeds"], entry["status"]) == (10, 4, "finished")
    json.dumps(table, allow_nan=False)


def test_rows_in_any_order_give_the_same_table():
    rows = [row(seed=seed, t=t, gap=1 / (1 + seed + t)) for seed in range(3) for t in range(5)]
    status = [state(seed=seed, t=4) for seed in range(3)]
    assert result_table(rows[::-1], status) == result_table(rows, status)


def test_what_is_missing_or_not_finite_is_none():
    rows = [row(t=1, gap=None, objective=float("nan"), error=float("inf"))]
    (entry,) = result_table(rows, [state(t=1)])
    for name in ("gap", "objective", "error", "accuracy", "consensus"):
        assert entry[name] is None
    assert "gradients_per_client" not in entry
    json.dumps(entry, allow_nan=False)


def test_bytes_total_is_none_where_nothing_was_counted_and_zero_where_nothing_was_sent():
    assert with_total({})["bytes_total"] is None
    assert with_total({"bytes_up": 0, "bytes_edge": None})["bytes_total"] == 0


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([state()], "finished"),
        ([state(status="diverged", t=12)], "diverged in round 12"),
        ([state(status="diverged", t=12), state(seed=1, status="diverged", t=40)], "diverged in rounds 12 to 40"),
        ([state(), state(seed=1, status="diverged", t=7)], "1 of 2 diverged, first in round 7"),
        ([state(), state(seed=1, status="running", t=3)], "running, round 3"),
    ],
)
def test_status_in_words(states, words):
    (entry,) = result_table([row(seed=s["seed"], t=1) for s in states], states)
    assert entry["status"] == words
    assert entry["diverged"] == sum(s["status"] == "diverged" for s in states)


def test_an_algorithm_without_rows_is_listed():
    table = result_table([row("a")], [state("a"), state("b", status="running", t=0)])
    assert [(entry["algorithm"], entry["rounds"]) for entry in table] == [("a", 0), ("b", None)]


def test_targets_say_when_half_of_the_seeds_got_there():
    speeds = {0: 0.5, 1: 0.6, 2: 0.99}
    rows = [row(seed=s, t=t, gap=q**t, accuracy=1 - q**t) for s, q in speeds.items() for t in range(31)]
    status = [state(seed=s, t=30) for s in speeds]
    (entry,) = result_table(rows, status, targets={"gap": [1e-3], "accuracy": [0.9, 0.99], "error": [0.1]})
    second = next(t for t in range(31) if 0.6**t <= 1e-3)
    gap, accuracy, high, error = entry["reached"]
    assert gap == {
        "measure": "gap", "target": 1e-3,
        "rounds": second, "gradients": 20 * second, "bytes_total": 4000 * second, "sim_seconds": None,
    }  # fmt: skip
    assert accuracy["rounds"] == next(t for t in range(31) if 1 - 0.6**t >= 0.9)
    assert high["rounds"] == next(t for t in range(31) if 1 - 0.6**t >= 0.99)
    assert error["rounds"] is None


def test_terminal_table_fits_and_leaves_out_what_is_empty():
    measures = {column.name: 1.234567e-9 for column in MEASURES} | {"recall": 0.5, "auc": 0.7}
    rows = [row(f"a rather long name of an algorithm, variant {i}", t=2000, **measures) for i in range(3)]
    status = [state(r["algorithm"], status="diverged", t=2000) for r in rows]
    for table, there, gone in (
        (result_table(rows, status, clients=4), ["gap", "status", "accuracy"], ["sim"]),
        (result_table([row("a", t=3)], [state("a")]), ["gap", "bytes"], ["accuracy", "consensus", "status", "edges"]),
    ):
        out = io.StringIO()
        Console(file=out, width=100).print(rich_table(table))
        text = out.getvalue()
        assert max(map(len, text.splitlines())) <= 100
        assert "…" not in text
        head = text.splitlines()[0].split()
        assert set(there) <= set(head)
        assert not set(gone) & set(head)


def test_terminal_table_has_a_line_per_algorithm_where_there_is_room():
    names = ["FedAvg", "FedCEF, top-k 10 %, K = 5"[:24], "DEPOSITUM"]
    rows = [row(name, t=150, error=1e-4, stationarity=1e-9, nonzeros=28) for name in names]
    out = io.StringIO()
    Console(file=out, width=100).print(rich_table(result_table(rows, [state(name) for name in names], clients=4)))
    assert len(out.getvalue().splitlines()) == 1 + len(names)


def test_terminal_table_prints_labels_as_they_are():
    out = io.StringIO()
    Console(file=out, width=100).print(rich_table(result_table([row("[red]x[/red]")], [state("[red]x[/red]")])))
    assert "[red]x[/red]" in out.getvalue()


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "bytes", ""), (0, "bytes", "0 B"), (999.9, "bytes", "1 kB"), (10e6, "bytes", "10 MB"),
        (1.5e13, "bytes", "15 TB"), (12345, "count", "12,345"), (2.5e6, "count", "2.5M"), (1e-10, "number", "1.00e-10"),
        (0.0, "number", "0"), (0.12345, "number", "0.1235"), (0.1234567, "fine", "0.123457"),
        (3.21, "seconds", "3.21 s"), (600, "seconds", "10 min"), (9000, "seconds", "2.5 h"),
    ],
)  # fmt: skip
def test_numbers_are_written_short(value, kind, text):
    assert show(value, kind) == text


# ---- curves ---------------------------------------------------------------------------------------------------------


def curve(rows, status, points=400):
    return make_curve("a", [with_total(r) for r in rows], status, PROGRESS, MEASURES, points)


def test_a_curve_is_the_median_and_the_range_at_each_round():
    draw = np.random.default_rng(2)
    rows = [row(seed=s, t=t, gap=draw.random(), wall_seconds=draw.random()) for s in range(5) for t in (0, 3, 9)]
    made = curve(rows, [state(seed=s) for s in range(5)])
    assert made.x["round"] == [0, 3, 9]
    for i, t in enumerate((0, 3, 9)):
        values = [r["gap"] for r in rows if r["round"] == t]
        assert made.middle["gap"][i] == pytest.approx(statistics.median(values), rel=1e-5)
        assert made.low["gap"][i] == pytest.approx(min(values), rel=1e-5)
        assert made.high["gap"][i] == pytest.approx(max(values), rel=1e-5)
        seconds = [r["wall_seconds"] for r in rows if r["round"] == t]
        assert made.x["wall_seconds"][i] == pytest.approx(statistics.median(seconds), rel=1e-5)
    assert made.crosses == []


def test_thinning_keeps_ends_extremes_and_crosses():
    draw = np.random.default_rng(3)
    gap, nonzeros = draw.random(5000), draw.integers(0, 10**6, 5000)
    rows = [row(t=t, gap=float(gap[t]), nonzeros=int(nonzeros[t])) for t in range(5000)]
    rows += [row(seed=1, t=t, gap=float(gap[t]), nonzeros=int(nonzeros[t])) for t in range(1234)]
    made = curve(rows, [state(t=4999), state(seed=1, status="diverged", t=1233)], points=100)
    kept = made.x["round"]
    assert len(kept) < 130
    assert made.recorded == 5000
    assert {0, 4999, 1233, *(int(pick(v)) for v in (gap, nonzeros) for pick in (np.argmin, np.argmax))} <= set(kept)
    assert [kept[i] for i in made.crosses] == [1233]
    assert max(np.diff(kept)) <= 5000 / 99 + 1


def test_short_curves_are_not_thinned():
    assert thin(7, 7, [np.arange(7.0)]).tolist() == list(range(7))


def test_a_line_ends_when_more_than_half_of_its_seeds_have_diverged():
    lengths = {0: 4, 1: 7, 2: 10}
    rows = [row(seed=s, t=t) for s, last in lengths.items() for t in range(last + 1)]
    lost = [state(seed=0, status="diverged", t=4), state(seed=1, status="diverged", t=7)]
    made = curve(rows, [*lost, state(seed=2)])
    assert made.x["round"] == list(range(8))
    assert (made.crosses, made.diverged, made.seeds) == ([7], 2, 3)
    made = curve(rows, [lost[0], state(seed=1, t=7), state(seed=2)])
    assert made.x["round"] == list(range(11))
    assert (made.crosses, made.diverged, made.seeds) == ([4], 1, 3)


# ---- patterns -------------------------------------------------------------------------------------------------------


def test_small_models_are_shown_value_by_value():
    model = np.array([0.0, 1.5, -2.0, 0, 0, 7, 0, 0.25])
    matrix, vector = images(model, [("W", 0, 6, (2, 3)), ("b", 6, 8, (2,))])
    assert (matrix.rows, matrix.cols, matrix.cells) == (2, 3, [0, 1.5, -2, 0, 0, 7])
    assert (vector.rows, vector.cols, vector.cells) == (1, 2, [0, 0.25])
    assert (matrix.nonzeros, vector.nonzeros) == (3, 1)
    assert not matrix.shares


def test_tall_matrices_lie_down():
    (image,) = images(np.arange(6.0), [("W", 0, 6, (3, 2))])
    assert image.transposed
    assert (image.rows, image.cols, image.cells) == (2, 3, [0, 2, 4, 1, 3, 5])


@pytest.mark.parametrize("shape", [(3_000_000,), (1000, 3000), (3, 1_000_000), (64, 32, 5, 5), (100_003,)])
def test_large_models_are_binned_and_no_coordinate_is_lost(shape):
    size = int(np.prod(shape))
    model = (np.random.default_rng(4).random(size) < 0.01).astype(float)
    (image,) = images(model, [("W", 0, size, shape)])
    assert image.shares
    assert CELLS // 4 < sum(c is not None for c in image.cells) <= CELLS
    assert len(image.cells) == image.rows * image.cols
    one = np.zeros(size)
    one[size - 1] = 3.0
    (image,) = images(one, [("W", 0, size, shape)])
    lit = [c for c in image.cells if c]
    assert len(lit) == 1
    assert image.nonzeros == 1


def test_full_cells_have_share_one_also_at_the_border():
    (image,) = images(np.ones(100_003), [("x", 0, 100_003, (100_003,))])
    assert {c for c in image.cells if c is not None} == {1}


# ---- who holds what -------------------------------------------------------------------------------------------------


def holdings(n=5, classes=3, seed=6, names=None) -> Holdings:
    counts = np.random.default_rng(seed).integers(0, 9, (n, classes))
    counts[:, 0] += 1
    return Holdings(counts.sum(axis=1), counts, names or tuple(map(str, range(classes))))


def test_every_client_of_a_few_is_on_the_page(tmp_path):
    held = holdings()
    page = write(tmp_path, folder(tmp_path / "run", [row()], [state()], held=held))
    (picture,) = data_of(page)["holdings"]
    assert picture["ids"] == [0, 1, 2, 3, 4]
    assert picture["counts"] == held.counts.tolist()
    assert picture["sizes"] == held.counts.sum(axis=1).tolist()
    assert picture["strongest"] == (held.counts / held.sizes[:, None]).max()
    assert f"5 clients hold {held.counts.sum()} samples: {held.sizes.min()} to {held.sizes.max()} each" in page
    assert "Who holds what" in Elements(page).texts
    assert "drawn at random" not in page


def test_of_many_clients_some_are_drawn_and_the_page_stays_small(tmp_path):
    held = holdings(1000, 100)
    page = write(tmp_path, folder(tmp_path / "run", [row()], [state()], held=held))
    assert len(page.encode()) < 300_000
    (picture,) = data_of(page)["holdings"]
    ids = picture["ids"]
    assert len(ids) == 200
    assert ids == sorted(set(ids))
    assert picture["counts"] == held.counts[ids].tolist()
    assert "200 of the 1,000 clients are shown" in page
    assert f"1,000 clients hold {held.sizes.sum():,} samples" in page, "the sentence is about all of them"


def test_clients_are_not_drawn_in_step_with_a_pattern():
    """Every tenth client may be alike: neither of the ten kinds may be left out."""
    (picture,) = pictures([("run", holdings(1000, 10))])
    assert len(np.unique(picture.ids % 10)) == 10


def test_all_pictures_together_have_a_bounded_number_of_cells():
    shown = pictures((f"run {k}", holdings(3000, 100, seed=k)) for k in range(10))
    assert len(shown) == 10
    assert sum(picture.holdings.counts[picture.ids].size for picture in shown) <= 20_000
    (wide,) = pictures([("run", holdings(300, 5000))])
    assert len(wide.ids) == 20


def test_folders_that_do_not_say_who_holds_what_have_no_such_section(tmp_path):
    page = write(tmp_path, folder(tmp_path / "run", [row()], [state()]))
    assert data_of(page)["holdings"] == []
    assert "Who holds what" not in Elements(page).texts


def test_runs_on_the_same_clients_share_a_picture(tmp_path):
    same = [folder(tmp_path / name, [row(name)], [state(name)], held=holdings()) for name in ("one", "two")]
    other = folder(tmp_path / "three", [row("three")], [state("three")], held=holdings(seed=7))
    page = write(tmp_path, *same, other)
    assert len(data_of(page)["holdings"]) == 2
    texts = Elements(page).texts
    assert {"one, two:", "three:"} <= set(texts)


def test_labels_that_are_numbers_leave_the_sizes(tmp_path):
    page = write(tmp_path, folder(tmp_path / "run", [row()], [state()], held=Holdings(np.array([4, 4]))))
    (picture,) = data_of(page)["holdings"]
    assert (picture["counts"], picture["classes"], picture["sizes"]) == (None, [], [4, 4])
    assert "2 clients hold 8 samples: 4 each." in page


def test_the_number_of_clients_is_the_recorded_one(tmp_path):
    made = folder(tmp_path / "run", [row(t=5)], [state(t=5)], held=holdings(20))
    values = re.findall(r'data-value="([^"]+)"', write(tmp_path, made))
    assert repr(20 * 5 / 20) in values  # gradients per client; the configuration says 4 clients
    assert "over 20 clients" in (tmp_path / "report.html").read_text()


def test_names_of_classes_stay_text(tmp_path):
    page = write(tmp_path, folder(tmp_path / "run", [row()], [state()], held=holdings(names=(HOSTILE, "b", "c"))))
    assert [tag for tag, _ in Elements(page).elements].count("script") == 2
    assert data_of(page)["holdings"][0]["classes"][0] == HOSTILE


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"sizes": [3]}',
        '{"sizes": [3], "classes": ["a"], "counts": [[2]]}',
        '{"sizes": [3], "classes": ["a", "b"], "counts": [[3]]}',
        '{"sizes": [3], "classes": ["a"], "counts": [[3], [1, 2]]}',
        '{"sizes": [], "classes": [], "counts": null}',
    ],
)
def test_a_damaged_record_of_the_clients_is_named(tmp_path, text):
    made = folder(tmp_path / "run", [row()], [state()])
    (made / "clients.json").write_text(text)
    with pytest.raises(InputError, match=r"clients\.json is damaged"):
        write_report([made], tmp_path / "report.html")


# ---- the page -------------------------------------------------------------------------------------------------------


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
    labels = {f"algorithm {a}": f"algorithm {a}" for a in range(10)}
    page = render([Run("large", {}, {}, status, rows, models, [("x", 0, 100_000, (100_000,))], labels)])
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
    page = write(tmp_path, folder(tmp_path / "run", rows, status))
    values = re.findall(r'data-value="([^"]+)"', page)
    assert values.count(repr(2 * 0.5**5)) == 2
    assert values.count(repr(20 * 5 / 4)) == 2  # gradients per client


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
    with pytest.raises(InputError, match="at least one run folder"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(InputError, match="not a readable run folder"):
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")
    made = folder(tmp_path / "run", [row()], [state()])
    with pytest.raises(RunError, match="cannot write the report"):
        write_report([made], tmp_path / "missing" / "report.html")


def test_lists_of_tables_have_a_line_for_each() -> None:
    devices = [{"seconds_per_step": 0.5, "clients": [1, 2]}, {"seconds_per_step": {"name": "normal", "mean": 2.0}}]
    page = pairs_html({"time": {"profile": "lan", "devices": devices}})
    assert '<th scope="row">time.devices[0]</th><td class="text">seconds_per_step = 0.5, clients = [1, 2]</td>' in page
    assert '<th scope="row">time.devices[1]</th><td class="text">seconds_per_step = normal (mean = 2.0)</td>' in page
    assert '<th scope="row">time.profile</th><td class="text">lan</td>' in page
