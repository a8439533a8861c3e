"""The arena: every method tuned with the same effort on the same problems, then run, kept and put into tables.

    python benchmarks/arena.py                    the convex comparison, with the settings that were chosen, and tables
    python benchmarks/arena.py tune composite     choose settings, on other data than those of the comparison
    python benchmarks/arena.py run composite      the comparison, with what was chosen
    python benchmarks/arena.py table composite    tables of it, as in docs/explanation/arena-details.md
    python benchmarks/arena.py tune composite --only PLEDGE     one method; what is kept of the others stays

`tune` writes what it chose into the shipped experiment, where the diff shows it. All that was tried is kept in
runs/arena/tuned, a folder for each method, with a report that shows how sensitive it is. Whatever was stopped goes on
where it was, and what is done is not done again.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

RUNS = Path("runs/arena")
EXPERIMENTS = Path("src/proxfed/papers/experiments/arena")

STEP = "log(0.3,30)"
LOCAL = "1..10"
SHARE = "[0.1, 0.2, 0.5]"
SERVER = {
    "PLEDGE.eta": STEP,
    "PLEDGE.tau": LOCAL,
    "FedComposite.eta": STEP,
    "FedComposite.tau": LOCAL,
    "FedCEF.alpha": STEP,
    "FedCEF.K": LOCAL,
    "FedCEF.compressor.fraction": SHARE,
    "FedCEF, quantised both ways.alpha": STEP,
    "FedCEF, quantised both ways.K": LOCAL,
    "DEPOSITUM.alpha": STEP,
    "DEPOSITUM.T0": LOCAL,
    "DEPOSITUM.gamma": "[0.2, 0.5, 0.8]",
    "DFedADMM.eta_l": "log(0.1,3)",
    "DFedADMM.K": LOCAL,
    "DFedADMM.lam": "log(3,100)",
    "FedNAG.eta": "log(0.03,3)",
    "FedNAG.tau": LOCAL,
    "FedNAG.gamma": "[0.5, 0.9]",
    "FedDA.eta": STEP,
    "FedDA.K": LOCAL,
    "FedMiD.eta": STEP,
    "FedMiD.K": LOCAL,
    "Fast-FedDA.gamma": STEP,
    "Fast-FedDA.K": LOCAL,
    "ProxSkip.gamma": STEP,
    "ProxSkip.p": "[0.1, 0.2, 0.3, 0.5, 1.0]",
    "FedDR.eta": "log(1,100)",
    "FedDR.eta_l": STEP,
    "FedDR.K": LOCAL,
    "FedADMM.eta": "log(1,100)",
    "FedADMM.eta_l": STEP,
    "FedADMM.K": LOCAL,
    "FedADMM, small penalty.eta": "log(0.01,1)",
    "FedADMM, small penalty.eta_l": STEP,
    "FedADMM, small penalty.K": LOCAL,
    "EF21.gamma": STEP,
    "EF21.compressor.fraction": SHARE,
    "EF21, quantised both ways.gamma": STEP,
    "EF21-BC.gamma": STEP,
    "SCAFCOM.eta": STEP,
    "SCAFCOM.K": LOCAL,
    "SCAFCOM.beta": "[0.2, 0.5, 1.0]",
    "ProxNewton.memory": "[5, 10, 30]",
    "EF21-P + DIANA.gamma": STEP,
    "EF21-P + DIANA.alpha": "[0.2, 0.5, 0.9]",
    "EF21-P + DIANA.compressor.levels": "[2, 4, 8, 16]",
    "EControl, quantised both ways.gamma": STEP,
    "EControl, quantised both ways.eta": "[0.01, 0.05, 0.2]",
    "LoCoDL.gamma": STEP,
    "LoCoDL.p": "[0.1, 0.2, 0.3, 0.5, 1.0]",
    "LoCoDL.compressor.levels": "[2, 4, 8, 16]",
}
PEER_STEP = "log(0.05,3)"
PEERS = {
    "PLEDGE, tree.eta": PEER_STEP,
    "PLEDGE, tree.tau": LOCAL,
    "PLEDGE, peers.eta": PEER_STEP,
    "PLEDGE, peers.tau": LOCAL,
    "DEPOSITUM.alpha": PEER_STEP,
    "DEPOSITUM.T0": LOCAL,
    "DEPOSITUM.gamma": "[0.2, 0.5, 0.8]",
    "DFedADMM.eta_l": "log(0.01,0.3)",
    "DFedADMM.K": LOCAL,
    "DFedADMM.lam": "log(0.3,30)",
    "FedComposite, tree.eta": PEER_STEP,
    "FedComposite, tree.tau": LOCAL,
    "FedCEF, tree.alpha": PEER_STEP,
    "FedCEF, tree.K": LOCAL,
    "FedCEF, tree.compressor.fraction": SHARE,
    "FedNAG, tree.eta": "log(0.005,0.3)",
    "FedNAG, tree.tau": LOCAL,
    "FedNAG, tree.gamma": "[0.5, 0.9]",
    "PG-EXTRA.alpha": PEER_STEP,
    "exact diffusion.eta": PEER_STEP,
    "Prox-ED.eta": PEER_STEP,
    "Prox-LEAD, quantised.eta": PEER_STEP,
    "Prox-LEAD, quantised.gamma": "[0.3, 0.6, 1.0]",
    "CDProxSGT, quantised.eta": PEER_STEP,
    "CDProxSGT, quantised.gamma_x": "[0.3, 0.6, 1.0]",
    "CDProxSGT, quantised.gamma_y": "[0.3, 0.6, 1.0]",
    "ProxGT.alpha": PEER_STEP,
    "CHOCO-SGD, quantised.eta": "log(0.005,3)",
    "CHOCO-SGD, quantised.gamma": "[0.3, 0.6, 1.0]",
    "BEER, quantised.eta": PEER_STEP,
    "BEER, quantised.gamma": "[0.3, 0.6, 1.0]",
}
NETWORK_STEP = "log(0.02,1)"
MOMENTUM_STEP = "log(0.01,0.5)"
MOMENTUM = "[0.5, 0.8, 0.9]"
MNIST_SERVER = {
    "PLEDGE.eta": MOMENTUM_STEP,
    "PLEDGE.beta": MOMENTUM,
    "PLEDGE.theta": "[0.5, 0.7, 0.8]",
    "FedComposite.eta": NETWORK_STEP,
    "FedCEF.alpha": NETWORK_STEP,
    "FedCEF.eta": "[0.3, 0.5, 1.0]",
    "FedCEF.compressor.fraction": SHARE,
    "FedCEF, quantised both ways.alpha": NETWORK_STEP,
    "FedCEF, quantised both ways.eta": "[0.3, 0.5, 1.0]",
    "FedNAG.eta": MOMENTUM_STEP,
    "FedNAG.gamma": MOMENTUM,
    "FedAvg.eta": NETWORK_STEP,
    "SCAFCOM.eta": NETWORK_STEP,
    "SCAFCOM.beta": "[0.2, 0.5, 1.0]",
}
MNIST_RING = {
    "PLEDGE, tree.eta": MOMENTUM_STEP,
    "PLEDGE, tree.beta": MOMENTUM,
    "PLEDGE, peers.eta": MOMENTUM_STEP,
    "PLEDGE, peers.beta": MOMENTUM,
    "PLEDGE, peers.theta": "[0.0, 0.3, 0.5]",
    "DEPOSITUM.alpha": NETWORK_STEP,
    "DEPOSITUM.gamma": "[0.2, 0.5, 0.8]",
    "DFedADMM.eta_l": NETWORK_STEP,
    "DFedADMM.inverse_penalty": "[0.03, 0.1, 0.3]",
    "DFedAvgM.eta": MOMENTUM_STEP,
    "DFedAvgM.theta": MOMENTUM,
    "CHOCO-SGD, quantised.eta": NETWORK_STEP,
    "CHOCO-SGD, quantised.gamma": "[0.3, 0.6, 1.0]",
    "CDProxSGT, quantised.eta": NETWORK_STEP,
    "CDProxSGT, quantised.gamma_x": "[0.3, 0.6, 1.0]",
    "CDProxSGT, quantised.gamma_y": "[0.3, 0.6, 1.0]",
}
LEFT_OUT = ("SCAFCOM", "PLEDGE.theta")
OTHER_SERVERS = {key: space for key, space in MNIST_SERVER.items() if not key.startswith(LEFT_OUT)}
"""PLEDGE's extrapolation is what was found for `mnist_server`."""
FMNIST_SERVER = OTHER_SERVERS | {"DEPOSITUM.alpha": NETWORK_STEP, "DEPOSITUM.gamma": "[0.2, 0.5, 0.8]"}
MNIST_100 = {key: space for key, space in MNIST_RING.items() if not key.startswith("CDProxSGT")}
SHORTER = {NETWORK_STEP: "log(0.005,0.25)", MOMENTUM_STEP: "log(0.0025,0.125)"}
"""Standardised pixels, and FedNAG's own step of 0.01."""
MNIST_CNN = {key: SHORTER.get(space, space) for key, space in OTHER_SERVERS.items()}
FEWER_CLIENTS = ["data.limit=12000", "data.partition.num_partitions=20"]
"""The quick form of `mnist_100`."""
FEDCEF_STEPS = {
    "PLEDGE.eta": "log(0.01,0.15)",
    "FedComposite.eta": "log(0.01,0.06)",
    "FedCEF.alpha": "log(0.01,0.06)",
    "FedCEF, quantised both ways.alpha": "log(0.01,0.06)",
    "FedDA.eta": "log(0.02,0.3)",
    "FedNAG.eta": "log(0.01,0.15)",
}
"""Only the step: what else there is was found for `mnist_server`."""


