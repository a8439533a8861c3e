"""NVIDIA FLARE and Flower themselves: processes, sockets and certificates on this machine (`make test-carriers`)."""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxfed.silos.supervise import Kept

ROOT = Path(__file__).parent.parent
INSTALLED = {"nvflare": "nvflare", "flower": "flwr"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of other people's code
    pytest.mark.skipif(sys.platform != "linux", reason="only there do processes end with their parents"),
]

TRIAL = """
name = "trial"
rounds = {rounds}
data = {{ name = "synthetic_binary", alpha = 1.0, beta = 1.0, clients = 3, samples = 120, features = 20 }}
problem = {{ name = "logistic", l2 = 0.01 }}
regulariser = {{ name = "l1", weight = 0.01 }}
{protection}
[[algorithms]]
name = "fedcomposite"
eta = 1.0
tau = 5
[[algorithms]]
name = "fedcef"
alpha = 0.5
K = 5
compressor = {{ name = "{compressor}" }}
"""
PEERS = """
[[algorithms]]
name = "depositum"
alpha = 0.3
T0 = 2
topology = { name = "ring" }
"""


def needs(carrier: str) -> None:
    if importlib.util.find_spec(INSTALLED[carrier]) is None:
        pytest.skip(f"the carrier {carrier} is not installed: make test-carriers installs it")


def proxfed(*words: str, cwd: Path, patience: float = 600) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxfed", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=patience)


def trial(folder: Path, rounds: int, more: str = "", protection: str = "", compressor: str = "top_k") -> None:
    folder.mkdir(exist_ok=True)
    text = TRIAL.format(rounds=rounds, protection=protection, compressor=compressor) + more
    (folder / "trial.toml").write_text(text.replace('"top_k"', '"top_k", fraction = 0.2'))


