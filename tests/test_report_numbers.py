"""What the report shows: the table, the curves and the patterns, as numbers."""

from __future__ import annotations

import csv
import io
import json
import statistics

import numpy as np
import pytest
from rich.console import Console

from proxfed.errors import InputError
from proxfed.harness.results import Results
from proxfed.report.columns import KNOWN, MEASURES, PROGRESS, show, with_total
from proxfed.report.curves import make_curve, thin
from proxfed.report.sparsity import CELLS, images
from proxfed.report.summary import missed, result_table, rich_table, with_spread

from support.run_folders import row, state

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
    table = Results(rows, status, 4).table()
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
    assert Results(rows[::-1], status).table() == Results(rows, status).table()


def test_what_is_missing_or_not_finite_is_none():
    rows = [row(t=1, gap=None, objective=float("nan"), error=float("inf"))]
    (entry,) = Results(rows, [state(t=1)]).table()
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
        ([state(), state(seed=1, status="stopped", t=5)], "stopped, round 5"),
    ],
)
def test_status_in_words(states, words):
    (entry,) = Results([row(seed=s["seed"], t=1) for s in states], states).table()
    assert entry["status"] == words
    assert entry["diverged"] == sum(s["status"] == "diverged" for s in states)


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([state()], "1 of 3 seeds finished"),
        ([state(), state(seed=1), state(seed=2)], "finished"),
        ([state(status="diverged", t=12)], "1 of 3 diverged, first in round 12"),
        ([state(), state(seed=1, status="running", t=0)], "running, round 5"),
        ([state(), state(seed=1, status="stopped", t=7)], "stopped, round 7"),
    ],
)
def test_seeds_that_have_not_begun_and_rows_since_the_status_was_written(states, words):
    """It is written when a seed begins and ends, and here there is a row every five rounds."""
    rows = [row(seed=s["seed"], t=t) for s in states for t in (0, 5)]
    (entry,) = Results(rows, states, None, [0, 1, 2]).table()
    assert entry["status"] == words


def test_an_algorithm_without_rows_is_listed():
    table = Results([row("a")], [state("a"), state("b", status="running", t=0)]).table()
    assert [(entry["algorithm"], entry["rounds"]) for entry in table] == [("a", 0), ("b", None)]


def test_targets_say_when_half_of_the_seeds_got_there():
    speeds = {0: 0.5, 1: 0.6, 2: 0.99}
    rows = [row(seed=s, t=t, gap=q**t, accuracy=1 - q**t) for s, q in speeds.items() for t in range(31)]
    status = [state(seed=s, t=30) for s in speeds]
    (entry,) = result_table(Results(rows, status), targets={"gap": [1e-3], "accuracy": [0.9, 0.99], "error": [0.1]})
    second = next(t for t in range(31) if 0.6**t <= 1e-3)
    gap, accuracy, high, error = entry["reached"]
    assert gap == {
        "measure": "gap", "target": 1e-3, "measured": True, "nearest": 0.6**30,
        "rounds": second, "gradients": 20 * second, "bytes_total": 4000 * second, "sim_seconds": None,
    }  # fmt: skip
    assert accuracy["rounds"] == next(t for t in range(31) if 1 - 0.6**t >= 0.9)
    assert high["rounds"] == next(t for t in range(31) if 1 - 0.6**t >= 0.99)
    assert error["rounds"] is None
    assert not error["measured"]
    (goal,) = result_table(Results(rows, status), targets={"gap": [1e-12]})[0]["reached"]
    assert missed(goal) == f"Did not reach ({0.6**30:.2e})"


def test_several_seeds_show_their_spread():
    gaps = {0: 0.25, 1: 0.5, 2: 1.0}
    rows = [row(seed=s, t=1, gap=gap, objective=2.0) for s, gap in gaps.items()]
    results = Results(rows, [state(seed=s, t=1) for s in gaps], 4, [0, 1, 2])
    (entry,) = results.table()
    assert entry["spread"]["gap"] == pytest.approx({"min": 0.25, "max": 1.0, "mean": 7 / 12, "sd": 0.3818813079129867})
    assert "objective" not in entry["spread"]
    assert with_spread(entry, KNOWN["gap"]) == "0.5 [0.25, 1]"
    assert with_spread(entry, KNOWN["gap"], "mean") == "0.5833 ± 0.3819"
    assert with_spread(entry, KNOWN["objective"]) == "2"
    assert "0.5 [0.25, 1]" in str(results)
    assert "0.5 [0.25, 1]" in results._repr_html_()
    assert r"0.5833 $\pm$ 0.3819" in results.to_latex(["gap"], "mean")
    head, line = csv.reader(results.to_csv().splitlines())
    found = dict(zip(head, line, strict=True))
    assert (found["gap"], found["gap min"], found["gap max"]) == ("0.5", "0.25", "1.0")
    with pytest.raises(InputError, match=r"columns: there is no column 'gp'; did you mean 'gap'\?"):
        results.to_latex(["gp"])
    with pytest.raises(InputError, match=r"stat = 'mode' is not one of 'median', 'mean'"):
        results.to_latex(stat="mode")


def test_latex_has_the_best_in_bold_but_nothing_that_was_spent():
    rows = [row("a", t=1, gap=0.5), row("b", t=1, gap=0.25)]
    text = Results(rows, [state("a", t=1), state("b", t=1)]).to_latex(["rounds", "gap", "bytes_total"], caption="5 %")
    assert text.count(r"\textbf") == 1
    assert r"\textbf{0.25}" in text
    assert text.startswith("\\begin{table}")
    assert r"\caption{5 \%}" in text


def test_what_one_client_sends_and_receives():
    """Of a star what goes up and down; over an edge each byte is sent by one client and received by another."""
    (star,) = Results([row(bytes_up=100, bytes_down=60, bytes_edge=0)], [state()], 4).table()
    assert (star["sent_per_client"], star["received_per_client"]) == (25, 15)
    (graph,) = Results([row(bytes_up=0, bytes_down=0, bytes_edge=80)], [state()], 4).table()
    assert (graph["sent_per_client"], graph["received_per_client"]) == (20, 20)


def test_terminal_table_fits_and_leaves_out_what_is_empty():
    measures = {column.name: 1.234567e-9 for column in MEASURES} | {"recall": 0.5, "auc": 0.7}
    rows = [row(f"a rather long name of an algorithm, variant {i}", t=2000, **measures) for i in range(3)]
    status = [state(r["algorithm"], status="diverged", t=2000) for r in rows]
    for table, there, gone in (
        (Results(rows, status, 4).table(), ["gap", "status", "accuracy"], ["sim"]),
        (
            Results([row("a", t=3)], [state("a")]).table(),
            ["gap", "bytes"],
            ["accuracy", "consensus", "status", "edges"],
        ),
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
    Console(file=out, width=100).print(rich_table(Results(rows, [state(name) for name in names], 4).table()))
    assert len(out.getvalue().splitlines()) == 1 + len(names)


def test_terminal_table_prints_labels_as_they_are():
    out = io.StringIO()
    Console(file=out, width=100).print(rich_table(Results([row("[red]x[/red]")], [state("[red]x[/red]")]).table()))
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
