"""Sums from the leaves of a tree to its root, over the clients of one process or of several.

Nodes at the same distance from the root are worked on together, the farthest first. What they send is added up for
their parents, who are one step nearer; over several processes that is one sum of the parents' rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.network import Network
from proxfed.topologies.spanning_tree import Rooted

PassOn = Callable[[np.ndarray, list[Tensor], bool], list[Tensor]]
"""(nodes that live here, the sums of what their children sent, whether they are the root) -> what they send."""


def to_the_root(net: Network, tree: Rooted, like: list[Tensor], pass_on: PassOn) -> list[Tensor]:
    """What the root passes on in the end, the same in every process; `like` are rows of the clients that live here."""
    below = [torch.zeros_like(rows) for rows in like]
    for nodes in reversed(tree.levels[1:]):
        lives_here = _within(net, nodes)
        here = nodes[lives_here]
        sent = pass_on(here, [sums[net.rows(here)] for sums in below], False)
        parents, index = np.unique(tree.parent[nodes], return_inverse=True)
        mine, slot = _within(net, parents), torch.from_numpy(index[lives_here])
        for sums, rows in zip(below, sent, strict=True):
            part = rows.new_zeros(len(parents), rows.shape[1]).index_add_(0, slot, rows)
            total = net.all_sum(part.ravel()).view_as(part)
            sums[net.rows(parents[mine])] = total[torch.from_numpy(mine)]
    root = tree.levels[0][_within(net, tree.levels[0])]
    return net.all_sums([rows.sum(0) for rows in pass_on(root, [sums[net.rows(root)] for sums in below], True)])


def _within(net: Network, nodes: np.ndarray) -> np.ndarray:
    """Which of them live in this process."""
    return (nodes >= net.ids.start) & (nodes < net.ids.stop)
