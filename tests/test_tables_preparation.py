"""Preparation without sharing rows: what is merged is what all rows together would give, and it comes back."""

from __future__ import annotations

import contextlib
import json
import math
from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed import Linear, Logistic
from proxfed.errors import InputError
from proxfed.regularisers import GroupLasso
from proxfed.tables import Preparation, decode, design, merge, read_frame, read_schema, read_tables, summarise

from support.tables import CLINICS, schema_of, stacked, table_of

NUMBER = '[table]\nfewest = 2\n[columns.x]\nkind = "number"\n'

several = st.lists(st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=12, unique=True), min_size=1, max_size=4)


def prepared(schema, columns: list[dict]) -> tuple[Preparation, list]:
    tables = [table_of(schema, one, f"o{k}") for k, one in enumerate(columns)]
    return merge(tables[0].schema, [summarise(table) for table in tables]), tables


@pytest.fixture
def clinics():
    return design(read_tables(CLINICS / "tables.toml"))


# ---- merged is pooled -----------------------------------------------------------------------------------------------


@given(several)
def test_mean_and_deviation_are_those_of_all_rows(parts: list[list[float]]) -> None:
    preparation, tables = prepared(schema_of(NUMBER), [{"x": part} for part in parts])
    values = stacked(tables, "x")
    of = preparation.parameters["x"]
    scale = np.abs(values).max()
    assert of.centre == of.impute == pytest.approx(values.mean(), abs=1e-12 * scale)
    assert of.scale == pytest.approx(values.std(), abs=1e-12 * scale)


def test_far_from_zero_the_deviation_is_still_right() -> None:
    """Where sums of squares would lose all digits."""
    parts = [{"x": 1e9 + np.arange(10.0)}, {"x": 1e9 + np.arange(5.0, 25.0)}]
    preparation, tables = prepared(schema_of(NUMBER), parts)
    assert preparation.parameters["x"].scale == pytest.approx((stacked(tables, "x") - 1e9).std(), rel=1e-12)


@given(several, st.randoms())
def test_the_order_of_messages_does_not_matter_to_the_bit(parts: list[list[float]], random) -> None:
    _, tables = prepared(schema_of(NUMBER), [{"x": part} for part in parts])
    messages = [summarise(table) for table in tables]
    shuffled = random.sample(messages, len(messages))
    assert merge(tables[0].schema, messages).plain() == merge(tables[0].schema, shuffled).plain()


def test_gaps_are_left_out_of_the_mean_if_there_are_enough_of_them() -> None:
    gap = math.nan
    preparation, tables = prepared(schema_of(NUMBER), [{"x": [1, 2, 6, gap, gap]}, {"x": [10, 20]}])
    assert preparation.parameters["x"].impute == pytest.approx(np.nanmean(stacked(tables, "x")))
    assert preparation.apply(tables[0])[3:].tolist() == [[0], [0]], "imputed by the mean, scaled to zero"


def test_few_gaps_count_as_if_they_held_what_the_others_hold() -> None:
    """So that nobody can subtract: with one gap of six it is as if there were six values like the five."""
    schema = schema_of(NUMBER.replace("fewest = 2", "fewest = 3"))
    first, second = [1.0, 2.0, 3.0, 4.0, 10.0], [20.0, 30.0, 40.0]
    preparation, _ = prepared(schema, [{"x": [*first, math.nan]}, {"x": second}])
    mean = (6 * np.mean(first) + np.sum(second)) / 9
    squares = 6 * (np.var(first) + (np.mean(first) - mean) ** 2) + np.sum((np.array(second) - mean) ** 2)
    of = preparation.parameters["x"]
    assert of.centre == pytest.approx(mean, rel=1e-14)
    assert of.scale == pytest.approx(np.sqrt(squares / 9), rel=1e-14)


