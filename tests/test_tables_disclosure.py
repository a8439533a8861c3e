"""No row leaves: every number that an organisation sends is looked at."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed.tables import read_frame, read_tables, summarise
from proxfed.tables.disclosure import coarsen, quantile, reason_to_withhold, refine, suppress_small
from proxfed.tables.first_look import first_look
from proxfed.tables.holdings import holdings

from support.tables import CLINICS, schema_of, table_of

FEWEST = 5
EVERY = """
[table]
fewest = 5
untold = "drop"
[target]
column = "y"
classes = ["a", "b"]
[columns.number]
kind = "number"
[columns.median]
kind = "number"
range = [0, 1000]
impute = "median"
[columns.boolean]
kind = "boolean"
[columns.category]
kind = "category"
categories = ["u", "v", "w"]
unseen = "other"
impute = "mode"
[columns.date]
kind = "date"
"""


def numbers_in(message: Any) -> list[float]:
    """Every number of a message as it travels, however deep."""
    if isinstance(message, dict):
        return [n for value in message.values() for n in numbers_in(value)]
    if isinstance(message, list):
        return [n for value in message for n in numbers_in(value)]
    return [message] if isinstance(message, (int, float)) and not isinstance(message, bool) else []


def sent(columns: dict[str, list[Any]]) -> tuple[Any, dict[str, str]]:
    """(the message as it travels, what it withholds)."""
    schema = schema_of(EVERY)
    rows = len(next(iter(columns.values())))
    empty: list[Any] = [None] * rows
    table = table_of(schema, {name: columns.get(name, empty) for name in schema.inputs})
    message = json.loads(summarise(table).encode())
    return message, message["withheld"]


def rows(count: int) -> dict[str, list[Any]]:
    return {
        "number": [1234.5 + 7 * k for k in range(count)],
        "median": [100.25 + 3 * k for k in range(count)],
        "boolean": [k % 2 == 0 for k in range(count)],
        "category": ["uvw"[k % 3] for k in range(count)],
        "date": [f"2020-01-{k + 1:02d}" for k in range(count)],
    }


@pytest.mark.parametrize("count", range(1, FEWEST))
def test_an_organisation_with_few_rows_sends_no_number_at_all(count: int) -> None:
    message, withheld = sent(rows(count))
    assert numbers_in(message) == []
    assert withheld == {"": "everything: fewer than 5 rows"}


def test_no_value_of_a_row_is_in_a_message() -> None:
    """With values that could not come about by chance, in a table with enough rows to tell something."""
    columns = rows(17)
    message, _ = sent(columns)
    numbers = set(numbers_in(message))
    held = {float(v) for name in ("number", "median") for v in columns[name]} - {np.mean(columns["number"])}
    held -= {float(np.mean(columns["median"]))}
    assert len(numbers) > 10
    assert not numbers & held, "neither the smallest nor the largest, nor any other"


@pytest.mark.parametrize("there", range(FEWEST))
def test_a_column_with_few_values_is_withheld(there: int) -> None:
    gaps = 20 - there
    message, withheld = sent(
        {"number": [3.25 + k for k in range(there)] + [None] * gaps, "boolean": ["yes", "no"] * 10}
    )
    assert set(numbers_in(message)) == {20, 10, 0}
    why = "no values" if there == 0 else "fewer than 5 values"
    assert withheld["number"] == f"everything: {why}"


@pytest.mark.parametrize("gaps", range(1, FEWEST))
def test_few_gaps_cannot_be_found_by_subtraction(gaps: int) -> None:
    values = [2.0 * k for k in range(20 - gaps)] + [None] * gaps
    words = ["yes", "no"] * 8 + ["yes"] * (4 - gaps) + [""] * gaps
    message, withheld = sent({"number": values, "median": values, "boolean": words})
    assert message["moments"]["number"]["count"] == 20
    assert sum(message["histograms"]["median"]["counts"]) == 20
    assert sum(message["counts"]["boolean"].values()) == 20
    for name in ("number", "median", "boolean"):
        assert withheld[name] == "how many are missing: fewer than 5"


@pytest.mark.parametrize("rare", range(1, FEWEST))
def test_a_mean_about_few_rows_is_withheld(rare: int) -> None:
    """Zeros and one salary: their mean is that salary."""
    message, withheld = sent({"number": [0.0] * 30 + [77_000.0 + k for k in range(rare)]})
    assert message["moments"] == {}
    assert withheld["number"] == "everything: fewer than 5 rows differ from all others"
    message, _ = sent({"number": [0.0] * 30 + [77_000.0 + k for k in range(FEWEST)]})
    assert message["moments"]["number"]["count"] == 35


def test_rare_categories_are_withheld_with_what_would_give_them_away() -> None:
    message, withheld = sent({"category": ["u"] * 30 + ["v"] * 10 + ["w"] * 2})
    assert message["counts"]["category"] == {"u": 30, "v": None, "w": None, "other": 0}
    assert withheld["category"] == "how many rows have v, w"
    message, withheld = sent({"boolean": ["no"] * 40 + ["yes"] * 3 + [""] * 2})
    assert withheld["boolean"] == "how many are missing: fewer than 5; how many rows have no, yes"
    assert message["counts"]["boolean"] == {"no": None, "yes": None}


@given(st.data())
def test_no_count_from_one_to_four_is_ever_sent(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 40))

    def drawn(*values: Any) -> list[Any]:
        return data.draw(st.lists(st.sampled_from([None, *values]), min_size=n, max_size=n))

    message, _ = sent(
        {
            "number": drawn(0.0, 0.5, 3.0),
            "median": drawn(1.0, 500.0, 501.0, 999.0),
            "boolean": drawn("yes", "no"),
            "category": drawn("u", "v", "w", "x"),
            "date": drawn("2020-01-01", "2021-01-01"),
        }
    )
    counts = [of["count"] for of in message["moments"].values()]
    counts += [count for of in message["histograms"].values() for count in of["counts"]]
    counts += [count for of in message["counts"].values() for count in of.values() if count is not None]
    counts += [] if message["rows"] is None else [message["rows"]]
    assert all(count == 0 or count >= FEWEST for count in counts)
    for of in message["counts"].values():
        hidden = [name for name, count in of.items() if count is None]
        assert len(hidden) != 1 or not any(of.values()), "nor could it be the rest of a sum"
        if message["rows"] is not None and hidden:
            assert message["rows"] - sum(count or 0 for count in of.values()) >= FEWEST


# ---- the rules themselves -------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=2), st.integers(0, 50), max_size=6), st.integers(1, 8))
def test_counts_that_are_sent_are_true_and_those_withheld_do_not_follow(counts: dict[str, int], fewest: int) -> None:
    cells = suppress_small(counts, fewest)
    assert all(cells[name] in (None, count) for name, count in counts.items())
    assert all(cells[name] is None for name, count in counts.items() if 0 < count < fewest)
    hidden = [name for name, count in cells.items() if count is None]
    if sum(counts.values()) >= fewest and hidden:
        assert len(hidden) >= 2
        assert sum(counts[name] for name in hidden) >= fewest
    if not any(0 < count < fewest for count in counts.values()):
        assert cells == counts


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 6))
def test_coarse_histograms_have_full_cells_and_lose_no_row(counts: list[int], fewest: int) -> None:
    last, cells = coarsen(np.array(counts), fewest)
    if sum(counts) < fewest:
        assert cells == []
        return
    assert min(cells) >= fewest
    assert last[-1] == len(counts) - 1
    spread = refine(last, cells, len(counts))
    assert spread.sum() == pytest.approx(sum(counts))
    for k in last:  # at the ends of cells nothing is lost
        assert spread[: k + 1].sum() == pytest.approx(sum(counts[: k + 1]))


def test_a_quantile_lies_where_the_rows_are() -> None:
    assert quantile(np.array([1.0, 1.0, 1.0, 1.0]), 0, 4) == 2
    assert quantile(np.array([0.0, 0.0, 8.0, 0.0]), 0, 4) == 2.5
    assert quantile(np.array([5.0, 0.0, 0.0, 5.0]), 0, 4) == 1
    assert quantile(np.array([1.0, 3.0]), 10, 20, 0.25) == 15


def test_reasons() -> None:
    assert reason_to_withhold(np.arange(5.0), 5) == ""
    assert reason_to_withhold(np.zeros(9), 5) == ""
    assert reason_to_withhold(np.array([1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 5) == ""


# ---- who holds what -------------------------------------------------------------------------------------------------


def test_holdings_withhold_small_counts() -> None:
    schema = schema_of(EVERY)
    columns: dict[str, list[Any]] = rows(20) | {"y": ["a"] * 17 + ["b"] * 3, "number": [None] * 3 + [1.0] * 17}
    held = holdings(read_frame(schema, columns, "x"))
    assert held.rows == {"x": 20}
    assert held.missing["number"] == {"x": None}
    assert held.missing["median"] == {"x": 0}
    assert held.outcomes == {"a": {"x": None}, "b": {"x": None}}
    few = holdings(read_frame(schema, rows(4) | {"y": ["a"] * 4}, "x"))
    assert few.rows == {"x": None}
    assert numbers_in([few.missing, few.outcomes]) == []
    assert json.dumps(held.plain())


def test_holdings_of_the_clinics_are_their_counts() -> None:
    tables = read_tables(CLINICS / "tables.toml")
    held = holdings(tables)
    for table in tables.tables:
        who = table.organisation
        assert held.outcomes["ill"][who] == int((table.labels == 1).sum())
        gaps = int(np.isnan(table.columns["weight"]).sum())
        assert held.missing["weight"][who] == (None if 0 < gaps < 5 else gaps)


def test_a_first_look_writes_no_rare_word_and_no_number_of_a_row(tmp_path) -> None:
    lines = ["id,job,amount,y"]
    lines += [f"p{k:03d},{'clerk' if k % 2 else 'cook'},{1000.37 + k * 13.11:.2f},{k % 2}" for k in range(40)]
    lines += ["p999,astronaut,987654.32,1"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    text = first_look([tmp_path / "a.csv"], target="y", beside=tmp_path)
    assert "clerk" in text
    assert "astronaut" not in text
    assert "p0" not in text
    assert "987654" not in text
    assert "1000" not in text
    assert "1 words that fewer than 5 rows have are not written here" in text


def test_nan_never_travels() -> None:
    message, _ = sent({"number": [math.nan] * 10})
    assert "NaN" not in json.dumps(message)
