"""`python -m proxfed`, and the command `proxfed`."""

from __future__ import annotations

import os
import signal
from types import FrameType


def _leave(number: int, frame: FrameType | None) -> None:
    """Nothing has begun that would have to be ended."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def main() -> None:
    """Until the command line is there, Ctrl-C simply ends the process."""
    before = signal.signal(signal.SIGINT, _leave)
    from proxfed.cli.main import main

    signal.signal(signal.SIGINT, before)
    main()


if __name__ == "__main__":
    main()
