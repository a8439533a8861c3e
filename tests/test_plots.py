"""A figure shows the medians over the seeds in the paper's axes, and the same rows give the same files."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import pytest

from proxfed.errors import InputError
from proxfed.harness.results import Results
from proxfed.papers.paper_schema import Figure
from proxfed.report import plots as figures
from proxfed.report.page import write_report
from proxfed.report.plots import COLOURS, MARKERS, Line, axis_words, make_panels, write_figures
from proxfed.report.targets import NEVER

ROUNDS = (0, 10, 20, 30)
LOOKS = {label: {"color": colour} for label, colour in zip("AB", COLOURS, strict=False)}


def row(algorithm="A", seed=0, t=0, **values):
    made = {
        "run": "r", "algorithm": algorithm, "seed": seed, "round": t, "gradients": 60 * t, "bytes_up": 2_000_000 * t,
        "bytes_down": 1_000_000 * t, "bytes_edge": 0, "sim_seconds": 0.5 * t, "error": 0.9**t * (1 + seed),
    }  # fmt: skip
    return made | values


def results(algorithms=("A", "B"), seeds=(0, 1, 4), clients=6, **values) -> Results:
    rows = [row(a, s, t, **values) for a in algorithms for s in seeds for t in ROUNDS]
    status = [{"algorithm": a, "seed": s, "status": "finished", "round": 30} for a in algorithms for s in seeds]
    return Results(rows, status, clients)


def only_line(figure: Figure, found: Results) -> Line:
    ((line,),) = (panel.lines for panel in make_panels(figure, {"": found}))
    return line


# ---- what is drawn --------------------------------------------------------------------------------------------------


def test_a_line_is_the_median_and_its_band_the_range_over_the_seeds():
    line = only_line(Figure(name="f", y="error"), results(["A"]))
    decay = 0.9 ** np.array(ROUNDS)
    np.testing.assert_array_equal(line.x, ROUNDS)
    for found, seed in ((line.low, 0), (line.middle, 1), (line.high, 4)):
        np.testing.assert_allclose(found, (1 + seed) * decay, rtol=1e-5)


def test_a_bar_stands_where_half_of_the_seeds_reached_the_target():
    """Seeds 0, 1 and 4 have 0.9^t (1 + seed): they are below 0.5 in rounds 10, 20 and 30."""
    figure = Figure(name="f", y="error", x="steps", target=0.5)
    bar = only_line(figure, results(["A"]))
    assert (bar.low[0], bar.middle[0], bar.high[0]) == (100, 200, 300)
    never = only_line(figure.model_copy(update={"target": 1e-9}), results(["A"]))
    assert (never.low[0], never.middle[0], never.high[0]) == (NEVER, NEVER, NEVER)
    assert make_panels(figure.model_copy(update={"y": "accuracy"}), {"": results(["A"])})[0].lines == []


def test_bars_have_words_for_algorithms_that_did_not_arrive(tmp_path):
    pytest.importorskip("matplotlib")
    far = results(["A"]).rows + results(["B"], error=1.0).rows
    figure = Figure(name="f", y="error", x="bytes", target=0.5)
    (svg,) = write_figures([figure], {"": Results(far, (), 6)}, tmp_path, formats=["svg"])
    text = svg.read_text()
    assert text.count("not reached") == 1
    assert ">communicated [MB]<" in text
    assert ">until relative distance to the solution is 0.5<" in text
    assert all(f">{label}<" in text for label in "AB")


def test_a_seed_that_did_not_arrive_hides_neither_the_range_nor_the_unit(tmp_path):
    """Seed 4 never gets there: the line of A leaves the panel, which is as high as B needs it."""
    matplotlib = pytest.importorskip("matplotlib")
    lost = [{**r, "error": 1.0} if r["seed"] == 4 else r for r in results(["A"]).rows]
    found, figure = Results(lost, (), 6), Figure(name="f", y="error", x="bytes", target=0.5)
    bar = only_line(figure, found)
    assert (bar.low[0], bar.middle[0], bar.high[0]) == (30e6, 60e6, NEVER)
    (svg,) = write_figures([figure], {"": found}, tmp_path, formats=["svg"])
    assert ">communicated [MB]<" in svg.read_text()

    axes = matplotlib.figure.Figure().subplots()
    figures._bars(axes, make_panels(figure, {"": Results([*lost, *results(["B"]).rows], (), 6)})[0], LOOKS, 1e6)
    (first, second), (mark,) = axes.collections, axes.lines
    top = axes.get_ylim()[1]
    assert top > 90, "of B, the slowest seed"
    assert [first.get_segments()[0][:, 1].tolist(), second.get_segments()[0][:, 1].tolist()] == [[30, top], [30, 90]]
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (0, top)


@pytest.mark.parametrize(
    ("axis", "step"), [("round", 1), ("steps", 10), ("bytes", 3e6), ("sim_seconds", 0.5), ("gradients", 60)]
)
def test_where_a_point_stands_on_each_axis(axis, step):
    line = only_line(Figure(name="f", y="error", x=axis), results(["A"]))
    np.testing.assert_allclose(line.x, step * np.array(ROUNDS))


def test_values_that_a_log_axis_cannot_show_are_left_out_and_only_those():
    rows = [row(t=t, error=e) for t, e in zip(ROUNDS, (1.0, 0.0, float("nan"), -1.0), strict=True)]
    log = only_line(Figure(name="f", y="error", log_y=True, log_x=True), Results([*rows, row(t=40, error=0.5)]))
    linear = only_line(Figure(name="f", y="error"), Results([*rows, row(t=40, error=0.5)]))
    np.testing.assert_array_equal(log.middle, [1.0, np.nan, np.nan, np.nan, 0.5])
    np.testing.assert_array_equal(log.x, [np.nan, 10, 20, 30, 40])
    np.testing.assert_array_equal(linear.middle, [1.0, 0.0, np.nan, -1.0, 0.5])


def test_one_panel_for_each_case_that_the_figure_names_and_only_the_labels_that_it_names():
    cases = {"IID": results(), "skewed": results(), "other": results()}
    panels = make_panels(Figure(name="f", y="error", cases=["skewed", "IID"], labels=["B"]), cases)
    assert [(panel.title, [line.label for line in panel.lines]) for panel in panels] == [
        ("IID", ["B"]),
        ("skewed", ["B"]),
    ]


def test_together_the_cases_share_a_panel_and_equal_labels_say_their_case():
    cases = {"IID": results(["A", "B"]), "skewed": results(["A", "C"])}
    (panel,) = make_panels(Figure(name="f", y="error", together=True), cases)
    assert [line.label for line in panel.lines] == ["IID: A", "B", "skewed: A", "C"]


@pytest.mark.parametrize(
    ("largest", "name", "unit"), [(0, "B", 1), (5e4, "kB", 1e3), (2e7, "MB", 1e6), (1e9, "GB", 1e9), (1e19, "TB", 1e12)]
)
def test_bytes_have_a_unit_that_fits(largest, name, unit):
    assert axis_words("bytes", [np.array([0.0, largest, np.nan])]) == (f"communicated [{name}]", unit)


def test_axes_are_in_words():
    assert axis_words("steps", []) == ("gradients per client", 1)
    assert axis_words("sim_seconds", []) == ("simulated seconds", 1)
    assert axis_words("test_loss", []) == ("test loss", 1)


# ---- files ----------------------------------------------------------------------------------------------------------


def drawn(figure: Figure, cases: dict[str, Results], out: Path) -> str:
    pytest.importorskip("matplotlib")
    (svg,) = write_figures([figure], cases, out)
    assert svg == out / f"{figure.name}.svg"
    assert svg.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    return svg.read_text()


def test_the_same_rows_give_the_same_files_whatever_the_style_of_the_user(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    figure, cases = Figure(name="fig1", y="error", x="bytes", log_y=True), {"IID": results(), "skewed": results()}
    first = drawn(figure, cases, tmp_path / "a")
    with matplotlib.rc_context({"font.size": 20, "svg.hashsalt": None, "lines.linewidth": 9}):
        drawn(figure, cases, tmp_path / "b")
        assert matplotlib.rcParams["font.size"] == 20
    for name in ("fig1.svg", "fig1.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert not re.search(r"<dc:date>|20\d\d-\d\d-\d\d", first)


def test_words_of_axes_cases_and_labels_are_in_the_file(tmp_path):
    text = drawn(
        Figure(name="f", y="error", x="bytes"), {"IID": results(["A <&> B"]), "skewed": results(["C"])}, tmp_path
    )
    for words in (
        "communicated [MB]",
        "relative distance to the solution",
        "IID",
        "skewed",
        "A &lt;&amp;&gt; B",
        ">C<",
    ):
        assert words in text


def test_an_algorithm_has_its_colour_in_every_panel_and_every_figure(tmp_path):
    cases = {"1": results(["A", "B"]), "2": results(["B", "C"])}
    whole = drawn(Figure(name="f", y="error"), cases, tmp_path)
    part = drawn(Figure(name="g", y="error", labels=["C"]), cases, tmp_path)
    strokes = lambda text: [c for c in re.findall(r"fill: none; stroke: (#\w+)", text) if c in COLOURS]
    assert strokes(whole) == [COLOURS[k] for k in (0, 1, 1, 2, 0, 1, 2)]  # two panels and the legend
    assert set(strokes(part)) == {COLOURS[2]}
    assert len({*MARKERS}) == len(MARKERS)


def test_long_runs_make_small_files(tmp_path):
    rows = [row(a, s, t, error=1 / (1 + t + s)) for a in "ABCD" for s in range(3) for t in range(3000)]
    assert len(drawn(Figure(name="f", y="error", log_y=True), {"": Results(rows)}, tmp_path)) < 150_000


def test_a_line_that_diverges_does_not_hide_the_others(tmp_path):
    rows = [row("A", 0, t, error=1 / (1 + t)) for t in range(20)] + [
        row("B", 0, t, error=10.0 ** (15 * t)) for t in range(20)
    ]
    status = [{"algorithm": "B", "seed": 0, "status": "diverged", "round": 19}]
    text = drawn(Figure(name="f", y="error"), {"": Results(rows, status)}, tmp_path)
    assert "B diverged" in text
    curve = re.search(r'd="(M [^"]*)"[^>]*style="fill: none; stroke: ' + COLOURS[0], text)[1]
    heights = [float(y) for _, y in re.findall(r"[ML] (\S+) (\S+)", curve)]
    assert max(heights) - min(heights) > 50


def test_what_cannot_be_drawn_gives_no_file(tmp_path):
    pytest.importorskip("matplotlib")
    nothing = [Figure(name="f", y="accuracy"), Figure(name="g", y="error", cases=["never run"])]
    assert write_figures(nothing, {"": results()}, tmp_path) == []
    assert write_figures([Figure(name="f", y="error", log_y=True)], {"": results(error=-1.0)}, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_one_case_without_values_leaves_its_panel_empty(tmp_path):
    figure, cases = Figure(name="f", y="error", log_y=True), {"1": results(), "2": results(error=None)}
    assert [(panel.title, len(panel.lines)) for panel in make_panels(figure, cases)] == [("1", 2), ("2", 0)]
    text = drawn(figure, cases, tmp_path)
    one, two = (
        re.search(rf'<g id="axes_{k}">(.*?)(?=<g id="axes_|<g id="legend|\\Z)', text, re.DOTALL)[1] for k in (1, 2)
    )
    assert [one.count(f"stroke: {colour}") > 0 for colour in COLOURS[:2]] == [True, True]
    assert [two.count(f"stroke: {colour}") for colour in COLOURS[:2]] == [0, 0]


def test_a_notebook_shows_the_figure(tmp_path):
    pytest.importorskip("matplotlib")
    formatters = pytest.importorskip("IPython.core.formatters")
    data, _ = formatters.DisplayFormatter().format(results().plot("error"))
    assert data["image/png"].startswith(b"\x89PNG")


@pytest.mark.parametrize(("times", "scale"), [(9.9, "linear"), (10, "log")])
def test_an_axis_over_which_algorithms_end_decades_apart_is_logarithmic(times, scale):
    pytest.importorskip("matplotlib")
    rows = [row("A", t=t, sim_seconds=t) for t in ROUNDS] + [row("B", t=t, sim_seconds=times * t) for t in ROUNDS]
    found = Results(rows, [])
    (axes,) = found.plot("error", x="sim_seconds").axes
    assert axes.get_xscale() == scale
    assert found.plot("error", x="bytes").axes[0].get_xscale() == "log"  # whatever the algorithms send
    assert found.plot("error").axes[0].get_xscale() == "linear"
    for log, expected in ((True, "log"), (False, "linear")):
        assert found.plot("error", x="bytes", log_x=log).axes[0].get_xscale() == expected


def test_without_matplotlib_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'proxfed\[figures\]'"):
        write_figures([Figure(name="f", y="error")], {"": results()}, tmp_path)


# ---- on the page of a run -------------------------------------------------------------------------------------------


def test_the_report_carries_its_figures_inside(tmp_path):
    svg = tmp_path / "a&b.svg"
    svg.write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    results = Results([row()])
    write_report([results], tmp_path / "with.html", [svg])
    write_report([results], tmp_path / "without.html")
    page = (tmp_path / "with.html").read_text()
    (data,) = re.findall(r'<img alt="a&amp;b" src="data:image/svg\+xml;base64,([^"]+)">', page)
    assert base64.b64decode(data) == svg.read_bytes()
    assert "alert(1)" not in page  # only inside the image, where no script runs
    assert "In the axes of the paper" not in (tmp_path / "without.html").read_text()
