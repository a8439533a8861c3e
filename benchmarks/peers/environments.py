"""The peers' environments: one for each under .peers, made when it is missing, with the versions that it asks for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / ".peers"
PEERS = {"fedjax": "FedJAX", "pfl": "pfl", "flower": "Flower"}


def python_of(peer: str | None) -> Path:
    return Path(sys.executable) if peer is None else ENVIRONMENTS / peer / "bin" / "python"


def install(peer: str) -> str | None:
    """Make the peer's environment if it is missing or out of date; the reason, if that fails."""
    home, requirements = ENVIRONMENTS / peer, HERE / peer / "requirements.txt"
    ready, wanted = home / "ready.txt", requirements.read_text()
    if ready.exists() and ready.read_text() == wanted:
        return None
    print(f"installing {PEERS[peer]} ...", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    # torch first and alone: a resolver that meets it among other requirements may fetch gigabytes for graphics cards
    first = [line for line in wanted.splitlines() if line.startswith(("torch==", "numpy=="))]
    for what in filter(None, (first, ["-r", str(requirements)])):
        pip = [str(python_of(peer)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode != 0:
            return f"cannot be installed: {_reason(done.stderr)}"
    ready.write_text(wanted)
    return None


def _reason(text: str) -> str:
    """The line that says what went wrong: pip's last ERROR, else the last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:") or "Error: " in line]
    return ((errors or lines or ["it says nothing"])[-1]).removeprefix("ERROR: ")[:200]


def versions() -> str:
    """The peers' own packages, as pinned."""
    pins = {}
    for peer, name in PEERS.items():
        lines = (HERE / peer / "requirements.txt").read_text().splitlines()
        packages = {"fedjax": ("fedjax", "jax"), "pfl": ("pfl", "torch"), "flower": ("flwr", "ray", "torch")}[peer]
        found = [line.replace("[simulation]", "").replace("==", " ") for line in lines if "==" in line]
        pins[name] = ", ".join(line for line in found if line.split()[0] in packages)
    return "; ".join(f"{name} ({text})" for name, text in pins.items())
