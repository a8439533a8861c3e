"""Keep in results/ what finished reproductions found, small enough for the repository.

python tools/keep_results.py RUNS_DIR [--results DIR]

RUNS_DIR is the --out of `proxfed reproduce`. Each of its run folders becomes a folder of the same name with the
configuration, the status, the versions, how many samples each client held, and the rows: without empty columns, with
six digits, compressed. The same code reads it, so claims are judged and figures drawn from what is kept. Other seeds
that are kept already stay, if they had the same settings and versions; it says so where they do not.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import shutil
import sys
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from proxfed.data.client_stats import ClientStats
from proxfed.errors import ProxfedError, require
from proxfed.harness.run_folder import Row, RunFolder
from proxfed.harness.settings_diff import first_difference

RESULTS = Path(__file__).parents[1] / "results"
EXACT = ("seed", "round")


def keep(runs: Path, results: Path) -> list[Path]:
    """Keep every finished run below `runs`: half of one would be taken for its result."""
    folders = [RunFolder(path.parent) for path in sorted(runs.rglob("config.toml"))]
    require(bool(folders), f"there is no run folder below {runs}")
    for folder in folders:
        if not folder.finished():
            print(f"{folder.path} is not finished and is left out", file=sys.stderr)
    return [_keep_one(folder, results / folder.path.relative_to(runs)) for folder in folders if folder.finished()]


def _keep_one(folder: RunFolder, path: Path) -> Path:
    kept = RunFolder(path)
    earlier = _other_seeds(kept, folder) if kept.exists() else set()
    config, status, rows = folder.config(), folder.status(), folder.rows()
    if earlier:
        config["seeds"] = sorted(earlier | {*config["seeds"]})
        status = _by_seed([entry for entry in kept.status() if entry["seed"] in earlier] + status)
        rows = _by_seed([row for row in kept.rows() if row["seed"] in earlier] + rows)
    path.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder.path / "versions.json", path / "versions.json")
    kept.write_config(config)
    kept.write_status(status)
    if (held := folder.clients()) is not None:
        kept.write_clients(ClientStats(held.sizes))
    # Without a name or a time inside, the same rows are the same file.
    (path / "rows.csv.gz").write_bytes(gzip.compress(_compact(rows).encode(), mtime=0))
    return path


def _other_seeds(kept: RunFolder, new: RunFolder) -> set[int]:
    """Those that only the kept run has; they stay if nothing that rows depend on is different but the seeds."""
    before, after = kept.config(), new.config()
    others = {*before["seeds"]} - {*after["seeds"]}
    difference = first_difference(before | {"seeds": []}, after | {"seeds": []})
    if difference is None and kept.versions() != new.versions():
        difference = f"the versions were {kept.versions()}, now {new.versions()}"
    if others and difference:
        print(f"{kept.path}: seeds {sorted(others)} are dropped: {difference}", file=sys.stderr)
    return set() if difference else others


def _by_seed(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(entries, key=itemgetter("seed"))


def _compact(rows: Sequence[Row]) -> str:
    columns = [
        name for name in dict.fromkeys(chain.from_iterable(rows)) if any(row.get(name) is not None for row in rows)
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(name, row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def _cell(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str) or name in EXACT:
        return value
    return int(float(f"{value:.6g}")) if isinstance(value, int) else f"{value:.6g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, metavar="RUNS_DIR")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where they are kept")
    arguments = parser.parse_args()
    try:
        kept = keep(arguments.runs, arguments.results)
    except ProxfedError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    size = sum(file.stat().st_size for path in kept for file in path.iterdir() if file.is_file())
    print(f"kept {len(kept)} runs in {arguments.results}, {size / 1e3:,.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
