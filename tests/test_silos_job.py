"""Jobs and the clients of their sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed.silos.wire import job as wire_job
from proxfed.silos.wire.job import Job, Sites

sizes = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@given(sizes, st.data())
def test_clients_are_grouped_by_the_site_that_holds_them(clients: list[int], data: st.DataObject) -> None:
    sites = Sites(tuple("abcdef"[: len(clients)]), tuple(clients))
    ids = data.draw(st.lists(st.integers(0, sum(clients) - 1), unique=True))
    expected = {name: [i for i in ids if i in sites.here(name)] for name in sites.names}
    assert sites.among(np.array(ids, np.int64)) == {name: own for name, own in expected.items() if own}


class Compared(int):
    """A whole number that counts its comparisons; like numpy's, `in range` compares it with each member in turn."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_grouping_clients_by_site_compares_none_with_every_other() -> None:
    n = 400
    Compared.count = 0
    sites = Sites(("a", "b"), (n // 2, n // 2))
    assert sites.among([Compared(i) for i in range(n)]) == {"a": [*range(n // 2)], "b": [*range(n // 2, n)]}
    assert Compared.count <= n


def test_a_job_is_written_once_for_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job({}, ("a",), (1,), (1.0,), {}, "nonce")
    written: list[Any] = []
    canonical = wire_job.canonical
    monkeypatch.setattr(wire_job, "canonical", lambda table: written.append(table) or canonical(table))
    assert len({job.digest for _ in range(3)}) == 1
    assert len(written) == 1
    other = job.of({"name": "fedavg"}, "it", 0)
    assert other.digest != job.digest