@pytest.mark.parametrize(("carrier", "rounds", "more"), [("nvflare", 12, PEERS), ("flower", 2, "")])
def test_a_run_over_the_carrier_ends_where_the_stacked_run_does(carrier, rounds, more, tmp_path):
    needs(carrier)
    trial(tmp_path, rounds, more)
    done = proxfed("deploy", "trial.toml", "--loopback", "3", "--carrier", carrier, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert float(last.rsplit(" ", 1)[1].rstrip(".")) < 1e-15, last
    rows = (tmp_path / "run" / "rows.csv").read_text()
    assert "wire_bytes" in rows.splitlines()[0]
    assert (tmp_path / "run" / "report.html").exists()
    audit = (tmp_path / "run.carrier" / "lyon" / "audit.jsonl").read_text().splitlines()
    assert len(audit) > 2 * rounds  # what left was written down


def test_sums_under_masks_over_the_carrier(tmp_path):
    needs("nvflare")
    trial(tmp_path, 5, protection="protection = { secure_aggregation = true }", compressor="identity")
    done = proxfed("deploy", "trial.toml", "--loopback", "3", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    apart = float(done.stdout.strip().splitlines()[-1].rsplit(" ", 1)[1].rstrip("."))
    assert 0 < apart < 1e-9


@pytest.mark.parametrize(("carrier", "kills"), [("nvflare", 8), ("flower", 4)])
def test_a_run_survives_kills_and_lost_messages(carrier, kills, tmp_path):
    """A little of `make chaos`."""
    needs(carrier)
    command = [sys.executable, str(ROOT / "benchmarks" / "chaos.py"), carrier, "--kills", str(kills)]
    done = subprocess.run([*command, "--folder", str(tmp_path / "chaos")], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same bits" in done.stdout
    assert "OTHER BITS" not in done.stdout


def _holder(command: int, site: str) -> int:
    import psutil

    for process in psutil.Process(command).children(recursive=True):
        words = process.cmdline()
        if "silo" in words and any(word.endswith(f"/{site}/site.toml") for word in words):
            return process.pid
    raise AssertionError("there is no holder")


@pytest.mark.parametrize("what", ["a stopped process", "a network that is cut"])
def test_what_hangs_is_said_in_a_sentence_and_the_run_goes_on_when_it_is_over(what, tmp_path):
    needs("nvflare")
    cut = what == "a network that is cut"
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"'] if cut else []
    if cut and subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
        pytest.skip("a network of its own takes rights that this user does not have")
    trial(tmp_path, 150)
    words = [sys.executable, "-m", "proxfed", "deploy", "trial.toml", "--loopback", "3", "--out", "run"]
    with (tmp_path / "err").open("w") as err, (tmp_path / "out").open("w") as out:
        process = subprocess.Popen([*alone, *words], cwd=tmp_path, stdout=out, stderr=err)
    try:
        _reach(process, tmp_path / "run", rows=20)
        before = (tmp_path / "err").read_text().count("waiting")
        if cut:
            inside = ["nsenter", "--target", str(process.pid), "--net", "ip", "link", "set", "lo"]
            subprocess.run([*inside, "down"], check=True)
        else:
            holder = _holder(process.pid, "oslo")
            os.kill(holder, signal.SIGSTOP)
        time.sleep(25)
        said = (tmp_path / "err").read_text().split("waiting")[before + 1 :]
        assert len(said) == 1, "one sentence"
        assert "oslo" in said[0]
        assert "--resume" in said[0]
        if cut:
            subprocess.run([*inside, "up"], check=True)
        else:
            os.kill(holder, signal.SIGCONT)
        assert process.wait(400) == 0, (tmp_path / "err").read_text()
    finally:
        process.kill()
        process.wait()
    assert float((tmp_path / "out").read_text().strip().rsplit(" ", 1)[1].rstrip(".")) < 1e-15


def _reach(process: subprocess.Popen[bytes], run: Path, rows: int, patience: float = 300) -> None:
    end = time.monotonic() + patience
    while sum(file.read_text().count("\n") for file in run.glob("checkpoint/*/rows.csv")) < rows:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.1)


# ---- NVIDIA FLARE: certificates and code ----------------------------------------------------------------------------


class Project:
    """A server of NVIDIA FLARE and the kits of its project."""

    def __init__(self, folder: Path) -> None:
        from proxfed.silos.loopback import ADMIN, HOST, free_ports, provision
        from proxfed.silos.nvflare_kits import prepare

        (self.port,) = free_ports(1)
        self.folder, self.kits = folder, provision(folder, ["a", "b", "c"], self.port)
        self.environment = {"HOME": str(folder), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        prepare(self.kits / HOST)
        self.admin = self.kits / ADMIN
        start = self.kits / HOST / "startup" / "sub_start.sh"
        self.server = Kept(["bash", str(start), "--once"], folder / "server.log", self.environment)

    def client(self, kit: Path) -> Kept:
        """A site's process of the carrier, with the certificate of this kit."""
        from proxfed.silos.nvflare_kits import at_site

        command, environment = at_site(kit, self.folder / "nobody")
        return Kept(command, self.folder / f"{kit.name}.log", self.environment | environment)

    def connected(self) -> set[str]:
        from proxfed.silos.nvflare_carrier import Flare

        return {*Flare(self.admin, "test").sites()}

    def wait_for(self, *sites: str, patience: float = 120) -> None:
        end = time.monotonic() + patience
        while True:
            try:
                if {*sites} <= self.connected():
                    return
            except OSError:
                pass
            assert time.monotonic() < end
            time.sleep(1)

    def signed(self, name: str, days: float) -> tuple[bytes, bytes]:
        """A certificate of the project's own authority, valid until so many days from now, and its key."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        kept = json.loads((self.kits.parent / "state" / "cert.json").read_text())
        authority = serialization.load_pem_private_key(kept["root_pri_key"].encode(), None)
        root = x509.load_pem_x509_certificate(kept["root_cert"].encode())
        like = x509.load_pem_x509_certificate((self.kits / name / "startup" / "client.crt").read_bytes())
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        made = x509.CertificateBuilder(root.subject, like.subject, key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(end - datetime.timedelta(days=30)).not_valid_after(end)
        for extension in like.extensions:
            if extension.oid not in (x509.OID_SUBJECT_KEY_IDENTIFIER, x509.OID_AUTHORITY_KEY_IDENTIFIER):
                made = made.add_extension(extension.value, extension.critical)
        pem, bare = serialization.Encoding.PEM, serialization.NoEncryption()
        return made.sign(authority, hashes.SHA256()).public_bytes(pem), key.private_bytes(
            pem, serialization.PrivateFormat.TraditionalOpenSSL, bare
        )


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Iterator[Project]:
    needs("nvflare")
    project = Project(tmp_path_factory.mktemp("project"))
    with project.server:
        yield project


def _kit(project: Project, site: str, name: str) -> Path:
    """A copy of a site's kit, to be spoilt."""
    kit = project.folder / "spoilt" / name / site
    shutil.copytree(project.kits / site, kit)
    return kit


def test_nvflare_takes_no_certificate_but_the_sites_own(project, tmp_path_factory):
    from proxfed.silos.loopback import provision

    other = provision(tmp_path_factory.mktemp("other"), ["b"], project.port)
    spoilt = {name: _kit(project, "b", name) for name in ("none", "expired", "of-another-project", "of-another-site")}
    for file in ("client.crt", "client.key"):
        (spoilt["none"] / "startup" / file).unlink()
        shutil.copy(other / "b" / "startup" / file, spoilt["of-another-project"] / "startup" / file)
        shutil.copy(project.kits / "c" / "startup" / file, spoilt["of-another-site"] / "startup" / file)
    certificate, key = project.signed("b", days=-1)
    (spoilt["expired"] / "startup" / "client.crt").write_bytes(certificate)
    (spoilt["expired"] / "startup" / "client.key").write_bytes(key)
    good = _kit(project, "b", "in-order")
    certificate, key = project.signed("b", days=10)
    (good / "startup" / "client.crt").write_bytes(certificate)
    (good / "startup" / "client.key").write_bytes(key)

    with project.client(project.kits / "a"):
        project.wait_for("a")
        for name, kit in spoilt.items():
            with project.client(kit) as process:
                until = time.monotonic() + 25
                while time.monotonic() < until:
                    assert "b" not in project.connected(), name
                    assert "c" not in project.connected(), name
                    time.sleep(2)
                assert process.starts >= 1
        with project.client(good):  # what differs is the certificate alone
            project.wait_for("a", "b")


def test_nvflare_runs_no_code_that_comes_with_a_job(project, tmp_path):
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    from proxfed.silos.nvflare_carrier import _job

    mark = tmp_path / "executed"
    job = _job(tmp_path / "job", "intruder", "c", tmp_path / "socket")
    for place, config in (("at_site", "config_fed_client.json"), ("at_server", "config_fed_server.json")):
        custom = job / place / "custom"
        custom.mkdir()
        (custom / "intruder.py").write_text(f"open({str(mark)!r}, 'a').write('x')\nclass AtSite: pass\n")
        file = job / place / "config" / config
        table = json.loads(file.read_text())
        table["components"].append({"id": "intruder", "path": "intruder.AtSite", "args": {}})
        file.write_text(json.dumps(table))
    with project.client(project.kits / "c"):
        project.wait_for("c")
        session = new_secure_session(project.admin.name, str(project.admin), timeout=20.0)
        try:
            try:
                name = session.submit_job(str(job))
            except Exception:
                name = None  # refused at once
            if name is not None:
                status = session.wait_for_job(name, timeout=90)["status"]
                assert status != "FINISHED:COMPLETED"
        finally:
            session.close()
    assert not mark.exists()


# ---- Flower: keys and certificates ----------------------------------------------------------------------------------


def test_flower_takes_no_key_but_the_sites_own_and_sites_take_no_other_server(tmp_path):
    needs("flower")
    from proxfed.silos.loopback import Loopback, certificates, free_ports

    idle = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with Loopback(tmp_path / "project", ["a", "b"], "flower", lambda site: idle) as lab:
        here, other = tmp_path / "project" / "flower", tmp_path / "other"
        other.mkdir()
        certificates(other, ["b"])

        def online() -> list[str]:
            program = str(Path(sys.executable).with_name("flwr"))
            command = [program, "supernode", "list", "loopback", "--format", "json"]
            done = subprocess.run(command, env={**os.environ, **lab.environment}, capture_output=True, text=True)
            return [node["status"] for node in json.loads(done.stdout)["nodes"]]

        def node(key: list[str], authority: Path) -> Kept:
            command = [str(Path(sys.executable).with_name("flower-supernode")), "--superlink", f"127.0.0.1:{lab.port}"]
            command += ["--root-certificates", str(authority), "--port", str(free_ports(1)[0]), *key]
            return Kept(command, tmp_path / "node.log", lab.environment)

        def own(folder: Path, name: str) -> list[str]:
            return ["--auth-supernode-private-key", str(folder / f"{name}.key")]

        refused = {
            "no key": ([], here / "ca.crt"),
            "the key of another project": (own(other, "b"), here / "ca.crt"),
            "a server of another project": (own(here, "b"), other / "ca.crt"),
        }
        assert online() == ["registered", "registered"]
        for name, given in refused.items():
            with node(*given):
                time.sleep(15)
                assert "online" not in online(), name
        with node(own(here, "b"), here / "ca.crt"):
            end = time.monotonic() + 60
            while "online" not in online():
                assert time.monotonic() < end
                time.sleep(1)


def test_a_flower_node_is_who_its_key_says_whatever_it_claims(monkeypatch):
    """The name by which a site is asked is the one that the SuperLink has for its key."""
    needs("flower")
    from proxfed.silos import flower_carrier

    asked: list[int] = []

    class Grid:
        def get_nodes(self):
            return [SimpleNamespace(node_id=k, name=name, last_activated_at="now") for k, name in ((1, "a"), (2, "b"))]

        def push_messages(self, messages):
            asked.extend(messages)
            raise InterruptedError

    monkeypatch.setattr(flower_carrier, "Message", lambda content, message_type, dst_node_id: dst_node_id)
    with pytest.raises(InterruptedError):
        flower_carrier._answer(Grid(), "b", b"question")
    assert asked == [2]
