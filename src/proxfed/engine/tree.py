"""A run with a server at the root of a tree: its message goes down every edge, and sums of messages go up.

Nodes at the same distance from the root are processed together, the farthest first. Their messages are added up for
their parents, which are one step nearer. Over several processes that is one all-reduce of the parents' rows; compressed
messages are sent to the process of the parent instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.halves import Work
from proxfed.engine.messages import dense, leaves, rebuild, received
from proxfed.engine.network import Network
from proxfed.engine.star import StarRun
from proxfed.keyed_random import Ids, keys
from proxfed.machine import over_threads
from proxfed.topologies.spanning_tree import Rooted, SpanningTree
from proxfed.types import Message, Packed, Relay


class TreeRun(StarRun):
    """All clients take part in every round."""

    def _round(self, t: int) -> None:
        net, alg, half, rows, topology = self.network, self.algorithm, self.half, self.rows, self.network.topology
        assert isinstance(topology, SpanningTree)
        tree, everyone = topology.rooted, self.blocks(range(net.n))
        state, message = half.down(self.server, t)
        down, root = received(message), int(tree.levels[0][0])
        net.send(message, len(net.ids) - (root in net.ids))  # the server is where the root is
        scale = net.n * half.weights[net.ids.start : net.ids.stop, None]

        def client_rounds(blocks: Sequence[Ids]) -> tuple[list[Message], Work]:
            sent, work = [], Work()
            for ids in blocks:
                new, up = self.clients.client(alg, rows.take(ids, work), down, t, ids, work)
                sent.append(rebuild(up, iter([scale[net.rows(ids)] * dense(m) for m in leaves(up)])))
                rows.put(ids, new)
            return sent, work

        parts, works = zip(*over_threads(client_rounds, everyone), strict=True)
        self.work.add(*works)
        messages = [m for part in parts for m in part]
        own = [torch.cat(rows) for rows in zip(*map(leaves, messages), strict=True)]

        def pass_on(nodes: Ids, below: list[Tensor], at_root: bool) -> list[Tensor | Packed]:
            at = net.rows(nodes)
            if isinstance(alg, Relay):
                key = None if at_root else keys(self.seed, "message", nodes, t)
                new, up = alg.relay(rows.take(nodes, self.work), own[0][at], below[0], key)
                rows.put(nodes, new)
            else:
                up = tuple(mine[at] + theirs for mine, theirs in zip(own, below, strict=True))
            if not at_root:
                net.pass_on(up)
            return leaves(up)

        totals = to_the_root(net, tree, own, pass_on)
        up = rebuild(messages[0], iter([total / net.n for total in totals]))
        self.server = half.update(state, up, range(net.n), self.work, int(net.leader))


PassOn = Callable[[np.ndarray, list[Tensor], bool], list[Tensor | Packed]]
"""(nodes of this process, the sums of their children's messages, whether they are the root) -> their messages."""


def to_the_root(net: Network, tree: Rooted, like: list[Tensor], pass_on: PassOn) -> list[Tensor]:
    """The root's final message, the same in every process; `like` are rows of this process's clients."""
    below = [torch.zeros_like(rows) for rows in like]
    for nodes in reversed(tree.levels[1:]):
        here = nodes[net.within(nodes)]
        sent = pass_on(here, [sums[net.rows(here)] for sums in below], False)
        parents = np.unique(tree.parent[nodes])
        mine = net.rows(parents[net.within(parents)])
        for sums, rows in zip(below, sent, strict=True):
            sums[mine] = net.sums_of(rows, nodes, tree.parent[nodes])
    root = tree.levels[0][net.within(tree.levels[0])]
    sent = pass_on(root, [sums[net.rows(root)] for sums in below], True)
    return net.all_sums([dense(rows).sum(0) for rows in sent])
