"""The networks of the papers: as many parameters as reported, the right shapes, names for every layer."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from proxfed.errors import InputError
from proxfed.problems.neural.architectures import MODELS

VGG16_WIDTHS = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
VGG16 = sum(9 * a * b + b for a, b in pairwise(VGG16_WIDTHS)) + 512 * 10 + 10
EIGHTH_WIDTHS = [3, *(width // 8 for width in VGG16_WIDTHS[1:])]
EIGHTH = sum(9 * a * b + b for a, b in pairwise(EIGHTH_WIDTHS)) + 64 * 10 + 10

COUNTS = [
    ("linear", 123, 1, 2, 248),
    ("linear", 1, 28, 10, 7_850),
    ("linear", 1, 28, 27, 21_195),
    ("linear", 3, 32, 10, 30_730),
    ("mlp", 123, 1, 2, 24_258),
    ("mlp", 1, 28, 10, 109_386),
    ("mlp", 1, 28, 27, 110_491),
    ("mlp", 3, 32, 10, 402_250),
    ("depositum_cnn", 1, 28, 10, 268_362),
    ("depositum_cnn", 1, 28, 27, 270_555),
    ("depositum_cnn", 3, 32, 10, 268_650),
    ("resnet18", 1, 28, 10, 11_175_370),
    ("resnet18", 1, 28, 27, 11_184_091),
    ("resnet18", 3, 32, 10, 11_181_642),
    ("resnet18_group_norm", 1, 28, 10, 11_175_370),
    ("resnet18_group_norm", 3, 32, 10, 11_181_642),
    ("fedcef_cifar_cnn", 3, 32, 10, 4_460_106),
    ("fedcef_mnist_cnn", 1, 28, 10, 421_642),
    ("dfedadmm_mlp", 1, 28, 10, 199_210),
    ("dfedadmm_cnn", 3, 32, 10, 797_962),
    ("fednag_cnn", 1, 28, 10, 569_606),
    ("vgg16", 3, 32, 10, VGG16),
    ("vgg16_eighth", 3, 32, 10, EIGHTH),
]


def made(name: str, channels: int, side: int, classes: int) -> nn.Module:
    """Shapes alone, without memory."""
    with torch.device("meta"):
        return MODELS[name](channels, side, classes)


@pytest.mark.parametrize(("name", "channels", "side", "classes", "count"), COUNTS)
def test_parameters_as_reported(name: str, channels: int, side: int, classes: int, count: int) -> None:
    assert sum(p.numel() for p in made(name, channels, side, classes).parameters()) == count


@pytest.mark.parametrize(("name", "channels", "side", "classes", "count"), COUNTS)
def test_one_row_of_scores_a_sample(name: str, channels: int, side: int, classes: int, count: int) -> None:
    model = made(name, channels, side, classes)
    assert model(torch.empty(2, channels, side, side, device="meta")).shape == (2, classes)


def test_every_model_has_its_count() -> None:
    assert {name for name, *_ in COUNTS} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_called_by_what_they_are(name: str) -> None:
    for layer, module in made(name, 3, 32, 10).named_modules():
        if isinstance(module, nn.Conv2d):
            assert layer.split(".")[-1].startswith("conv")
        if isinstance(module, nn.Linear):
            assert layer.startswith("fc")


def test_group_norm_has_two_groups_and_no_batch_norm() -> None:
    norms = [m for m in made("resnet18_group_norm", 3, 32, 10).modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 20
    assert all(m.num_groups == 2 for m in norms)
    batch = [m for m in made("resnet18", 3, 32, 10).modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(batch) == 20
    assert not any(isinstance(m, nn.BatchNorm2d) for m in made("resnet18_group_norm", 3, 32, 10).modules())


def test_depositum_cnn_pads_with_zeros_around_the_image() -> None:
    model = MODELS["depositum_cnn"](1, 28, 10)
    image = torch.rand(1, 1, 28, 28)
    framed = torch.zeros(1, 1, 32, 32)
    framed[..., 2:30, 2:30] = image
    larger = MODELS["depositum_cnn"](1, 32, 10)
    larger.load_state_dict(model.state_dict())
    assert torch.equal(model(image), larger(framed))


@pytest.mark.parametrize(
    ("name", "side"), [("vgg16", 28), ("vgg16_eighth", 28), ("fednag_cnn", 12), ("dfedadmm_cnn", 12)]
)
def test_images_that_are_too_small_are_refused(name: str, side: int) -> None:
    with pytest.raises(InputError, match=f"not {side}x{side}"):
        made(name, 1, side, 10)
