"""Python processes without the second that importing torch takes: a server that has imported it forks them.

`ForkedPopen` stands in for `subprocess.Popen`: `python -m MODULE`, `python -c CODE` and `python FILE` become forks of
the server, with the descriptors, the environment, the folder and the exit code that they would have as new processes.
They run in `__main__` as always; what they start in turn are forks too. The server ends with the process that began it.

Two things differ: a fork is a child of the server, and its name in /proc is the server's. Tests that look for children
there, or whose subject is how a process starts, take `subprocess.Popen` itself.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PRELOADED = ("torch.distributed", "numba", "cloudpickle", "networkx", "proxfed.cli.run", "proxfed.harness.processes")
HIGH = 500
"""Descriptors wait above this number until those below it are free."""

RealPopen = subprocess.Popen


class ForkedPopen(subprocess.Popen):
    """As subprocess.Popen; whatever is not a plain call of this Python is a process of its own, as always."""

    server = ""
    """The socket at which the server listens."""

    def _execute_child(  # type: ignore[override]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask, *rest,
    ) -> None:  # fmt: skip
        self.connection: socket.socket | None = None
        words = [os.fsdecode(word) for word in args] if isinstance(args, list | tuple) else []
        plain = words[:1] == [sys.executable] and _is_plain(words[1:])
        if not plain or executable is not None or preexec_fn is not None or shell:
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask, *rest,
            )  # fmt: skip
            return
        std = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        new_session = bool(rest[0]) if rest else False
        what = pickle.dumps(
            {
                "words": words[1:],
                "cwd": os.path.abspath(cwd or os.getcwd()),
                "environment": dict(os.environ if env is None else env),
                "targets": [0, 1, 2, *pass_fds],
                "new_session": new_session,
                "ignores_interrupts": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
            }
        )
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(self.server)
        socket.send_fds(self.connection, [len(what).to_bytes(4, "big")], [*std, *pass_fds])
        self.connection.sendall(what)
        self.pid = int.from_bytes(_exactly(self.connection, 4), "big")
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _internal_poll(self, *rest: Any, **options: Any) -> int | None:
        if self.connection is None:
            return super()._internal_poll(*rest, **options)  # type: ignore[misc]
        return self.returncode if self.returncode is not None else self._reply(0)

    def _wait(self, timeout: float | None) -> int:
        if self.connection is None:
            return super()._wait(timeout)  # type: ignore[misc]
        if self.returncode is None and self._reply(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def _reply(self, timeout: float | None) -> int | None:
        assert self.connection is not None
        if select.select([self.connection], [], [], timeout)[0]:
            self.returncode = int.from_bytes(_exactly(self.connection, 4), "big", signed=True)
            self.connection.close()
        return self.returncode


def _is_plain(words: list[str]) -> bool:
    """-P, a module, code or a file."""
    words = words[words[:1] == ["-P"] :]
    return words[:1] in (["-m"], ["-c"]) or (bool(words) and words[0][:1] not in ("", "-"))


def _exactly(connection: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        more = connection.recv(length - len(found))
        if not more:
            raise ConnectionError("the server of forks is gone")
        found += more
    return found


@contextmanager
def fork_server() -> Iterator[str]:
    """Where it listens."""
    with tempfile.TemporaryDirectory(prefix="forks-") as folder:
        path = str(Path(folder) / "socket")
        here = str(Path(__file__).parents[1])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
        with RealPopen(
            [sys.executable, "-m", "support.forked", path],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as server:  # fmt: skip
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield path
            server.terminate()


# ---- the server -----------------------------------------------------------------------------------------------------


def _serve(path: str) -> dict[str, Any]:
    """Fork for whoever asks; returns in the forks alone, with what each is to run."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.write(1, b"ready\n")
    asked: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, woken, 0], [], [])
        if 0 in ready and not os.read(0, 1):  # the process that began this one is gone
            os._exit(0)
        if woken in ready:
            woken.recv(4096)
            _tell_who_ended(asked)
        if listener in ready:
            connection, _ = listener.accept()
            length, descriptors, _, _ = socket.recv_fds(connection, 4, 64)
            what = pickle.loads(_exactly(connection, int.from_bytes(length, "big")))
            if (child := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (listener, woken, wakes, connection, *asked.values()):
                    other.close()
                return what | {"descriptors": descriptors}
            for descriptor in descriptors:
                os.close(descriptor)
            asked[child] = connection
            connection.sendall(child.to_bytes(4, "big"))


def _tell_who_ended(asked: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with asked.pop(ended[0]) as connection, suppress(OSError):  # nobody may be left to hear it
                connection.sendall(os.waitstatus_to_exitcode(ended[1]).to_bytes(4, "big", signed=True))


def _become(what: dict[str, Any], of_server: list[str]) -> None:
    """In a fork: what a new process would have."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, HIGH) for descriptor in what["descriptors"]]
    for descriptor in what["descriptors"]:
        os.close(descriptor)
    for descriptor, target in zip(high, what["targets"], strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    if what["new_session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN if what["ignores_interrupts"] else signal.default_int_handler)
    os.chdir(what["cwd"])
    os.environ.clear()
    os.environ.update(what["environment"])
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 0)) or len(os.sched_getaffinity(0)))
    subprocess.Popen = ForkedPopen  # type: ignore[misc]
    os.fsync = lambda descriptor: None  # as in the tests
    paths = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:] = [*paths, *(p for p in of_server if p not in paths)]


def _run(words: list[str]) -> None:
    import runpy

    safe = words[0] == "-P"
    words = words[safe:]
    first = {"-m": os.getcwd(), "-c": ""}.get(words[0], str(Path(words[0]).resolve().parent))
    sys.path[:0] = [] if safe else [first]
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv[:] = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    import gc
    import importlib

    from support import forked  # this file as a module, whose class the forks and what they start share

    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    forked.ForkedPopen.server = sys.argv[1]
    given = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    own = [p for p in sys.path[1:] if p not in given]
    task = forked._serve(sys.argv[1])
    forked._become(task, own)
    forked._run(task["words"])