@dataclass(frozen=True)
class Fight:
    """One experiment of the arena: how its methods are tuned."""

    over: dict[str, str]
    """Settings and where they are looked for."""
    target: str
    budget: int
    """Rounds of each method, over all its configurations."""
    rounds: int
    """Rounds of the configurations that get to the end."""
    other_data: list[str] = field(default_factory=list)
    """Changes that make data which the comparison does not see; networks are judged on held-out rows instead."""
    forms: tuple[str, ...] = ("full",)
    """Which forms the comparison runs, all with the same settings."""
    seeds: int = 1
    """Of each configuration, none of them one of the comparison's; what diverges with one of them is out."""


BOTH = ("quick", "full")
FIGHTS = {
    "composite": Fight(SERVER, "error=1e-6", 1500, 300, ["data.seed=100", "data.samples=200"], BOTH),
    "shifted": Fight(SERVER, "error=1e-6", 1500, 300, ["data.seed=100"]),
    "a9a_ring": Fight(PEERS, "error=1e-6", 1000, 300, ["data.partition.seed=100"]),
    "mnist_server": Fight(MNIST_SERVER, "accuracy=0.93", 816, 60, seeds=3),
    "mnist_ring": Fight(MNIST_RING, "accuracy=0.93", 315, 45, seeds=3),
    "mnist_depositum_mlp": Fight(FMNIST_SERVER, "accuracy=0.93", 315, 45, seeds=3),
    "fmnist_server": Fight(FMNIST_SERVER, "accuracy=0.8", 315, 45, seeds=3),
    "mnist_100": Fight(MNIST_100, "accuracy=0.93", 100, 15, FEWER_CLIENTS, BOTH, seeds=2),
    "mnist_cnn": Fight(MNIST_CNN, "accuracy=0.95", 100, 15, seeds=2),
    "fmnist_cnn": Fight(FMNIST_SERVER, "accuracy=0.75", 100, 15, seeds=2),
    "mnist_depositum_cnn": Fight(FMNIST_SERVER, "accuracy=0.9", 100, 15, seeds=2),
    "fedcef_mnist": Fight(FEDCEF_STEPS, "accuracy=0.85", 90, 15, seeds=3),
    "fedcef_cifar": Fight(FEDCEF_STEPS, "accuracy=0.35", 90, 15, seeds=3),
}
CONVEX = ("composite", "shifted", "a9a_ring")


