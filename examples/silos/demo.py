"""Three hospitals on this machine, over mutual TLS, under masks; the holder of one of them is killed on the way.

python examples/silos/demo.py [nvflare|flower]

Their tables have words and gaps, and columns in no order. Each hospital makes its site.toml by the commands that
docs/howto/organisations.md shows. The models are compared, bit for bit, with those of the same job in one process.
"""

from __future__ import annotations

import contextlib
import csv
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import torch

from proxfed.harness.experiment import read
from proxfed.silos.carriers.desk import Desk
from proxfed.silos.carriers.loopback import Loopback
from proxfed.silos.coordinator.deploy import deploy
from proxfed.silos.protection.keyring import SiteKey, fingerprint
from proxfed.silos.site.config import read_site
from proxfed.silos.site.from_config import holder
from proxfed.silos.wire.carrier import Direct

HERE = Path(__file__).parent
SITES = ("lyon", "oslo", "turin")
COLUMNS = ("weight", "smoker", "age", "outcome", "pressure", "ward")


def patients(path: Path, seed: int, rows: int = 150) -> None:
    """A hospital's table."""
    rng = random.Random(seed)
    with path.open("w", newline="") as f:
        out = csv.writer(f)
        out.writerow(COLUMNS)
        for k in range(rows):
            age, pressure = round(rng.gauss(58, 11)), round(rng.gauss(130, 18))
            smoker = rng.choice(["yes", "no", "no", "formerly"])
            risk = (age - 58) / 11 + (pressure - 130) / 18 + (smoker == "yes") + rng.gauss(seed / 4, 1)
            weight = "" if rng.random() < 0.15 else f"{rng.gauss(75, 12):.1f}"
            ward = ("north", "south", "intensive care")[k % 3]
            gap = rng.random() < 0.1
            out.writerow([weight, smoker, age, "ill" if risk > 0.5 else "well", "" if gap else pressure, ward])


def make_sites(folder: Path) -> None:
    """The first hospital looks at its table; the others join the schema that it proposes. All pin each other's keys."""
    command = [sys.executable, "-m", "proxfed", "site"]
    for k, name in enumerate(SITES):
        place = folder / name
        place.mkdir(parents=True)
        patients(place / "patients.csv", k)
        data = ["--data", "patients.csv", "--name", name]
        how = ["init", "--label", "outcome"] if k == 0 else ["join", f"../{SITES[0]}/schema.toml"]
        subprocess.run([*command, *how, *data], cwd=place, check=True, stdout=subprocess.DEVNULL)
    keys = {name: fingerprint(SiteKey.read(folder / name / "site.key").public) for name in SITES}
    for name in SITES:
        file = folder / name / "site.toml"
        others = "".join(f'{other} = "{key}"\n' for other, key in keys.items() if other != name)
        text = file.read_text().replace("counts = false", "counts = true ")  # summaries of tables need it
        text = text.replace("sites = 2 ", "sites = 3 ")
        file.write_text(text.replace("[files]", f"{others}\n[files]"))


def process_of(site: str, top: psutil.Process) -> psutil.Process | None:
    """The holder of a site, among what a process has started."""
    for process in top.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if "silo" in words and any(word.endswith(f"/{site}/site.toml") for word in words):
                return process
    return None


def kill(lab: Loopback, out: Path, over: threading.Event) -> None:
    """The holder of oslo, when the second algorithm is under way."""
    while not over.is_set():
        if any(out.glob("checkpoint/scaffold*/rows.csv")):
            process = process_of("oslo", psutil.Process())
            if process is not None:
                process.kill()
                print("kill -9: the holder of oslo; it is started again, and the run goes on", flush=True)
                return
        time.sleep(0.05)


def dispatch(lab: Loopback, carrier: str):
    if carrier == "nvflare":
        from proxfed.silos.carriers.nvflare_carrier import Flare

        assert lab.kit is not None
        return Flare(lab.kit, "demo")
    from proxfed.silos.carriers.flower_carrier import Runs

    return Runs("loopback", "demo")


def main(carrier: str = "nvflare") -> int:
    with tempfile.TemporaryDirectory(prefix="proxfed-demo-") as name:
        folder = Path(name)
        make_sites(folder / "federation")
        shutil.copytree(folder / "federation", folder / "together")
        e, out, over = read(str(HERE / "trial.toml")), folder / "run", threading.Event()
        silo = [sys.executable, "-m", "proxfed", "silo", "--site"]
        place = folder / "federation"
        with Loopback(place, SITES, carrier, lambda site: [*silo, str(place / site / "site.toml")]) as lab:
            os.environ.update(lab.environment)
            killer = threading.Thread(target=kill, args=(lab, out, over), daemon=True)
            killer.start()
            with Desk(SITES, place / "desk", dispatch(lab, carrier)) as desk:
                results = deploy(e, desk, out, say=print)
            over.set()
        here = Direct({site: holder(read_site(folder / "together" / site / "site.toml")).answer for site in SITES})
        simulated = deploy(e, here, folder / "simulated", say=print, progress=False)
        for row in results.table():
            print({key: value for key, value in row.items() if value is not None})
        same = all(torch.equal(x, simulated.models[key]) for key, x in results.models.items())
        found = "the same, bit for bit" if same else "NOT the same"
        print(f"The models and those of the same job in one process are {found}.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
