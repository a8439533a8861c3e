"""What ranks do before they work together: each proves that it is meant, and all say that they are about the same.

Who knows the secret of a run proves it to each other rank by answering its challenge (HMAC-SHA256), once for every
connection, before anything else is sent over it. What is sent later is neither encrypted nor signed: on the network
between machines that is not enough against somebody who can change packets.
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
"""Bytes of what ranks tell each other before they begin."""


def prove(secret: bytes) -> None:
    """Every two ranks know the same secret, or a RunError."""
    me, others = dist.get_rank(), [q for q in range(dist.get_world_size()) if q != dist.get_rank()]
    asked = {q: token_bytes(BYTES) for q in others}
    heard = _swap(asked)
    answers = _swap({q: _answer(secret, me, q, heard[q], asked[q]) for q in others})
    for q in others:
        good = hmac.compare_digest(answers[q], _answer(secret, q, me, asked[q], heard[q]))
        if not good:
            raise RunError(f"rank {q} does not know the secret of this run (PROXFED_SECRET), and is not listened to")


def _answer(secret: bytes, who: int, to: int, challenge: bytes, own: bytes) -> bytes:
    return hmac.digest(secret, f"{who} to {to}".encode() + challenge + own, "sha256")


def _swap(said: Mapping[int, bytes]) -> dict[int, bytes]:
    """To each other rank what is said to it, and from each what it says."""
    heard = {q: torch.empty(BYTES, dtype=torch.uint8) for q in said}
    ops = []
    for q, words in said.items():
        ops += [dist.P2POp(dist.isend, _tensor(words), q), dist.P2POp(dist.irecv, heard[q], q)]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    return {q: _bytes(words) for q, words in heard.items()}


def agree(about: Mapping[str, Any]) -> None:
    """All ranks say the same about what they are going to do, or all refuse with the first difference.

    `about` is by dotted keys, of values that JSON has.
    """
    me, size = dist.get_rank(), dist.get_world_size()
    mine = json.loads(json.dumps(about))
    leaders = json.loads(_told(json.dumps(mine).encode(), 0))
    difference = _first_difference(leaders, mine, me)
    first = torch.tensor([me if difference else size])
    dist.all_reduce(first, dist.ReduceOp.MIN)
    if (odd := int(first)) < size:
        raise InputError(_told(difference.encode(), odd).decode())


def _first_difference(theirs: Mapping[str, Any], mine: Mapping[str, Any], me: int) -> str:
    for key in {**theirs, **mine}:
        there, here = (json.dumps(table[key]) if key in table else "nothing" for table in (theirs, mine))
        if there != here:
            return f"the ranks were not started alike: {key} is {there:.200} on rank 0, but {here:.200} on rank {me}"
    return ""


def _told(words: bytes, by: int) -> bytes:
    """What one rank says, to all."""
    length = torch.tensor([len(words)])
    dist.broadcast(length, by)
    require(0 <= int(length) <= MOST, f"rank {by} has {int(length)} bytes to say before it begins")
    said = _tensor(words) if dist.get_rank() == by else torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(said, by)
    return _bytes(said)


def _tensor(words: bytes) -> Tensor:
    return torch.frombuffer(bytearray(words), dtype=torch.uint8)


def _bytes(words: Tensor) -> bytes:
    return words.numpy().tobytes()
