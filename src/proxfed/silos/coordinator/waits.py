"""Records the sites that a coordinator waits for in the run folder, so that `proxfed watch` can show them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from proxfed import files
from proxfed.errors import RunError
from proxfed.silos.wire.exchange import Exchange

EVERY = 0.5
"""Seconds between two checks; a site that answers sooner is not recorded."""


@contextmanager
def recording_waits(exchange: Exchange, path: Path) -> Iterator[None]:
    """A context in which the file at `path` lists the sites waited for, and since when; if none, it is removed."""
    over = Event()

    def look() -> None:
        since: dict[str, float] = {}
        while not over.wait(EVERY):
            now = {site: since.get(site, time.time()) for site in exchange.waiting}
            if now != since:
                since = now
                with suppress(OSError, RunError):  # it is only for display
                    files.replace(path, json.dumps({"waiting": since}).encode()) if now else path.unlink()

    looking = Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
        path.unlink(missing_ok=True)
