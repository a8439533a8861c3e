"""How far a reader walks with `proxfed run`: files entered, calls from file to file, files of the run folder read.

python benchmarks/walk.py [--pairs]

Counts, on an experiment with 4 clients and 1 round, the distinct pairs (caller, function called) in different files of
the package, after a first run has imported everything; and how often each file of the run folder is opened to be read.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import proxfed
from proxfed.cli.main import main as command

ROOT = str(Path(proxfed.__file__).parent)

EXPERIMENT = """
name = "walk"
rounds = 1
[data]
name = "synthetic_binary"
clients = 4
samples = 20
features = 5
[problem]
name = "logistic"
[regulariser]
name = "l1"
weight = 0.01
[[algorithms]]
name = "fedavg"
eta = 0.5
K = 2
"""


class Walk:
    """What was called and read."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.files: set[str] = set()
        self.pairs: set[tuple[str, str, str, str]] = set()
        self.read: Counter[str] = Counter()
        self.on = False
        sys.addaudithook(self._opened)

    def __enter__(self) -> Walk:
        self.on = True
        sys.setprofile(self._called)
        threading.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        self.on = False
        sys.setprofile(None)
        threading.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        here = frame.f_code
        if event != "call" or not here.co_filename.startswith(ROOT):
            return
        self.files.add(here.co_filename)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != here.co_filename:
            there = caller.f_code
            self.pairs.add((there.co_filename, there.co_qualname, here.co_filename, here.co_qualname))

    def _opened(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or event != "open" or not str(arguments[0]).startswith(self.folder):
            return
        if os.path.isfile(arguments[0]) and arguments[1] in ("r", "rb"):
            self.read[os.path.relpath(arguments[0], self.folder)] += 1


def run(file: Path, out: Path) -> None:
    sys.argv = ["proxfed", "run", str(file), "--out", str(out)]
    with suppress(SystemExit):
        command()


def main() -> None:
    pairs = "--pairs" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "walk.toml"
        file.write_text(EXPERIMENT)
        run(file, Path(folder) / "first")
        with Walk(Path(folder) / "out") as walk:
            run(file, Path(folder) / "out")
    print(f"{len(walk.files)} files, {len(walk.pairs)} calls from file to file; read: {dict(walk.read)}")
    if pairs:
        entered = defaultdict(list)
        for a, caller, b, called in sorted(walk.pairs):
            entered[os.path.relpath(b, ROOT)].append(f"{os.path.relpath(a, ROOT)}: {caller} -> {called}")
        for name, calls in sorted(entered.items(), key=lambda item: -len(item[1])):
            print(f"{name} {len(calls)}", *calls, sep="\n    ")


if __name__ == "__main__":
    main()
