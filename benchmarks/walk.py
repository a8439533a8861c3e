"""How far a reader walks with a command: files entered, calls from file to file, files of the run folder read.

python benchmarks/walk.py [run] [fit] [deploy] [--pairs]

Counts the distinct pairs (caller, function called) in different files of the package, after a first time has imported
everything; how often each file of the run folder is opened to be read; and how often a problem is built. `run` is an
experiment with 4 clients and 1 round, `fit` the tables of examples/tables/clinics, `deploy` two rounds between three
sites in this process.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import tomllib
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import proxfed
from proxfed import Federated
from proxfed.cli.main import main as command
from proxfed.harness.experiment import parse
from proxfed.silos.coordinator.deploy import deploy as between
from proxfed.silos.site.holder import Holder
from proxfed.silos.site.rows import Rows
from proxfed.silos.wire.carrier import Direct

ROOT = str(Path(proxfed.__file__).parent)

CLINICS = Path(__file__).parent.parent / "examples" / "tables" / "clinics" / "tables.toml"

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
        self.built = 0
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
        self.built += here.co_qualname == "build_problem"
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


def command_line(*words: str) -> None:
    sys.argv = ["proxfed", *words]
    with suppress(SystemExit):
        command()


def run(folder: Path) -> None:
    file = folder.parent / "walk.toml"
    file.write_text(EXPERIMENT)
    command_line("run", str(file), "--out", str(folder))


def fit(folder: Path) -> None:
    command_line("fit", str(CLINICS), "--out", str(folder))


def deploy(folder: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [(A := rng.normal(size=(40, 3)), np.where(A[:, 0] > 0, 1.0, -1.0)) for _ in range(3)]
    data = Federated.from_clients(clients)
    places = {name: folder.parent / f"{folder.name}-{name}" for name in ("a", "b", "c")}
    holders = {name: Holder(name, Rows.of(data, range(k, k + 1)), places[name]) for k, name in enumerate(places)}
    experiment = parse(tomllib.loads(EXPERIMENT) | {"rounds": 2}, "walk")
    between(experiment, Direct({name: holder.answer for name, holder in holders.items()}), folder, progress=False)


WALKS = {"run": run, "fit": fit, "deploy": deploy}


def main() -> None:
    asked, pairs = [name for name in WALKS if name in sys.argv] or list(WALKS), "--pairs" in sys.argv
    for name in asked:
        with tempfile.TemporaryDirectory() as folder:
            WALKS[name](Path(folder) / "first")
            with Walk(Path(folder) / "out") as walk:
                WALKS[name](Path(folder) / "out")
        print(
            f"{name}: {len(walk.files)} files, {len(walk.pairs)} calls from file to file, "
            f"{walk.built} problems built; read: {dict(walk.read)}"
        )
        if pairs:
            entered = defaultdict(list)
            for a, caller, b, called in sorted(walk.pairs):
                entered[os.path.relpath(b, ROOT)].append(f"{os.path.relpath(a, ROOT)}: {caller} -> {called}")
            for file, calls in sorted(entered.items(), key=lambda item: -len(item[1])):
                print(f"{file} {len(calls)}", *calls, sep="\n    ")


if __name__ == "__main__":
    main()
