"""Every registered algorithm x every law.

A new algorithm needs an entry in SETTINGS (support/algorithm_settings.py), and nothing else: whatever it promises in
`needs`, `facts` and `largest_prox_step` is then put to the test. The laws themselves are in proxfed.testing.
"""

from __future__ import annotations

import inspect
import re
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from proxfed import algorithms as alg
from proxfed.algorithms import ALGORITHMS
from proxfed.compressors import TopK
from proxfed.errors import InputError
from proxfed.harness.catalogue import catalogue
from proxfed.participation import Full
from proxfed.testing import algorithms as laws
from proxfed.testing import check_algorithm, runs
from proxfed.testing import toy as own_toy
from proxfed.testing.law import Broken, DoesNotApply, Law, Status
from proxfed.testing.watchers import WatchedStar
from proxfed.types import Algorithm, Facts, Local, Message, Mix, Regulariser, Sends, Star, When

from support import toy_problems as toy
from support.algorithm_settings import OTHERWISE, PARTIAL, SETTINGS, SLOW, algorithm
from support.own_algorithms import CompressedDownlink, DecentralisedHeavyBall, ExtrapolatedGradients

every = pytest.mark.parametrize("name", ALGORITHMS)

CASES = [
    pytest.param(name, law, variant, id="-".join([name, law.name, *map(str, variant.values())]))
    for law in laws.LAWS
    for variant in law.variants
    for name, make in ALGORITHMS.items()
    if issubclass(make, law.of)
]


RESTLESS = {"choco_sgd", "dpsgd", "ef14", "fast_fedda", "fedpaq"}
"""Those that have not settled after the rounds of that law."""
OF_STEPS = (laws.a_solution_stays_one_with_another_step, laws.where_it_ends_does_not_depend_on_its_first_step)


@pytest.mark.parametrize(("name", "law", "variant"), CASES)
def test_law(name: str, law: Law, variant: dict[str, Any]) -> None:
    stepless = name in ("fednl", "mosaic", "prox_newton") and law in OF_STEPS
    restless = name in RESTLESS and law is laws.where_it_ends_does_not_depend_on_its_first_step
    adaptive = name == "mosaic" and law is laws.bytes_are_those_of_its_facts
    apart = stepless or restless or adaptive
    with (
        pytest.raises(DoesNotApply, match=r"it is a step|does not settle|what they hold asks for")
        if apart
        else nullcontext()
    ):
        law(algorithm(name), **variant)


