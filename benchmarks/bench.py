"""All that is measured against others and against the limit, in turns, in one table: `make bench`, `make bench-peers`.

a          FedAvg, 100 clients x 600 samples, MLP 784-200-200-10, batch 32, one epoch a round
b          FedAvg, 10 clients x 600 samples, CNN 5x5 32-64, batch 64, one epoch a round
c          D-PSGD on a ring of 100 nodes with the data, network and local epoch of a
depositum  DEPOSITUM on a ring of 20, 600 samples each, its CNN, batch 64, T0 = 10, MCP
admm       DFedADMM on a ring of 100 with the network and local epoch of a
linear     FedAvg, 1000 clients, softmax 60x10, 5 local steps, batch 20
gradient   the full gradient of logistic regression, 30 x 2000 x 60 in float64
top_k      top-k of 1 % of (10, 11,000,000) float32 numbers, 440 MB
encode     those messages written
decode     those messages read, each to its dense value
receive    those messages read and added up, from the wire to the sum

How turns are taken and which of them count: interleave.py. The limit is a round's products at the speed of a large one,
or one pass by one thread: a read of what must be read, and fresh memory for what must be written (vectors.py).

    python benchmarks/bench.py                     all of it but other frameworks
    python benchmarks/bench.py a b --peers         two workloads, with other frameworks in environments under .peers
    python benchmarks/bench.py --regress           ours against the limit, and against the ratios in kept.json
    python benchmarks/bench.py --regress --keep    the same, and keep these ratios
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

from environments import PEERS, install, python_of, versions  # noqa: E402
from interleave import CORES, Contestant, Score, markdown, ours, plain, table, take_turns  # noqa: E402

KEPT = HERE / "kept.json"
LOSS = 0.2
"""By which a ratio may grow before it counts as lost."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
PASSIVE, SPIN = {"OMP_WAIT_POLICY": "passive"}, {"GOMP_SPINCOUNT": "300000"}
"""How threads wait: what proxfed's command line asks for, and what it is when nobody asks."""

PASSES = ("gradient", "top_k", "encode", "decode", "receive")
WORKLOADS = ("a", "b", "c", "depositum", "admm", "linear", *PASSES)


def contestant(
    name: str, setup: str, script: str, arguments: str, threads: int | None, peer: str | None = None, **more
) -> Contestant:
    """One that runs a script of this folder."""
    processes = more.get("processes", 1)
    python = [str(python_of(peer))]
    if processes > 1:
        python += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    given = [] if threads is None else ["--threads", str(threads)]
    omp = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    environment = {"PYTHONPATH": f"{HERE}:{HERE / 'peers'}:{HERE.parent / 'src'}"} | QUIET | omp
    environment |= PASSIVE if name == "proxfed" else SPIN
    return Contestant(name, setup, (*python, str(HERE / script), *arguments.split(), *given), environment, **more)


def limit(w: str) -> Contestant:
    threads = 1 if w in PASSES else CORES
    return contestant("one pass" if w in PASSES else "the limit", f"{threads} threads", "limit.py", w, threads)


def own(w: str) -> Contestant:
    script = {
        **dict.fromkeys("abc", "peers/ours.py"),
        **dict.fromkeys(("depositum", "admm"), "networks.py"),
        "linear": "linear_round.py",
    }.get(w, "vectors.py")
    return contestant("proxfed", f"1 process, {CORES} threads", script, w, CORES)


def others(w: str) -> list[Contestant]:
    """The loop and the like, which need nothing but torch."""
    threads = sorted({1, CORES})
    rows = []
    if w in "abc":
        rows += [contestant("hand-written loop", f"{t} threads", "peers/loop.py", w, t) for t in threads]
        if w != "c":
            rows.append(
                contestant("one centralised model", f"{CORES} threads", "peers/centralised.py", w, CORES, checked=False)
            )
        if CORES > 1:
            rows.append(contestant("proxfed", f"torchrun, {CORES} processes", "peers/ours.py", w, 1, processes=CORES))
        if w == "a":
            rows.append(contestant("torch.func.vmap", f"{CORES} threads", "peers/vmap.py", w, CORES))
        return rows
    if w == "top_k":
        return [contestant("torch.topk", f"{CORES} threads", "vectors.py", "top_k --contestant torch.topk", CORES)]
    if w in PASSES:
        return []
    script = "linear_round.py" if w == "linear" else "networks.py"
    rows += [contestant("hand-written loop", f"{t} threads", script, f"{w} --contestant loop", t) for t in threads]
    return [
        *rows,
        contestant("one centralised model", f"{CORES} threads", script, f"{w} --contestant centralised", CORES),
    ]


