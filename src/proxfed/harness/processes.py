"""Running a study in several processes of this machine: tasks divided among jobs, or clients among ranks.

The study is pickled for the other processes, with your own classes and modules, in an unnamed file that they inherit:
it disappears however the processes end. Each process reports its progress on standard output as lines of JSON.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_bytes
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch

from proxfed.engine.ranks import Meeting
from proxfed.errors import Elsewhere, InputError, RunError
from proxfed.harness.execute import Execution
from proxfed.harness.further_jobs import Pace
from proxfed.registry import FROM_FILE
from proxfed.report.progress import Progress

if TYPE_CHECKING:
    from proxfed.harness.plan import Share

log = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds that the other ranks have to report an error after one has died."""

FAILED = 3
"""Exit code of a worker that failed and has reported the reason in its last line of JSON."""


# ---- jobs -----------------------------------------------------------------------------------------------------------


def run_jobs(executions: Sequence[Execution], share: Share) -> None:
    """Run the tasks of one or several studies in several jobs, including this process.

    A job takes the next free task. If a job is killed, its task stays at its last checkpoint.
    """
    watch, stop = executions[0].watch, executions[0].stop
    others = _Others(executions, share, watch, stop)
    for e in executions:
        e.solution()  # once for all jobs
    pace = Pace(sum(len(e.waiting()) for e in executions), share.jobs)

    def watching(progress: Progress) -> None:
        watch(progress)
        if not others.started:
            pace.hear(progress)
            if further := pace.further():
                others.start(further)

    for e in executions:
        e.watch = watching
    try:
        if share.at_once:
            others.start(share.jobs - 1)
        for e in executions:
            if not stop():
                e.run()
        others.finish()
    finally:
        others.kill()


class _Others:
    """The other jobs."""

    def __init__(
        self, executions: Sequence[Execution], share: Share, watch: Callable[[Progress], None], stop: Callable[[], bool]
    ) -> None:
        self.executions, self.share, self.watch, self.stop = executions, share, watch, stop
        self.workers: list[_Worker] = []
        self.started = False

    def start(self, count: int) -> None:
        """Start `count` jobs while this process continues.

        A study that cannot be pickled is refused, or run in this process alone if `jobs` was not given.
        """
        self.started = True
        try:
            with _payload(self.executions, self.share.threads) as study:
                one = {"OMP_NUM_THREADS": str(self.share.threads)}
                for _ in range(count):
                    self.workers.append(_Worker(study, one, self.watch))
        except InputError:
            if self.share.at_once:
                raise

    def finish(self) -> None:
        """Wait for them; if this process is stopped, stop them too."""
        while any(worker.runs() for worker in self.workers):
            if self.stop():
                for worker in self.workers:
                    worker.terminate()
            time.sleep(0.02)
        for worker in self.workers:
            worker.check()

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()


# ---- ranks ----------------------------------------------------------------------------------------------------------


