"""The two main functions: `run` one algorithm in memory, and `compare` several, with all results kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

from torch import Tensor

from proxfed.engine.compatibility import check_combination
from proxfed.engine.loop import Row
from proxfed.engine.measures import Measures
from proxfed.engine.network import Stacked, world
from proxfed.engine.state_measures import check_names
from proxfed.errors import RunError, of_kind, require, whole
from proxfed.explained import explain
from proxfed.harness.execute import begin
from proxfed.harness.experiment import slug
from proxfed.harness.folder.run_folder import RunFolder
from proxfed.harness.follow import Records, follow
from proxfed.harness.plan import Planned, carry_out
from proxfed.harness.remarks import beforehand, equal_weights
from proxfed.harness.results import Cases, Results
from proxfed.harness.study import Entry, Study, as_problem, names
from proxfed.hooks import About, begun, checked
from proxfed.participation import Full
from proxfed.report.columns import RunStatus
from proxfed.report.progress import Progress, watching
from proxfed.report.terminal import err, say, say_messages, stop_on_signal
from proxfed.simulate import Timing, profiles
from proxfed.types import Algorithm, Method, Participation, Problem, Smooth, Topology, directions

__all__ = ["Diverged", "Result", "compare", "folder_of", "run", "run_study"]


class Diverged(RunError):
    """A run has diverged, raised only with throw = True; `result` has its rows so far."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.message)
        self.result = result


@dataclass(frozen=True, eq=False)
class Result:
    """The result of one run."""

    status: RunStatus
    """'finished', 'early' (stopped by a hook), 'diverged', or 'stopped' (by Ctrl-C)."""
    message: str
    """The reason if it is not finished; else a remark on its steps, if there is one."""
    model: Tensor
    """The point after the last round, (d,)."""
    rows: list[Row]
    """A row of measures for each evaluation: round, gradients, bytes_up, objective, ..."""
    state: Any = field(repr=False)
    """The states of clients and server after the last round."""
    seed: int = 0
    """The seed of the run."""
    seconds: float = 0.0
    """Wall time in rounds, without evaluations."""
    algorithm: Algorithm | None = None
    """The algorithm, with the final steps instead of "auto"."""

    def to_pandas(self) -> Any:
        """All rows as a pandas DataFrame."""
        return Results(self.rows).to_pandas()

    def __repr__(self) -> str:
        last = {k: v for k, v in self.rows[-1].items() if k in ("round", "objective", "gap", "accuracy", "nonzeros")}
        said = f", {self.message}" if self.message else ""
        return f"Result({self.status}{said}: {', '.join(f'{k} {v:.6g}' for k, v in last.items() if v is not None)})"


def run(
    problem: Problem | Smooth,
    algorithm: Algorithm,
    rounds: int,
    *,
    topology: Topology | None = None,
    participation: Participation = Full(),
    seed: int = 0,
    every: int = 1,
    reference: Tensor | None = None,
    measures: Sequence[str] = (),
    hooks: Sequence[Any] = (),
    progress: bool = True,
    throw: bool = False,
) -> Result:
    """Run `algorithm` on `problem` in this process.

    Ctrl-C ends the run after the current round and returns the result so far.

    Parameters
    ----------
    problem : Problem or Smooth
        f + h; f alone is f + 0.
    algorithm : Algorithm
        An object such as FedAvg(0.1, K=5).
    rounds : int
        Communication rounds.
    topology : Topology, optional
        The graph of an algorithm without a server, such as Ring(10).
    participation : Participation
        Which clients take part in a round; all by default.
    seed : int
        Seed of the minibatches, the compressors and the starting point.
    every : int
        Rounds between evaluations; the first and the last round are always evaluated.
    reference : Tensor, optional
        The solution, (d,), so that rows have the gap and the error.
    measures : sequence of str
        More measures, by name, for example of the clients' states.
    hooks : sequence
        Functions of a Moment, or objects such as Patience(10), called with every row; they may stop the run
        (proxfed.hooks).
    progress : bool
        Show the progress in the terminal.
    throw : bool
        Raise Diverged if the run diverges, instead of returning a result with the status 'diverged'.

    Returns
    -------
    Result
        The model, a row of measures for each evaluation, and how the run ended.
    """
    for key, value in (("rounds", rounds), ("every", every)):
        require(whole(value) and value >= 1, f"{key} = {value!r} must be a whole number >= 1")
    require(whole(seed), f"seed = {seed!r} must be a whole number")
    swapped = isinstance(problem, Method) and isinstance(algorithm, (Problem, Smooth))
    require(not swapped, "the problem comes first: run(problem, algorithm, rounds)")
    listeners = checked(hooks)
    Entry(algorithm)
    phi: Problem = as_problem(problem)
    check_combination(phi, algorithm, topology, participation)
    if more := names(measures):
        check_names(more, [algorithm], phi)
    if reference is not None:
        fits = isinstance(reference, Tensor) and reference.shape == (phi.f.d,) and not reference.is_complex()
        require(fits, f"reference = {reference!r:.80} must be a tensor of shape ({phi.f.d},), or None")
        require(bool(reference.isfinite().all()), "reference must be finite, without NaN")
        reference = reference.to(phi.f.weights)
    net = Stacked(phi.f.n, phi.f.d, topology)
    active, records = begin(algorithm, phi, net, participation, seed, rounds), Records()
    name = type(algorithm).__name__
    measured = Measures(phi, net, reference, more=tuple(measures))
    about = About(name, seed, rounds, directions=directions((*phi.f.training_measures, *phi.f.measures)))
    with stop_on_signal() as stop, watching(progress) as display, begun(listeners, about) as started:

        def show(t: int, row: Row | None) -> None:
            display(Progress(0, 1, name, seed, t, rounds, row))

        ended = follow(active, phi, measured, records, started, rounds, every=every, show=show, stop=stop)
    status, _, message, x = ended
    x = active.model() if x is None else x
    message = "; ".join(filter(None, [message, equal_weights(phi)]))
    result = Result(status, message, x, records.rows, active.state, seed, active.seconds, active.algorithm)
    if throw and status is RunStatus.DIVERGED:
        raise Diverged(result)
    return result