@pytest.mark.parametrize(
    ("name", "law", "variant"),
    [case for case in CASES if case.values[0] in PARTIAL],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_law_with_partial(name: str, law: Law, variant: dict[str, Any]) -> None:
    law(PARTIAL[name], **variant)


def test_a_biased_method_ends_as_near_as_its_bias_lets_it() -> None:
    """Nobody promised that the bias is below one per cent."""
    assert re.fullmatch(
        r"facts\.exact is False: \d% of the first optimality gap is left after 4800 rounds",
        laws.ends_where_its_facts_say(alg.FedAvg(2.0, 20)) or "",
    )
    with pytest.raises(Broken, match=r"99% of the first optimality gap is left after 4800 rounds; try larger steps"):
        laws.ends_where_its_facts_say(alg.FedAvg(1e-5, 1))


def test_settings_are_those_of_registered_algorithms() -> None:
    takes = {name for name, make in ALGORITHMS.items() if "partial" in {f.name for f in fields(make)}}
    assert set(PARTIAL) == takes
    assert sorted(SETTINGS) == sorted(ALGORITHMS) == list(ALGORITHMS)
    for name, a in SETTINGS.items():
        assert type(a) is ALGORITHMS[name]


# ---- more of those that are registered ---------------------------------------------------------------------------


@every
def test_has_a_reference_and_says_what_travels(name: str) -> None:
    a = algorithm(name)
    assert re.search(r'^[A-Z].*, "[^"]+".*\b(18|19|20)\d\d\b.*\.$', a.reference())  # authors, title and year
    module = inspect.getmodule(type(a))
    assert "What travels:" in module.__doc__
    source = inspect.getsource(module)
    for f in fields(a):  # a docstring line below each hyper-parameter
        assert re.search(rf'^    {f.name}: [^\n]*\n    """[A-Z0-9\'(]', source, re.M), f.name


def numpy_solution(h: Regulariser) -> np.ndarray:
    """By plain proximal gradient steps, independent of the package's own solver."""
    p = own_toy.problem(h)
    return toy.solution(p, None if h == own_toy.SPARSE else lambda v, step: v / (1 + step * own_toy.RIDGE.weight))


@pytest.mark.parametrize("h", [own_toy.SPARSE, own_toy.RIDGE], ids=repr)
def test_the_reference_solution_is_that_of_numpy(h: Regulariser) -> None:
    assert toy.error(own_toy.solution(h).numpy(), numpy_solution(h)) < 1e-10


@every
def test_is_there_after_300_rounds(name: str) -> None:
    """At the solution of NumPy, to 1e-8, if it is exact; else at a biased point that is far better than the start."""
    a = algorithm(name)
    p, x = runs.problem(a), numpy_solution(runs.regulariser(a))
    run = runs.after(runs.begun(a, p), 75)
    early = toy.error(run.model().numpy(), x)
    model = runs.after(run, 300, since=75).model().numpy()
    late = toy.error(model, x)
    if name in SLOW:
        assert a.is_exact()
        assert late < 0.35 * early
    elif a.is_exact():
        assert late < 1e-8
    else:
        best = toy.objective(p, x)
        assert toy.objective(p, model) - best < 0.01 * (toy.objective(p, toy.start(p)) - best)
        assert late > 1e-3


def test_settings_whose_facts_differ_are_listed() -> None:
    """All algorithms with a condition in their facts, and no other ones."""
    conditional = {name for name, make in ALGORITHMS.items() if isinstance(make.facts.exact, When)}
    assert set(OTHERWISE) == conditional
    for name, others in OTHERWISE.items():
        usual = SETTINGS[name].is_exact()
        assert [a.is_exact() for a in others] == [not usual] * len(others)
        assert all(a.is_exact(partial=True) <= a.is_exact() for a in others)


@pytest.mark.parametrize("a", [a for others in OTHERWISE.values() for a in others], ids=repr)
def test_facts_hold_for_other_settings(a: Algorithm) -> None:
    """Exact ones reach the solution, and biased ones settle elsewhere; with some of the clients, too; and bytes."""
    x = own_toy.solution(runs.regulariser(a))
    for partial in {False, not isinstance(runs.some(a), Full)}:
        run, error = runs.begun(a, runs.problem(a), runs.some(a) if partial else Full()), 1.0
        for t in range(75, 1201, 75):
            error = toy.error(runs.after(run, t, since=t - 75).model().numpy(), x.numpy())
            if error < 1e-8:
                break
        # The best model is chosen by its loss, which round-off tells apart to about sqrt(2e-16) in the model only.
        there = 1e-7 if getattr(a, "output", "") == "best" else 1e-8
        assert a.is_exact(partial) == (error < there)
        assert error < there or error > 1e-3, "neither here nor there"
    laws.bytes_are_those_of_its_facts(a, dtype=torch.float64)


def test_a_condition_in_words() -> None:
    condition = When(tracking=True, beta=1) | When(rho=0)
    assert str(condition) == "tracking = True and beta = 1 or rho = 0"
    assert condition.holds({"tracking": True, "beta": 1.0, "rho": 0.1})
    assert not condition.holds({"tracking": False, "beta": 1.0})
    with pytest.raises(TypeError, match=r"ask its is_exact\(\)"):
        bool(condition)
    listed = {e["name"]: e for e in catalogue("algorithms")["algorithms"]}
    assert listed["fedpd"]["different data"] == "exact with p = 0"
    assert listed["fedpd"]["some clients"] == "exact with `partial` and p = 0"
    assert listed["fedspeed"]["different data"] == "biased, exact with rho = 0 or alpha = 0"
    assert listed["fedspeed"]["some clients"] == "exact with rho = 0 or alpha = 0"
    assert listed["scaffold"]["different data"] == "exact"


@every
def test_what_may_be_auto_says_so(name: str) -> None:
    """The fields whose type has "auto" in it are those that can be found."""
    says = {f.name for f in fields(ALGORITHMS[name]) if str(f.type).split()[0] in ("Step", "FloatOrAuto")}
    assert says == set(algorithm(name).steps_for(1.0))


# ---- what travels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "text"),
    [
        (alg.FedNAG(0.3, 0.5, 3, output="best"), "2 up, 2 down, and 1 number up"),
        (alg.DFedSAM(0.5, 3, 0.1, Q=3), "3 per edge"),
        (alg.ProxGT(1.5, Q=3), "6 per edge"),
    ],
    ids=["FedNAG", "DFedSAM", "ProxGT"],
)
def test_bytes_are_those_of_its_settings(a: Algorithm, text: str) -> None:
    assert str(a.sends()) == text
    laws.bytes_are_those_of_its_facts(a, dtype=torch.float64)


