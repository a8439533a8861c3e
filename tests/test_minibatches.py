"""Minibatches of networks: shuffled epochs, keyed."""

from __future__ import annotations

import numpy as np
import torch

from proxfed import keyed_random
from proxfed.problems.neural.minibatches import Epochs, cuts
from proxfed.problems.neural.neural import Neural

from support.image_data import close, images, point


def test_an_epoch_uses_every_sample_once() -> None:
    first, sizes = np.array([0, 7, 30, 35]), np.array([7, 12, 5, 1])
    epochs = Epochs(keyed_random.keys(0, "minibatch", range(4), 1), first, sizes, 5, True)
    for i, (start, m) in enumerate(zip(first, sizes, strict=True)):
        nb = -(-int(m) // 5)
        for epoch in range(3):
            drawn = [epochs(epoch * nb + k)[i] for k in range(nb)]
            assert [len(d) for d in drawn] == [min(5, m - k) for k in range(0, m, 5)]
            assert sorted(np.concatenate(drawn)) == list(range(start, start + m))


def test_orders_differ_between_clients_rounds_and_epochs() -> None:
    def order(i: int, t: int, epoch: int, seed: int = 0) -> tuple[int, ...]:
        return tuple(
            Epochs(keyed_random.keys(seed, "minibatch", [i], t), np.array([0]), np.array([20]), 20, True)(epoch)[0]
        )

    orders = {order(*which) for which in ((0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1), (0, 1, 0, 9))}
    assert len(orders) == 5
    assert order(0, 1, 0) == order(0, 1, 0)


def test_the_mean_over_an_epoch_is_the_full_gradient() -> None:
    p = Neural(images((7,)), "depositum_cnn", batch=3, dtype=torch.float64)
    x, f = p.initial(0), p.local(1, [0])
    for epoch in (0, 1):
        mean = sum(len(r) / 7 * f.grad(x, 3 * epoch + k) for k, r in enumerate((range(3), range(3), range(1))))
        assert close(mean, f.full_grad(x), 1e-10)


def test_same_draw_same_minibatch() -> None:
    p = Neural(images(), "mlp", batch=5, augment="crop_flip")
    x, f = point(p), p.local(1, range(p.n))
    first = f.grad(x, 0)
    assert not torch.equal(f.grad(x, 1), first)
    assert torch.equal(f.grad(x, 0), first)
    assert torch.equal(p.local(1, range(p.n)).grad(x, 0), first)


def test_a_single_last_sample_joins_where_it_may_not_be_alone() -> None:
    assert cuts(9, 4) == [slice(0, 4), slice(4, 8), slice(8, 9)]
    assert cuts(9, 4, alone=False) == [slice(0, 4), slice(4, 9)]
    assert cuts(10, 4, alone=False) == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert cuts(1, 4, alone=False) == [slice(0, 1)]