def proxfed(*words: str) -> None:
    """A command of the package, in this environment."""
    print("proxfed", *words, flush=True)
    subprocess.run([sys.executable, "-m", "proxfed", *words], check=True)


def tune(name: str, only: list[str]) -> None:
    """Choose settings of the methods, one after the other, and write them into the experiment."""
    fight = FIGHTS[name]
    case = next(iter(tomllib.loads((EXPERIMENTS / f"{name}.toml").read_text()).get("cases", {})), None)
    words = [f"arena/{name}", *(["--case", case] if case else []), "--target", fight.target, "--axis", "bytes"]
    words += ["--budget", str(fight.budget), "--rounds", str(fight.rounds), "--seeds", str(fight.seeds), "--jobs", "1"]
    words += ["--checkpoint", "60", *(word for change in fight.other_data for word in ("-c", change))]
    for label in labels(fight, only):
        out = RUNS / "tuned" / name / label
        over = [f"{key}={space}" for key, space in fight.over.items() if key.startswith(f"{label}.")]
        own = [word for one in over for word in ("--over", one)]
        proxfed("tune", *words, *own, "--out", str(out), *(["--resume"] if out.exists() else []))
    settle(name, only)


def labels(fight: Fight, only: Sequence[str] = ()) -> list[str]:
    """The methods that are tuned."""
    known = list(dict.fromkeys(key.partition(".")[0] for key in fight.over))
    if strange := [label for label in only if label not in known]:
        sys.exit(f"--only {strange[0]!r}: the methods here are {', '.join(known)}")
    return [label for label in known if label in only or not only]


