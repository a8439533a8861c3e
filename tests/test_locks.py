"""Locks of folders: one process at a time; a folder that cannot be made or locked is refused, not tried for ever."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proxfed.errors import InputError, RunError
from proxfed.files import is_held, locked

from support.cli import proxfed


def dead_link(folder: Path) -> Path:
    (folder / "link").symlink_to(folder / "scratch")
    return folder / "link"


@pytest.mark.parametrize("below", ["", "run", "run/checkpoint"])
def test_a_dead_link_is_refused(below: str, tmp_path: Path) -> None:
    link = dead_link(tmp_path)
    with pytest.raises(InputError, match=rf"^{link} is a link to {tmp_path / 'scratch'}, which is not there$"):
        locked(link / below).__enter__()


@pytest.mark.parametrize("below", ["", "run"])
def test_a_file_in_the_place_of_a_folder_is_refused(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file and not a folder"):
        locked(tmp_path / "file" / below).__enter__()


@pytest.mark.skipif(sys.platform != "linux", reason="another system has no /proc")
def test_a_folder_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(InputError, match="the folder /proc/x/run cannot be made: No such file or directory"):
        locked(Path("/proc/x/run")).__enter__()


def test_a_run_into_a_dead_link_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = proxfed(capsys, "run", "demo", "--out", str(dead_link(tmp_path)))
    assert code == 2
    assert "which is not there" in said


def test_a_folder_that_others_remove_is_made_again(tmp_path: Path) -> None:
    """As the folders of tasks that are done: whoever has the lock removes it."""
    inside: list[int] = []

    def once(k: int) -> None:
        with locked(tmp_path / "a" / "b") as free:
            assert free
            inside.append(k)
            assert inside == [k]
            inside.clear()
            (tmp_path / "a" / "b").rmdir()  # from here on another one may make it and enter

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(once, range(200)))


def no_locks(patch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    patch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("wait", [True, False])
def test_where_there_are_no_locks_it_is_said_and_can_be_overruled(
    wait: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks(monkeypatch)
    with pytest.raises(RunError, match=r"cannot be locked: No locks available; choose .* or set PROXFED_LOCKS=none"):
        locked(tmp_path, wait).__enter__()
    assert not is_held(tmp_path)
    monkeypatch.setenv("PROXFED_LOCKS", "none")
    with locked(tmp_path, wait) as free:
        assert free


def test_windows_is_refused_in_a_sentence() -> None:
    code = "import sys; sys.platform = 'win32'; import proxfed"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: proxfed needs a POSIX system")
