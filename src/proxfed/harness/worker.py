"""A process that carries out tasks of a study, or is one of its ranks: python -m proxfed.harness.worker FILE"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
import traceback
from contextlib import suppress
from typing import Any


def main(file: str) -> int:
    say = os.fdopen(os.dup(1), "w", buffering=1)  # for us alone: what a problem prints must not get in between
    os.dup2(2, 1)
    with open(file, "rb") as f:
        sys.path[:] = pickle.load(f)
        from proxfed.engine.allocator import tune_process

        tune_process()
        given = pickle.load(f)

    from proxfed.engine import ranks
    from proxfed.errors import ProxfedError
    from proxfed.harness.execute import Execution, Progress, threads
    from proxfed.harness.processes import FAILED
    from proxfed.harness.progress import stop_on_signal
    from proxfed.harness.run_folder import RunFolder

    told = 0.0

    def tell(progress: Progress) -> None:
        """At most five times a second, and at both ends."""
        nonlocal told
        now = time.monotonic()
        if now - told > 0.2 or progress.round in (0, progress.rounds):
            told = now
            with suppress(OSError):  # nobody listens any more; `stop` will notice
                say.write(json.dumps({"progress": progress}, default=str) + "\n")

    world, parent = ranks.world(), given["parent"]
    folder = RunFolder(given["path"]) if world is None or world[0] == 0 else None
    names = ("study", "only", "checkpoint_seconds", "resumed", "reference")
    rest: dict[str, Any] = {name: given[name] for name in names}
    try:
        with stop_on_signal() as asked, threads(given["threads"]):
            say.write(json.dumps({"read": True}) + "\n")  # from now on it may be asked to stop
            if world is not None:
                ranks.connect(given["timeout"])
            here = Execution(
                folder=folder,
                distributed=world is not None,
                watch=tell,
                stop=lambda: asked() or os.getppid() != parent,  # without a parent, stop as if asked
                **rest,
            )
            try:
                return 0 if here.run() else 1
            finally:
                ranks.disconnect()
    except ProxfedError as e:
        said = {"error": str(e)}
    except Exception as e:  # a bug of somebody's own code
        where = " ".join(getattr(e, "__notes__", ()))
        said = {"error": f"{type(e).__name__}: {e} {where}".rstrip(), "traceback": traceback.format_exc()}
    say.write(json.dumps(said) + "\n")
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