def settle(name: str, only: list[str]) -> None:
    """Write what was chosen into the experiment."""
    path = EXPERIMENTS / f"{name}.toml"
    chosen: dict[str, Any] = {}
    for label in labels(FIGHTS[name], only):
        tuned = tomllib.loads((RUNS / "tuned" / name / label / "tuned.toml").read_text())
        chosen |= {table["label"]: table for table in tuned["algorithms"] if table["label"] == label}
    path.write_text(with_settings(path.read_text(), chosen, FIGHTS[name].over))


def with_settings(text: str, chosen: dict[str, Any], over: dict[str, str]) -> str:
    """The file of an experiment with the tuned values of these keys, and what was spent on them."""
    head, *blocks = re.split(r"(?m)^(?=\[\[algorithms\]\])", text)
    return head + "".join(_block(block, chosen, over) for block in blocks)


def _block(block: str, chosen: dict[str, Any], over: dict[str, str]) -> str:
    label = tomllib.loads(block)["algorithms"][0]["label"]
    if label not in chosen:
        return block
    block = re.sub(r"(?ms)^\[algorithms\.tuned\].*", "", block).rstrip("\n") + "\n"
    for key in (key.removeprefix(f"{label}.") for key in over if key.startswith(f"{label}.")):
        outer, _, inner = key.partition(".")
        value = chosen[label][outer][inner] if inner else chosen[label][outer]
        pattern = rf"(?m)^({outer} = \{{.*\b{inner} = )[^ ,}}]+" if inner else rf"(?m)^({outer} = )\S+"
        block, times = re.subn(pattern, rf"\g<1>{value!r}", block)
        block += "" if times else f"{outer} = {value!r}\n"  # a default until now
    return f"{block}\n{tomli_w.dumps({'algorithms': {'tuned': chosen[label]['tuned']}})}\n"


def run(name: str, only: list[str]) -> None:
    """The comparison with what was chosen; its rows are kept in results/arena."""
    own = [word for label in only for word in ("--only", label)]
    for form in FIGHTS[name].forms:
        proxfed("reproduce", f"arena/{name}", f"--{form}", "--jobs", "1", "--out", str(RUNS / "run"), *own)
    proxfed("results", "keep", str(RUNS / "run"))


def tables(name: str, _: list[str]) -> None:
    """For each form and target, what every method took to reach it: printed as Markdown."""
    from arena_table import read, section

    measure = FIGHTS[name].target.partition("=")[0]
    targets = tomllib.loads((EXPERIMENTS / f"{name}.toml").read_text())["targets"][measure]
    for form in FIGHTS[name].forms:
        groups: dict[str, list[Any]] = {}
        for case, run in read(name, form).items():
            groups.setdefault(re.sub(r"(, )?draw \d+", "", case), []).append(run)
        for group, found in groups.items():
            for target in targets:
                title = ", ".join(filter(None, (name, form, group, f"{measure} {target:g}")))
                print(section(title, found, measure, target))


def main() -> None:
    parser = argparse.ArgumentParser(description="The arena.")
    parser.add_argument("verb", nargs="?", choices=("tune", "run", "table"), help="default: run and table of CONVEX")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(FIGHTS)}; all if none is given")
    parser.add_argument("--only", action="append", default=[], metavar="METHOD", help="may be repeated; else all")
    given = parser.parse_args()
    verbs = {"tune": tune, "run": run, "table": tables}
    for verb in [given.verb] if given.verb else ["run", "table"]:
        for name in given.names or (FIGHTS if given.verb else CONVEX):
            verbs[verb](name, given.only)


if __name__ == "__main__":
    main()
