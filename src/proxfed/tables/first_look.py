"""A draft schema from a first look at files: TOML text, with open decisions as comments."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proxfed.errors import InputError, require
from proxfed.tables.cells import is_missing
from proxfed.tables.column_kinds import canonical
from proxfed.tables.guesses import GAPS, guess
from proxfed.tables.raw import Raw, read_raw
from proxfed.tables.schema import Rules, Source, parse_schema

MOST_CLASSES = 20
HEAD = """\
# Written from a first look: read it, and change what is wrong. Words that fewer than 5 rows have, unless classes,
# are not in it. Numbers may have a range = [low, high], outside of which a value is refused: what is plausible, from
# what is known of them and not from these rows.
"""


def first_look(
    files: Sequence[str | Path],
    target: str = "",
    time: str = "",
    event: str = "",
    organisation: str = "",
    names: Sequence[str] | None = None,
    separator: str = ",",
    encoding: str = "utf-8",
    beside: str | Path = ".",
) -> str:
    """The text of a draft schema for these files, to be reviewed by somebody who knows the data.

    target            the column to predict; or `time` and `event` for survival
    organisation      the column that names each row's organisation; without one each file is an organisation
    names             names of the columns, if the files have no header
    beside            the folder in which the schema will be
    """
    require(len(files) > 0, "give at least one file to look at")
    require(bool(time) == bool(event), f"time = {time!r} and event = {event!r} go together: give both or none")
    form: dict[str, Any] = {"separator": separator, "encoding": encoding} | ({"names": list(names)} if names else {})
    source = parse_schema({"source": form}, "first look").source
    tables = [read_raw(Path(file).expanduser(), source) for file in files]
    columns = list(dict.fromkeys(name for table in tables for name in table.columns))
    asked = [name for name in (target, time, event, organisation) if name]
    for name in asked:
        some = next((table for table in tables if name not in table.columns), None)
        if some is not None:
            some.column(name)
    gaps = _gaps(tables)
    lines = [HEAD]
    lines += _source(files, organisation, source, Path(beside))
    first = Path(files[0]).resolve()
    name = first.parent.name if len(files) > 1 and first.parent.name else first.name.partition(".")[0]
    lines += ["", "[table]", f"name = {_text(name)}", f"missing = {_text(gaps)}"]
    lines += [f"fewest = {Rules().fewest}", ""]
    lines += _target(tables, target, time, event, set(gaps))
    for name in columns:
        if name not in asked:
            lines += ["", *_column(tables, name, set(gaps))]
    text = "\n".join(lines) + "\n"
    parse_schema(tomllib.loads(text), "the schema from this first look")
    return text


def _source(files: Sequence[str | Path], organisation: str, source: Source, beside: Path) -> list[str]:
    places = [Path(os.path.relpath(Path(file).expanduser(), beside)).as_posix() for file in files]
    lines = ["[source]", f"files = {_text(places)}"]
    if organisation:
        lines.append(f"organisation = {_text(organisation)}")
    for key in ("names", "separator", "encoding"):
        value = getattr(source, key)
        if value != getattr(Source(), key):
            lines.append(f"{key} = {_text(value)}")
    return lines


def _gaps(tables: Sequence[Raw]) -> list[str]:
    """The usual words for missing that occur, and the empty one."""
    found = {
        cell.strip()
        for table in tables
        for cells in table.columns.values()
        if cells.dtype == object
        for cell in cells.tolist()
        if isinstance(cell, str) and len(cell) < 10
    }
    return [word for word in GAPS if word == "" or word in found]


def _cells(tables: Sequence[Raw], name: str, gaps: set[str]) -> list[Any]:
    cells = [cell for table in tables if name in table.columns for cell in table.columns[name].tolist()]
    return [cell for cell in cells if not is_missing(cell, gaps)]


def _target(tables: Sequence[Raw], target: str, time: str, event: str, gaps: set[str]) -> list[str]:
    if time:
        return ["[target]", f"time = {_text(time)}", f"event = {_text(event)}"]
    if not target:
        return ["# [target]", '# column = "..."', '# classes = ["no", "yes"]']
    cells = _cells(tables, target, gaps)
    require(len(cells) > 0, f"{tables[0].name}, column {target!r}: no row has a value")
    words = sorted({canonical(cell) for cell in cells}, key=_in_order)
    lines = ["[target]", f"column = {_text(target)}"]
    if 2 <= len(words) <= MOST_CLASSES:
        lines += [f"classes = {_text(words)}", "# several words may be one class: { no = 0, yes = [1, 2] }"]
        two = ["# the second one is what is looked for: is it the right one?"]
        return lines + (two if len(words) == 2 else [])
    if guess(cells, 1).keys["kind"] != "number":
        held = f"{len(words)} different words"
        raise InputError(f"{tables[0].name}, column {target!r}: {held} are too many for classes, and are no numbers")
    return [*lines, "# a number; classes = [...] makes it a class"]


def _in_order(word: str) -> tuple[int, float, str]:
    try:
        return 0, float(word), word
    except ValueError:
        return 1, 0.0, word


def _column(tables: Sequence[Raw], name: str, gaps: set[str]) -> list[str]:
    cells = _cells(tables, name, gaps)
    keys, remarks = guess(cells, Rules().fewest)
    if useless := _useless(tables, name, gaps):
        keys, remarks = {"kind": "ignore"}, [useless]
    lacking = [table for table in tables if name not in table.columns]
    if lacking and keys["kind"] != "ignore":
        keys = {**keys, "optional": True}
        remarks = [*remarks, f"{len(lacking)} of {len(tables)} files do not have this column"]
    lines = [f"[columns.{_key(name)}]", *(f"{key} = {_text(value)}" for key, value in keys.items())]
    return [*lines, *(f"# {remark}" for remark in remarks)]


def _useless(tables: Sequence[Raw], name: str, gaps: set[str]) -> str:
    """The reason to ignore a column: it numbers the rows, is constant, or names the organisation."""
    each = [[canonical(cell) for cell in _cells([table], name, gaps)] for table in tables]
    filled = [words for words in each if words]
    if not filled or min(map(len, filled)) < Rules().fewest:
        return ""
    if len({word for words in filled for word in words}) == 1:
        return "the same in all rows"
    if len(filled) > 1 and all(len(set(words)) == 1 for words in filled):
        return "the same in all rows of each file: it names the organisation, perhaps"
    if all(_counts_up(words) for words in filled):
        return "it numbers the rows"
    return ""


def _counts_up(words: list[str]) -> bool:
    """Whether it is 1, 2, 3, ... or 0, 1, 2, ..., or continues from another file."""
    if not all(re.fullmatch("[0-9]{1,15}", word) for word in words):
        return False
    numbers = [*map(int, words)]
    return numbers == [*range(numbers[0], numbers[0] + len(numbers))]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: Any) -> str:
    """The value in TOML, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
