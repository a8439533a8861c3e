"""How a coordinator hears of the clients: message by message, or, with secure aggregation, only the sum of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from proxfed.engine.messages import WeightedSum, leaves, rebuild, with_rows
from proxfed.engine.network import Stacked
from proxfed.keyed_random import Ids
from proxfed.machine import over_threads
from proxfed.silos.coordinator.robust import centre
from proxfed.silos.protection.masks import add_up
from proxfed.silos.wire.message import Letter
from proxfed.types import Message

if TYPE_CHECKING:
    from proxfed.harness.protection import Robust
    from proxfed.silos.coordinator.coordinator import Coordinator


class Collect:
    """Message by message."""

    whole = False
    """A sum is of no use if one of those who were told of each other is missing: who is there is asked beforehand."""

    def mean(self, coordinator: Coordinator, answers: Mapping[str, Letter], ids: Mapping[str, list[int]]) -> Message:
        """The weighted mean of the messages, stacked in the order of the clients and added up as in one place."""
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

        quiet = Stacked(c.network.n, c.network.d)  # what crossed is counted by who sent it
        who = c.cohort_of(everybody)
        return quiet.mean(over_threads(add_up, quiet.blocks(who)))


class CollectRobust(Collect):
    """Message by message, and their centre instead of their mean."""

    def __init__(self, rule: Robust) -> None:
        self.rule = rule

    def mean(self, coordinator: Coordinator, answers: Mapping[str, Letter], ids: Mapping[str, list[int]]) -> Message:
        c = coordinator
        form, rows = c.stacked({site: c.message(site, answers[site], len(own)) for site, own in ids.items()})
        whole = centre(torch.cat([x.flatten(1) for x in rows], 1), self.rule)
        parts = whole.split([x[0].numel() for x in rows])
        return rebuild(form, iter([part.view(x.shape[1:]).to(x) for part, x in zip(parts, rows, strict=True)]))


class CollectSum(Collect):
    """It hears masked messages, in fixed point with so many bits, and reads their sum."""

    whole = True

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def mean(self, coordinator: Coordinator, answers: Mapping[str, Letter], ids: Mapping[str, list[int]]) -> Message:
        c = coordinator
        form, rows = c.stacked({site: c.message(site, answers[site], 1) for site in ids})
        share = sum(c.job.weights[i] for own in ids.values() for i in own)
        return rebuild(form, iter([(add_up(x, self.bits) / share).to(c.problem.f.weights) for x in rows]))
