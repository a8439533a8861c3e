"""Download published files to a temporary name, verify their checksums, and only then move them into place."""

from __future__ import annotations

import gzip
import http.client
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Literal, NamedTuple
from urllib.parse import urlsplit

from proxfed.data.directory import OPENERS, Collection
from proxfed.errors import RunError

PIECE = 1 << 16
SECONDS = 30
"""The longest time without data from a server, in seconds."""
Watch = Callable[[str, int, int | None], None]
"""Called after every piece: (file, bytes so far, total bytes if the server tells)."""


class Arrival(NamedTuple):
    """The result for one file."""

    path: Path
    state: Literal["fetched", "was there"]


class Failed(Exception):
    """Why a download failed."""


def silent(file: str, so_far: int, total: int | None) -> None:
    """Show nothing."""


def download(files: Collection, directory: str | Path | None = None, watch: Watch = silent) -> list[Arrival]:
    """Download every missing file of a collection; an existing file that differs is kept and an error is raised."""
    found = files.found(directory)
    for name, path in found.items():
        if files.state(name, path) == "differs":
            raise RunError(f"{path} is not the file that was published; move it away to fetch it anew")
    arrivals = [Arrival(path, "was there") for path in found.values() if path]
    wanted: dict[str, list[str]] = {}
    for name in (name for name, path in found.items() if path is None):
        wanted.setdefault(files.url.format(name=name), []).append(name)
    for url, names in wanted.items():
        arrivals += [Arrival(path, "fetched") for path in _fetch(files, url, names, files.place(directory), watch)]
    return arrivals


def _fetch(files: Collection, url: str, names: list[str], place: Path, watch: Watch) -> list[Path]:
    """Download these files from this address, all of them or none."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=place) as scratch:  # on the same disk: moving is atomic
            arrived = Path(scratch) / PurePosixPath(urlsplit(url).path).name
            with arrived.open("wb") as file:
                for piece in _pieces(url, arrived.name, watch):
                    file.write(piece)
            fresh = _members(arrived, names) if _is_archive(arrived) else {names[0]: arrived}
            for name, path in fresh.items():
                if files.state(name, path) != "as published":
                    raise Failed(f"the downloaded {path.name} does not have the published checksum")
            return [path.replace(place / path.name) for path in fresh.values()]
    except Failed as failed:
        them = "it" if len(names) == 1 else "them"
        raise RunError(
            f"cannot fetch {', '.join(names)} from {url}: {failed}; get {them} by hand from {files.source} and put "
            f"{them} into {place}"
        ) from failed
    except OSError as error:
        raise RunError(f"cannot write to {place}: {error.strerror}") from error


def _pieces(url: str, name: str, watch: Watch) -> Iterator[bytes]:
    """The bytes behind an address; any error is raised as Failed."""
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "proxfed"})
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            length = answer.headers.get("Content-Length")
            total, so_far = int(length) if length else None, 0
            while piece := answer.read(PIECE):
                so_far += len(piece)
                watch(name, so_far, total)
                yield piece
    except urllib.error.HTTPError as error:
        error.close()
        raise Failed(f"the server says {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # OSError: also every error of urllib
        raise Failed(_reason(error)) from error
    if total is not None and so_far < total:  # read(n) does not report this
        raise Failed(f"the connection ended after {so_far:,} of {total:,} bytes")


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    return inner.strerror or str(inner) if isinstance(inner, OSError) else str(inner)


def _is_archive(path: Path) -> bool:
    return path.name.endswith((".zip", ".tar.gz"))


def _members(archive: Path, names: list[str]) -> dict[str, Path]:
    """Extract the files with these names, plain or compressed, from an archive, and nothing else."""
    wanted = {name + suffix: name for name in names for suffix in OPENERS}
    taken: dict[str, Path] = {}
    try:
        for member, file in _files_of(archive):
            name = wanted.get(PurePosixPath(member).name)
            if name is not None and name not in taken:
                taken[name] = archive.parent / PurePosixPath(member).name
                with taken[name].open("wb") as out:
                    shutil.copyfileobj(file, out)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise Failed(f"the downloaded archive is incomplete ({error})") from error
    for name in names:
        if name not in taken:
            raise Failed(f"there is no {name} in this archive")
    return taken


def _files_of(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The regular files in an archive, each open for reading until the next one is requested."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if not info.is_dir():
                    with zipped.open(info) as file:
                        yield info.filename, file
        return
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            if member.isfile() and (content := tar.extractfile(member)):
                yield member.name, content
