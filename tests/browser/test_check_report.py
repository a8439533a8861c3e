"""The check of the report in a browser passes a good page and sees what is wrong with a bad one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import check_report
import devtools
import pytest
from sample_run import sample_report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[devtools.Browser]:
    path = devtools.installed()
    if path is None:
        pytest.skip(check_report.MISSING)
    with devtools.chromium(path) as driven:
        yield driven


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_report(tmp_path_factory.mktemp("report"))


def test_a_good_report_is_fine(browser: devtools.Browser, report: Path) -> None:
    assert check_report.check(browser, report) == []


def script(text: str) -> Callable[[str], str]:
    """The page with a script at its end."""
    return lambda page: page.replace("</body>", f"<script>{text}</script></body>")


def drawn(text: str) -> Callable[[str], str]:
    """The page with a script that runs when the charts have been drawn, two frames after it was loaded."""
    return script(f"onload = () => requestAnimationFrame(() => requestAnimationFrame(() => {{ {text} }}))")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (script("console.error('no')"), "laptop: console error"),
        (script("missing()"), "phone: script error: ReferenceError"),
        (script("fetch('https://example.org/x')"), "network request: https://example.org/x"),
        (drawn("for (const curve of document.querySelectorAll('#panels path.curve')) curve.remove()"), "no curve"),
        (drawn("document.querySelector('path').setAttribute('d', 'M0 NaN')"), "not numbers"),
        (script("document.body.style.width = '5000px'"), "phone: the page is 50"),
        (lambda page: page.replace('head.addEventListener("click"', 'head.addEventListener("never"'), "does not sort"),
        (lambda page: page.replace("return sign * (u - v);", "return sign * Math.sin(u);"), "does not sort by"),
        (lambda page: page.replace("canvas.toBlob(", "void ("), "buttons save a file"),
        (lambda page: page.replace("canvas.width, canvas.height)", "1, 1); canvas.width = 9"), "is too small"),
        (lambda page: page.replace("<body>", "<body><p style='font-size: 8px'>tiny</p>"), "below 12 pixels: 'tiny'"),
    ],
)
def test_what_is_wrong_is_seen(
    browser: devtools.Browser, report: Path, tmp_path: Path, change: Callable[[str], str], problem: str
) -> None:
    page = report.read_text(encoding="utf-8")
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    assert policy.search(page)
    bad = change(policy.sub("", page))
    assert bad != policy.sub("", page)
    (tmp_path / "bad.html").write_text(bad, encoding="utf-8")
    found = check_report.check(browser, tmp_path / "bad.html")
    assert any(problem in one for one in found), found


def test_a_script_that_the_policy_forbids_is_seen(browser: devtools.Browser, report: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(script("missing()")(report.read_text(encoding="utf-8")), encoding="utf-8")
    assert any("Content Security Policy" in one for one in check_report.check(browser, tmp_path / "bad.html"))


def test_without_chromium_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(check_report, "installed", lambda: None)
    assert check_report.main([]) == 2
    assert capsys.readouterr().err == check_report.MISSING + "\n"
