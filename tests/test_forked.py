"""A fork of the server is the process that it stands for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

WHAT = """
import json, os, signal, sys, threading
print(json.dumps({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "name": __name__, "environment": dict(os.environ),
    "path": sys.path, "stdin": sys.stdin.read(), "threads": threading.active_count(),
    "signals": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
    "open": sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")),
    "leads": os.getsid(0) == os.getpid(), "given": os.fstat(GIVEN).st_size,
}))
print("to stderr", file=sys.stderr)
sys.exit(7)
"""
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@linux
@pytest.mark.parametrize("how", ["file", "module", "code", "safe"])
@pytest.mark.parametrize("session", [False, True])
def test_it_has_what_a_new_process_has(how: str, session: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with tempfile.TemporaryFile() as given:
        given.write(b"12345")
        given.flush()
        what = WHAT.replace("GIVEN", str(given.fileno()))
        (tmp_path / "what.py").write_text(what)
        words = {"file": ["what.py"], "module": ["-m", "what"], "code": ["-c", what], "safe": ["-P", "-c", what]}[how]
        command = [sys.executable, *words, "1", "2"]
        environment = {name: value for name, value in os.environ.items() if name != "LC_CTYPE"} | {"A": "b"}

        def done() -> tuple[int, str, str]:
            got = subprocess.run(
                command, cwd=tmp_path, env=environment, pass_fds=[given.fileno()], start_new_session=session,
                input="read me", capture_output=True, text=True, check=False,
            )  # fmt: skip
            return got.returncode, got.stdout, got.stderr

        new = done()
        request.getfixturevalue("forked")
        assert done() == new
        assert new[0] == 7
        assert new[2] == "to stderr\n"


@pytest.mark.usefixtures("forked")
def test_signals_exceptions_and_children_of_its_own() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"], stdout=-1) as p:
        assert p.stdout is not None
        assert p.stdout.readline() == b"1\n"
        assert p.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            p.wait(0.01)
        p.kill()
        assert p.wait() == -signal.SIGKILL
        assert p.poll() == -signal.SIGKILL
    raises = subprocess.run([sys.executable, "-c", "1 / 0"], capture_output=True, check=False)
    assert raises.returncode == 1
    assert raises.stderr.splitlines()[-1].startswith(b"ZeroDivisionError")
    inner = "import torch; print(torch.get_num_threads())"
    outer = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {inner!r}]).returncode)"
    threads = os.environ | {"OMP_NUM_THREADS": "3"}
    assert subprocess.run([sys.executable, "-c", outer], capture_output=True, check=True, env=threads).stdout == b"3\n"
    assert subprocess.run(["echo", "a"], capture_output=True, check=True).stdout == b"a\n"
