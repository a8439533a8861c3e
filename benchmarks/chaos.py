"""What a run between organisations survives: kill -9 at random moments, and messages lost, repeated or reordered.

    python benchmarks/chaos.py nvflare --kills 200

A federation on this machine (silos/carriers/loopback.py) carries out an experiment again and again. Meanwhile processes
are killed at random, about half of them while the last kill is being recovered from: holders, coordinators, and all
processes of the carrier. A proxy loses, repeats or reorders 10 % of the messages besides. Every run must end with the
very bits of the stacked run; with --masked, where sums are rounded, with those of the same sites in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from proxfed.harness.experiment import Experiment
    from proxfed.harness.results import Results

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from proxfed.silos.carriers.loopback import Loopback

from support.lossy import Lossy

TABLE = """
name = "chaos"
rounds = {rounds}
data = {{ name = "synthetic_binary", alpha = 1.0, beta = 1.0, clients = 3, samples = 200, features = 20 }}
problem = {{ name = "logistic", l2 = 0.01 }}
protection = {{ secure_aggregation = {masked} }}
regulariser = {{ name = "l1", weight = 0.01 }}
algorithms = [
{algorithms}
]
"""
ALGORITHMS = {
    "fedcomposite": '{ name = "fedcomposite", eta = 1.0, tau = 5 },',
    "fedcef": '{ name = "fedcef", alpha = 0.5, K = 5, compressor = { name = "top_k", fraction = 0.2 } },',
    "depositum": '{ name = "depositum", alpha = 0.3, T0 = 2, topology = { name = "ring" } },',
}
COMPRESSED = ("fedcef",)
"""Whose messages cannot be masked."""
PLAN = {"nvflare": (40, list(ALGORITHMS), 0.5), "flower": (3, ["fedcomposite"], 40.0)}
"""Rounds, algorithms, and the seconds after which the desk repeats a question."""

KINDS = {
    "server_train": "carrier: server", "runner_process": "carrier: job at the server",
    "client_train": "carrier: site", "worker_process": "carrier: job at a site",
    "flower-superlink": "carrier: server", "flwr-serverapp": "carrier: job at the server",
    "flower-supernode": "carrier: site", "flwr-clientapp": "carrier: job at a site",
    "flower-superexec": "carrier: starter of jobs", "silo": "holder",
}  # fmt: skip


# ---- the coordinator, a process of its own --------------------------------------------------------------------------


def coordinate(carrier: str, folder: Path, out: Path, seed: int) -> None:
    """One life of a coordinator, whose couriers speak to a proxy that is not to be relied upon."""
    from proxfed.harness.experiment import read
    from proxfed.silos.carriers.desk import Desk
    from proxfed.silos.coordinator.deploy import deploy

    where = json.loads((folder / "where.json").read_text())
    couriers: Callable[[str, Path], None]
    if carrier == "nvflare":
        from proxfed.silos.carriers.nvflare_carrier import Flare

        couriers = Flare(Path(where["kit"]), "chaos")
    else:
        from proxfed.silos.carriers.flower_carrier import Runs

        couriers = Runs("loopback", "chaos")
    front = folder / "front"
    desk = Desk(
        tuple(where["sites"]), folder / "desk", lambda site, path: couriers(site, front), again=PLAN[carrier][2]
    )
    with Lossy(front, folder / "desk", rate=0.1, seed=seed) as lossy, desk:
        try:
            deploy(read(str(folder / "chaos.toml")), desk, out, resume=True, progress=False)
        finally:
            (folder / "faults").mkdir(exist_ok=True)
            (folder / "faults" / f"{os.getpid()}.json").write_text(json.dumps(lossy.done))


# ---- what is killed, and what came of it ----------------------------------------------------------------------------


def reached(out: Path) -> tuple[int, int]:
    """(tasks done, the last round of the one under way)"""
    done = 0
    with suppress(OSError, ValueError):
        tasks = json.loads((out / "status.json").read_text())["tasks"]
        done = sum(s["status"] == "finished" for s in tasks)
    last = -1
    for rows in out.glob("checkpoint/*/rows.csv"):
        with suppress(OSError, ValueError, IndexError):
            last = max(last, rows.read_text().count("\n"))
    return done, last


class Killer(threading.Thread):
    """Kills until there were enough; says how long it took each time until another round was done."""

    def __init__(self, lab: Loopback, mean: float, kills: int, end: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.lab, self.mean, self.kills, self.end, self.random = lab, mean, kills, end, random.Random(seed)
        self.coordinator: int | None = None
        self.out = Path()
        self.killed: Counter[str] = Counter()
        self.waits: dict[str, list[float]] = {}
        self._open: list[tuple[str, float]] = []
        self._best: tuple[Path, tuple[int, int]] | None = None
        self._lock, self._moved = threading.Lock(), threading.Event()

    @property
    def enough(self) -> bool:
        return sum(self.killed.values()) >= self.kills or time.monotonic() > self.end

    def look(self) -> None:
        """Another round done: all kills so far are recovered from."""
        now = (self.out, reached(self.out))
        with self._lock:
            if self._best is None or now[0] != self._best[0] or now[1] > self._best[1]:
                self._best = now
                for kind, since in self._open:
                    self.waits.setdefault(kind, []).append(time.monotonic() - since)
                self._open = []
                self._moved.set()

    def run(self) -> None:
        while not self.enough:
            if self._open and self.random.random() < 0.5:  # half of the kills wait until a round was done since
                self._moved.clear()
                self._moved.wait(60 * self.mean)
            time.sleep(self.random.expovariate(1 / self.mean))
            victims = self.victims()
            kind = self.random.choice(sorted(victims))
            with suppress(ProcessLookupError):
                os.kill(self.random.choice(victims[kind]), signal.SIGKILL)
                with self._lock:
                    self.killed[kind] += 1
                    self._open.append((kind, time.monotonic()))

    def victims(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        if self.coordinator is not None:
            found["coordinator"] = [self.coordinator]
        for kept in list(self.lab.kept.values()):
            if kept.process is None:
                continue
            with suppress(psutil.Error):
                top = psutil.Process(kept.process.pid)
                for process in [top, *top.children(recursive=True)]:
                    with suppress(psutil.Error):
                        words = " ".join(process.cmdline())
                        kind = next((k for word, k in KINDS.items() if word in words), None)
                        if kind is not None:
                            found.setdefault(kind, []).append(process.pid)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("carrier", choices=["nvflare", "flower"])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument(
        "--mean", type=float, default=5.0, help="seconds between two kills, on average, if nothing is waited for"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="end the killing after so many")
    parser.add_argument("--masked", action="store_true", help="the coordinator reads sums only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--coordinate", nargs=2, metavar=("OUT", "SEED"), help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.coordinate:
        coordinate(a.carrier, a.folder, Path(a.coordinate[0]), int(a.coordinate[1]))
        return
    folder = a.folder or Path(tempfile.mkdtemp(prefix="proxfed-chaos-"))
    try:
        survive(a.carrier, folder.resolve(), a.kills, a.mean, a.minutes, a.seed, a.masked)
    finally:
        if a.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def undisturbed(e: Experiment, folder: Path, masked: bool) -> Results:
    """What every run must end with."""
    from proxfed.harness.build import build_study
    from proxfed.harness.compare import run_study
    from proxfed.silos.carriers.loopback_sites import make_sites
    from proxfed.silos.coordinator.deploy import deploy
    from proxfed.silos.site.config import read_site
    from proxfed.silos.site.from_config import holder
    from proxfed.silos.wire.carrier import Direct

    if not masked:
        return run_study(build_study(e), progress=False)
    names = make_sites(e, None, folder, 3)
    here = Direct({name: holder(read_site(folder / name / "site.toml")).answer for name in names})
    return deploy(e, here, folder / "run", progress=False)


def survive(
    carrier: str, folder: Path, kills: int, mean: float, minutes: float, seed: int, masked: bool = False
) -> None:
    from proxfed.harness.experiment import read
    from proxfed.harness.folder.run_folder import RunFolder
    from proxfed.harness.results import Results
    from proxfed.silos.carriers.loopback_sites import make_sites

    rounds, labels, _ = PLAN[carrier]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "chaos.toml"
    taken = [ALGORITHMS[label] for label in labels if not (masked and label in COMPRESSED)]
    file.write_text(TABLE.format(rounds=rounds, masked=str(masked).lower(), algorithms="\n".join(taken)))
    e = read(str(file))
    clean = {name: x.numpy().tobytes() for name, x in undisturbed(e, folder / "undisturbed", masked).models.items()}
    sites = make_sites(e, None, folder, 3)
    site = [sys.executable, "-m", "proxfed", "silo", "--site"]
    runs = lives = same = 0
    faults: Counter[str] = Counter()
    begun = time.monotonic()
    with Loopback(folder, sites, carrier, lambda name: [*site, str(folder / name / "site.toml")]) as lab:
        (folder / "where.json").write_text(json.dumps({"kit": str(lab.kit), "sites": sites}))
        killer = Killer(lab, mean, kills, time.monotonic() + 60 * minutes, seed)
        killer.start()
        while not killer.enough:
            out = folder / f"run-{runs}"
            killer.out = out
            while True:
                lives += 1
                command = [sys.executable, __file__, carrier, "--folder", str(folder)]
                with (folder / "logs" / "coordinator.log").open("ab") as log:
                    p = subprocess.Popen(
                        [*command, "--coordinate", str(out), str(seed + lives)],
                        env={**os.environ, **lab.environment}, stdout=log, stderr=log,
                    )  # fmt: skip
                killer.coordinator = p.pid
                try:
                    while p.poll() is None:
                        killer.look()
                        time.sleep(0.1)
                finally:
                    p.kill()
                    killer.coordinator = None
                if p.returncode == 0:
                    break
                if p.returncode != -signal.SIGKILL:
                    raise SystemExit(f"the coordinator failed: see {folder / 'logs' / 'coordinator.log'}")
            killer.look()
            found = {name: x.numpy().tobytes() for name, x in Results.read(RunFolder(out)).models.items()}
            runs, same = runs + 1, same + (found == clean)
            print(
                f"run {runs}: {'the same bits' if found == clean else 'OTHER BITS'}; {dict(killer.killed)}", flush=True
            )
    for part in (folder / "faults").glob("*.json"):
        faults.update(json.loads(part.read_text()))
    took, total = (time.monotonic() - begun) / 60, sum(killer.killed.values())
    print(f"\n{carrier}: {total} kills in {took:.0f} min, {runs} runs, {same} with the bits of the stacked run")
    print(f"messages in lives of the coordinator that ended by themselves: {dict(faults)}")
    print("\n| killed | times | until the next round was done: median, worst |\n|---|---|---|")
    for kind, count in sorted(killer.killed.items()):
        waits = sorted(killer.waits.get(kind, [0.0]))
        print(f"| {kind} | {count} | {waits[len(waits) // 2]:.0f} s, {waits[-1]:.0f} s |")
    if same < runs:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
