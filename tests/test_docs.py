"""What the documentation shows runs as it stands, and what it names is there."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import pytest
import typer.main

from proxfed import Depositum, DFedADMM, FedCEF, FedComposite, FedNAG, __version__
from proxfed.cli.main import app
from proxfed.harness.experiment import read_cases, shipped
from proxfed.papers.cli.pages import pages
from proxfed.papers.cli.site_links import on_page_markdown
from proxfed.papers.experiment_page import page as experiment_page
from proxfed.papers.verdicts import gather
from proxfed.silos.site.config import parse_site
from proxfed.tables import parse_schema

from support.cli import proxfed as command

pytestmark = pytest.mark.usefixtures("forked")

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str


@cache
def made() -> dict[Path, str]:
    """The pages that `make docs` writes before it builds the site."""
    entries = [entry for entries in gather(ROOT / "results").values() for entry in entries]
    return {DOCS / path: text for path, text in pages().items()} | {
        DOCS / "results" / f"{entry.name}.md": experiment_page(entry) for entry in entries
    }


def _is_made(page: Path) -> bool:
    return page.is_relative_to(DOCS / "reference") or page.is_relative_to(DOCS / "results")


PAGES = [ROOT / "README.md", *(p for p in sorted(DOCS.rglob("*.md")) if not _is_made(p))]
README = ROOT / "README.md"
LINKED = [*PAGES, *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"))]


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page in these languages."""
    text = page.read_text()
    found = []
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if match[1] in languages:
            found.append(Block(page, text.count("\n", 0, match.start()) + 2, match[1], match[2]))
    return found


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def write_files(page: Path, folder: Path) -> None:
    """The files that a page shows: Python blocks which begin with their name, `# mine.py`."""
    for block in blocks(page, "python"):
        if match := re.match(r"# (\w+\.py)\n", block.text):
            (folder / match[1]).write_text(block.text)


def having(*languages: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, *languages)]


EXTRAS = {"flower.md": "flwr", "nvflare.md": "nvflare"}
"""Pages whose blocks need a package that `make setup` does not install."""


# ---- Python ----------------------------------------------------------------------------------------------------------


SLOW_PAGES = ("gallery.md",)
WITH_PYTHON = [
    pytest.param(p, id=_name(p), marks=pytest.mark.slow if p.name in SLOW_PAGES else ()) for p in having("python")
]


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page as one file, in which a line has the number that it has on the page."""
    if page.name in EXTRAS:
        pytest.importorskip(EXTRAS[page.name], reason=f"{page.name} is about an extra that is not installed")
    lines: list[str] = []
    for block in blocks(page, "python"):
        lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    file = tmp_path / f"shown_{page.stem.replace('-', '_')}.py"
    file.write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    monkeypatch.chdir(tmp_path)
    cloudpickle.register_pickle_by_value(module)  # as a program's own classes are, which other processes are given
    try:
        spec.loader.exec_module(module)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(script: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(script)], check=True, cwd=tmp_path, timeout=300)


SLOW = ("own_comparison.ipynb",)
NOTEBOOKS = [
    pytest.param(p, id=p.name, marks=pytest.mark.slow if p.name in SLOW else ())
    for p in sorted((ROOT / "examples").glob("*.ipynb"))
]


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_notebooks_run(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run from top to bottom, without a data directory."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PROXFED_DATA", str(tmp_path / "no data"))
    cells = nbformat.read(notebook, as_version=4)
    nbclient.NotebookClient(cells, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.parametrize("notebook", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda p: p.name)
def test_kept_notebooks_are_small_and_whole(notebook: Path) -> None:
    assert notebook.stat().st_size < 60_000
    assert "\\u001b" not in notebook.read_text(), "escape codes of a terminal"
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["execution_count"] is not None, "run it before it is committed"
            assert all(output["output_type"] != "error" for output in cell["outputs"])


# ---- experiments -----------------------------------------------------------------------------------------------------


TABLES = {
    *("data", "problem", "regulariser", "topology", "participation", "algorithms"),
    *("time", "cases", "paper", "reported", "claims", "project", "protection", "stop", "hooks"),
}


@pytest.mark.parametrize("page", having("toml"), ids=_name)
def test_toml_blocks_are_experiments(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole experiment runs for two rounds, a part has tables that experiments have; else a schema or a site.toml."""
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    few = ["-c", "rounds=2", "-c", "seeds=[0]", "-c", "reference=false"]
    for k, block in enumerate(blocks(page, "toml")):
        table = tomllib.loads(block.text)
        if "columns" in table:
            parse_schema(table)
        elif {"allow", "partners", "fit"} & table.keys():
            parse_site({"name": "lyon", "data": {"schema": "schema.toml"}} | table, "site.toml", tmp_path)
        elif {"name", "rounds", "algorithms"} <= table.keys():
            (tmp_path / "shown.toml").write_text(block.text)
            code, _, said = command(capsys, "run", "shown.toml", "--out", f"{k}", *few)
            assert code == 0, said
        else:
            assert table.keys() <= TABLES, f"line {block.line}"