@overload
def compare(
    problem: Problem | Smooth,
    algorithms: Mapping[str, Algorithm | Entry],
    rounds: int,
    *,
    seeds: Sequence[int] | int = ...,
    name: str | None = ...,
    topology: Topology | None = ...,
    participation: Participation = ...,
    every: int = ...,
    reference: bool = ...,
    measures: Sequence[str] = ...,
    targets: Mapping[str, Any] | None = ...,
    timing: Timing | str | Mapping[str, Any] | None = ...,
    hooks: Sequence[Any] = ...,
    out: Path | str | None = ...,
    resume: bool = ...,
    force: bool = ...,
    only: Collection[str] | str = ...,
    jobs: int | None = ...,
    ranks: int = ...,
    progress: bool = ...,
) -> Results: ...


@overload
def compare(
    problem: Mapping[str, Problem | Smooth],
    algorithms: Mapping[str, Algorithm | Entry],
    rounds: int,
    *,
    seeds: Sequence[int] | int = ...,
    name: str | None = ...,
    topology: Topology | None = ...,
    participation: Participation = ...,
    every: int = ...,
    reference: bool = ...,
    measures: Sequence[str] = ...,
    targets: Mapping[str, Any] | None = ...,
    timing: Timing | str | Mapping[str, Any] | None = ...,
    hooks: Sequence[Any] = ...,
    out: Path | str | None = ...,
    resume: bool = ...,
    force: bool = ...,
    only: Collection[str] | str = ...,
    jobs: int | None = ...,
    ranks: int = ...,
    progress: bool = ...,
) -> Cases: ...


def compare(
    problem: Problem | Smooth | Mapping[str, Problem | Smooth],
    algorithms: Mapping[str, Algorithm | Entry],
    rounds: int,
    *,
    seeds: Sequence[int] | int = (0,),
    name: str | None = None,
    topology: Topology | None = None,
    participation: Participation = Full(),
    every: int = 1,
    reference: bool = False,
    measures: Sequence[str] = (),
    targets: Mapping[str, Any] | None = None,
    timing: Timing | str | Mapping[str, Any] | None = None,
    hooks: Sequence[Any] = (),
    out: Path | str | None = None,
    resume: bool = True,
    force: bool = False,
    only: Collection[str] | str = (),
    jobs: int | None = None,
    ranks: int = 1,
    progress: bool = True,
) -> Results | Cases:
    """Run every algorithm with every seed, and return all results.

    Ctrl-C stops after the current round and returns the results so far; the same call resumes the run.

    Parameters
    ----------
    problem : Problem, Smooth or mapping of these
        One problem, or several by name; each of several is a case with its own results and folder.
    algorithms : mapping of str to Algorithm or Entry
        By label; an Entry can have its own topology, participation or rounds.
    rounds : int
        Communication rounds of every algorithm.
    seeds : int or sequence of int
        A list of seeds, or their number.
    name : str, optional
        The name in reports; None: the name of the folder.
    topology : Topology, optional
        The graph of an algorithm without a server, such as Ring(10).
    participation : Participation
        Which clients take part in a round; all by default.
    every : int
        Rounds between evaluations; the first and the last round are always evaluated.
    reference : bool
        Compute the solution first, so that rows have the gap and the error.
    measures : sequence of str
        More measures, by name: of the clients' states 'consensus_y', ..., or 'train_accuracy'.
    targets : mapping, optional
        {measure: values}: tables show the first round and the bytes at which each value is reached.
    timing : Timing, str or mapping, optional
        Devices and links for simulated seconds: a Timing, or the name of a profile.
    hooks : sequence
        Functions of a Moment, or objects such as Patience(10), called with every row; they may stop a run
        (proxfed.hooks). With jobs, copies of them run in the other processes.
    out : Path | str, optional
        The run folder; None: nothing is kept on disk.
    resume : bool
        Resume the run in the folder, if the settings are the same; seeds and algorithms may be added.
    force : bool
        Replace the contents of the folder, even with `resume`.
    only : str or collection of str
        Labels of the algorithms to run now; empty: all.
    jobs : int, optional
        The number of processes that run algorithms and seeds in parallel; None: chosen for the machine, or one if a
        hook is a plain function.
    ranks : int
        The number of processes that share the clients of a run.
    progress : bool
        Show the progress in the terminal.

    Returns
    -------
    Results or Cases
        Results for one problem; Cases, which are Results by name, for several.
    """
    require(isinstance(algorithms, Mapping), f"algorithms = {algorithms!r:.80} must be a dict of labels and algorithms")
    place = folder_of(out)
    require(not whole(seeds) or seeds >= 1, f"seeds = {seeds!r} must be a list of whole numbers, or how many")  # type: ignore[operator]
    called = name if name is not None else "study" if place is None else place.resolve().name
    problems = problem if isinstance(problem, Mapping) else {"": problem}
    require(len(problems) > 0, "problem = {}: give one, or several by name")
    slugs = [slug(str(case)) for case in problems]
    apart = len({*slugs}) == len(slugs) and (all(slugs) or not isinstance(problem, Mapping))
    require(apart, f"problem: the names {list(problems)} must give each a folder of its own")
    timed = _timing(timing)
    studies = {
        str(case): Study(
            as_problem(one),
            algorithms,  # type: ignore[arg-type]
            rounds,
            range(seeds) if whole(seeds) else seeds,  # type: ignore[arg-type]
            called,
            topology=topology,
            participation=participation,
            every=every,
            reference=reference,
            measures=measures,
            targets={} if targets is None else targets,
            timing=timed,
            hooks=hooks,
        )
        for case, one in problems.items()
    }
    found = _run(studies, place, resume, force, only, jobs=jobs, ranks=ranks, progress=progress)
    return Cases(found) if isinstance(problem, Mapping) else found[""]


