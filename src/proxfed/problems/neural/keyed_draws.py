"""Random numbers of a module's `forward`, such as those of dropout, as a function of a key.

Torch draws from one generator of the whole process: what a client got would depend on which client came first. While
`KeyedDraws` is on, every operation of this thread that draws is given a generator which began with the client's key.
They are drawn on the CPU, so that every device has the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from proxfed.errors import InputError
from proxfed.keyed_random import Key


class KeyedDraws(TorchDispatchMode):
    """All of torch's random draws in this thread follow from a key.

    Parameters
    ----------
    key : Key
        (1,)
    """

    def __init__(self, key: Key) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        """Operations that drew random numbers so far."""
        self._generator = torch.Generator().manual_seed(int(key[0]) >> 1)  # torch takes 63 bits

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or _no_dropout(func, args, kwargs):
            return func(*args, **kwargs)
        self.count += 1
        if func is torch.ops.aten.native_dropout.default:  # of accelerators: the mask and the product in one
            return self._dropout(*args, **kwargs)
        keyed = _with_generator(func)
        given = {**kwargs, "generator": self._generator}
        return keyed(*args, **given) if _on_cpu(args, kwargs) else _drawn_on_cpu(keyed, args, given)

    def _dropout(self, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
        """As the CPU computes it, in the order in which x lies in memory: the same mask, and the same bits."""
        if train is False or p == 0:
            return x.clone(), torch.ones_like(x, dtype=torch.bool)
        noise = torch.empty_like(x, device="cpu").bernoulli_(1 - p, generator=self._generator)
        mask = noise.to(x.device, torch.bool)
        if p < 1:
            noise.div_(1 - p)
        return x * noise.to(x.device), mask


def _no_dropout(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Attention in one kernel that is told to drop nothing: it draws nothing."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    return "dropout_p" in names and given.get("dropout_p", 0.0) == 0


def _with_generator(func: Any) -> Any:
    """The form of an operation that takes a generator."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    name = func._overloadname
    other = getattr(func.overloadpacket, "generator" if name == "default" else f"{name}_generator", None)
    if other is None:
        raise InputError(f"the model draws random numbers by {func}, which cannot be keyed by client and round")
    return other


def _on_cpu(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    devices = [a.device for a in args if isinstance(a, Tensor)] + [torch.device(kwargs.get("device") or "cpu")]
    return all(device.type == "cpu" for device in devices)


def _drawn_on_cpu(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The same operation on copies, and its result where it belongs."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    device = tensors[0].device if tensors else torch.device(kwargs["device"])
    copies = [a.cpu() if isinstance(a, Tensor) else a for a in args]
    result = func(*copies, **(kwargs | {"device": "cpu"} if "device" in kwargs else kwargs))
    in_place = func._schema.name.endswith("_")
    return args[0].copy_(result) if in_place else result.to(device)
