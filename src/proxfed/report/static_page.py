"""A self-contained page from sections of HTML: no scripts, no requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from proxfed import __version__
from proxfed.files import write

HERE = Path(__file__).parent

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def static_page(title: str, about: Sequence[str], sections: Mapping[str, str]) -> str:
    """`about` are paragraphs of text, `sections` HTML by heading; empty sections are left out."""
    style = (HERE / "page.css").read_text(encoding="utf-8")
    lead = "".join(f'<p class="{"lead" if k == 0 else "more"}">{escape(text)}</p>' for k, text in enumerate(about))
    body = "".join(f"<section><h2>{escape(name)}</h2>{html}</section>\n" for name, html in sections.items() if html)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n'
        f"<body>\n<header>\n<h1>{escape(title)}</h1>\n{lead}\n</header>\n<main>\n{body}</main>\n"
        f"<footer><p>Made by proxfed {escape(__version__)}. This page loads nothing from anywhere.</p></footer>\n"
        "</body>\n</html>\n"
    )


def write_static_page(path: Path, title: str, about: Sequence[str], sections: Mapping[str, str]) -> None:
    """The same as a file."""
    write(path, static_page(title, about, sections), "the report to ")


def plain_html(headings: Sequence[str], lines: Sequence[Sequence[Any]], marked: Sequence[bool] = ()) -> str:
    """A table of texts and numbers; a marked line is in bold."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headings)
    rows = []
    for k, line in enumerate(lines):
        best = ' class="best"' if k < len(marked) and marked[k] else ""
        first, *rest = (escape(str(cell)) for cell in line)
        rows.append(f'<tr><th scope="row">{first}</th>{"".join(f"<td{best}>{cell}</td>" for cell in rest)}</tr>')
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
