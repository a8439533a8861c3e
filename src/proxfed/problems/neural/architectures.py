"""The networks of the papers, with the numbers of parameters that the papers report, and a narrow one of our own.

A model is made for images (channels, side, side) and a number of classes; rows of p features are images (p, 1, 1).
The layers' names become the names of the blocks of the flat vector: 'conv1.weight', 'fc2.bias', ...
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from proxfed.errors import require
from proxfed.registry import Registry

Make = Callable[[int, int, int], nn.Module]
"""(channels, side, classes) -> a module that maps (m, channels, side, side) to scores (m, classes)."""


def _stack(**layers: nn.Module) -> nn.Sequential:
    """Named layers, one after the other."""
    net = nn.Sequential()
    for name, layer in layers.items():
        net.add_module(name, layer)
    return net


def _relu() -> nn.ReLU:
    return nn.ReLU(inplace=True)


# ---- dense ---------------------------------------------------------------------------------------------------------


def linear(channels: int, side: int, classes: int) -> nn.Module:
    """Pixels -> classes."""
    return _stack(flatten=nn.Flatten(), fc=nn.Linear(channels * side**2, classes))


def mlp(channels: int, side: int, classes: int) -> nn.Module:
    """Pixels -> 128 -> 64 -> classes (DEPOSITUM)."""
    return _three_layers(channels * side**2, 128, 64, classes)


def dfedadmm_mlp(channels: int, side: int, classes: int) -> nn.Module:
    """Pixels -> 200 -> 200 -> classes (DFedADMM, on MNIST)."""
    return _three_layers(channels * side**2, 200, 200, classes)


def _three_layers(pixels: int, first: int, second: int, classes: int) -> nn.Module:
    return _stack(
        flatten=nn.Flatten(),
        fc1=nn.Linear(pixels, first),
        relu1=_relu(),
        fc2=nn.Linear(first, second),
        relu2=_relu(),
        fc3=nn.Linear(second, classes),
    )


# ---- convolutions --------------------------------------------------------------------------------------------------


def depositum_cnn(channels: int, side: int, classes: int) -> nn.Module:
    """Two 3x3 convolutions with 16 and 32 channels, FC 128, on images padded to 32x32 (DEPOSITUM)."""
    border = max(0, 33 - side) // 2
    return _stack(
        pad=nn.ZeroPad2d(border),
        conv1=nn.Conv2d(channels, 16, 3, padding=1),
        relu1=_relu(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, 3, padding=1),
        relu2=_relu(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(32 * ((side + 2 * border) // 4) ** 2, 128),
        relu3=_relu(),
        fc2=nn.Linear(128, classes),
    )


def fedcef_cifar_cnn(channels: int, side: int, classes: int) -> nn.Module:
    """Four 3x3 convolutions with 64, 64, 128 and 128 channels, FC 512 (FedCEF, on CIFAR-10)."""
    return _stack(
        conv1=nn.Conv2d(channels, 64, 3, padding=1),
        relu1=_relu(),
        conv2=nn.Conv2d(64, 64, 3, padding=1),
        relu2=_relu(),
        pool1=nn.MaxPool2d(2),
        conv3=nn.Conv2d(64, 128, 3, padding=1),
        relu3=_relu(),
        conv4=nn.Conv2d(128, 128, 3, padding=1),
        relu4=_relu(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(128 * (side // 4) ** 2, 512),
        relu5=_relu(),
        fc2=nn.Linear(512, classes),
    )


def fedcef_mnist_cnn(channels: int, side: int, classes: int) -> nn.Module:
    """Two 3x3 convolutions with 32 and 64 channels, FC 128 (FedCEF, on MNIST)."""
    return _stack(
        conv1=nn.Conv2d(channels, 32, 3, padding=1),
        relu1=_relu(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 3, padding=1),
        relu2=_relu(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * (side // 4) ** 2, 128),
        relu3=_relu(),
        fc2=nn.Linear(128, classes),
    )


def dfedadmm_cnn(channels: int, side: int, classes: int) -> nn.Module:
    """Two 5x5 convolutions with 64 channels each, FC 384 and 192 (DFedADMM, on CIFAR-10)."""
    return _stack(
        conv1=nn.Conv2d(channels, 64, 5),
        relu1=_relu(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(64, 64, 5),
        relu2=_relu(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * _after_two_5x5(side) ** 2, 384),
        relu3=_relu(),
        fc2=nn.Linear(384, 192),
        relu4=_relu(),
        fc3=nn.Linear(192, classes),
    )


def fednag_cnn(channels: int, side: int, classes: int) -> nn.Module:
    """Two 5x5 convolutions with 32 and 64 channels, FC 500 (FedNAG)."""
    return _stack(
        conv1=nn.Conv2d(channels, 32, 5),
        relu1=_relu(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 5),
        relu2=_relu(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * _after_two_5x5(side) ** 2, 500),
        relu3=_relu(),
        fc2=nn.Linear(500, classes),
    )


def _after_two_5x5(side: int) -> int:
    """The side of an image after two 5x5 convolutions without padding, each halved."""
    require(side >= 16, f"two 5x5 convolutions without padding take images of at least 16x16, not {side}x{side}")
    return ((side - 4) // 2 - 4) // 2


# ---- deep ----------------------------------------------------------------------------------------------------------


def _vgg16(channels: int, side: int, classes: int, width: int) -> nn.Module:
    """Thirteen 3x3 convolutions, of `width` channels at first and eight times as many at the end, and five pools."""
    require(side >= 32, f"vgg16 takes images of at least 32x32, not {side}x{side}")
    layers: dict[str, nn.Module] = {}
    count, inside = 0, channels
    for pool, (depth, times) in enumerate(((2, 1), (2, 2), (3, 4), (3, 8), (3, 8)), 1):
        for _ in range(depth):
            count += 1
            layers |= {f"conv{count}": nn.Conv2d(inside, times * width, 3, padding=1), f"relu{count}": _relu()}
            inside = times * width
        layers[f"pool{pool}"] = nn.MaxPool2d(2)
    return _he(_stack(**layers, flatten=nn.Flatten(), fc=nn.Linear(inside * (side // 32) ** 2, classes)))


def vgg16(channels: int, side: int, classes: int) -> nn.Module:
    """VGG16 as used on CIFAR: 64 to 512 channels, then 512 -> classes (FedNAG)."""
    return _vgg16(channels, side, classes, 64)


def vgg16_eighth(channels: int, side: int, classes: int) -> nn.Module:
    """VGG16 with an eighth of the channels in every layer, for quick experiments."""
    return _vgg16(channels, side, classes, 8)


def _he(net: nn.Module) -> nn.Module:
    """Give convolutions normal weights of variance 2/fan_out (He et al. 2015), without which deep nets do not learn."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net


