"""A problem from outside needs no more than its clients' values and gradients; the rest has defaults, or is refused."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from proxfed import Depositum, FedAvg, FedComposite, run
from proxfed.engine.network import Stacked
from proxfed.engine.start import run_of
from proxfed.errors import InputError
from proxfed.keyed_random import Ids
from proxfed.regularisers import L1, Zero
from proxfed.topologies import Ring
from proxfed.types import Block, Local, Smooth

CENTRES = torch.tensor([[3.0, 0.1], [1.0, -0.3], [5.0, 0.2], [3.0, 0.0]], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Quadratic(Smooth):
    """f_i(x) = |x - c_i|^2 / 2."""

    n: int = 4
    d: int = 2

    def local(self, t: int, ids: Ids, seed: int = 0) -> Clients:
        return Clients(t, ids, seed)


@dataclass(frozen=True, eq=False)
class Clients(Local):
    t: int
    ids: Ids
    seed: int
    c: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "c", CENTRES[np.asarray(self.ids)])

    def full_grad(self, x: Tensor) -> Tensor:
        return x - self.c

    def value(self, x: Tensor) -> Tensor:
        return (x - self.c).square().sum(-1) / 2


def test_it_runs_and_reaches_the_solution() -> None:
    mean = CENTRES.mean(0)
    for algorithm, options in ((FedAvg(0.5, 2), {}), (Depositum(0.2), {"topology": Ring(4)})):
        result = run(Quadratic(), algorithm, 200, **options)
        model, rows = result.model, result.rows
        assert torch.allclose(model, mean, atol=1e-6)
        assert rows[-1]["objective"] < rows[0]["objective"]
    sparse = run(Quadratic() + L1(0.5), FedComposite(eta=0.1, eta_g=1.0, tau=2), 300).model
    assert torch.allclose(sparse, torch.tensor([2.5, 0.0], dtype=torch.float64), atol=1e-6)
    assert sparse[1] == 0


def test_what_it_does_not_say_has_a_default() -> None:
    p = Quadratic()
    assert torch.equal(p.weights, torch.full((4,), 0.25, dtype=torch.float64))
    assert p.blocks == (Block("x", 0, 2, (2,)),)
    assert torch.equal(p.initial(7), torch.zeros(2, dtype=torch.float64))
    assert (p.batch, p.data, p.train_measures, p.measures, p.evaluate(p.initial(0))) == (None, None, True, (), {})
    f, y = p.local(3, range(1, 3), 5), torch.ones(2, 2, dtype=torch.float64)
    assert torch.equal(f.grad(y, 0), f.full_grad(y))
    assert f.spread(y[0]).shape == (2, 2)
    assert len(f.key) == 2
    assert not np.array_equal(f.key, p.local(4, range(1, 3), 5).key)
    expected = y - 0.1 * f.full_grad(y)
    expected = expected - 0.1 * f.full_grad(expected)
    f.descend(y, range(2), 0.1)
    assert torch.allclose(y, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda p: (p + Zero()).solve(), "there is no solver for Quadratic"),
        (lambda p: p.smoothness(), "the smoothness of Quadratic is not known: give step sizes as numbers"),
        (lambda p: (p + L1(0.1)).alpha_max(), "alpha_max is not known for Quadratic"),
        (lambda p: p.with_l2(0.1), "Quadratic has no l2"),
    ],
)
def test_what_it_cannot_do_is_refused_in_one_sentence(ask, sentence) -> None:
    with pytest.raises(InputError) as e:
        ask(Quadratic())
    assert str(e.value) == sentence
    assert not Quadratic().solvable


def test_it_may_begin_anywhere_and_take_another_regulariser() -> None:
    p, x = Quadratic() + Zero(), torch.tensor([7.0, 8.0], dtype=torch.float64)
    moved = p.with_h(L1(0.5)).starting_at(x)
    assert torch.equal(moved.start(0), x)
    assert torch.equal(moved.start(1), x)
    assert moved.h == L1(0.5)
    assert (p.x0, p.h) == (None, Zero())
    assert torch.equal(run_of(moved, FedAvg(0.1, 1), Stacked(4, 2)).model(), x)


def test_what_is_necessary_must_be_there() -> None:
    class Empty(Smooth):
        pass

    with pytest.raises(TypeError, match="local"):
        Empty()  # type: ignore[abstract]
    with pytest.raises(TypeError, match=r"full_grad.*value"):
        type("Empty", (Local,), {})()
