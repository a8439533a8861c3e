"""Problems made of the wrong things: one sentence that names the key, the value and what is allowed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from proxfed import Linear, Neural
from proxfed.data.federated import Dataset
from proxfed.errors import InputError
from proxfed.regularisers import L1
from proxfed.types import Problem

from support import toy_problems as toy
from support.image_data import images

DATA = toy.data("logistic", (10, 10))
PILE = Dataset(np.eye(3), np.ones(3))


class Wide(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()


REFUSALS = [
    (lambda: Linear(DATA, "logistik"), "loss = 'logistik' is not a loss; did you mean 'logistic'?"),
    (lambda: Linear(DATA, 3), "loss = 3 is not a loss; give Squared(), say, or one of squared, huber, logistic, "),
    (lambda: Linear("mnist", "logistic"), "Linear: data = 'mnist' is not a Federated, as load(...) returns"),
    (
        lambda: Linear(PILE, "logistic"),
        "Linear: data = Dataset('data', 3 samples of shape (3,)) is not split among",
    ),
    (lambda: Linear(DATA, "logistic") + "l1", "h = 'l1' is not a regulariser such as L1(0.1)"),
    (lambda: Linear(DATA, "logistic") + L1, "h = L1 is a class, not a regulariser such as L1(0.1)"),
    (lambda: Linear(DATA, "logistic", batch=0), "Linear: batch = 0 must be a whole number >= 1"),
    (lambda: Linear(DATA, "logistic", l2=-1), "Linear: l2 = -1 must be >= 0"),
    (lambda: Linear(DATA, "logistic", dtype="float16"), "Linear: dtype = 'float16' is not one of float32, float64"),
    (lambda: Linear(DATA, "logistic", dtype=torch.int64), "Linear: dtype = torch.int64 is not one of float32, float64"),
    (lambda: Problem(Linear(DATA, "logistic"), L1(0.1), torch.ones(3)), "x0 has shape (3,), but d = 10"),
    (lambda: Neural(images(), "mpl"), "there is no model 'mpl'; did you mean 'mlp'?"),
    (lambda: Neural(images(), 3), "there is no model 3; known: "),
    (lambda: Neural("mnist", "mlp"), "Neural: data = 'mnist' is not a Federated"),
    (lambda: Neural(images(), Wide), "must take no arguments: missing a required argument: 'width'"),
    (lambda: Neural(images(), lambda k: nn.Linear(2, k)), "must take (channels, side, classes): too many positional"),
    (lambda: Neural(images(), lambda *_: 3), "model: the function gives a int, not an nn.Module"),
    (lambda: Neural(images(), "mlp") + L1, "h = L1 is a class, not a regulariser such as L1(0.1)"),
    (
        lambda: Neural(images(), "mlp", "hinge"),
        "loss = 'hinge' is not a loss; known: cox, cross_entropy, huber, logistic, ",
    ),
    (lambda: Neural(images(), "mlp", "logistic"), "logistic regression takes labels -1 and +1, but"),
]


@pytest.mark.parametrize(("make", "sentence"), REFUSALS, ids=[sentence for _, sentence in REFUSALS])
def test_it_is_one_sentence(make, sentence) -> None:
    with pytest.raises(InputError) as e:
        make()
    assert sentence in str(e.value)
    assert "\n" not in str(e.value)


def test_a_dtype_may_be_named() -> None:
    assert Linear(DATA, "logistic", dtype="float32").initial(0).dtype == torch.float32
