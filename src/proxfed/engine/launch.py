"""Start the same command in several processes of this machine, and tell when one of them dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

from proxfed.errors import InputError, RunError, require

GRACE = 5.0
"""Seconds that the other ranks have, after one has died, to notice and to say so."""


def launch(ranks: int, arguments: list[str]) -> int:
    """Run `proxfed ARGUMENTS` in `ranks` processes; the largest of their exit codes."""
    require(ranks >= 2, f"--ranks {ranks}: give at least 2, or leave it out")
    threads = max(1, (os.cpu_count() or 1) // ranks)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
    common |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    command = [sys.executable, "-m", "proxfed", *arguments]
    children = [subprocess.Popen(command, env=os.environ | common | {"RANK": str(r)}) for r in range(ranks)]
    # Ctrl-C reaches the ranks too, and they agree on the round to stop after; here it only has to be survived.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    terminate = signal.signal(signal.SIGTERM, lambda *_: _pass_on(children))
    try:
        return _wait(children)
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, terminate)
        for child in children:
            child.kill()


def _pass_on(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        child.terminate()


def _wait(children: list[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [child.poll() for child in children]
        if all(code is not None for code in codes):
            died = [r for r, code in enumerate(codes) if code < 0]  # type: ignore[operator]
            if died:
                raise _dead(died[0], -codes[died[0]])  # type: ignore[operator]
            return max(codes)  # type: ignore[type-var,return-value]
        for r, code in enumerate(codes):
            if code is not None and code < 0:
                time.sleep(GRACE)
                raise _dead(r, -code)
        if any(codes):  # a rank has failed and said why; the others cannot go on without it
            time.sleep(GRACE)
            return max(code or 0 for code in codes)
        time.sleep(0.05)


def _dead(rank: int, number: int) -> RunError:
    name = signal.Signals(number).name
    return RunError(f"rank {rank} was killed ({name}); --resume goes on from the last checkpoint")


def _free_port() -> int:
    try:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return int(s.getsockname()[1])
    except OSError as e:
        raise InputError(f"no free port for the ranks to meet at: {e.strerror}") from e
