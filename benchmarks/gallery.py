"""The pictures of docs/gallery.md, drawn by the programs on that page.

python benchmarks/gallery.py        # writes docs/assets/gallery/*.svg
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import matplotlib

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # the same page gives the same files
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "proxfed", "font.family": "sans-serif"})
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "gallery.md").read_text(), re.DOTALL | re.MULTILINE)
    pictures = DOCS / "assets" / "gallery"
    pictures.mkdir(exist_ok=True)
    os.chdir(pictures)
    exec(compile("\n".join(blocks), "docs/gallery.md", "exec"), {})


if __name__ == "__main__":
    main()
