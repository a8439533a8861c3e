"""How a coordinator collects messages: one by one, or, with secure aggregation, only their sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.compatibility import keeps_a_state
from proxfed.engine.messages import WeightedSum, dense, leaves, rebuild, received, with_rows
from proxfed.engine.network import Stacked
from proxfed.errors import RunError
from proxfed.keyed_random import Ids
from proxfed.machine import over_threads
from proxfed.silos.coordinator.robust import centre
from proxfed.silos.protection import narrow_words
from proxfed.silos.protection.masks import Words, reveal
from proxfed.silos.wire.message import Letter
from proxfed.types import Message, Star

if TYPE_CHECKING:
    from proxfed.harness.protection import Protection, Robust
    from proxfed.silos.coordinator.coordinator import Coordinator


class Collect:
    """Collects the messages one by one."""

    whole = False
    """Whether a sum needs every site of its cohort; then the coordinator first checks which sites are available."""

    def count(
        self, c: Coordinator, alg: Star[Any, Any], t: int, ids: dict[str, list[int]], down: Message, body: bytes
    ) -> dict[str, list[int]]:
        """The cohort of a round, from the chosen clients by site and the server's message to them."""
        return ids

    def head(self, site: str) -> dict[str, Any]:
        """Additional entries of the question to this site."""
        return {}

    def gather(self, c: Coordinator, alg: Star[Any, Any], t: int, questions: Mapping[str, Letter]) -> dict[str, Letter]:
        """The answers that the round uses."""
        return c.answers(alg, t, questions)

    def dump(self) -> dict[str, Tensor]:
        """Its state between rounds."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `dump` wrote."""

    def mean(self, coordinator: Coordinator, answers: Mapping[str, Letter], ids: Mapping[str, list[int]]) -> Message:
        """The weighted mean of the messages, stacked in the order of the clients and summed as in a local run."""
        c = coordinator
        everybody = [i for own in ids.values() for i in own]
        form, rows = c.stacked({site: c.message(site, answers[site], len(own)) for site, own in ids.items()})
        place = {i: k for k, i in enumerate(everybody)}

        def add_up(blocks: Sequence[Ids]) -> WeightedSum:
            sent = WeightedSum()
            for block in blocks:
                here = slice(place[int(block[0])], place[int(block[-1])] + 1)
                parts = [with_rows(leaf, x[here]) for leaf, x in zip(leaves(form), rows, strict=True)]
                c.server.add(sent, rebuild(form, iter(parts)), block)
            return sent

        quiet = Stacked(c.network.n, c.network.d)  # the senders count the bytes
        who = c.cohort_of(everybody)
        return quiet.mean(over_threads(add_up, quiet.blocks(who)))


class CollectRobust(Collect):
    """Collects the messages one by one, and uses a robust centre instead of their mean."""

    def __init__(self, rule: Robust) -> None:
        self.rule = rule

    def mean(self, coordinator: Coordinator, answers: Mapping[str, Letter], ids: Mapping[str, list[int]]) -> Message:
        c = coordinator
        form, rows = c.stacked({site: c.message(site, answers[site], len(own)) for site, own in ids.items()})
        whole = centre(torch.cat([x.flatten(1) for x in rows], 1), self.rule)
        parts = whole.split([x[0].numel() for x in rows])
        return rebuild(form, iter([part.view(x.shape[1:]).to(x) for part, x in zip(parts, rows, strict=True)]))


class CollectSum(Collect):
    """Collects masked messages and reads their sum."""

    whole = True

    def __init__(self, protection: Protection) -> None:
        self.bits, self.word_bits = protection.fraction_bits, protection.word_bits
        self.together = 0.0
        """For narrow words: the sum over sites of their largest numbers in the last round; 0: not known."""

    def count(
        self, c: Coordinator, alg: Star[Any, Any], t: int, ids: dict[str, list[int]], down: Message, body: bytes
    ) -> dict[str, list[int]]:
        ids = self._there(c, alg, t, ids)
        narrow = self.word_bits < 64 and self.together > 0
        self.grain = narrow_words.exponent(self.together, len(ids), self.word_bits) if narrow else None
        self.t, self.down, self.broadcast = t, down, narrow_words.bound(body, self.grain)
        return ids

    def _there(self, c: Coordinator, alg: Star[Any, Any], t: int, ids: dict[str, list[int]]) -> dict[str, list[int]]:
        return c.there(alg, t, ids)

    def head(self, site: str) -> dict[str, Any]:
        return {} if self.grain is None else {"grain": self.grain}

    def gather(self, c: Coordinator, alg: Star[Any, Any], t: int, questions: Mapping[str, Letter]) -> dict[str, Letter]:
        return c.ask(questions)

    def dump(self) -> dict[str, Tensor]:
        return {"together": torch.tensor(self.together, dtype=torch.float64)} if self.word_bits < 64 else {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.together = float(tensors["together"]) if self.word_bits < 64 else 0.0

    def mean(self, coordinator: Coordinator, answers: Mapping[str, Letter], ids: Mapping[str, list[int]]) -> Message:
        c = coordinator
        form, rows = c.stacked({site: c.message(site, answers[site], 1) for site in ids})
        each = [self._words(x).sum(axis=0, dtype=np.uint64) for x in rows]
        words, sizes = np.concatenate(each), [len(x) for x in each]
        sums = torch.from_numpy(self._values(words - self._too_much(c, list(ids), len(words))))
        if self.word_bits < 64:  # the last number is the largest magnitude of the others
            self.together, sums = float(sums[-1]), sums[:-1]
            sizes[-1] -= 1
        parts = list(sums.split(sizes))
        if self.word_bits < 64 and not keeps_a_state(c.star, c.problem.f.d):
            parts = [part + known for part, known in zip(parts, self._known(c, ids), strict=True)]
        share = sum(c.job.weights[i] for own in ids.values() for i in own)
        return rebuild(form, iter([(part / share).to(c.problem.f.weights) for part in parts]))

    def _words(self, rows: Tensor) -> Words:
        """(sites, k)."""
        if self.grain is not None:
            return np.stack([narrow_words.from_bytes(row, self.word_bits) for row in rows])
        if rows.dtype != torch.int64:
            raise RunError(f"masked messages are whole numbers, not {rows.dtype}")
        return rows.numpy().view(np.uint64)

    def _values(self, words: Words) -> np.ndarray:
        if self.grain is None:
            return reveal([words], self.bits)
        return narrow_words.signed(words, self.word_bits) * 2.0**self.grain

    def _too_much(self, c: Coordinator, sites: Sequence[str], count: int) -> Words:
        """The masks that remain in the sum of these sites' words."""
        return np.zeros(count, np.uint64)

    def _known(self, c: Coordinator, ids: Mapping[str, list[int]]) -> list[Tensor]:
        """The public part of the sum: the message of clients without rows."""
        everybody = [i for own in ids.values() for i in own]
        known = c.clients.without_rows(c.star, (), received(self.down), self.t, np.array(everybody, np.int64))
        p = torch.tensor([c.job.weights[i] for i in everybody], dtype=torch.float64)
        return [p @ dense(leaf).double() for leaf in leaves(known)]