@pytest.mark.parametrize(
    ("sends", "text"),
    [
        (Sends(up=1, down=2), "1 up, 2 down"),
        (Sends(up=1, down=1, compressed=("up",)), "C(d) up, 1 down"),
        (
            Sends(up=2, down=1, numbers_up=1, numbers_down=3, compressed=("up", "down")),
            "2 C(d) up, C(d) down, and 1 number up, and 3 numbers down",
        ),
        (Sends(up=1, down=2, on_average=True), "1 up, 2 down on average"),
        (Sends(edge=1, times="Q"), "Q per edge"),
        (Sends(edge=2, times="Q", compressed=("edge",)), "2 Q C(d) per edge"),
    ],
    ids=str,
)
def test_what_it_sends_in_words(sends: Sends, text: str) -> None:
    assert str(sends) == text


# ---- the laws can fail -------------------------------------------------------------------------------------------


class Fine(alg.Scaffold):
    """An own algorithm that does nothing wrong."""


def random_noise(x: Tensor) -> Tensor:
    return 1e-3 * torch.randn(x.shape, dtype=x.dtype)


class WritesIntoItsState(alg.Scaffold):
    """In place, but with a result that is right."""

    def client(self, own: Any, down: Message, f: Local, h: Regulariser) -> tuple[Any, Message]:
        new, up = super().client(own, down, f, h)
        own.c.add_(1)
        return new, up


class SendsItsState(alg.EF21):
    """The message is the memory of the state."""

    def client(self, own: Any, down: Message, f: Local, h: Regulariser) -> tuple[Any, Message]:
        return own, own.c


class SendsMore(alg.FedAvg):
    """Twice what its facts say."""

    def client(self, own: Any, down: Message, f: Local, h: Regulariser) -> tuple[Any, Message]:
        own, y = super().client(own, down, f, h)
        return own, (y, y)

    def server(self, s: Any, up: Message, h: Regulariser, share: float) -> Any:
        return super().server(s, up[0], h, share)


class SaysExact(alg.FedAvg):
    """It is not."""

    facts: ClassVar[Facts] = alg.FedAvg.facts._replace(exact=True)


class CountsClients(alg.FedAvg):
    """The first client of a block is favoured."""

    def client(self, own: Any, down: Message, f: Local, h: Regulariser) -> tuple[Any, Message]:
        own, y = super().client(own, down, f, h)
        return own, y * (1 - 1e-3 / (1 + torch.arange(len(y), dtype=y.dtype)[:, None]))


class GlobalRandomNumbers(alg.FedAvg):
    """Noise that no key decides."""

    def client(self, own: Any, down: Message, f: Local, h: Regulariser) -> tuple[Any, Message]:
        own, y = super().client(own, down, f, h)
        return own, y + random_noise(y)


class LosesDtype(alg.FedAvg):
    """All in float64."""

    def server(self, s: Any, up: Message, h: Regulariser, share: float) -> Any:
        return super().server(s, up.double(), h, share)


class BoundTooSmall(alg.FedMiD):
    """Of its prox steps."""

    def largest_prox_step(self) -> float:
        return 0.9 * super().largest_prox_step()


class BoundTooLarge(alg.FedMiD):
    """Of its prox steps."""

    def largest_prox_step(self) -> float:
        return 3 * super().largest_prox_step()


