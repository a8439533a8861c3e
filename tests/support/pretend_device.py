"""A device that is not there: its numbers live in the memory of the CPU, and CUDA's rules hold for them.

Tensors of two devices do not meet in one operation. Allowed are, as on CUDA, a number without dimensions from the CPU,
indices from the CPU in x[index], and copies from one device to the other. Only a copy on the CPU becomes a NumPy array.
Arithmetic is the CPU's own, so a run on this device has the bits of a run on the CPU, or something is wrong.

With `double = False` it has no float64, as Apple's MPS has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as tree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

registration = pytest.importorskip(
    "torch.utils.backend_registration", reason="this torch cannot have a device written in Python"
)
if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch cannot have a device written in Python", allow_module_level=True)

NAME = "pretend"
"""What `device` is set to."""

aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default, aten.copy.default}
INDEXED = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
"""x[index]: where CUDA takes indices from the CPU."""
JOINED = {aten.cat.default, aten.stack.default}
"""Where CUDA does not take a number from the CPU either."""


class _Backend(registration._DummyBackendModule):  # type: ignore[misc,name-defined]
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
DEVICE = torch.device(f"{NAME}:0")


class OnDevice(Tensor):
    """A tensor of the device; `held` are its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        like = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made = Tensor._make_wrapper_subclass(cls, held.size(), **like, layout=held.layout, device=DEVICE)
        made.held = held
        return made

    def __repr__(self, *args: Any, **options: Any) -> str:
        return f"OnDevice({self.held!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> OnDevice:
        other = OnDevice(self.held.detach().clone()).requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            other._is_param = True
        memo[id(self)] = other
        return other

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
        return OnDevice(torch.tensor(data, dtype=dtype or self.dtype))

    def tolist(self) -> Any:
        return self.held.detach().tolist()

    def numpy(self, *args: Any, **options: Any) -> NoReturn:
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() first")

    __array__ = numpy
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _perform(func, args, kwargs or {})


class _Device(TorchDispatchMode):
    """While it is on, tensors can be made on the device."""

    def __init__(self, double: bool) -> None:
        super().__init__()
        self.double = double

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = _perform(func, args, kwargs or {})
        if not self.double:
            for x in tree.tree_leaves(out):
                if isinstance(x, OnDevice) and x.dtype == torch.float64:
                    raise TypeError(f"{DEVICE} has no float64: use float32 instead ({func})")
        return out


@contextmanager
def present(double: bool = True) -> Iterator[str]:
    """Its name, while it is there."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor([1.0], device=NAME) is then made here and copied there
    try:
        with _Device(double):
            yield NAME
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


def _perform(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on the numbers of its tensors, if CUDA would not refuse it."""
    flat, form = tree.tree_flatten((args, kwargs))
    there = [x for x in flat if isinstance(x, OnDevice)]
    here = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, OnDevice)]
    asked = next((x for x in flat if isinstance(x, torch.device)), None)
    on_device = _named(asked) if asked is not None else bool(there)
    if func.overloadpacket is aten.to:  # where torch does not make a copy of it first
        moved = asked is not None and _named(asked) != bool(there)
        func, args, kwargs = aten._to_copy.default, args[:1], {"dtype": _dtype(flat, args[0]), "device": asked}
        return _perform(func, args, kwargs) if moved else args[0].type(kwargs["dtype"])
    if func in COPIES:
        on_device = _named(asked) if asked is not None else isinstance(args[0], OnDevice)
    elif not there and not on_device:
        return func(*args, **kwargs)
    elif there:
        _refuse_mixed(func, args, here)
    if torch.Tag.inplace_view in func.tags:  # such as squeeze_: the tensor's own shape changes, too
        with no_dispatch():
            func(*args, **kwargs)
    args, kwargs = tree.tree_unflatten([_held(x) for x in flat], form)
    kwargs.pop("pin_memory", None)
    out = func(*args, **kwargs)
    known = {id(x.held): x for x in there} | {id(x): x for x in here}

    def wrapped(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return known.get(id(x)) if id(x) in known else OnDevice(x) if on_device else x

    return tree.tree_map(wrapped, out)


def _refuse_mixed(func: Any, args: Any, here: list[Tensor]) -> None:
    may_be_here = [x for x in here if x.dim() == 0 and func not in JOINED]
    if func in INDEXED:
        may_be_here += [index for index in args[1] if index is not None]
    written = [args[0]] if func._schema.name.endswith("_") and isinstance(args[0], Tensor) else []
    wrong = [x for x in here if not any(x is y for y in may_be_here) or any(x is y for y in written)]
    if wrong:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu! ({func})"
        )


def _dtype(flat: list[Any], x: Tensor) -> torch.dtype:
    return next((y for y in flat if isinstance(y, torch.dtype)), x.dtype)


def _named(device: Any) -> bool:
    return torch.device(device).type == NAME


def _held(x: Any) -> Any:
    if isinstance(x, OnDevice):
        return x.held
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == NAME else x