# ---- commands --------------------------------------------------------------------------------------------------------


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of every `proxfed ...` on a page, in blocks and in indented lines."""
    lines = [line for block in blocks(page, "bash", "console", "sh") for line in block.text.splitlines()]
    fenced = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines += re.findall(r"^ {4}(\S.*)", fenced, re.MULTILINE)
    for line in lines:
        words = shlex.split(line.removeprefix("$ "), comments=True) if "proxfed " in line else []
        for k, word in enumerate(words):
            if word == "proxfed" and (k == 0 or words[0] in ("torchrun", "srun")):
                yield words[k + 1 :]
                break


def _checked(words: list[str]) -> tuple[str, dict[str, Any]]:
    """(name, parameters) of a command, as the command line itself reads it."""
    group: Any = typer.main.get_command(app)
    context, name = group.make_context("proxfed", list(words), resilient_parsing=words[:1] == ["--version"]), ""
    while hasattr(group, "commands") and words:
        if words[0].startswith("-"):
            return "", {}
        word, *words = words
        assert word in group.commands, f"there is no command {word!r}"
        group, name = group.commands[word], f"{name} {word}".strip()
        if hasattr(group, "commands"):
            continue
        context = group.make_context(word, list(words), parent=context)
    return name, context.params


COMMANDS = [
    pytest.param(page, words, id=f"{page.name}-{' '.join(words)}")
    for page in PAGES
    for words in commands(page)
    if words
]


@pytest.mark.parametrize(("page", "words"), COMMANDS)
def test_commands_exist(page: Path, words: list[str]) -> None:
    """Command, options and their values; the experiment and the changed settings, where it is a shipped one."""
    name, given = _checked(words)
    if name == "run":
        experiment = given["experiment"]
        if experiment.endswith(".toml"):
            return
        assert experiment in shipped()
        read_cases(experiment, given["change"] or [], only=given["case"] or [])
    if name == "reproduce":
        known = [*shipped(), *(key.partition("/")[0] for key in shipped())]
        asked = [value for value in given.values() if isinstance(value, str)]
        assert any(value in known or value.isupper() or value.endswith(".toml") for value in asked)


def shipped_commands() -> Iterator[Any]:
    """Those of the systemd units and of the Dockerfile's comments."""
    for unit in sorted((ROOT / "deploy" / "systemd").glob("*.service")):
        for line in re.findall(r"^ExecStart=/opt/proxfed/bin/proxfed (.*)", unit.read_text(), re.MULTILINE):
            yield pytest.param(shlex.split(line), id=f"{unit.name}-{line}")
    text = re.sub(r"\\\n#\s*", "", (ROOT / "deploy" / "Dockerfile").read_text())
    for line in re.findall(r"^#\s+docker run (?!.*--entrypoint).* proxfed (.*)", text, re.MULTILINE):
        yield pytest.param(shlex.split(line), id=f"Dockerfile-{line}")


