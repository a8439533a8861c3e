"""A whole federation on this machine, for tests and trials: real processes, sockets and certificates.

Each part is what an organisation would start: a server of the carrier, and at every site `proxfed silo` with its own
kit. Only the addresses are local.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from proxfed import files
from proxfed.errors import InputError, RunError
from proxfed.silos.carriers.supervise import Kept

HOST = "localhost"
ADMIN = "deploy@localhost.org"

Starts = dict[str, tuple[list[str], dict[str, str]]]
"""(command, additional environment) by the name of the site that runs it."""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Loopback:
    """The carrier's server and the sites' residents, kept running until the end; `dispatch` sends couriers.

    silo     the command that runs at a site, without the carrier's arguments
    """

    def __init__(self, folder: Path, sites: Sequence[str], carrier: str, silo: Callable[[str], list[str]]) -> None:
        self.folder, self.sites, self.carrier, self.silo = folder.resolve(), tuple(sites), carrier, silo
        self.kept: dict[str, Kept] = {}
        self.kit: Path | None = None
        """The administrator's kit, if the carrier has one."""
        self._stack = ExitStack()

    def __enter__(self) -> Loopback:
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            starts = {"nvflare": self._nvflare, "flower": self._flower}[self.carrier]()
            for name, (command, environment) in starts.items():
                whole = name == "server" and self.carrier == "flower"
                kept = Kept(command, self.folder / "logs" / f"{name}.log", self.environment | environment, whole)
                self.kept[name] = stack.enter_context(kept)
                if name == "server":
                    self._wait_for_server()
            if self.carrier == "flower":
                self._register()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def environment(self) -> dict[str, str]:
        """For all processes: a separate home folder, so that no user's settings are read or changed."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        home = {"HOME": str(self.folder / "home"), "FLWR_HOME": str(self.folder / "flower")}
        return {**home, "PATH": path, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}

    def _wait_for_server(self, patience: float = 60.0) -> None:
        end = time.monotonic() + patience
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            except OSError:
                if time.monotonic() > end:
                    raise RunError(f"the server did not start: see {self.kept['server'].log}") from None
                time.sleep(0.2)

    # ---- NVIDIA FLARE -------------------------------------------------------------------------------------------

    def _nvflare(self) -> Starts:
        from proxfed.silos.carriers.nvflare_kits import prepare

        kits = self.folder / "nvflare" / "proxfed" / "prod_00"
        self.kit = kits / ADMIN
        if not kits.exists():
            (self.port,) = free_ports(1)
            provision(self.folder, self.sites, self.port)
        self.port = json.loads((kits / HOST / "startup" / "fed_server.json").read_text())["servers"][0]["admin_port"]
        prepare(kits / HOST)
        starts: Starts = {"server": (["bash", str(kits / HOST / "startup" / "sub_start.sh"), "--once"], {})}
        for site in self.sites:
            starts[site] = ([*self.silo(site), "--carrier", "nvflare", "--kit", str(kits / site)], {})
        return starts

    # ---- Flower -------------------------------------------------------------------------------------------------

    def _flower(self) -> Starts:
        here = self.folder / "flower"
        note = here / "ports.json"
        if not note.exists():
            here.mkdir(exist_ok=True)
            certificates(here, self.sites)
            files.write(note, json.dumps(free_ports(1 + len(self.sites))))  # last: everything else is there
        self.port, *ports = json.loads(note.read_text())
        connection = f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{here / "ca.crt"}"\n'
        files.write(here / "config.toml", f'[superlink]\ndefault = "loopback"\n[superlink.loopback]\n{connection}')
        program = str(Path(sys.executable).with_name("flower-superlink"))
        tls = ["--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key", "--ssl-ca-certfile", "ca.crt"]
        tls = [str(here / word) if "." in word else word for word in tls]
        own = ["--enable-supernode-auth", "--disable-runtime-dependency-installation", "--database", str(here / "db")]
        starts: Starts = {"server": ([program, "--port", str(self.port), *tls, *own], {})}
        for site, port in zip(self.sites, ports, strict=True):
            link = ["--superlink", f"127.0.0.1:{self.port}", "--root-certificates", str(here / "ca.crt")]
            key = ["--auth-supernode-private-key", str(here / f"{site}.key"), "--port", str(port)]
            starts[site] = ([*self.silo(site), "--carrier", "flower", "--", *link, *key], {})
        return starts

    def _register(self) -> None:
        here = self.folder / "flower"
        for site in self.sites:
            done = here / f"{site}.registered"
            if not done.exists():
                command = ["flwr", "supernode", "register", str(here / f"{site}.pub"), "loopback", "--name", site]
                _run([str(Path(sys.executable).with_name(command[0])), *command[1:]], self.environment)
                done.touch()


def provision(folder: Path, sites: Sequence[str], port: int) -> Path:
    """Makes kits of NVIDIA FLARE for a local server, the sites and an administrator; returns their folder."""
    people = [{"name": HOST, "type": "server", "org": "loopback", "fed_learn_port": port}]
    people += [{"name": site, "type": "client", "org": "loopback"} for site in sites]
    people += [{"name": ADMIN, "type": "admin", "org": "loopback", "role": "project_admin"}]
    lighter = "nvflare.lighter.impl."
    builders = [
        {"path": lighter + "workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
        {"path": lighter + "static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
        {"path": lighter + "cert.CertBuilder"},
        {"path": lighter + "signature.SignatureBuilder"},
    ]
    project = {"api_version": 3, "name": "proxfed", "description": "loopback", "participants": people}
    file = folder / "project.yml"
    files.write(file, json.dumps(project | {"builders": builders}), folders=True)  # JSON is YAML
    program = str(Path(sys.executable).with_name("nvflare"))
    _run([program, "provision", "-p", str(file), "-w", str(folder / "nvflare")], {"HOME": str(folder / "home")})
    return folder / "nvflare" / "proxfed" / "prod_00"


def certificates(folder: Path, sites: Sequence[str], days: float = 30.0) -> None:
    """For Flower: a certificate of the SuperLink, signed by our own authority, and a key pair for every site."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    pem, openssh = serialization.Encoding.PEM, serialization.Encoding.OpenSSH

    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])

    def private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
        return key.private_bytes(pem, form, serialization.NoEncryption())

    def signed(subject: str, key: ec.EllipticCurvePrivateKey, ca: bool) -> bytes:
        made = (
            x509.CertificateBuilder(name("proxfed loopback"), name(subject), key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=max(1.0, 1.0 - days)))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        here = [x509.DNSName(HOST), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        if not ca:
            made = made.add_extension(x509.SubjectAlternativeName(here), critical=False)
        return made.sign(authority, hashes.SHA384()).public_bytes(pem)

    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    contents = {"ca.crt": signed("proxfed loopback", authority, ca=True), "server.crt": signed(HOST, server, ca=False)}
    contents["server.key"] = private(server, serialization.PrivateFormat.PKCS8)
    for site in sites:
        key = ec.generate_private_key(ec.SECP384R1())
        contents[f"{site}.key"] = private(key, serialization.PrivateFormat.OpenSSH)
        contents[f"{site}.pub"] = key.public_key().public_bytes(openssh, serialization.PublicFormat.OpenSSH)
    for file, content in contents.items():
        with os.fdopen(os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
            f.write(content)


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except FileNotFoundError as e:
        raise InputError(f"there is no {command[0]}: is the carrier installed?") from e
    if done.returncode != 0:
        raise RunError(f"{Path(command[0]).name} {command[1]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
