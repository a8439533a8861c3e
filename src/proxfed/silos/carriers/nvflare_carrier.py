"""NVIDIA FLARE as the carrier: a long-running job of its Collab API per site, which carries questions.

No code is sent: a job names two classes of this file, and the kits of sites and server (nvflare_kits.py) allow these
and forbid code in jobs.

The processes of a job are couriers only. The holder (`proxfed silo`) and the coordinator (`proxfed deploy`) are
separate processes on the same machines, so that a job that is killed or submitted again does no harm to them. Each site
has its own job, so that a failing job does not affect the other sites.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from proxfed import files
from proxfed.errors import InputError, RunError, require
from proxfed.silos.carriers.desk import carry
from proxfed.silos.carriers.nvflare_kits import AT_SERVER, AT_SITE, CONTROLLER, EXECUTOR, MISSING
from proxfed.silos.carriers.resident import ask_here

try:
    from nvflare.collab import collab
except ImportError as e:
    raise InputError(MISSING) from e

AT_IT = 3.0
"""Seconds between the signs of life of a site whose holder computes; a site silent for longer is gone."""

PIECE = 1 << 19
"""Bytes of an answer per call, so that no call takes long."""

SLOWEST = 1e5
"""The lowest throughput of a link, in bytes per second."""


class AtSite:
    """In the site's job process."""

    def __init__(self) -> None:
        _without_torch()
        self.asking = ThreadPoolExecutor(1)

    @collab.publish
    def ask(self, question: bytes) -> bytes:
        """The first piece of the answer, or nothing if it is not ready; an empty question polls for it again."""
        if question:
            self.work = self.asking.submit(ask_here, question)
        return self.piece(0) if wait([self.work], AT_IT).done else b""

    @collab.publish
    def piece(self, begin: int) -> bytes:
        """The piece of the answer from `begin` on."""
        return self.work.result()[begin : begin + PIECE]


class AtServer:
    """In the server's job process."""

    def __init__(self, socket: str):
        _without_torch()
        self.socket = socket

    @collab.main
    def run(self) -> None:
        (site,) = collab.clients
        carry(Path(self.socket), site.name, lambda question: _answer(site, question))


def _without_torch() -> None:
    """Keeps the engine from importing torch, which would take most of a job's start time."""
    sys.modules.setdefault("nvflare.app_opt.pt.decomposers", None)  # type: ignore[arg-type]


def _answer(site: Any, question: bytes) -> bytes:
    patience = 3 * AT_IT + PIECE / SLOWEST
    answer = piece = site(timeout=patience + len(question) / SLOWEST).ask(question)
    while not piece:
        answer = piece = site(timeout=patience).ask(b"")
    while len(piece) == PIECE:
        piece = site(timeout=patience).piece(len(answer))
        answer += piece
    return bytes(answer)


# ---- jobs -----------------------------------------------------------------------------------------------------------


class Flare:
    """Sends couriers: submits a job for a site as the user whose kit this is; at most one job of a site runs.

    The engine's session may hang for ever when a network fails, so it runs in a separate process, for a minute.
    """

    def __init__(self, kit: Path, run: str):
        startup = kit / "startup" / "fed_admin.json"
        require(startup.is_file(), f"{kit} is not the kit of an administrator: there is no {startup}")
        self.kit, self.run = kit.resolve(), run

    def sites(self) -> tuple[str, ...]:
        """All sites that are connected now."""
        try:
            found = tuple(json.loads(self._in_a_session("sites")))
        except OSError as e:
            raise RunError(str(e)) from e
        if not found:
            raise RunError("no site is connected to NVIDIA FLARE; --sites A,B,... waits for these")
        return found

    def __call__(self, site: str, socket: Path) -> None:
        self._in_a_session("submit", f"proxfed-{self.run}-{site}", site, str(socket.resolve()))

    def _in_a_session(self, *words: str) -> str:
        command = [sys.executable, "-m", "proxfed.silos.carriers.nvflare_carrier", str(self.kit), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60.0)
        except subprocess.TimeoutExpired:
            raise ConnectionError("the server of NVIDIA FLARE does not answer") from None
        if done.returncode != 0:
            why = (done.stderr.strip() or "it does not say why").splitlines()[-1]
            raise ConnectionError(f"the server of NVIDIA FLARE does nothing for us: {why}")
        return done.stdout.strip().splitlines()[-1]


def _session(kit: Path, what: str, *words: str) -> str:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    session = new_secure_session(kit.name, str(kit), timeout=10.0)
    if what == "sites":
        return json.dumps(sorted(client.name for client in session.get_connected_client_list()))
    name, site, socket = words
    for job in session.list_jobs(name_prefix=name):
        if not str(job["status"]).startswith("FINISHED"):
            with suppress(Exception):  # a server that was killed believes that its old jobs still run
                session.abort_job(job["job_id"])
    with tempfile.TemporaryDirectory() as folder:
        return session.submit_job(str(_job(Path(folder) / "job", name, site, Path(socket))))


def _job(folder: Path, name: str, site: str, socket: Path) -> Path:
    """A job as files; nothing else is sent."""
    collab_args: dict[str, Any] = {"collab_obj_ids": [], "props": {}}
    server = {"id": "_server", "path": AT_SERVER, "args": {"socket": str(socket.resolve())}}
    client = {"id": "_client", "path": AT_SITE, "args": {}}
    controller = {"path": CONTROLLER, "args": {"server_obj_id": "_server", **collab_args}}
    executor = {"path": EXECUTOR, "args": {"client_obj_id": "_client", **collab_args}}
    contents = {
        "meta.json": {
            "name": name, "min_clients": 1, "mandatory_clients": [site], "resource_spec": {},
            "deploy_map": {"at_server": ["server"], "at_site": [site]},
        },
        "at_server/config/config_fed_server.json": {
            "format_version": 2, "workflows": [{"id": "controller", **controller}], "components": [server],
        },
        "at_site/config/config_fed_client.json": {
            "format_version": 2, "executors": [{"tasks": ["*"], "executor": executor}], "components": [client],
        },
    }  # fmt: skip
    for path, content in contents.items():
        files.write(folder / path, json.dumps(content), folders=True)
    return folder


if __name__ == "__main__":
    print(_session(Path(sys.argv[1]), *sys.argv[2:]), flush=True)
    os._exit(0)  # do not wait for the session's threads
