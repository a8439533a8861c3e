"""Three organisations on this machine, over mutual TLS; the holder of one of them is killed on the way.

python examples/silos/demo.py [nvflare|flower]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

HERE = Path(__file__).parent


def holder(command: psutil.Process, site: str) -> psutil.Process | None:
    """The process `proxfed silo` of a site."""
    for process in command.children(recursive=True):
        words = process.cmdline()
        if "silo" in words and any(word.endswith(f"/{site}/site.toml") for word in words):
            return process
    return None


def main(carrier: str = "nvflare") -> int:
    with tempfile.TemporaryDirectory(prefix="proxfed-demo-") as folder:
        out = Path(folder) / "run"
        deploy = [sys.executable, "-m", "proxfed", "deploy", str(HERE / "trial.toml"), "--loopback", "3"]
        command = subprocess.Popen([*deploy, "--carrier", carrier, "--out", str(out)])
        while command.poll() is None and not any(out.glob("checkpoint/fedcef*/rows.csv")):
            time.sleep(0.1)  # until the second algorithm is under way
        if command.poll() is None:
            victim = holder(psutil.Process(command.pid), "oslo")
            if victim is not None:
                victim.kill()
                print("kill -9: the holder of oslo; it is started again, and the run goes on", flush=True)
        return command.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
