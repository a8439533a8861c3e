"""A process that runs tasks of a study, or is one of its ranks: python -m proxfed.harness.worker DESCRIPTOR"""

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
"""Seconds left for a checkpoint after the parent process has ended."""


def end_with_parent() -> None:
    """Stop after the current round when the parent process ends, and exit if that takes too long. The parent holds the
    other end of standard input, which closes however it ends."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


def main(descriptor: int) -> int:
    """Run the study in the unnamed file with this descriptor."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    say = os.fdopen(os.dup(1), "w", buffering=1)  # private: a problem's own output must not get in between
    os.dup2(2, 1)
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as f:  # processes share the file and its position
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
        """Report progress at most five times a second, and at both ends."""
        nonlocal told
        now = time.monotonic()
        if now - told > 0.2 or progress.round in (0, progress.rounds):
            told = now
            with suppress(OSError):  # the parent has ended; `stop` will notice
                say.write(json.dumps({"progress": progress}, default=str) + "\n")

    world = network.world()
    leads, distributed = world is None or world[0] == 0, world is not None
    try:
        with stop_on_signal() as asked, threads(given["threads"]):
            say.write(json.dumps({"read": True}) + "\n")  # from now on signals to stop are handled
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
    except Exception as e:  # an error in user code
        where = " ".join(getattr(e, "__notes__", ()))
        said = {"error": f"{type(e).__name__}: {e} {where}".rstrip(), "traceback": traceback.format_exc()}
    say.write(json.dumps(said) + "\n")
    return FAILED


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
