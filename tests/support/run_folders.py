"""Run folders made by hand, and the report page that is made of them."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import torch

from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.folder.status_file import piece
from proxfed.harness.results import Results
from proxfed.report.columns import ROW
from proxfed.report.page import write_report

HOSTILE = "<script>alert('x')</script> & \"co\" </td>"


def row(algorithm="fedavg", seed=0, t=0, **values):
    """A row as RunFolder reads it; every measure can be given or left out."""
    made = {
        "run": "r", "algorithm": algorithm, "seed": seed, "round": t, "gradients": 20 * t, "proxes": 2 * t,
        "bytes_up": 1000 * t, "bytes_down": 3000 * t, "bytes_edge": 0, "bytes_best": 3500 * t, "wall_seconds": 0.01 * t,
        "objective": 1 + 0.9**t, "gap": 0.9**t,
    }  # fmt: skip
    return made | values


def state(algorithm="fedavg", seed=0, status="finished", t=10):
    return {"algorithm": algorithm, "seed": seed, "status": status, "round": t, "message": ""}


def folder(path: Path, rows, status, models=None, blocks=(), config=None, measures=("accuracy",), held=None) -> Path:
    """A real run folder."""
    made = RunFolder(path)
    made.create(config or {"name": path.name, "problem": {"clients": 4}}, held, measures)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([r.get(c) for c in [*ROW, *measures]] for r in rows)
    added, head = text.getvalue().encode(), made._status().rows[-1]
    made._append_rows(added)
    sums = {k: made.write_model(*_task(k), torch.as_tensor(v), blocks) for k, v in (models or {}).items()}
    there = [s | ({"model": sums[k]} if (k := f"{s['algorithm']}/{s['seed']}") in sums else {}) for s in status]
    made._write(made._status()._replace(tasks=there, rows=[head, piece(added, head[0])]))
    return path


def _task(name: str) -> tuple[str, int]:
    label, _, seed = name.rpartition("/")
    return label, int(seed)


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def write(tmp_path: Path, *folders: Path) -> str:
    write_report([Results.read(f) for f in folders], tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


class Elements(HTMLParser):
    """All elements of a page with their attributes, and the texts of its cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, text):
        self.texts.append(text)
