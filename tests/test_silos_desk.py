"""Questions that stay on the desk until they are answered, whatever happens to those who carry them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from proxfed.errors import InputError, RunError
from proxfed.silos.carriers import desk as module
from proxfed.silos.carriers import local_socket
from proxfed.silos.carriers.desk import Desk, carry
from proxfed.silos.carriers.resident import ask_here, serving
from proxfed.silos.carriers.supervise import Kept

from support.lossy import Lossy

SITES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch):
    monkeypatch.setattr(module, "GRACE", 0.0)


def quietly(sentence: str) -> None:
    pass


class Couriers:
    """Threads that carry; `call` answers for the sites."""

    def __init__(self, call: Callable[[str, bytes], bytes], path: Path | None = None) -> None:
        self.call, self.path, self.sent = call, path, []

    def __call__(self, site: str, path: Path) -> None:
        self.sent.append(site)

        def work() -> None:
            with suppress(RuntimeError):  # it is of no use any more
                carry(self.path or path, site, lambda question: self.call(site, question), patience=5.0)

        threading.Thread(target=work, daemon=True).start()


def test_answers_belong_to_their_questions(tmp_path):
    couriers = Couriers(lambda site, question: site.encode() + question)
    with Desk(SITES, tmp_path / "desk", couriers, quietly) as desk:
        for k in range(20):
            questions = {site: f"{k}{site}".encode() for site in SITES[: 1 + k % 3]}
            assert desk.ask(questions) == {site: site.encode() + q for site, q in questions.items()}
    assert sorted(couriers.sent) == ["a", "b", "c"]  # one for each was enough


def test_a_large_message_arrives_whole(tmp_path):
    couriers = Couriers(lambda site, question: question[::-1])
    data = os.urandom(3_000_000)
    with Desk(SITES, tmp_path / "desk", couriers, quietly) as desk:
        assert desk.ask(dict.fromkeys(SITES, data)) == dict.fromkeys(SITES, data[::-1])


def test_who_misses_the_deadline_is_left_out_and_a_late_answer_is_not_taken_for_the_next(tmp_path):
    slow = threading.Event()

    def call(site: str, question: bytes) -> bytes:
        if site == "b" and question == b"one":
            slow.wait(10)
        return question

    with Desk(SITES, tmp_path / "desk", Couriers(call), quietly) as desk:
        desk.ask(dict.fromkeys(SITES, b"zero"))
        begin = time.monotonic()
        assert set(desk.ask(dict.fromkeys(SITES, b"one"), deadline=0.5)) == {"a", "c"}
        assert time.monotonic() - begin < 3
        slow.set()
        assert desk.ask(dict.fromkeys(SITES, b"two")) == dict.fromkeys(SITES, b"two")


def test_a_courier_who_fails_is_replaced_and_the_question_goes_out_again(tmp_path):
    seen: list[tuple[str, bytes]] = []

    def call(site: str, question: bytes) -> bytes:
        seen.append((site, question))
        if site == "c" and seen.count((site, question)) < 3:
            raise TimeoutError("nobody there")
        return question

    couriers = Couriers(call)
    with Desk(SITES, tmp_path / "desk", couriers, quietly) as desk:
        assert desk.ask(dict.fromkeys(SITES, b"q"), deadline=120) == dict.fromkeys(SITES, b"q")
    assert couriers.sent.count("c") == 3


def test_a_coordinator_that_comes_back_finds_its_couriers(tmp_path):
    path = tmp_path / "desk"
    code = (
        "import sys, time; from pathlib import Path; from proxfed.silos.carriers.desk import Desk\n"
        "with Desk(('a',), Path(sys.argv[1]), lambda site, path: None) as desk:\n"
        "    print(desk.ask({'a': b'1'}), flush=True); time.sleep(60)"
    )
    Couriers(lambda site, question: question + b"!")("a", path)
    first = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "{'a': b'1!'}\n"
    first.kill()
    first.wait()
    first.stdout.close()
    with Desk(("a",), path, lambda site, path: None, quietly) as desk:  # nobody else is sent
        assert desk.ask({"a": b"2"}, deadline=10) == {"a": b"2!"}


def test_frames_that_are_lost_repeated_and_reordered_change_no_answer(tmp_path):
    heard: list[bytes] = []

    def call(site: str, question: bytes) -> bytes:
        heard.append(question)
        return site.encode() + question

    couriers = Couriers(call, tmp_path / "front")
    with (
        Desk(SITES, tmp_path / "desk", couriers, quietly, again=0.1) as desk,
        Lossy(tmp_path / "front", tmp_path / "desk", rate=0.3) as lossy,
    ):
        for k in range(30):
            assert desk.ask(dict.fromkeys(SITES, b"%d" % k)) == {s: s.encode() + b"%d" % k for s in SITES}
    assert min(lossy.done.values()) > 0
    assert len(heard) > 90  # some were heard twice


def test_it_says_for_whom_everybody_waits_and_why(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    said: list[str] = []

    def closed(site: str, path: Path) -> None:
        raise ConnectionError("the server is closed")

    with Desk(("a",), tmp_path / "desk", closed, said.append) as desk:
        assert desk.ask({"a": b"?"}, deadline=0.7) == {}
    assert "for a (the server is closed)" in said[0]
    assert "--resume" in said[0]


def test_a_stranger_is_sent_home(tmp_path):
    with (
        Desk(("a",), tmp_path / "desk", lambda site, path: None, quietly),
        local_socket.connect(tmp_path / "desk") as s,
    ):
        local_socket.send(s, b"mallory")
        assert local_socket.receive(s) == b""


def test_only_this_user_can_open_the_socket(tmp_path):
    with local_socket.listen(tmp_path / "s"):
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600


def test_a_socket_may_have_a_long_path(tmp_path):
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    with serving(deep / "socket", lambda question: question + b"!"):
        assert ask_here(b"hello", deep / "socket") == b"hello!"


def test_a_frame_that_says_it_is_huge_is_no_frame(tmp_path):
    with local_socket.listen(tmp_path / "s") as listening, local_socket.connect(tmp_path / "s") as near:
        far, _ = listening.accept()
        near.sendall(b"\xff" * 16)
        with far, pytest.raises(ConnectionError):
            local_socket.receive(far)


def test_memory_follows_what_comes_and_not_what_is_promised(tmp_path):
    with local_socket.listen(tmp_path / "s") as listening, local_socket.connect(tmp_path / "s") as near:
        far, _ = listening.accept()
        near.sendall((local_socket.LARGEST - 1).to_bytes(8, "big") + b"little")
        near.shutdown(socket.SHUT_WR)
        tracemalloc.start()
        with far, pytest.raises(ConnectionError):
            local_socket.receive(far)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
        tracemalloc.stop()


def test_a_place_where_nobody_can_listen_is_refused():
    with pytest.raises(InputError, match="cannot listen"):
        local_socket.listen(Path("/proc/nowhere"))


def test_a_holder_that_was_away_is_asked_again(tmp_path):
    answers: list[bytes] = []
    asking = threading.Thread(target=lambda: answers.append(ask_here(b"q", tmp_path / "s")))
    asking.start()
    time.sleep(0.3)
    with serving(tmp_path / "s", lambda question: question * 2):
        asking.join(5)
    assert answers == [b"qq"]


def test_where_nothing_may_leave_the_log_says_so_and_the_question_comes_again(tmp_path, caplog):
    fails = ["nothing leaves: the disk is full"]

    def answer(question: bytes) -> bytes:
        if fails:
            raise RunError(fails.pop())
        return question * 2

    with serving(tmp_path / "s", answer):
        assert ask_here(b"q", tmp_path / "s") == b"qq"
    assert [record.getMessage() for record in caplog.records] == ["nothing leaves: the disk is full"]


def _until(true: Callable[[], bool], patience: float = 10.0) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_process_that_is_killed_is_started_again(tmp_path):
    with Kept(
        [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"], tmp_path / "log"
    ) as kept:
        _until(lambda: kept.starts == 1 and kept.process is not None)
        first = kept.process.pid
        os.kill(first, signal.SIGKILL)
        _until(lambda: kept.starts == 2)
        second = kept.process.pid
    for pid in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say whose children have ended")
def test_a_process_that_has_lost_a_child_begins_anew_if_it_is_of_no_use_without(tmp_path):
    code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'pass']); time.sleep(60)"
    with Kept([sys.executable, "-c", code], tmp_path / "log", whole=True) as kept:
        _until(lambda: kept.starts == 2)
    with Kept([sys.executable, "-c", code], tmp_path / "log") as kept:
        _until(lambda: kept.starts == 1)
        time.sleep(1.0)
        assert kept.starts == 1


@pytest.mark.parametrize("own_child", [False, True])
def test_a_kept_process_ends_with_its_keeper_even_if_that_is_killed(tmp_path, own_child):
    inner = "import os,time; open('pid','w').write(str(os.getpid())); time.sleep(60)"
    if own_child:  # and so does what it has started
        inner = f"import subprocess,sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    outer = (
        "import sys,time; from pathlib import Path; from proxfed.silos.carriers.supervise import Kept\n"
        f"Kept([sys.executable, '-c', {inner!r}], Path('log')).start(); time.sleep(60)"
    )
    keeper = subprocess.Popen([sys.executable, "-c", outer], cwd=tmp_path)
    _until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    pid = int((tmp_path / "pid").read_text())
    keeper.kill()
    keeper.wait()

    def gone() -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state == "Z"

    _until(gone)