def run_ranks(executions: Sequence[Execution], ranks: int, timeout: float) -> None:
    """Run one or several studies with the clients divided among `ranks` processes."""
    watch, stop = executions[0].watch, executions[0].stop
    threads = max(1, torch.get_num_threads() // ranks)
    common = {"WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": str(threads)} | _loopback_only()
    workers: list[_Worker] = []
    with tempfile.TemporaryDirectory(prefix="proxfed-") as private:
        meeting = Meeting(str(Path(private) / "meeting"), token_bytes(32))
        try:
            with _payload(executions, threads, timeout, meeting) as study:
                for r in range(ranks):
                    workers.append(_Worker(study, common | {"RANK": str(r), "LOCAL_RANK": str(r)}, watch))
                for worker in workers:
                    worker.wait_until_read()
            _wait_for_ranks(workers, stop)
        finally:
            for worker in workers:
                worker.kill()


def _wait_for_ranks(workers: Sequence[_Worker], stop: Callable[[], bool]) -> None:
    while any(worker.runs() for worker in workers):
        if stop():  # they agree on the round to stop after
            for worker in workers:
                worker.terminate()
        lost = [worker for worker in workers if worker.failed()]
        if lost:
            end = time.monotonic() + GRACE
            while time.monotonic() < end and any(worker.runs() for worker in workers):
                time.sleep(0.05)
            break
        time.sleep(0.02)
    killed = [r for r, worker in enumerate(workers) if worker.failed() and worker.process.returncode < 0]
    if killed:
        name = signal.Signals(-workers[killed[0]].process.returncode).name
        raise RunError(f"rank {killed[0]} was killed ({name}); resume the run to continue from the last checkpoint")
    for worker in workers:
        worker.check()


def _loopback_only() -> dict[str, str]:
    """Environment variables that make gloo listen on the loopback interface only."""
    names = [name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []
    loopback = [name for name in names if name in ("lo", "lo0")]
    return {"GLOO_SOCKET_IFNAME": loopback[0]} if loopback else {}


# ---- another process ------------------------------------------------------------------------------------------------


@contextmanager
def _payload(
    executions: Sequence[Execution], threads: int, timeout: float = 60.0, meeting: Meeting | None = None
) -> Any:
    """The descriptor of a file with everything that another process needs."""
    import cloudpickle

    for name, module in list(sys.modules.items()):
        if name.startswith(FROM_FILE):  # a plug-in file, which other processes cannot import by that name
            cloudpickle.register_pickle_by_value(module)
    kept = {
        "executions": [_travelling(e) for e in executions],
        "threads": threads,
        "timeout": timeout,
        "meeting": meeting,
        "log": logging.getLogger("proxfed").getEffectiveLevel(),
    }
    with tempfile.TemporaryFile() as f:
        cloudpickle.dump([*sys.path, os.getcwd()], f)  # directories of modules (registry.py)
        try:
            cloudpickle.dump(kept, f)
        except Exception as error:
            raise InputError(f"this study cannot be sent to other processes: {error}") from error
        f.flush()
        yield f.fileno()


def _travelling(e: Execution) -> dict[str, Any]:
    """The arguments that rebuild an execution in another process."""
    assert e.folder is not None
    names = ("study", "only", "checkpoint_seconds", "resumed", "reference", "case", "until")
    return {"path": e.folder.path.resolve()} | {name: getattr(e, name) for name in names}


class _Worker:
    """A process that runs tasks, or is a rank; a thread reads its progress."""

    def __init__(self, study: int, environment: dict[str, str], watch: Callable[[Progress], None]) -> None:
        command = [sys.executable, "-m", "proxfed.harness.worker", str(study)]
        calm = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")}
        self.process = subprocess.Popen(
            command,
            env=os.environ | calm | environment,
            pass_fds=[study],
            stdin=subprocess.PIPE,  # never written to: it closes when this process ends
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # this process forwards Ctrl-C
        )
        log.debug("process %d takes part", self.process.pid)
        self.watch, self.has_read, self.terminated = watch, False, False
        self.error = self.traceback = ""
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with suppress(ValueError, TypeError):
                    self._handle(json.loads(line))

    def _handle(self, report: dict[str, Any]) -> None:
        if "error" in report:
            self.error, self.traceback = report["error"], report.get("traceback", "")
        elif "progress" in report:
            self.watch(Progress(*report["progress"]))
        else:
            self.has_read = True

    def wait_until_read(self) -> None:
        while not self.has_read and self.runs():
            time.sleep(0.01)

    def runs(self) -> bool:
        return self.process.poll() is None

    def failed(self) -> bool:
        return not self.runs() and self.process.returncode not in (0, 1)

    def terminate(self) -> None:
        """Ask it, once, to stop after its round; a second signal would end it at once."""
        if self.runs() and self.has_read and not self.terminated:
            self.terminated = True
            self.process.terminate()

    def kill(self) -> None:
        if self.runs():
            self.process.kill()
        self.process.wait()
        self._reader.join(timeout=GRACE)
        if self.process.stdin is not None:
            self.process.stdin.close()

    def check(self) -> None:
        """Raise a one-sentence error if it did not finish."""
        self.process.wait()
        self._reader.join(timeout=GRACE)
        code = self.process.returncode
        if self.traceback:
            raise RunError(self.error) from Elsewhere(self.traceback)
        if self.error:
            raise RunError(self.error)
        if code < 0:
            name = signal.Signals(-code).name
            raise RunError(
                f"a process that carried out tasks was killed ({name}); resume the run to continue from there"
            )
        if code not in (0, 1):
            raise RunError(
                f"a process that carried out tasks ended with code {code}; resume the run to continue from there"
            )
