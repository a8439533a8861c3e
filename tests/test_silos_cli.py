"""`proxfed site init` and `proxfed site audit`."""

import json
from pathlib import Path

import numpy as np
import pytest

from proxfed.silos.protection.audit import Audit
from proxfed.silos.protection.keyring import SiteKey, fingerprint
from proxfed.silos.site.config import read_site

from support.cli import proxfed, refused
from support.fit_sites import Hospitals


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [
        f"{a:.3f},{b:.3f},{y}" for a, b, y in zip(*rng.standard_normal((2, 43)), rng.choice([-1, 1], 43), strict=True)
    ]
    Path("patients.csv").write_text("\n".join(["age,chol,outcome", *rows]) + "\n")
    words = [f"{a:.1f},{sex},{y}" for a, sex, y in zip(rng.random(12), "mf" * 6, ["ill", "well"] * 6, strict=True)]
    Path("words.csv").write_text("\n".join(["age,sex,outcome", *words]) + "\n")
    return tmp_path


def test_init_writes_what_the_holder_decides_and_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = proxfed(capsys, "site", "init", "--data", "patients.csv", "--label", "outcome", "--name", "lyon")
    assert code == 0
    site = read_site("site.toml")
    assert (site.name, site.data.path, site.data.label) == ("lyon", "patients.csv", "outcome")
    assert site.path(site.data.path).is_file()
    assert not site.allow.counts
    assert site.allow.code == []
    assert "43 rows, 2 columns" in said
    assert fingerprint(SiteKey.read(Path("site.key")).public) in said
    assert Path("site.key").stat().st_mode & 0o077 == 0


def test_the_file_has_no_number_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    proxfed(capsys, "site", "init", "--data", "patients.csv", "--label", "outcome")
    assert "43" not in Path("site.toml").read_text()
    assert read_site("site.toml").name == "patients"


def test_init_keeps_a_key_and_asks_before_it_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "site", "init", "--data", "patients.csv", "--label", "outcome"
    proxfed(capsys, *arguments)
    key = Path("site.key").read_bytes()
    assert "--force replaces it" in refused(capsys, *arguments)
    proxfed(capsys, *arguments, "--force")
    assert Path("site.key").read_bytes() == key


def test_a_table_with_words_gets_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    from proxfed.tables import read_tables

    code, said, _ = proxfed(capsys, "site", "init", "--data", "words.csv", "--label", "outcome")
    assert code == 0
    assert read_site("site.toml").data.schema_file == "schema.toml"
    assert [len(table) for table in read_tables("schema.toml").tables] == [12]
    assert "'sex': row 1 holds 'm'" in said
    assert "fewer rows than limits.rows = 20" in said


def test_init_refuses_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    init = "site", "init", "--data"
    assert "no such file" in refused(capsys, *init, "none.csv", "--label", "outcome")
    assert "did you mean 'outcome'?" in refused(capsys, *init, "patients.csv", "--label", "outcom")
    assert "must end in .toml" in refused(capsys, *init, "patients.csv", "--label", "outcome", "--out", "site.txt")
    assert "no folder" in refused(capsys, *init, "patients.csv", "--label", "outcome", "--out", "no/site.toml")
    assert "not allowed" in refused(capsys, *init, "patients.csv", "--label", "outcome", "--name", "a b")
    assert not Path("site.toml").exists()
    assert not Path("site.key").exists()


def some_lines(n: int = 30) -> Audit:
    audit = read_site("site.toml").audit
    for t in range(n):
        audit.write("coordinator", "answer", b"x" * 10, run="a" * 64, t=t)
    audit.write("coordinator", "answer", b"noisy", run="b" * 64, t=1, noise=8.0, delta=1e-5)
    return audit


def test_audit_shows_what_left(capsys: pytest.CaptureFixture[str]) -> None:
    proxfed(capsys, "site", "init", "--data", "patients.csv", "--label", "outcome")
    code, said, _ = proxfed(capsys, "site", "audit")
    assert (code, "Nothing has left" in said) == (0, True)
    last = some_lines().read().last
    code, said, _ = proxfed(capsys, "site", "audit", "--last", "3")
    assert code == 0
    assert f"All 31 lines are as they were written; the last has the digest {last[:16]}" in said
    assert "300" in said  # bytes of the first run
    code, said, _ = proxfed(capsys, "site", "audit", "--format", "json")
    table = json.loads(said)
    assert [run["messages"] for run in table["runs"]] == [30, 1]
    assert table["runs"][0]["epsilon"] is None
    assert 0 < table["runs"][1]["epsilon"] < 3


