"""Sites for a federation on one machine: each client of an experiment's data becomes one, with files of its own."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import tomli_w

from proxfed import files
from proxfed.data.sparse_rows import SparseRows
from proxfed.errors import require
from proxfed.harness.build import build_problem
from proxfed.harness.experiment import Experiment
from proxfed.silos.protection.keyring import SiteKey, fingerprint

MUCH = dict.fromkeys(("answers", "total"), 1_000_000_000) | dict.fromkeys(("norm", "step"), 1e9)

NAMES = ("lyon", "oslo", "turin", "porto", "ghent", "basel", "graz", "brno")


def make_sites(e: Experiment, data_directory: str | None, folder: Path, count: int) -> tuple[str, ...]:
    """Folders with rows, a key and a site.toml that allows much; what is there is left as it is."""
    names = NAMES[:count] if count <= len(NAMES) else tuple(f"site-{k + 1}" for k in range(count))
    if all((folder / name / "site.toml").exists() for name in names):
        return names
    data = build_problem(e, data_directory).f.data
    require(data is not None, "--loopback: the experiment's problem has no data that could be given to sites")
    assert data is not None
    fits = len(data) == count
    require(
        fits,
        f"--loopback {count}: the experiment has {len(data)} clients, each of which is a site: -c data.clients={count}",
    )
    require(data.sample_weights is None, "--loopback: rows with weights cannot be given to sites")
    dense = not isinstance(data.features, SparseRows)
    require(dense, "--loopback: sparse features cannot be given to sites: data.sparse = false writes them out")
    keys = {}
    for k, name in enumerate(names):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        rows = slice(data.offsets[k], data.offsets[k + 1])
        content = BytesIO()
        np.savez(content, features=data.features[rows], label=data.labels[rows])
        files.write(place / "rows.npz", content.getvalue())
        key = place / "site.key"
        keys[name] = SiteKey.read(key) if key.exists() else SiteKey.create(key)
    for name in names:
        others = {other: fingerprint(key.public) for other, key in keys.items() if other != name}
        table = {
            "name": name,
            "data": {"path": "rows.npz", "label": "label"},
            "allow": {"counts": True, "minibatches": True},
            "limits": {"rows": 1, "rounds": 1_000_000, "bytes": 1_000_000_000_000, "weights": 1e6, **MUCH},
            "partners": others,
        }
        files.write(folder / name / "site.toml", tomli_w.dumps(table))
    return names
