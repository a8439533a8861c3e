"""Whether the default number of jobs is the right one: `proxfed run demo` by default and with fixed numbers, in turn.

    python benchmarks/jobs.py              the demo
    python benchmarks/jobs.py FILE.toml    another experiment

Exit code 1 if the default is more than a tenth slower than the best fixed number (wall time, median of the turns).
What else runs on the machine changes the answer: the default leaves busy cores alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

SOURCE = Path(__file__).resolve().parents[1] / "src"


def seconds(experiment: str, jobs: int | None) -> float:
    with tempfile.TemporaryDirectory() as folder:
        more = [] if jobs is None else ["--jobs", str(jobs)]
        command = [sys.executable, "-m", "proxfed", "run", experiment, "--out", f"{folder}/run", *more]
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(SOURCE)})
        return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="?", default="demo")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    numbers = [None, *sorted({1, 2, os.cpu_count() or 1})]
    taken: dict[int | None, list[float]] = {jobs: [] for jobs in numbers}
    for _ in range(args.turns):
        for jobs in numbers:
            taken[jobs].append(seconds(args.experiment, jobs))
    for jobs, times in taken.items():
        words = "default" if jobs is None else f"--jobs {jobs}"
        print(f"{words:10} {median(times):6.2f} s   ({min(times):.2f} to {max(times):.2f})")
    ratio = median(taken[None]) / min(median(taken[jobs]) for jobs in numbers if jobs is not None)
    print(f"default / best fixed number = {ratio:.2f}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0 if ratio <= 1.1 else 1


if __name__ == "__main__":
    sys.exit(main())