@given(st.lists(st.lists(st.floats(0, 100), min_size=40, max_size=80, unique=True), min_size=1, max_size=3))
def test_the_median_is_right_up_to_a_cell_of_the_histograms(parts: list[list[float]]) -> None:
    schema = schema_of(NUMBER + 'impute = "median"\nrange = [0, 100]\nbins = 50\n')
    preparation, tables = prepared(schema, [{"x": part} for part in parts])
    widest = 0.0
    for table in tables:
        last = summarise(table).histograms["x"].last
        widest = max(widest, 2.0 * np.diff([-1, *last]).max())
    error = abs(preparation.parameters["x"].impute - np.median(stacked(tables, "x")))
    values = np.sort(stacked(tables, "x"))
    middle = values[len(values) // 2] - values[len(values) // 2 - 1] if len(values) % 2 == 0 else 0.0
    assert error <= widest + middle + 1e-9


def test_the_median_of_many_rows_is_close() -> None:
    rng = np.random.default_rng(0)
    schema = schema_of(NUMBER + 'impute = "median"\nclip = [1, 1000]\ntransform = "log"\nbins = 256\n')
    parts = [{"x": np.exp(rng.normal(3, 1, 2000))}, {"x": np.exp(rng.normal(4, 1, 500))}]
    preparation, tables = prepared(schema, parts)
    expected = np.median(np.log(np.clip(stacked(tables, "x"), 1, 1000)))
    assert preparation.parameters["log(x)"].impute == pytest.approx(expected, abs=np.log(1000) / 256)


def test_proportions_and_modes_are_those_of_all_rows() -> None:
    schema = schema_of(
        '[table]\nfewest = 2\n[columns.b]\nkind = "boolean"\n'
        '[columns.c]\nkind = "category"\ncategories = ["u", "v"]\nimpute = "mode"\n'
    )
    first = {"b": ["yes"] * 3 + ["no"] * 5, "c": ["u"] * 4 + ["v"] * 4}
    second = {"b": ["yes"] * 2 + [""] * 4, "c": ["v"] * 3 + [""] * 3}
    preparation, tables = prepared(schema, [first, second])
    assert preparation.parameters["b"].impute == 5 / 10
    assert preparation.modes == {"c": "v"}
    assert preparation.apply(tables[1]).tolist() == [[1, 0, 1]] * 2 + [[0.5, 0, 1]] * 4


# ---- features -------------------------------------------------------------------------------------------------------


def test_features_have_names_and_know_their_column(clinics) -> None:
    names = "age, sex=male, weight, chol, chol missing, smoker, stage=I, stage=II, stage=III, stage=IV"
    assert ", ".join(clinics.preparation.names) == f"{names}, log(1+income), visit days"
    assert clinics.preparation.groups == (0, 1, 2, 3, 3, 4, 5, 5, 5, 5, 6, 7)
    data = clinics.federated()
    assert data.names == clinics.preparation.names
    assert data.sizes.tolist() == [60, 90, 70, 40]
    assert clinics.organisations == ("east", "north", "south", "west")
    assert set(data.labels.tolist()) == {-1.0, 1.0}
    assert clinics.federated(signed=False).classes == 2
    h = GroupLasso(0.1, labels=clinics.preparation.groups)
    assert (Linear(data, Logistic()) + h).f.d == 12


def test_a_row_computed_by_hand(clinics) -> None:
    """The first patient of the west: 38, M, 77.3 kg, cholesterol not measured, no, II, income unknown, 29/08/2019."""
    west = next(table for table in clinics.tables.tables if table.organisation == "west")
    row = dict(zip(clinics.preparation.names, clinics.preparation.apply(west, scaled=False)[0], strict=True))
    told = clinics.preparation.parameters
    assert row["age"] == 38
    assert row["sex=male"] == 1
    assert row["weight"] == 77.3
    assert row["chol"] == told["chol"].impute
    assert row["chol missing"] == 1
    assert row["smoker"] == 0
    assert [row[f"stage={s}"] for s in ("I", "II", "III", "IV")] == [0, 1, 0, 0]
    assert row["log(1+income)"] == told["log(1+income)"].impute
    assert row["visit days"] == (date(2019, 8, 29) - date(2019, 1, 1)).days
    scaled = dict(zip(clinics.preparation.names, clinics.preparation.apply(west)[0], strict=True))
    assert scaled["age"] == pytest.approx((38 - told["age"].centre) / told["age"].scale, rel=1e-15)
    assert scaled["chol"] == 0


@given(st.lists(st.dates(date(1600, 1, 1), date(2400, 1, 1)), min_size=1, max_size=5))
def test_parts_of_dates_are_those_of_the_calendar(days: list[date]) -> None:
    schema = schema_of(
        '[table]\nfewest = 1\n[columns.d]\nkind = "date"\nscale = "none"\nparts = ["year", "month", "weekday"]'
    )
    preparation, (table,) = prepared(schema, [{"d": days}])
    assert preparation.names == ("d year", "d month", "d weekday")
    assert preparation.apply(table).tolist() == [[d.year, d.month, d.weekday()] for d in days]


def test_a_column_that_is_the_same_everywhere_is_only_centred() -> None:
    preparation, (table,) = prepared(schema_of(NUMBER), [{"x": [7.0] * 5}])
    assert preparation.apply(table).tolist() == [[0]] * 5
    assert "the same in all rows" in preparation.notes[0]


# ---- coefficients come back -----------------------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.booleans())
def test_coefficients_on_the_original_scale_predict_the_same(seed: int, several: bool) -> None:
    made = design(read_tables(CLINICS / "tables.toml"))
    rng = np.random.default_rng(seed)
    p = len(made.preparation.features)
    coef = rng.normal(size=(3, p) if several else p)
    intercept = rng.normal(size=3) if several else rng.normal()
    coef_, intercept_ = made.preparation.original_scale(coef, intercept)
    for table in made.tables.tables:
        scaled = made.preparation.apply(table) @ coef.T + intercept
        original = made.preparation.apply(table, scaled=False) @ coef_.T + intercept_
        np.testing.assert_allclose(original, scaled, rtol=1e-12, atol=1e-12 * np.abs(coef).sum())


def test_coefficients_of_another_model_are_refused(clinics) -> None:
    with pytest.raises(InputError, match=r"coef has shape \(3,\), but there are 12 features"):
        clinics.preparation.original_scale(np.zeros(3))


# ---- kept with the model --------------------------------------------------------------------------------------------


def test_what_is_kept_prepares_other_tables_the_same(clinics) -> None:
    kept = Preparation.from_plain(json.loads(json.dumps(clinics.preparation.plain())))
    fresh = {"age": [50], "sex": ["F"], "weight": [None], "chol": ["0"], "smoker": ["yes"], "stage": ["IV"]}
    fresh |= {"income": ["$2,000.00"], "visit": ["01/03/2020"]}
    (table,) = read_frame(kept.schema, fresh, "new", target=False).tables
    np.testing.assert_array_equal(kept.apply(table), clinics.preparation.apply(table))
    assert kept.names == clinics.preparation.names
    assert kept.plain() == clinics.preparation.plain()


def test_damaged_preparations_are_refused(clinics) -> None:
    plain = clinics.preparation.plain()
    for damage, says in (
        ({"form": "x"}, "form = 'x' is not"),
        ({"parameters": {}}, "has no parameters of"),
        ({"modes": {"stage": "X"}}, "has no parameters of"),
        ({"notes": 3}, "is not a stored preparation"),
        ({"parameters": plain["parameters"] | {"age": {"scale": 0.0}}}, r"parameters.age.scale: .*greater than 0"),
    ):
        with pytest.raises(InputError, match=says):
            Preparation.from_plain(plain | damage, "model.json")
    with pytest.raises(InputError, match="is not a stored preparation"):
        Preparation.from_plain([])


def test_tables_and_messages_of_another_schema_are_refused(clinics) -> None:
    other = schema_of(NUMBER)
    table = table_of(other, {"x": [1.0, 2, 3]})
    with pytest.raises(InputError, match="read by another schema"):
        clinics.preparation.apply(table)
    with pytest.raises(InputError, match="one: its message was made with another schema"):
        merge(read_schema(CLINICS / "tables.toml"), [summarise(table)])
    with pytest.raises(InputError, match="two messages are of the organisation 'one'"):
        merge(other, [summarise(table)] * 2)
    with pytest.raises(InputError, match="no messages"):
        merge(other, [])


def test_a_feature_of_which_too_little_is_sent_is_refused_or_left_out() -> None:
    text = '[table]\nfewest = 4\nuntold = "refuse"\n[columns.x]\nkind = "number"\n[columns.y]\nkind = "boolean"\n'
    few = {"x": [1.0, 2.0, math.nan, math.nan], "y": ["yes", "no", "no", ""]}
    with pytest.raises(InputError, match=r"no organisation sent enough to scale x; untold = 'drop'"):
        prepared(schema_of(text), [few])
    preparation, (table,) = prepared(schema_of(text.replace('"refuse"', '"drop"')), [few])
    assert preparation.names == ("y",)
    assert preparation.left_out == ("x",)
    assert any("no organisation sent enough to scale x: left out" in note for note in preparation.notes)
    with pytest.raises(InputError, match=r"column 'y': row 4 is missing, and no organisation sent enough"):
        preparation.apply(table)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_message_or_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="not a summary of a table"):
        decode(content)


