"""The handshake of ranks before a run: each proves that it belongs to the run, and all compare their settings.

A rank proves to each other rank that it knows the secret of the run by answering its challenge (HMAC-SHA256), once per
connection, before anything else is sent over it. Later messages are neither encrypted nor signed: this does not protect
against an attacker who can change packets between machines.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from secrets import token_bytes
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from proxfed.errors import InputError, RunError, require

BYTES = 32
MOST = 1 << 26
"""The largest message of the handshake, in bytes."""


def prove(secret: bytes) -> None:
    """Raise a RunError unless all ranks know the same secret."""
    me, others = dist.get_rank(), [q for q in range(dist.get_world_size()) if q != dist.get_rank()]
    challenges = {q: token_bytes(BYTES) for q in others}
    received = _swap(challenges)
    answers = _swap({q: _answer(secret, me, q, received[q], challenges[q]) for q in others})
    for q in others:
        good = hmac.compare_digest(answers[q], _answer(secret, q, me, challenges[q], received[q]))
        if not good:
            raise RunError(f"rank {q} does not know the secret of this run (PROXFED_SECRET) and is rejected")


def _answer(secret: bytes, sender: int, to: int, challenge: bytes, own: bytes) -> bytes:
    return hmac.digest(secret, f"{sender} to {to}".encode() + challenge + own, "sha256")


def _swap(outgoing: Mapping[int, bytes]) -> dict[int, bytes]:
    """Send each other rank its bytes, and receive theirs."""
    received = {q: torch.empty(BYTES, dtype=torch.uint8) for q in outgoing}
    ops = []
    for q, words in outgoing.items():
        ops += [dist.P2POp(dist.isend, _tensor(words), q), dist.P2POp(dist.irecv, received[q], q)]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    return {q: _bytes(words) for q, words in received.items()}


def agree(about: Mapping[str, Any]) -> None:
    """Check that all ranks have the same settings; otherwise all raise an error that names the first difference.

    `about` maps dotted keys to JSON values.
    """
    me, size = dist.get_rank(), dist.get_world_size()
    mine = json.loads(json.dumps(about))
    leaders = json.loads(_broadcast(json.dumps(mine).encode(), 0))
    difference = _first_difference(leaders, mine, me)
    first = torch.tensor([me if difference else size])
    dist.all_reduce(first, dist.ReduceOp.MIN)
    if (odd := int(first)) < size:
        raise InputError(_broadcast(difference.encode(), odd).decode())


def _first_difference(theirs: Mapping[str, Any], mine: Mapping[str, Any], me: int) -> str:
    for key in {**theirs, **mine}:
        there, here = (json.dumps(table[key]) if key in table else "nothing" for table in (theirs, mine))
        if there != here:
            return f"the ranks were not started alike: {key} is {there:.200} on rank 0, but {here:.200} on rank {me}"
    return ""


def _broadcast(words: bytes, by: int) -> bytes:
    """The bytes of rank `by`, on all ranks."""
    length = torch.tensor([len(words)])
    dist.broadcast(length, by)
    require(0 <= int(length) <= MOST, f"rank {by} announces {int(length)} bytes for the handshake, of at most {MOST}")
    data = _tensor(words) if dist.get_rank() == by else torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(data, by)
    return _bytes(data)


def _tensor(words: bytes) -> Tensor:
    return torch.frombuffer(bytearray(words), dtype=torch.uint8)


def _bytes(words: Tensor) -> bytes:
    return words.numpy().tobytes()
