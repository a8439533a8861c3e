"""NVIDIA FLARE as the carrier: a job of its Collab API for every site, which stays and carries questions.

No code travels: a job names two classes of this file, which the sites and the server must have on their own lists of
allowed classes (`allow`). The processes of a job are couriers only. The holder (`proxfed silo`) and the coordinator
(`proxfed deploy`) are processes of their own on the same machines, so that no job that is killed, and none that is sent
again, can hurt them. A job for each site, so that one that fails disturbs no other.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from proxfed.errors import InputError, require
from proxfed.silos.desk import carry
from proxfed.silos.resident import ask_here

try:
    from nvflare.collab import collab
except ImportError as e:
    raise InputError("the carrier 'nvflare' needs NVIDIA FLARE: pip install 'proxfed[nvflare]'") from e

HERE = "proxfed.silos.nvflare_carrier."
CLASSES = [HERE + "AtSite", HERE + "AtServer", "nvflare.collab.runtime.executor.CollabExecutor"]
CLASSES += ["nvflare.collab.runtime.controller.CollabController"]

AT_IT = 5.0
"""Seconds after which a site whose holder still computes says so; one that says nothing for longer is gone."""

SLOWEST = 1e5
"""Bytes per second that a link carries at least."""


class AtSite:
    """In the site's job process."""

    def __init__(self) -> None:
        self.asking = ThreadPoolExecutor(1)

    @collab.publish
    def answer(self, question: bytes) -> bytes:
        """Empty if the holder is still at it; an empty question asks for the answer to the last one."""
        if question:
            self.work = self.asking.submit(ask_here, question)
        try:
            return self.work.result(AT_IT)
        except TimeoutError:
            return b""


class AtServer:
    """In the server's job process."""

    def __init__(self, socket: str):
        self.socket = socket

    @collab.main
    def run(self) -> None:
        (site,) = collab.clients
        carry(Path(self.socket), site.name, lambda question: _answer(site, question))


def _answer(site: Any, question: bytes) -> bytes:
    patience = 3 * AT_IT + len(question) / SLOWEST
    answer = site(timeout=patience).answer(question)
    while not answer:
        answer = site(timeout=patience).answer(b"")
    return bytes(answer)


# ---- jobs -----------------------------------------------------------------------------------------------------------


class Flare:
    """Sends couriers: submits a job for a site as the user whose kit this is; at most one job of a site runs."""

    def __init__(self, kit: Path, run: str):
        startup = kit / "startup" / "fed_admin.json"
        require(startup.is_file(), f"{kit} is not the kit of an administrator: there is no {startup}")
        self.kit, self.run = kit.resolve(), run
        self.lock = threading.Lock()

    def __call__(self, site: str, socket: Path) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        name = f"proxfed-{self.run}-{site}"
        try:
            with self.lock, redirect_stdout(sys.stderr):  # the session prints
                session = new_secure_session(self.kit.name, str(self.kit), timeout=10.0)
                try:
                    for job in session.list_jobs(name_prefix=name):
                        if not str(job["status"]).startswith("FINISHED"):
                            session.abort_job(job["job_id"])
                    with tempfile.TemporaryDirectory() as folder:
                        session.submit_job(str(_job(Path(folder) / "job", name, site, socket)))
                finally:
                    session.close()
        except Exception as e:  # of many kinds, among them bare ones
            raise ConnectionError(f"NVIDIA FLARE took no job: {e}") from e


def _job(folder: Path, name: str, site: str, socket: Path) -> Path:
    """A job as files: what stands there is all that travels."""
    collab_args = {"collab_obj_ids": [], "props": {}}
    server = {"id": "_server", "path": HERE + "AtServer", "args": {"socket": str(socket.resolve())}}
    client = {"id": "_client", "path": HERE + "AtSite", "args": {}}
    controller = {"path": CLASSES[3], "args": {"server_obj_id": "_server", **collab_args}}
    executor = {"path": CLASSES[2], "args": {"client_obj_id": "_client", **collab_args}}
    files = {
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
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
    return folder


# ---- a site's and a server's kits -----------------------------------------------------------------------------------


def allow(kit: Path) -> None:
    """Writes into the kit of a site, or of the server, that our classes may run, and that no code may be sent along."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_allow_list"] = [*resources["class_allow_list"], *CLASSES]
    rights = json.loads((local / "authorization.json.default").read_text())
    every = {right for permitted in rights["permissions"].values() if isinstance(permitted, dict) for right in permitted}
    for role, permitted in rights["permissions"].items():
        given = permitted if isinstance(permitted, dict) else dict.fromkeys(sorted(every), permitted)
        rights["permissions"][role] = given | {"byoc": "none"}
    (local / "resources.json").write_text(json.dumps(resources, indent=1))
    (local / "authorization.json").write_text(json.dumps(rights, indent=1))
