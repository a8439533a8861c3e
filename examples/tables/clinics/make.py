"""Write four made-up clinics, as clinics would have them: other orders of columns, gaps, codes, money and dates.

    python make.py [FOLDER]

The same numbers every time. Nobody in these files exists.
"""

from __future__ import annotations

import csv
import math
import sys
from datetime import date, timedelta
from pathlib import Path
from random import Random

COLUMNS = ["patient", "age", "sex", "weight", "chol", "smoker", "stage", "income", "visit", "outcome"]
CLINICS = {
    "north": (90, COLUMNS, ""),
    "south": (70, ["outcome", "stage", "visit", "age", "income", "sex", "patient", "smoker", "chol", "weight"], "?"),
    "east": (60, [name for name in COLUMNS if name != "smoker"], ""),  # nobody asks there
    "west": (40, COLUMNS, "NA"),
}
"""Rows, the order of the columns, and what is written where nothing is known."""


def patient(random: Random, number: int, clinic: str) -> dict[str, str]:
    """One row; cholesterol was hardly ever measured in the west, where they write 0."""
    age = 30 + int(55 * random.random())
    male, smokes = random.random() < 0.5, random.random() < 0.35
    weight = 55 + 15 * male + 30 * random.random()
    chol = 150 + 150 * random.random()
    stage = ["I", "II", "III", "IV"][int(4 * random.random() ** 1.5)]
    income = 900 + 4000 * random.random() ** 2
    visit = date(2019, 1, 1) + timedelta(days=int(700 * random.random()))
    score = 0.07 * (age - 55) + 0.8 * smokes + 0.012 * (chol - 220) + 0.6 * (len(stage) - 2)
    ill = random.random() < 1 / (1 + math.exp(-score))
    row = {
        "patient": f"{clinic[0].upper()}{number:03d}",
        "age": str(age),
        "sex": "M" if male else "F",
        "weight": f"{weight:.1f}",
        "chol": f"{chol:.0f}",
        "smoker": "yes" if smokes else "no",
        "stage": stage,
        "income": f"${income:,.2f}",
        "visit": visit.strftime("%d/%m/%Y"),
        "outcome": "ill" if ill else "well",
    }
    if clinic == "west" and random.random() < 0.6:
        row["chol"] = "0"
    for name, part in (("weight", 0.12), ("smoker", 0.1), ("income", 0.15), ("stage", 0.05)):
        if random.random() < part:
            row[name] = ""
    return row


def main(folder: Path) -> None:
    """Write the files."""
    random = Random(7)
    for clinic, (rows, columns, gap) in CLINICS.items():
        with (folder / f"{clinic}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            for number in range(rows):
                row = patient(random, number, clinic)
                writer.writerow([row[name] or gap for name in columns])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