@pytest.mark.parametrize("words", list(shipped_commands()))
def test_what_is_shipped_to_start_it_is_a_command(words: list[str]) -> None:
    assert _checked(words)[0] in ("silo", "deploy", "site init")


def test_units_are_what_systemd_takes(tmp_path: Path) -> None:
    """But for the paths, which are those of a machine that has them."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    units = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
    assert len(units) >= 2
    for unit in units:
        text = unit.read_text().replace("/opt/proxfed/bin/proxfed", sys.executable)
        (tmp_path / unit.name).write_text(text)
    paths = [str(tmp_path / unit.name) for unit in units]
    done = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


QUICK = [
    p
    for p in COMMANDS
    if p.values[1][0] in ("list", "check", "--version") or p.values[1][:2] in (["data", "show"], ["data", "list"])
]


@pytest.mark.parametrize(("page", "words"), QUICK)
def test_quick_commands_run(
    page: Path,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROXFED_DATA", str(tmp_path))
    write_files(page, tmp_path)
    code, out, said = command(capsys, *words)
    if words[:3] == ["data", "show", "mnist"]:  # its files are not here, and it says how to get them
        assert code == 2
        assert "proxfed data fetch" in said
        return
    assert code == 0, said
    assert out


VERB = re.compile(r"^(?: {4})?make ([a-z-]+)(?: +#.*)?$|`make ([a-z-]+)`", re.MULTILINE)
VERBS = sorted({"".join(verb) for page in PAGES for verb in VERB.findall(page.read_text())})


@pytest.mark.parametrize("verb", VERBS)
def test_make_verbs_exist(verb: str) -> None:
    assert re.search(rf"^{verb}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


# ---- links and names -------------------------------------------------------------------------------------------------


def test_the_readme_shows_what_its_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    program, shown = re.search(r"^```python\n(.*?)^```\n+```text\n(.*?)^```$", README.read_text(), re.M | re.S).groups()  # type: ignore[union-attr]
    exec(compile(program, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("name", ["limits", "troubleshooting"])
def test_a_page_shows_what_its_programs_print(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every block, and below it what it prints, but for the last digit."""
    page, names = DOCS / f"{name}.md", {}
    for program, shown in re.findall(r"^```python\n(.*?)^```\n+```text\n(.*?)^```$", page.read_text(), re.M | re.S):
        exec(compile(program, page.name, "exec"), names)
        printed = capsys.readouterr().out
        assert re.sub(r"(\.\d{8})\d+", r"\1", printed) == re.sub(r"(\.\d{8})\d+", r"\1", shown)


