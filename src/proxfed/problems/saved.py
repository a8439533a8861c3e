"""The models in a run folder, layer by layer.

`models/` has a file for each algorithm and seed with its final x, a flat vector called 'label/seed'. Its metadata
`blocks` maps parts of x to layers: [[name, start, stop, shape], ...], and `sha256` has the checksums.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from proxfed.errors import InputError, require
from proxfed.files import UNREADABLE, file_name, read_tensors
from proxfed.problems.neural.loop import parameters
from proxfed.types import Block


class Saved(NamedTuple):
    """A model read from its file."""

    name: str
    """'label/seed'"""
    x: Tensor
    blocks: list[Block]
    sum: str
    """Its checksum."""


def model_name(label: str, seed: int) -> str:
    """The name of a model in a run folder."""
    return f"models/{file_name(label)}-seed{seed}.safetensors"


def read_model(path: Path) -> Saved:
    """Read the model in a file; errors are one sentence."""
    require(path.is_file(), f"{path} is not there: a run writes it when the algorithm has finished")
    try:
        found = read_tensors(path, ["blocks"])
        ((name, x),) = found.tensors.items()
        blocks = [Block(n, start, stop, tuple(shape)) for n, start, stop, shape in json.loads(found.about["blocks"])]
    except UNREADABLE as e:
        raise InputError(f"{path} is damaged, or not the model of a run: {e}") from e
    return Saved(name, x, blocks, found.sums[name])


def load_model(path: str | Path, label: str, seed: int = 0) -> dict[str, Tensor]:
    """The final parameters of one algorithm and seed by their names.

    Parameters
    ----------
    path : str or Path
        A run folder, or the model's own file.
    label : str
        The algorithm's label.
    seed : int
        The seed of the run.

    Returns
    -------
    dict of str to Tensor
        Suitable for `module.load_state_dict(..., strict=False)`.
    """
    path = Path(path)
    file = path / model_name(label, seed) if path.is_dir() else path
    has = ", ".join(_names(file.parent)) or "none yet"
    require(file.is_file(), f"{path}: has no model of {label!r} with seed {seed}, only {has}")
    model = read_model(file)
    right = model.name == f"{label}/{seed}"
    require(right, f"{path}: has no model of {label!r} with seed {seed}, only {model.name}")
    return parameters(model.x, model.blocks)


def _names(folder: Path) -> list[str]:
    found = []
    for file in sorted(folder.glob("*.safetensors")):
        with suppress(*UNREADABLE):
            found += read_tensors(file, ["blocks"], only=()).names
    return found
