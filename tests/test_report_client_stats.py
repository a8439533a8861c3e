"""Who holds what, on the report page."""

from __future__ import annotations

import re

import numpy as np
import pytest

from proxfed.errors import InputError
from proxfed.harness.results import Results
from proxfed.report.client_stats import ClientStats, pictures

from support.run_folders import HOSTILE, Elements, data_of, folder, row, state, write


def stats(n=5, classes=3, seed=6, names=None) -> ClientStats:
    counts = np.random.default_rng(seed).integers(0, 9, (n, classes))
    counts[:, 0] += 1
    return ClientStats(counts.sum(axis=1), counts, names or tuple(map(str, range(classes))))


def test_every_client_of_a_few_is_on_the_page(tmp_path):
    held = stats()
    page = write(tmp_path, folder(tmp_path / "run", [row()], [state()], held=held))
    (picture,) = data_of(page)["client_stats"]
    assert picture["ids"] == [0, 1, 2, 3, 4]
    assert picture["counts"] == held.counts.tolist()
    assert picture["sizes"] == held.counts.sum(axis=1).tolist()
    assert picture["strongest"] == (held.counts / held.sizes[:, None]).max()
    assert f"5 clients hold {held.counts.sum()} samples: {held.sizes.min()} to {held.sizes.max()} each" in page
    assert "Who holds what" in Elements(page).texts
    assert "drawn at random" not in page


def test_of_many_clients_some_are_drawn_and_the_page_stays_small(tmp_path):
    held = stats(1000, 100)
    page = write(tmp_path, folder(tmp_path / "run", [row()], [state()], held=held))
    assert len(page.encode()) < 300_000
    (picture,) = data_of(page)["client_stats"]
    ids = picture["ids"]
    assert len(ids) == 200
    assert ids == sorted(set(ids))
    assert picture["counts"] == held.counts[ids].tolist()
    assert "200 of the 1,000 clients are shown" in page
    assert f"1,000 clients hold {held.sizes.sum():,} samples" in page, "the sentence is about all of them"


def test_clients_are_not_drawn_in_step_with_a_pattern():
    """Every tenth client may be alike: neither of the ten kinds may be left out."""
    (picture,) = pictures([("run", stats(1000, 10))])
    assert len(np.unique(picture.ids % 10)) == 10


def test_all_pictures_together_have_a_bounded_number_of_cells():
    shown = pictures((f"run {k}", stats(3000, 100, seed=k)) for k in range(10))
    assert len(shown) == 10
    assert sum(picture.stats.counts[picture.ids].size for picture in shown) <= 20_000
    (wide,) = pictures([("run", stats(300, 5000))])
    assert len(wide.ids) == 20


def test_folders_that_do_not_say_who_holds_what_have_no_such_section(tmp_path):
    page = write(tmp_path, folder(tmp_path / "run", [row()], [state()]))
    assert data_of(page)["client_stats"] == []
    assert "Who holds what" not in Elements(page).texts


def test_runs_on_the_same_clients_share_a_picture(tmp_path):
    same = [folder(tmp_path / name, [row(name)], [state(name)], held=stats()) for name in ("one", "two")]
    other = folder(tmp_path / "three", [row("three")], [state("three")], held=stats(seed=7))
    page = write(tmp_path, *same, other)
    assert len(data_of(page)["client_stats"]) == 2
    texts = Elements(page).texts
    assert {"one, two:", "three:"} <= set(texts)


def test_labels_that_are_numbers_leave_the_sizes(tmp_path):
    page = write(tmp_path, folder(tmp_path / "run", [row()], [state()], held=ClientStats(np.array([4, 4]))))
    (picture,) = data_of(page)["client_stats"]
    assert (picture["counts"], picture["classes"], picture["sizes"]) == (None, [], [4, 4])
    assert "2 clients hold 8 samples: 4 each." in page


def test_the_number_of_clients_is_the_recorded_one(tmp_path):
    made = folder(tmp_path / "run", [row(t=5)], [state(t=5)], held=stats(20))
    values = re.findall(r'data-value="([^"]+)"', write(tmp_path, made))
    assert repr(20 * 5 / 20) in values  # gradients per client; the configuration says 4 clients
    assert "over 20 clients" in (tmp_path / "report.html").read_text()


def test_names_of_classes_stay_text(tmp_path):
    page = write(tmp_path, folder(tmp_path / "run", [row()], [state()], held=stats(names=(HOSTILE, "b", "c"))))
    assert [tag for tag, _ in Elements(page).elements].count("script") == 2
    assert data_of(page)["client_stats"][0]["classes"][0] == HOSTILE


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"sizes": [3]}',
        '{"sizes": [3], "classes": ["a"], "counts": [[2]]}',
        '{"sizes": [3], "classes": ["a", "b"], "counts": [[3]]}',
        '{"sizes": [3], "classes": ["a"], "counts": [[3], [1, 2]]}',
        '{"sizes": [], "classes": [], "counts": null}',
    ],
)
def test_a_damaged_record_of_the_clients_is_named(tmp_path, text):
    made = folder(tmp_path / "run", [row()], [state()])
    (made / "clients.json").write_text(text)
    with pytest.raises(InputError, match=r"clients\.json is damaged"):
        Results.read(made)
