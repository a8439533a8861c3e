"""NVIDIA FLARE and Flower themselves: processes, sockets and certificates on this machine (`make test-carriers`)."""

from __future__ import annotations

import csv
import datetime
import importlib.util
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxfed.machine import numba_is_used
from proxfed.silos.carriers.supervise import Kept

ROOT = Path(__file__).parent.parent
INSTALLED = {"nvflare": "nvflare", "flower": "flwr"}
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
APART = 0.0 if numba_is_used() else 1e-15
"""How far a model may be from the stacked run's; torch's exp depends on where a number stands in an array."""

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
    assert float(last.rsplit(" ", 1)[1].rstrip(".")) <= APART, last
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
        assert any(site in said[0] for site in (("lyon", "oslo", "turin") if cut else ("oslo",)))
        assert "--resume" in said[0]
        if cut:
            subprocess.run([*inside, "up"], check=True)
        else:
            os.kill(holder, signal.SIGCONT)
        assert process.wait(400) == 0, (tmp_path / "err").read_text()
    finally:
        process.kill()
        process.wait()
    assert float((tmp_path / "out").read_text().strip().rsplit(" ", 1)[1].rstrip(".")) <= APART


def _reach(process: subprocess.Popen[bytes], run: Path, rows: int, patience: float = 300) -> None:
    end = time.monotonic() + patience
    while sum(file.read_text().count("\n") for file in run.glob("checkpoint/*/rows.csv")) < rows:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.1)


# ---- the how-to, as it stands ---------------------------------------------------------------------------------------


class Page:
    """What docs/howto/organisations.md shows, with the addresses of this machine and fewer rounds."""

    def __init__(self, port: int) -> None:
        text = (ROOT / "docs" / "howto" / "organisations.md").read_text()
        here = {"coordinator.example.org": "localhost", "8002": str(port), "rounds = 100": "rounds = 5"}
        for shown, ours in here.items():
            assert shown in text
            text = text.replace(shown, ours)
        self.blocks: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)

    def file(self, language: str, holding: str) -> str:
        """The block with this in it."""
        (found,) = (block for kind, block in self.blocks if kind == language and holding in block)
        return found

    def command(self, *words: str) -> list[str]:
        """The shortest line that begins with the first of these words, and has the others."""
        lines = [
            line.partition("  #")[0] for kind, block in self.blocks if kind == "bash" for line in block.splitlines()
        ]
        found = [line for line in lines if line.startswith(words[0]) and all(word in line for word in words)]
        program, *rest = shlex.split(min(found, key=len))
        return [program if program == "bash" else str(Path(sys.executable).with_name(program)), *rest]


def _patients(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = [[rng.gauss(0, 1) for _ in range(4)] for _ in range(120)]
    lines = [f"{','.join(f'{x:.4f}' for x in row)},{1 if sum(row) + rng.gauss(0, 1) > 0 else -1}" for row in rows]
    (folder / "patients.csv").write_text("\n".join(["age,pressure,weight,glucose,outcome", *lines]) + "\n")


def test_the_how_to_for_two_organisations(tmp_path):
    """From nothing to a model, a refusal, a resumed run and the audit file, by the commands and files that it shows."""
    needs("nvflare")
    from proxfed.silos.carriers.loopback import free_ports

    page = Page(*free_ports(1))
    own = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path / "home")}

    def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=300)

    def done(command: list[str], folder: Path) -> str:
        found = run(command, folder)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    prints, names = {}, {"lyon": "oslo", "oslo": "lyon"}
    for k, name in enumerate(names):
        place = tmp_path / name
        place.mkdir()
        _patients(place, k)
        init = [word.replace("lyon", name) for word in page.command("proxfed site init")]
        prints[name] = done(init, place).strip().splitlines()[-1].strip()
        assert {path.name for path in place.iterdir()} == {"patients.csv", "site.toml", "site.key"}
    for name, partner in names.items():
        text = page.file("toml", "[allow]").replace("lyon", name)
        text += page.file("toml", "[partners]").partition("oslo =")[0] + f'{partner} = "{prints[partner]}"\n'
        (tmp_path / name / "site.toml").write_text(text)

    third = tmp_path / "third"
    third.mkdir()
    (third / "project.yml").write_text(page.file("yaml", "participants"))
    (third / "trial.toml").write_text(page.file("toml", "[[algorithms]]"))
    done(page.command("nvflare provision"), third)
    done(page.command("python -m"), third)
    for name in names:
        shutil.copytree(third / "kits" / "trial" / "prod_00" / name, tmp_path / name / "kits" / name)
    server = subprocess.Popen(page.command("bash"), cwd=third, env=own, start_new_session=True, **QUIET)
    silos = []
    try:
        for name in names:
            command = [word.replace("lyon", name) for word in page.command("proxfed silo")]
            silos.append(subprocess.Popen(command, cwd=tmp_path / name, env=own, start_new_session=True, **QUIET))
        deploy = page.command("proxfed deploy", "--out")
        assert "accuracy" in done(deploy, third)
        row = list(csv.DictReader((third / "runs" / "trial" / "rows.csv").open()))[-1]
        assert row["round"] == "5"
        assert 0.6 < float(row["accuracy_lyon"]) <= 1
        done(page.command("proxfed deploy", "--resume"), third)
        other = (third / "trial.toml").read_text().replace("fedcomposite", "scaffold").replace("tau = 5", "K = 5")
        (third / "trial.toml").write_text(other)
        refused = run([*deploy, "--force"], third)
        assert refused.returncode == 2
        said = refused.stderr.strip().splitlines()[-1]
        assert said.replace("oslo", "lyon") == page.file("text", "refuses").strip()  # whoever is the first
    finally:
        for process in (*silos, server):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in silos:
            process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    for name in names:
        assert "are as they were written" in done(page.command("proxfed site audit"), tmp_path / name)


