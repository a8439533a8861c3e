"""NVIDIA FLARE as the carrier: a job of its Collab API for every site, which stays and carries questions.

No code travels: a job names two classes of this file, and the kits of sites and server say that these may run and that
code may not be sent along (`prepare`; `python -m proxfed.silos.nvflare_carrier KIT` for the server's).

The processes of a job are couriers only. The holder (`proxfed silo`) and the coordinator (`proxfed deploy`) have
processes of their own on the same machines, so that no job that is killed, and none that is sent again, can hurt them.
There is a job for each site, so that one that fails disturbs no other.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from proxfed.errors import InputError, require
from proxfed.silos.desk import carry
from proxfed.silos.resident import SOCKET, ask_here

try:
    from nvflare.collab import collab
except ImportError as e:
    raise InputError("the carrier 'nvflare' needs NVIDIA FLARE: pip install 'proxfed[nvflare]'") from e

HERE = "proxfed.silos.nvflare_carrier."
CLASSES = [HERE + "AtSite", HERE + "AtServer", "nvflare.collab.runtime.executor.CollabExecutor"]
CLASSES += ["nvflare.collab.runtime.controller.CollabController"]

AT_IT = 3.0
"""Seconds after which a site whose holder still computes says so; one that says nothing for longer is gone."""

SLOWEST = 1e5
"""Bytes per second that a link carries at least."""


class AtSite:
    """In the site's job process."""

    def __init__(self) -> None:
        _without_torch()
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
        _without_torch()
        self.socket = socket

    @collab.main
    def run(self) -> None:
        (site,) = collab.clients
        carry(Path(self.socket), site.name, lambda question: _answer(site, question))


def _without_torch() -> None:
    """To carry tensors the engine would import torch, which is most of the time that a job takes to start."""
    sys.modules.setdefault("nvflare.app_opt.pt.decomposers", None)  # type: ignore[arg-type]


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

    def sites(self) -> tuple[str, ...]:
        """All that are connected now."""
        with self._session() as session:
            return tuple(sorted(client.name for client in session.get_connected_client_list()))

    def __call__(self, site: str, socket: Path) -> None:
        name = f"proxfed-{self.run}-{site}"
        with self._session() as session, tempfile.TemporaryDirectory() as folder:
            for job in session.list_jobs(name_prefix=name):
                if not str(job["status"]).startswith("FINISHED"):
                    with suppress(Exception):  # a server that was killed takes its jobs of then for running
                        session.abort_job(job["job_id"])
            session.submit_job(str(_job(Path(folder) / "job", name, site, socket)))

    @contextmanager
    def _session(self) -> Iterator[Any]:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        try:
            with self.lock, redirect_stdout(io.StringIO()):  # the session prints
                session = new_secure_session(self.kit.name, str(self.kit), timeout=10.0)
                try:
                    yield session
                finally:
                    session.close()
        except Exception as e:  # of many kinds, among them bare ones
            raise ConnectionError(f"NVIDIA FLARE takes no job: {e}") from e


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


# ---- the kits of sites and of the server ----------------------------------------------------------------------------


def at_site(kit: Path, socket: Path) -> tuple[list[str], dict[str, str]]:
    """The command, and what to add to its environment, that connects this site and keeps it connected."""
    start = kit / "startup" / "sub_start.sh"
    require(start.is_file(), f"{kit} is not the kit of a site: there is no {start}")
    prepare(kit)
    return ["bash", str(start), "--once"], {SOCKET: str(socket.resolve()), "PATH": _path()}


def _path() -> str:
    """The kit's scripts start `python3`: it is this one."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def prepare(kit: Path) -> None:
    """Our classes may run here, nothing else, and no code may be sent along. What a kit says itself is left alone."""
    local = kit / "local"
    resources, rights = local / "resources.json", local / "authorization.json"
    if not resources.exists():
        said = json.loads((local / "resources.json.default").read_text())
        said |= {"class_allow_list": CLASSES, "allow_log_streaming": False}  # a site's logs are its own
        for part in said.get("components", ()):
            if part["id"] == "job_scheduler":
                part["args"]["max_jobs"] = 1000  # there is one for every site
            if part["id"] == "job_manager":
                part["args"]["uri_root"] = str(kit.resolve() / "jobs")
        if "snapshot_persistor" in said:
            said["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit.resolve() / "snapshots")
        resources.write_text(json.dumps(said, indent=1))
    if not rights.exists():
        said = json.loads((local / "authorization.json.default").read_text())
        roles = said["permissions"]
        every = sorted({right for permitted in roles.values() if isinstance(permitted, dict) for right in permitted})
        for role, permitted in roles.items():
            given = permitted if isinstance(permitted, dict) else dict.fromkeys(every, permitted)
            roles[role] = given | {"byoc": "none", "shell_commands": "none"}
        rights.write_text(json.dumps(said, indent=1))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        prepare(Path(name))
