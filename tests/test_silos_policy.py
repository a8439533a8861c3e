"""site.toml and what a holder refuses: one sentence each, before anything is built or imported."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from proxfed.algorithms import ALGORITHMS
from proxfed.errors import InputError
from proxfed.harness.protection import Privacy, Protection
from proxfed.registry import build, only_installed
from proxfed.silos import policy
from proxfed.silos.guard import Refused
from proxfed.silos.job import Job
from proxfed.silos.site import Site, parse_site, read_site

DATA = {"path": "rows.csv", "label": "outcome"}
JOB: dict[str, Any] = {
    "name": "trial",
    "problem": {"name": "logistic", "l2": 0.01},
    "regulariser": {"name": "l1", "weight": 1e-3},
    "algorithms": [{"name": "fedavg", "label": "ours: fast", "eta": 0.1, "K": 5}],
}
SITES = ["lyon", "oslo", "turin"]


def site(**tables: Any) -> Site:
    return parse_site({"name": "lyon", "data": DATA, **tables}, "site.toml", Path())


def check(job: dict[str, Any] = JOB, sites: list[str] = SITES, **tables: Any) -> None:
    policy.check_job(site(**tables), job, sites)


def changed(key: str, value: Any) -> dict[str, Any]:
    return {**JOB, key: value}


def test_what_is_allowed_passes_in_silence() -> None:
    check()
    check(allow={"algorithms": ["fedavg", "fedprox"], "measures": []})


def a_job(experiment: dict[str, Any]) -> Job:
    rest = {k: v for k, v in experiment.items() if k != "algorithms"}
    return Job(rest, ("lyon",), (1,), (1.0,), {}, "", algorithm=experiment["algorithms"][0])


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (changed("algorithms", [{"name": "./mine.py:Mine"}]), "job.algorithm.name = './mine.py:Mine'"),
        (changed("algorithms", [{"name": "os:system"}]), "job.algorithm.name = 'os:system'"),
        (changed("problem", {"name": "network", "model": "net.py:Net"}), "job.problem.model = 'net.py:Net'"),
        (changed("regulariser", [{"name": "m:H", "blocks": ["w"]}]), "job.regulariser.name = 'm:H'"),
        (
            changed("algorithms", [{"name": "fedcef", "compressor": {"name": "m:C"}}]),
            "job.algorithm.compressor.name = 'm:C'",
        ),
    ],
)
def test_code_is_refused_wherever_it_is_named(job: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as e:
        a_job(job).check_code()
    assert said in str(e.value)
    assert "brings no code of its own" in str(e.value)


def test_labels_may_hold_a_colon_and_code_that_the_holder_lists_is_allowed() -> None:
    a_job(JOB).check_code()
    job = changed("algorithms", [{"name": "hospital.methods:Ours"}])
    a_job(job).check_code(["hospital.methods:Ours"])
    check(job, allow={"code": ["hospital.methods:Ours"], "algorithms": ["fedavg"]})


def test_nothing_is_imported_even_if_a_name_came_through(tmp_path: Path) -> None:
    """The only door to other code is the registry, and it is shut."""
    mine = tmp_path / "mine.py"
    mine.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\ndef make(): return 7\n")
    with only_installed(), pytest.raises(InputError, match="not imported here"):
        build(ALGORITHMS, {"name": f"{mine}:make"}, "algorithms.0")
    assert not (tmp_path / "ran").exists()
    with only_installed([f"{mine}:make"]):
        assert build(ALGORITHMS, {"name": f"{mine}:make"}, "algorithms.0") == 7
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("tables", "job", "said"),
    [
        ({"allow": {"algorithms": ["fedprox"]}}, JOB, "'fedavg' is not among its allow.algorithms"),
        ({"allow": {"algorithms": []}}, JOB, "'fedavg' is not among its allow.algorithms: none"),
        (
            {"limits": {"rounds": 60}},
            changed("algorithms", [{"name": "fedavg", "rounds": 61}]),
            "61 rounds are asked for, and limits.rounds = 60",
        ),
        ({"require": {"sites": 4}}, JOB, "the job has 3 sites, and require.sites = 4"),
        ({"require": {"secure_aggregation": True}}, JOB, "no protection.secure_aggregation = true"),
        ({"require": {"privacy": {"noise": 2.0, "epsilon": 1.0}}}, JOB, "no protection.privacy"),
        (
            {"require": {"privacy": {"noise": 2.0, "epsilon": 1.0}}},
            changed("protection", {"privacy": {"clip": 1.0, "noise": 1.5}}),
            "noise = 1.5, and this site requires at least 2",
        ),
        ({}, changed("protection", {"privacy": "much"}), "is not understood"),
    ],
)
def test_a_job_is_refused_in_one_sentence(tables: dict[str, Any], job: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as e:
        check(job, **tables)
    assert said in str(e.value)
    assert "\n" not in str(e.value)


def test_a_job_for_others_is_refused() -> None:
    with pytest.raises(Refused, match="the job is for oslo, turin"):
        check(sites=["oslo", "turin"])


def test_one_site_twice_is_one_site() -> None:
    with pytest.raises(Refused, match="the job has 1 sites"):
        check(sites=["lyon", "lyon"])


def test_what_is_required_and_there_passes() -> None:
    strict = site(require={"secure_aggregation": True, "privacy": {"noise": 2.0, "epsilon": 3.0}})
    policy.check_required(strict, Protection(secure_aggregation=True, privacy=Privacy(clip=1.0, noise=2.0)))


def test_questions() -> None:
    here = site(allow={"measures": ["value"], "preparations": []}, limits={"rows": 20, "bytes": 1000})
    policy.check_rows(here, 20)
    with pytest.raises(Refused) as e:
        policy.check_rows(here, 19)
    assert "fewer rows than limits.rows = 20" in str(e.value)
    assert "19" not in str(e.value)  # how many there are is not said
    policy.check_measure(here, "value")
    with pytest.raises(Refused, match=r"'gradient' is not among its allow.measures"):
        policy.check_measure(here, "gradient")
    policy.check_preparation(site(allow={"preparations": ["summary"]}), "summary")
    with pytest.raises(Refused, match=r"'summary' is not among its allow.preparations"):
        policy.check_preparation(here, "summary")
    with pytest.raises(Refused, match="are not told"):
        policy.check_counts(here)
    policy.check_counts(site(allow={"counts": True}))
    policy.check_bytes(here, 900, 100)
    with pytest.raises(Refused, match=r"900 bytes have left for this job, and limits.bytes = 1,000"):
        policy.check_bytes(here, 900, 101)
    policy.check_rounds(here, 1000)
    for rounds in (1001, "many"):
        with pytest.raises(Refused, match=f"{rounds} rounds are asked for, and limits.rounds = 1000"):
            policy.check_rounds(here, rounds)


def test_a_budget_of_epsilon() -> None:
    policy.check_epsilon(site(), 1e9)
    strict = site(require={"privacy": {"noise": 2.0, "epsilon": 3.0}})
    policy.check_epsilon(strict, 3.0)
    with pytest.raises(Refused, match=r"epsilon would be 3.01, and require.privacy.epsilon = 3"):
        policy.check_epsilon(strict, 3.01)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "lyon"', "the key 'data' is missing"),
        ('name = "ly on"\n[data]\nschema = "s.toml"', "name = 'ly on' is not allowed"),
        ('name = "lyon"\n[data]\npath = "rows.csv"', "data: path and label go together"),
        ('name = "lyon"\n[data]\npath = "a"\nlabel = "b"\nschema = "c"', "either path and label, or schema"),
        ('name = "lyon"\n[data]\nschema = "s"\n[allow]\nalgoritms = []', "did you mean 'algorithms'?"),
        ('name = "lyon"\n[data]\nschema = "s"\n[allow]\nmeasures = "some"', "neither a list of names nor"),
        ('name = "lyon"\n[data]\nschema = "s"\n[allow]\nmeasures = ["gradients"]', "did you mean 'gradient'?"),
        ('name = "lyon"\n[data]\nschema = "s"\n[allow]\npreparations = ["all"]', "'all' is not known; known: summary"),
        ('name = "lyon"\n[data]\nschema = "s"\nheld_out = 0.2', "data: held_out: only with path"),
        ('name = "lyon"\n[data]\nschema = "s"\n[limits]\nrows = 0', "limits.rows = 0 is not allowed"),
        ('name = "lyon"\n[data]\nschema = "s"\n[partners]\noslo = "abc"', "partners.oslo = 'abc' is not a fingerprint"),
        ('name = "lyon"\nfolder = "/"\n[data]\nschema = "s"', "unknown key 'folder'"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(InputError) as e:
        read_site(tmp_path / "site.toml")
    assert said in str(e.value)
    assert "site.toml" in str(e.value)


def test_files_are_beside_site_toml(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('name = "lyon"\n[data]\npath = "rows.csv"\nlabel = "y"\n')
    here = read_site(tmp_path / "site.toml")
    assert here.audit.path == tmp_path / "audit.jsonl"
    assert here.path("/elsewhere/rows.csv") == Path("/elsewhere/rows.csv")
    assert tomllib.loads((tmp_path / "site.toml").read_text())["name"] == here.name