@dataclass(frozen=True)
class Remembers(alg.FedAvg):
    """In itself, where no dump finds it."""

    def client(self, own: Any, down: Message, f: Local, h: Regulariser) -> tuple[Any, Message]:
        own, y = super().client(own, down, f, h)
        if f.t > 1:
            y = y + 0.01 * self.__dict__.get("before", down)
        self.__dict__["before"] = down.clone()
        return own, y


class BeforeMixGrows(alg.DPSGD):
    """What before_mix leaves is no state."""

    def before_mix(self, s: Any, f: Local, h: Regulariser) -> Any:
        return s._replace(x=torch.cat([s.x, s.x], 1))

    def step(self, s: Any, f: Local, h: Regulariser, mix: Mix) -> Any:
        return super().step(s._replace(x=s.x[:, : toy.D]), f, h, mix)


class MixesTwice(alg.DPSGD):
    """And says once."""

    def step(self, s: Any, f: Local, h: Regulariser, mix: Mix) -> Any:
        return super().step(s, f, h, lambda x: mix(mix(x)))


class NeedsClients(alg.FedAvg):
    """At least one of them."""

    def client(self, own: Any, down: Message, f: Local, h: Regulariser) -> tuple[Any, Message]:
        own, y = super().client(own, down, f, h)
        return own, y + 0 * y[0]


@dataclass(frozen=True)
class Undocumented(alg.FedAvg):
    secret: float = 0.0


