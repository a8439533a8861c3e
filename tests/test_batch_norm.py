"""Batch norm without hidden state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from proxfed import InputError
from proxfed.problems.neural.neural import Neural

from support.image_data import CLASSES, images, normed, point


def by_hand(x: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Scores of `normed` on the test images with mean and (unbiased) variance over the training images."""
    W, b, gamma, beta, V, c = np.split(x, np.cumsum([6 * 64, 6, 6, 6, CLASSES * 6]))
    before, here = (A.reshape(len(A), 64) / 255 @ W.reshape(6, 64).T + b for A in (train, test))
    norm = (here - before.mean(0)) / np.sqrt(before.var(0, ddof=1) + 1e-5)
    return (gamma * norm + beta) @ V.reshape(CLASSES, 6).T + c


def test_batch_norm_is_evaluated_with_statistics_of_the_training_data() -> None:
    data = images()
    p = Neural(data, normed, batch=4, dtype=torch.float64)
    x = point(p)[0]
    scores = by_hand(x.numpy(), data.features, data.test[0])
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(9), data.test[1]]
    found = p.evaluate(x)
    assert np.isclose(found["test_loss"], losses.mean(), rtol=1e-10)
    assert np.isclose(found["accuracy"], (scores.argmax(1) == data.test[1]).mean())


def test_batch_norm_has_no_memory() -> None:
    p = Neural(images(), normed, batch=4)
    x, y = point(p)[:2]
    before = {k: v.clone() for k, v in p.net.template.state_dict().items()}
    f = p.local(1, range(p.n))
    g, e = f.grad(x, 0), p.evaluate(x)
    f.grad(y, 1)
    p.evaluate(y)
    assert torch.equal(f.grad(x, 0), g)
    assert p.evaluate(x) == e
    assert p.evaluate(y) != e
    assert all(torch.equal(v, before[k]) for k, v in p.net.template.state_dict().items())
    for kept in (m for m in p.net.engine.worker(True).module.modules() if isinstance(m, nn.BatchNorm1d)):
        assert int(kept.num_batches_tracked) == 0
        assert not kept.running_mean.any()


def test_batch_norm_never_meets_a_single_sample() -> None:
    p = Neural(images((5, 9)), normed, batch=4)
    f, x = p.local(1, range(2)), p.initial(0)
    for draw in range(3):
        assert torch.isfinite(f.grad(x, draw)).all()
    with pytest.raises(InputError, match="batch norm"):
        Neural(images(), normed, batch=1)
    with pytest.raises(InputError, match="client 1 has a single sample"):
        Neural(images((5, 1)), normed, batch=2)
