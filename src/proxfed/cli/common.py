"""Options of several commands, and their parsing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxfed.errors import require

if TYPE_CHECKING:
    from proxfed.harness.experiment import Experiment


INTERRUPTED = 130
"""The exit code of a command stopped by Ctrl-C or SIGTERM, as in shells."""


def command_line() -> str:
    """The command line of this process, as the user typed it."""
    return shlex.join(["proxfed", *sys.argv[1:]])


def resume_command() -> str:
    """The command line of this process with --resume, which continues the run."""
    given = [word for word in sys.argv[1:] if word not in ("--resume", "--force")]
    return shlex.join(["proxfed", *given, "--resume"])


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"


ExperimentArgument = Annotated[
    str, typer.Argument(metavar="NAME|FILE.toml", help="A shipped experiment or your own file.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="A table for people or JSON for programs.")]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Device: cpu, cuda, mps, or auto for the best available.")
]
DataOption = Annotated[str | None, typer.Option("--data", help="Data directory; default: $PROXFED_DATA or the cache.")]
ChangeOption = Annotated[
    list[str] | None,
    typer.Option("-c", "--change", metavar="KEY=VALUE", help="Change a setting, e.g. -c data.partition.alpha=0.1"),
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Processes for algorithms, seeds and cases; default: suits the machine."),
]
CheckpointOption = Annotated[float, typer.Option("--checkpoint", help="Seconds between checkpoints (0: every round).")]
OneCaseOption = Annotated[
    str, typer.Option("--case", metavar="NAME", help="The case to use, if the experiment has several.")
]
CaseOption = Annotated[
    list[str] | None, typer.Option("--case", metavar="NAME", help="Only this case of the experiment; may be repeated.")
]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="LABEL", help="Only this algorithm; may be repeated.")
]

HookOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hook", metavar="NAME|FILE.py:NAME", help="Hook to call with every row, e.g. tensorboard; may be repeated."
    ),
]

AxisOption = Annotated[
    str | None, typer.Option("--axis", help="Cost counted until the target: round, bytes, sim_seconds or steps.")
]
NamesOption = Annotated[
    str, typer.Option("--names", metavar="A,B,...", help="Names of the columns, if the file has no header.")
]
SeparatorOption = Annotated[
    str, typer.Option("--separator", metavar="SIGN", help="Separator of columns in text files.")
]
EncodingOption = Annotated[
    str, typer.Option("--encoding", metavar="NAME", help="Encoding of text files, such as latin-1.")
]


def text_form(names: str, separator: str, encoding: str) -> dict[str, Any]:
    """The format of a table, from these three options: names, separator and encoding."""
    listed = [name.strip() for name in names.split(",")] if names else None
    return {"names": listed, "separator": "\t" if separator in ("tab", "\\t") else separator, "encoding": encoding}


def hooked(experiment: Experiment, hooks: Sequence[str] | None) -> Experiment:
    """The experiment with these additional hooks."""
    more: list[dict[str, Any]] = [{"name": name} for name in hooks or ()]
    return experiment.model_copy(update={"hooks": [*experiment.hooks, *more]}) if more else experiment


def with_device(changes: Sequence[str] | None, device: str | None) -> list[str]:
    """The changed settings, including the device if one is given."""
    return [*(changes or ()), *([] if device is None else [f"device={device}"])]


def check_new_file(path: Path, force: bool) -> None:
    """Refuse --out PATH if the file exists or its folder does not."""
    require(force or not path.exists(), f"{path} is there already; --force replaces it")
    require(path.parent.is_dir(), f"--out {path}: there is no folder {path.parent}")


def check_anew(resume: bool, force: bool) -> None:
    """Refuse --resume with --force."""
    require(not (resume and force), "--resume continues what is there and --force replaces it: give one of them")


def read_over(given: Sequence[str] | None) -> dict[str, str]:
    """KEY=SPACE, each key once."""
    over: dict[str, str] = {}
    require(bool(given), "--over KEY=SPACE is missing: the settings to try, e.g. --over 'FedAvg.eta=log(1e-3,1)'")
    for text in given or ():
        key, equals, space = text.partition("=")
        require(bool(equals and key.strip() and space.strip()), f"--over {text!r} is not of the form KEY=SPACE")
        require(key.strip() not in over, f"--over {key.strip()} is given twice")
        over[key.strip()] = space.strip()
    return over