def _places(message, here=()):
    """Every place in a message where a value stands."""
    inner = message.items() if isinstance(message, dict) else enumerate(message) if isinstance(message, list) else ()
    for key, value in inner:
        yield (*here, key)
        yield from _places(value, (*here, key))


@given(st.data())
def test_a_forged_message_is_merged_or_refused(data: st.DataObject) -> None:
    tables = read_tables(CLINICS / "tables.toml")
    messages = [json.loads(summarise(table).encode()) for table in tables.tables]
    *path, last = data.draw(st.sampled_from(list(_places(messages[0]))))
    inside = messages[0]
    for key in path:
        inside = inside[key]
    inside[last] = data.draw(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})
    )
    with contextlib.suppress(InputError):
        merged = merge(tables.schema, [decode(json.dumps(message).encode()) for message in messages])
        assert np.isfinite(merged.apply(tables.tables[1])).all()


def test_numbers_of_any_size_that_is_taken_are_prepared() -> None:
    preparation, (table,) = prepared(schema_of(NUMBER), [{"x": [1e100, -1e100, 3.0, 1e99, 5e99]}])
    assert np.isfinite(preparation.apply(table)).all()


def test_messages_travel_as_bytes(clinics) -> None:
    for message in clinics.messages:
        assert decode(message.encode()) == message
        assert message.size == len(message.encode())
    merged = merge(clinics.tables.schema, [decode(m.encode()) for m in clinics.messages])
    assert merged.plain() == clinics.preparation.plain()
    bad = clinics.messages[0].encode().replace(b'"count":60', b'"count":-60')
    with pytest.raises(InputError, match=r"moments\..*count"):
        decode(bad)


