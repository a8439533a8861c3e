"""Where data files are looked for: an explicit directory, else $PROXFED_DATA, else the cache of the user."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from proxfed.errors import InputError

VARIABLE = "PROXFED_DATA"


def data_directory(directory: str | Path | None = None) -> Path:
    """The directory that holds one folder per dataset."""
    if directory is not None:
        return Path(directory).expanduser()
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "proxfed"


def find(folder: str, names: Sequence[str], source: str, directory: str | Path | None = None) -> Path:
    """The first of these files in the dataset's folder, or loose in the data directory; `source`: who publishes it."""
    root = data_directory(directory)
    for place in (root / folder, root):
        for name in names:
            if (place / name).is_file():
                return place / name
    wanted = " or ".join(names)
    raise InputError(
        f"{folder}: there is no {wanted} in {root / folder}; get it from {source} and put it there, "
        f"or name another data directory with {VARIABLE}"
    )
