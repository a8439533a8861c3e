"""The command line. Each command has a file of its own, and imports what it needs when it is called.

Exit codes: 0 done, 1 failed or stopped on the way (what was computed is kept), 2 bad input (nothing was computed).
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from proxfed import __version__
from proxfed.cli import (
    check,
    data,
    deploy,
    fit,
    list_,
    predict,
    report,
    reproduce,
    results,
    run,
    silo,
    simulate,
    site,
    sweep,
    tune,
)
from proxfed.cli.failures import refuse, show_if_asked, trace, unexpected, words
from proxfed.errors import Elsewhere, ProxfedError
from proxfed.report.terminal import err, out

app = typer.Typer(
    name="proxfed",
    help="Federated composite optimisation: one structured model over many data holders who never share their data.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run.run)
app.command()(tune.tune)
app.command()(sweep.sweep)
app.command()(report.report)
app.command()(fit.fit)
app.command()(predict.predict)
app.command("list")(list_.list_)
app.command()(check.check)
app.add_typer(data.app)
app.command()(reproduce.reproduce)
app.add_typer(results.app)
app.command()(simulate.simulate)
app.add_typer(site.app)
app.command()(silo.silo)
app.command()(deploy.deploy)


def _help(docstring: str) -> str:
    """Each paragraph on one line, which the terminal wraps at its own width, and each example on a line of its own."""
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
) -> None:
    pass


def main() -> None:
    """The entry point: every error that is meant for the user is one sentence on stderr."""
    # Threads that wait for each other should sleep, not spin: where other work shares the cores, spinning costs
    # tenfold. It must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        code = app(standalone_mode=False)
        if code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except ProxfedError as e:
        if isinstance(e.__cause__, Elsewhere):  # of an exception in another process
            unexpected(str(e), str(e.__cause__))
        else:
            show_if_asked(trace(e))
            refuse(str(e))
        sys.exit(e.exit_code)
    except typer.Exit as e:
        sys.exit(e.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        err.print("interrupted")
        sys.exit(1)
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except Exception as e:
        import click

        if isinstance(e, click.ClickException):
            if said := e.format_message():  # nothing, where help was printed instead
                refuse(said)
            sys.exit(2)
        unexpected(words(e), trace(e))
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
