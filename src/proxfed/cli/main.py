"""The command line. Each command has its own file, and imports its dependencies when it is called.

Exit codes: 0 done, 1 failed (results so far are kept), 2 bad input (nothing was computed), 130 stopped by Ctrl-C
(results so far are kept).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from proxfed import __version__
from proxfed.cli import (
    check,
    data,
    deploy,
    fit,
    glm,
    init,
    list_,
    predict,
    report,
    run,
    silo,
    simulate,
    site,
    sweep,
    tune,
    validate,
    watch,
)
from proxfed.cli.common import INTERRUPTED
from proxfed.cli.failures import refuse, show_if_asked, trace, unexpected, words
from proxfed.errors import Elsewhere, ProxfedError, on_command_line, require
from proxfed.registry import modules_here
from proxfed.report.terminal import err, out, show_log

app = typer.Typer(
    name="proxfed",
    help="Federated composite optimisation: one structured model over many data holders that never share their data.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(init.init)
app.command()(run.run)
app.command()(tune.tune)
app.command()(sweep.sweep)
app.command()(report.report)
app.command()(watch.watch)
app.command()(fit.fit)
app.command()(glm.glm)
app.command()(predict.predict)
app.command()(validate.validate)
app.command("list")(list_.list_)
app.command()(check.check)
app.add_typer(data.app)
import_module("proxfed.papers.cli").add_to(app)  # by name: nothing imports the papers
app.command()(simulate.simulate)
app.add_typer(site.app)
app.command()(silo.silo)
app.command()(deploy.deploy)


def _help(docstring: str) -> str:
    """Each paragraph on one line, wrapped by the terminal, and each example on its own line."""
    paragraphs = [" ".join(part.split()) for part in docstring.split("\n\n")]
    return "\n\n".join(paragraphs).replace("[/bold], [bold]", "[/bold]\n[bold]").replace("Examples: ", "Examples:\n")


for _commands in (app, *(group.typer_instance for group in app.registered_groups)):
    for _command in _commands.registered_commands if _commands is not None else ():
        _command.help = _help(_command.callback.__doc__ or "")


def _print_version(asked: bool) -> None:
    if asked:
        out.print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show results and errors only; no progress.")] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Show what happens; -vv: also checkpoints and processes.")
    ] = 0,
) -> None:
    require(not (quiet and verbose), "-q and -v exclude each other")
    show_log(logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])


USAGE: Any = next(c for c in reversed(typer.BadParameter.__mro__) if hasattr(c, "format_message"))
"""The exception of typer for a bad command line: click's class, or from typer 0.22 on its own."""

ANYWHERE = ("-q", "--quiet", "-v", "-vv", "--verbose")


def _flags_first(words: Sequence[str]) -> list[str]:
    """Options of all commands are also allowed after a command."""
    end = words.index("--") if "--" in words else len(words)
    moved = [word for word in words[:end] if word in ANYWHERE]
    return [*moved, *(word for k, word in enumerate(words) if k >= end or word not in ANYWHERE)]


def main() -> None:
    """The entry point: every user error is one sentence on stderr."""
    # Threads that wait for each other should sleep, not spin: if other work shares the cores, spinning is ten times
    # slower. It must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        with on_command_line(), modules_here():  # also for imports inside functions of a user's module
            code = app(_flags_first(sys.argv[1:]), standalone_mode=False)
        if code == INTERRUPTED:  # typer's exit code for Ctrl-C
            raise KeyboardInterrupt
    except ProxfedError as e:
        if isinstance(e.__cause__, Elsewhere):  # the cause was raised in another process
            unexpected(str(e), str(e.__cause__))
        else:
            show_if_asked(trace(e))
            refuse(str(e))
        sys.exit(e.exit_code)
    except typer.Exit as e:
        sys.exit(e.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        err.print("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except OSError as e:
        if isinstance(e.filename, str):
            show_if_asked(trace(e))
            refuse(f"{e.filename:.200}: {e.strerror}")
        else:
            unexpected(words(e), trace(e))
        sys.exit(1)
    except Exception as e:
        if "embedded null" in str(e):  # in the name of a file, which a TOML file can spell
            refuse("a path holds the character NUL, which no file name has")
            sys.exit(2)
        if isinstance(e, USAGE):
            if said := e.format_message():  # nothing, where help was printed instead
                refuse(said)
            sys.exit(2)
        unexpected(words(e), trace(e))
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
