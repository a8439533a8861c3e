"""Over processes, compressed messages travel as the bytes that are recorded, measured at the sockets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxfed.compressors import QSGD, Identity, TopK
from proxfed.engine.bundle import bundle, unbundle
from proxfed.engine.messages import WeightedSum, compressed
from proxfed.errors import RunError

from support.compressor_cases import D, every, keys, normal, same_bits
from support.forked import ForkedPopen
from support.socket_bytes import ROUNDS

EXCHANGE, MESSAGE = 400, 16
"""What there is besides, at most: for an exchange between two processes, and for the length and weight of a message."""

Counts = list[dict[str, dict[str, int]]]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module", params=[2, 3], ids=lambda size: f"{size} ranks")
def counts(request: pytest.FixtureRequest, forks: str) -> Counts:
    """What each rank sent and recorded, setting by setting."""
    if not sys.platform.startswith("linux"):
        pytest.skip("what sockets sent is read from Linux's TCP_INFO")
    size, port = request.param, free_port()
    environment = os.environ | {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        ForkedPopen(
            [sys.executable, "-m", "support.socket_bytes"],
            env=environment | {"RANK": str(rank), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert all(process.returncode == 0 for process in started)
    return [json.loads(line) for line in said]


def holds(sent: int, recorded: int, exchanges: int, messages: int) -> None:
    assert recorded <= sent <= 1.01 * recorded + EXCHANGE * exchanges + MESSAGE * messages


@pytest.mark.parametrize("setting", ["star", "one takes part"])
def test_what_clients_send_to_the_server_goes_once_to_every_other_process(counts: Counts, setting: str) -> None:
    others = len(counts) - 1
    for rank in counts:
        here = rank[setting]
        up = here["best"] - here["down"]  # what goes down is dense in these, and travels nowhere
        holds(here["sent"], others * up, ROUNDS * others, ROUNDS * 3 * others)
    assert sum(rank["star"]["best"] - rank["star"]["down"] for rank in counts) > 100_000


@pytest.mark.parametrize("setting", ["ring", "complete"])
def test_what_crosses_an_edge_between_processes_is_sent_once(counts: Counts, setting: str) -> None:
    others = len(counts) - 1
    for rank in counts:
        holds(rank[setting]["sent"], rank[setting]["best"], ROUNDS * others, ROUNDS * others)


def test_along_a_tree_messages_go_to_the_parents_process(counts: Counts) -> None:
    """What the root has in the end goes to everybody, dense, as in a star without a compressor."""
    others = len(counts) - 1
    for rank in counts:
        up = rank["tree"]["best"] - rank["tree"]["down"]
        slack = rank["dense star"]["sent"] // 100  # the root's sum takes one of two ways around
        extra = rank["tree"]["sent"] - rank["dense star"]["sent"]
        assert up - slack <= extra <= up + slack + ROUNDS * (EXCHANGE * others + MESSAGE)


def test_dense_messages_are_added_up_on_the_way(counts: Counts) -> None:
    """However many clients there are, a process sends about two vectors a round."""
    for rank in counts:
        assert rank["dense star"]["sent"] < rank["dense star"]["up"]


# ---------------------------------------------------------------------------------------------------- bytes that travel


@given(messages=st.lists(st.binary(max_size=20), max_size=6))
def test_a_bundle_is_taken_apart_again(messages: list[bytes]) -> None:
    data = bundle(messages)
    assert unbundle(data) == messages
    assert len(data) == 8 + 8 * len(messages) + sum(map(len, messages))


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_bundle_or_refused(data: bytes) -> None:
    try:
        messages = unbundle(data)
    except RunError:
        return
    assert bundle(messages) == data


@every([TopK(k=5), QSGD(3)])
def test_the_sum_does_not_depend_on_who_is_where(C) -> None:
    """To the bit: messages are added up in the order of the clients, however they are split over processes."""
    v, w = normal(0, 7, D), torch.rand(7, dtype=torch.float64)
    sums = []
    for cuts in ([0, 7], [0, 3, 7], [0, 0, 2, 6, 7]):
        parts = []
        for a, b in pairwise(cuts):
            part = WeightedSum(posting=True)
            part.add((C(v[a:b], keys(7)[a:b]), v[a:b]), w[a:b])
            parts.append(part)
        sums.append(parts[0].read([part.letters() for part in parts]))
    (whole, weight), *others = sums
    assert torch.allclose(whole[0], w @ C(v, keys(7)).dense, rtol=1e-12, atol=1e-14)
    assert torch.allclose(weight, w.sum())
    assert all(same_bits(other[0][0], whole[0]) and same_bits(other[1], weight) for other in others)


def test_what_identity_packs_is_dense() -> None:
    v = normal(0, 2, D)
    assert compressed(TopK(k=1)(v, keys(2)))
    assert not compressed(Identity()(v, keys(2)))
    assert not compressed(v)
