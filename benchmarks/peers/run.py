"""proxfed and its peers on the same workloads, samples and machine; `workload.py` says what is computed.

Each peer has an environment of its own under .peers, made when it is missing, with the versions of its
requirements.txt. All contenders run in turn, in processes of their own, again and again, so that noise hits all alike.
One that cannot be installed or run is listed with the reason. Needs the standard library alone; start it with the
Python of proxfed's own environment.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / ".peers"
CORES = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else os.cpu_count() or 1
TIMEOUT = 900
TOLERANCE = 0.2
"""Largest relative difference to what the loop learned. Other shuffles alone make up to a tenth; a wrong step size or
half an epoch makes much more."""

TITLES = {
    "a": "(a) FedAvg, 100 clients x 600 samples, MLP 784-200-200-10, batch 32, one epoch a round",
    "b": "(b) FedAvg, 10 clients x 600 samples, CNN 5x5 32-64, batch 64, one epoch a round",
    "c": "(c) D-PSGD on a ring of 100 nodes with the data, network and local epoch of (a)",
}
PEERS = {"fedjax": "FedJAX", "pfl": "pfl", "flower": "Flower"}
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_TOP_PAD_": str(1 << 26)}
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@dataclass(frozen=True)
class Contender:
    name: str
    setup: str
    script: str
    threads: int | None = None
    processes: int = 1
    peer: str | None = None
    """Whose environment it runs in; None: proxfed's."""
    memory: bool = False
    """The allocator keeps freed memory, as it does under proxfed."""
    workloads: str = "ab"
    checked: bool = True
    """It takes the same steps as the loop, so it must learn the same."""

    def command(self, workload: str, rounds: int) -> list[str]:
        python = [str(python_of(self.peer))]
        if self.processes > 1:
            python += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes)]
        threads = [] if self.threads is None else ["--threads", str(self.threads)]
        return [*python, str(HERE / self.script), workload, "--rounds", str(rounds), *threads]

    def environment(self) -> dict[str, str]:
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        return os.environ | QUIET | {"PYTHONPATH": str(HERE)} | threads | (KEEP if self.memory else {})


def contenders() -> list[Contender]:
    one, all_ = "1 thread", f"{CORES} threads"
    ranks = f"torchrun, {CORES} processes"
    rows = [
        Contender("hand-written loop", one, "loop.py", 1, workloads="abc"),
        Contender("hand-written loop", all_, "loop.py", CORES, workloads="abc"),
        Contender("the loop, freed memory kept", one, "loop.py", 1, memory=True, workloads="abc"),
        Contender("the loop, freed memory kept", all_, "loop.py", CORES, memory=True, workloads="abc"),
        Contender("one centralised model", all_, "centralised.py", CORES, checked=False),
        Contender("proxfed", f"1 process, {all_}", "ours.py", CORES, workloads="abc"),
        Contender("proxfed", ranks, "ours.py", 1, CORES, workloads="abc"),
        Contender("FedJAX", "jit", "fedjax/bench.py", peer="fedjax"),
        Contender("pfl", f"1 process, {one}", "pfl/bench.py", 1, peer="pfl"),
        Contender("pfl", f"1 process, {all_}", "pfl/bench.py", CORES, peer="pfl"),
        Contender("pfl", ranks, "pfl/bench.py", 1, CORES, peer="pfl"),
        Contender("Flower", f"{CORES} Ray workers, {one} each", "flower/bench.py", 1, peer="flower"),
        Contender("Flower", f"1 Ray worker, {all_}", "flower/bench.py", CORES, peer="flower"),
    ]
    several = CORES > 1
    return [row for row in rows if several or (row.processes == 1 and row.setup != f"1 Ray worker, {all_}")]


# ---- environments --------------------------------------------------------------------------------------------------


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


# ---- running -------------------------------------------------------------------------------------------------------


