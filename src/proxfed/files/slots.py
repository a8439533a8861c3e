"""Two files of tensors, written in turn: while one is replaced, the other stays intact.

Each is replaced atomically, and has checksums, its owner's name and the owner's description.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxfed.files.checksums import UNREADABLE, read_tensors, tensor_file
from proxfed.files.whole import flush_folder, replace

if TYPE_CHECKING:
    from torch import Tensor

OF = "of"
"""The key of the owner's name."""


class Slots:
    """The two slots of an owner in a folder: 0.safetensors and 1.safetensors."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def path(self, slot: int) -> Path:
        return self.folder / f"{slot}.safetensors"

    def written(self) -> list[int]:
        """The slots that have a file, whether damaged or not."""
        return [slot for slot in (0, 1) if self.path(slot).exists()]

    def about(self) -> dict[int, dict[str, Any]]:
        """The description of each slot of this owner; its tensors may still be damaged."""
        found = {}
        for slot in self.written():
            with suppress(*UNREADABLE):
                found[slot] = self._about(read_tensors(self.path(slot), ["about"], only=()).about)
        return found

    def read(self, slot: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Its description and its tensors; one of `UNREADABLE` if it is damaged or has another owner."""
        found = read_tensors(self.path(slot), ["about"])
        return self._about(found.about), found.tensors

    def _about(self, said: Mapping[str, str]) -> dict[str, Any]:
        about: dict[str, Any] = json.loads(said["about"])
        if about.pop(OF) != self.name:
            raise ValueError("it is of another run")
        return about

    def write(self, slot: int, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Replace a slot; on the disk on return."""
        text = json.dumps({**about, OF: self.name})
        replace(self.path(slot), tensor_file(tensors, {"about": text}).data)
        flush_folder(self.folder)
