"""Sums from the leaves of a tree to its root, over the clients of one process or of several.

Nodes at the same distance from the root are worked on together, the farthest first. What they send is added up for
their parents, who are one step nearer; over several processes that is one sum of the parents' rows, or, where messages
are compressed, each of them goes to the process of its parent.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from proxfed.engine.messages import dense
from proxfed.engine.network import Network
from proxfed.topologies.spanning_tree import Rooted
from proxfed.types import Packed

PassOn = Callable[[np.ndarray, list[Tensor], bool], list[Tensor | Packed]]
"""(nodes that live here, the sums of what their children sent, whether they are the root) -> what they send."""


def to_the_root(net: Network, tree: Rooted, like: list[Tensor], pass_on: PassOn) -> list[Tensor]:
    """What the root passes on in the end, the same in every process; `like` are rows of the clients that live here."""
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