def folder_of(out: Path | str | None) -> Path | None:
    good = out is None or isinstance(out, (str, os.PathLike))
    require(good, f"out = {out!r} must be the path of a folder, or None")
    return None if out is None else Path(out)


def _timing(given: Timing | str | Mapping[str, Any] | None) -> Timing | None:
    if given is None or isinstance(given, Timing):
        return given
    good = isinstance(given, (str, Mapping))
    require(good, f"timing = {given!r} must be a Timing, a table, or the name of a profile ({', '.join(profiles())})")
    return Timing.read({"profile": given} if isinstance(given, str) else dict(given))


def run_study(
    study: Study,
    out: Path | str | None = None,
    *,
    resume: bool = True,
    force: bool = False,
    only: Collection[str] | str = (),
    jobs: int | None = None,
    ranks: int = 1,
    progress: bool = True,
) -> Results:
    """Run a study and return its results.

    If this process is one of several ranks, started by torchrun or srun, it works with the others. The first rank keeps
    the records and returns them; the others return results without rows.

    Parameters
    ----------
    study : Study
        From `read_study`, or made in Python.
    out : Path | str, optional
        The run folder; None: nothing is kept on disk.
    resume : bool
        Resume the run in the folder, if the settings are the same; seeds and algorithms may be added.
    force : bool
        Replace the contents of the folder, even with `resume`.
    only : str or collection of str
        Labels of the algorithms to run now; empty: all.
    jobs : int, optional
        The number of processes that run algorithms and seeds in parallel; None: chosen for the machine, or one if a
        hook is a plain function.
    ranks : int
        The number of processes that share the clients of a run.
    progress : bool
        Show the progress in the terminal.

    Returns
    -------
    Results
    """
    of_kind("study", study, Study, "a Study")
    return _run({"": study}, folder_of(out), resume, force, only, jobs=jobs, ranks=ranks, progress=progress)[""]


def _run(
    studies: Mapping[str, Study],
    out: Path | None,
    resume: bool,
    force: bool,
    only: Collection[str] | str,
    **how: Any,
) -> dict[str, Results]:
    """Run studies, by the name of their case; a study without a name uses the folder itself."""
    listed = isinstance(only, Collection) and all(isinstance(label, str) for label in only)
    require(listed, f"only = {only!r} must be a label, or a list of labels")
    alone = out is not None or world() is None
    require(alone, "out = None: several ranks need a folder, where the first of them keeps the records")
    labels = [only] if isinstance(only, str) else list(only)
    with ExitStack() as held:
        place = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="proxfed-")) if out is None else out)
        folders = {case: RunFolder(place / slug(case)) for case in studies}
        planned = [Planned(s, folders[case], resume, force, labels, case) for case, s in studies.items()]
        if how["progress"] and planned[0].leads:
            for line in dict.fromkeys(line for s in studies.values() for line in beforehand(s)):
                say(line, err)
        stop = held.enter_context(stop_on_signal())
        found = dict(zip(studies, carry_out(planned, stop, **how), strict=True))
        if how["progress"] and planned[0].leads:
            for case, results in found.items():
                say_messages(results, case)
        if out is None:  # the folder is deleted before the results are used
            for case, results in found.items():
                results.models.load()
                found[case] = replace(results, name=case or studies[case].name, folder=None)
        return found


explain(__name__)