def test_the_readme_shows_coefficients_that_fit_prints(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = ROOT / "examples" / "tables" / "clinics" / "tables.toml"
    code, said, complaint = command(capsys, "fit", str(file), "--out", str(tmp_path / "model"))
    assert code == 0, complaint
    printed = {" ".join(line.split()) for line in said.splitlines()}
    (shown,) = (b.text for b in blocks(README, "text") if b.text.startswith("feature"))
    assert [line for line in shown.splitlines() if " ".join(line.split()) not in printed] == []


def broken_links(texts: dict[Path, str], also: Container[Path] = ()) -> list[str]:
    """Relative links of pages that lead nowhere; also: targets that need not be files."""
    broken = []
    for page, text in texts.items():
        for link in dict.fromkeys(re.findall(r"\]\(([^)#\s]+?)(?:#[^)]*)?\)", text)):
            target = (page.parent / link).resolve()
            if "://" not in link and not target.exists() and target not in also:
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    return broken


def test_links_work_in_the_repository() -> None:
    """As it is browsed, where no page has been made."""
    tracked = {page: page.read_text() for page in LINKED}
    assert broken_links(tracked) == []


def test_links_work_on_the_site() -> None:
    """There, links to what a page is made from lead to the page; its figures are drawn by `make docs`."""
    site = {page: on_page_markdown(page.read_text()) for page in PAGES if page.is_relative_to(DOCS)}
    assert "](reference/algorithms.md)" in site[DOCS / "index.md"]
    assert "](results/depositum/fig3.md)" in site[DOCS / "results.md"]
    assert not [page for page, text in site.items() if re.search(r"\]\((\.\./)+(src|tests|results)/", text)]
    assert [link for link in broken_links(site | made(), made()) if not link.endswith(".svg")] == []


def test_every_page_is_on_the_site() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    written = {p.relative_to(DOCS).as_posix() for p in PAGES if p.is_relative_to(DOCS)}
    assert written <= set(listed)
    assert all((DOCS / page).exists() or DOCS / page in made() for page in listed)
    assert len(listed) == len(set(listed))


def test_files_that_pages_name_exist() -> None:
    named = [(p, path) for p in PAGES for path in re.findall(r"[` ]([a-z_]+(?:/\w+)*/\w+\.py)\b", p.read_text())]
    assert len(named) > 100
    places = (ROOT, ROOT / "src" / "proxfed")
    assert [(page.name, path) for page, path in named if not any((place / path).exists() for place in places)] == []


def test_files_of_the_design_page_exist() -> None:
    source = ROOT / "src" / "proxfed"
    text = (DOCS / "design.md").read_text()
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    folder_lines = re.findall(r"^\| `(\w+/)` \| (`[^|]+`) \|", text, re.MULTILINE)
    named = [path for cell in cells for path in re.findall(r"`([\w/]+(?:\.py|/))`", cell)]
    named += [folder + file for folder, files in folder_lines for file in re.findall(r"`(\w+\.py)`", files)]
    assert len(named) > 40
    assert [path for path in named if not (source / path).exists()] == []
    there = [path.relative_to(source).as_posix() for path in source.rglob("*.py") if path.stem[0] != "_"]
    folders = ("algorithms", "cli", "compressors", "data", "papers", "problems", "regularisers", "report", "simulate")
    open_ = [path for path in there if not path.startswith((*folders, "tables", "topologies", "testing"))]
    assert sorted(set(open_) - set(named)) == [], "files of the engine and the harness that the map leaves out"


# ---- identities ------------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"T0\d[a-z]")


def test_every_identity_has_its_test() -> None:
    """The theory page defines each number that a test's name or docstring uses, once, and a test uses each of them."""
    page = re.findall(r"^- \*\*(T0\d[a-z])\*\*", (DOCS / "theory.md").read_text(), re.MULTILINE)
    assert len(page) == len(set(page)), "a number is defined twice"
    used = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        if file != Path(__file__):
            used |= set(NUMBER.findall(file.read_text()))
    assert used == set(page)
    elsewhere = {number for other in PAGES for number in NUMBER.findall(other.read_text())}
    assert elsewhere <= set(page)


def test_every_erratum_has_one_number() -> None:
    text = (DOCS / "theory.md").read_text()
    defined = re.findall(r"^- \*\*(E0\d\.\d+)", text, re.MULTILINE)
    assert len(defined) == len(set(defined)) >= 30
    assert set(re.findall(r"E0\d\.\d+", text)) == set(defined)


def test_the_citation_has_the_version_and_the_papers_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in citation
    for algorithm in (Depositum, FedCEF, DFedADMM, FedNAG, FedComposite):
        reference = inspect.getdoc(inspect.getmodule(algorithm)).split("Reference: ")[1].replace("\n", " ")
        authors, title = re.match(r'(.*?), "(.*?)"', reference).groups()
        assert title in citation
        block = citation.split(title)[1].split("- type")[0]
        assert (
            ", ".join(" ".join(who) for who in re.findall("given-names: (.*?), family-names: (.*?) ", block)) == authors
        )
