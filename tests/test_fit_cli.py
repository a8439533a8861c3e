"""`proxfed fit` and `proxfed predict` as a user meets them: files, tables, JSON, refusals; the page and the card."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxfed.errors import RunError
from proxfed.files import locked
from proxfed.fit.card import card
from proxfed.fit.page import page
from proxfed.fit.predictions import written
from proxfed.report.columns import cell, parse

from support.cli import proxfed, refused
from support.damage import FullDisk
from support.fitted import clinics, clinics_plain
from support.tables import CLINICS

ASKED = (str(CLINICS / "tables.toml"), "--weight", "0.03", "--folds", "2", "--no-alone")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    clinics().save(folder)
    return folder


def test_a_fit_from_the_command_line(capsys: Any, tmp_path: Path) -> None:
    out = tmp_path / "model"
    code, said, complaint = proxfed(capsys, "fit", *ASKED, "--out", str(out))
    assert code == 0, complaint
    there = {"model.json", "coefficients.csv", "model.R", "report.html", "model_card.md"}
    assert {path.name for path in out.iterdir()} == there
    for words in ("4 organisations, 260 rows", "age", "auc", "federated", "summaries", "together"):
        assert words in said
    assert "--force replaces it" in refused(capsys, "fit", *ASKED, "--out", str(out))
    code, said, complaint = proxfed(capsys, "fit", *ASKED, "--out", str(out), "--force", "--format", "json")
    assert code == 0, complaint
    found = json.loads(said)
    assert found["model"]["weight"] == 0.03
    assert found["together"]["rounds"] == sum(sent["rounds"] for sent in found["model"]["sent"])


def test_predictions_of_a_file(capsys: Any, tmp_path: Path, made: Path) -> None:
    rows = list(csv.DictReader(io.StringIO((CLINICS / "west.csv").read_text())))
    other = tmp_path / "new.csv"
    names = [name for name in reversed(list(rows[0])) if name != "outcome"]  # another order, and no target
    with other.open("w") as f:
        lines = csv.DictWriter(f, names, extrasaction="ignore")
        lines.writeheader()
        lines.writerows(rows)
    code, _, complaint = proxfed(capsys, "predict", str(made), str(other), "--out", str(tmp_path / "said.csv"))
    assert code == 0, complaint
    found = list(csv.DictReader(io.StringIO((tmp_path / "said.csv").read_text())))
    assert [line["row"] for line in found] == [str(k + 1) for k in range(len(rows))]
    for line in found:
        ill = float(line["probability of ill"])
        assert line["prediction"] == ("ill" if ill > 0.5 else "well")
    code, said, complaint = proxfed(capsys, "predict", str(made / "model.json"), str(CLINICS / "west.csv"))
    assert code == 0, complaint
    assert said == (tmp_path / "said.csv").read_text()
    ask = ("--evaluate", "--format", "json", "--out", str(tmp_path / "two.csv"))
    code, said, complaint = proxfed(capsys, "predict", str(made), str(CLINICS / "west.csv"), *ask)
    assert code == 0, complaint
    assert 0.5 < json.loads(said)["measures"]["auc"][0] <= 1
    assert "so predictions cannot be evaluated" in refused(capsys, "predict", str(made), str(other), "--evaluate")
    assert "--force replaces it" in refused(
        capsys, "predict", str(made), str(other), "--out", str(tmp_path / "said.csv")
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--penalty", "lasso"), "penalty: there is no 'lasso'"),
        (("--penalty", "elastic_net,l2"), "'l2' is not of the form KEY=VALUE"),
        (("--penalty", "elastic_net,l2=a"), "'a' is not a number"),
        (("--weight", "0.1", "--cv", "within"), "exclude each other"),
        (("--cv", "none"), "cv = 'none' is not allowed"),
        (("--loss", "cox"), "does not fit the target"),
        (("--compress", "top_k,part=0.1"), "compress: unknown key 'part'"),
    ],
)
def test_bad_options_get_one_sentence(capsys: Any, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(capsys, "fit", str(CLINICS / "tables.toml"), *words)


def test_bad_files_get_one_sentence(capsys: Any, tmp_path: Path, made: Path) -> None:
    west = str(CLINICS / "west.csv")
    (tmp_path / "model.json").write_text((made / "model.json").read_text()[:500])
    assert "the JSON is damaged" in refused(capsys, "predict", str(tmp_path), west)
    assert "cannot read" in refused(capsys, "predict", str(tmp_path / "none.json"), west)
    assert "cannot read" in refused(capsys, "fit", str(tmp_path / "none.toml"))
    (tmp_path / "few.csv").write_text("age,sex\n50,F\n")
    assert "has no column 'weight'" in refused(capsys, "predict", str(made), str(tmp_path / "few.csv"))
    (tmp_path / "strange.csv").write_text("a,b\n1,2\n")
    assert "has none of the model's columns" in refused(capsys, "predict", str(made), str(tmp_path / "strange.csv"))
    assert "none.csv" in refused(capsys, "predict", str(made), str(tmp_path / "none.csv"))


# ---- the page and the card ------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """Every element that is opened is closed, and what is loaded."""

    ALONE = ("meta", "link")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.outside += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith("data:")]
        if tag not in self.ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing() -> None:
    text = page(clinics())
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.outside == []
    assert "script" not in tags.seen
    own = len(clinics().validation.by_organisation)
    assert tags.seen.count("svg") == 7 + own  # two bar plots, curve, path, organisations, calibration, decisions
    assert "nan" not in re.sub(r"<style>.*</style>", "", text, flags=re.DOTALL).lower().replace("finance", "")
    for words in ("Who holds what", "What was sent", "cross-validation", "each alone", "a simulation"):
        assert words in text


def test_names_from_tables_are_escaped() -> None:
    found = clinics()
    model = found.model.model_copy(update={"name": "<b>&", "notes": ["<script>alert(1)</script>"]})
    from dataclasses import replace

    strange = replace(found, model=model)
    assert "<script>" not in page(strange)
    assert "<b>&" not in page(strange)
    assert "<script>" not in card(strange).replace("\\<", "")


def test_the_card_says_what_a_reader_must_know() -> None:
    text = card(clinics())
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == [
        *("Intended use", "Data", "Preparation", "Missing values", "Coefficients", "Intervals", "Performance"),
        *("Calibration of every organisation", "Decisions", "What was sent", "Limits", "TRIPOD+AI", "Notes"),
    ]
    assert "'smoker' is missing in all rows of east" in text
    assert "To be filled in" in text
    assert "| north | 90 | 44 | 46 |" in text


# ---- the files of a fit ---------------------------------------------------------------------------------------------


def test_old_and_new_files_of_a_fit_never_stand_beside_each_other(tmp_path: Path) -> None:
    """Whichever write fails: papers that are there are those of the model that is there."""
    old, new, folder = (tmp_path / name for name in ("old", "new", "folder"))
    clinics().save(old)
    clinics_plain(weight=0.2).save(new)
    count = 0
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(old, folder)
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, folder, count := count + 1, for_good=True)
            with suppress(RunError):
                clinics_plain(weight=0.2).save(folder)
        of = old if (folder / "model.json").read_bytes() == (old / "model.json").read_bytes() else new
        for file in folder.iterdir():
            assert file.read_bytes() == (of / file.name).read_bytes(), (count, file.name)
        if not disk.full:
            break
    assert count > 8
    assert of == new


def test_a_card_says_which_model_it_is_of(made: Path) -> None:
    assert json.loads((made / "model.json").read_text())["sha256"] in (made / "model_card.md").read_text()


def test_one_fit_at_a_time_writes_to_a_folder(capsys: Any, tmp_path: Path) -> None:
    out = tmp_path / "model"
    with locked(out):
        assert "another `proxfed fit` is writing there" in refused(capsys, "fit", *ASKED, "--out", str(out))
    refused(capsys, "fit", str(tmp_path / "no.toml"), "--out", str(out))
    assert not out.exists()


# ---- formulas -------------------------------------------------------------------------------------------------------


@given(st.text(alphabet="'=+-@\t\r1a, \"", max_size=5))
def test_words_that_look_like_formulas_are_words_and_are_read_back(word: str) -> None:
    assert not cell(word).startswith(("=", "+", "-", "@", "\t", "\r"))
    assert parse("algorithm", cell(word)) == word


def test_numbers_stay_numbers() -> None:
    assert [cell(value) for value in (-1.5, -1, None, "-2+3")] == ["-1.5", "-1", "", "'-2+3"]


def test_exported_tables_have_no_formulas() -> None:
    model = clinics_plain().model
    named = model.model_copy(update={"features": ["=HYPERLINK(1)", *model.features[1:]], "classes": ["@well", "+ill"]})
    rows = list(csv.reader(io.StringIO(named.csv())))
    assert rows[2][:2] == ["'+ill", "'=HYPERLINK(1)"]
    assert float(rows[2][2]) == model.prepared.coef[0][0]
    assert written({"row": [1], "prediction": ["=well"], "p": [-0.5]}) == "row,prediction,p\n1,'=well,-0.5\n"
