"""From cells to numbers: what is read, what means missing, and what is refused with its place."""

from __future__ import annotations

import contextlib
import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import InputError
from proxfed.tables.cells import parse
from proxfed.tables.column_kinds import KINDS, Column


def column(kind: str, **keys: Any) -> Column:
    return KINDS[kind].model_validate({"kind": kind, **keys})


def objects(cells: list[Any]) -> np.ndarray:
    held = np.empty(len(cells), dtype=object)
    held[:] = cells
    return held


def read(of: Column, *cells: Any, missing=("",)) -> list[float]:
    return parse(of, objects(list(cells)), lambda row: f"file, row {row + 1}", missing).tolist()


def refused(of: Column, *cells: Any) -> str:
    with pytest.raises(InputError) as error:
        read(of, *cells)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "cell", "value"),
    [
        ({}, " 12.50 ", 12.5),
        ({}, "-.5", -0.5),
        ({}, "1e-3", 0.001),
        ({"thousands": ","}, "1,234,567.5", 1234567.5),
        ({"thousands": ","}, "1234567.5", 1234567.5),
        ({"currency": "$", "thousands": ","}, "$1,234.00", 1234.0),
        ({"currency": "$", "thousands": ","}, "-$1,234.00", -1234.0),
        ({"currency": "$"}, "$-5", -5.0),
        ({"currency": "$"}, "($5.25)", -5.25),
        ({"currency": "%"}, "12 %", 12.0),
        ({"decimal": ","}, "3,14", 3.14),
        ({"decimal": ",", "thousands": "."}, "1.234,5", 1234.5),
        ({"decimal": ",", "thousands": " "}, "1\N{NARROW NO-BREAK SPACE}234,5", 1234.5),
        ({"decimal": ",", "thousands": ".", "currency": "€"}, "1.234,50 €", 1234.5),
        ({}, 7, 7.0),
        ({}, Decimal("0.1"), 0.1),
    ],
)
def test_numbers_as_people_write_them(keys: dict[str, str], cell: Any, value: float) -> None:
    assert read(column("number", **keys), cell) == [value]


@pytest.mark.parametrize(
    ("keys", "cell"),
    [
        ({}, "1,234"),
        ({}, "$5"),
        ({}, "1_000"),
        ({}, "nan"),
        ({}, "inf"),
        ({}, "1e999"),
        ({}, "1e101"),
        ({}, -1e200),
        ({}, "٣"),
        ({}, "0x10"),
        ({}, "1 2"),
        ({}, "--1"),
        ({}, "5%"),
        ({}, True),
        ({}, date(2020, 1, 1)),
        ({"thousands": ","}, "1,23"),
        ({"thousands": ","}, "12,3456"),
        ({"decimal": ","}, "3.14"),
        ({"currency": "$"}, "$$5"),
        ({"currency": "$"}, "(5"),
        ({"currency": "$"}, "$"),
    ],
)
def test_what_is_no_number_is_refused(keys: dict[str, str], cell: Any) -> None:
    said = refused(column("number", **keys), "1", cell)
    assert said.startswith("file, row 2 holds ")
    assert "a number" in said


def test_a_formula_is_called_one() -> None:
    assert "holds the formula '=1+1', but a number from 0 to 9 (kg) was expected" in refused(
        column("number", range=[0, 9], unit="kg"), "=1+1"
    )


@given(st.text(max_size=12) | st.from_regex(r"[+-]?[0-9.,eE_ ]{1,10}", fullmatch=True))
def test_an_accepted_cell_is_the_number_that_it_says(cell: str) -> None:
    """Against Python's own Decimal: another value than the written one never comes out."""
    try:
        (value,) = read(column("number"), cell, missing=())
    except InputError:
        return
    assert Decimal(cell.strip()) == pytest.approx(Decimal(value), rel=Decimal("1e-15"), abs=Decimal("1e-320"))


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=2))
def test_money_written_by_python_is_read_back(amount: Decimal) -> None:
    dollars = column("number", currency="$", thousands=",")
    written = f"-${-amount:,.2f}" if amount < 0 else f"${amount:,.2f}"
    euros = column("number", currency="€", thousands=".", decimal=",")
    swapped = f"{amount:,.2f} €".replace(",", "_").replace(".", ",").replace("_", ".")
    assert read(dollars, written) == read(euros, swapped) == [float(amount)]


