"""Links that work in the repository and on the site.

Some pages are made by `make docs` and are not in the repository. A page there links to what such a page is made from,
which anybody who browses the repository can open; on the site (mkdocs calls `on_page_markdown`) the link leads to the
page itself:

    src/proxfed/papers/experiments/PAPER/EXPERIMENT.toml    results/PAPER/EXPERIMENT.md
    src/proxfed/algorithms                                  reference/algorithms.md
    src/proxfed/cli                                         reference/command-line.md
    src/proxfed/__init__.py                                 reference/api.md
    src/proxfed/types.py                                    reference/api/core.md
"""

from __future__ import annotations

import re
from typing import Any

PAGES = {
    r"papers/experiments/(\w+/\w+)\.toml": r"results/\1.md",
    r"algorithms": "reference/algorithms.md",
    r"cli": "reference/command-line.md",
    r"__init__\.py": "reference/api.md",
    r"types\.py": "reference/api/core.md",
}
"""What a page is made from, below src/proxfed, and the page, below docs."""


def on_page_markdown(markdown: str, **of_mkdocs: Any) -> str:
    """The text of a page as the site has it."""

    def on_site(link: re.Match[str]) -> str:
        for source, page in PAGES.items():
            if found := re.fullmatch(source, link["source"]):
                return f"]({link['up']}{found.expand(page)}{link['place'] or ''})"
        return link[0]

    # From docs/index.md the repository is one step up, and docs/ is none; from docs/howto/x.md it is two and one.
    return re.sub(r"\]\(\.\./(?P<up>(\.\./)*)src/proxfed/(?P<source>[^)#]+)(?P<place>#[^)]*)?\)", on_site, markdown)
