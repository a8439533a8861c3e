"""Checksums (SHA-256) of our own files: of tables under a key, of tensors in their file's metadata.

They detect damage, not forgery: anybody who can write a file can also write its checksum.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from proxfed.errors import require

if TYPE_CHECKING:
    from torch import Tensor

SHA256 = "sha256"
"""The key of a checksum."""

UNREADABLE = (OSError, ValueError, KeyError, TypeError)
"""The exceptions that reading a damaged file of tensors may raise."""


def checksum(table: Mapping[str, Any]) -> str:
    """The checksum of a table as JSON, independent of the order of its keys."""
    plain = json.loads(json.dumps(table))
    return sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def with_checksum(table: Mapping[str, Any]) -> dict[str, Any]:
    return {**table, SHA256: checksum(table)}


def sealed(table: Mapping[str, Any]) -> str:
    """The text of a non-empty table with its checksum, in one pass; all keys, also nested ones, must be strings."""
    text = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return f'{text[:-1]},"{SHA256}":"{sha256(text.encode()).hexdigest()}"}}\n'


def checked(table: Any, where: str) -> dict[str, Any]:
    """The table without its checksum; refused if the checksum does not match."""
    good = isinstance(table, dict) and SHA256 in table
    require(good, f"{where} is damaged: it has no checksum")
    rest = {key: value for key, value in table.items() if key != SHA256}
    require(table[SHA256] == checksum(rest), f"{where} is damaged or was changed: its checksum is of something else")
    return rest


# ---- tensors with checksums ------------------------------------------------------------------------------------------


class Tensors(NamedTuple):
    """The content of a file of tensors."""

    tensors: dict[str, Tensor]
    about: dict[str, str]
    names: list[str]
    """The names of all tensors, including those that were not read."""
    sums: dict[str, str]
    """A checksum of each tensor."""


def owned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no memory, as safetensors requires."""
    import torch

    return {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}


def tensor_sum(name: str, tensor: Tensor, about: Mapping[str, str]) -> str:
    """The checksum of its name, type, shape and numbers, and of the file's description."""
    import torch

    head = json.dumps([dict(sorted(about.items())), name, str(tensor.dtype), list(tensor.shape)])
    numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    digest = sha256(head.encode() + b"\n")
    digest.update(numbers.data)
    return digest.hexdigest()


class TensorFile(NamedTuple):
    """A safetensors file with checksums."""

    data: bytes
    tensors: dict[str, Tensor]
    """Copies of the file's tensors."""
    sums: dict[str, str]


def tensor_file(
    tensors: Mapping[str, Tensor], about: Mapping[str, str], known: Mapping[str, str] | None = None
) -> TensorFile:
    """The file of these tensors; `known` are the checksums of unchanged ones."""
    from safetensors.torch import save

    tensors, known = owned(tensors), known or {}
    sums = {name: known.get(name) or tensor_sum(name, tensor, about) for name, tensor in tensors.items()}
    sums[""] = checksum(about)
    return TensorFile(save(tensors, metadata={**about, SHA256: json.dumps(sums)}), tensors, sums)


def read_tensors(path: Path, keys: Collection[str], only: Collection[str] | None = None) -> Tensors:
    """All tensors, or `only` these, of a file with the metadata `keys`; ValueError if a checksum does not match."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as f:
            about, names = dict(f.metadata() or {}), list(f.keys())
            tensors = {name: f.get_tensor(name) for name in names if only is None or name in only}
    except SafetensorError as e:
        raise ValueError(str(e)) from e
    if about.keys() != {*keys, SHA256}:
        raise ValueError(f"it does not say {', '.join(keys)}")
    sums = json.loads(about.pop(SHA256))
    if not isinstance(sums, dict) or sums.keys() != {*names, ""} or sums[""] != checksum(about):
        raise ValueError("its checksums are of something else")
    for name, tensor in tensors.items():
        if sums[name] != tensor_sum(name, tensor, about):
            raise ValueError(f"the checksum of {name!r} is of something else")
    return Tensors(tensors, about, names, sums)
