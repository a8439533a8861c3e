"""site.toml and what a holder refuses: one sentence each, before anything is built or imported."""

import inspect
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proxfed.algorithms import ALGORITHMS
from proxfed.compressors import COMPRESSORS
from proxfed.errors import InputError
from proxfed.harness.protection import Privacy, Protection
from proxfed.participation import PARTICIPATIONS
from proxfed.problems import PROBLEMS
from proxfed.problems.named_losses import KINDS as LOSSES
from proxfed.registry import build, only_installed
from proxfed.registry import hints as hints_of
from proxfed.regularisers import REGULARISERS
from proxfed.schedules import SCHEDULES
from proxfed.silos.protection import policy
from proxfed.silos.protection.guard import Refused
from proxfed.silos.protection.ranges import RANGES
from proxfed.silos.site.config import Site, parse_site, read_site
from proxfed.silos.wire.job import Job
from proxfed.topologies import TOPOLOGIES

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
    policy.check_job(site(**tables), replace(a_job(job), sites=tuple(sites), clients=(1,) * len(sites)))


def changed(key: str, value: Any) -> dict[str, Any]:
    return {**JOB, key: value}


def test_what_is_allowed_passes_in_silence() -> None:
    check()
    check(allow={"algorithms": ["fedavg", "fedprox"], "measures": []})


def a_job(experiment: dict[str, Any]) -> Job:
    rest = {k: v for k, v in experiment.items() if k != "algorithms"}
    rest.pop("name", None)
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
    there = Protection(secure_aggregation=True, privacy=Privacy(clip=1.0, noise=2.0))
    policy.check_required(strict, there)
    for less in ({"secure_aggregation": False}, {"privacy": None}, {"privacy": Privacy(clip=1.0, noise=1.99)}):
        with pytest.raises(Refused):
            policy.check_required(strict, there.model_copy(update=less))


# ---- numbers ---------------------------------------------------------------------------------------------------------


def registered() -> list[tuple[str, str]]:
    """(what, key) of every argument of everything that a job may name, if numbers may stand there."""
    found = []
    for registry in (ALGORITHMS, PROBLEMS, REGULARISERS, COMPRESSORS, PARTICIPATIONS, TOPOLOGIES, SCHEDULES, LOSSES):
        for name, make in registry.items():
            given = set(make.keywords) if isinstance(make, partial) else set()
            make = make.func if isinstance(make, partial) else make
            hints = hints_of(make)
            for key in inspect.signature(make).parameters.keys() - given - {"self", "batch"}:
                said = str(hints.get(key, "Any"))
                if any(word in said for word in ("int", "float", "Any")) and "Loss" not in said:
                    found.append((name, key))
    return found


def test_everything_numeric_that_is_registered_has_a_range() -> None:
    named = {"data", "h", "dtype", "device", "x0", "args", "kwargs", "model", "own_measures"}
    missing = [(name, key) for name, key in registered() if key not in RANGES and key not in named]
    assert missing == []


