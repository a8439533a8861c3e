"""Locks of folders and files between processes: they end with their process, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from proxfed.errors import InputError, RunError

LOOKS = 5
"""Attempts to take a lock, some milliseconds apart: another process may just be testing whether it is free."""

TRIES = 100
"""Attempts to make a folder that another process removes at the same time, some milliseconds apart."""

NO_LOCKS = "PROXFED_LOCKS"
"""The environment variable to set to 'none' if a file system has no locks."""


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """A context that holds the lock of this folder, which is made if necessary; without waiting, gives False if another
    process holds it."""
    for _ in range(TRIES):
        here = _opened(folder)
        try:
            free = hold(here, folder, wait)
            if free and not _is_at(folder, here):  # removed meanwhile by the process that had the lock
                continue
            yield free
            return
        finally:
            os.close(here)
    raise RunError(f"{folder} is removed by another process as often as it is made")


def _opened(folder: Path) -> int:
    """Open the folder, made if necessary; refused after so many attempts."""
    for left in reversed(range(TRIES)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, FileExistsError, NotADirectoryError) as e:
            for path in (folder, *folder.parents):
                if path.is_symlink() and not path.exists():
                    raise InputError(f"{path} is a link to {os.readlink(path)}, which is not there") from e
                if path.exists() and not path.is_dir():
                    raise InputError(f"{path} is a file and not a folder") from e
            if not left:
                raise InputError(f"the folder {folder} cannot be made: {e.strerror}") from e
            time.sleep(0.005)  # another process may have removed it
        except OSError as e:
            raise RunError(f"cannot write to {folder}: {e.strerror}") from e
    raise AssertionError


def hold(descriptor: int, path: Path, wait: bool = True) -> bool:
    """Lock an open file or folder until it is closed; without waiting, False if another process has locked it."""
    if os.environ.get(NO_LOCKS) == "none":
        return True
    try:
        if wait:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return True
        for _ in range(LOOKS):
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(0.005)
        return False
    except OSError as e:
        raise RunError(
            f"{path} cannot be locked: {e.strerror}; choose a place on another file system, or set {NO_LOCKS}=none if "
            "no other process writes there"
        ) from e


def is_held(folder: Path) -> bool:
    """Whether a process holds the lock of this folder."""
    try:
        here = os.open(folder, os.O_RDONLY)
    except OSError:  # the folder is gone, and its lock with it
        return False
    try:
        fcntl.flock(here, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # there are no locks here
        return False
    finally:
        os.close(here)


def _is_at(folder: Path, descriptor: int) -> bool:
    """Whether the open folder is the one that has this name now."""
    try:
        return os.path.samestat(folder.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
