"""A process that carries out tasks of a study, or is one of its ranks: python -m proxfed.harness.worker DESCRIPTOR"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress

GRACE = 5.0
"""Seconds that are left for a checkpoint when the process that started this one is gone."""


def end_with_parent() -> None:
    """Standard input is a pipe that the process which started this one holds: when it ends, however it ends, this one
    is asked to stop after its round, and ends anyway if that takes long."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


def main(descriptor: int) -> int:
    """The study is in a file without a name, which is open under this number."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    say = os.fdopen(os.dup(1), "w", buffering=1)  # for us alone: what a problem prints must not get in between
    os.dup2(2, 1)
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as f:  # others read the same file: it has one position
        os.close(descriptor)
        sys.path[:] = pickle.load(f)
        from proxfed.engine.allocator import tune_process

        tune_process()
        given = pickle.load(f)

    from proxfed.engine import network, ranks
    from proxfed.errors import ProxfedError
    from proxfed.harness.agreement import require_alike
    from proxfed.harness.execute import Execution
    from proxfed.harness.folder.run_folder import RunFolder
    from proxfed.harness.processes import FAILED
    from proxfed.machine import threads
    from proxfed.report.progress import Progress
    from proxfed.report.terminal import show_log, stop_on_signal

    show_log(given["log"])
    told = 0.0

    def tell(progress: Progress) -> None:
        """At most five times a second, and at both ends."""
        nonlocal told
        now = time.monotonic()
        if now - told > 0.2 or progress.round in (0, progress.rounds):
            told = now
            with suppress(OSError):  # nobody listens any more; `stop` will notice
                say.write(json.dumps({"progress": progress}, default=str) + "\n")

    world = network.world()
    leads, distributed = world is None or world[0] == 0, world is not None
    try:
        with stop_on_signal() as asked, threads(given["threads"]):
            say.write(json.dumps({"read": True}) + "\n")  # from now on it may be asked to stop
            if world is not None:
                ranks.connect(given["timeout"], given["meeting"])
            done = True
            try:
                if world is not None:
                    require_alike((one["study"], one["only"], one["until"]) for one in given["executions"])
                for one in given["executions"]:
                    folder = RunFolder(one.pop("path"))
                    here = folder if leads else None
                    e = Execution(folder=here, distributed=distributed, watch=tell, stop=asked, **one)
                    done = e.run() and done
                    if not done and (distributed or asked()):  # ranks stop together
                        break
            finally:
                ranks.disconnect()
            return 0 if done else 1
    except ProxfedError as e:
        said = {"error": str(e)}
    except Exception as e:  # a bug of somebody's own code
        where = " ".join(getattr(e, "__notes__", ()))
        said = {"error": f"{type(e).__name__}: {e} {where}".rstrip(), "traceback": traceback.format_exc()}
    say.write(json.dumps(said) + "\n")
    return FAILED


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
