"""The laws of algorithms: tests of all claims in `needs`, `facts` and `largest_prox_step`."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from math import inf, isinf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxfed.algorithms import ALGORITHMS, CompressedDownlink
from proxfed.compressors import COMPRESSORS, Identity
from proxfed.engine.compatibility import check_combination, compressors
from proxfed.engine.halves import Work
from proxfed.engine.messages import dense, leaves, received
from proxfed.engine.run import Run
from proxfed.engine.states import flatten, take
from proxfed.errors import require
from proxfed.keyed_random import keys
from proxfed.participation import Full
from proxfed.testing import configurable as common
from proxfed.testing import toy
from proxfed.testing.law import Broken, DoesNotApply, Law, Report, check_laws, collect, must
from proxfed.testing.runs import (
    after,
    apart,
    begun,
    must_count_alike,
    must_equal,
    problem,
    regulariser,
    ring,
    small_blocks,
    some,
)
from proxfed.testing.watchers import AllInOneStep, Spy, WatchedGraph, WatchedRelay, WatchedStar
from proxfed.topologies import FromMatrix
from proxfed.topologies import dense as as_matrix
from proxfed.types import Algorithm, Compressor, Facts, Graph, Needs, Participation, Problem, Relay, Star, When

LAWS: list[Law] = []
law = collect(LAWS)


def check_algorithm(algorithm: Algorithm) -> Report:
    """Test all laws for an algorithm on a small problem, on which steps between 0.1 and 1 suit most methods.

    The report is true if no law is broken, so that a test can use `assert check_algorithm(Mine(0.5))`.
    """
    a, name = algorithm, type(algorithm).__name__
    require(isinstance(a, (Star, Graph)), f"{a!r:.80} is no algorithm: give an object of a Star or a Graph")
    for field, kind, example in (("needs", Needs, "Needs()"), ("facts", Facts, "Facts(Sends(up=1, down=1), True)")):
        there = isinstance(getattr(a, field, None), kind)
        require(there, f"{name} must say its {field}: {field}: ClassVar[{kind.__name__}] = {example}, for instance")
    return check_laws(a, "algorithm", LAWS)


# ---- where it ends ---------------------------------------------------------------------------------------------------


@law()
def is_accepted_before_a_run(a: Algorithm) -> None:
    """The checks before every run let it solve the toy problem."""
    check_combination(problem(a), a, ring(a), Full())


LOOKS = (75, 300, 1200, 4800)
"""Rounds after which we look where an algorithm is."""


@law()
def ends_where_its_facts_say(a: Algorithm) -> str | None:
    """With full gradients it ends at the solution, to 1e-8, if facts.exact; else at least half of the way there."""
    p, x = problem(a), toy.solution(regulariser(a))
    best, run, since = toy.objective(p, x), begun(a, p), 0
    at_start, errors = toy.objective(p, run.x0) - best, [toy.error(run.x0, x)]
    for rounds in LOOKS:
        after(run, rounds, since)
        since, model = rounds, run.model()
        errors.append(toy.error(model, x))
        rest = (toy.objective(p, model) - best) / at_start
        if errors[-1] < 1e-8:
            return None if a.is_exact() else f"facts.exact is False, but here it finds the solution: {errors[-1]:.1e}"
        if rest < 0.01 and not a.is_exact() and rounds >= 300:
            return None
    earlier, last = f"{errors[-2]:.1e} after {LOOKS[-2]} rounds", f"{errors[-1]:.1e} after {LOOKS[-1]}"
    if not a.is_exact():
        left = f"{rest:.0%} of the first optimality gap is left after {since} rounds"
        longer = "larger" if errors[-1] < errors[-2] else "smaller"
        must(rest <= 0.5, f"{left}; try {longer} steps")
        return f"facts.exact is False: {left}"
    if errors[-1] < 0.35 * errors[-2]:
        return f"on its way like 1/t or faster: the relative error is {earlier}, {last}"
    if errors[-1] < 0.99 * errors[-2]:
        raise Broken(f"too slow to tell whether it is exact: the relative error is {earlier}, {last}; try larger steps")
    raise Broken(f"facts.exact is True, but the relative error does not go to 0: {earlier}, {last}")


@law(of=Star)
def ends_there_with_some_clients_if_its_facts_say(a: Star[Any, Any]) -> str | None:
    """With two of the five clients a round it ends at the solution, to 1e-8, if facts.exact_partial."""
    if a.requires().everyone:
        return "it needs every client in every round"
    x = toy.solution(regulariser(a))
    run, since, error = begun(a, problem(a), some(a)), 0, inf
    for rounds in LOOKS if a.is_exact(partial=True) else LOOKS[:2]:
        error, since = toy.error(after(run, rounds, since).model(), x), rounds
        if error < 1e-8:
            return None if a.is_exact(partial=True) else "facts.exact_partial is False, but here it finds the solution"
    said = f"facts.exact_partial is True, but the relative error is {error:.1e} after {since} rounds; try smaller steps"
    must(not a.is_exact(partial=True), said)
    return None


@law()
def is_exact_with_the_settings_that_its_facts_name(a: Algorithm) -> str | None:
    """Where facts.exact or facts.exact_partial is a `When`, each of its cases is put to the test."""
    full, some = ends_where_its_facts_say, ends_there_with_some_clients_if_its_facts_say
    named = [(f, law) for f, law in ((a.facts.exact, full), (a.facts.exact_partial, some)) if isinstance(f, When)]
    if not named or not is_dataclass(a):
        return "its facts name no settings"
    for fact, law in named:
        for case in fact.cases:
            try:
                law(replace(a, **case))
            except Broken as e:
                raise Broken(f"with {When(**case)}: {e}") from e
    return None


# ---- with another step -----------------------------------------------------------------------------------------------

ROUNDS, LOOK = 600, 75
"""Until a run has settled, if it does; we look every so many rounds."""


@law(factor=[0.5, 1.5])
def a_solution_stays_one_with_another_step(a: Algorithm, factor: float) -> str | None:
    """Once an exact one has come to the solution, it stays there if it goes on from its state with another step.

    Peers do not compress here: they have to tell each other anew what they know of each other.
    """
    if not a.is_exact():
        return "facts.exact is False: the solution is no fixed point"
    a = uncompressed(a) if isinstance(a, Graph) else a
    other, x, since = with_step(a, factor), toy.solution(regulariser(a)), 0
    run = begun(a, problem(a), most(a))
    while (error := toy.error(run.model(), x)) > 1e-9:
        if since == LOOKS[-1]:
            return f"it has not come to the solution: the relative error is {error:.1e} after {since} rounds"
        run, since = after(run, since + 75, since), since + 75
    run = run.fork(other)
    for t in range(4):
        error = toy.error(after(run, since + t, since + t - 1 if t else since).model(), x)
        must(error < 1e-6, f"{t} rounds after its step became {factor} times as long the relative error is {error:.1e}")
    return None


@law()
def where_it_ends_does_not_depend_on_its_first_step(a: Algorithm) -> str | None:
    """A run that goes on from one with half the step ends where the step itself leads to."""
    p, half = problem(a), with_step(a, 0.5)
    run, models = begun(a, p, most(a)), []
    for rounds in range(LOOK, ROUNDS + 1, LOOK):
        models.append(after(run, rounds, rounds - LOOK).model())
        if rounds > LOOK and apart(*models[-2:]) < 1e-11:
            break
    else:
        if apart(models[len(models) // 2 - 1], models[-1]) > 1e-7:
            raise DoesNotApply(f"it does not settle within {ROUNDS} rounds")
    changed, since = after(begun(half, p, most(a)), 6).fork(a), 6
    while (off := apart(after(changed, since + LOOK, since).model(), models[-1])) > 1e-9 and since < ROUNDS - LOOK:
        since += LOOK
    must(off < 1e-5, f"six rounds with half the step are not forgotten: {off:.1e} off after {since + LOOK} rounds")
    return None


def with_step(a: Algorithm, factor: float) -> Algorithm:
    """The same with steps that are so many times as long, and penalties to match."""
    fixed, longer = a.steps_for(1.0), a.steps_for(factor)
    factors = {name: longer[name] / fixed[name] for name in fixed}
    numbers = {name: value for name, value in vars(a).items() if name in factors and isinstance(value, float)}
    if not numbers or not is_dataclass(a):
        raise DoesNotApply("it says of none of its numbers that it is a step (facts.step)")
    return replace(a, **{name: value * factors[name] for name, value in numbers.items()})


def uncompressed(a: Graph[Any]) -> Graph[Any]:
    names = [name for name, value in vars(a).items() if isinstance(value, Compressor)]
    return replace(a, **dict.fromkeys(names, Identity())) if names and is_dataclass(a) else a


def most(a: Algorithm) -> Participation:
    """As few clients a round as it can stand without a bias."""
    return some(a) if a.is_exact(partial=True) else Full()


# ---- numbers ---------------------------------------------------------------------------------------------------------


@law()
def keeps_shapes_and_dtypes(a: Algorithm) -> None:
    """States and model keep their shapes, and are float32 for a problem in float32, with nearly the same numbers."""
    found = {}
    for dtype in (torch.float32, torch.float64):
        run, word = begun(a, problem(a, dtype=dtype), some(a)), str(dtype).removeprefix("torch.")
        before = {key: (tuple(x.shape), x.dtype) for key, x in run.dump().items()}
        for since, rounds in ((0, 0), (0, 1), (1, 4)):
            for key, x in after(run, rounds, since).dump().items():
                now = tuple(x.shape), x.dtype
                must(x.dtype == dtype or not x.is_floating_point(), f"{key} is {x.dtype} in round {rounds}, not {word}")
                must(now == before[key], f"{key} was {before[key]} and is {now} in round {rounds}")
                rows = not key.startswith("clients") or (x.ndim > 0 and len(x) == toy.N)
                must(rows, f"{key} has the shape {tuple(x.shape)}, without one row for each of the {toy.N} clients")
        x = found[dtype] = run.model()
        must(x.shape == (toy.D,), f"the model has the shape {tuple(x.shape)}, not {(toy.D,)}")
        must(x.dtype == dtype, f"the model is {x.dtype}, not {word}")
    off = apart(found[torch.float32].double(), found[torch.float64])
    must(off < 1e-4, f"after 4 rounds, the models in float32 and in float64 differ by {off:.1e}")


@law()
def same_seed_same_run(a: Algorithm) -> str | None:
    """Two runs with one seed are equal bit by bit, and with another seed other minibatches make another run."""
    p = problem(a, batch=4)
    one, same, other = (after(begun(a, p, some(a), seed), 4) for seed in (3, 3, 4))
    must_equal(one, same, "two runs with the seed 3")
    if apart(one.model(), other.model()) > 1e-6:
        return None
    everything = after(begun(a, problem(a), some(a), 3), 4)
    draws = not torch.equal(one.model(), everything.model()) or not isinstance(some(a), Full)
    must(not draws, "it draws, but the seeds 3 and 4 give the same run")
    return "it draws nothing: all seeds give the same run"


@law()
def renaming_clients_renames_their_states(a: Algorithm) -> None:
    """If clients change places, with their data and neighbours, their states do and nothing else changes."""
    order = np.array([3, 0, 4, 2, 1])
    p = problem(a, batch=4, sizes=toy.RAGGED, weighting="size")
    one, graph = after(begun(a, p), 6), ring(a)
    moved = None if graph is None else FromMatrix(as_matrix(graph.W(0))[np.ix_(order, order)])
    other = after(begun(a, Problem(toy.Renamed(p.f, order), p.h, p.x0), topology=moved), 6)
    renamed = other.dump()
    for key, x in one.dump().items():
        off = apart(renamed[key], x[torch.from_numpy(order)] if key.startswith("clients") else x)
        must(off <= 1e-10, f"{key} depends on the order of the clients: it differs by {off:.1e} after 6 rounds")
    off = apart(other.model(), one.model())
    must(off <= 1e-10, f"the model depends on the order of the clients: it differs by {off:.1e} after 6 rounds")


@law(batch=[None, 4])
def blocks_of_clients_on_two_cores_do_not_matter(a: Algorithm, batch: int | None) -> None:
    """Whether the engine hands it all clients at once or one or two at a time, in two threads, the run is the same."""
    p = problem(a, batch=batch, sizes=toy.RAGGED, weighting="size")
    whole, split = after(begun(a, p), 4), begun(a, p)
    with small_blocks(2, threads=2):
        assert len(split.network.blocks(range(p.f.n))) == 4
        after(split, 4)
    parts = split.dump()
    for key, x in whole.dump().items():
        off = apart(parts[key], x)
        must(off <= 1e-12, f"{key} differs by {off:.1e} after 4 rounds between all clients at once and blocks of them")
    must_count_alike(whole, split, "all clients at once and blocks of them")


@law(of=Star)
def runs_without_participants(a: Star[Any, Any]) -> None:
    """A process none of whose clients takes part runs a block of no clients; state and message have no rows then."""
    p = problem(a, batch=4)
    run = after(begun(a, p), 1)
    own, (_, down) = take(run.state.clients, slice(0, 0)), a.down(run.state.server, keys(0, "server message", [0], 2))
    f = run.clients.oracle(2, range(0), Work())
    new, up = a.client(own, received(down), f, p.h)
    if isinstance(a, Relay):
        new, up = a.relay(new, up, 0.0, f.key)
    for key, x in flatten(new).items():
        expected = flatten(own)[key].shape
        must(x.shape == expected, f"{key} of no clients has the shape {tuple(x.shape)}, not {tuple(expected)}")
    for m in leaves(up):
        must(len(dense(m)) == 0, f"the message of no clients has {len(dense(m))} rows")


# ---- what it touches -------------------------------------------------------------------------------------------------


@law()
def changes_nothing_in_place(a: Algorithm) -> None:
    """What is handed to its methods, states and messages, stays as it is; and no client sends its own memory."""
    watched = WatchedRelay(a) if isinstance(a, Relay) else WatchedStar(a) if isinstance(a, Star) else WatchedGraph(a)
    p, graph = problem(a, batch=4), ring(a)
    run, plain = (after(begun(x, p, some(a), topology=graph), 4) for x in (watched, a))
    must(torch.equal(run.model(), plain.model()), "two runs of it differ, once watched and once not")


@law()
def largest_prox_step_is_a_bound(a: Algorithm) -> None:
    """No prox step exceeds largest_prox_step(), and one comes near; inf if they grow; 0 and none if not composite."""
    largest, spy = a.largest_prox_step(), Spy(toy.SPARSE)
    after(begun(a, replace(problem(a), h=spy)), 8).model()
    steps = spy.steps
    if not a.needs.composite:
        must(not steps, f"needs.composite is False, but it takes prox steps, such as {steps[:1]}")
        must(largest == 0, f"needs.composite is False, but largest_prox_step() is {largest:g}, not 0")
        return
    must(len(steps) > 0, "needs.composite is True, but it takes no prox step")
    if isinf(largest):
        must(a.needs.convex, "largest_prox_step() is inf, so it must say needs.convex")
        grow = max(steps) > 1.5 * next((step for step in steps if step > 0), inf)
        must(grow, f"largest_prox_step() is inf, but in 8 rounds no step exceeds {max(steps):g}")
        return
    must(
        max(steps) <= largest * (1 + 1e-12), f"it takes a prox step {max(steps):g} > largest_prox_step() = {largest:g}"
    )
    careless = f"largest_prox_step() = {largest:g}, but in 8 rounds no step exceeds {max(steps):g}: a careless bound"
    must(max(steps) > 0.5 * largest, careless)


# ---- what travels ----------------------------------------------------------------------------------------------------


def promised(a: Algorithm, dtype: torch.dtype) -> dict[str, int]:
    """Bytes per client (or edge) and round by what the algorithm says that it sends."""
    sends, vector = a.sends(), torch.ones(1, toy.D, dtype=dtype)
    must(sends.times == "", f"sends() says times = {sends.times!r}; with its settings an algorithm knows how often")
    numbers = {"up": sends.numbers_up, "down": sends.numbers_down, "edge": 0}
    found = {}
    for way, vectors in (("up", sends.up), ("down", sends.down), ("edge", sends.edge)):
        one = _compressor(a, way)(vector, keys(0, "test", [0], 0)).nbytes if way in sends.compressed else vector.nbytes
        found[way] = vectors * one + numbers[way] * dtype.itemsize
    found["down"] += sends.bytes_down
    return found


def _compressor(a: Algorithm, way: str) -> Compressor:
    """The one for this way: of several, that in the field named after it."""
    known = compressors(a)
    must(len(known) > 0, f"sends() says compressed = {a.sends().compressed}, but none of its fields is a compressor")
    named = getattr(a, f"compressor_{way}", None)
    if len(known) > 1 and named is None:
        raise DoesNotApply(f"it has {len(known)} compressors, and none of them is called compressor_{way}")
    found: Compressor = known[0] if named is None else named
    ones = torch.ones(1, toy.D)
    if len({found(v, keys(0, "test", [0], 0)).nbytes for v in (ones, ones.cumsum(1))}) > 1:
        raise DoesNotApply(f"messages of {type(found).__name__} are as long as what they hold asks for")
    return found


def counted(a: Algorithm, dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """The same as the network counts it."""
    traffic = after(begun(a, problem(a, dtype=dtype), some(a)), rounds).network.traffic
    clients = rounds * (toy.N if isinstance(some(a), Full) else 2)
    listeners = rounds * toy.N if a.requires().all_hear else clients
    edges = rounds * 2 * toy.N  # of a ring
    return {"up": traffic.up / clients, "down": traffic.down / listeners, "edge": traffic.edge / edges}


@law(dtype=[torch.float32, torch.float64])
def bytes_are_those_of_its_facts(a: Algorithm, dtype: torch.dtype) -> None:
    """The bytes that cross the network are those of sends(): vectors of d numbers, compressed or not."""
    promise = promised(a, dtype)
    must(sum(promise.values()) > 0, "sends() says that nothing travels")
    found, slack = counted(a, dtype, 4), 0.0
    if a.sends().on_average and found != promise:  # drawn from round to round: more of them
        found, slack = counted(a, dtype, 2000), 0.03
    for way, size in promise.items():
        near = abs(found[way] - size) <= slack * size
        words = {"up": "per client and round up", "down": "per client and round down", "edge": "per edge and round"}
        must(near, f"{found[way]:g} bytes {words[way]} were counted, but sends() promises {size} ({a.sends()})")


@law(of=Graph)
def mixes_as_often_as_it_sends(a: Graph[Any]) -> None:
    """A round calls `mix` as often as sends().edge says: the simulated clock pays a latency for each."""
    watched, rounds = AllInOneStep(a), 3
    after(begun(watched, problem(a), topology=ring(a)), rounds)
    each = watched.calls / rounds
    must(each == a.sends().edge, f"it calls mix {each:g} times a round, but sends().edge is {a.sends().edge}")


# ---- before the first mix --------------------------------------------------------------------------------------------


@law(of=Graph, blocks=[False, True])
def before_mix_then_step(a: Graph[Any], blocks: bool) -> None:
    """A round is the same bit by bit whether clients put their states away between before_mix and step or not."""
    p, graph = problem(a, batch=4, sizes=toy.RAGGED, weighting="size"), ring(a)

    def both() -> tuple[Run, Run]:
        separate, together = (after(begun(x, p, topology=graph), 5) for x in (a, AllInOneStep(a)))
        return separate, together

    if blocks:
        with small_blocks(2, threads=1):
            assert len(begun(a, p).network.blocks(range(p.f.n))) == 3
            must_equal(*both(), "before_mix apart from step and within it")
    else:
        must_equal(*both(), "before_mix apart from step and within it")


@law(of=Graph)
def before_mix_leaves_a_state(a: Graph[Any]) -> None:
    """What before_mix returns is a state like any other: the same fields, shapes and dtypes."""
    p = problem(a, batch=4)
    run = after(begun(a, p), 3)
    between = flatten(a.before_mix(run.state, run.clients.oracle(4, range(p.f.n), Work()), p.h))
    state = flatten(run.state)
    must(between.keys() == state.keys(), f"it has the fields {[*between]}, not {[*state]}")
    for key, x in state.items():
        now, then = ((tuple(y.shape), y.dtype) for y in (between[key], x))
        must(now == then, f"{key} was {then} and is {now} after before_mix")


# ---- interruptions, files, words -------------------------------------------------------------------------------------


@law()
def goes_on_bit_for_bit_after_a_dump(a: Algorithm) -> None:
    """A run that was saved after 3 rounds and loaded goes on as if nothing had happened: its state is all of it."""
    p = problem(a, batch=4)
    whole = after(begun(a, p, some(a)), 3)
    resumed = begun(a, p, some(a))
    resumed.load(_saved(whole), whole.counters() | {"wall_seconds": 0.0})
    must_equal(after(whole, 7, since=3), after(resumed, 7, since=3), "a run and one that was resumed after round 3")


def _saved(run: Run) -> dict[str, Tensor]:
    """As a checkpoint has it: of all clients, or of those who have taken part."""
    changes = run.changes()
    saved = run.dump(clients=changes is None)
    for piece in changes or ():  # so few rows are one piece
        saved |= piece
    return {key: x.clone() for key, x in saved.items()}


@law()
def survives_the_configuration_file(a: Algorithm) -> None:
    """The table that describes it in a configuration file builds the same object again."""
    if isinstance(a, CompressedDownlink):
        common.survives_the_configuration_file(a.compressor, COMPRESSORS)
        a = a.star
    common.survives_the_configuration_file(a, ALGORITHMS)


@law()
def is_documented(a: Algorithm) -> None:
    """The class has a docstring, and each of its settings a line of its own below it or there."""
    common.is_documented(a)
