"""`proxfed init`: a first experiment of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proxfed.errors import require
from proxfed.report.terminal import say

FIRST = """\
# My first experiment: one sparse model over ten clients with heterogeneous data. Run it with
#     proxfed run {file}
name = "{name}"
rounds = 100
seeds = [0, 1, 2]                # every table then shows the spread over the seeds
reference = true                 # compute the solution first, so that tables have the gap and the error
targets = {{ gap = [0.01] }}       # report the cost of reaching it

[data]                           # proxfed list datasets; `name = "own"` reads your files (proxfed list datasets own)
name = "synthetic_binary"
clients = 10
samples = 100
features = 20
alpha = 1.0                      # how much the clients' models differ
beta = 1.0                       # how much their features differ

[problem]                        # f: proxfed list problems
name = "logistic"
l2 = 0.01
batch = 20                       # leave it out for full gradients

[regulariser]                    # h: proxfed list regularisers
name = "l1"
weight = 0.01

[[algorithms]]                   # proxfed list algorithms; proxfed list algorithms fedavg explains each setting
name = "fedavg"
eta = 0.5
K = 5

[[algorithms]]
name = "fedcomposite"
eta = 0.5
tau = 5

[[algorithms]]                   # messages are compressed in both directions
name = "pledge"
eta = 0.5
"""


def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE.toml]", help="Where to write it.")] = Path("experiment.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a first experiment to start from, with comments on every part.

    For the tables of organisations, [bold]proxfed data schema[/bold] writes a first tables.toml; for a site,
    [bold]proxfed site init[/bold] writes a first site.toml.

    Example: [bold]proxfed init mine.toml[/bold]
    """
    from proxfed.files import write

    require(file.suffix == ".toml", f"FILE = {str(file)!r} must end in .toml")
    require(force or not file.exists(), f"{file} exists: choose another name, or replace it with --force")
    write(file, FIRST.format(file=file, name=file.stem))
    say(f"wrote {file}; run it: proxfed run {file}")
