"""Write the pages of the site that follow from the code; `make docs` does this before it builds the site.

    docs/reference/algorithms.md, algorithms/*.md    the table to choose from, and a page for each algorithm
    docs/reference/command-line.md                   every command with its options
    docs/reference/api.md, api/*.md                  what `import proxfed` offers, and the docstrings of every package
    docs/results/*.md                                a page for each experiment, from the results that are kept

None of them is in the repository.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer.main

import proxfed
from proxfed.algorithms import ALGORITHMS
from proxfed.cli.main import app
from proxfed.harness.catalogue import Entry, catalogue, recursion, settings

DOCS = Path(__file__).parents[1] / "docs"
SOURCE = Path(proxfed.__file__).parent

GROUPS = (
    ("With a server, exact on different data", lambda e: e["runs on"] == "server" and e["different data"] == "exact"),
    ("With a server, biased on different data", lambda e: e["runs on"] == "server" and e["different data"] == "biased"),
    ("Peer to peer, exact on different data", lambda e: e["runs on"] == "peers" and e["different data"] == "exact"),
    ("Peer to peer, biased on different data", lambda e: e["runs on"] == "peers" and e["different data"] == "biased"),
)


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
    parts = [
        "# Algorithms\n\nEverything that is built in, made from the code; `proxfed list algorithms NAME` prints the "
        "page of one. [Choose an algorithm](../howto/choose.md) explains the columns.\n"
    ]
    for title, belongs in GROUPS:
        parts.append(
            f"\n## {title}\n\n| name | what it is | handles h by | needs | sends a round |\n|---|---|---|---|---|\n"
        )
        for e in filter(belongs, entries):
            link = f"[`{e['name']}`](algorithms/{e['name']}.md)"
            parts.append(f"| {link} | {e['about']} | {e['handles h by']} | {e['needs']} | {e['sends']} |\n")
    return "".join(parts)


def algorithm(name: str, entry: Entry) -> str:
    make = ALGORITHMS[name]
    rows = [(f"`{s.name}`", "" if s.default is None else f"`{s.default}`", s.about) for s in settings(make)]
    facts = [
        f"- runs on: {entry['runs on']}",
        f"- handles h by: {entry['handles h by']}",
        f"- needs: {entry['needs'] or 'nothing special'}",
        f"- sends a round: {entry['sends']}",
        f"- on different data, with several local steps: {entry['different data']}",
        f"- paper: {entry['paper']}",
    ]
    python = f"In Python: `{make.__module__}.{make.__name__}`."
    equations = recursion(make).partition("Reference:")[0].rstrip()  # the paper is among the facts
    lines = [f"# `{name}`", "", equations, "", *facts, "", python, ""]
    return "\n".join([*lines, *_table(["setting", "default", "meaning"], rows), ""])


# ---- the command line ------------------------------------------------------------------------------------------------


def command_line() -> str:
    parts = [
        "# Command line\n\nMade from the commands' own `--help`. Exit codes: 0 done, 1 failed on the way (what was "
        "computed is kept), 2 bad input (nothing was computed).\n"
    ]
    for words, command in commands():
        context = command.make_context("", [], resilient_parsing=True)
        usage = " ".join(["proxfed", *words, *command.collect_usage_pieces(context)])
        text = (command.help or "").replace("[bold]", "`").replace("[/bold]", "`")
        rows = [
            (", ".join([*p.opts, *p.secondary_opts]), _default(p), p.help or "")
            for p in command.params
            if p.param_type_name == "option"
        ]
        parts.append(f"\n## proxfed {' '.join(words)}\n\n    {usage}\n\n{text}\n\n")
        parts.append("\n".join(_table(["option", "default", ""], [(f"`{a}`", b, c) for a, b, c in rows])) + "\n")
    return "".join(parts)


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


def _table(head: list[str], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in [tuple(head), *rows]]
    return [f"| {lines[0]} |", "|" + "---|" * len(head), *(f"| {line} |" for line in lines[1:])]


# ---- the API ---------------------------------------------------------------------------------------------------------


def api() -> dict[str, str]:
    """A page for each package, which the site fills with docstrings, and one to begin with."""
    packages = {path.parent.name: path.parent for path in sorted(SOURCE.glob("*/__init__.py"))}
    made = {f"reference/api/{name}.md": _package(name, modules(path)) for name, path in packages.items()}
    alone = [name for name in modules(SOURCE) if name != "__main__"]
    made["reference/api/core.md"] = _package("core", alone)
    lines = ["# API", "", "What `import proxfed` offers:", ""]
    lines += _table(["name", ""], [_offered(name) for name in proxfed.__all__])
    lines += ["", "All packages, from what users extend to the command line:", ""]
    rows = [("[`proxfed`](api/core.md)", "the modules at the top: " + ", ".join(f"`{name}`" for name in alone))]
    rows += [(f"[`proxfed.{name}`](api/{name}.md)", _headline(f"proxfed.{name}")) for name in packages]
    return made | {"reference/api.md": "\n".join([*lines, *_table(["package", ""], rows), ""])}


def modules(package: Path) -> list[str]:
    return sorted(path.stem for path in package.glob("*.py") if path.stem != "__init__")


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
    place = what.__module__.split(".")[1]
    page = place if (SOURCE / place).is_dir() else "core"
    about = (inspect.getdoc(what) or "").split("\n")[0]
    if about.startswith(f"{name}("):  # a tuple without a docstring, which the page leaves out
        return f"[`{name}`](api/{page}.md)", ""
    return f"[`{name}`](api/{page}.md#{what.__module__}.{what.__qualname__})", about


def _headline(module: str) -> str:
    return (inspect.getdoc(import_module(module)) or "").split("\n")[0]


# ---- files -----------------------------------------------------------------------------------------------------------


def main() -> None:
    made = {DOCS / path: text for path, text in pages().items()}
    for folder in ("algorithms", "api"):
        for old in set((DOCS / "reference" / folder).glob("*.md")) - made.keys():
            old.unlink()
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if find_spec("proxfed.papers.results_page") is not None:
        from proxfed.papers.results_page import write_pages  # type: ignore[import-not-found]

        write_pages(DOCS / "results")


if __name__ == "__main__":
    main()