def test_codes_for_missing_are_numbers_or_words() -> None:
    of = column("number", missing=[-9, "unknown"])
    values = read(of, "-9", "-9.00", "9", "unknown", "?", "", None, math.nan, missing=["", "?"])
    assert values[2] == 9
    assert np.isnan(np.delete(values, 2)).all()
    array = parse(of, np.array([-9.0, 9.0, np.nan]), str, [])
    np.testing.assert_array_equal(array, [np.nan, 9, np.nan])


def test_numbers_outside_of_their_range_are_refused() -> None:
    of = column("number", range=[0, 120], unit="years")
    assert read(of, "0", "120") == [0, 120]
    expected = "file, row 2 holds '130', but a number from 0 to 120 (years) was expected"
    assert refused(of, "50", "130", "-1") == expected
    with pytest.raises(InputError, match=r"^7 holds .130"):
        parse(of, np.array([1, 130]), lambda row: "7", [])
    with pytest.raises(InputError, match="inf"):
        parse(column("number"), np.array([np.inf]), lambda row: "7", [])


def test_a_logarithm_needs_what_it_needs() -> None:
    assert "a number above 0, as transform = 'log' needs" in refused(column("number", transform="log"), "1", "0")
    assert read(column("number", transform="log1p"), "0") == [0]
    assert read(column("number", transform="log", clip=[1, 9]), "-5") == [-5]


def test_no_missing_value_where_none_may_be() -> None:
    assert "row 2 is empty" in refused(column("number", impute="refuse"), "1", None)
    assert "row 1 holds ''" in refused(column("date", impute="refuse"), "")
    assert "a value was expected" in refused(column("category", categories=["a"], impute="refuse"), "")


# ---- other kinds ----------------------------------------------------------------------------------------------------


def test_yes_and_no_in_many_words() -> None:
    of = column("boolean")
    assert read(of, "yes", "Y", "TRUE", "t", "1", "1.0", 1, True) == [1] * 8
    assert read(of, "no", "N", "False", "F", "0", 0.0, False) == [0] * 7
    assert read(column("boolean", yes=["ja"], no=["nein"]), "Ja", "NEIN", True) == [1, 0, 1]
    assert "yes (1, yes, y, true, t) or no" in refused(of, "2")


def test_categories_and_the_fate_of_others() -> None:
    names = {"typical": 1, "none": [2, "x"]}
    assert read(column("category", categories=names), "1", "1.0", 1.0, "x", "2") == [0, 0, 0, 1, 1]
    assert refused(column("category", categories=names), "1", "3").endswith("one of 1, 2, x was expected")
    assert read(column("category", categories=names, unseen="other"), "3", "1") == [2, 0]
    assert np.isnan(read(column("category", categories=names, unseen="missing"), "3"))
    assert "one of" in refused(column("category", categories=["7"]), "007")
    assert "one of" in refused(column("category", categories=["Yes"]), "yes")


def test_dates_are_days_since_their_origin() -> None:
    of = column("date", format=["%d/%m/%Y", "%d-%b-%y"], origin=date(2000, 1, 1))
    assert read(of, "02/01/2000", "31-Dec-99", date(2000, 1, 3), datetime(2000, 1, 4, 12)) == [1, -1, 2, 3]
    assert "a date like 31/12/2001 was expected" in refused(of, "2000-01-01")
    assert "a date" in refused(of, "30/02/2000")


def test_the_range_says_the_century() -> None:
    of = column("date", format="%d-%b-%y", range=[date(1930, 1, 1), date(2020, 1, 1)], origin=date(1966, 1, 1))
    assert read(of, "2-Jan-66") == [1]
    assert "from 1930-01-01 to 2020-01-01" in refused(of, "1-Jan-25")


@given(st.dates(min_value=date(1000, 1, 1)), st.dates(min_value=date(1000, 1, 1)))
def test_any_date_is_read_back(day: date, origin: date) -> None:
    for form in ("%Y-%m-%d", "%d.%m.%Y", "%d %B %Y"):
        (days,) = read(column("date", format=form, origin=origin), day.strftime(form))
        assert origin + timedelta(days=int(days)) == day


@pytest.mark.parametrize("kind", ["number", "boolean", "category", "date"])
@given(cells=st.lists(st.text(max_size=8) | st.none() | st.booleans() | st.floats() | st.integers(), max_size=5))
def test_any_cell_is_read_or_refused(kind: str, cells: list[Any]) -> None:
    of = column(kind, **({"categories": ["a", "1"]} if kind == "category" else {}))
    with contextlib.suppress(InputError):
        assert len(read(of, *cells)) == len(cells)