def test_times_of_events_keep_their_sign() -> None:
    schema = schema_of('[table]\nfewest = 2\n[target]\ntime = "T"\nevent = "E"\n[columns.a]\nkind = "number"')
    data = design(read_frame(schema, {"a": [1, 2, 3], "T": [10, 20, 30], "E": [1, 0, 1]}, "x")).federated()
    assert data.labels.tolist() == [10, -20, 30]


def test_held_out_rows_do_not_take_part(tmp_path) -> None:
    (tmp_path / "a.csv").write_text(
        "x,y,fold\n" + "".join(f"{k},{k},{'test' if k > 9 else 'train'}\n" for k in range(20))
    )
    (tmp_path / "t.toml").write_text(
        '[source]\nfiles = "a.csv"\ntest = { column = "fold", words = ["test"] }\n[target]\ncolumn = "y"\n'
        '[columns.x]\nkind = "number"\n'
    )
    made = design(read_tables(tmp_path / "t.toml"))
    assert made.preparation.parameters["x"].centre == 4.5
    data = made.federated()
    assert data.test is not None
    assert data.test[1].tolist() == list(range(10, 20))


def test_days_are_counted_from_the_origin() -> None:
    days = [date(2020, 1, 1) + timedelta(days=k) for k in range(6)]
    schema = schema_of('[table]\nfewest = 2\n[columns.d]\nkind = "date"\norigin = 2020-01-01')
    preparation, _ = prepared(schema, [{"d": days}])
    assert preparation.parameters["d days"].centre == 2.5
