"""A network arranged for speed is the same function with the same gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from proxfed.problems.neural.rewrite import arrange


def kinds(layers: nn.Sequential) -> list[str]:
    return [type(layer).__name__ for layer in layers]


def gradients(net: nn.Module, A: Tensor) -> list[Tensor]:
    net.zero_grad()
    net(A).square().sum().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def network(inplace: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(inplace),
        nn.MaxPool2d(3, 2, padding=1),
        nn.Sequential(nn.Conv2d(4, 3, 3), nn.ReLU(inplace), nn.MaxPool2d(2)),
        nn.Flatten(),
        nn.Linear(12, 3),
    ).double()


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_outputs_and_gradients_stay(inplace: bool, layout: torch.memory_format) -> None:
    """Few levels of grey, a constant image and one whose scores are all negative: full of ties."""
    A = torch.randint(0, 2, (6, 2, 12, 12), generator=torch.Generator().manual_seed(0)).double()
    A[4], A[5] = 1.0, -5.0
    A = A.contiguous(memory_format=layout)
    plain, fast = network(inplace), network(inplace)
    arrange(fast)
    assert torch.equal(plain(A), fast(A))
    for a, b in zip(gradients(plain, A), gradients(fast, A), strict=True):
        assert a.abs().max() > 0
        assert torch.allclose(a, b, rtol=0, atol=1e-12 * float(a.abs().max()))


def test_pools_come_first_at_every_depth_and_nothing_else_moves() -> None:
    net = network(False)
    arrange(net)
    assert kinds(net) == ["Conv2d", "MaxPool2d", "ReLU", "Sequential", "Flatten", "Linear"]
    assert kinds(net[3]) == ["Conv2d", "MaxPool2d", "ReLU"]
    other = nn.Sequential(nn.ReLU(), nn.AvgPool2d(2), nn.Tanh(), nn.MaxPool2d(2))
    before = kinds(other)
    arrange(other)
    assert kinds(other) == before


class Peeks(nn.Module):
    """Looks at what comes out of its second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, A: Tensor) -> Tensor:
        seen = self.layers[:2](A)
        return self.layers[2](seen).sum() + seen.square().sum()


def test_a_module_that_looks_between_its_layers_stays_as_it_is() -> None:
    net = Peeks()
    A = torch.randn(3, 2, 12, 12)
    before = net(A)
    arrange(net)
    assert kinds(net.layers) == ["Conv2d", "ReLU", "MaxPool2d"]
    assert torch.equal(net(A), before)


def test_parameters_keep_their_names() -> None:
    net = network(False)
    before = copy.deepcopy(net.state_dict())
    arrange(net)
    assert list(net.state_dict()) == list(before)


def test_the_gradient_through_flatten_has_the_layout_of_the_images() -> None:
    seen = []
    net = network(False)
    arrange(net)
    A = torch.rand(6, 2, 12, 12, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    net[4].register_forward_pre_hook(lambda _, inputs: inputs[0].register_hook(seen.append) and None)
    net(A).sum().backward()
    assert seen[-1].is_contiguous(memory_format=torch.channels_last)
    assert not seen[-1].is_contiguous()