@dataclass(frozen=True)
class Forgets(alg.FedAvg):
    """What the configuration file said.

    eta      the step
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "eta", 0.9 * self.eta)


class KeepsItsState(alg.FedComposite):
    """Whatever its step has become."""

    carried = Star.carried


class LosesTrack(alg.FedPD):
    """Of what the server counts on, when its step changes."""

    carried = Star.carried


BLOCKS = "blocks of clients on two cores do not matter"
RANDOM = {
    "keeps shapes and dtypes",
    "renaming clients renames their states",
    BLOCKS,
    "changes nothing in place",
    "goes on bit for bit after a dump",
}
BAD: list[tuple[Algorithm, set[str], str]] = [  # the laws that are broken, and a sentence
    (WritesIntoItsState(1.5, 3), {"changes nothing in place"}, r"client\(\) writes into its argument `own`"),
    (
        SendsItsState(2.0),
        {
            "changes nothing in place",
            "ends where its facts say",
            "ends there with some clients if its facts say",
            "same seed same run",
        },
        "sends the memory of its own state",
    ),
    (SendsMore(0.5, 3), {"bytes are those of its facts"}, r"80 bytes per client and round up were .* promises 40 "),
    (SaysExact(0.5, 3), {"ends where its facts say"}, "the relative error does not go to 0"),
    (CountsClients(0.5, 3), {"renaming clients renames their states", BLOCKS}, "depends on the order of the clients"),
    (GlobalRandomNumbers(0.5, 3), {"same seed same run", *RANDOM}, "two runs with the seed 3: server.x differs by"),
    (
        LosesDtype(0.5, 3),
        {"keeps shapes and dtypes", "bytes are those of its facts"},
        "server.x is torch.float64 in round 1, not float32",
    ),
    (BoundTooSmall(0.5, 3), {"largest prox step is a bound"}, "prox step .* > largest_prox_step"),
    (BoundTooLarge(0.5, 3), {"largest prox step is a bound"}, "a careless bound"),
    (Remembers(0.5, 3), {"goes on bit for bit after a dump", BLOCKS}, "resumed after round 3: .* differs by"),
    (BeforeMixGrows(0.5), {"before mix leaves a state", "before mix then step", BLOCKS}, "after before_mix"),
    (
        MixesTwice(0.5),
        {"mixes as often as it sends", "bytes are those of its facts"},
        "calls mix 2 times a round, but sends.*edge is 1",
    ),
    (NeedsClients(0.5, 3), {"runs without participants"}, "IndexError: .*test_conformance.py, line .*, in client"),
    (
        KeepsItsState(1.5, 3),
        {"a solution stays one with another step"},
        r"0 rounds after its step became 0.5 times as long the relative error is 1\.\de-01",
    ),
    (
        LosesTrack(8.0, 2.0, 3, partial=True),
        {"where it ends does not depend on its first step"},
        "six rounds with half the step are not forgotten",
    ),
    (Undocumented(0.5, 3), {"is documented"}, "no docstring"),
    (Forgets(0.5, 3), {"survives the configuration file"}, "comes back as"),
]


@pytest.mark.parametrize(("a", "broken", "says"), BAD, ids=[type(a).__name__ for a, _, _ in BAD])
def test_a_broken_algorithm_is_caught_by_the_right_law(a: Algorithm, broken: set[str], says: str) -> None:
    report = check_algorithm(a)
    assert not report
    assert set(report.broken) == broken
    assert any(re.search(says, why) for why in report.broken.values()), report


@pytest.mark.parametrize(
    "a",
    [
        Fine(1.5, 3),
        CompressedDownlink(1.0, TopK(k=3)),
        ExtrapolatedGradients(2.0),
        DecentralisedHeavyBall(0.5, 0.5),
        alg.DSMT(1.0, 0.5, eta_w=0.2),  # needs a W without negative eigenvalues
    ],
    ids=lambda a: type(a).__name__,
)
def test_all_laws_hold_for_good_algorithms(a: Algorithm) -> None:
    report = check_algorithm(a)
    assert report, report


def test_an_algorithm_that_diverges_is_told_so() -> None:
    why = check_algorithm(alg.FedAvg(1e6, 3)).broken["ends where its facts say"]
    assert re.fullmatch(r"diverged: the model exceeds 1e\+15 in round \d+; try smaller steps", why)


def test_one_that_is_better_than_it_says_is_remarked() -> None:
    class Modest(alg.ProximalGradient):
        facts: ClassVar[Facts] = alg.ProximalGradient.facts._replace(exact=False)

    outcome = next(o for o in check_algorithm(Modest(8.0)).outcomes if o.law == "ends where its facts say")
    assert outcome.status is Status.holds
    assert outcome.says.startswith("facts.exact is False, but here it finds the solution")


def test_one_that_is_biased_as_it_says_obeys_the_law() -> None:
    """It stays away from the solution, by more than one per cent of the first gap; no step size is to blame."""
    said = laws.ends_where_its_facts_say(alg.FedAvg(2.0, 20))
    assert said is not None
    assert re.fullmatch(r"facts\.exact is False: \d+% of the first optimality gap is left after \d+ rounds", said)


def test_one_that_is_slow_is_told_so() -> None:
    with pytest.raises(Broken, match="too slow to tell whether it is exact"):
        laws.ends_where_its_facts_say(replace(algorithm("scaffold"), eta=1e-3))


def test_an_algorithm_that_takes_prox_steps_must_say_the_largest() -> None:
    class Forgetful(WatchedStar):
        largest_prox_step = Star.largest_prox_step

    with pytest.raises(NotImplementedError, match=r"Forgetful takes prox steps, so it needs a largest_prox_step\(\)"):
        Forgetful(algorithm("fedavg")).largest_prox_step()


def test_what_is_no_algorithm_is_refused() -> None:
    class Silent(alg.FedAvg):
        facts = None

    with pytest.raises(InputError, match=r"^Silent must say its facts: facts: ClassVar\[Facts\] = Facts\("):
        check_algorithm(Silent(0.5, 3))
    with pytest.raises(InputError, match="is no algorithm: give an object of a Star or a Graph"):
        check_algorithm(alg.FedAvg)  # type: ignore[arg-type]


def test_a_law_in_a_test_says_its_sentence() -> None:
    with pytest.raises(Broken, match="promises 40"):
        laws.bytes_are_those_of_its_facts(SendsMore(0.5, 3), dtype=torch.float32)


def test_a_report_says_what_is_broken() -> None:
    report = check_algorithm(Undocumented(0.5, 3))
    assert str(report) == "16 laws hold, 1 does not, 3 do not apply"
    assert repr(report).splitlines()[1:] == ["  is documented: Undocumented has no docstring"]