def peers(w: str) -> list[Contestant]:
    """Other frameworks, each in its fastest documented ways."""
    if w not in "ab":
        return []
    missing = {peer: reason for peer in PEERS if (reason := install(peer)) is not None}
    for peer, reason in missing.items():
        print(f"{PEERS[peer]} {reason}", file=sys.stderr)
    rows = [
        contestant("FedJAX", "jit", "peers/fedjax/bench.py", w, None, "fedjax"),
        contestant("pfl", f"1 process, {CORES} threads", "peers/pfl/bench.py", w, CORES, "pfl"),
        contestant("Flower", f"{CORES} Ray workers, 1 thread each", "peers/flower/bench.py", w, 1, "flower"),
        contestant("Flower", f"1 Ray worker, {CORES} threads", "peers/flower/bench.py", w, CORES, "flower"),
    ]
    if CORES > 1:
        ranks = contestant("pfl", f"torchrun, {CORES} processes", "peers/pfl/bench.py", w, 1, "pfl", processes=CORES)
        rows.insert(2, ranks)
    there = {PEERS[peer] for peer in PEERS if peer not in missing}
    return [row for row in rows if row.name in there]


def title(w: str) -> str:
    described = dict(line.split(maxsplit=1) for line in (__doc__ or "").splitlines() if "  " in line[:11])
    return f"{w}: {described[w]}" if w in described else w


def regress(found: dict[str, list[Score]], keep: bool) -> int:
    """Ours in units of the limit, beside the kept ratio: 0 if nothing is lost, 1 if something is, 2 if that cannot be
    told of all."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    ratios, lost, unknown = dict(kept), False, False
    for w, scores in found.items():
        mine, least = ours(scores).median, next(s.median for s in scores if s.contestant.name != "proxfed")
        before = kept.get(w)
        if mine is None or least is None:
            print(f"{w}: too few turns without foreign load; nothing can be said")
            unknown = True
            continue
        ratio = mine / least
        ratios[w] = round(ratio, 3)
        if before is None:
            print(f"{w}: {ratio:.2f} times the limit; no ratio is kept")
            unknown |= not keep
        else:
            worse = ratio > (1 + LOSS) * before
            print(f"{w}: {ratio:.2f} times the limit; {before:.2f} is kept" + ": LOST" * worse)
            lost |= worse and not keep
    if keep:
        KEPT.write_text(json.dumps(ratios, indent=1) + "\n")
        print(f"kept in {KEPT.relative_to(HERE.parent)}")
    return 1 if lost else 2 if unknown else 0


def machine() -> str:
    cpu, info = platform.machine(), Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return f"{cpu}, {CORES} cores, Python {platform.python_version()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help=f"{', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--peers", action="store_true", help="other frameworks too, on a and b")
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--regress", action="store_true", help="ours and the limit alone, against kept.json")
    parser.add_argument("--keep", action="store_true", help="with --regress: keep these ratios")
    parser.add_argument("--markdown", type=Path, help="write the tables here too")
    args = parser.parse_args()
    wrong = [w for w in args.workloads if w not in WORKLOADS]
    if wrong:
        parser.error(f"there is no workload {wrong[0]!r}: {', '.join(WORKLOADS)}")
    chosen = args.workloads or (("a", "b") if args.peers else WORKLOADS)
    print(f"{machine()}; medians of {args.turns} turns without foreign load above a tenth of the cores", flush=True)
    if args.peers:
        print(f"peers: {versions()}", flush=True)
    found, parts = {}, []
    for w in chosen:
        rows = [own(w), limit(w)] + ([] if args.regress else others(w)) + (peers(w) if args.peers else [])
        found[w] = take_turns(rows, args.turns)
        cells = table(found[w])
        print(f"\n{title(w)}\n{plain(cells)}", flush=True)
        parts.append(f"### {title(w)}\n\n{markdown(cells)}\n")
    if args.markdown is not None:
        args.markdown.parent.mkdir(parents=True, exist_ok=True)
        args.markdown.write_text("\n".join(parts))
    return regress(found, args.keep) if args.regress else 0


if __name__ == "__main__":
    sys.exit(main())