Norm = Callable[[int], nn.Module]


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution if the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = norm(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = norm(outside)
        self.relu = _relu()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = _stack(conv=nn.Conv2d(inside, outside, 1, stride, bias=False), norm=norm(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def _resnet18(channels: int, classes: int, norm: Norm) -> nn.Module:
    """The form for large images: 7x7 stem of stride 2, pool, four stages of two blocks, mean (He et al. 2016)."""

    def stage(inside: int, outside: int, stride: int) -> nn.Module:
        return nn.Sequential(Residual(inside, outside, stride, norm), Residual(outside, outside, 1, norm))

    return _he(
        _stack(
            conv1=nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False),
            norm1=norm(64),
            relu1=_relu(),
            pool1=nn.MaxPool2d(3, 2, padding=1),
            stage1=stage(64, 64, 1),
            stage2=stage(64, 128, 2),
            stage3=stage(128, 256, 2),
            stage4=stage(256, 512, 2),
            mean=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(512, classes),
        )
    )


def resnet18(channels: int, side: int, classes: int) -> nn.Module:
    """ResNet-18 with batch norm (DEPOSITUM)."""
    return _resnet18(channels, classes, nn.BatchNorm2d)


def resnet18_group_norm(channels: int, side: int, classes: int) -> nn.Module:
    """ResNet-18 with group norm, two groups (DFedADMM, on CIFAR-100)."""
    return _resnet18(channels, classes, lambda width: nn.GroupNorm(2, width))


MODELS: Registry[Make] = Registry(
    "models",
    {
        "linear": linear,
        "mlp": mlp,
        "depositum_cnn": depositum_cnn,
        "resnet18": resnet18,
        "resnet18_group_norm": resnet18_group_norm,
        "fedcef_cifar_cnn": fedcef_cifar_cnn,
        "fedcef_mnist_cnn": fedcef_mnist_cnn,
        "dfedadmm_mlp": dfedadmm_mlp,
        "dfedadmm_cnn": dfedadmm_cnn,
        "fednag_cnn": fednag_cnn,
        "vgg16": vgg16,
        "vgg16_eighth": vgg16_eighth,
    },
)
"""The models by their names in configuration files."""
