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
from pathlib import Path

TABLE = """
name = "wire"
rounds = {rounds}
every = {rounds}
data = {{ name = "synthetic_binary", alpha = 1.0, beta = 1.0, clients = 3, samples = {samples}, features = {features} }}
problem = {{ name = "logistic", l2 = 0.01{more} }}
regulariser = {{ name = "l1", weight = 0.001 }}
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


def deploy(carrier: str, folder: Path, **table: str) -> tuple[dict[str, float], int, int]:
    """(the last row, bytes from the sites, bytes to them)"""
    from proxfed.harness.build import build_study
    from proxfed.harness.compare import run_study
    from proxfed.harness.schema import read
    from proxfed.silos.deploy import deploy as carry_out
    from proxfed.silos.desk import Desk
    from proxfed.silos.loopback import Loopback
    from proxfed.silos.loopback_sites import make_sites

    folder.mkdir()
    (folder / "wire.toml").write_text(TABLE.format(**table))
    e = read(str(folder / "wire.toml"))
    sites = make_sites(e, None, folder, 3)
    site = [sys.executable, "-m", "proxfed", "silo", "--site"]
    with Loopback(folder, sites, carrier, lambda name: [*site, str(folder / name / "site.toml")]) as lab:
        os.environ.update(lab.environment)
        if carrier == "nvflare":
            from proxfed.silos.nvflare_carrier import Flare

            assert lab.kit is not None
            couriers = Flare(lab.kit, "wire")
        else:
            from proxfed.silos.flower_carrier import Runs

            couriers = Runs("loopback", "wire")
        sockets = Sockets(lab.port)
        sockets.start()
        with Desk(sites, folder / "desk", couriers) as desk:
            results = carry_out(e, desk, folder / "run", progress=False)
            time.sleep(1.0)
            sockets.over.set()
    together = run_study(build_study(e), progress=False)
    row = results.rows[-1] | {"stacked_seconds": together.rows[-1]["wall_seconds"]}
    return row, sum(sockets.sent.values()), sum(sockets.received.values())


def main(carrier: str = "nvflare", what: str = "") -> None:
    with tempfile.TemporaryDirectory(prefix="proxfed-wire-") as name:
        folder = Path(name)
        if what in ("", "seconds"):
            rounds = 100 if carrier == "nvflare" else 4
            row, up, down = deploy(
                carrier, folder / "small", rounds=rounds, samples=300, features=100, more="", algorithm=FEDCOMPOSITE
            )
            beyond = (row["wall_seconds"] - row["stacked_seconds"]) / rounds
            wire, letters = (up + down) / rounds / 3, row["wire_bytes"] / rounds / 3
            print(
                f"{carrier}: a round takes {beyond:.3f} s beyond its computing, at a load of {os.getloadavg()[0]:.0f}"
            )
            print(f"{carrier}: {wire:.0f} bytes a round and site on the socket, of which letters are {letters:.0f}")
        if what in ("", "bytes"):
            rounds, found = 3, {}
            for label, compressor in (("top 1 %", 'name = "top_k", fraction = 0.01'), ("dense", 'name = "identity"')):
                row, up, down = deploy(
                    carrier, folder / label.replace(" ", "-").replace("%", ""), rounds=rounds, samples=12,
                    features=1_000_000, more=", train_measures = false", algorithm=FEDCEF.format(compressor),
                )  # fmt: skip
                found[label] = up
                print(f"{carrier}, {label}: {up:,} bytes from the sites, {down:,} to them, in {rounds} rounds")
            print(f"{carrier}: top 1 % sends {found['top 1 %'] / found['dense']:.2%} of the dense bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
