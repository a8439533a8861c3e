"""Write the pages of the site that follow from the code and from the results that are kept: `make docs` calls

    python -m proxfed.papers.cli.pages [DOCS [RESULTS]]

in a checkout, before it builds the site. None of these pages is in the repository:

    docs/reference/algorithms.md, algorithms/*.md    the table to choose from, and a page for each algorithm
    docs/reference/command-line.md                   every command with its options
    docs/reference/api.md, api/*.md                  what `import proxfed` offers, and the docstrings of every package
    docs/results/PAPER/EXPERIMENT.md                 a page with figures for each experiment
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main

import proxfed
from proxfed.algorithms import ALGORITHMS
from proxfed.cli.main import app
from proxfed.errors import require
from proxfed.files import write
from proxfed.harness.catalogue import Entry, catalogue, recursion, settings
from proxfed.papers.results_page import write_pages
from proxfed.papers.verdicts import gather
from proxfed.report.markdown import table

SOURCE = Path(proxfed.__file__).parent


def pages() -> dict[str, str]:
    """Every page that is made from the code, by its path below docs/."""
    entries = {e["name"]: e for e in catalogue("algorithms")["algorithms"]}
    made = {f"reference/algorithms/{name}.md": algorithm(name, entry) for name, entry in entries.items()}
    return made | {
        "reference/algorithms.md": algorithms(list(entries.values())),
        "reference/command-line.md": command_line(),
        **api(),
    }


# ---- algorithms ------------------------------------------------------------------------------------------------------


def algorithms(entries: list[Entry]) -> str:
    """The table to choose from."""
    keys = ("about", "handles h by", "needs", "sends", "different data", "some clients")
    head = [
        "name",
        "what it is",
        "handles h by",
        "needs",
        "sends a round",
        "on heterogeneous data",
        "some clients a round",
    ]
    parts = [
        "# Algorithms\n\nAll built-in algorithms; `proxfed list algorithms NAME` prints the "
        "page of one. [Choose an algorithm](../howto/choose.md) explains the columns.\n"
    ]
    for where, place in (("server", "With a server"), ("peers", "Peer to peer")):
        for kind in ("exact", "biased"):
            here = [e for e in entries if e["runs on"] == where and e["different data"].startswith(kind)]
            rows = [(f"[`{e['name']}`](algorithms/{e['name']}.md)", *(e[key] for key in keys)) for e in here]
            parts.append(f"\n## {place}, {kind} on heterogeneous data\n\n")
            parts.append(_table(head, rows))
    return "".join(parts)


def algorithm(name: str, entry: Entry) -> str:
    """The page of one."""
    make: Any = ALGORITHMS[name]
    rows = [(f"`{s.name}`", "" if s.default is None else f"`{s.default}`", s.about) for s in settings(make)]
    facts = [
        f"- runs on: {entry['runs on']}",
        f"- handles h by: {entry['handles h by']}",
        f"- needs: {entry['needs'] or 'nothing special'}",
        f"- sends a round: {entry['sends']}",
        f"- on heterogeneous data: {entry['different data']}",
        f"- the same with some clients a round: {entry['some clients']}",
        f"- paper: {entry['paper']}",
    ]
    python = f"In Python: `{make.__module__}.{make.__name__}`."
    equations = recursion(make).partition("Reference:")[0].rstrip()  # the paper is among the facts
    lines = [f"# `{name}`", "", equations, "", *facts, "", python, ""]
    return "\n".join([*lines, _table(["setting", "default", "meaning"], rows)])


# ---- the command line ------------------------------------------------------------------------------------------------


def command_line() -> str:
    """Every command, from its own help."""
    parts = [
        "# Command line\n\nMade from the commands' own `--help`. Exit codes: 0 done, 1 failed on the way (what was "
        "computed is kept), 2 bad input (nothing was computed), 130 stopped by Ctrl-C (what was computed is kept).\n"
    ]
    for words, command in commands():
        context = command.make_context("", [], resilient_parsing=True)
        usage = " ".join(["proxfed", *words, *command.collect_usage_pieces(context)])
        text = _examples(command.help or "")
        rows = [
            (", ".join([*p.opts, *p.secondary_opts]), _default(p), p.help or "")
            for p in command.params
            if p.param_type_name == "option"
        ]
        parts.append(f"\n## proxfed {' '.join(words)}\n\n    {usage}\n\n{text}\n\n")
        parts.append(_table(["option", "default", ""], [(f"`{a}`", b, c) for a, b, c in rows]))
    return "".join(parts)


def _examples(text: str) -> str:
    """The help with its examples as code: several ones as a list."""
    text = re.sub(r"^\[bold\]", "- [bold]", text.replace("Examples:\n", "Examples:\n\n"), flags=re.MULTILINE)
    return text.replace("[bold]", "`").replace("[/bold]", "`")


def commands() -> list[tuple[list[str], Any]]:
    """Every command with the words that call it."""
    root: Any = typer.main.get_command(app)
    found: list[tuple[list[str], Any]] = []
    for name, command in sorted(root.commands.items()):
        inner = getattr(command, "commands", {})
        found += [([name, word], sub) for word, sub in sorted(inner.items())] or [([name], command)]
    return found


def _default(option: Any) -> str:
    return "" if option.default is None or callable(option.default) or option.is_flag else f"`{_text(option.default)}`"


def _text(default: Any) -> str:
    return str(getattr(default, "value", default))


def _table(head: list[str], rows: Sequence[Sequence[str]]) -> str:
    return table(head, [[cell.replace("|", "\\|") for cell in row] for row in rows])


# ---- the API ---------------------------------------------------------------------------------------------------------


def api() -> dict[str, str]:
    """A page for each package, which the site fills with docstrings, and one to begin with."""
    folders = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)
    packages = {".".join(folder.relative_to(SOURCE).parts): folder for folder in folders}
    made = {f"reference/api/{name}.md": _package(name, modules(path)) for name, path in packages.items()}
    alone = modules(SOURCE)
    made["reference/api/core.md"] = _package("core", alone)
    lines = ["# API", "", "What `import proxfed` offers:", ""]
    offered = [name for name in proxfed.__all__ if not name.startswith("_")]
    lines.append(_table(["name", ""], [_offered(name) for name in offered]))
    lines += ["All packages:", ""]
    rows = [("[`proxfed`](api/core.md)", "the modules at the top: " + ", ".join(f"`{name}`" for name in alone))]
    rows += [(f"[`proxfed.{name}`](api/{name}.md)", _headline(f"proxfed.{name}")) for name in packages]
    return made | {"reference/api.md": "\n".join([*lines, _table(["package", ""], rows)])}


def modules(package: Path) -> list[str]:
    """The names of the files that others import."""
    return sorted(path.stem for path in package.glob("*.py") if not path.stem.startswith("_"))


def _package(name: str, within: list[str]) -> str:
    if name == "core":
        return "\n".join(["# The modules at the top", "", *(f"::: proxfed.{module}\n" for module in within)])
    package = import_module(f"proxfed.{name}")
    own = [key for key, value in vars(package).items() if getattr(value, "__module__", "") == package.__name__]
    head = [f"# `proxfed.{name}`", "", inspect.getdoc(package) or "", ""]
    head += [f"::: proxfed.{name}.{key}\n" for key in own if not key.startswith("_")]
    return "\n".join([*head, *(f"::: proxfed.{name}.{module}\n" for module in within)])


def _offered(name: str) -> tuple[str, str]:
    what = getattr(proxfed, name)
    within = what.__module__.split(".")[1:]
    page = ".".join(within if SOURCE.joinpath(*within).is_dir() else within[:-1]) or "core"
    about = (inspect.getdoc(what) or "").split("\n")[0]
    if about.startswith(f"{name}("):  # a tuple without a docstring, which the page leaves out
        return f"[`{name}`](api/{page}.md)", ""
    return f"[`{name}`](api/{page}.md#{what.__module__}.{what.__qualname__})", about


def _headline(module: str) -> str:
    return (inspect.getdoc(import_module(module)) or "").split("\n")[0]


# ---- files -----------------------------------------------------------------------------------------------------------


def write_reference(docs: Path) -> list[Path]:
    """DOCS/reference/; pages of what is no longer there are removed."""
    made = {docs / path: text for path, text in pages().items()}
    for folder in ("algorithms", "api"):
        for old in {*(docs / "reference" / folder).glob("*.md")} - made.keys():
            old.unlink()
    for path, text in made.items():
        write(path, text, folders=True)
    return list(made)


def main(docs: Path = Path("docs"), results: Path = Path("results")) -> None:
    """All pages that are made."""
    for folder in (docs, results):
        require(folder.is_dir(), f"there is no folder {folder}: run this in a checkout of the repository")
    write_reference(docs)
    write_pages(gather(results), docs / "results")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
