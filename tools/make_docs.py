"""Write the pages of docs/ that follow from the code: one per algorithm, and the table to choose from.

python tools/make_docs.py            write them
python tools/make_docs.py --check    fail if they are not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from proxfed.algorithms import ALGORITHMS
from proxfed.harness.catalogue import Entry, catalogue, recursion, settings

DOCS = Path(__file__).parents[1] / "docs"

CHOOSE = """\
# Which algorithm when

This page and the page of each algorithm are made from the code by `make docs`; `proxfed list algorithms NAME` prints
the same.

Three questions decide most of it:

1. **Is there a server?** If not, take one that runs on *peers*, over a graph.
2. **Is h non-smooth, and does its structure (zeros, bounds, low rank) matter?** Then take one that takes *prox*
   steps. Those that handle it by its *subgradient* add that to every gradient: their models come close, but have no
   exact zeros, and constraints are refused.
3. **Do the clients' data differ, and are there several local steps between rounds?** Then *exact* methods converge to
   the solution with full gradients; *biased* ones stop near it, the nearer the smaller the step.
"""

GROUPS = (
    ("With a server, exact on different data", lambda e: e["runs on"] == "server" and e["different data"] == "exact"),
    ("With a server, biased on different data", lambda e: e["runs on"] == "server" and e["different data"] == "biased"),
    ("Peer to peer, exact on different data", lambda e: e["runs on"] == "peers" and e["different data"] == "exact"),
    ("Peer to peer, biased on different data", lambda e: e["runs on"] == "peers" and e["different data"] == "biased"),
)


def pages() -> dict[Path, str]:
    """Every made page and its text."""
    entries = {e["name"]: e for e in catalogue("algorithms")["algorithms"]}
    made = {DOCS / "algorithms" / f"{name}.md": page(name, entry) for name, entry in entries.items()}
    return made | {DOCS / "algorithms.md": overview(list(entries.values()))}


def overview(entries: list[Entry]) -> str:
    parts = [CHOOSE]
    for title, belongs in GROUPS:
        parts.append(
            f"\n## {title}\n\n| name | what it is | handles h by | needs | sends a round |\n|---|---|---|---|---|\n"
        )
        for e in filter(belongs, entries):
            link = f"[`{e['name']}`](algorithms/{e['name']}.md)"
            parts.append(f"| {link} | {e['about']} | {e['handles h by']} | {e['needs']} | {e['sends']} |\n")
    return "".join(parts)


def page(name: str, entry: Entry) -> str:
    make = ALGORITHMS[name]
    known = [
        (s.name, "" if s.default is None else f"`{s.default}`", s.about.replace("|", "\\|")) for s in settings(make)
    ]
    rows = [f"| `{name}` | {default} | {about} |" for name, default, about in known]
    head, _, rest = recursion(make).partition("Reference:")[0].partition("\n")  # the paper is among the facts
    facts = [
        f"- runs on: {entry['runs on']}",
        f"- handles h by: {entry['handles h by']}",
        f"- needs: {entry['needs'] or 'nothing special'}",
        f"- sends a round: {entry['sends']}",
        f"- on different data, with several local steps: {entry['different data']}",
        f"- paper: {entry['paper']}",
    ]
    table = ["| setting | default | meaning |", "|---|---|---|", *rows]
    return "\n".join([f"# `{name}`", "", head, rest.rstrip(), "", *facts, "", *table, ""])


def main() -> None:
    made = pages()
    if "--check" in sys.argv:
        stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
        stale += [path for path in (DOCS / "algorithms").glob("*.md") if path not in made]
        sys.exit(f"not up to date, run `make docs`: {', '.join(p.name for p in stale)}" if stale else 0)
    (DOCS / "algorithms").mkdir(exist_ok=True)
    for path in set((DOCS / "algorithms").glob("*.md")) - made.keys():
        path.unlink()
    for path, text in made.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
