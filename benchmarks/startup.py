"""How long a user waits before anything happens: `import proxfed`, `proxfed --help`, and, for scale, `import torch`.

python benchmarks/startup.py [--turns 7]

The contestants take turns; the median of each is printed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from statistics import median

CONTESTANTS = {
    "python alone": ["-c", "pass"],
    "import proxfed": ["-c", "import proxfed"],
    "proxfed --version": ["-m", "proxfed", "--version"],
    "proxfed --help": ["-m", "proxfed", "--help"],
    "import torch": ["-c", "import torch"],
}


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    found: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for _ in range(turns):
        for name, arguments in CONTESTANTS.items():
            found[name].append(seconds(arguments))
    for name, times in found.items():
        print(f"{name:20} {median(times):6.3f} s")


if __name__ == "__main__":
    main()
