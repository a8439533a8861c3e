"""The kits of NVIDIA FLARE: the configuration of sites and server, and how a site is connected.

`python -m proxfed.silos.carriers.nvflare_kits KIT` prepares the server's; `proxfed silo` does the same with its own.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from proxfed import files
from proxfed.errors import require
from proxfed.silos.carriers.resident import SOCKET

MISSING = "the carrier 'nvflare' needs NVIDIA FLARE: pip install 'proxfed[nvflare]'"

AT_SITE = "proxfed.silos.carriers.nvflare_carrier.AtSite"
AT_SERVER = "proxfed.silos.carriers.nvflare_carrier.AtServer"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
CONTROLLER = "nvflare.collab.runtime.controller.CollabController"


def at_site(kit: Path, socket: Path) -> tuple[list[str], dict[str, str]]:
    """(command, additional environment) that connects this site and keeps it connected."""
    require(find_spec("nvflare") is not None, MISSING)
    start = kit / "startup" / "sub_start.sh"
    require(start.is_file(), f"{kit} is not the kit of a site: there is no {start}")
    prepare(kit)
    return ["bash", str(start), "--once"], {SOCKET: str(socket.resolve()), "PATH": _path()}


def _path() -> str:
    """A PATH on which `python3`, which the kit's scripts start, is this interpreter."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def prepare(kit: Path) -> None:
    """Only our classes may run here, and jobs must not bring code. Other settings of the kit are left unchanged."""
    local = kit / "local"
    resources, rights = local / "resources.json", local / "authorization.json"
    if not resources.exists():
        said = json.loads((local / "resources.json.default").read_text())
        said["class_allow_list"] = [AT_SITE, AT_SERVER, EXECUTOR, CONTROLLER]
        said["allow_log_streaming"] = False  # a site's logs are its own
        for part in said.get("components", ()):
            if part["id"] == "job_scheduler":
                part["args"]["max_jobs"] = 1000  # one per site
            if part["id"] == "job_manager":
                part["args"]["uri_root"] = str(kit.resolve() / "jobs")
        if "snapshot_persistor" in said:
            said["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit.resolve() / "snapshots")
        files.write(resources, json.dumps(said, indent=1))
    if not rights.exists():
        said = json.loads((local / "authorization.json.default").read_text())
        roles = said["permissions"]
        every = sorted({right for permitted in roles.values() if isinstance(permitted, dict) for right in permitted})
        for role, permitted in roles.items():
            given = permitted if isinstance(permitted, dict) else dict.fromkeys(every, permitted)
            roles[role] = given | {"byoc": "none", "shell_commands": "none"}
        files.write(rights, json.dumps(said, indent=1))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        prepare(Path(name))
