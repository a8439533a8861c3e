"""Downloads from a server on this machine: what arrives whole and right gets its name, all else leaves no trace."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from proxfed import data
from proxfed.data.directory import Collection, Sum
from proxfed.data.downloads import Arrival, download
from proxfed.errors import InputError, RunError

CONTENT = {"train": b"many samples " * 20_000, "test": b"few samples"}
SUMS = {name: Sum(hashlib.sha256(content).hexdigest()) for name, content in CONTENT.items()}


class Answer(NamedTuple):
    body: bytes
    status: int = 200
    promised: int | None = None


class Server(NamedTuple):
    """What it answers to each path, and the paths that were asked for."""

    url: str
    answers: dict[str, Answer]
    asked: list[str]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    answers: dict[str, Answer] = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answer = answers.get(self.path, Answer(b"not here", 404))
            self.send_response(answer.status)
            self.send_header("Content-Length", str(answer.promised or len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Server(f"http://127.0.0.1:{http.server_port}", answers, asked)
        http.shutdown()
        thread.join()


def collection(url: str) -> Collection:
    return Collection(("things", "elsewhere"), "the page of things", SUMS, url=url)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(files: Collection, directory: Path) -> str:
    with pytest.raises(RunError) as error:
        download(files, directory)
    said = str(error.value)
    assert "\n" not in said
    assert error.value.exit_code == 1
    return said


def tar_gz(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


# ---- what goes well -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress)])
def test_files_arrive_as_they_are_published(tmp_path: Path, server: Server, suffix: str, pack) -> None:
    packed = {f"{name}{suffix}": pack(content) for name, content in CONTENT.items()}
    server.answers.update({f"/here/{name}": Answer(body) for name, body in packed.items()})
    files = collection(server.url + "/here/{name}" + suffix)
    arrivals = download(files, tmp_path)
    assert arrivals == [Arrival(tmp_path / "things" / name, "fetched") for name in packed]
    assert files_in(tmp_path) == {f"things/{name}": body for name, body in packed.items()}
    assert [state for _, state in files.check(tmp_path)] == ["as published"] * 2


def test_what_is_there_and_right_is_not_fetched_again(tmp_path: Path, server: Server) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "train.gz").write_bytes(gzip.compress(CONTENT["train"]))
    server.answers["/test"] = Answer(CONTENT["test"])
    files = collection(server.url + "/{name}")
    states = {path.name: state for path, state in download(files, tmp_path)}
    assert states == {"train.gz": "was there", "test": "fetched"}
    assert server.asked == ["/test"]
    assert {state for _, state in download(files, tmp_path)} == {"was there"}
    assert server.asked == ["/test"]


@pytest.mark.parametrize(("name", "pack"), [("all.tar.gz", tar_gz), ("all.zip", zipped)])
def test_archives_are_fetched_once_and_only_what_is_wanted_comes_out(
    tmp_path: Path, server: Server, name: str, pack
) -> None:
    inside = {
        "folder/readme.html": b"hello",
        "folder/train": CONTENT["train"],
        "../../test.gz": gzip.compress(CONTENT["test"], mtime=0),
    }
    server.answers[f"/{name}"] = Answer(pack(inside))
    download(collection(f"{server.url}/{name}"), tmp_path / "data")
    assert files_in(tmp_path) == {
        "data/things/train": CONTENT["train"],
        "data/things/test.gz": inside["../../test.gz"],
    }
    assert server.asked == [f"/{name}"]


def test_progress_counts_every_byte(tmp_path: Path, server: Server) -> None:
    server.answers.update({f"/{name}": Answer(content) for name, content in CONTENT.items()})
    heard: dict[str, list[tuple[int, int | None]]] = {}
    download(
        collection(server.url + "/{name}"), tmp_path, lambda file, *so_far: heard.setdefault(file, []).append(so_far)
    )
    assert heard.keys() == CONTENT.keys()
    for name, told in heard.items():
        assert told == sorted(told)
        assert told[-1] == (len(CONTENT[name]), len(CONTENT[name]))
    assert len(heard["train"]) > 1


def test_a_dataset_is_fetched_by_its_name(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers.update({f"/{name}": Answer(content) for name, content in CONTENT.items()})
    monkeypatch.setitem(data.FILES, "a9a", (collection(server.url + "/{name}"),))
    assert [state for _, state in data.fetch("a9a", tmp_path)] == ["fetched"] * 2
    assert [state for _, state in data.check("a9a", tmp_path)] == ["as published"] * 2
    with pytest.raises(InputError, match="did you mean 'mnist'"):
        data.fetch("minst", tmp_path)


# ---- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(b"many samples, but others"), "does not have the published checksum"),
        (Answer(b""), "does not have the published checksum"),
        (Answer(b"gone", 404), "the server says 404 Not Found"),
        (Answer(b"later", 503), "the server says 503"),
        (
            Answer(CONTENT["train"][:100_000], promised=len(CONTENT["train"])),
            "the connection ended after 100,000 of 260,000 bytes",
        ),
    ],
    ids=["wrong sum", "empty", "404", "503", "cut short"],
)
def test_a_refusal_says_which_file_from_where_and_where_to(
    tmp_path: Path, server: Server, answer: Answer, reason: str
) -> None:
    server.answers["/train"] = answer
    said = refusal(collection(server.url + "/{name}"), tmp_path)
    for part in ("train", f"{server.url}/train", reason, "the page of things", str(tmp_path / "things")):
        assert part in said
    assert files_in(tmp_path) == {}, "nothing is left behind"
    assert list((tmp_path / "things").iterdir()) == []


def test_files_that_arrived_before_one_fails_are_kept(tmp_path: Path, server: Server) -> None:
    server.answers["/train"] = Answer(CONTENT["train"])
    files = collection(server.url + "/{name}")
    assert "cannot fetch test from" in refusal(files, tmp_path)
    assert files_in(tmp_path) == {"things/train": CONTENT["train"]}
    server.answers["/test"] = Answer(CONTENT["test"])
    download(files, tmp_path)
    assert server.asked == ["/train", "/test", "/test"]


def test_a_connection_that_nobody_answers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        said = refusal(collection(f"http://127.0.0.1:{taken.getsockname()[1]}/{{name}}"), tmp_path)
    assert "Connection refused" in said


def test_a_server_that_falls_silent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("proxfed.data.downloads.SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        said = refusal(collection(f"http://127.0.0.1:{mute.getsockname()[1]}/{{name}}"), tmp_path)
    assert "timed out" in said


@pytest.mark.parametrize(
    ("name", "body", "reason"),
    [
        ("all.tar.gz", tar_gz(CONTENT)[:-30], "archive is incomplete"),
        ("all.tar.gz", b"<html>sign in first</html>", "archive is incomplete"),
        ("all.zip", zipped(CONTENT)[:-30], "archive is incomplete"),
        ("all.zip", zipped({"train": CONTENT["train"]}), "there is no test in this archive"),
        ("all.tar.gz", tar_gz({"train": CONTENT["train"], "test": b"others"}), "does not have the published checksum"),
    ],
    ids=["tar cut short", "no tar", "zip cut short", "member missing", "member wrong"],
)
def test_a_damaged_archive_leaves_no_trace(tmp_path: Path, server: Server, name: str, body: bytes, reason: str) -> None:
    server.answers[f"/{name}"] = Answer(body)
    said = refusal(collection(f"{server.url}/{name}"), tmp_path)
    assert reason in said
    assert "train, test" in said
    assert files_in(tmp_path) == {}


def test_a_file_of_the_user_that_differs_is_not_overwritten(tmp_path: Path, server: Server) -> None:
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "train").write_bytes(b"my own")
    said = refusal(collection(server.url + "/{name}"), tmp_path)
    assert str(tmp_path / "things" / "train") in said
    assert files_in(tmp_path) == {"things/train": b"my own"}
    assert server.asked == []


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path, server: Server) -> None:
    (tmp_path / "things").write_bytes(b"a file where the folder should be")
    assert f"cannot write to {tmp_path / 'things'}" in refusal(collection(server.url + "/{name}"), tmp_path)


# ---- the real addresses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", data.FILES)
def test_every_public_file_has_an_address_of_its_own_or_in_an_archive(name: str) -> None:
    for files in data.FILES[name]:
        urls = [files.url.format(name=file) for file in files.sums]
        archive = files.url.endswith((".zip", ".tar.gz"))
        assert len(set(urls)) == (1 if archive else len(files.sums))
        assert all(url.startswith(("https://", "http://")) for url in urls)


def test_a_missing_file_says_how_to_fetch_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`proxfed data fetch` downloads it"):
        data.load("mnist", directory=tmp_path)
