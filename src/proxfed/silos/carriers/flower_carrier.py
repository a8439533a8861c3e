"""Flower as the carrier, if a SuperLink already exists: one run per site, whose ServerApp carries questions.

No code is sent: the app is one pyproject.toml, which names two objects of this file. Flower starts a process for every
message; it only passes the message to the holder's own process. The SuperLink identifies a node by the name with which
its key was registered (`flwr supernode register KEY --name SITE`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w

from proxfed import files
from proxfed._version import __version__
from proxfed.errors import InputError
from proxfed.silos.carriers.desk import carry
from proxfed.silos.carriers.resident import ask_here

try:
    from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as e:
    raise InputError("the carrier 'flower' needs Flower: pip install 'proxfed[flower]'") from e

LOOK = 0.5
"""Seconds between two polls for a reply."""

LIFE = 5.0
"""Seconds between two checks whether the node has restarted."""

SILENCE = 40.0
"""Seconds without a reply after which a question is sent again; the delay then doubles."""

client = ClientApp()
server = ServerApp()


@client.query()
def _at_site(message: Message, context: Context) -> Message:
    """Runs in a process per message. The holder's socket is a setting of the node, not of the run."""
    question = _read(message.content)
    return Message(_packed(ask_here(question, Path(str(context.node_config["socket"])))), reply_to=message)


@server.main()
def _at_server(grid: Grid, context: Context) -> None:
    site = str(context.run_config["site"])
    carry(Path(str(context.run_config["socket"])), site, lambda question: _answer(grid, site, question))


def _answer(grid: Grid, site: str, question: bytes) -> bytes:
    """The site's answer; the question is sent again if the node restarts, which loses it, or is silent for long."""
    sent: list[str] = []
    begun, looked, due, pause = "", -LIFE, 0.0, SILENCE
    while True:
        if time.monotonic() - looked > LIFE:
            looked = time.monotonic()
            for node in grid.get_nodes():
                fresh = node.last_activated_at != begun
                if node.name == site and (fresh or looked > due):
                    message = Message(_packed(question), message_type="query", dst_node_id=node.node_id)
                    sent += [name for name in grid.push_messages([message]) if name]
                    pause = SILENCE if fresh else 2 * pause
                    begun, due = node.last_activated_at, looked + pause
        for reply in grid.pull_messages(sent) if sent else ():
            if not reply.has_error():
                return _read(reply.content)
            sent.remove(reply.metadata.reply_to_message_id)
            due = 0.0
        time.sleep(LOOK)


def _packed(content: bytes) -> RecordDict:
    return RecordDict({"bytes": ArrayRecord({"bytes": Array("uint8", (len(content),), "proxfed", content)})})


def _read(content: RecordDict) -> bytes:
    return bytes(content.array_records["bytes"]["bytes"].data)


# ---- runs -----------------------------------------------------------------------------------------------------------


class Runs:
    """Sends couriers: starts a run for a site at the SuperLink with this name in Flower's own configuration."""

    def __init__(self, superlink: str, run: str):
        self.superlink, self.run = superlink, run
        self.lock = threading.Lock()

    def sites(self) -> tuple[str, ...]:
        raise InputError("--sites A,B,... is missing: by which names the sites were registered")

    def __call__(self, site: str, socket: Path) -> None:
        name = f"courier-{sha256(f'{self.run} {site}'.encode()).hexdigest()[:12]}"
        with self.lock, tempfile.TemporaryDirectory() as folder:
            for old in self._flwr("list", self.superlink).get("runs", ()):  # also those of a killed coordinator
                if old["fab-name"] == name and not old["status"].startswith("finished"):
                    self._flwr("stop", old["run-id"], self.superlink)
            self._flwr("run", str(_app(Path(folder) / name, site, socket)), self.superlink)

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        command = [_program("flwr"), *arguments, "--format", "json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60.0)
        except subprocess.TimeoutExpired:
            raise ConnectionError("Flower's SuperLink does not answer") from None
        try:
            said = json.loads(done.stdout)
        except ValueError:
            said = {"error-message": done.stderr.strip() or done.stdout.strip()}
        if not said.get("success") and arguments[0] == "run":
            why = str(said.get("error-message") or "it does not say why").splitlines()[-1]
            raise ConnectionError(f"Flower started no run: {why}")
        return said


def _app(folder: Path, site: str, socket: Path) -> Path:
    folder.mkdir()
    here = "proxfed.silos.carriers.flower_carrier:"
    app = {
        "publisher": "proxfed",
        "components": {"serverapp": here + "server", "clientapp": here + "client"},
        "config": {"site": site, "socket": str(socket.resolve())},
    }
    project = {"name": folder.name, "version": __version__, "license": "MIT", "dependencies": []}
    files.write(folder / "pyproject.toml", tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}))
    return folder


def at_site(arguments: Sequence[str], socket: Path) -> tuple[list[str], dict[str, str]]:
    """(command, additional environment) that connects this site and keeps it connected."""
    here = f'socket="{socket.resolve()}"'
    command = [_program("flower-supernode"), *arguments, "--node-config", here]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # it starts other Flower programs
    return command, {"PATH": path, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(LOOK)}


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))
