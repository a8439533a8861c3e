"""Random numbers of a module's `forward`, such as dropout masks, as a function of a key.

Torch draws from one global generator, so a client's numbers would depend on the order of the clients. Within
`KeyedDraws`, every random operation of this thread uses a generator seeded with the client's key. Numbers are drawn on
the CPU, so that they are the same for every device.
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
    """Makes all of torch's random draws in this thread a function of a key.

    Parameters
    ----------
    key : Key
        (1,)
    """

    def __init__(self, key: Key) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        """The number of random operations so far."""
        self._generator = torch.Generator().manual_seed(int(key[0]) >> 1)  # torch takes 63 bits

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or _no_dropout(func, args, kwargs):
            return func(*args, **kwargs)
        self.count += 1
        if func is torch.ops.aten.native_dropout.default:  # on accelerators: mask and product in one operation
            return self._dropout(*args, **kwargs)
        keyed = _with_generator(func)
        given = {**kwargs, "generator": self._generator}
        return keyed(*args, **given) if _on_cpu(args, kwargs) else _drawn_on_cpu(keyed, args, given)

    def _dropout(self, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
        """Dropout in the memory order of x, with the same mask and the same bits as on the CPU."""
        if train is False or p == 0:
            return x.clone(), torch.ones_like(x, dtype=torch.bool)
        noise = torch.empty_like(x, device="cpu").bernoulli_(1 - p, generator=self._generator)
        mask = noise.to(x.device, torch.bool)
        if p < 1:
            noise.div_(1 - p)
        return x * noise.to(x.device), mask


def _no_dropout(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether this is a fused attention kernel without dropout, which draws nothing."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    return "dropout_p" in names and given.get("dropout_p", 0.0) == 0


def _with_generator(func: Any) -> Any:
    """The overload of an operation that takes a generator."""
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
    """Run the operation on CPU copies, and move its result back to the device."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    device = tensors[0].device if tensors else torch.device(kwargs["device"])
    copies = [a.cpu() if isinstance(a, Tensor) else a for a in args]
    result = func(*copies, **(kwargs | {"device": "cpu"} if "device" in kwargs else kwargs))
    in_place = func._schema.name.endswith("_")
    return args[0].copy_(result) if in_place else result.to(device)