# ---- NVIDIA FLARE: certificates and code ----------------------------------------------------------------------------


class Project:
    """A server of NVIDIA FLARE and the kits of its project."""

    def __init__(self, folder: Path) -> None:
        from proxfed.silos.carriers.loopback import ADMIN, HOST, free_ports, provision
        from proxfed.silos.carriers.nvflare_kits import prepare

        (self.port,) = free_ports(1)
        self.folder, self.kits = folder, provision(folder, ["a", "b", "c"], self.port)
        self.environment = {"HOME": str(folder), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        prepare(self.kits / HOST)
        self.admin = self.kits / ADMIN
        start = self.kits / HOST / "startup" / "sub_start.sh"
        self.server = Kept(["bash", str(start), "--once"], folder / "server.log", self.environment)

    def client(self, kit: Path) -> Kept:
        """A site's process of the carrier, with the certificate of this kit."""
        from proxfed.silos.carriers.nvflare_kits import at_site

        command, environment = at_site(kit, self.folder / "nobody")
        return Kept(command, self.folder / f"{kit.name}.log", self.environment | environment)

    def connected(self) -> set[str]:
        from proxfed.silos.carriers.nvflare_carrier import Flare

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
    from proxfed.silos.carriers.loopback import provision

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

    from proxfed.silos.carriers.nvflare_carrier import _job

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


def _node(port: int, authority: Path, key: list[str], log: Path, environment: dict[str, str]) -> Kept:
    """A SuperNode."""
    from proxfed.silos.carriers.loopback import free_ports

    command = [str(Path(sys.executable).with_name("flower-supernode")), "--superlink", f"127.0.0.1:{port}"]
    command += ["--root-certificates", str(authority), "--port", str(free_ports(1)[0]), *key]
    return Kept(command, log, environment)


def _own(folder: Path, name: str) -> list[str]:
    return ["--auth-supernode-private-key", str(folder / f"{name}.key")]


def _gives_up(log: Path, patience: float = 120) -> str:
    """What a node says when it ends, because it was not let in, or would not go in."""
    end = time.monotonic() + patience
    while "Exit Code" not in (said := log.read_text() if log.exists() else ""):
        assert time.monotonic() < end, said
        time.sleep(0.5)
    return said


def test_flower_takes_no_key_but_the_sites_own_and_sites_take_no_other_server(tmp_path):
    needs("flower")
    from proxfed.silos.carriers.loopback import Loopback, certificates

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

        refused = {
            "no key": ([], here / "ca.crt"),
            "the key of another project": (_own(other, "b"), here / "ca.crt"),
            "a server of another project": (_own(here, "b"), other / "ca.crt"),
        }
        for name, (key, authority) in refused.items():
            log = tmp_path / f"{name}.log"
            with _node(lab.port, authority, key, log, lab.environment):
                _gives_up(log)
                assert online() == ["registered", "registered"], name
        with _node(lab.port, here / "ca.crt", _own(here, "b"), tmp_path / "good.log", lab.environment):
            end = time.monotonic() + 120
            while "online" not in online():
                assert time.monotonic() < end
                time.sleep(1)


def test_sites_take_no_server_of_flower_whose_certificate_has_expired(tmp_path):
    needs("flower")
    from proxfed.silos.carriers.loopback import Loopback, certificates, free_ports

    here = tmp_path / "flower"
    here.mkdir()
    certificates(here, ["a"], days=-1)
    (here / "ports.json").write_text(json.dumps(free_ports(2)))  # what is there is taken as it is
    lab = Loopback(tmp_path, ["a"], "flower", lambda site: [])
    command, _ = lab._flower()["server"]
    with Kept(command, tmp_path / "server.log", lab.environment) as server:
        lab.kept["server"] = server
        lab._wait_for_server(120)
        with _node(lab.port, here / "ca.crt", _own(here, "a"), tmp_path / "node.log", lab.environment):
            assert "certificate has expired" in _gives_up(tmp_path / "node.log")


def test_a_flower_node_is_who_its_key_says_whatever_it_claims(monkeypatch):
    """The name by which a site is asked is the one that the SuperLink has for its key."""
    needs("flower")
    from proxfed.silos.carriers import flower_carrier

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
