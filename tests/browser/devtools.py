"""Chromium without a window, driven over its debugging pipe: nothing beyond the standard library is needed."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SECONDS = 60
"""How long Chromium may be silent."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def installed() -> str | None:
    """The path of a Chromium on this machine."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


# Chromium reads commands from descriptor 3 and answers on 4.
_LAUNCH = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Sends commands of the DevTools protocol and keeps the events that arrive in between."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = os.fdopen(commands, "wb"), answers
        self._unread = bytearray()
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> Any:
        """The result of one command."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise SystemExit(f"Chromium refused {method}: {answer['error']['message']}")
                return answer["result"]

    def wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self.events):
            self._read()

    def open_tab(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()

    def close_tab(self) -> None:
        self.call("Page.close")
        self._session = None

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"the check's own script failed: {result['exceptionDetails']['exception']['description']}")
        return result["result"].get("value")

    def close(self) -> None:
        self._commands.close()
        os.close(self._answers)

    def _read(self) -> dict[str, Any]:
        while (end := self._unread.find(b"\0")) < 0:
            if not select.select([self._answers], [], [], SECONDS)[0]:
                raise SystemExit(f"Chromium did not answer for {SECONDS} seconds")
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                raise SystemExit("Chromium ended before it answered")
            self._unread += piece
        answer = json.loads(self._unread[:end])
        del self._unread[: end + 1]
        if "method" in answer:
            self.events.append(answer)
        return answer


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """A fresh Chromium with a profile of its own; both are gone afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        commands_out, commands_in = os.pipe()
        answers_out, answers_in = os.pipe()
        arguments = [str(commands_out), str(answers_in), path, *FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, *arguments],
            pass_fds=(commands_out, answers_in),
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_out)
        os.close(answers_in)
        driven = Browser(commands_in, answers_out)
        try:
            yield driven
            driven.call("Browser.close")
            process.wait(timeout=10)
        finally:
            process.kill()
            process.wait()
            driven.close()
