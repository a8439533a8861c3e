"""Four hospitals on this machine fit one model of their tables, over mutual TLS and under masks; the holder of one of
them is killed on the way.

python examples/silos/demo_fit.py [nvflare|flower]

With the heart-disease data in PROXFED_DATA these are Cleveland, Hungary, Switzerland and Long Beach; otherwise four
made-up clinics. Both tables have words and gaps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from demo import process_of

TABLES = Path(__file__).parents[1] / "tables"


def schema() -> tuple[Path, str]:
    """The tables, and the site that is killed."""
    data = os.environ.get("PROXFED_DATA")
    if data and (Path(data) / "heart-disease").is_dir():
        return TABLES / "heart-disease.toml", "va"
    return TABLES / "clinics" / "tables.toml", "south"


def main(carrier: str = "nvflare") -> int:
    tables, victim = schema()
    with tempfile.TemporaryDirectory(prefix="proxfed-demo-fit-") as folder:
        out = Path(folder) / "model"
        fit = [sys.executable, "-m", "proxfed", "fit", str(tables), "--loopback", "4", "--carrier", carrier]
        command = subprocess.Popen([*fit, "--out", str(out)])
        sums = Path(folder) / "model.fit" / "sums.log"
        while command.poll() is None and not (sums.exists() and sums.stat().st_size > 0):
            time.sleep(0.1)  # until the first sums have come
        if command.poll() is None:
            process = process_of(victim, psutil.Process(command.pid))
            if process is not None:
                process.kill()
                print(f"kill -9: the holder of {victim}; it is started again, and the fit goes on", flush=True)
        return command.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