def test_audit_says_where_the_chain_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    proxfed(capsys, "site", "init", "--data", "patients.csv", "--label", "outcome")
    audit = some_lines()
    audit.path.write_text(audit.path.read_text().replace('"t": 7', '"t": 8'))
    code, _, said = proxfed(capsys, "site", "audit")
    assert code == 1
    assert "was changed afterwards: line 8" in said
    code, said, _ = proxfed(capsys, "site", "audit", "--format", "json")
    assert code == 1
    assert json.loads(said)["broken"].startswith("line 8")


def test_a_run_in_one_place_says_that_nothing_is_protected(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "-c", "rounds=1", "-c", "seeds=[0]", "-c", "protection.secure_aggregation=true"
    code, _, said = proxfed(capsys, "run", "demo", "--out", "run", "--jobs", "1", *asked)
    assert code == 0
    assert "[protection] acts between organisations; here nothing is masked" in said


TRIAL = """
name = "trial"
rounds = 100
[data]
name = "synthetic_binary"
[problem]
name = "logistic"
l2 = 0.01
weighting = "uniform"
[protection]
secure_aggregation = true
[[algorithms]]
name = "fedavg"
eta = 0.1
K = 5
"""


def test_explain_says_what_would_leave_and_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    proxfed(capsys, "site", "init", "--data", "patients.csv", "--label", "outcome", "--name", "lyon")
    Path("trial.toml").write_text(TRIAL)
    code, said, _ = proxfed(capsys, "site", "explain", "trial.toml")
    assert code == 1  # nobody is under [partners] yet
    assert "only with sites whose keys are under its [partners]" in said
    key = "0123-4567-89ab-cdef-0123-4567-89ab-cdef"
    text = Path("site.toml").read_text()
    Path("site.toml").write_text(text.replace('# oslo = "', 'oslo = "').replace("[ranges]", "[ranges]", 1))
    assert read_site("site.toml").partners == {"oslo": key}
    code, said, _ = proxfed(capsys, "site", "explain", "trial.toml")
    assert code == 0
    assert "100 times (1 runs): a message with" in said
    assert "rounded to 2^-40 and readable only as the sum over all sites" in said
    assert "That is 201 answers, of limits.answers = 2,000 a job" in said
    assert "feature has some rows here, but fewer than 5 (limits.feature)" in said  # between two sites
    assert "at most 20 times over all jobs (limits.failures)" in said
    Path("bad.toml").write_text(TRIAL.replace("l2 = 0.01", "batch = 1").replace("eta = 0.1", "eta = 1e9"))
    code, said, _ = proxfed(capsys, "site", "explain", "bad.toml")
    assert code == 1
    assert "From as many rounds as there are rows it can compute all rows" in said
    assert "fedavg: problem.batch = 1: gradients of some rows only are not told" in said
    Path("sized.toml").write_text(TRIAL.replace('weighting = "uniform"\n', ""))
    code, said, _ = proxfed(capsys, "site", "explain", "sized.toml")
    assert code == 1
    assert "weighting = 'size': counts of rows are not told (allow.counts = false)" in said
    private = TRIAL.replace("secure_aggregation = true", "privacy = {clip = 1.0, noise = 8.0}")
    Path("private.toml").write_text(private)
    code, said, _ = proxfed(capsys, "site", "explain", "private.toml")
    assert "epsilon = 13.2" in said
    assert "gradient at the model" not in said


def test_explain_says_what_a_fit_would_make_leave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    privacy = {"require": {"privacy": {"noise": 8.0, "epsilon": 10.0}}, "fit": {"estimates": True}}
    h = Hospitals(tmp_path, "cox", 30, privacy)
    site = str(tmp_path / "oslo" / "site.toml")
    code, said, _ = proxfed(capsys, "site", "explain", str(tmp_path / "tables.toml"), "--site", site)
    assert (code, "This site refuses it" in said) == (1, True)  # a fit without noise
    for each in (
        "Sums over all sites then have it in them (limits.feature = 1)",
        "at most 20 times over all jobs (limits.failures)",
        "more than fit.dominance = 0.5",
        "they are the same in all jobs",
        "to a hundredth of their standard errors",
        "without categories of fewer than 20 rows",
        "Of a private fit (--epsilon) nothing of this: one message",
        "require.privacy.epsilon = 10",
    ):
        assert each.lower() in " ".join(said.split()).lower(), each
    assert not h.letters


def test_a_fresh_site_lets_nothing_out_that_is_not_a_sum(capsys: pytest.CaptureFixture[str]) -> None:
    proxfed(capsys, "site", "init", "--data", "patients.csv", "--label", "outcome")
    site = read_site("site.toml")
    assert site.require.secure_aggregation
    assert site.require.same_cohort
    assert not site.allow.minibatches
    assert site.limits == type(site.limits)()  # what the file says is what would hold without it