def measure(contender: Contender, workload: str, rounds: int) -> dict | str:
    """The line that it prints, or the reason why there is none."""
    process = subprocess.Popen(
        contender.command(workload, rounds),
        env=contender.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"not done after {TIMEOUT} seconds"
    finally:
        _end(process)
    lines = [line for line in out.splitlines() if line.startswith('{"peer"')]
    return json.loads(lines[-1]) if lines else f"cannot be run: {_reason(err)}"


def _end(process: subprocess.Popen) -> None:
    """Nothing that it started stays behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


@dataclass(frozen=True)
class Row:
    """What is known of a contender on a workload: the lines of its repetitions, or why there are none."""

    contender: Contender
    lines: list[dict]
    failure: str | None

    @property
    def seconds(self) -> list[float]:
        """Of all rounds after the first."""
        return [s for line in self.lines for s in line["seconds"][1:]]


def turns(options: argparse.Namespace) -> dict[str, list[Row]]:
    chosen = [c for c in contenders() if not options.only or c.script.split("/")[0].removesuffix(".py") in options.only]
    missing = {peer: install(peer) for peer in PEERS if any(c.peer == peer for c in chosen)}
    rows = {w: [Row(c, [], missing.get(c.peer or "")) for c in chosen if w in c.workloads] for w in options.workloads}
    for turn in range(options.repeats):
        for w in rows:
            for k, row in enumerate(rows[w]):
                if row.failure is not None:
                    continue
                print(
                    f"{turn + 1}/{options.repeats} ({w}) {row.contender.name}, {row.contender.setup}", file=sys.stderr
                )
                line = measure(row.contender, w, options.rounds)
                if isinstance(line, str):
                    rows[w][k] = Row(row.contender, row.lines, line)
                else:
                    row.lines.append(line)
    return rows


# ---- the table -----------------------------------------------------------------------------------------------------

HEAD = ("", "set-up", "s a round", "fastest", "the loop takes", "first round", "peak memory")


def table(rows: list[Row]) -> Iterator[tuple[str, ...]]:
    loops = [row for row in rows if row.contender.name == "hand-written loop" and row.seconds]
    base = min((median(row.seconds) for row in loops), default=None)
    learned = median(line["learned"] for row in loops for line in row.lines) if loops else None
    for row in rows:
        who = (row.contender.name, row.contender.setup)
        if row.failure is not None:
            yield (*who, row.failure, "", "", "", "")
            continue
        middle = median(row.seconds)
        yield (
            who[0] + _doubt(row, learned),
            who[1],
            f"{middle:.2f}",
            f"{min(row.seconds):.2f}",
            "" if base is None else f"{base / middle:.2f}x",
            f"{median(line['first_round'] for line in row.lines):.1f} s",
            f"{max(line['peak_rss_mb'] for line in row.lines) / 1024:.1f} GB",
        )


def _doubt(row: Row, learned: float | None) -> str:
    own = median(line["learned"] for line in row.lines)
    if learned is None or not row.contender.checked or abs(own - learned) <= TOLERANCE * abs(learned):
        return ""
    return f" (computes something else: its loss fell by {own:.3f}, the loop's by {learned:.3f})"


def machine(load: float) -> str:
    cpu = platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return f"{cpu}, {CORES} cores, Python {platform.python_version()}; load when it began: {load:.1f}"


def versions() -> str:
    """The peers' own packages, as pinned."""
    pins = {}
    for peer, name in PEERS.items():
        lines = (HERE / peer / "requirements.txt").read_text().splitlines()
        packages = {"fedjax": ("fedjax", "jax"), "pfl": ("pfl", "torch"), "flower": ("flwr", "ray", "torch")}[peer]
        found = [line.replace("[simulation]", "").replace("==", " ") for line in lines if "==" in line]
        pins[name] = ", ".join(line for line in found if line.split()[0] in packages)
    return "; ".join(f"{name} ({text})" for name, text in pins.items())


def markdown(tables: dict[str, list[tuple[str, ...]]], notes: Iterable[str]) -> str:
    parts = ["\n".join(notes)]
    for w, rows in tables.items():
        lines = ["| " + " | ".join(cells) + " |" for cells in (HEAD, ("---",) * len(HEAD), *rows)]
        parts.append(f"### {TITLES[w]}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def plain(rows: list[tuple[str, ...]]) -> str:
    cells = [HEAD, *rows]
    widths = [max(len(row[k]) for row in cells if k != 2 or len(row[k]) < 20) for k in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=tuple(TITLES), default=list(TITLES))
    parser.add_argument("--only", nargs="+", choices=("loop", "centralised", "ours", *PEERS), help="all by default")
    parser.add_argument("--rounds", type=int, default=6, help="of each run; the first is reported apart")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender")
    parser.add_argument("--markdown", type=Path, help="write the tables here too")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2, because the first is reported apart")
    load = os.getloadavg()[0]
    tables = {w: list(table(rows)) for w, rows in turns(options).items()}
    notes = [
        f"Seconds a round: the median of {options.repeats} runs of {options.rounds - 1} rounds after a first, in turn.",
        '"The loop takes": how many times as long as this contender the faster hand-written loop takes.',
        "Peak memory: of all processes, added up.",
        machine(load) + ".",
        f"Peers: {versions()}.",
    ]
    print("\n".join(notes))
    for w, rows in tables.items():
        print(f"\n{TITLES[w]}\n{plain(rows)}")
    if options.markdown is not None:
        options.markdown.write_text(markdown(tables, notes))


if __name__ == "__main__":
    main()
