"""What rounds between organisations cost on this machine: bytes on the socket, and seconds beyond the computing.

    python benchmarks/silo_wire.py nvflare [bytes|seconds]

Bytes: FedCEF on a million parameters, top 1 % and uncompressed; what the sites' sockets to the server have sent, as the
system counts it (`ss`), TLS and all. Seconds: rounds of FedComposite, against the same rounds stacked in this process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxfed.harness.experiment import Experiment

TABLE = """
name = "wire"
rounds = {rounds}
every = {rounds}
data = {{ name = "synthetic_binary", alpha = 1.0, beta = 1.0, clients = 3, samples = {samples}, features = {features} }}
problem = {{ name = "logistic", l2 = 0.01 }}
regulariser = {{ name = "l1", weight = 1e-7 }}
algorithms = [{algorithm}]
"""
FEDCEF = '{{ name = "fedcef", alpha = 0.1, K = 2, compressor = {{ {} }} }}'
FEDCOMPOSITE = '{ name = "fedcomposite", eta = 0.1, tau = 5 }'


class Sockets(threading.Thread):
    """Bytes that every connection to a port has sent and received so far, seen from the sites."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.sent, self.received = port, dict[str, int](), dict[str, int]()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            command = ["ss", "-tinHO", "dport", "=", f":{self.port}"]
            for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
                name = " ".join(line.split()[3:5])
                for kept, word in ((self.sent, "bytes_sent"), (self.received, "bytes_received")):
                    if found := re.search(rf"{word}:(\d+)", line):
                        kept[name] = int(found[1])

    def total(self) -> tuple[int, int]:
        return sum(self.sent.values()), sum(self.received.values())


class Lab:
    """A federation on this machine, and experiments that are carried out by it one after the other."""

    def __init__(self, carrier: str, folder: Path, **table: object) -> None:
        from proxfed.silos.carriers.loopback import Loopback
        from proxfed.silos.carriers.loopback_sites import make_sites

        self.carrier, self.folder, self.table = carrier, folder, table
        folder.mkdir()
        e = self.experiment("first", rounds=1, algorithm=FEDCOMPOSITE)
        self.sites = make_sites(e, None, folder, 3)
        site = [sys.executable, "-m", "proxfed", "silo", "--site"]
        self.here = Loopback(folder, self.sites, carrier, lambda name: [*site, str(folder / name / "site.toml")])

    def experiment(self, name: str, **more: object) -> Experiment:
        from proxfed.harness.experiment import read

        (self.folder / f"{name}.toml").write_text(TABLE.format(**self.table, **more))
        return read(str(self.folder / f"{name}.toml"))

    def __enter__(self) -> Lab:
        self.here.__enter__()
        os.environ.update(self.here.environment)
        self.sockets = Sockets(self.here.port)
        self.sockets.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.sockets.over.set()
        self.here.__exit__()

    def run(self, name: str, **more: object) -> tuple[Experiment, Mapping[str, Any], int, int]:
        """(the experiment, its last row, bytes from the sites, bytes to them)"""
        from proxfed.silos.carriers.desk import Desk
        from proxfed.silos.coordinator.deploy import deploy

        e, before = self.experiment(name, **more), self.sockets.total()
        with Desk(self.sites, self.folder / "desk", self.couriers()) as desk:
            results = deploy(e, desk, self.folder / name, progress=False)
            time.sleep(1.0)
        up, down = (after - so_far for after, so_far in zip(self.sockets.total(), before, strict=True))
        return e, results.rows[-1], up, down

    def couriers(self) -> Callable[[str, Path], None]:
        if self.carrier == "nvflare":
            from proxfed.silos.carriers.nvflare_carrier import Flare

            assert self.here.kit is not None
            return Flare(self.here.kit, "wire")
        from proxfed.silos.carriers.flower_carrier import Runs

        return Runs("loopback", "wire")


def seconds(carrier: str, folder: Path) -> None:
    from proxfed.harness.build import build_study
    from proxfed.harness.compare import run_study

    rounds = 100 if carrier == "nvflare" else 4
    with Lab(carrier, folder, samples=300, features=100) as lab:
        e, row, up, down = lab.run("small", rounds=rounds, algorithm=FEDCOMPOSITE)
    alone = run_study(build_study(e), progress=False).rows[-1]["wall_seconds"]
    beyond, load = (row["wall_seconds"] - alone) / rounds, os.getloadavg()[0]
    wire, letters = (up + down) / rounds / 3, row["wire_bytes"] / rounds / 3
    print(f"{carrier}: a round takes {beyond:.3f} s beyond its computing, at load {load:.0f}")
    print(f"{carrier}: {wire:.0f} bytes a round and site on the socket, of which letters are {letters:.0f}")


def bytes_sent(carrier: str, folder: Path) -> None:
    """Of a round: what four more rounds cost. Handshake and measures are the same in both."""
    found = {}
    with Lab(carrier, folder, samples=12, features=1_000_000) as lab:
        for label, compressor in (("top", 'name = "top_k", fraction = 0.01'), ("dense", 'name = "identity"')):
            algorithm = FEDCEF.format(compressor)
            few, more = (lab.run(f"{label}-{r}", rounds=r, algorithm=algorithm)[2:] for r in (2, 6))
            up, down = ((b - a) / 4 / 3 for a, b in zip(few, more, strict=True))
            found[label] = up
            print(f"{carrier}, {label}: {up:,.0f} bytes from a site and {down:,.0f} to it, in a round", flush=True)
    print(f"{carrier}: top 1 % of a million sends {found['top'] / found['dense']:.2%} of the dense bytes")


def main(carrier: str = "nvflare", what: str = "") -> None:
    with tempfile.TemporaryDirectory(prefix="proxfed-wire-") as name:
        if what in ("", "seconds"):
            seconds(carrier, Path(name) / "seconds")
        if what in ("", "bytes"):
            bytes_sent(carrier, Path(name) / "bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
