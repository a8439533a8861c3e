"""The models that a run folder keeps, layer by layer.

`model.safetensors` holds the final x of each algorithm and seed as a flat vector called 'label/seed'; its metadata
`blocks` say which part of x is which layer: [[name, start, stop, shape], ...], and `sha256` has the checksums.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from proxfed.errors import InputError, require
from proxfed.files import read_tensors
from proxfed.problems.loop import parameters
from proxfed.types import Block

FILE = "model.safetensors"


def load_model(path: str | Path, label: str, seed: int = 0) -> dict[str, Tensor]:
    """The final parameters of one algorithm and seed by their names, as `module.load_state_dict(..., strict=False)`
    takes them; `path` is a run folder, or its model.safetensors."""
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    require(path.is_file(), f"{path}: there is no such file; a run writes it when its first algorithm has finished")
    try:
        found = read_tensors(path, ["blocks"], only=[name := f"{label}/{seed}"])
        blocks = [Block(n, start, stop, tuple(shape)) for n, start, stop, shape in json.loads(found.about["blocks"])]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as e:
        raise InputError(f"{path}: is not the model file of a run, or damaged ({e})") from e
    has = f"{path}: has no model of {label!r} with seed {seed}, only {', '.join(sorted(found.names))}"
    require(name in found.tensors, has)
    return parameters(found.tensors[name], blocks)
