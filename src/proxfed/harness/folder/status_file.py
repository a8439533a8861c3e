"""status.json: the status of each task, and the rows and models of the finished tasks.

It is written last, so everything that it lists is on disk, with the recorded checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple

from proxfed.errors import InputError, require, whole
from proxfed.files import checked, parse_json
from proxfed.report.columns import DONE, UNDER_WAY

Piece = tuple[int, str]
"""The end of a piece of rows.csv, and its checksum."""


class Status(NamedTuple):
    """The content of status.json."""

    run: str
    """The random name of the run, drawn when its folder was made."""
    tasks: list[dict[str, Any]]
    rows: list[Piece]
    """The pieces of rows.csv: the header, and the rows of each finished task."""

    @property
    def done(self) -> list[dict[str, Any]]:
        return [s for s in self.tasks if s["status"] in DONE]

    def with_task(self, task: Mapping[str, Any], rows: bytes | None) -> Status:
        """A copy with a new status of a task, and perhaps with rows that it has added to rows.csv."""
        others = [s for s in self.tasks if (s["algorithm"], s["seed"]) != (task["algorithm"], task["seed"])]
        added = [] if rows is None else [piece(rows, self.rows[-1][0])]
        return Status(self.run, [*others, dict(task)], [*self.rows, *added])

    def known(self, data: bytes, where: str) -> bytes:
        """The part of rows.csv that this status covers."""
        begin = 0
        for end, digest in self.rows:
            if sha256(data[begin:end]).hexdigest() != digest:
                line = data[:begin].count(b"\n") + 1
                how = "cut short" if len(data) < end else f"damaged or changed in line {line} or behind it"
                raise InputError(f"{where} is {how}: it is not what was written")
            begin = end
        return data[:begin]


def piece(rows: bytes, begin: int = 0) -> Piece:
    return begin + len(rows), sha256(rows).hexdigest()


def read_status(data: bytes, where: str) -> Status:
    """Parse a status.json; refused if it is damaged."""
    table = checked(parse_json(data, where), where)
    tasks = _tasks(table.get("tasks"), where)
    with suppress(KeyError, TypeError, ValueError):
        return Status(str(table["run"]), tasks, [(int(end), str(digest)) for end, digest in table["rows"]])
    raise InputError(f"{where} is damaged: it has no list of rows")


def _tasks(table: Iterable[Any] | None, where: str) -> list[dict[str, Any]]:
    if not isinstance(table, list):
        raise InputError(f"{where} is damaged: it has no list of tasks")
    for s in table:
        good = isinstance(s, dict) and s.get("status") in (*DONE, *UNDER_WAY)
        good = good and whole(s.get("seed")) and whole(s.get("round")) and isinstance(s.get("model", ""), str)
        good = good and isinstance(s.get("algorithm"), str) and isinstance(s.get("message"), str)
        require(good and s["algorithm"].isprintable(), f"{where} is damaged: {s!r:.60} is not the status of a task")
    return table
