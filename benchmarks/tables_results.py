"""Fit the public tables of examples/tables/ and write docs/tables-results.md: `make tables-results`, with PROXFED_DATA.

    python benchmarks/tables_results.py [NAME...] [--out FILE.md]

Data that are not there are left out, and the page says so. The numbers are the same on every run; seconds of this
machine are not on the page but printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from proxfed.errors import MissingData
from proxfed.fit import Fitted, fit
from proxfed.fit.judge import ALL
from proxfed.fit.overview import interval, main_measure, sent_cells, sentences
from proxfed.report.markdown import plain_text, table

ROOT = Path(__file__).parents[1]
NAMES = ("heart-disease", "sba-loans", "fed-tcga-brca", "golub-leukemia")
HEAD = """# Tables of real organisations

What `proxfed fit` finds in the public tables of `examples/tables/`: one sparse model of all organisations, beside the
model of each alone, which chooses its own weight, and that of pooled rows, which is a simulation. Values are of rows
that the model has not seen, with intervals of 95 % by bootstrap within organisations. Made by `make tables-results`
with the data in `PROXFED_DATA`; the seconds are simulated, on the profile `wan`.

Not every organisation gains: one with many rows, or with rows unlike those of others, may do better alone, as 8 of the
18 banks do here.

That the models are those of pooled rows is also tested with other solvers, to 1e-6 and with the same zeros
(`tests/test_fit_real.py`; of equal columns, one): lasso and elastic net of scikit-learn on these tables and on
`eicu-demo`; its sparse logistic regression on all with classes but `golub-leukemia`, where coordinate descent of the
tests takes its place; group lasso by block descent on all but `golub-leukemia`; top-k compressed messages on
`heart-disease` and `eicu-demo`. Of the 7,129 genes of `golub-leukemia` the schema leaves out 486, of which too
little may be sent to scale them; one fit to the other 6,643, to a residual of 1e-8, took 4 s of computing.
"""


def section(name: str, found: Fitted) -> str:
    measure = main_measure(found)
    rows = []
    for organisation, row in found.federated.items():
        own = found.alone.get(organisation) if organisation != ALL else None
        same = found.pooled.get(organisation)
        zeros = str(found.model.nonzeros) if organisation == ALL else str(found.alone_nonzeros.get(organisation, "–"))
        cells = [interval(judged[measure] if judged else None) for judged in (row, own, same)]
        rows.append([plain_text(organisation), *cells, zeros])
    head = ["organisation", f"{measure}, federated", "alone", "pooled rows", "non-zeros (alone; all: federated)"]
    notes = "".join(f"- {plain_text(note)}\n" for note in found.model.notes)
    parts = [
        f"## {name}",
        " ".join(map(plain_text, sentences(found))) + f" Judged on {found.model.held_out}.",
        f"`proxfed fit examples/tables/{name}.toml`",
        table(head, rows).rstrip(),
        table(*sent_cells(found)).rstrip(),
        notes.rstrip(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all if none is given")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "tables-results.md")
    given = parser.parse_args()
    parts, absent = [HEAD], []
    for name in given.names or NAMES:
        before = time.perf_counter(), time.process_time()
        try:
            found = fit(ROOT / "examples" / "tables" / f"{name}.toml")
        except MissingData as e:
            print(f"{name}: left out, {e}", file=sys.stderr)
            absent.append(name)
            continue
        wall, cpu = time.perf_counter() - before[0], time.process_time() - before[1]
        print(f"{name}: {wall:.0f} s here, {cpu:.0f} s of them computing", file=sys.stderr, flush=True)
        parts.append(section(name, found))
    if absent:
        parts.append(f"Not in the data directory when this page was made: {', '.join(absent)}.\n")
    given.out.write_text("\n".join(parts), encoding="utf-8")
    print(given.out)


if __name__ == "__main__":
    main()