def with_(place: str, **values: Any) -> dict[str, Any]:
    if place == "algorithms":
        return changed(place, [JOB["algorithms"][0] | values])
    return changed(place, JOB[place] | values)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (with_("algorithms", eta=1e6), "algorithm.eta = 1e+06 is not between 1e-06 and 100"),
        (with_("algorithms", eta=1e-9), "algorithm.eta = 1e-09 is not between"),
        (with_("algorithms", eta=float("nan")), "algorithm.eta = nan is not between"),
        (with_("algorithms", K=10**6), "algorithm.K = 1e+06 is not between 1 and 1000"),
        (with_("algorithms", eta={"name": "exponential", "start": 1e9, "decay": 0.9}), "algorithm.eta.start = 1e+09"),
        (with_("algorithms", mystery=3), "algorithm.mystery = 3: this site has no range for 'mystery'"),
        (with_("algorithms", topology={"name": "own", "edges": [[0, -5]]}), "algorithm.topology.edges = -5"),
        (with_("problem", l2=-1.0), "problem.l2 = -1 is not between"),
        (with_("problem", class_weights={"1": 1e9}), "problem.class_weights.1 = 1e+09 is not between 0.1 and 10"),
        (with_("problem", loss={"name": "huber", "delta": 1e-12}), "problem.loss.delta = 1e-12 is not between"),
        (with_("regulariser", weight=-3.0), "regulariser.weight = -3 is not between"),
        (changed("regulariser", [{"name": "l1", "weight": 1e9}]), "regulariser.weight = 1e+09 is not between"),
    ],
)
def test_a_number_outside_its_range_is_refused(job: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as e:
        check(job)
    assert said in str(e.value)


def test_site_toml_has_the_last_word_on_ranges() -> None:
    check(with_("algorithms", eta=1e6), ranges={"eta": [0, 1e7]})
    with pytest.raises(Refused, match=r"algorithm.K = 5 is not between 1 and 4"):
        check(ranges={"K": [1, 4]})
    check(with_("algorithms", mystery=3), ranges={"mystery": [0, 5]})


@pytest.mark.parametrize(
    ("batch", "tables", "said"),
    [
        (1, {}, "gradients of some rows only are not told"),
        (1, {"allow": {"minibatches": True}}, "problem.batch = 1 is less than limits.rows = 20"),
        (19.5, {"allow": {"minibatches": True}}, "problem.batch = 19.5 is less than"),
        ("all", {"allow": {"minibatches": True}}, "problem.batch = 'all' is less than"),
        (20, {"allow": {"minibatches": True}}, ""),
    ],
)
def test_batches(batch: Any, tables: dict[str, Any], said: str) -> None:
    if not said:
        return check(with_("problem", batch=batch), **tables)
    with pytest.raises(Refused, match=said):
        check(with_("problem", batch=batch), **tables)
    return None


@pytest.mark.parametrize(
    ("weights", "weighting", "counts", "said"),
    [
        ((1 / 3, 1 / 3, 1 / 3), "uniform", False, ""),
        ((0.5, 0.3, 0.2), "size", True, ""),
        ((0.5, 0.3, 0.2), "uniform", True, "weights differ, and problem.weighting = 'uniform'"),
        ((0.5, 0.3, 0.2), "size", False, "weights differ, and counts of rows are not told"),
        ((1 - 2e-14, 1e-14, 1e-14), "size", True, "more than 10 times as much as another"),
        ((0.9, 0.2, -0.1), "size", True, "positive numbers whose sum is 1"),
        ((float("inf"), 0.2, 0.1), "size", True, "positive numbers whose sum is 1"),
        ((5, 3, 2), "size", True, "positive numbers whose sum is 1"),
    ],
)
def test_weights(weights: tuple[float, ...], weighting: str, counts: bool, said: str) -> None:
    here = site(allow={"counts": counts})
    if not said:
        return policy.check_weights(here, weights, weighting)
    with pytest.raises(Refused, match=said):
        policy.check_weights(here, weights, weighting)
    return None


def test_partners_are_these_and_no_others() -> None:
    key = "0123-4567-89ab-cdef-0123-4567-89ab-cdef"
    known = {"oslo": key, "turin": key}
    check(partners=known)
    check(sites=["lyon", "oslo"], partners=known)
    with pytest.raises(Refused, match=r"ghost1, ghost2: not among its \[partners\]"):
        check(sites=["lyon", "ghost1", "ghost2"], partners=known)
    with pytest.raises(Refused, match=r"the job has 2 sites, and require\.sites = 3"):
        check(sites=["lyon", "oslo"], partners=known, require={"sites": 3})
    with pytest.raises(Refused, match=r"only with sites whose keys are under its \[partners\]"):
        check(changed("protection", {"secure_aggregation": True}))


def test_the_site_says_how_sums_are_rounded() -> None:
    with pytest.raises(Refused, match=r"protection.fraction_bits = 52, and require.fraction_bits = 40"):
        policy.check_required(site(), Protection(secure_aggregation=True, fraction_bits=52))


def test_an_unknown_table_of_a_job_is_refused() -> None:
    with pytest.raises(InputError, match=r"the job has a table \['data'\]"):
        a_job(JOB | {"data": {"name": "own"}}).check()


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
    with pytest.raises(Refused, match="'summary' has no noise"):
        policy.check_preparation(site(require={"privacy": {"noise": 2.0, "epsilon": 1.0}}), "summary")
    with pytest.raises(Refused, match="are not told"):
        policy.check_counts(here)
    policy.check_counts(site(allow={"counts": True}))
    policy.check_bytes(here, 900, 100)
    with pytest.raises(Refused, match=r"more than limits.bytes = 1,000 would leave"):
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
