"""Sites for a federation on one machine: one per client of an experiment's data, or per organisation of tables, with
its own files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import MappingProxyType

import numpy as np
import tomli_w

from proxfed import files
from proxfed.data.sparse_rows import SparseRows
from proxfed.errors import require
from proxfed.harness.build import build_problem
from proxfed.harness.experiment import Experiment
from proxfed.registry import Table
from proxfed.silos.protection.keyring import SiteKey, fingerprint
from proxfed.silos.site.config import NAME
from proxfed.tables import read_tables

MUCH = dict.fromkeys(("answers", "total"), 1_000_000_000) | dict.fromkeys(("norm", "step"), 1e9)

NO_TABLE: Mapping[str, Table] = MappingProxyType({})

NAMES = ("lyon", "oslo", "turin", "porto", "ghent", "basel", "graz", "brno")


def make_sites(e: Experiment, data_directory: str | None, folder: Path, count: int) -> tuple[str, ...]:
    """Makes folders with rows, a key and a permissive site.toml; existing files are left unchanged."""
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
    for k, name in enumerate(names):
        rows = slice(data.offsets[k], data.offsets[k + 1])
        content = BytesIO()
        np.savez(content, features=data.features[rows], label=data.labels[rows])
        files.write(folder / name / "rows.npz", content.getvalue(), folders=True)
    limits = {"rows": 1, "rounds": 1_000_000, "bytes": 1_000_000_000_000, "weights": 1e6, **MUCH}
    own: Table = {
        "data": {"path": "rows.npz", "label": "label"},
        "allow": {"counts": True, "minibatches": True},
        "limits": limits,
    }
    _write(folder, dict.fromkeys(names, own))
    return names


def make_table_sites(
    schema: Path,
    data: str | None,
    folder: Path,
    count: int,
    folds: int,
    more: Mapping[str, Table] = NO_TABLE,
) -> tuple[str, ...]:
    """The same for a fit: a site per organisation of tables, permissive except that all sums are masked."""
    names = [table.organisation for table in read_tables(schema, data).tables]
    said = f"--loopback {count}: {schema} has the tables of {len(names)} organisations, each of which is a site"
    require(len(names) == count, said)
    organisations = dict(zip(_as_sites(names), names, strict=True))
    names = [*organisations]
    if not all((folder / name / "site.toml").exists() for name in names):
        fit = {"folds": folds, "rows_per_coefficient": 0.0, "apart": True, "measures": True}
        rules: Table = {"allow": {"counts": True}, "limits": {"rows": 1, "change": 1, **MUCH}, "fit": fit, **more}
        data_of = {name: {"schema": str(schema.resolve()), "organisation": of} for name, of in organisations.items()}
        _write(folder, {name: rules | {"data": data_of[name]} for name in names})
    return tuple(names)


def _as_sites(organisations: Sequence[str]) -> list[str]:
    """Valid names of sites: 'U.S. Bank' becomes U.S.-Bank."""
    names = [re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:60] for name in organisations]
    plain = all(re.fullmatch(NAME, name) for name in names) and len({*names}) == len(names)
    return names if plain else [f"site-{k + 1}" for k in range(len(names))]


def _write(folder: Path, own: Mapping[str, Table]) -> None:
    """Writes a key and a site.toml for each, which pins the keys of the others."""
    keys = {}
    for name in own:
        (folder / name).mkdir(parents=True, exist_ok=True)
        key = folder / name / "site.key"
        keys[name] = SiteKey.read(key) if key.exists() else SiteKey.create(key)
    for name, table in own.items():
        others = {other: fingerprint(key.public) for other, key in keys.items() if other != name}
        files.write(folder / name / "site.toml", tomli_w.dumps({"name": name, **table, "partners": others}))
